//! Files and views of a simple store.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lsmx::operand_store::{
    Cursor, Operand, OperandFileKind, OperandFiles, OperandReadTier, OperandView, StoreContext,
    StoreToken,
};
use lsmx::vfs::File;
use lsmx::{Error, Malformed, Result, SeqNo};

use super::contents::Contents;
use super::cursor::OperandCursor;
use super::{checksum, io_error, lock};

/// A file of the store. When the last reference to an obsolete file is dropped, the file is deleted from disk.
#[derive(Debug)]
pub(super) struct StoreFile {
    context: StoreContext,
    file: Arc<dyn File>,
    /// File number, length in bytes, checksum, and sequence number of the last delivery.
    pub(super) token: StoreToken,
    pub(super) is_obsolete: AtomicBool,
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        if self.is_obsolete.load(Ordering::Acquire) {
            self.context.files.discard(OperandFileKind::Log, self.token.0[0]);
        }
    }
}

impl StoreFile {
    pub(super) fn open(context: &StoreContext, token: StoreToken) -> Result<StoreFile> {
        let path = context.files.path(OperandFileKind::Log, token.0[0]);
        let file = context.files.vfs().open(&path).map_err(io_error("open", &path))?;
        Ok(StoreFile { context: context.clone(), file, token, is_obsolete: false.into() })
    }

    /// Writes and syncs a file. The caller must sync the directory.
    pub(super) fn write(
        context: &StoreContext,
        files: &dyn OperandFiles,
        contents: &Contents,
    ) -> Result<StoreFile> {
        let (number, file) = files.create(OperandFileKind::Log)?;
        let path = files.path(OperandFileKind::Log, number);
        let bytes = contents.encode();
        let written = file.append(&bytes).map_err(io_error("append to", &path));
        let synced = written.and_then(|()| file.sync().map_err(io_error("sync", &path)));
        if let Err(error) = synced {
            files.discard(OperandFileKind::Log, number);
            return Err(error);
        }
        let token = StoreToken([number, bytes.len() as u64, checksum(&bytes), contents.through.0]);
        Ok(StoreFile { context: context.clone(), file, token, is_obsolete: false.into() })
    }

    pub(super) fn read(&self) -> Result<Contents> {
        let [number, bytes, expected, through] = self.token.0;
        let path = self.context.files.path(OperandFileKind::Log, number);
        let len = self.file.len().map_err(io_error("read", &path))?;
        if len < bytes {
            let what = Malformed::Truncated { what: "operands", needed: bytes, found: len };
            return Err(Error::malformed(what, &path, len));
        }
        let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let read = self.file.read_at(&mut buffer, 0).map_err(io_error("read", &path))?;
        let found = checksum(&buffer[..read]);
        if found != expected {
            return Err(Error::malformed(Malformed::Checksum { expected, found }, &path, 0));
        }
        let contents = Contents::decode(&buffer, SeqNo(through));
        contents.ok_or_else(|| Error::malformed(Malformed::Order { what: "items" }, &path, 0))
    }
}

/// A view: the contents of one file, as readers see them.
#[derive(Debug)]
pub(super) struct View {
    context: StoreContext,
    pub(super) keys: BTreeSet<Vec<u8>>,
    /// `None` if the store has written no file yet. The contents are empty then.
    pub(super) file: Option<Arc<StoreFile>>,
    /// `None` until the contents are read from the file.
    contents: Mutex<Option<Arc<Contents>>>,
}

impl View {
    pub(super) fn new(
        context: &StoreContext,
        file: Option<Arc<StoreFile>>,
        contents: Contents,
        lazy: bool,
    ) -> Arc<View> {
        let keys = contents.keys.keys().cloned().collect();
        let contents = (!lazy || file.is_none()).then(|| Arc::new(contents));
        Arc::new(View { context: context.clone(), keys, file, contents: Mutex::new(contents) })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.token.0[1])
    }

    /// Returns the contents for a read, and updates the read counters. Fails if the tier is `Memory` and the contents
    /// are not in memory.
    pub(super) fn read_contents(&self, tier: OperandReadTier) -> Result<Arc<Contents>> {
        if lock(&self.contents).is_some() {
            self.context.read_counters.record_hit();
            return self.contents();
        }
        if tier == OperandReadTier::Memory {
            return Err(Error::WouldBlock);
        }
        let contents = self.contents()?;
        self.context.read_counters.record_read(self.file_bytes());
        Ok(contents)
    }

    /// Returns the contents. Reads the file if the contents are not in memory.
    pub(super) fn contents(&self) -> Result<Arc<Contents>> {
        if let Some(contents) = &*lock(&self.contents) {
            return Ok(Arc::clone(contents));
        }
        let contents = match &self.file {
            Some(file) => Arc::new(file.read()?),
            None => Arc::default(),
        };
        *lock(&self.contents) = Some(Arc::clone(&contents));
        Ok(contents)
    }
}

impl OperandView for View {
    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        // Returns `true` for some absent keys too, like a filter with false positives.
        self.keys.contains(key) || (!self.keys.is_empty() && checksum(key).is_multiple_of(8))
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        tier: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        found.extend(self.read_contents(tier)?.visible_operands(key, at));
        Ok(())
    }

    fn cursor(self: Arc<Self>, at: SeqNo, tier: OperandReadTier) -> Box<dyn Cursor> {
        Box::new(OperandCursor::over_view(self, tier, at))
    }

    fn keep_files_open(&self) {
        // Loads the contents, so that later reads need no file. An error is ignored, because the next read returns it.
        let _ = self.contents();
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        let contents = self.contents()?;
        Ok(StoreFile::write(&self.context, target, &contents)?.token)
    }
}
