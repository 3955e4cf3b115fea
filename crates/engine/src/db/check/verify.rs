//! Checks a closed database from end to end: every checksum, every order, every name, every pointer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::{ManifestLevel, TreeShape};
use serde::Serialize;

use crate::cache::BlockCache;
use crate::db::check::verify_values::Values;
use crate::db::open::{read_only, recovery};
use crate::db::operand_store::{self, StoreCheck};
use crate::error::{Error, Result};
use crate::format::batch::{BatchAction, BatchOperations};
use crate::format::file_name::{CURRENT, FileName};
use crate::format::version_edit::FileRecord;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::Options;
use crate::options::keyspace::kept_logs;
use crate::table::{Table, TableIdentity, verify_table};
use crate::vfs::Vfs;
use crate::wal::{
    RecoveryMode, RecoveryReport, ReplayFrom, ReplayedRecord, replay, replay_segments,
};

/// What a check of a whole database found to be in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Keyspaces.
    pub keyspaces: u64,
    /// Tables, each read from the first byte to the last.
    pub tables: u64,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// Entries in the tables.
    pub entries: u64,
    /// Blob files, each read from the first byte to the last.
    pub blob_files: u64,
    /// Bytes of the blob files.
    pub blob_bytes: u64,
    /// Values in them that tables point to.
    pub blob_values: u64,
    /// Segments of the log.
    pub wal_segments: u64,
    /// Commits in the log.
    pub wal_records: u64,
    /// Bytes of a torn tail that the next opening will cut.
    pub wal_tail_bytes: u64,
    /// Operand stores, each checked from end to end.
    pub operand_stores: u64,
    /// Keyspaces whose operands were not checked, because no store of their name was given.
    pub operands_unchecked: Vec<String>,
    /// Files that nothing names; the next opening removes them.
    pub orphans: Vec<PathBuf>,
}

/// Checks every file of the database in a directory, which must not be open for writing. Changes no file.
///
/// The manifest, all tables (checksums, order, index, filter, properties), the invariants of every tree, all
/// blob files and all pointers to them, and the log are checked. Of the options only the file system
/// ([`Options::vfs`]) and the operand stores ([`Options::operand_store`]) are used. Operand stores without a
/// factory are not checked; [`VerifyReport::operands_unchecked`] lists their keyspaces.
///
/// # Errors
/// The first fault that is found, with file and offset; [`Error::Locked`] while the database is open for writing.
pub fn verify(path: impl AsRef<Path>, options: &Options) -> Result<VerifyReport> {
    let (dir, vfs, stores) = (path.as_ref(), options.file_system(), &options.operand_stores);
    let _lock = read_only::share_lock(&*vfs, dir)?;
    let loaded = Manifest::load(&*vfs, dir)?;
    let state = &loaded.state;
    let mut report =
        VerifyReport { keyspaces: state.keyspaces.len() as u64, ..VerifyReport::default() };
    let mut operand_files = Some(BTreeSet::new());
    for (&id, keyspace) in &state.keyspaces {
        verify_keyspace(&*vfs, dir, (id, keyspace), &mut report)?;
        match operand_store::verify_store(&vfs, dir, keyspace, stores)? {
            StoreCheck::NoStore => {}
            StoreCheck::Checked(files) => {
                report.operand_stores += 1;
                operand_files.iter_mut().for_each(|all| all.extend(&files));
            }
            StoreCheck::Unchecked => {
                report.operands_unchecked.push(keyspace.name.clone());
                operand_files = None;
            }
        }
    }
    let replayed = verify_log(&*vfs, dir, state, &loaded.path)?;
    report.wal_segments = replayed.segments;
    report.wal_records = replayed.records;
    report.wal_tail_bytes = replayed.bytes_cut;
    report.orphans = orphans(&*vfs, dir, state, loaded.number, operand_files.as_ref())?;
    Ok(report)
}

fn verify_keyspace(
    vfs: &dyn Vfs,
    dir: &Path,
    (id, keyspace): (u32, &KeyspaceState),
    report: &mut VerifyReport,
) -> Result<()> {
    let cache = BlockCache::new(0);
    let mut levels = Vec::new();
    for runs in &keyspace.levels {
        let mut parts = ManifestLevel::default();
        for run in runs {
            let shapes = run.files.iter().map(|file| Arc::new(file.shape())).collect();
            parts.runs.push((run.id, shapes));
        }
        levels.push(parts);
    }
    TreeShape::from_levels(levels, keyspace.run_id_next)?.check()?;
    let values = Values::open(vfs, dir, (id, keyspace), &cache)?;
    report.blob_files += values.files();
    report.blob_bytes += values.bytes();
    for (_, _, file) in keyspace.files() {
        let table = open_verified_table(vfs, dir, (id, file), &cache)?;
        report.blob_values +=
            values.verify_table(&table, keyspace.value_log.references_of(file.id))?;
        report.tables += 1;
        report.table_bytes += file.bytes;
        report.entries += file.entries;
    }
    Ok(())
}

/// A table is sound, and the one that the manifest names for a keyspace.
pub(crate) fn open_verified_table(
    vfs: &dyn Vfs,
    dir: &Path,
    (keyspace, file): (u32, &FileRecord),
    cache: &Arc<BlockCache>,
) -> Result<Arc<Table>> {
    let (id, bytes, uid, checksum) = (file.id, file.bytes, file.uid, file.checksum);
    let path = FileName::Table(id.0).in_dir(dir);
    let table = Table::open(vfs, &path, &TableIdentity { id, bytes, uid, checksum }, cache);
    let table = table.map_err(|error| recovery::named(error, &dir.join(CURRENT)))?;
    verify_table(&table)?;
    verify_record(&path, &table, file)?;
    if let Some((found, _)) = table.properties().keyspace
        && found != keyspace
    {
        let (what, expected, found) =
            ("keyspace of a table", u64::from(keyspace), u64::from(found));
        return Err(Error::malformed(Malformed::Identity { what, expected, found }, &path, 0));
    }
    Ok(Arc::new(table))
}

/// What the manifest says of a table is what the table says: the bounds, within which all entries and
/// range tombstones lie, and the counts.
fn verify_record(path: &Path, table: &Table, file: &FileRecord) -> Result<()> {
    let found = table.properties();
    let bounds = [
        ("smallest key of the table", &found.smallest, &file.range.smallest),
        ("largest key of the table", &found.largest, &file.range.largest),
    ];
    let expected = "what the manifest says";
    for (what, found, said) in bounds {
        if found != said {
            return Err(Error::malformed(
                Malformed::Field { what, found: found.len() as u64, expected },
                path,
                0,
            ));
        }
    }
    let tombstones = found.tombstones + found.range_tombstone_count;
    for (what, found, said) in [
        ("entries of the table", found.entries, file.entries),
        ("tombstones of the table", tombstones, file.tombstones),
        ("smallest number of the table", found.seq_smallest.0, file.seq_smallest),
        ("largest number of the table", found.seq_largest.0, file.seq_largest),
    ] {
        if found != said {
            return Err(Error::malformed(Malformed::Field { what, found, expected }, path, 0));
        }
    }
    Ok(())
}

/// Checks that the log is sound and holds every commit that the manifest vouches for.
pub(crate) fn verify_log(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: &Path,
) -> Result<RecoveryReport> {
    read_log(vfs, dir, state, manifest, RecoveryMode::Strict)
}

/// Reads the log as an opening in this mode does, and keeps no commit.
pub(crate) fn read_log(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: &Path,
    mode: RecoveryMode,
) -> Result<RecoveryReport> {
    let from = ReplayFrom {
        oldest_segment: state.wal_oldest,
        named: state.wal_named.clone(),
        mark: state.wal_mark,
        named_by: manifest.to_owned(),
    };
    let known = state.keyspace_id_next;
    let mut report = replay(vfs, dir, state.db_uid, &from, mode, &mut |record| {
        check_record(dir, &record, known)
    })?;
    let short = check_reach(vfs, dir, state, &report);
    if mode == RecoveryMode::Strict {
        short.clone()?;
    }
    report.damage = report.damage.or(short.err());
    report.complete_through = state.complete_through(report.last_seq);
    for (id, log) in kept_logs(state) {
        let (home, segments) = ((dir, state.db_uid), log.segments());
        let mut check = |record: ReplayedRecord<'_>| check_record(dir, &record, known);
        let kept = replay_segments(vfs, home, &segments, manifest, mode, &mut check)?;
        report.segments += kept.segments;
        report.records += kept.records;
        report.add_kept_log(state.keyspaces[&id].name.clone(), kept);
    }
    Ok(report)
}

fn orphans(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: u64,
    operand_files: Option<&BTreeSet<FileName>>,
) -> Result<Vec<PathBuf>> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let (named, kept) = (state.file_numbers(), kept_logs(state));
    let ours = |name: &String| {
        FileName::parse(name).filter(|file| !file.is_stray(Some(state.file_number_next)))
    };
    let orphan = |name: &String| match ours(name) {
        Some(FileName::Table(id) | FileName::Blob(id)) => !named.contains(&id),
        Some(FileName::Segment(id)) => {
            id < state.wal_oldest && !kept.values().any(|log| log.holds(id))
        }
        Some(FileName::Manifest(number)) => number != manifest,
        Some(FileName::Temporary(_)) => true,
        Some(name @ (FileName::Operands(_) | FileName::Bucket(_))) => {
            operand_files.is_some_and(|live| !live.contains(&name))
        }
        Some(FileName::Current | FileName::Lock | FileName::Reserve) | None => false,
    };
    Ok(names.into_iter().filter(orphan).map(|name| dir.join(name)).collect())
}

/// Checks the payload of a commit of the log, so that it can be taken without a doubt.
pub(crate) fn check_record(
    dir: &Path,
    record: &ReplayedRecord<'_>,
    keyspace_next: u32,
) -> Result<()> {
    let path = || FileName::Segment(record.segment).in_dir(dir);
    let mut count = 0u32;
    for operation in BatchOperations::new(record.payload) {
        let operation = operation.map_err(|what| Error::malformed(what, &path(), record.offset))?;
        if operation.keyspace >= keyspace_next {
            let what = Malformed::Field {
                what: "keyspace of an operation",
                found: u64::from(operation.keyspace),
                expected: "one that the manifest knows or knew",
            };
            return Err(Error::malformed(what, &path(), record.offset));
        }
        if let BatchAction::Entry { kind: EntryKind::ValuePointer, .. } = operation.action {
            let (what, found) = ("kind of an operation", u64::from(EntryKind::ValuePointer as u8));
            let expected = "no value pointer: values go into the log whole";
            return Err(Error::malformed(
                Malformed::Field { what, found, expected },
                &path(),
                record.offset,
            ));
        }
        count += 1;
    }
    if count != record.count {
        let (found, expected) = (u64::from(count), "as many as the record says");
        let what = Malformed::Field { what: "operations of a commit", found, expected };
        return Err(Error::malformed(what, &path(), record.offset));
    }
    Ok(())
}

/// Checks that the log goes as far as the newest flush: before a flush is in the manifest the log is
/// synced through it, so what is missing up to there was damaged. A keyspace that was flushed later
/// than others would be ahead of them.
pub(crate) fn check_reach(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    report: &RecoveryReport,
) -> Result<()> {
    let flushed = state.keyspaces.values().map(|keyspace| keyspace.flushed_through).max();
    if flushed.is_none_or(|flushed| report.last_seq >= flushed) {
        return Ok(());
    }
    let (path, offset) = match &report.cut_at {
        Some(cut) => cut.clone(),
        None => {
            let newest = state.wal_named.iter().copied().max().unwrap_or(state.wal_oldest);
            let path = FileName::Segment(newest).in_dir(dir);
            let len = vfs.open(&path).and_then(|file| file.len());
            let bytes = len.map_err(|error| Error::io("read the size of", &path, error))?;
            (path, bytes)
        }
    };
    let (found, expected) = (report.last_seq.0, "that of the newest flush or a later one");
    Err(Error::malformed(
        Malformed::Field { what: "last sequence number of the log", found, expected },
        &path,
        offset,
    ))
}
