//! WAL recovery on several threads, into one or more memtables.

use std::path::Path;
use std::sync::Arc;

use lsmx::KeyspaceOptions;
use lsmx::env::Background;
use lsmx::merge_operator::Counter;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{Db, Options, WalOptions};

use crate::harness::database::{
    self, Entries, assert_clean, assert_entries, inline, metrics, policy,
};
use crate::harness::descriptors::FewDescriptors;

const KEYS: u64 = 20_000;

fn options(memtable_bytes: u64) -> Options {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(memtable_bytes)
        .merge_operator(Counter)
        .policy(policy("leveled"));
    Options::default().background(Background::Threads { workers: 2 }).keyspace_defaults(keyspace)
}

fn open(disk: &MemVfs, memtable_bytes: u64) -> Db {
    database::open(disk, options(memtable_bytes))
}

fn key(number: u64) -> Vec<u8> {
    format!("{:016x}", (number % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn counter(number: u64) -> Vec<u8> {
    format!("c{}", number % 50).into_bytes()
}

/// Writes about 7 MiB of puts, deletes and merges, with several versions per key. Returns the expected entries.
fn fill(db: &Db) -> Entries {
    let mut model = Entries::new();
    for number in 0..2 * KEYS {
        match number % 10 {
            7 => {
                db.delete(key(number / 3)).unwrap();
                model.remove(&key(number / 3));
            }
            8 => {
                db.default_keyspace().merge(counter(number), 3i64.to_le_bytes()).unwrap();
                let sum = model.entry(counter(number)).or_insert_with(|| 0i64.to_le_bytes().into());
                let before = i64::from_le_bytes(sum.as_slice().try_into().unwrap());
                *sum = (before + 3).to_le_bytes().into();
            }
            _ => {
                let value = [&number.to_le_bytes()[..], &[7; 150]].concat();
                db.put(key(number), &value).unwrap();
                model.insert(key(number), value);
            }
        }
    }
    model
}

/// Calls [`fill`] and then `more`, and simulates a kill of the process. Returns the disk and the expected entries.
fn killed_after(more: impl FnOnce(&Db, &mut Entries)) -> (MemVfs, Entries) {
    let disk = MemVfs::new();
    let db = open(&disk, 64 << 20);
    let mut model = fill(&db);
    more(&db, &mut model);
    (disk.crash(CrashImage::Keep, 0), model)
}

/// Returns the number of runs and the number of files in L0.
fn l0(db: &Db) -> (u64, u64) {
    let level = &metrics(db).levels[0];
    (level.runs, level.files)
}

#[test]
fn recovery_of_a_large_memtable_writes_two_tables() {
    let (disk, model) = killed_after(|_, _| ());
    let db = open(&disk, 64 << 20);
    assert_eq!(l0(&db), (1, 2));
    assert_entries(&db.default_keyspace(), &model);
    db.close(None).unwrap();
    assert_clean(&disk);
    assert_entries(&open(&disk, 64 << 20).default_keyspace(), &model);
}

/// Recovery writes a memtable with range deletes to a single table, because a range delete could span the boundary
/// between two tables.
#[test]
fn recovery_of_a_memtable_with_a_range_delete_writes_one_table() {
    let (disk, model) = killed_after(|db, model| {
        db.default_keyspace().delete_range(&b"4"[..]..&b"a"[..]).unwrap();
        model.retain(|key, _| &key[..] < b"4".as_slice() || &key[..] >= b"a".as_slice());
    });
    let db = open(&disk, 64 << 20);
    assert_eq!(l0(&db), (1, 1));
    assert_entries(&db.default_keyspace(), &model);
}

#[test]
fn recovery_of_a_log_larger_than_a_memtable_flushes_during_replay() {
    let (disk, model) = killed_after(|_, _| ());
    let read_only = database::open(&disk, options(2 << 20).read_only(true));
    assert_entries(&read_only.default_keyspace(), &model);
    drop(read_only);
    let db = open(&disk, 2 << 20);
    assert_entries(&db.default_keyspace(), &model);
    db.wait_idle().unwrap();
    assert_entries(&db.default_keyspace(), &model);
}

/// An open that was killed, or another process, had created a directory without a sync of its parent. The next open did
/// not sync the parent either, so a power loss removed the database with its synced commits.
#[test]
fn commits_in_an_unsynced_directory_survive_a_power_loss() {
    for (unsynced, path) in [("db", "db"), ("parent", "parent/db"), ("parent", "parent/new/db")] {
        let disk = MemVfs::new();
        disk.create_dir(Path::new(unsynced)).unwrap();
        let options = || options(1 << 20).vfs(Arc::new(disk.clone()));
        let db = Db::open(path, options()).unwrap();
        db.put("key", "value").unwrap();
        db.sync().unwrap();
        let after = Arc::new(disk.crash(CrashImage::Drop, 0));
        let db = Db::open(path, options().create_if_missing(false).vfs(after)).unwrap();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Regression: recovery and `verify` kept all segments of the log open.
#[test]
fn log_with_more_segments_than_descriptors_is_recovered() {
    const DESCRIPTORS: usize = 32;
    let wal = WalOptions { segment_bytes: 1 << 10, ..WalOptions::default() };
    let options = inline().wal(wal);
    let disk = MemVfs::new();
    let db = database::open(&disk, options.clone());
    let mut model = Entries::new();
    for number in 0..1_000 {
        db.put(key(number), [7; 100]).unwrap();
        model.insert(key(number), vec![7; 100]);
    }
    assert!(db.metrics().wal.segments > 2 * DESCRIPTORS as u64);
    db.sync().unwrap();
    let killed = FewDescriptors::new(disk.crash(CrashImage::Keep, 0), DESCRIPTORS);
    database::verify(&killed).unwrap();
    let follower = Db::open_follower("db", options.clone().vfs(Arc::new(killed.clone()))).unwrap();
    assert_entries(&follower.view().default_keyspace(), &model);
    drop(follower);
    assert_entries(&database::open(&killed, options).default_keyspace(), &model);
}
