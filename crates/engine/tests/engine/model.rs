//! Executes random operation histories on databases with random options, and compares the results with a model. A
//! failing history is shrunk to fewer operations.

use std::time::Duration;

use lsmx::env::Background;
use lsmx_testkit::world::{CaseCounts, History, Operation, Outcome, PRESETS, play};
use lsmx_testkit::{TestRng, case_seeds, scale, shrink_list};

/// Total number of operations in runs with inline background work.
const INLINE_OPERATIONS: usize = 500_000;
/// Total number of operations in runs with stepped background threads.
const STEPPED_OPERATIONS: usize = 100_000;
/// Mean number of operations of one history.
const HISTORY_OPERATIONS: usize = 1_500;

fn stepped(seed: u64) -> Background {
    Background::Stepped { seed, workers: 2 }
}

fn histories(
    test: &'static str,
    operations: usize,
    background: fn(u64) -> Background,
) -> CaseCounts {
    let mut reached = CaseCounts::default();
    for seed in case_seeds(&[], (operations / HISTORY_OPERATIONS) as u64) {
        let length = 1 + TestRng::new(!seed).below(2 * HISTORY_OPERATIONS);
        play(test, &History::random(seed, background(seed), length), &mut reached);
    }
    println!("{test}: {reached:?}");
    reached
}

#[test]
fn inline_histories_equal_the_model() {
    let reached =
        histories("inline_histories_equal_the_model", INLINE_OPERATIONS, |_| Background::Inline);
    if scale() < 1.0 {
        return;
    }
    // The random histories must contain each kind of operation and event more often than these minimum counts.
    assert!(reached.guards_held > 1_000 && reached.guards_refused > 1_000, "{reached:?}");
    assert!(reached.transactions > 500 && reached.locking_transactions > 200, "{reached:?}");
    assert!(reached.measured_operations > 1_000, "{reached:?}");
    assert!(reached.restarts > 500 && reached.kills > 100, "{reached:?}");
    assert!(reached.power_losses > 30, "{reached:?}");
    assert!(reached.flushes > 5_000 && reached.merges > 1_000, "{reached:?}");
    assert!(reached.cursor_moves > 10_000 && reached.refused_cursor_moves > 100, "{reached:?}");
    assert!(reached.refused_gets > 100, "{reached:?}");
    assert!(reached.moves > 100 && reached.direction_changes > 5_000, "{reached:?}");
    assert!(reached.range_deleted > 5_000 && reached.drops > 100, "{reached:?}");
    assert!(reached.operands > 20_000 && reached.updates > 2_000, "{reached:?}");
    assert!(reached.folded_by_reads > 20_000 && reached.folded_by_jobs > 5_000, "{reached:?}");
    assert!(reached.blob_rewrites > 500 && reached.write_backs > 500, "{reached:?}");
    assert!(reached.filtered > 1_000, "{reached:?}");
    assert!(reached.expired_values > 700 && reached.expired_dropped > 300, "{reached:?}");
    assert!(reached.puts_with_ttl > 1_000, "{reached:?}");
    assert!(
        reached.restarts_without_operators > 50 && reached.reads_without_operator > 50,
        "{reached:?}"
    );
    assert!(reached.dropped_keyspaces > 100 && reached.renamed_keyspaces > 20, "{reached:?}");
    assert!(reached.cloned_keyspaces > 20, "{reached:?}");
    assert!(reached.compared_copies > 500, "{reached:?}");
    let between = reached.policy_changes.iter().map(|after| after.count_ones()).sum::<u32>();
    // The pairs are random, so a few may be missing in a run.
    assert!(between as usize + 3 >= PRESETS * PRESETS, "pairs of presets are missing: {reached:?}");
    assert!(reached.operands_in_stores > 1_000 && reached.delete_markers > 100, "{reached:?}");
    assert!(reached.keys_to_tree > 100 && reached.stores_removed > 50, "{reached:?}");
    assert!(reached.snapshot_reads > 1_000 && reached.iterators_over_closes > 100, "{reached:?}");
}

#[test]
fn stepped_histories_equal_the_model() {
    let reached = histories("stepped_histories_equal_the_model", STEPPED_OPERATIONS, stepped);
    assert!(scale() < 1.0 || (reached.flushes > 500 && reached.merges > 100), "{reached:?}");
    assert!(scale() < 1.0 || reached.metrics_files > 50, "{reached:?}");
}

/// Executes six random operation histories, each twice. Returns the two outcomes of each history.
fn twice(test: &'static str, background: fn(u64) -> Background) -> Vec<(Outcome, Outcome)> {
    let seeds = case_seeds(&[], 6);
    let outcome = |seed| {
        let mut history = History::random(seed, background(seed), 2_000);
        // Two runs of a history may evict different blocks from a small cache. The reason is not known.
        let restarts = history.operations.iter_mut().filter_map(|operation| match operation {
            Operation::Restart(_, settings) => Some(settings),
            _ => None,
        });
        let first_and_last = [&mut history.first_settings, &mut history.last_settings];
        restarts.chain(first_and_last).for_each(|settings| settings.cache_bytes = 8 << 20);
        play(test, &history, &mut CaseCounts::default())
    };
    seeds.map(|seed| (outcome(seed), outcome(seed))).collect()
}

#[test]
fn inline_history_repeated_is_identical() {
    for (one, other) in twice("inline_history_repeated_is_identical", |_| Background::Inline) {
        assert_eq!(one.events, other.events);
        assert_eq!(one.metrics, other.metrics);
        assert_eq!(one.files, other.files);
    }
}

#[test]
fn stepped_history_repeated_is_identical() {
    for (one, other) in twice("stepped_history_repeated_is_identical", stepped) {
        assert_eq!(one.traces, other.traces);
        assert!(one.traces.iter().all(|&trace| trace != 0));
        assert_eq!(one.events, other.events);
        assert_eq!(one.files, other.files);
    }
}

#[test]
fn shrink_removes_operations_that_do_not_cause_the_failure() {
    let list: Vec<u32> = (0..1_000).collect();
    let fails = |list: &[u32]| [17, 512, 999].iter().all(|wanted| list.contains(wanted));
    assert_eq!(shrink_list(&list, Duration::from_secs(5), fails), [17, 512, 999]);
}
