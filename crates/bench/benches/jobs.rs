//! Flushes and compactions of a database in an in-memory file system. The jobs run on the calling thread.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput};
use lsmx::env::Background;
use lsmx::merge_operator::FieldUpdate;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options, PolicySpec};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::data::{VALUE_BYTES, random_keys, random_value};

const ENTRIES: u64 = 20_000;
/// Large enough for all entries, so that memtables are flushed only by explicit calls.
const MEMTABLE_BYTES: u64 = 64 << 20;
/// Maximum number of buckets of the operand store.
const BUCKETS: u64 = 8;
/// Benchmark names and bucket sizes. A flush delivers its operands to the buckets. Eight buckets of 4 MiB have space
/// for all operands. Buckets of 512 KiB are full after two flushes, so the second flush also collects (rewrites) them.
const BUCKET_BYTES: [(&str, u64); 2] = [("append", 4 << 20), ("append and collect", 512 << 10)];

fn open(keyspace: KeyspaceOptions) -> Db {
    let options = Options::default()
        .background(Background::Inline)
        .keyspace_defaults(keyspace.memtable_bytes(MEMTABLE_BYTES));
    Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
}

fn put_all(db: &Db, keys: &[Vec<u8>], value: &[u8]) {
    for key in keys {
        db.put(key, value).unwrap();
    }
}

pub(crate) fn bench_jobs(criterion: &mut Criterion) {
    let (keys, value) = (random_keys(ENTRIES), random_value());
    let mut group = criterion.benchmark_group("job, 20000 entries");
    group.throughput(Throughput::Elements(ENTRIES)).sample_size(10);
    group.bench_function("flush", |bencher| {
        let filled = || {
            let db = open(KeyspaceOptions::default());
            put_all(&db, &keys, &value);
            db
        };
        bencher.iter_batched(
            filled,
            |db| db.flush().map(|()| db).unwrap(),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("compaction of two runs", |bencher| {
        // With this policy, two runs do not trigger a compaction.
        let policy: PolicySpec = "tiering".parse().unwrap();
        let filled = || {
            let db = open(KeyspaceOptions::default().policy(policy.clone()));
            for half in keys.chunks(keys.len() / 2) {
                put_all(&db, half, &value);
                db.flush().unwrap();
            }
            db
        };
        let compact = |db: Db| {
            db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
            db
        };
        bencher.iter_batched(filled, compact, BatchSize::PerIteration);
    });
    for (name, bucket_bytes) in BUCKET_BYTES {
        let operator = FieldUpdate { value_bytes_max: u32::try_from(VALUE_BYTES).unwrap() };
        let delta = DeltaOptions::default().bucket_bytes(bucket_bytes).buckets_max(BUCKETS);
        let operand = FieldUpdate::operand(0, &value);
        let filled = || {
            let keyspace = KeyspaceOptions::default().merge_operator(operator);
            let db = open(keyspace.operand_store(DeltaStoreFactory::new(delta)));
            let keyspace = db.default_keyspace();
            for round in 0..2 {
                if round == 1 {
                    db.flush().unwrap();
                }
                keys.iter().for_each(|key| keyspace.merge(key, &operand).unwrap());
            }
            db
        };
        let flush = |db: Db| db.flush().map(|()| db).unwrap();
        let store = flush(filled()).metrics().keyspaces["default"].operand_store.unwrap();
        let collects = store.rewrites + store.splits + store.to_tree > 0;
        assert_eq!(collects, name == "append and collect", "{store:?}");
        group.bench_function(format!("operand store: {name}"), |bencher| {
            bencher.iter_batched(filled, flush, BatchSize::PerIteration);
        });
    }
    group.finish();
}
