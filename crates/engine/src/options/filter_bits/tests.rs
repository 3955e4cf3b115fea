use std::sync::Arc;

use lsmx_compaction::{
    JobInput, JobKind, JobReason, KeyRange, LevelShape, OutputTarget, RunId, SortedRun, SplitRule,
    TableMeta,
};
use proptest::prelude::*;

use crate::options::filter_bits::*;

/// Returns the bits of all filters, and the sum of their false positive rates.
fn cost(keys: &[u64], widths: &[FilterWidth]) -> (u64, f64) {
    let bits = keys.iter().zip(widths).map(|(keys, width)| keys * u64::from(width.bits_per_key()));
    (bits.sum(), widths.iter().map(|width| width.false_positive_rate()).sum())
}

/// Returns the minimum sum of false positive rates of all allocations within the bits.
fn min_false_positives(keys: &[u64], bits_per_key: f64) -> f64 {
    let all = keys.iter().sum::<u64>() as f64;
    let choices = (0..1_u32 << keys.len()).map(|choice| {
        let width = |at: usize| if choice >> at & 1 == 1 { WIDE } else { NARROW };
        cost(keys, &(0..keys.len()).map(width).collect::<Vec<_>>())
    });
    let allowed = choices.filter(|(bits, _)| *bits as f64 <= bits_per_key * all);
    allowed.map(|(_, rate)| rate).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn allocate_widths_any_keys_minimizes_false_positives(
        keys in prop::collection::vec(0_u64..1_000_000, 0..9),
        tenths in 90_u32..=180,
    ) {
        let bits_per_key = f64::from(tenths) / 10.0;
        let widths = allocate_filter_widths(&keys, bits_per_key);
        prop_assert_eq!(widths.len(), keys.len());
        let (bits, rate) = cost(&keys, &widths);
        let all = keys.iter().sum::<u64>() as f64;
        prop_assert!(bits as f64 <= bits_per_key * all + 1e-6);
        if !keys.is_empty() {
            prop_assert!((rate - min_false_positives(&keys, bits_per_key)).abs() < 1e-12);
        }
        // More bits never make a filter narrower.
        let more = allocate_filter_widths(&keys, (bits_per_key + 1.0).min(18.0));
        prop_assert!(widths.iter().zip(&more).all(|(now, then)| now <= then));
    }
}

#[test]
fn allocate_widths_small_runs_get_wide_filters() {
    let keys = [10, 1_000, 100, 10_000];
    assert_eq!(allocate_filter_widths(&keys, 9.0), [NARROW; 4]);
    assert_eq!(allocate_filter_widths(&keys, 10.0), [WIDE, WIDE, WIDE, NARROW]);
    assert_eq!(allocate_filter_widths(&keys, 9.1), [WIDE, NARROW, WIDE, NARROW]);
    assert_eq!(allocate_filter_widths(&keys, 18.0), [WIDE; 4]);
    assert_eq!(allocate_filter_widths(&[5, 5, 5], 12.0), [WIDE, NARROW, NARROW]);
    assert!(allocate_filter_widths(&[], 10.0).is_empty());
}

/// Returns a tree whose levels have runs of files with the given numbers of entries. Files and runs are numbered from 1.
fn tree(levels: &[&[&[u64]]]) -> TreeShape {
    let (mut file_id, mut run_id) = (0, 0);
    let mut file = |entries: &u64| {
        file_id += 1;
        let key = |at: u64| vec![u8::try_from(at).unwrap()].into();
        let range = KeyRange { smallest: key(2 * file_id), largest: key(2 * file_id + 1) };
        Arc::new(TableMeta { entries: *entries, ..TableMeta::new(FileId(file_id), range) })
    };
    let mut run = |files: &&[u64]| {
        run_id += 1;
        let files = files.iter().map(&mut file).collect();
        Arc::new(SortedRun { id: RunId(run_id), files })
    };
    let level = |runs: &&[&[u64]]| {
        Arc::new(LevelShape { runs: runs.iter().map(&mut run).collect(), cursor: None })
    };
    TreeShape { levels: levels.iter().map(level).collect(), ..TreeShape::default() }
}

fn job(inputs: &[(u8, u64, &[u64])], level: u8, placement: OutputPlacement) -> Job {
    let input = |(level, run, files): &(u8, u64, &[u64])| JobInput {
        level: Level(*level),
        run: RunId(*run),
        files: files.iter().copied().map(FileId).collect(),
    };
    Job {
        kind: JobKind::Merge,
        inputs: inputs.iter().map(input).collect(),
        target: OutputTarget { level: Level(level), placement },
        split: SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() },
        reason: JobReason::Manual,
    }
}

#[test]
fn count_run_keys_incoming_data_is_in_target_run() {
    // L0: runs 1 (file 1) and 2 (file 2); L1: run 3 (files 3, 4); L2: run 4 (files 5 to 7).
    let tree = tree(&[&[&[10], &[20]], &[&[100, 200]], &[&[1_000, 2_000, 3_000]]]);
    let keys = |incoming: IncomingRun<'_>| {
        let (runs, target) = incoming.count_run_keys(&tree, |_| false);
        (runs.iter().map(|run| run.keys).collect::<Vec<_>>(), target)
    };
    let runs = |job: &Job| keys(IncomingRun::Job(job));
    assert_eq!(keys(IncomingRun::Flush { entries: 7 }), (vec![7, 10, 20, 300, 6_000], 0));
    // Both runs of L0 are merged into the run of L1.
    let joins = OutputPlacement::JoinRun(RunId(3));
    assert_eq!(runs(&job(&[(0, 1, &[1]), (0, 2, &[2])], 1, joins)), (vec![330, 6_000], 0));
    // One file of L1 is merged with one file of L2.
    let joins = OutputPlacement::JoinRun(RunId(4));
    let down = job(&[(1, 3, &[4]), (2, 4, &[6])], 2, joins);
    assert_eq!(runs(&down), (vec![10, 20, 100, 6_200], 3));
    // Both runs of L0 become a new run of L1, before and after the existing one.
    let inputs: [(u8, u64, &[u64]); 2] = [(0, 1, &[1]), (0, 2, &[2])];
    let before = OutputPlacement::NewRun { before: Some(RunId(3)) };
    assert_eq!(runs(&job(&inputs, 1, before)), (vec![30, 300, 6_000], 0));
    let last = OutputPlacement::NewRun { before: None };
    assert_eq!(runs(&job(&inputs, 1, last)), (vec![300, 30, 6_000], 1));
    // All runs become one run, in the last level and below it.
    let all: [(u8, u64, &[u64]); 4] =
        [(0, 1, &[1]), (0, 2, &[2]), (1, 3, &[3, 4]), (2, 4, &[5, 6, 7])];
    for level in [2, 5] {
        assert_eq!(runs(&job(&all, level, last)), (vec![6_330], 0));
    }
}

#[test]
fn width_last_filter_unused_gets_no_bits() {
    let tree = tree(&[&[&[10]], &[&[1_000]], &[&[10_000]]]);
    let monkey = FilterBits::Monkey { bits_per_key: 10.0 };
    let flush = IncomingRun::Flush { entries: 10 };
    let none = |_| false;
    assert_eq!(monkey.width(&tree, &flush, false, none), WIDE);
    let joins = OutputPlacement::JoinRun(RunId(2));
    let down = job(&[(0, 1, &[1])], 1, joins);
    // The target run has a tenth of all keys, and nearly all keys of the filters in use.
    assert_eq!(monkey.width(&tree, &IncomingRun::Job(&down), true, none), WIDE);
    assert_eq!(monkey.width(&tree, &IncomingRun::Job(&down), false, none), NARROW);
    let joins = OutputPlacement::JoinRun(RunId(3));
    let last = job(&[(1, 2, &[2])], 2, joins);
    assert_eq!(monkey.width(&tree, &IncomingRun::Job(&last), false, none), NARROW);
    assert_eq!(FilterBits::Fuse16.width(&tree, &IncomingRun::Job(&last), false, none), WIDE);
    assert_eq!(FilterBits::Fuse8.width(&tree, &flush, true, none), NARROW);
}

#[test]
fn filter_bits_text_round_trips_and_invalid_text_fails() {
    for text in ["8", "16", "monkey(10)", "monkey(9.5)"] {
        assert_eq!(text.parse::<FilterBits>().unwrap().to_string(), text);
    }
    for invalid in
        ["", "9", "monkey", "monkey()", "monkey(x)", "monkey(8)", "monkey(19)", "monkey(nan)"]
    {
        assert!(invalid.parse::<FilterBits>().is_err(), "{invalid}");
    }
    assert!(FilterBits::Monkey { bits_per_key: f64::INFINITY }.check().is_err());
}

/// Each flush of a series qualifies for a wide filter, and earlier runs keep theirs.
#[test]
fn width_earlier_wide_filters_reduce_bits_of_later_runs() {
    for bits_per_key in [9.0, 10.0, 11.5, 13.0, 15.0, 17.9] {
        let monkey = FilterBits::Monkey { bits_per_key };
        let mut wide: Vec<FileId> = Vec::new();
        for count in 1..40_u64 {
            let runs: Vec<Vec<u64>> = (1..count).map(|_| vec![100]).collect();
            let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            // The newest run is file 1, so file numbers of the tree grow with age.
            let tree = tree(&[&runs, &[&[100_000]]]);
            let age = |id: FileId| count - id.0;
            let flush = IncomingRun::Flush { entries: 100 };
            let is_wide = |id: FileId| wide.contains(&FileId(age(id)));
            if monkey.width(&tree, &flush, false, is_wide) == WIDE {
                wide.push(FileId(count));
            }
            let bits = 9 * count + 9 * wide.len() as u64;
            assert!(bits as f64 <= bits_per_key * count as f64, "{bits} of {count} runs");
        }
        let expected_wide = ((bits_per_key - 9.0) / 9.0 * 39.0).floor();
        assert!(
            wide.len() as f64 >= expected_wide - 1.0,
            "{} wide, expected {expected_wide}",
            wide.len()
        );
    }
}
