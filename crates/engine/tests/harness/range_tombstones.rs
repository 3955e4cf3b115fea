//! Checks of range tombstones.

use std::ops::Bound;
use std::path::PathBuf;

use lsmx::env::Background;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::table::{Table, TableIdentity};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, SeqNo, WriteBatch};
use lsmx_base::file_name::FileName;
use lsmx_base::work_counter::{WorkKind, total};

use super::small_database::{open_with, policy};
use super::{Outcome, oracle};

fn open(disk: &MemVfs) -> Db {
    let keyspace = KeyspaceOptions::default().policy(policy("tiering(size_ratio=100)"));
    let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
    open_with(disk, options).unwrap()
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn put(db: &Db, numbers: std::ops::Range<u64>) {
    let (mut batch, keyspace) = (WriteBatch::new(), db.default_keyspace());
    numbers.for_each(|number| batch.put(&keyspace, key(number), b"value"));
    db.write(batch, Durability::Sync).unwrap();
}

/// Flips a bit in the range tombstones of a table. Chooses the table with the smallest keys among the tables with range
/// tombstones.
fn damage_first_range_tombstones(disk: &MemVfs) -> PathBuf {
    let loaded = Manifest::load(disk, oracle::dir()).unwrap();
    let mut found: Vec<(Vec<u8>, PathBuf, u64)> = Vec::new();
    for file in loaded.state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files()) {
        let path = FileName::Table(file.id.0).in_dir(oracle::dir());
        let (id, bytes, uid, checksum) = (file.id, file.bytes, file.uid, file.checksum);
        let seq_largest = SeqNo(file.seq_largest);
        let identity = TableIdentity { id, bytes, uid, checksum, seq_largest };
        let table = Table::open(disk, &path, &identity, &BlockCache::new(0)).unwrap();
        if let Some(handle) = table.properties().range_tombstones {
            found.push((file.range.smallest.to_vec(), path, handle.offset));
        }
    }
    let (_, path, offset) = found.into_iter().min().expect("no table has range tombstones");
    disk.flip_bits(&path, offset, 1).unwrap();
    path
}

/// One of two tables has damaged range tombstones. Gets and scans that overlap the key range of this table return an
/// error that names the table. All other reads succeed.
///
/// Regression: a scan read the range tombstones of all tables of its keyspace, so every scan failed after damage to one
/// block.
pub(crate) fn damaged_range_tombstones_fail_overlapping_reads_only(_seed: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = open(&disk);
    for first in [0, 1_000] {
        put(&db, first..first + 20);
        db.flush().unwrap();
        // Each table keeps some keys, so no table is dropped as a whole.
        let range = (Bound::Included(key(first + 5)), Bound::Excluded(key(first + 10)));
        db.default_keyspace().delete_range(range).unwrap();
        db.flush().unwrap();
    }
    db.close(None).unwrap();
    drop(db);
    let damaged = damage_first_range_tombstones(&disk);
    let db = open(&disk);
    let keyspace = db.default_keyspace();
    let names_it = |error: &Error| matches!(error, Error::Corrupt { path, .. } if *path == damaged);
    for (range, expected) in
        [(1_000..2_000, Some(15)), (100..1_007, Some(5)), (0..7, None), (6..2_000, None)]
    {
        for backward in [false, true] {
            let scan = keyspace.range(key(range.start)..key(range.end));
            let scan: lsmx::Result<Vec<_>> =
                if backward { scan.rev().collect() } else { scan.collect() };
            match (scan, expected) {
                (Ok(found), Some(count)) if found.len() == count => {}
                (Err(error), None) if names_it(&error) => {}
                (scan, _) => panic!("{range:?}, backward {backward}: {scan:?}"),
            }
        }
    }
    assert!(db.get(key(1_001)).unwrap().is_some());
    assert!(db.get(key(1_006)).unwrap().is_none());
    let deleted = db.get(key(6));
    assert!(deleted.as_ref().is_err_and(names_it), "{deleted:?}");
    Ok(())
}

/// A flush writes nested range deletes while a snapshot exists. The work of the flush must be proportional to the
/// number of range deletes.
pub(crate) fn flush_of_nested_range_deletes_is_linear(_seed: u64) -> Outcome {
    let [few, many] = [64, 256].map(|count| {
        let db = open(&MemVfs::new());
        put(&db, 0..10);
        let _snapshot = db.snapshot();
        for end in 0..count {
            db.default_keyspace().delete_range::<[u8; 8]>(..key(end)).unwrap();
        }
        let before = total(WorkKind::SpanNumbers);
        db.flush().unwrap();
        total(WorkKind::SpanNumbers) - before
    });
    assert!(many <= 6 * few, "a flush processes {few} numbers, then {many}");
    Ok(())
}
