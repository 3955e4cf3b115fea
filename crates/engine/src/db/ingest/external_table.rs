//! Writer of external tables.

use std::path::{Path, PathBuf};

use lsmx_base::checksum::xxh3;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::sync::Arc;

use crate::db::checkpoint::check_output_path;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::options::keyspace::KeyspaceOptions;
use crate::table::{FilterWidth, TableWriter};
use crate::vfs::{OsVfs, Vfs};

/// Level whose compression external tables use. It is below every level of a tree.
pub(in crate::db) const DEEPEST_LEVEL: u8 = u8::MAX;

/// An external table file that was written completely and synced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalTable {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of entries.
    pub entries: u64,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Smallest key.
    pub smallest: Vec<u8>,
    /// Largest key.
    pub largest: Vec<u8>,
}

/// Writes a sorted table file outside of a database, for [`Keyspace::ingest`](crate::Keyspace::ingest).
///
/// Keys are added in ascending order, each once. The entries have no sequence numbers before the ingest. The writer needs
/// no database, so that other processes and other hosts can write tables. Dropping the writer before
/// [`ExternalTableWriter::finish`] removes the file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// use lsmx::KeyspaceOptions;
/// use lsmx::ingest::ExternalTableWriter;
///
/// let path = dir.path().join("cities.sst");
/// let mut table = ExternalTableWriter::create(&path, &KeyspaceOptions::default())?;
/// table.put("berlin", "3.7 M")?;
/// table.put("paris", "2.1 M")?;
/// table.finish()?;
///
/// let cities = db.keyspace("cities", KeyspaceOptions::default())?;
/// cities.ingest([&path])?;
/// assert_eq!(cities.get("paris")?.as_deref(), Some(&b"2.1 M"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExternalTableWriter {
    /// `None` after the end of the file was written.
    writer: Option<TableWriter>,
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
}

impl ExternalTableWriter {
    /// Creates a file on the file system of the operating system.
    ///
    /// Block size, restart interval, block tags, compression and prefix filter are those of the options. Other options have
    /// no effect. The filter has 8 bits per key.
    ///
    /// # Errors
    /// [`Error::Io`] if the file exists or cannot be created; [`Error::InvalidOption`]; [`Error::OutputInDatabase`] if
    /// the path has the name of an engine file in a database directory.
    pub fn create(
        path: impl AsRef<Path>,
        options: &KeyspaceOptions,
    ) -> Result<ExternalTableWriter> {
        ExternalTableWriter::create_in(Arc::new(OsVfs), path, options)
    }

    /// As [`ExternalTableWriter::create`], on another file system.
    ///
    /// # Errors
    /// As [`ExternalTableWriter::create`].
    pub fn create_in(
        vfs: Arc<dyn Vfs>,
        path: impl AsRef<Path>,
        options: &KeyspaceOptions,
    ) -> Result<ExternalTableWriter> {
        let uid = Env::default().random_u64() ^ xxh3(path.as_ref().as_os_str().as_encoded_bytes());
        ExternalTableWriter::create_with_uid(vfs, path.as_ref(), options, uid)
    }

    /// As [`ExternalTableWriter::create_in`], with a given uid, which should be random.
    pub(crate) fn create_with_uid(
        vfs: Arc<dyn Vfs>,
        path: &Path,
        options: &KeyspaceOptions,
        uid: u64,
    ) -> Result<ExternalTableWriter> {
        check_output_path(&*vfs, path)?;
        let table_options = options.table_options(DEEPEST_LEVEL, FilterWidth::default());
        let mut writer = TableWriter::create(&*vfs, path, uid, &table_options)?;
        writer.set_external();
        Ok(ExternalTableWriter { writer: Some(writer), vfs, path: path.to_owned() })
    }

    /// Adds a value.
    ///
    /// # Errors
    /// - [`Error::OutOfOrder`] if the key is not after the last one.
    /// - [`Error::TooLarge`] if the key or the value exceeds its limit.
    /// - [`Error::Io`] if the file cannot be written. The file must not be used after an error.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add(EntryKind::Put, key.as_ref(), value.as_ref())
    }

    /// Adds a deletion. After the ingest, older values of the key are invisible.
    ///
    /// # Errors
    /// As [`ExternalTableWriter::put`].
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(EntryKind::Delete, key.as_ref(), &[])
    }

    fn add(&mut self, kind: EntryKind, user_key: &[u8], value: &[u8]) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Err(Error::Closed) };
        // The table writer would accept a put and a delete of one key, because their internal keys differ.
        if writer.last_key() == Some(user_key) {
            return Err(Error::OutOfOrder { path: self.path.clone() });
        }
        writer.add(InternalKey { user_key, seq: SeqNo::ZERO, kind }, value)
    }

    /// Returns the approximate size of the file if it were finished now, in bytes.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, TableWriter::estimated_bytes)
    }

    /// Writes the rest of the file and syncs it with its directory.
    ///
    /// # Errors
    /// [`Error::EmptyTable`] without entries; [`Error::Io`] if the file cannot be written or synced. The file is then
    /// removed.
    pub fn finish(mut self) -> Result<ExternalTable> {
        let finished = self.write_end();
        if finished.is_err() {
            self.remove_file();
        }
        finished
    }

    fn write_end(&mut self) -> Result<ExternalTable> {
        let Some(writer) = self.writer.take() else { return Err(Error::Closed) };
        let summary = writer.finish()?;
        let dir = match self.path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        self.vfs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        Ok(ExternalTable {
            path: self.path.clone(),
            entries: summary.properties.entries,
            bytes: summary.bytes,
            smallest: summary.properties.smallest.to_vec(),
            largest: summary.properties.largest.to_vec(),
        })
    }

    fn remove_file(&self) {
        // An unfinished file has no footer, so that an ingest refuses it if the removal fails.
        let _ = self.vfs.remove(&self.path);
    }
}

impl Drop for ExternalTableWriter {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            self.remove_file();
        }
    }
}
