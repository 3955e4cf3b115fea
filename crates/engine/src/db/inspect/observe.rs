//! Looks at a database that somebody else owns: manifest and file sizes, without opening it and
//! without its lock. Changes nothing, and holds nobody up.
//!
//! The owner goes on meanwhile: an edit may be half written, the manifest replaced, a file gone. What
//! looks like damage is therefore read again a few times before it is believed.

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

/// How often a manifest that cannot be read is read again.
const TRIES: usize = 8;

/// What the files of a database said at one moment; prints as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Observation {
    /// Number of the manifest in use.
    pub manifest: u64,
    /// Bytes of it.
    pub manifest_bytes: u64,
    /// Whether it was closed cleanly and not opened since.
    pub clean_close: bool,
    /// Keyspaces by name.
    pub keyspaces: BTreeMap<String, ObservedKeyspace>,
    /// Tables that the manifest names.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Blob files that the manifest names.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Segments of the log from the oldest live one on.
    pub wal_segments: u64,
    /// Their bytes.
    pub wal_bytes: u64,
    /// Bytes of the file `RESERVE`, which a full disk gives back.
    pub reserve_bytes: u64,
    /// Files that the manifest does not name: results of jobs under way, or what is about to go.
    pub other_files: u64,
    /// Their bytes.
    pub other_bytes: u64,
}

/// What the manifest says of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObservedKeyspace {
    /// Its compaction policy.
    pub policy: String,
    /// Tables hold every write up to this number.
    pub flushed_through: u64,
    /// Levels that hold something.
    pub levels: Vec<ObservedLevel>,
    /// Whether values were ever kept apart from the tree.
    pub value_separation: bool,
    /// Its blob files.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_bytes: u64,
    /// Bytes of the records in them that tables reference.
    pub blob_referenced_bytes: u64,
}

/// What the manifest says of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ObservedLevel {
    /// Its number.
    pub level: u8,
    /// Sorted runs.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their entries.
    pub entries: u64,
    /// Tombstones, those of ranges included.
    pub tombstones: u64,
}

/// Returns the sizes of the database in a directory, which may be open in another process.
///
/// Of the options only the file system ([`Options::vfs`]) is used.
///
/// # Errors
/// [`Error::NotADatabase`]; [`Error::Corrupt`] and others if the manifest stays unreadable.
pub fn observe(path: impl AsRef<Path>, options: &Options) -> Result<Observation> {
    let (dir, vfs) = (path.as_ref(), options.file_system());
    let vfs = vfs.as_ref();
    let loaded = load(vfs, dir)?;
    let state = &loaded.state;
    let mut seen = Observation {
        manifest: loaded.number,
        clean_close: state.clean_close,
        ..Observation::default()
    };
    let (named, kept) = (state.file_numbers(), kept_logs(state));
    for keyspace in state.keyspaces.values() {
        seen.tables += len_u64(keyspace.files().count());
        seen.table_bytes += keyspace.files().map(|(.., file)| file.bytes).sum::<u64>();
        let observed = observed(keyspace);
        seen.blob_files += observed.blob_files;
        seen.blob_bytes += observed.blob_bytes;
        seen.keyspaces.insert(keyspace.name.clone(), observed);
    }
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    for name in names {
        let path = dir.join(&name);
        let Some(bytes) = size(vfs, &path)? else { continue };
        match FileName::parse(&name) {
            Some(FileName::Table(id) | FileName::Blob(id)) if named.contains(&id) => {}
            Some(FileName::Segment(id))
                if id >= state.wal_oldest || kept.values().any(|log| log.contains(id)) =>
            {
                seen.wal_segments += 1;
                seen.wal_bytes += bytes;
            }
            Some(FileName::Manifest(number)) if number == loaded.number => {
                seen.manifest_bytes = bytes;
            }
            Some(FileName::Reserve) => seen.reserve_bytes = bytes,
            Some(FileName::Current | FileName::Lock) | None => {}
            Some(_) => {
                seen.other_files += 1;
                seen.other_bytes += bytes;
            }
        }
    }
    Ok(seen)
}

fn load(vfs: &dyn Vfs, dir: &Path) -> Result<LoadedManifest> {
    let mut last = Manifest::load(vfs, dir);
    for _ in 1..TRIES {
        match &last {
            // Its owner may have been at it; one that is really so, stays so.
            Err(Error::Corrupt { .. } | Error::Missing { .. }) => last = Manifest::load(vfs, dir),
            _ => break,
        }
    }
    last
}

/// Bytes of a file; `None` if it has gone meanwhile, or is none.
fn size(vfs: &dyn Vfs, path: &Path) -> Result<Option<u64>> {
    match vfs.open(path).and_then(|file| file.len()) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => Ok(None),
            _ => Err(Error::io("read the size of", path, error)),
        },
    }
}

fn observed(keyspace: &KeyspaceState) -> ObservedKeyspace {
    let levels = (0u8..=u8::MAX).zip(&keyspace.levels).map(|(level, runs)| {
        let mut metrics =
            ObservedLevel { level, runs: len_u64(runs.len()), ..ObservedLevel::default() };
        for file in runs.iter().flat_map(|run| &run.files) {
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
        blob_files: len_u64(log.blobs().count()),
        blob_bytes: log.blobs().map(|blob| blob.bytes).sum(),
        blob_referenced_bytes: log.referenced().values().map(|(bytes, _)| bytes).sum(),
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
