//! Checks the number of file reads per lookup.

use crate::common::{Driver, Write, read_operands};
use lsmx::operand_store::{Cursor, OperandReadTier};
use lsmx::{Error, SeqNo};
use lsmx_base::sync::Ordering;
use lsmx_delta::DeltaOptions;
use lsmx_testkit::delta::ReadCounts;

/// Returns a store with a few buckets. The buckets have sorted and unsorted parts of many pages.
fn filled_store(cache_bytes: u64) -> Driver {
    let options = DeltaOptions::default().bucket_bytes(16 << 10).cache_bytes(cache_bytes);
    let mut driver = Driver::new(options);
    driver.fill_buckets(0..60);
    driver
}

/// Looks up a key. Returns the numbers of reads and of cache hits.
fn read(driver: &Driver, key: u64) -> (u64, u64) {
    let counts = || {
        let counts = &driver.counts;
        (counts.reads.load(Ordering::Relaxed), counts.hits.load(Ordering::Relaxed))
    };
    let (reads, hits) = counts();
    let key = format!("key{key:03}");
    let found = read_operands(&*driver.store.view(), key.as_bytes(), SeqNo::MAX).unwrap();
    assert!(!found.is_empty());
    (counts().0 - reads, counts().1 - hits)
}

#[test]
fn lookup_many_operands_takes_one_read() {
    let driver = filled_store(0);
    assert!(driver.store.metrics().splits > 0);
    let mut reads_of_all = 0;
    for key in 0..200 {
        let (reads, hits) = read(&driver, key);
        assert!(reads <= 1, "{reads} reads of key {key}");
        assert_eq!(reads + hits, 1);
        reads_of_all += reads;
    }
    assert!(reads_of_all > 150, "{reads_of_all}");
    // Lookups of absent keys read a file only if a filter returns a false positive.
    let before = driver.counts.reads.load(Ordering::Relaxed);
    for key in 0..200 {
        let key = format!("key{key:03}x");
        read_operands(&*driver.store.view(), key.as_bytes(), SeqNo::MAX).unwrap();
    }
    let reads = driver.counts.reads.load(Ordering::Relaxed) - before;
    assert!(reads < 20, "{reads} reads of absent keys");
}

#[test]
fn lookup_cached_key_reads_nothing_after_delivery_and_collection() {
    let mut driver = filled_store(1 << 20);
    // After the records of a key have been written to files, at most one lookup of the key reads its bucket.
    let mut reads_of = vec![0; 200];
    for round in 0..40 {
        driver.fill_buckets(round..round + 1);
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
    let mut driver = filled_store(0);
    driver.reopen().unwrap();
    assert_eq!(driver.counts.reads.load(Ordering::Relaxed), 0);
    let view = driver.store.view();
    let mut found = Vec::new();
    let refused = view.read_operands(b"key003", SeqNo::MAX, OperandReadTier::Memory, &mut found);
    assert!(matches!(refused, Err(Error::WouldBlock)));
    assert!(view.may_contain(b"key003"));
    assert_eq!(driver.counts.reads.load(Ordering::Relaxed), 0);
    read(&driver, 3);
    // An earlier lookup has loaded the index, the filter and the fingerprints.
    let (reads, _) = read(&driver, 3);
    assert!(reads <= 2, "{reads}");
}

#[test]
fn cursor_short_scan_reads_part_of_the_bucket_and_long_scan_reads_each_bucket_a_few_times() {
    let options = DeltaOptions::default().bucket_bytes(256 << 10).cache_bytes(0);
    let mut driver = Driver::new(options);
    let key = |number: u64| format!("key{number:05}").into_bytes();
    // Most records are in the sorted parts of their buckets.
    let write = |number| Write::Operand { key: key(number), bytes: 100 };
    for round in 0..45 {
        let writes: Vec<Write> = (0..300).map(|number| write(number * 45 + round)).collect();
        driver.flush(&writes);
        driver.collect(None).unwrap();
    }
    driver.check().unwrap();
    let reads = |scan: &dyn Fn(&mut dyn Cursor)| {
        let bytes_and_reads = || {
            let ReadCounts { reads, bytes, .. } = &*driver.counts;
            (bytes.load(Ordering::Relaxed), reads.load(Ordering::Relaxed))
        };
        let before = bytes_and_reads();
        scan(&mut *driver.store.view().cursor(SeqNo::MAX, OperandReadTier::Storage));
        let after = bytes_and_reads();
        (after.0 - before.0, after.1 - before.1)
    };
    let (all_bytes, all_reads) = reads(&|cursor| {
        cursor.first().unwrap();
        let mut count = 0;
        while cursor.valid() {
            count += 1;
            cursor.next().unwrap();
        }
        assert_eq!(count, 13_500);
    });
    let buckets = driver.store.metrics().buckets;
    assert!(all_reads <= 8 + 2 * buckets, "{all_reads} reads of {buckets} buckets");
    let bucket_bytes = all_bytes / buckets;
    for number in [0, 1, 6999, 13_480] {
        let (bytes, reads) = reads(&|cursor| {
            cursor.seek(&key(number), SeqNo::MAX).unwrap();
            for next in number..number + 10 {
                assert_eq!(cursor.key().user_key, key(next));
                cursor.next().unwrap();
            }
        });
        assert!(
            bytes < bucket_bytes / 2 && reads <= 4,
            "{reads} reads, {bytes} of {bucket_bytes} bytes"
        );
    }
}
