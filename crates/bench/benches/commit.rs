//! Latency of commits to a database in the temporary directory of the system.

use criterion::{Criterion, Throughput};
use lsmx::{Db, Durability, Options, WriteBatch};

use crate::data::{random_keys, random_value};

const KEYS: u64 = 100_000;
const BATCH: usize = 100;

pub(crate) fn bench_put(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let db = Db::open(directory.path().join("db"), Options::default()).unwrap();
    let keyspace = db.default_keyspace();
    let all = random_keys(KEYS);
    let value = random_value();
    let mut key = all.iter().cycle();
    let mut group = criterion.benchmark_group("commit");
    group.bench_function("put, buffered", |bencher| {
        bencher.iter(|| keyspace.put(key.next().unwrap(), &value).unwrap());
    });
    group.bench_function("put, synced", |bencher| {
        let synced = keyspace.with_write_options(Durability::Sync);
        bencher.iter(|| synced.put(key.next().unwrap(), &value).unwrap());
    });
    group.throughput(Throughput::Elements(u64::try_from(BATCH).unwrap()));
    group.bench_function("batch of 100 puts, buffered", |bencher| {
        bencher.iter(|| {
            let mut batch = WriteBatch::new();
            for key in key.by_ref().take(BATCH) {
                batch.put(&keyspace, key, &value);
            }
            db.write(batch, Durability::Buffered).unwrap();
        });
    });
    group.finish();
    db.close(None).unwrap();
}
