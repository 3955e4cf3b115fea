//! Searches in data blocks of 4 KiB: in one block that is in the processor's caches, and in more blocks than these
//! caches can hold.

use std::hint::black_box;

use criterion::Criterion;
use lsmx::benching::BenchBlock;

use crate::data::{random_value, sorted_keys};

const ENTRIES: usize = 34;
/// Number of data blocks in the benchmark. The blocks exceed the processor's caches.
const BLOCKS: usize = 50_000;
/// Block formats: restart interval, and whether the block has tags.
const FORMS: [(u32, bool); 6] =
    [(1, false), (4, false), (16, false), (4, true), (8, true), (16, true)];

fn bench_name((restart_interval, tagged): (u32, bool)) -> String {
    format!("restart interval {restart_interval}{}", if tagged { ", tags" } else { "" })
}

fn build_block<'a>(
    form: (u32, bool),
    keys: impl Iterator<Item = &'a Vec<u8>>,
    value: &'a [u8],
) -> BenchBlock {
    BenchBlock::new(form.0, form.1, keys.map(|key| (key.as_slice(), value))).unwrap()
}

pub(crate) fn bench_search(criterion: &mut Criterion) {
    // Every second key is in the block. The other keys are absent.
    let keys = sorted_keys(2 * ENTRIES as u64);
    let value = random_value();
    let present = || keys.iter().step_by(2);
    let absent = || keys.iter().skip(1).step_by(2);
    let mut group = criterion.benchmark_group(format!("block search, {ENTRIES} entries"));
    for form in FORMS {
        let block = build_block(form, present(), &value);
        assert!(present().all(|key| block.contains(key).unwrap()));
        let mut searched = present().cycle();
        group.bench_function(format!("present, {}", bench_name(form)), |bencher| {
            bencher.iter(|| block.contains(black_box(searched.next().unwrap())));
        });
        let mut searched = absent().cycle();
        group.bench_function(format!("absent, {}", bench_name(form)), |bencher| {
            bencher.iter(|| block.contains(black_box(searched.next().unwrap())));
        });
    }
    group.finish();
}

/// Searches blocks that are not in the processor's caches. The time depends on the number of cache lines that a search
/// reads.
pub(crate) fn bench_far_search(criterion: &mut Criterion) {
    let keys = sorted_keys((BLOCKS * ENTRIES) as u64);
    let value = random_value();
    let mut group = criterion.benchmark_group(format!("block search, one of {BLOCKS} blocks"));
    for form in FORMS {
        let blocks: Vec<BenchBlock> =
            keys.chunks(ENTRIES).map(|keys| build_block(form, keys.iter(), &value)).collect();
        // The step 1,000,003 is coprime to the number of keys. Therefore all keys are searched, and consecutive
        // searches access distant blocks.
        let mut at = 0;
        group.bench_function(bench_name(form), |bencher| {
            bencher.iter(|| {
                at = (at + 1_000_003) % keys.len();
                assert!(blocks[at / ENTRIES].contains(black_box(&keys[at])).unwrap());
            });
        });
    }
    group.finish();
}
