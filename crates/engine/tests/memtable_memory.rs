//! What a memtable says that it takes is what the process has grown by.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use lsmx::{Db, KeyspaceOptions, Options};

/// Bytes of memory that the process has in use.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Puts entries in random order into a memtable; returns bytes that it counts, and that came. The
/// database stays.
fn fill(dir: &Path, entries: u64, value_bytes: usize) -> (Db, u64, u64) {
    let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 30);
    let options = Options::default().keyspace_defaults(keyspace).wal_bytes_max(1 << 30);
    let db = Db::open(dir, options).unwrap();
    let before = resident();
    for number in 0..entries {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        db.put(key, vec![7; value_bytes]).unwrap();
    }
    let grown = resident() - before;
    let metrics = db.metrics();
    let counted = metrics.keyspaces.values().map(|keyspace| keyspace.memtable_bytes).sum();
    (db, counted, grown)
}

/// One test, for no other may take memory meanwhile; and nothing is freed, for the allocator would
/// give it out again.
#[test]
fn what_is_counted_is_what_it_takes() {
    let mut open = Vec::new();
    for (entries, value_bytes) in [(120_000, 8), (150_000, 100), (20_000, 4 << 10)] {
        let dir = tempfile::tempdir().unwrap();
        let (db, counted, grown) = fill(dir.path(), entries, value_bytes);
        open.push((db, dir));
        let ratio = counted as f64 / grown as f64;
        println!("{entries} of 16 + {value_bytes} B: {counted} counted, {grown} grown, {ratio:.3}");
        assert!(ratio > 0.93 && ratio < 1.4, "{counted} counted, {grown} grown: {ratio:.3}");
    }
}
