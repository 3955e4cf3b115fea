//! Threads read committed views during deliveries and collections.

#![allow(clippy::disallowed_methods, reason = "a test of real threads")]

use crate::common::{Driver, Write, read_operands};
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use lsmx_delta::DeltaOptions;

/// Each delivery writes to every key, either two operands or a delete marker and an operand.
///
/// For each key, a reader must see all rounds from the last delete marker to the newest delivery in its view.
#[test]
fn concurrent_readers_see_complete_deliveries() {
    const KEYS: u64 = 40;
    let options = DeltaOptions::default()
        .bucket_bytes(2048)
        .buckets_max(40)
        .log_bytes_max(9000)
        .cache_bytes(20_000);
    let mut driver = Driver::new(options);
    let done = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let mut readers = Vec::new();
    for reader in 0..3 {
        let (store, done, reads) = (driver.store.clone(), done.clone(), reads.clone());
        readers.push(std::thread::spawn(move || {
            let mut rng = lsmx_testkit::TestRng::new(reader);
            while !done.load(Ordering::Acquire) {
                let view = store.view();
                let mut first_seen: Option<Vec<u64>> = None;
                for _ in 0..5 {
                    let key = format!("key{:02}", rng.below(KEYS));
                    let found = read_operands(&*view, key.as_bytes(), lsmx::SeqNo::MAX).unwrap();
                    let text = String::from_utf8(found).unwrap();
                    let seqs = text.split(',').map(|seq| seq.trim_matches('.'));
                    let rounds: Vec<u64> = seqs
                        .filter(|seq| !seq.is_empty())
                        .map(|seq| (seq.parse::<u64>().unwrap() - 1) / KEYS / 2)
                        .collect();
                    assert!(
                        rounds.windows(2).all(|two| two[0] + 1 == two[1] || two[0] == two[1]),
                        "{key}: {rounds:?}"
                    );
                    // Within one view, the newest operand of every key must be from the same round.
                    let last = first_seen.get_or_insert_with(|| rounds.clone()).last();
                    assert_eq!(rounds.last(), last, "{key}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for round in 0..150 {
        let mut writes: Vec<Write> = Vec::new();
        for number in 0..KEYS {
            let key = format!("key{number:02}").into_bytes();
            writes.push(match (round + number) % 6 {
                0 => Write::DeleteMarker { key: key.clone() },
                _ => Write::Operand { key: key.clone(), bytes: 12 },
            });
            writes.push(Write::Operand { key, bytes: 12 });
        }
        driver.flush(&writes);
        // The readers cannot read the tree, so a collection must move no operand to it.
        let tree = driver.model.tree.len();
        driver.collect(None).unwrap();
        assert_eq!(driver.model.tree.len(), tree);
    }
    done.store(true, Ordering::Release);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(reads.load(Ordering::Relaxed) > 100);
    driver.check().unwrap();
}
