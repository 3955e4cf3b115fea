//! Search of all files of a closed database for the entries of one key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::sync::Arc;
use serde::Serialize;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::db::check::verify::find_orphans;
use crate::db::open::lock::lock_shared;
use crate::db::operand_store::{self, StoreSearch};
use crate::error::{Error, Result};
use crate::format::batch::{BatchOperationIter, OperationEffect};
use crate::format::expiry::expiry_of;
use crate::format::log_record::LogChecksumSeed;
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::log_reader::{LogRead, LogReader};
use crate::manifest::{KeyspaceState, Manifest};
use crate::operand_store::{StoredRecord, StoredRecordKind};
use crate::options::db::Options;
use crate::state::table_factory::table_identity;
use crate::table::{ReadPurpose, Table, TableCursor};
use crate::value_log::BlobReader;
use crate::vfs::Vfs;

/// Result of [`search_key`]: the entries of one key in the files of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeySearchReport {
    /// Number of tables. Each was searched completely.
    pub tables: u64,
    /// Number of blob files. Each was searched completely.
    pub blob_files: u64,
    /// Number of log segments, including those that the next open deletes.
    pub wal_segments: u64,
    /// Number of operand stores. Each was searched completely.
    pub operand_stores: u64,
    /// Entries of the key, in the order in which the files were searched.
    pub entries: Vec<RemainingEntry>,
    /// Range deletes that cover the key. They contain the bounds of a range, and no value.
    pub range_tombstones: Vec<CoveringTombstone>,
    /// Files that the database does not use and that were not searched. The next open removes them.
    pub unsearched: Vec<PathBuf>,
    /// Log segments with bytes that belong to no valid commit, such as a commit that was cut by a crash, or is damaged.
    /// These bytes were not searched and may contain the key.
    pub wal_unreadable: Vec<PathBuf>,
    /// Names of the keyspaces whose operands were not searched, because the options have no factory for their store, or
    /// the store has no search.
    pub operands_unsearched: Vec<String>,
}

impl KeySearchReport {
    /// Returns true if all files were searched completely and none contains an entry of the key. Range deletes are ignored.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.entries.is_empty()
            && self.unsearched.is_empty()
            && self.wal_unreadable.is_empty()
            && self.operands_unsearched.is_empty()
    }
}

/// Content of an entry that [`search_key`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RemainingKind {
    /// A value.
    Value,
    /// A pointer to a value in a blob file.
    ValuePointer,
    /// A merge operand.
    Operand,
    /// A delete of the key. It contains the key but no value.
    Tombstone,
    /// A value in a blob file, with or without a pointer to it.
    BlobValue,
}

/// An entry that [`search_key`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemainingEntry {
    /// Name of the keyspace. `None` for an entry of a dropped keyspace.
    pub keyspace: Option<String>,
    /// The file.
    pub path: PathBuf,
    /// Offset of the data block, record or page with the entry, in bytes.
    pub offset: u64,
    /// Content of the entry.
    pub kind: RemainingKind,
    /// Sequence number of the entry.
    pub seq: u64,
    /// Expiry time in microseconds of the database clock, if the entry states one.
    pub expiry_us: Option<u64>,
}

/// A range delete that covers the searched key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CoveringTombstone {
    /// Name of the keyspace. `None` for a dropped keyspace.
    pub keyspace: Option<String>,
    /// The file.
    pub path: PathBuf,
    /// Sequence number of the newest range delete.
    pub seq: u64,
}

/// Searches every file of a database for the entries of a key. Changes nothing. The database must not be open for
/// writing.
///
/// Reads all tables, blob files, log segments and operand stores. Finds all versions of the key. They include versions
/// that newer ones hide, blob records without a pointer, and commits that are already in tables. `keyspace` restricts
/// the search to one keyspace.
///
/// The manifest and the indexes of tables may contain keys as bounds. They contain no values and are not searched.
/// Uses only the file system ([`Options::vfs`]) and the operand stores ([`Options::operand_store`]) of the options.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// use lsmx::{Db, Options, search_key};
///
/// let db = Db::open(&path, Options::default())?;
/// db.put("ada", "a secret")?;
/// db.flush()?;
/// db.delete("ada")?; // the table still contains the value
/// db.close(None)?;
/// let report = search_key(&path, &Options::default(), None, b"ada")?;
/// for entry in &report.entries {
///     println!("{:?} in {}", entry.kind, entry.path.display());
/// }
/// assert!(!report.is_clear());
/// assert!(search_key(&path, &Options::default(), None, b"alan")?.is_clear());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::UnknownKeyspace`]; the first damage that prevents a complete search, with file and offset;
/// [`Error::Locked`] if the database is open for writing.
pub fn search_key(
    path: impl AsRef<Path>,
    options: &Options,
    keyspace: Option<&str>,
    key: &[u8],
) -> Result<KeySearchReport> {
    let (dir, vfs, stores) = (path.as_ref(), options.file_system(), &options.operand_stores);
    let _lock = lock_shared(&*vfs, dir)?;
    let loaded = Manifest::load(&*vfs, dir)?;
    let keyspaces = &loaded.state.keyspaces;
    let names: BTreeMap<u32, String> =
        keyspaces.iter().map(|(&id, keyspace)| (id, keyspace.name.clone())).collect();
    let wanted = match keyspace {
        None => None,
        Some(name) => {
            let id = names.iter().find(|(_, known)| *known == name).map(|(&id, _)| id);
            Some(id.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })?)
        }
    };
    let report = KeySearchReport::default();
    let cache = BlockCache::new(0);
    let mut search = KeySearch { vfs: &*vfs, dir, key, wanted, names, cache, report };
    let mut operand_files = Some(BTreeSet::new());
    for (&id, keyspace) in keyspaces {
        // Stores of other keyspaces are searched too, because `find_orphans` needs the names of all files in use.
        match operand_store::search_store(&vfs, dir, keyspace, stores, key)? {
            StoreSearch::NoStore => {}
            StoreSearch::Searched { files, records } => {
                operand_files.iter_mut().for_each(|all| all.extend(&files));
                if search.includes(id) {
                    search.report.operand_stores += 1;
                    records.into_iter().for_each(|record| search.add_stored_record(id, &record));
                }
            }
            StoreSearch::Unsearched => {
                operand_files = None;
                if search.includes(id) {
                    search.report.operands_unsearched.push(keyspace.name.clone());
                }
            }
        }
        if search.includes(id) {
            search.search_tables(id, keyspace)?;
            search.search_blob_files(id, keyspace)?;
        }
    }
    search.search_segments(loaded.state.db_uid)?;
    let orphans = find_orphans(&*vfs, dir, &loaded.state, loaded.number, operand_files.as_ref())?;
    let has_values = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(FileName::parse);
        // Segments were searched, and manifests contain no values.
        !matches!(name, Some(FileName::Segment(_) | FileName::Manifest(_)))
    };
    search.report.unsearched = orphans.into_iter().filter(has_values).collect();
    Ok(search.report)
}

/// State of one search.
struct KeySearch<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    key: &'a [u8],
    /// Id of the only keyspace that is searched.
    wanted: Option<u32>,
    /// Names of the keyspaces, by id.
    names: BTreeMap<u32, String>,
    cache: Arc<BlockCache>,
    report: KeySearchReport,
}

impl KeySearch<'_> {
    fn includes(&self, keyspace: u32) -> bool {
        self.wanted.is_none_or(|wanted| wanted == keyspace)
    }

    fn add_entry(
        &mut self,
        keyspace: u32,
        (path, offset): (&Path, u64),
        (kind, seq): (RemainingKind, SeqNo),
        expiry_us: Option<u64>,
    ) {
        let (keyspace, path) = (self.names.get(&keyspace).cloned(), path.to_owned());
        let seq = seq.0;
        self.report.entries.push(RemainingEntry { keyspace, path, offset, kind, seq, expiry_us });
    }

    fn add_range_tombstone(&mut self, keyspace: u32, path: &Path, seq: SeqNo) {
        let (keyspace, path) = (self.names.get(&keyspace).cloned(), path.to_owned());
        self.report.range_tombstones.push(CoveringTombstone { keyspace, path, seq: seq.0 });
    }

    fn add_stored_record(&mut self, keyspace: u32, record: &StoredRecord) {
        let kind = match record.kind {
            StoredRecordKind::Operand => RemainingKind::Operand,
            StoredRecordKind::DeleteMarker => RemainingKind::Tombstone,
            StoredRecordKind::RangeDeleteMarker => {
                return self.add_range_tombstone(keyspace, &record.path, record.seq);
            }
        };
        self.add_entry(keyspace, (&record.path, record.offset), (kind, record.seq), None);
    }

    fn search_tables(&mut self, id: u32, keyspace: &KeyspaceState) -> Result<()> {
        for file in keyspace.tree.files() {
            let path = FileName::Table(file.id.0).in_dir(self.dir);
            let table = Table::open(self.vfs, &path, &table_identity(file), &self.cache);
            let table = Arc::new(table.map_err(|error| self.or_missing(error))?);
            self.report.tables += 1;
            for tombstone in table.range_tombstones(ReadPurpose::Job)?.as_slice() {
                if let (true, Some(&seq)) = (tombstone.covers(self.key), tombstone.seqs.first()) {
                    self.add_range_tombstone(id, &path, seq);
                }
            }
            // The scan does not depend on the index and the filter.
            let mut cursor = TableCursor::new(&table, ReadPurpose::Job);
            cursor.first()?;
            while cursor.valid() {
                let key = cursor.key();
                if key.user_key == self.key {
                    let expiry_us = expiry_of(key.kind, cursor.value());
                    let found = (remaining_kind(key.kind), key.seq);
                    let offset = cursor.block_offset().unwrap_or(0);
                    self.add_entry(id, (&path, offset), found, expiry_us);
                }
                cursor.next()?;
            }
        }
        Ok(())
    }

    fn search_blob_files(&mut self, id: u32, keyspace: &KeyspaceState) -> Result<()> {
        for record in keyspace.value_log.blob_files() {
            let path = FileName::Blob(record.id.0).in_dir(self.dir);
            let blob = BlobReader::open(self.vfs, &path, id, record, &self.cache);
            let blob = blob.map_err(|error| self.or_missing(error))?;
            self.report.blob_files += 1;
            blob.for_each_record(&mut |offset, record| {
                if record.key == self.key {
                    let found = (RemainingKind::BlobValue, record.seq);
                    self.add_entry(id, (&path, offset), found, None);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Searches all log segments in the directory. They include segments that the manifest no longer lists and that the
    /// next open deletes.
    fn search_segments(&mut self, db_uid: u64) -> Result<()> {
        let names = self.vfs.list(self.dir).map_err(|error| Error::io("list", self.dir, error))?;
        let mut ids: Vec<u64> = names
            .iter()
            .filter_map(|name| match FileName::parse(name) {
                Some(FileName::Segment(id)) => Some(id),
                _ => None,
            })
            .collect();
        ids.sort_unstable();
        for id in ids {
            self.report.wal_segments += 1;
            self.search_segment(db_uid, id)?;
        }
        Ok(())
    }

    /// Searches all valid records of a segment, including records after an invalid one. Reports the segment if an
    /// invalid record contains bytes other than zero.
    fn search_segment(&mut self, db_uid: u64, id: u64) -> Result<()> {
        let path = FileName::Segment(id).in_dir(self.dir);
        let file = self.vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
        let end = file.len().map_err(|error| Error::io("read the size of", &path, error))?;
        let mut reader = LogReader::new(&*file, &path, LogChecksumSeed::new(db_uid, id), end);
        let mut offset = len_u64(SEGMENT_HEADER_BYTES);
        loop {
            match reader.read_record(offset)? {
                LogRead::End => return Ok(()),
                LogRead::Record(header, payload) => {
                    self.search_commit((&path, offset), SeqNo(header.first_seq), payload)?;
                    offset += header.record_bytes();
                }
                LogRead::Malformed(_) => {
                    // Zeros at the end of a file are preallocated space.
                    if reader.written_bytes_after(offset)? == 0 {
                        return Ok(());
                    }
                    let next = reader.find_next_record(offset + 1)?;
                    let is_written = reader.written_bytes_between(offset, next.unwrap_or(end))? > 0;
                    if is_written && self.report.wal_unreadable.last() != Some(&path) {
                        self.report.wal_unreadable.push(path.clone());
                    }
                    match next {
                        Some(next) => offset = next,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    fn search_commit(
        &mut self,
        (path, offset): (&Path, u64),
        first_seq: SeqNo,
        payload: &[u8],
    ) -> Result<()> {
        for (index, operation) in (0u64..).zip(BatchOperationIter::new(payload)) {
            let operation = operation.map_err(|what| Error::malformed(what, path, offset))?;
            let (keyspace, key) = (operation.keyspace, &payload[operation.key]);
            let seq = SeqNo(first_seq.0.saturating_add(index));
            if !self.includes(keyspace) {
                continue;
            }
            match operation.action {
                OperationEffect::Entry { kind, value } if key == self.key => {
                    let expiry_us = expiry_of(kind, &payload[value]);
                    let found = (remaining_kind(kind), seq);
                    self.add_entry(keyspace, (path, offset), found, expiry_us);
                }
                OperationEffect::Entry { .. } => {}
                OperationEffect::DeleteRange { end } => {
                    let is_before_end = end.is_none_or(|end| self.key < &payload[end]);
                    if key <= self.key && is_before_end {
                        self.add_range_tombstone(keyspace, path, seq);
                    }
                }
            }
        }
        Ok(())
    }

    fn or_missing(&self, error: Error) -> Error {
        error.or_missing(&self.dir.join(CURRENT))
    }
}

fn remaining_kind(kind: EntryKind) -> RemainingKind {
    match kind.without_expiry() {
        EntryKind::Delete => RemainingKind::Tombstone,
        EntryKind::Merge => RemainingKind::Operand,
        EntryKind::ValuePointer => RemainingKind::ValuePointer,
        _ => RemainingKind::Value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::options::value_separation::ValueSeparation;
    use crate::vfs::MemVfs;
    use crate::vfs::mem::CrashImage;

    fn options(disk: &MemVfs) -> Options {
        Options::default().background(Background::Inline).seed(7).vfs(Arc::new(disk.clone()))
    }

    /// Searches an image of the disk as it is after a crash of the process.
    fn search(disk: &MemVfs, keyspace: Option<&str>, key: &str) -> KeySearchReport {
        let image = disk.crash(CrashImage::Keep, 0);
        search_key("db", &options(&image), keyspace, key.as_bytes()).unwrap()
    }

    fn kinds(report: &KeySearchReport) -> Vec<RemainingKind> {
        report.entries.iter().map(|entry| entry.kind).collect()
    }

    #[test]
    fn search_of_key_finds_versions_in_log_table_and_blob_file() {
        let disk = MemVfs::new();
        let db = Db::open("db", options(&disk)).unwrap();
        let separation = ValueSeparation { threshold_bytes: 20, ..ValueSeparation::default() };
        let separated = KeyspaceOptions::default().value_separation(separation);
        let separated = db.keyspace("separated", separated).unwrap();
        db.put("apple", "red").unwrap();
        db.delete("apple").unwrap();
        separated.put("apple", [7; 30]).unwrap();
        db.sync().unwrap();
        let report = search(&disk, None, "apple");
        assert_eq!(
            kinds(&report),
            [RemainingKind::Value, RemainingKind::Tombstone, RemainingKind::Value]
        );
        assert_eq!(report.entries[2].keyspace.as_deref(), Some("separated"));
        assert!(!report.is_clear());
        let report = search(&disk, Some("separated"), "apple");
        assert_eq!(kinds(&report), [RemainingKind::Value]);
        db.flush().unwrap();
        let report = search(&disk, Some("separated"), "apple");
        let found = kinds(&report);
        assert!(found.starts_with(&[RemainingKind::ValuePointer, RemainingKind::BlobValue]));
        assert_eq!((report.tables, report.blob_files), (1, 1));
        assert!(search(&disk, None, "appl").is_clear());
        assert!(search(&disk, None, "apple2").is_clear());
    }

    #[test]
    fn search_of_key_lists_covering_range_deletes_separately() {
        let disk = MemVfs::new();
        let db = Db::open("db", options(&disk)).unwrap();
        db.put("a", "1").unwrap();
        db.put("z", "1").unwrap();
        db.flush().unwrap();
        db.default_keyspace().delete_range("a".."c").unwrap();
        db.sync().unwrap();
        let report = search(&disk, None, "b");
        assert!(report.is_clear());
        assert_eq!(report.range_tombstones.len(), 1);
        assert!(search(&disk, None, "c").range_tombstones.is_empty());
    }

    #[test]
    fn search_of_key_reports_unused_files_and_unknown_keyspaces() {
        let disk = MemVfs::new();
        let db = Db::open("db", options(&disk)).unwrap();
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        let image = disk.crash(CrashImage::Keep, 0);
        image.write_all(Path::new("db/000777.sst"), b"table of a job that did not end").unwrap();
        let report = search_key("db", &options(&image), None, b"b").unwrap();
        assert_eq!(report.unsearched, [Path::new("db/000777.sst")]);
        assert!(!report.is_clear());
        let unknown = search_key("db", &options(&image), Some("x"), b"b");
        assert!(matches!(unknown, Err(Error::UnknownKeyspace { .. })), "{unknown:?}");
    }

    /// Bug: the report was clear, although the last commit was cut and contains the key.
    #[test]
    fn search_of_key_reports_segment_with_torn_end() {
        let disk = MemVfs::new();
        let db = Db::open("db", options(&disk)).unwrap();
        db.put("key", "first").unwrap();
        db.put("other", vec![7; 100]).unwrap();
        db.sync().unwrap();
        let image = disk.crash(CrashImage::Keep, 0);
        assert!(search_key("db", &options(&image), None, b"absent").unwrap().is_clear());
        let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "wal");
        let mut segments = image.paths().into_iter().filter(is_segment);
        let (path, at) = segments
            .find_map(|path| {
                let bytes = image.read_all(&path).unwrap();
                let at = bytes.windows(5).position(|window| window == b"other")?;
                Some((path, at))
            })
            .unwrap();
        image.truncate(&path, at as u64 + 20).unwrap();
        let report = search_key("db", &options(&image), None, b"other").unwrap();
        assert_eq!((kinds(&report).len(), report.is_clear()), (0, false));
        assert_eq!(report.wal_unreadable, [path]);
    }

    #[test]
    fn search_of_key_reads_valid_commits_after_a_damaged_one() {
        let disk = MemVfs::new();
        let db = Db::open("db", options(&disk)).unwrap();
        db.put("first", "1").unwrap();
        db.put("second", "2").unwrap();
        db.sync().unwrap();
        let image = disk.crash(CrashImage::Keep, 0);
        let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "wal");
        for path in image.paths().into_iter().filter(is_segment) {
            let mut bytes = image.read_all(&path).unwrap();
            if let Some(at) = bytes.windows(5).position(|window| window == b"first") {
                bytes[at] ^= 1;
                image.write_all(&path, &bytes).unwrap();
            }
        }
        let report = search_key("db", &options(&image), None, b"second").unwrap();
        assert_eq!(kinds(&report), [RemainingKind::Value]);
        // Bug: the report was clear, although the damaged commit may contain the key.
        let report = search_key("db", &options(&image), None, b"first").unwrap();
        assert_eq!((kinds(&report).len(), report.wal_unreadable.len()), (0, 1));
        assert!(!report.is_clear());
    }
}
