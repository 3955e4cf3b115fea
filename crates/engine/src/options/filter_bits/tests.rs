use std::sync::Arc;

use lsmx_compaction::{
    JobInput, JobKind, KeyRange, LevelShape, Reason, RunId, SortedRun, SplitRule, TableMeta, Target,
};
use proptest::prelude::*;

use crate::options::filter_bits::*;

/// Bits of all filters, and the sum of their false answers.
fn cost(keys: &[u64], widths: &[FilterWidth]) -> (u64, f64) {
    let bits = keys.iter().zip(widths).map(|(keys, width)| keys * u64::from(width.bits_per_key()));
    (bits.sum(), widths.iter().map(|width| width.false_positive_rate()).sum())
}

/// The smallest sum of false answers of any choice that keeps the bits.
fn least(keys: &[u64], bits_per_key: f64) -> f64 {
    let all = keys.iter().sum::<u64>() as f64;
    let choices = (0..1_u32 << keys.len()).map(|choice| {
        let width = |at: usize| if choice >> at & 1 == 1 { WIDE } else { NARROW };
        cost(keys, &(0..keys.len()).map(width).collect::<Vec<_>>())
    });
    let kept = choices.filter(|(bits, _)| *bits as f64 <= bits_per_key * all);
    kept.map(|(_, false_answers)| false_answers).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn no_choice_within_the_bits_has_fewer_false_answers(
        keys in prop::collection::vec(0_u64..1_000_000, 0..9),
        tenths in 90_u32..=180,
    ) {
        let bits_per_key = f64::from(tenths) / 10.0;
        let widths = allocate(&keys, bits_per_key);
        prop_assert_eq!(widths.len(), keys.len());
        let (bits, false_answers) = cost(&keys, &widths);
        let all = keys.iter().sum::<u64>() as f64;
        prop_assert!(bits as f64 <= bits_per_key * all + 1e-6);
        if !keys.is_empty() {
            prop_assert!((false_answers - least(&keys, bits_per_key)).abs() < 1e-12);
        }
        // More bits never make a filter narrower.
        let more = allocate(&keys, (bits_per_key + 1.0).min(18.0));
        prop_assert!(widths.iter().zip(&more).all(|(now, then)| now <= then));
    }
}

#[test]
fn small_runs_get_the_wide_filters() {
    let keys = [10, 1_000, 100, 10_000];
    assert_eq!(allocate(&keys, 9.0), [NARROW; 4]);
    assert_eq!(allocate(&keys, 10.0), [WIDE, WIDE, WIDE, NARROW]);
    assert_eq!(allocate(&keys, 9.1), [WIDE, NARROW, WIDE, NARROW]);
    assert_eq!(allocate(&keys, 18.0), [WIDE; 4]);
    assert_eq!(allocate(&[5, 5, 5], 12.0), [WIDE, NARROW, NARROW]);
    assert!(allocate(&[], 10.0).is_empty());
}

/// A tree of runs with files of so many entries, by level; files and runs are numbered from 1 on.
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

fn job(inputs: &[(u8, u64, &[u64])], level: u8, placement: Placement) -> Job {
    let input = |(level, run, files): &(u8, u64, &[u64])| JobInput {
        level: Level(*level),
        run: RunId(*run),
        files: files.iter().copied().map(FileId).collect(),
    };
    Job {
        kind: JobKind::Merge,
        inputs: inputs.iter().map(input).collect(),
        target: Target { level: Level(level), placement },
        split: SplitRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() },
        reason: Reason::Manual,
    }
}

#[test]
fn what_is_to_come_is_counted_where_it_will_be() {
    // L0: runs 1 (file 1) and 2 (file 2); L1: run 3 (files 3, 4); L2: run 4 (files 5 to 7).
    let tree = tree(&[&[&[10], &[20]], &[&[100, 200]], &[&[1_000, 2_000, 3_000]]]);
    let keys = |coming: Coming<'_>| {
        let (runs, at) = coming.runs(&tree, |_| false);
        (runs.iter().map(|run| run.keys).collect::<Vec<_>>(), at)
    };
    let runs = |job: &Job| keys(Coming::Job(job));
    assert_eq!(keys(Coming::Flush { entries: 7 }), (vec![7, 10, 20, 300, 6_000], 0));
    // Both runs of L0 into that of L1.
    let joins = Placement::JoinRun(RunId(3));
    assert_eq!(runs(&job(&[(0, 1, &[1]), (0, 2, &[2])], 1, joins)), (vec![330, 6_000], 0));
    // A file of L1 into L2, with a neighbour there.
    let joins = Placement::JoinRun(RunId(4));
    let down = job(&[(1, 3, &[4]), (2, 4, &[6])], 2, joins);
    assert_eq!(runs(&down), (vec![10, 20, 100, 6_200], 3));
    // Both runs of L0 as a new one of L1, before the one there and behind it.
    let inputs: [(u8, u64, &[u64]); 2] = [(0, 1, &[1]), (0, 2, &[2])];
    let before = Placement::NewRun { before: Some(RunId(3)) };
    assert_eq!(runs(&job(&inputs, 1, before)), (vec![30, 300, 6_000], 0));
    let last = Placement::NewRun { before: None };
    assert_eq!(runs(&job(&inputs, 1, last)), (vec![300, 30, 6_000], 1));
    // Everything into one run, below all levels and in the last one.
    let all: [(u8, u64, &[u64]); 4] =
        [(0, 1, &[1]), (0, 2, &[2]), (1, 3, &[3, 4]), (2, 4, &[5, 6, 7])];
    for level in [2, 5] {
        assert_eq!(runs(&job(&all, level, last)), (vec![6_330], 0));
    }
}

#[test]
fn a_last_run_that_is_not_asked_takes_no_bits_and_none_from_others() {
    let tree = tree(&[&[&[10]], &[&[1_000]], &[&[10_000]]]);
    let monkey = FilterBits::Monkey { bits_per_key: 10.0 };
    let flush = Coming::Flush { entries: 10 };
    let none = |_| false;
    assert_eq!(monkey.width(&tree, &flush, false, none), WIDE);
    let joins = Placement::JoinRun(RunId(2));
    let down = job(&[(0, 1, &[1])], 1, joins);
    // A tenth of all keys, and nearly all of those of the filters that are asked.
    assert_eq!(monkey.width(&tree, &Coming::Job(&down), true, none), WIDE);
    assert_eq!(monkey.width(&tree, &Coming::Job(&down), false, none), NARROW);
    let joins = Placement::JoinRun(RunId(3));
    let last = job(&[(1, 2, &[2])], 2, joins);
    assert_eq!(monkey.width(&tree, &Coming::Job(&last), false, none), NARROW);
    assert_eq!(FilterBits::Fuse16.width(&tree, &Coming::Job(&last), false, none), WIDE);
    assert_eq!(FilterBits::Fuse8.width(&tree, &flush, true, none), NARROW);
}

#[test]
fn options_are_read_as_they_are_printed() {
    for text in ["8", "16", "monkey(10)", "monkey(9.5)"] {
        assert_eq!(text.parse::<FilterBits>().unwrap().to_string(), text);
    }
    for wrong in
        ["", "9", "monkey", "monkey()", "monkey(x)", "monkey(8)", "monkey(19)", "monkey(nan)"]
    {
        assert!(wrong.parse::<FilterBits>().is_err(), "{wrong}");
    }
    assert!(FilterBits::Monkey { bits_per_key: f64::INFINITY }.check().is_err());
}

/// Flushes of one size, each in its turn: the newest is due a wide filter again and again, and those before
/// keep theirs.
#[test]
fn runs_that_were_given_bits_before_leave_fewer_to_others() {
    for bits_per_key in [9.0, 10.0, 11.5, 13.0, 15.0, 17.9] {
        let monkey = FilterBits::Monkey { bits_per_key };
        let mut wide: Vec<FileId> = Vec::new();
        for count in 1..40_u64 {
            let runs: Vec<Vec<u64>> = (1..count).map(|_| vec![100]).collect();
            let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            // The newest run comes first, and is file 1; here numbers grow with age.
            let tree = tree(&[&runs, &[&[100_000]]]);
            let age = |id: FileId| count - id.0;
            let flush = Coming::Flush { entries: 100 };
            let is_wide = |id: FileId| wide.contains(&FileId(age(id)));
            if monkey.width(&tree, &flush, false, is_wide) == WIDE {
                wide.push(FileId(count));
            }
            let bits = 9 * count + 9 * wide.len() as u64;
            assert!(bits as f64 <= bits_per_key * count as f64, "{bits} of {count} runs");
        }
        let due = ((bits_per_key - 9.0) / 9.0 * 39.0).floor();
        assert!(wide.len() as f64 >= due - 1.0, "{} wide, {due} due", wide.len());
    }
}
