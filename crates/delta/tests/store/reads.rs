//! Number of reads of a lookup.

use crate::common::{Driver, Write};
use lsmx::operand_store::OperandReadTier;
use lsmx::{Error, SeqNo};
use lsmx_base::sync::Ordering;
use lsmx_delta::DeltaOptions;

fn write(key: u64) -> Write {
    Write::Operand { key: format!("key{key:03}").into_bytes(), bytes: 30 }
}

/// A few buckets with sorted and unsorted parts of many pages.
fn store(cache_bytes: u64) -> Driver {
    let options = DeltaOptions::default().bucket_bytes(16 << 10).cache_bytes(cache_bytes);
    let mut driver = Driver::new(options);
    for round in 0..60 {
        let writes: Vec<Write> = (0..60).map(|key| write((key * 7 + round) % 200)).collect();
        driver.flush(&writes);
        driver.collect(None).unwrap();
    }
    driver
}

fn read(driver: &Driver, key: u64) -> (u64, u64) {
    let counts = || {
        let counts = &driver.counts;
        (counts.reads.load(Ordering::Relaxed), counts.hits.load(Ordering::Relaxed))
    };
    let (reads, hits) = counts();
    let mut found = Vec::new();
    let key = format!("key{key:03}");
    driver
        .store
        .view()
        .read_operands(key.as_bytes(), SeqNo::MAX, OperandReadTier::Storage, &mut found)
        .unwrap();
    assert!(!found.is_empty());
    (counts().0 - reads, counts().1 - hits)
}

#[test]
fn lookup_many_operands_takes_one_read() {
    let driver = store(0);
    assert!(driver.store.metrics().splits > 0);
    let mut read_at_all = 0;
    for key in 0..200 {
        let (reads, hits) = read(&driver, key);
        assert!(reads <= 1, "{reads} reads of key {key}");
        assert_eq!(reads + hits, 1);
        read_at_all += reads;
    }
    assert!(read_at_all > 150, "{read_at_all}");
    // Absent keys cost nothing, but for a few that filters let pass.
    let before = driver.counts.reads.load(Ordering::Relaxed);
    for key in 0..200 {
        let mut found = Vec::new();
        let key = format!("key{key:03}x");
        let view = driver.store.view();
        view.read_operands(key.as_bytes(), SeqNo::MAX, OperandReadTier::Storage, &mut found)
            .unwrap();
    }
    let reads = driver.counts.reads.load(Ordering::Relaxed) - before;
    assert!(reads < 20, "{reads} reads of absent keys");
}

#[test]
fn lookup_cached_key_reads_nothing_after_delivery_and_collection() {
    let mut driver = store(1 << 20);
    // A key is read from its bucket at most once; before that, memory had all of it.
    let mut reads_of = vec![0; 200];
    for round in 0..40 {
        let writes: Vec<Write> = (0..60).map(|key| write((key * 7 + round) % 200)).collect();
        driver.flush(&writes);
        driver.collect(None).unwrap();
        for key in 0..200 {
            reads_of[usize::try_from(key).unwrap()] += read(&driver, key).0;
        }
    }
    assert!(reads_of.iter().all(|reads| *reads <= 1), "{reads_of:?}");
    assert!(reads_of.iter().sum::<u64>() > 100);
    assert!(driver.store.metrics().rewrites + driver.store.metrics().splits > 3);
    driver.check().unwrap();
}

#[test]
fn open_reads_no_bucket_and_memory_read_would_block() {
    let mut driver = store(0);
    driver.reopen().unwrap();
    assert_eq!(driver.counts.reads.load(Ordering::Relaxed), 0);
    let view = driver.store.view();
    let mut found = Vec::new();
    let refused = view.read_operands(b"key003", SeqNo::MAX, OperandReadTier::Memory, &mut found);
    assert!(matches!(refused, Err(Error::WouldBlock)));
    assert!(view.may_contain(b"key003"));
    assert_eq!(driver.counts.reads.load(Ordering::Relaxed), 0);
    read(&driver, 3);
    // Index, filter and fingerprints are there now.
    let (reads, _) = read(&driver, 3);
    assert!(reads <= 2, "{reads}");
}
