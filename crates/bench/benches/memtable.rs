//! Inserts into a memtable, lookups in a memtable, and steps of a cursor, for each kind of memtable.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, Criterion};
use lsmx::benching::{BenchMemtable, MemtableKind};
use lsmx::operand_store::Cursor as _;
use lsmx_bench::clock::Stopwatch;

use crate::data::{random_keys, random_value};

/// Numbers of entries. An entry has a key of 16 bytes and a value of 100 bytes.
const ENTRIES: [u64; 2] = [100_000, 1_000_000];

fn fill_memtable(kind: MemtableKind, keys: &[Bytes], value: &Bytes) -> BenchMemtable {
    let memtable = BenchMemtable::new(kind);
    for (seq, key) in (1..).zip(keys) {
        memtable.insert(key, seq, value);
    }
    memtable
}

pub(crate) fn bench_memtable(criterion: &mut Criterion) {
    for entries in ENTRIES {
        let all: Vec<Bytes> = random_keys(2 * entries).into_iter().map(Bytes::from).collect();
        let (present, absent) = all.split_at(all.len() / 2);
        for kind in MemtableKind::ALL {
            bench_kind(criterion, kind, present, absent);
        }
    }
}

fn bench_kind(criterion: &mut Criterion, kind: MemtableKind, present: &[Bytes], absent: &[Bytes]) {
    let value = Bytes::from(random_value());
    let entries = present.len() as u64;
    let mut group = criterion.benchmark_group(format!("memtable, {kind}, {entries} entries"));
    group.sample_size(10);
    let next_seq = AtomicU64::new(entries + 1);
    for writers in [1, 2, 4] {
        let insert = |memtable: &BenchMemtable, keys: &[Bytes]| {
            for key in keys {
                memtable.insert(key, next_seq.fetch_add(1, Ordering::Relaxed), &value);
            }
        };
        group.bench_function(format!("insert 20000, {writers} writers"), |bencher| {
            bencher.iter_batched_ref(
                || fill_memtable(kind, present, &value),
                |memtable| {
                    std::thread::scope(|scope| {
                        for keys in absent[..20_000].chunks(20_000 / writers) {
                            let (insert, memtable) = (&insert, &*memtable);
                            scope.spawn(move || insert(memtable, keys));
                        }
                    });
                },
                BatchSize::PerIteration,
            );
        });
    }
    let memtable = fill_memtable(kind, present, &value);
    let mut searched = present.iter().cycle();
    group.bench_function("get present", |bencher| {
        bencher.iter(|| memtable.get(black_box(searched.next().unwrap())).unwrap());
    });
    let mut searched = absent.iter().cycle();
    group.bench_function("get absent", |bencher| {
        bencher.iter(|| memtable.get(black_box(searched.next().unwrap())).is_none());
    });
    let mut cursor = memtable.cursor();
    group.bench_function("next", |bencher| {
        bencher.iter(
            || {
                if cursor.valid() { cursor.next().unwrap() } else { cursor.first().unwrap() }
            },
        );
    });
    // The writer adds versions of other keys.
    let memtable = fill_memtable(kind, present, &value);
    group.bench_function("get present while another thread inserts", |bencher| {
        bencher.iter_custom(|iterations| {
            let ended = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut keys = absent.iter().cycle();
                    while ended.load(Ordering::Relaxed) == 0 {
                        let seq = next_seq.fetch_add(1, Ordering::Relaxed);
                        memtable.insert(keys.next().unwrap(), seq, &value);
                    }
                });
                let start = Stopwatch::start();
                for key in present.iter().cycle().take(usize::try_from(iterations).unwrap()) {
                    black_box(memtable.get(black_box(key)).unwrap());
                }
                let elapsed = Duration::from_nanos(start.elapsed_ns());
                ended.store(1, Ordering::Relaxed);
                elapsed
            })
        });
    });
    group.finish();
}
