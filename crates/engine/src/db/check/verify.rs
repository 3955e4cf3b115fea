//! Verification of a closed database: checksums, order, file names and value pointers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::{ExpirySummary, FileId, TableMeta};
use serde::Serialize;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::open::lock::lock_shared;
use crate::db::open::log_source::LogSource;
use crate::db::operand_store::{self, StoreCheck};
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::expiry::without_expiry;
use crate::format::version_edit::{BlobFileRecord, BlobReference};
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::Options;
use crate::options::stored::kept_logs;
use crate::state::table_factory::table_identity;
use crate::table::{FdCache, ReadContext, ReadPurpose, Table, TableCursor, verify_table};
use crate::value_log::BlobReader;
use crate::vfs::Vfs;
use crate::wal::RecoveryMode;

/// Maximum number of tables and blob files that a check has open at the same time.
const OPEN_FILES_MAX: usize = 16;

/// Result of [`verify`]: the number and size of the checked files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Number of tables. Each was read completely.
    pub tables: u64,
    /// Size of the tables, in bytes.
    pub table_bytes: u64,
    /// Number of entries in the tables.
    pub entries: u64,
    /// Number of blob files. Each was read completely.
    pub blob_files: u64,
    /// Size of the blob files, in bytes.
    pub blob_bytes: u64,
    /// Number of values in blob files that tables point to.
    pub blob_values: u64,
    /// Number of log segments.
    pub wal_segments: u64,
    /// Number of commits in the log.
    pub wal_records: u64,
    /// Size of the torn tail of the log, in bytes. The next open cuts it.
    pub wal_tail_bytes: u64,
    /// Number of operand stores. Each was checked completely.
    pub operand_stores: u64,
    /// Names of the keyspaces whose operands were not checked, because the options have no factory for their store.
    pub operands_unchecked: Vec<String>,
    /// Files that the manifest does not list. The next open removes them.
    pub orphans: Vec<PathBuf>,
}

/// Checks every file of a database that is not open for writing. Changes nothing.
///
/// Checks the manifest, the shape of every tree, all tables (checksums, order, index, filter, properties), all blob
/// files and pointers to them, the operand stores and the log. Uses only the file system
/// ([`Options::vfs`]) and the operand stores ([`Options::operand_store`]) of the options. Operand stores without a
/// factory are not checked; see [`VerifyReport::operands_unchecked`].
///
/// # Errors
/// The first fault, with file and offset; [`Error::Locked`] if the database is open for writing.
pub fn verify(path: impl AsRef<Path>, options: &Options) -> Result<VerifyReport> {
    let (dir, vfs, stores) = (path.as_ref(), options.file_system(), &options.operand_stores);
    let _lock = lock_shared(&*vfs, dir)?;
    let loaded = Manifest::load(&*vfs, dir)?;
    let state = &loaded.state;
    let mut report =
        VerifyReport { keyspaces: state.keyspaces.len() as u64, ..VerifyReport::default() };
    let mut operand_files = Some(BTreeSet::new());
    for (&id, keyspace) in &state.keyspaces {
        verify_keyspace(&vfs, dir, (id, keyspace), &mut report)?;
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
    let (mode, manifest) = (RecoveryMode::Strict, &*loaded.path);
    let log = LogSource { vfs: &*vfs, dir, state, manifest, mode }.check()?;
    report.wal_segments = log.segments;
    report.wal_records = log.records;
    report.wal_tail_bytes = log.bytes_cut;
    report.orphans = find_orphans(&*vfs, dir, state, loaded.number, operand_files.as_ref())?;
    Ok(report)
}

fn verify_keyspace(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    (id, keyspace): (u32, &KeyspaceState),
    report: &mut VerifyReport,
) -> Result<()> {
    let cache = BlockCache::new(0);
    keyspace.tree.check_invariants()?;
    let blobs = VerifiedBlobs::open(vfs, dir, (id, keyspace), &cache)?;
    for blob in keyspace.value_log.blob_files() {
        report.blob_files += 1;
        report.blob_bytes += blob.bytes;
    }
    for file in keyspace.tree.files() {
        let table = open_verified_table(&**vfs, dir, (id, file), &cache)?;
        report.blob_values +=
            blobs.verify_pointers(&table, keyspace.value_log.references_of_table(file.id))?;
        report.tables += 1;
        report.table_bytes += file.bytes;
        report.entries += file.entries;
    }
    Ok(())
}

/// Opens a table, and checks that its content is consistent and matches its record in the manifest.
pub(crate) fn open_verified_table(
    vfs: &dyn Vfs,
    dir: &Path,
    (keyspace, file): (u32, &TableMeta),
    cache: &Arc<BlockCache>,
) -> Result<Arc<Table>> {
    let path = FileName::Table(file.id.0).in_dir(dir);
    let table = Table::open(vfs, &path, &table_identity(file), cache);
    let table = table.map_err(|error| error.or_missing(&dir.join(CURRENT)))?;
    verify_table(&table)?;
    verify_record(&path, &table, file)?;
    if let Some((found, _)) = table.properties().keyspace
        && found != keyspace
    {
        let (expected, found) = (u64::from(keyspace), u64::from(found));
        let what = Malformed::Identity { what: "keyspace of a table", expected, found };
        return Err(Error::malformed(what, &path, 0));
    }
    Ok(Arc::new(table))
}

/// Checks the properties of a verified table against its record in the manifest. `verify_table` has checked that the
/// properties match the contents.
fn verify_record(path: &Path, table: &Table, file: &TableMeta) -> Result<()> {
    let found = table.properties();
    let differs = |what, found| {
        Err(Error::malformed(
            Malformed::invalid_field(what, found, "the value in the manifest"),
            path,
            0,
        ))
    };
    for (what, found, expected) in [
        ("smallest key of the table", &found.smallest, &file.range.smallest),
        ("largest key of the table", &found.largest, &file.range.largest),
    ] {
        if found != expected {
            return differs(what, found.len() as u64);
        }
    }
    let tombstones = found.tombstones + found.range_tombstone_count;
    let expiring = |expiry: Option<ExpirySummary>| expiry.map_or(0, |expiry| expiry.entries);
    if found.is_external && file.seq_smallest != file.seq_largest {
        return differs("smallest number of an ingested table", file.seq_smallest);
    }
    // Only the manifest contains the sequence number of an ingested table.
    let (seq_smallest, seq_largest) = match found.is_external {
        true => (file.seq_smallest, file.seq_largest),
        false => (found.seq_smallest.0, found.seq_largest.0),
    };
    // The manifest of an earlier build has no bytes of expiring entries.
    let knows_bytes = file.expiry.is_some_and(|expiry| expiry.bytes.is_some());
    let found_expiry = found
        .expiry
        .map(|expiry| ExpirySummary { bytes: expiry.bytes.filter(|_| knows_bytes), ..expiry });
    if found_expiry != file.expiry && expiring(found.expiry) == expiring(file.expiry) {
        return differs("expiry times of the table", expiring(found.expiry));
    }
    for (what, found, expected) in [
        ("entries of the table", found.entries, file.entries),
        ("expiring entries of the table", expiring(found.expiry), expiring(file.expiry)),
        ("tombstones of the table", tombstones, file.tombstones),
        ("smallest number of the table", seq_smallest, file.seq_smallest),
        ("largest number of the table", seq_largest, file.seq_largest),
    ] {
        if found != expected {
            return differs(what, found);
        }
    }
    Ok(())
}

/// Returns the files in the directory that the database does not use. Files of operand stores are checked only if
/// `operand_files` lists those in use.
pub(crate) fn find_orphans(
    vfs: &dyn Vfs,
    dir: &Path,
    state: &ManifestState,
    manifest: u64,
    operand_files: Option<&BTreeSet<FileName>>,
) -> Result<Vec<PathBuf>> {
    let names = vfs.list(dir).map_err(|error| Error::io("list", dir, error))?;
    let (listed, kept) = (state.file_numbers(), kept_logs(state));
    let parse = |name: &String| {
        FileName::parse(name)
            .filter(|file| !file.has_unallocated_number(Some(state.file_number_next)))
    };
    let is_orphan = |name: &String| match parse(name) {
        Some(FileName::Table(id) | FileName::Blob(id)) => !listed.contains(&id),
        Some(FileName::Segment(id)) => {
            id < state.wal_oldest && !kept.values().any(|log| log.contains(id))
        }
        Some(FileName::Manifest(number)) => number != manifest,
        Some(FileName::Temporary(_)) => true,
        Some(name @ (FileName::Operands(_) | FileName::Bucket(_))) => {
            operand_files.is_some_and(|live| !live.contains(&name))
        }
        Some(
            FileName::Current
            | FileName::Lock
            | FileName::Reserve
            | FileName::Metrics
            | FileName::MetricsTemporary,
        )
        | None => false,
    };
    Ok(names.into_iter().filter(is_orphan).map(|name| dir.join(name)).collect())
}

/// Undamaged blob files of one keyspace.
pub(crate) struct VerifiedBlobs {
    dir: PathBuf,
    blobs: BTreeMap<FileId, BlobReader>,
}

impl VerifiedBlobs {
    pub(crate) fn new(dir: &Path, blobs: BTreeMap<FileId, BlobReader>) -> VerifiedBlobs {
        VerifiedBlobs { dir: dir.to_owned(), blobs }
    }

    /// Opens and checks all blob files of a keyspace.
    pub(crate) fn open(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        (id, keyspace): (u32, &KeyspaceState),
        cache: &Arc<BlockCache>,
    ) -> Result<VerifiedBlobs> {
        let fd_cache = check_descriptors(vfs);
        let blobs = keyspace.value_log.blob_files().map(|blob| {
            verify_blob(&fd_cache, dir, id, blob, cache).map(|reader| (blob.id, reader))
        });
        Ok(VerifiedBlobs::new(dir, blobs.collect::<Result<_>>()?))
    }

    /// Returns the numbers of the files.
    pub(crate) fn numbers(&self) -> BTreeSet<u64> {
        self.blobs.keys().map(|id| id.0).collect()
    }

    /// Checks that every pointer of a table leads to the value of its entry, and that the references in the manifest
    /// are correct. Returns the number of pointers.
    pub(crate) fn verify_pointers(
        &self,
        table: &Arc<Table>,
        references: &[BlobReference],
    ) -> Result<u64> {
        let mut found = BTreeMap::<FileId, (u64, u64)>::new();
        let mut cursor = TableCursor::new(table, ReadPurpose::Job);
        let mut context = ReadContext::new(ReadPurpose::Job);
        cursor.first()?;
        while cursor.valid() {
            let key = cursor.key();
            if key.kind.without_expiry() == EntryKind::ValuePointer {
                let corrupt = |what| Error::malformed(what, table.path(), 0);
                let stored = without_expiry(key.kind, cursor.value());
                let pointer = ValuePointer::decode(stored).map_err(corrupt)?;
                let id = FileId(pointer.file);
                let Some(blob) = self.blobs.get(&id) else {
                    let expected = "a blob file of the keyspace in the manifest";
                    let what = "blob file of a value pointer";
                    let what = Malformed::invalid_field(what, pointer.file, expected);
                    return Err(Error::malformed(what, &FileName::Blob(id.0).in_dir(&self.dir), 0));
                };
                blob.read_value((key.user_key, key.seq), &pointer, &mut context)?;
                let (bytes, records) = found.entry(id).or_default();
                *bytes += pointer.bytes;
                *records += 1;
            }
            cursor.next()?;
        }
        let expected: BTreeMap<FileId, (u64, u64)> =
            references.iter().map(|at| (at.blob, (at.bytes, at.records))).collect();
        if found != expected {
            let sum = |references: &BTreeMap<FileId, (u64, u64)>| {
                references.values().map(|(bytes, _)| bytes).sum()
            };
            let (what, expected, found) =
                ("bytes that a table references", sum(&expected), sum(&found));
            let what = Malformed::Identity { what, expected, found };
            return Err(Error::malformed(what, table.path(), 0));
        }
        Ok(found.values().map(|(_, records)| records).sum())
    }
}

/// Returns the descriptors for the tables and blob files of a check. A check may need more files than the process may
/// have open.
pub(crate) fn check_descriptors(vfs: &Arc<dyn Vfs>) -> Arc<FdCache> {
    FdCache::new(Arc::clone(vfs), OPEN_FILES_MAX, false, None)
}

/// Opens a blob file, and checks that its content is consistent and matches its record in the manifest.
pub(crate) fn verify_blob(
    fd_cache: &Arc<FdCache>,
    dir: &Path,
    keyspace: u32,
    record: &BlobFileRecord,
    cache: &Arc<BlockCache>,
) -> Result<BlobReader> {
    let path = FileName::Blob(record.id.0).in_dir(dir);
    let blob = BlobReader::open_cached(fd_cache, &path, keyspace, record, cache);
    let blob = blob.map_err(|error| error.or_missing(&dir.join(CURRENT)))?;
    blob.verify()?;
    Ok(blob)
}
