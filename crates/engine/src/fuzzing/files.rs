//! Targets for whole tables, their footers, `CURRENT` and names.

use std::path::Path;

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::error::Result;
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::manifest_header::CurrentFile;
use crate::fuzzing::logs::{DIR, disk};
use crate::fuzzing::repair;
use crate::table::{ReadPurpose, Table, TableCursor, TableIdentity, verify_table};

/// Keys that every table is asked for, besides its own.
const PROBES: [&[u8]; 3] = [b"", b"key-000123", &[0xff; 9]];

/// More entries than a walk over a small file may show. Damage that repeats a block, and that
/// `verify` would find, is no reason to walk for long.
const ENTRIES_MAX: usize = 4096;

/// Last bytes of a table.
pub fn footer(bytes: &[u8]) {
    if let Ok(footer) = Footer::decode(bytes) {
        assert_eq!(footer.encode(), bytes, "other bytes for the same footer");
    }
}

/// As [`footer`], with the right checksum.
pub fn footer_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::footer(&mut bytes);
    footer(&bytes);
}

/// `CURRENT`, as it is and with the right checksum.
pub fn current(bytes: &[u8]) {
    if let Ok(current) = CurrentFile::decode(bytes) {
        assert_eq!(current.encode().as_bytes(), bytes, "other bytes for the same line");
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let line = text.split(" sum").next().unwrap_or_default();
    let repaired = format!("{line} sum {:016x}\n", xxh3(line.as_bytes()));
    if let Ok(current) = CurrentFile::decode(repaired.as_bytes()) {
        assert_eq!(current.encode(), repaired, "other bytes for the same line");
    }
}

/// The name of a file.
pub fn file_name(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(name) = FileName::parse(text) {
        assert_eq!(name.to_string(), text, "another name for the same file");
    }
}

type Entry = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

/// All entries in the order of the keys; `None` when there are more than [`ENTRIES_MAX`].
fn walk(table: &Arc<Table>, fill: ReadPurpose, forward: bool) -> Result<Option<Vec<Entry>>> {
    let mut cursor: TableCursor = TableCursor::new(table, fill);
    let mut seen = Vec::new();
    if forward {
        cursor.first()?
    } else {
        cursor.last()?
    }
    while cursor.valid() {
        if seen.len() == ENTRIES_MAX {
            return Ok(None);
        }
        let key = cursor.key();
        seen.push((key.user_key.to_vec(), key.seq, key.kind, cursor.value().to_vec()));
        if forward { cursor.next()? } else { cursor.prev()? }
    }
    if !forward {
        seen.reverse();
    }
    Ok(Some(seen))
}

/// A table that the manifest names, whose size, uid and checksum fit.
pub fn table(bytes: &[u8]) {
    static CACHE: std::sync::OnceLock<Arc<BlockCache>> = std::sync::OnceLock::new();
    let cache = CACHE.get_or_init(|| BlockCache::new(1 << 20));
    let footer = bytes.len().checked_sub(FOOTER_BYTES).map(|at| Footer::decode(&bytes[at..]));
    let identity = TableIdentity {
        id: FileId(7),
        bytes: len_u64(bytes.len()),
        uid: footer.and_then(|footer| footer.ok()).map_or(0, |footer| footer.uid),
        checksum: xxh3(bytes),
    };
    let vfs = disk(FileName::Table(7), bytes);
    let path = FileName::Table(7).in_dir(Path::new(DIR));
    let Ok(table) = Table::open(&vfs, &path, &identity, cache) else { return };
    let table = Arc::new(table);
    let verified = verify_table(&table);
    let forward = walk(&table, ReadPurpose::Job, true);
    let backward = walk(&table, ReadPurpose::Lookup, false);
    for key in PROBES {
        let _ = table.get(key, SeqNo::MAX, true);
        let _ = table.covering_tombstone(key, SeqNo(40));
        let mut cursor = TableCursor::new(&table, ReadPurpose::Scan);
        let _ = cursor.seek(key, SeqNo(9));
        let _ = cursor.seek_before(key, SeqNo::MAX);
    }
    if verified.is_err() {
        return;
    }
    // What `verify` has nothing against must answer right, whichever way it is asked.
    let Some(entries) = forward.expect("verified") else { return };
    assert_eq!(len_u64(entries.len()), table.properties().entries);
    assert_eq!(backward.expect("verified").as_ref(), Some(&entries));
    for (user_key, seq, kind, value) in &entries {
        let found = table.get(user_key, *seq, true).expect("verified").expect("it is there");
        assert_eq!(found.seq, *seq);
        assert!(found.kind > *kind || (found.kind == *kind && *found.value == **value));
    }
    let spans = table.range_tombstones(ReadPurpose::Scan).expect("verified");
    assert_eq!(len_u64(spans.as_slice().len()), table.properties().range_tombstone_count);
}

/// As [`table`], with the right checksums.
pub fn table_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::table(&mut bytes);
    table(&bytes);
}
