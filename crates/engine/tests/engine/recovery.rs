//! Recovery of logs that several threads replay, and that fill more than one memtable.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::Counter;
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options};

const KEYS: u64 = 20_000;

fn open(disk: &MemVfs, memtable_bytes: u64) -> Db {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(memtable_bytes)
        .merge_operator(Counter)
        .policy("leveled".parse::<lsmx::PolicySpec>().unwrap());
    let background = Background::Threads { workers: 2 };
    let options = Options::default().background(background).keyspace_defaults(keyspace);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("{:016x}", (number % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn counter(number: u64) -> Vec<u8> {
    format!("c{}", number % 50).into_bytes()
}

/// Puts, deletes and merges of some 7 MiB, many of the same keys, and what they amount to.
fn fill(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
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

fn check(db: &Db, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let found: Vec<_> = db.default_keyspace().iter().map(Result::unwrap).collect();
    assert_eq!(found.len(), model.len());
    for ((key, value), (model_key, model_value)) in found.iter().zip(model) {
        assert_eq!((&**key, &**value), (&**model_key, &**model_value));
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&**model_value));
    }
}

/// Runs and files of L0.
fn first_level(db: &Db) -> (u64, u64) {
    let metrics = db.metrics();
    let level = &metrics.keyspaces["default"].levels[0];
    (level.runs, level.files)
}

#[test]
fn a_large_memtable_is_written_in_halves() {
    let disk = MemVfs::new();
    let db = open(&disk, 64 << 20);
    let model = fill(&db);
    let killed = disk.crash(CrashImage::Keep, 0);
    drop(db);
    let db = open(&killed, 64 << 20);
    assert_eq!(first_level(&db), (1, 2));
    check(&db, &model);
    db.close(None).unwrap();
    drop(db);
    lsmx::verify("db", &Options::default().vfs(Arc::new(killed.clone()))).unwrap();
    check(&open(&killed, 64 << 20), &model);
}

/// A range delete may reach over the middle, so then there is one table.
#[test]
fn a_range_delete_among_the_commits_keeps_it_whole() {
    let disk = MemVfs::new();
    let db = open(&disk, 64 << 20);
    let mut model = fill(&db);
    db.default_keyspace().delete_range(&b"4"[..]..&b"a"[..]).unwrap();
    model.retain(|key, _| &key[..] < b"4".as_slice() || &key[..] >= b"a".as_slice());
    let killed = disk.crash(CrashImage::Keep, 0);
    drop(db);
    let db = open(&killed, 64 << 20);
    assert_eq!(first_level(&db), (1, 1));
    check(&db, &model);
}

/// The memtable is smaller than the log: it is written on the way, whole batches at a time.
#[test]
fn memtables_that_fill_up_on_the_way_are_written_then() {
    let disk = MemVfs::new();
    let db = open(&disk, 64 << 20);
    let model = fill(&db);
    let killed = disk.crash(CrashImage::Keep, 0);
    drop(db);
    let db = open(&killed, 2 << 20);
    check(&db, &model);
    db.wait_idle().unwrap();
    check(&db, &model);
    let reader = Db::open(
        "db",
        {
            Options::default().keyspace_defaults(KeyspaceOptions::default().merge_operator(Counter))
        }
        .read_only(true)
        .vfs(Arc::new(disk.crash(CrashImage::Keep, 0))),
    );
    check(&reader.unwrap(), &model);
}
