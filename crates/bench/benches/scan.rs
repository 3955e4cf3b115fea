//! Scans and lookups in a database whose blocks are cached.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use lsmx::{Db, KeyspaceOptions, Options};

use crate::data::{random_keys, random_value};

const ENTRIES: u64 = 100_000;
/// Memtable size in bytes. Small memtables give the tree several runs.
const MEMTABLE_BYTES: u64 = 2 << 20;

pub(crate) fn bench_entries(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let keyspace = KeyspaceOptions::default().memtable_bytes(MEMTABLE_BYTES);
    let options = Options::default().keyspace_defaults(keyspace);
    let db = Db::open(directory.path().join("db"), options).unwrap();
    let all = random_keys(ENTRIES);
    let value = random_value();
    for key in &all {
        db.put(key, &value).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let keyspace = db.default_keyspace();

    let mut group = criterion.benchmark_group("database of 100000 entries");
    let mut searched = all.iter().cycle();
    group.bench_function("get", |bencher| {
        bencher.iter(|| keyspace.get(black_box(searched.next().unwrap())).unwrap().unwrap().len());
    });
    let mut searched = all.iter().cycle();
    group.bench_function("seek and next 10", |bencher| {
        bencher.iter(|| {
            let from = searched.next().unwrap().as_slice();
            keyspace.range(from..).take(10).map(|entry| entry.unwrap().1.len()).sum::<usize>()
        });
    });
    group.throughput(Throughput::Elements(ENTRIES));
    group.bench_function("scan forward", |bencher| {
        bencher.iter(|| keyspace.iter().map(|entry| entry.unwrap().1.len()).sum::<usize>());
    });
    group.bench_function("scan backward", |bencher| {
        bencher.iter(|| keyspace.iter().rev().map(|entry| entry.unwrap().1.len()).sum::<usize>());
    });
    group.finish();
    db.close(None).unwrap();
}
