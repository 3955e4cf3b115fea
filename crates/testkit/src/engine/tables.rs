//! Fuzz targets for tables and table footers.

use std::path::Path;

use lsmx::SeqNo;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::format::footer::{FOOTER_BYTES, Footer};
use lsmx::internals::table::{ReadPurpose, Table, TableCursor, TableIdentity, verify_table};
use lsmx::operand_store::Cursor as _;
use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use super::logs::{DIR, vfs_with_file};
use crate::fuzzing::{PROBE_KEYS, read_entries};

/// Maximum number of entries that a scan reads. A damaged index can refer to the same block many times.
const ENTRIES_MAX: usize = 4096;

pub(super) fn check_footer(input: &[u8]) {
    if let Ok(footer) = Footer::decode(input) {
        assert_eq!(footer.encode(), input, "footer is not canonical");
    }
}

/// Checks a table. The manifest entry is computed from the input, so its size, uid and checksum match the file.
pub(super) fn check_table(input: &[u8]) {
    static CACHE: std::sync::OnceLock<Arc<BlockCache>> = std::sync::OnceLock::new();
    let cache = CACHE.get_or_init(|| BlockCache::new(1 << 20));
    let footer = input.len().checked_sub(FOOTER_BYTES).map(|start| Footer::decode(&input[start..]));
    let identity = TableIdentity {
        id: FileId(7),
        bytes: len_u64(input.len()),
        uid: footer.and_then(|footer| footer.ok()).map_or(0, |footer| footer.uid),
        checksum: xxh3(input),
        seq_largest: SeqNo(1 << 40),
    };
    let name = FileName::Table(7);
    let (vfs, path) = (vfs_with_file(name, input), name.in_dir(Path::new(DIR)));
    let Ok(table) = Table::open(&vfs, &path, &identity, cache) else { return };
    let table = Arc::new(table);
    let is_verified = verify_table(&table).is_ok();
    let cursor = |purpose| TableCursor::new(&table, purpose);
    let forward = read_entries(&mut cursor(ReadPurpose::Job), true, ENTRIES_MAX);
    let backward = read_entries(&mut cursor(ReadPurpose::Lookup), false, ENTRIES_MAX);
    for key in PROBE_KEYS {
        let _ = table.get(key, SeqNo::MAX, true);
        let _ = table.covering_tombstone(key, SeqNo(40));
        let mut cursor = cursor(ReadPurpose::Scan);
        let _ = cursor.seek(key, SeqNo(9));
        let _ = cursor.seek_before(key, SeqNo::MAX);
    }
    if !is_verified {
        return;
    }
    // In a verified table, lookups and scans must return the same entries.
    let Some(entries) = forward.expect("the file was verified") else { return };
    assert_eq!(len_u64(entries.len()), table.properties().entries);
    assert_eq!(backward.expect("the file was verified").as_ref(), Some(&entries));
    for (user_key, seq, kind, value) in &entries {
        let found = table
            .get(user_key, *seq, true)
            .expect("the file was verified")
            .expect("the table has the entry");
        assert_eq!(found.seq, *seq);
        assert!(found.kind > *kind || (found.kind == *kind && *found.value == **value));
    }
    let tombstones = table.range_tombstones(ReadPurpose::Scan).expect("the file was verified");
    assert_eq!(len_u64(tombstones.as_slice().len()), table.properties().range_tombstone_count);
}
