//! Report of [`observe`]: manifest and file sizes of a database that another process may have open.
//!
//! The files are read without a lock and are not changed. The process that has the database open may replace the
//! manifest or delete files during the read. Therefore a corrupt manifest is read again several times before an error
//! is returned.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::manifest::{KeyspaceState, LoadedManifest, Manifest};
use crate::options::db::Options;
use crate::options::stored::{StoredOptions, kept_logs};
use crate::vfs::Vfs;

/// Maximum number of attempts to read the manifest.
const ATTEMPTS: usize = 8;

/// Sizes of a database according to its manifest and directory. Prints as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Observation {
    /// Number of the current manifest.
    pub manifest: u64,
    /// Size of the current manifest, in bytes.
    pub manifest_bytes: u64,
    /// True if the database was closed cleanly and is not open.
    pub clean_close: bool,
    /// Keyspaces by name.
    pub keyspaces: BTreeMap<String, ObservedKeyspace>,
    /// Number of tables in the manifest.
    pub tables: u64,
    /// Total size of the tables in the manifest, in bytes.
    pub table_bytes: u64,
    /// Number of blob files in the manifest.
    pub blob_files: u64,
    /// Total size of the blob files in the manifest, in bytes.
    pub blob_bytes: u64,
    /// Number of WAL segments that recovery needs. Segments kept for an operand store that was missing at an open are
    /// included.
    pub wal_segments: u64,
    /// Total size of the counted WAL segments, in bytes.
    pub wal_bytes: u64,
    /// Size of the file `RESERVE`, in bytes. The engine deletes the file when the disk is full.
    pub reserve_bytes: u64,
    /// Number of files that the manifest does not list: outputs of running jobs, and obsolete files.
    pub other_files: u64,
    /// Total size of the files that the manifest does not list, in bytes.
    pub other_bytes: u64,
}

/// Sizes of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObservedKeyspace {
    /// Name and parameters of the compaction policy.
    pub policy: String,
    /// Sequence number up to which all writes are in tables.
    pub flushed_through: u64,
    /// Levels that have sorted runs, in order.
    pub levels: Vec<ObservedLevel>,
    /// Whether value separation was ever enabled.
    pub value_separation: bool,
    /// Number of blob files.
    pub blob_files: u64,
    /// Size of the blob files, in bytes.
    pub blob_bytes: u64,
    /// Size of the blob records that tables still reference, in bytes.
    pub blob_referenced_bytes: u64,
}

/// Sizes of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObservedLevel {
    /// Number of the level.
    pub level: u8,
    /// Number of sorted runs.
    pub runs: u64,
    /// Number of files.
    pub files: u64,
    /// Size of the files, in bytes.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of tombstones, including range tombstones.
    pub tombstones: u64,
}

/// Returns the sizes of the database in a directory. The database may be open in another process.
///
/// [`Options::vfs`] is the only option used.
///
/// # Errors
/// [`Error::NotADatabase`]. [`Error::Corrupt`] or another error if several attempts to read the manifest fail.
pub fn observe(path: impl AsRef<Path>, options: &Options) -> Result<Observation> {
    let (dir, vfs) = (path.as_ref(), options.file_system());
    let vfs = vfs.as_ref();
    let loaded = load_manifest(vfs, dir)?;
    let state = &loaded.state;
    let mut observation = Observation {
        manifest: loaded.number,
        clean_close: state.clean_close,
        ..Observation::default()
    };
    let (named, kept) = (state.file_numbers(), kept_logs(state));
    for keyspace in state.keyspaces.values() {
        observation.tables += len_u64(keyspace.tree.files().count());
        observation.table_bytes += keyspace.tree.total_bytes();
        let observed = observe_keyspace(keyspace);
        observation.blob_files += observed.blob_files;
        observation.blob_bytes += observed.blob_bytes;
        observation.keyspaces.insert(keyspace.name.clone(), observed);
    }
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    for name in names {
        let path = dir.join(&name);
        let Some(bytes) = file_bytes(vfs, &path)? else { continue };
        match FileName::parse(&name) {
            Some(FileName::Table(id) | FileName::Blob(id)) if named.contains(&id) => {}
            Some(FileName::Segment(id))
                if id >= state.wal_oldest || kept.values().any(|log| log.contains(id)) =>
            {
                observation.wal_segments += 1;
                observation.wal_bytes += bytes;
            }
            Some(FileName::Manifest(number)) if number == loaded.number => {
                observation.manifest_bytes = bytes;
            }
            Some(FileName::Reserve) => observation.reserve_bytes = bytes,
            Some(
                FileName::Current | FileName::Lock | FileName::Metrics | FileName::MetricsTemporary,
            )
            | None => {}
            Some(_) => {
                observation.other_files += 1;
                observation.other_bytes += bytes;
            }
        }
    }
    Ok(observation)
}

fn load_manifest(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
    let mut manifest = Manifest::load(vfs, dir);
    for _ in 1..ATTEMPTS {
        match &manifest {
            // The process that has the database open may have changed the files during the read.
            Err(Error::Corrupt { .. } | Error::Missing { .. }) => {
                manifest = Manifest::load(vfs, dir);
            }
            _ => break,
        }
    }
    manifest
}

/// Returns the size of a file, or `None` if it does not exist any more or is a directory.
fn file_bytes(vfs: &dyn Vfs, path: &Path) -> Result<Option<u64>> {
    match vfs.open(path).and_then(|file| file.len()) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => Ok(None),
            _ => Err(Error::io("read the size of", path, error)),
        },
    }
}

fn observe_keyspace(keyspace: &KeyspaceState) -> ObservedKeyspace {
    let levels = (0u8..=u8::MAX).zip(&keyspace.tree.levels).map(|(level, shape)| {
        let mut metrics =
            ObservedLevel { level, runs: len_u64(shape.runs.len()), ..ObservedLevel::default() };
        for file in shape.files() {
            metrics.files += 1;
            metrics.bytes += file.bytes;
            metrics.entries += file.entries;
            metrics.tombstones += file.tombstones;
        }
        metrics
    });
    let persisted = StoredOptions::decode(&keyspace.options);
    let log = &keyspace.value_log;
    ObservedKeyspace {
        value_separation: persisted.as_ref().is_some_and(|persisted| persisted.value_separation),
        policy: persisted.map_or_else(String::new, |persisted| persisted.policy),
        blob_files: len_u64(log.blob_files().count()),
        blob_bytes: log.blob_files().map(|blob| blob.bytes).sum(),
        blob_referenced_bytes: log
            .referenced_bytes_by_file()
            .values()
            .map(|(bytes, _)| bytes)
            .sum(),
        flushed_through: keyspace.flushed_through.0,
        levels: levels.filter(|level| level.runs > 0).collect(),
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.clean_close { "closed" } else { "open, or not closed cleanly" };
        writeln!(
            f,
            "manifest {} of {} bytes, {state}; {} tables, {} bytes; log {} segments, {} bytes; \
             reserve {} bytes; {} other files, {} bytes",
            self.manifest,
            self.manifest_bytes,
            self.tables,
            self.table_bytes,
            self.wal_segments,
            self.wal_bytes,
            self.reserve_bytes,
            self.other_files,
            self.other_bytes
        )?;
        for (name, keyspace) in &self.keyspaces {
            writeln!(
                f,
                "[{name}] {}, flushed through {}",
                keyspace.policy, keyspace.flushed_through
            )?;
            for level in &keyspace.levels {
                writeln!(
                    f,
                    "  L{}: {} runs, {} files, {} bytes, {} entries, {} tombstones",
                    level.level,
                    level.runs,
                    level.files,
                    level.bytes,
                    level.entries,
                    level.tombstones
                )?;
            }
            if keyspace.blob_files > 0 {
                writeln!(
                    f,
                    "  value log: {} blob files, {} bytes, {} of them referenced",
                    keyspace.blob_files, keyspace.blob_bytes, keyspace.blob_referenced_bytes
                )?;
            }
        }
        Ok(())
    }
}
