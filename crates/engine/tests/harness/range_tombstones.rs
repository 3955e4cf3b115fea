//! Scenarios about range deletes that tests of guarantees and deliberate bugs share.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::cache::BlockCache;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::table::{Table, TableIdentity};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, PolicySpec, WriteBatch};
use lsmx_base::file_name::FileName;
use lsmx_base::work_counter::{WorkKind, total};

use super::{Outcome, oracle};

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open(disk: &MemVfs) -> Outcome<Db> {
    let policy: PolicySpec = "tiering(size_ratio=100)".parse().map_err(failed)?;
    let keyspace = KeyspaceOptions::default().policy(policy);
    let options = Options::default().background(Background::Inline).keyspace_defaults(keyspace);
    Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))).map_err(failed)
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn put(db: &Db, numbers: std::ops::Range<u64>) -> Outcome {
    let (mut batch, keyspace) = (WriteBatch::new(), db.default_keyspace());
    numbers.for_each(|number| batch.put(&keyspace, key(number), b"value"));
    db.write(batch, Durability::Sync).map_err(failed)
}

/// Flips a bit in the range tombstones of the table that holds the smallest keys of all that have some.
fn damage_first_range_tombstones(disk: &MemVfs) -> Outcome<PathBuf> {
    let loaded = Manifest::load(disk, oracle::dir()).map_err(failed)?;
    let mut found: Vec<(Vec<u8>, PathBuf, u64)> = Vec::new();
    for file in loaded.state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files()) {
        let path = FileName::Table(file.id.0).in_dir(oracle::dir());
        let identity = TableIdentity {
            id: file.id,
            bytes: file.bytes,
            uid: file.uid,
            checksum: file.checksum,
        };
        let table = Table::open(disk, &path, &identity, &BlockCache::new(0)).map_err(failed)?;
        if let Some(handle) = table.properties().range_tombstones {
            found.push((file.range.smallest.to_vec(), path, handle.offset));
        }
    }
    let (_, path, offset) = found.into_iter().min().ok_or("no table has range tombstones")?;
    disk.flip_bits(&path, offset, 1).map_err(failed)?;
    Ok(path)
}

/// The range tombstones of one of two tables are damaged: gets and scans that do not overlap the table
/// succeed, and the others fail with an error that names it.
pub(crate) fn damaged_range_tombstones_fail_overlapping_reads_only(_seed: u64) -> Outcome {
    let disk = MemVfs::new();
    let db = open(&disk)?;
    for first in [0, 1_000] {
        put(&db, first..first + 20)?;
        db.flush().map_err(failed)?;
        // Some keys stay, so that no file is dropped as a whole.
        let range = (Bound::Included(key(first + 5)), Bound::Excluded(key(first + 10)));
        db.default_keyspace().delete_range(range).map_err(failed)?;
        db.flush().map_err(failed)?;
    }
    db.close(None).map_err(failed)?;
    drop(db);
    let damaged = damage_first_range_tombstones(&disk)?;
    let db = open(&disk)?;
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
                (scan, _) => return Err(format!("{range:?}, backward {backward}: {scan:?}")),
            }
        }
    }
    for (number, expected) in [(1_001, true), (1_006, false)] {
        let found = db.get(key(number)).map_err(failed)?.is_some();
        if found != expected {
            return Err(format!("key {number} is found: {found}"));
        }
    }
    match db.get(key(6)) {
        Err(error) if names_it(&error) => Ok(()),
        found => Err(format!("a deleted key under damaged range tombstones: {found:?}")),
    }
}

/// A flush of nested range deletes under a snapshot handles numbers in proportion to the range deletes.
pub(crate) fn flush_of_nested_range_deletes_is_linear(_seed: u64) -> Outcome {
    let mut numbers = Vec::new();
    for count in [64, 256] {
        let db = open(&MemVfs::new())?;
        put(&db, 0..10)?;
        let _snapshot = db.snapshot();
        for end in 0..count {
            db.default_keyspace().delete_range::<[u8; 8]>(..key(end)).map_err(failed)?;
        }
        let before = total(WorkKind::SpanNumbers);
        db.flush().map_err(failed)?;
        numbers.push(total(WorkKind::SpanNumbers) - before);
    }
    match numbers[..] {
        [few, many] if many > 6 * few => Err(format!("a flush handles {few}, then {many} numbers")),
        _ => Ok(()),
    }
}
