//! Searching one data block of 4 KiB.

use std::hint::black_box;

use criterion::Criterion;
use lsmx::benching::Block;

use crate::data::{sorted_keys, value};

/// As many as fill a block.
const ENTRIES: u64 = 34;

pub(crate) fn search(criterion: &mut Criterion) {
    // Half of the keys are in the block, the others lie between them.
    let keys = sorted_keys(2 * ENTRIES);
    let value = value();
    let present = || keys.iter().step_by(2);
    let absent = || keys.iter().skip(1).step_by(2);
    let mut group = criterion.benchmark_group("block search, 34 entries");
    for restart_interval in [1, 8, 16] {
        let entries = present().map(|key| (key.as_slice(), value.as_slice()));
        let block = Block::new(restart_interval, entries).unwrap();
        assert!(present().all(|key| block.contains(key).unwrap()));
        let mut searched = present().cycle();
        group.bench_function(format!("present, restart interval {restart_interval}"), |bencher| {
            bencher.iter(|| block.contains(black_box(searched.next().unwrap())));
        });
        let mut searched = absent().cycle();
        group.bench_function(format!("absent, restart interval {restart_interval}"), |bencher| {
            bencher.iter(|| block.contains(black_box(searched.next().unwrap())));
        });
    }
    group.finish();
}
