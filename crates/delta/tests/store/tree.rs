//! Checks how many bytes are read when a collection moves operands to the tree.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CountingVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

const KEYS: u32 = 20_000;

fn key(number: u32) -> String {
    format!("key{number:05}")
}

#[test]
fn bucket_moved_to_tree_reads_its_range_once() {
    let vfs = Arc::new(CountingVfs::new(Arc::new(MemVfs::new())));
    let delta = DeltaOptions::default().bucket_bytes(8192).buckets_max(4).cache_bytes(0);
    let keyspace = KeyspaceOptions::default()
        .merge_operator(Append::default())
        .operand_store(DeltaStoreFactory::new(delta))
        .memtable_bytes(1 << 20)
        .table_bytes(1 << 20)
        .block_bytes(1024);
    let options = Options::default()
        .background(Background::Inline)
        .block_cache_bytes(0)
        .seed(1)
        .keyspace_defaults(keyspace);
    let db = Db::open("db", options.vfs(vfs.clone())).unwrap();
    for number in 0..KEYS {
        db.put(key(number), [b'v'; 200]).unwrap();
    }
    db.default_keyspace().compact_range::<&str>(..).unwrap();
    // A newer run contains only every tenth key, so many searches in this run end at the same position.
    for number in (0..KEYS).step_by(10) {
        db.put(key(number), [b'w'; 200]).unwrap();
    }
    db.flush().unwrap();
    let metrics = || {
        let metrics = db.metrics();
        let keyspace = metrics.keyspaces.values().next().unwrap();
        let store = keyspace.operand_store.unwrap();
        let tree: u64 = keyspace.levels.iter().map(|level| level.bytes).sum();
        (store.to_tree, store.bucket_read_bytes, keyspace.compaction.read_bytes, tree)
    };
    let read = || vfs.counts().bytes.count_of(VfsCall::Read);
    let (before, read_before) = (metrics(), read());
    for round in 0..3 {
        for number in (0..KEYS).rev() {
            db.default_keyspace().merge(key(number), format!(".{round}")).unwrap();
        }
    }
    db.flush().unwrap();
    let (after, read) = (metrics(), read() - read_before);
    let left = after.0 - before.0;
    assert!(left > 8, "{left} buckets left");
    let others = (after.1 - before.1) + (after.2 - before.2);
    // Each of the four buckets covers a quarter of the tree. A collection may read at most twice this quarter.
    let tree = left * after.3 / 4;
    assert!(read - others < 2 * tree, "{} read for {left} buckets of {tree}", read - others);
    for number in 0..KEYS {
        let value = db.get(key(number)).unwrap().unwrap();
        assert!(value.ends_with(b".0.1.2"), "{number}: {value:?}");
    }
}
