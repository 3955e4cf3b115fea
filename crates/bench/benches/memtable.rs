//! Inserts into a memtable, and lookups in a memtable.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion};
use lsmx::benching::BenchMemtable;

use crate::data::{random_keys, random_value};

/// Approximate number of entries in a memtable of 16 MiB.
const ENTRIES: u64 = 70_000;

fn fill_memtable(keys: &[Bytes], value: &Bytes) -> BenchMemtable {
    let memtable = BenchMemtable::default();
    for (seq, key) in (1..).zip(keys) {
        memtable.insert(key, seq, value);
    }
    memtable
}

pub(crate) fn bench_insert(criterion: &mut Criterion) {
    let all: Vec<Bytes> = random_keys(2 * ENTRIES).into_iter().map(Bytes::from).collect();
    let (present, absent) = all.split_at(all.len() / 2);
    let value = Bytes::from(random_value());
    let mut group = criterion.benchmark_group("memtable, 70000 entries");
    group.bench_function("insert 1000", |bencher| {
        bencher.iter_batched_ref(
            || fill_memtable(present, &value),
            |memtable| {
                for (seq, key) in (ENTRIES + 1..).zip(&absent[..1000]) {
                    memtable.insert(key, seq, &value);
                }
            },
            BatchSize::LargeInput,
        );
    });
    let memtable = fill_memtable(present, &value);
    let mut searched = present.iter().cycle();
    group.bench_function("get present", |bencher| {
        bencher.iter(|| memtable.get(black_box(searched.next().unwrap())).unwrap());
    });
    let mut searched = absent.iter().cycle();
    group.bench_function("get absent", |bencher| {
        bencher.iter(|| memtable.get(black_box(searched.next().unwrap())).is_none());
    });
    group.finish();
}
