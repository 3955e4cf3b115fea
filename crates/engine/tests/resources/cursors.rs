//! Allocations of cursors.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, KeyspaceOptions, Options, PolicySpec, ReadOptions, WriteBatch};
use lsmx_testkit::TestRng;

use crate::ALLOCATOR;

const KEYS: u64 = 20_000;

/// Returns a database with four sorted runs, one of them of many tables, and a memtable.
fn database() -> Db {
    let policy: PolicySpec = "tiering(size_ratio=100)".parse().unwrap();
    let keyspace = KeyspaceOptions::default()
        .policy(policy)
        .memtable_bytes(64 << 20)
        .table_bytes(16 << 10)
        .block_bytes(512);
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.keyspace_defaults(keyspace).vfs(Arc::new(MemVfs::new()));
    let db = Db::open("db", options).unwrap();
    let keyspace = db.default_keyspace();
    for run in 0..5 {
        let mut batch = WriteBatch::new();
        for number in (run..KEYS).step_by(5) {
            batch.put(&keyspace, number.to_be_bytes(), [1; 40]);
        }
        db.write(batch, Durability::Buffered).unwrap();
        match run {
            // The compaction splits the run into many tables.
            0 => keyspace.compact_range::<&[u8]>(..).unwrap(),
            1..4 => db.flush().unwrap(),
            _ => {}
        }
    }
    let total = db.metrics().keyspaces["default"].total();
    assert!(total.runs == 4 && total.files > 10, "{} runs, {} files", total.runs, total.files);
    db
}

#[test]
fn cursor_seek_to_cached_entry_allocates_nothing() {
    let _alone = lsmx_testkit::run_alone();
    let db = database();
    let mut cursor = db.default_keyspace().cursor(&ReadOptions::default()).unwrap();
    let mut seek_all = || {
        let mut rng = TestRng::new(7);
        let before = ALLOCATOR.total_bytes();
        for _ in 0..5_000 {
            let number = rng.below(KEYS + 100);
            cursor.seek(number.to_be_bytes()).unwrap();
            assert_eq!(cursor.key().is_some(), number < KEYS);
            assert_eq!(cursor.value().unwrap().is_some(), number < KEYS);
            cursor.next().unwrap();
            cursor.prev().unwrap();
            cursor.seek_for_prev(number.to_be_bytes()).unwrap();
            assert_eq!(cursor.value().unwrap().map(<[u8]>::len), Some(40));
            cursor.prev().unwrap();
        }
        ALLOCATOR.total_bytes() - before
    };
    let first = seek_all();
    // The test harness may allocate in another thread meanwhile, so the fewest bytes of three repetitions count.
    let later = (0..3).map(|_| seek_all()).min().unwrap_or_default();
    println!("bytes allocated by the first seeks: {first}, by the same seeks later: {later}");
    assert_eq!(later, 0);
}
