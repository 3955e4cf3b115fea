//! Checks which buckets collections rewrite, and how many bytes they read and write per delivered byte.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::Max;
use lsmx::operand_store::OperandMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{Db, KeyspaceOptions, Options};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;

use crate::common::{Driver, Write};

const KEYS: u64 = 2000;
/// Number of updates per flush.
const UPDATES: u64 = 100;

/// Updates random keys until the number of buckets is constant. Then counts the bytes of further updates.
///
/// All operands of a key combine into one operand of the same length, so the remaining bytes of a bucket are constant.
fn measure_rewriting(split_threshold: f64) -> [f64; 2] {
    let delta = DeltaOptions::default().bucket_bytes(16 << 10).split_threshold(split_threshold);
    let keyspace =
        KeyspaceOptions::default().merge_operator(Max).operand_store(DeltaStoreFactory::new(delta));
    let options =
        Options::default().background(Background::Inline).seed(1).keyspace_defaults(keyspace);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
    let mut rng = TestRng::new(1);
    let mut round = 0u64;
    let mut update = |flushes| {
        for _ in 0..flushes {
            for _ in 0..UPDATES {
                round += 1;
                let operand = format!("{round:0100}");
                let key = format!("key{:05}", rng.below(KEYS));
                db.default_keyspace().merge(key, operand).unwrap();
            }
            db.flush().unwrap();
        }
        db.metrics().keyspaces["default"].operand_store.unwrap()
    };
    let before: OperandMetrics = update(10 * KEYS / UPDATES);
    let after = update(20 * KEYS / UPDATES);
    assert_eq!((after.to_tree, after.splits), (0, before.splits), "{after:?}");
    assert!(
        after.operands - before.operands > 18 * KEYS,
        "flushes combine few operands: {after:?}"
    );
    assert!(after.rewrites - before.rewrites > 100, "{after:?}");
    let delivered = (after.delivered_bytes - before.delivered_bytes) as f64;
    let read = after.bucket_read_bytes - before.bucket_read_bytes;
    let written = after.collection_written_bytes - before.collection_written_bytes;
    assert!(written < after.bucket_written_bytes - before.bucket_written_bytes, "{after:?}");
    [read as f64 / delivered, written as f64 / delivered]
}

/// A collection reads a full bucket and writes the share S of it that remains. Until the next collection of the bucket,
/// the share 1 − S is delivered. S is at most the threshold p, and at least half of it because splits are even. The
/// bytes per delivered byte are therefore at most 1 / (1 − p) and p / (1 − p).
///
/// Source: Li et al., key-delta separation (KDSep), ICDE 2024, analysis.
#[test]
fn collections_rewrite_at_most_the_bound_of_the_threshold() {
    let mut previous = [0.0; 2];
    for p in [0.3, 0.5, 0.8] {
        let [read, written] = measure_rewriting(p);
        println!("threshold {p}: {read:.3} read, {written:.3} written per delivered byte");
        // Frames and the index add bytes. The tail of a bucket is in memory, so it is not read from files.
        let (read_max, written_max) = (1.1 / (1.0 - p), 1.1 * p / (1.0 - p));
        assert!(read > 0.7 / (1.0 - p / 2.0) && read < read_max, "{p}: {read}");
        assert!(written > 0.7 * p / 2.0 && written < written_max, "{p}: {written}");
        assert!(read > previous[0] && written > previous[1], "{p}: {read} {written}");
        previous = [read, written];
    }
}

/// Regression: each collection chose the 16 due buckets with the smallest keys. If these buckets were full again after
/// each collection, no collection rewrote the buckets with larger keys.
#[test]
fn bucket_after_buckets_that_are_always_due_is_collected() {
    const ALWAYS_DUE: usize = 20;
    // Each operand fills a bucket.
    let write = |number| Write::Operand { key: format!("key{number:02}").into_bytes(), bytes: 600 };
    let mut driver = Driver::new(DeltaOptions::default().bucket_bytes(512));
    driver.flush(&(0..=ALWAYS_DUE).map(write).collect::<Vec<_>>());
    let writes: Vec<Write> = (0..ALWAYS_DUE).map(write).collect();
    for _ in 0..3 {
        assert!(driver.collect(Some(&writes)).unwrap());
    }
    let last_key = format!("key{ALWAYS_DUE}").into_bytes();
    assert!(driver.model.tree.iter().any(|(key, ..)| *key == last_key));
    driver.check().unwrap();
}
