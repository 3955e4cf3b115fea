//! A partially received snapshot.

use std::collections::{BTreeSet, VecDeque};

use lsmx::vfs::File;
use lsmx_base::sync::Arc;

use crate::error::{Error, StreamFault};
use crate::snapshot::dir::SnapshotDir;
use crate::snapshot::format::{
    FRAME_PAYLOAD_BYTES, FileRecord, StreamHeader, frame_checksum, stream_bytes,
};
use crate::snapshot::frame_journal::FrameJournal;
use crate::snapshot::partial_slot::PartialSlot;
use crate::snapshot::source::SnapshotSource;

/// Received bytes after which the open file and the journal are synced. They are also synced when a file is complete. A power
/// loss loses at most the bytes since then.
const SYNC_INTERVAL_BYTES: usize = 64 << 20;

/// Start of a received stream: its header and its file list.
#[derive(Debug)]
pub(crate) struct Prologue {
    pub(crate) header: StreamHeader,
    pub(crate) files: Vec<FileRecord>,
    /// Encoded header and file list.
    pub(crate) bytes: Vec<u8>,
    /// Checksums of the frames that contain the bytes. The last one may contain the start of the first file.
    pub(crate) checksums: Vec<u64>,
}

/// Writes the files of a snapshot to a directory, and its frames to a journal.
///
/// The directory of an incomplete snapshot stays on the disk when this is dropped, so that another stream can continue.
#[derive(Debug)]
pub(crate) struct PartialSnapshot {
    dir: Arc<SnapshotDir>,
    slot: Arc<PartialSlot>,
    /// Number that the slot has assigned.
    number: u64,
    pub(crate) header: StreamHeader,
    /// Files that are not complete. The first one may be open.
    missing: VecDeque<FileRecord>,
    /// The first of the missing files, with the number of bytes that are missing.
    open: Option<(Arc<dyn File>, u64)>,
    journal: FrameJournal,
    unsynced_bytes: usize,
    has_unsynced_name: bool,
    /// Whether no other stream may continue the directory.
    has_ended: bool,
}

impl PartialSnapshot {
    /// Continues the kept partial snapshot if it contains more of this stream than `prologue`. Otherwise, removes it and creates
    /// a directory with `content`, the bytes that follow the prologue in its last frame.
    ///
    /// Returns the number of received bytes of the stream too.
    pub(crate) fn begin(
        slot: &Arc<PartialSlot>,
        prologue: Prologue,
        content: &[u8],
    ) -> Result<(PartialSnapshot, u64), Error> {
        let (number, kept) = slot.begin();
        if let Some(dir) = kept {
            let continued = continue_kept(slot, number, &dir, &prologue);
            if !matches!(continued, Ok(Some(_))) {
                dir.set_kept(false);
            }
            if let Some(continued) = continued? {
                return Ok(continued);
            }
        }
        let (root, dir) = (&slot.root, Arc::new(slot.root.new_dir()?));
        root.vfs.create_dir(&dir.path).map_err(Error::io("create", &dir.path))?;
        let journal = FrameJournal::create(&dir, prologue.header.stream_key, &prologue.checksums)?;
        root.sync()?;
        // From now on, the directory can be continued.
        dir.set_kept(true);
        let received = stream_bytes((prologue.bytes.len() + content.len()) as u64);
        let mut partial =
            PartialSnapshot::new(slot, number, dir, prologue.header, prologue.files, journal);
        if let Err(error) = partial.append(content, 0) {
            partial.end();
            return Err(error);
        }
        Ok((partial, received))
    }

    fn new(
        slot: &Arc<PartialSlot>,
        number: u64,
        dir: Arc<SnapshotDir>,
        header: StreamHeader,
        missing: impl Into<VecDeque<FileRecord>>,
        journal: FrameJournal,
    ) -> PartialSnapshot {
        PartialSnapshot {
            dir,
            slot: Arc::clone(slot),
            number,
            header,
            missing: missing.into(),
            open: None,
            journal,
            unsynced_bytes: 0,
            has_unsynced_name: false,
            has_ended: false,
        }
    }

    /// Adds the payload of a verified frame, which starts at `offset` of the stream, and its checksum.
    pub(crate) fn add_frame(
        &mut self,
        payload: &[u8],
        checksum: u64,
        offset: u64,
    ) -> Result<(), Error> {
        self.append(payload, offset)?;
        self.journal.append(checksum)?;
        self.unsynced_bytes += payload.len();
        if self.has_unsynced_name || self.unsynced_bytes >= SYNC_INTERVAL_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn append(&mut self, mut content: &[u8], offset: u64) -> Result<(), Error> {
        // Empty files at the end of the stream have no content.
        while let Some(first) = self.missing.front() {
            let path = self.dir.path.join(&first.name);
            let (file, missing_bytes) = match self.open.take() {
                Some(open) => open,
                None => {
                    let created = self.dir.root.vfs.create(&path);
                    (created.map_err(Error::io("create", &path))?, first.bytes)
                }
            };
            let len = content.len().min(usize::try_from(missing_bytes).unwrap_or(usize::MAX));
            let (head, tail) = content.split_at(len);
            file.append(head).map_err(Error::io("write", &path))?;
            content = tail;
            if missing_bytes > len as u64 {
                self.open = Some((file, missing_bytes - len as u64));
                break;
            }
            file.sync().map_err(Error::io("sync", &path))?;
            self.has_unsynced_name = true;
            self.missing.pop_front();
        }
        if content.is_empty() { Ok(()) } else { Err(StreamFault::TooLong.at(offset)) }
    }

    /// Makes the received part durable.
    fn sync(&mut self) -> Result<(), Error> {
        let dir = &self.dir.path;
        if let Some((file, _)) = &self.open {
            file.sync().map_err(Error::io("sync a file in", dir))?;
        }
        self.dir.root.vfs.sync_dir(dir).map_err(Error::io("sync", dir))?;
        self.journal.sync()?;
        (self.unsynced_bytes, self.has_unsynced_name) = (0, false);
        Ok(())
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    pub(crate) fn dir(&self) -> &Arc<SnapshotDir> {
        &self.dir
    }

    /// Ends the receipt. The drop of the last reference to the directory removes it, unless the snapshot was installed.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
        self.dir.set_kept(false);
    }
}

impl Drop for PartialSnapshot {
    fn drop(&mut self) {
        if !self.has_ended {
            self.slot.keep(self.number, Arc::clone(&self.dir));
        }
    }
}

/// Continues a kept directory. Returns `None` if it contains no more of the stream than the prologue.
///
/// 1. Read the checksums of the journal. Produce the frames of the stream from the kept files, and compare their checksums, up
///    to the first difference. This proves that the files contain these frames of this stream, whatever survived a crash.
/// 2. Remove each file that is not complete in these frames. Copy the verified start of the last file, because files cannot be
///    truncated. The files before it were synced before it was created.
/// 3. Replace the journal by one with the verified frames.
fn continue_kept(
    slot: &Arc<PartialSlot>,
    number: u64,
    dir: &Arc<SnapshotDir>,
    prologue: &Prologue,
) -> Result<Option<(PartialSnapshot, u64)>, Error> {
    let Prologue { header, bytes, files, checksums: prologue_checksums } = prologue;
    remove_longer_files(dir, files)?;
    let key = header.stream_key;
    let source = SnapshotSource::new(Arc::clone(dir), key, bytes.clone(), files.clone());
    let mut checksums = FrameJournal::read(dir, key);
    let is_intact = |(number, expected): (u64, &u64)| {
        source.read_frame(number).is_ok_and(|frame| frame_checksum(&frame) == Some(*expected))
    };
    let frames = (0..source.frame_count()).zip(&checksums).take_while(|it| is_intact(*it)).count();
    if frames <= prologue_checksums.len() {
        return Ok(None);
    }
    checksums.truncate(frames);
    let content_bytes = (frames as u64 * FRAME_PAYLOAD_BYTES as u64).min(source.content_bytes());
    let (last, copied_bytes) = source.locate(content_bytes - 1);
    let Some((complete, missing)) = files.split_at_checked(last) else { return Ok(None) };
    let Some(last) = missing.first() else { return Ok(None) };
    let with_content = complete.iter().filter(|file| file.bytes > 0);
    remove_other_files(dir, with_content.chain([last]).map(|file| &*file.name).collect())?;
    for empty in complete.iter().filter(|file| file.bytes == 0) {
        let path = dir.path.join(&empty.name);
        dir.root.vfs.create(&path).map_err(Error::io("create", &path))?;
    }
    let open = (copy_start(dir, &last.name, copied_bytes + 1)?, last.bytes - copied_bytes - 1);
    let journal = FrameJournal::create(dir, key, &checksums)?;
    dir.root.sync()?;
    let (dir, missing) = (Arc::clone(dir), missing.to_vec());
    let mut partial = PartialSnapshot::new(slot, number, dir, *header, missing, journal);
    partial.open = Some(open);
    // Completes the last file if it is copied completely, and creates the empty files after it.
    if let Err(error) = partial.append(&[], 0).and_then(|()| partial.sync()) {
        partial.end();
        return Err(error);
    }
    Ok(Some((partial, stream_bytes(content_bytes))))
}

/// Removes the files that are longer than in the list. The frames would not show their last bytes.
fn remove_longer_files(dir: &SnapshotDir, files: &[FileRecord]) -> Result<(), Error> {
    let vfs = &dir.root.vfs;
    for file in files {
        let path = dir.path.join(&file.name);
        let len = vfs.open(&path).and_then(|opened| opened.len());
        if len.is_ok_and(|len| len > file.bytes) {
            vfs.remove(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

fn remove_other_files(dir: &SnapshotDir, kept_names: BTreeSet<&str>) -> Result<(), Error> {
    let vfs = &dir.root.vfs;
    for name in vfs.list(&dir.path).map_err(Error::io("list", &dir.path))? {
        if !kept_names.contains(&*name) {
            let path = dir.path.join(name);
            vfs.remove(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Replaces a file by a copy of its first bytes, which can be continued.
fn copy_start(dir: &SnapshotDir, name: &str, bytes: u64) -> Result<Arc<dyn File>, Error> {
    let (vfs, path) = (&dir.root.vfs, dir.path.join(name));
    let copy_path = dir.path.join(format!("{name}.copy"));
    let original = vfs.open(&path).map_err(Error::io("open", &path))?;
    let copy = vfs.create(&copy_path).map_err(Error::io("create", &copy_path))?;
    let (mut buffer, mut at) = (vec![0; FRAME_PAYLOAD_BYTES], 0);
    while at < bytes {
        let len = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        let read = original.read_at(&mut buffer[..len], at).map_err(Error::io("read", &path))?;
        if read < len {
            return Err(Error::io("read", path)(std::io::ErrorKind::UnexpectedEof.into()));
        }
        copy.append(&buffer[..len]).map_err(Error::io("write", &copy_path))?;
        at += len as u64;
    }
    copy.sync().map_err(Error::io("sync", &copy_path))?;
    vfs.rename(&copy_path, &path).map_err(Error::io("replace", &path))?;
    Ok(copy)
}
