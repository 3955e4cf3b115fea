//! Checks that the memtable bytes in the metrics match the growth of the process, and that concurrent batches stay
//! within the memory budget.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lsmx::{Db, Durability, KeyspaceOptions, MemtableKind, Options, WriteBatch};
use lsmx_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Writes entries in random order to one memtable. Returns the open database, the memtable bytes in the metrics, and
/// the growth of the resident memory in bytes.
fn fill(dir: &Path, kind: MemtableKind, entries: u64, value_bytes: usize) -> (Db, u64, u64) {
    let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 30).memtable_kind(kind);
    let options = Options::default().keyspace_defaults(keyspace).wal_bytes_max(1 << 30);
    let db = Db::open(dir, options).unwrap();
    let before = resident_bytes();
    for number in 0..entries {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        db.put(key, vec![7; value_bytes]).unwrap();
    }
    let grown = resident_bytes() - before;
    let metrics = db.metrics();
    let counted = metrics.keyspaces.values().map(|keyspace| keyspace.memtable_bytes).sum();
    (db, counted, grown)
}

/// Threads commit batches of half the memory budget at the same time. Besides the batches, the engine may allocate at
/// most 1.15 times the budget plus 32 MiB. Returns the largest number of allocated bytes.
fn check_batches_in_flight() -> usize {
    const WRITERS: usize = 16;
    const BUDGET: usize = 16 << 20;
    const BATCH_BYTES: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let options = Options::default().memory_budget(BUDGET as u64);
    let db = Db::open(dir.path().join("db"), options).unwrap();
    let keyspace = db.default_keyspace();
    let batches: Vec<_> = (0..WRITERS as u64)
        .map(|writer| {
            let mut batch = WriteBatch::new();
            while batch.encoded_bytes() < BATCH_BYTES {
                let key = [writer, batch.encoded_bytes()].map(u64::to_be_bytes).concat();
                batch.put(&keyspace, key, [7; 1 << 10]);
            }
            batch
        })
        .collect();
    let before = ALLOCATOR.live_bytes();
    let (start, written) = (Barrier::new(WRITERS), AtomicBool::new(false));
    let most = AtomicUsize::new(0);
    let write = &|batch| {
        start.wait();
        db.write(batch, Durability::Buffered).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !written.load(Ordering::Relaxed) {
                most.fetch_max(ALLOCATOR.live_bytes().saturating_sub(before), Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let writers: Vec<_> =
            batches.into_iter().map(|it| scope.spawn(move || write(it))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        written.store(true, Ordering::Relaxed);
    });
    let (most, bound) = (most.into_inner(), BUDGET * 115 / 100 + (32 << 20));
    assert!(most <= bound, "{most} bytes, the bound is {bound}");
    most
}

/// One test contains all checks, because no other test may allocate memory at the same time. The databases stay open,
/// because the allocator would reuse the memory that a close frees.
#[test]
fn memtable_counted_bytes_equal_growth_of_process() {
    lsmx_testkit::time_test();
    let mut open = Vec::new();
    for (kind, entries, value_bytes) in [
        (MemtableKind::BLinkTree, 120_000, 8),
        (MemtableKind::BLinkTree, 150_000, 100),
        (MemtableKind::BLinkTree, 20_000, 4 << 10),
        (MemtableKind::SkipList, 120_000, 8),
        (MemtableKind::SkipList, 150_000, 100),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (db, counted, grown) = fill(dir.path(), kind, entries, value_bytes);
        open.push((db, dir));
        let ratio = counted as f64 / grown as f64;
        println!(
            "{kind}, {entries} of 16 + {value_bytes} B: {counted} counted, {grown} grown, {ratio:.3}"
        );
        assert!(ratio > 0.93 && ratio < 1.4, "{counted} counted, {grown} grown: {ratio:.3}");
    }
    // This check frees memory, so it must be the last one.
    println!("{} bytes for batches in flight", check_batches_in_flight());
}
