//! Tests of the complete search with small trees.

#![allow(clippy::disallowed_methods, reason = "the test writes a trace file, not a database")]

use super::*;
use crate::experiment::NoProgress;
use crate::workload::phases::WorkloadMix;

fn mix(entries: u64, updates: f64, lookups: u64, ranges: u64) -> Vec<Phase> {
    let (empty_lookups, selectivities) = (vec![0.0], vec![1e-3]);
    let mix = WorkloadMix {
        entries,
        updates,
        lookups,
        empty_lookups,
        ranges,
        selectivities,
        ..WorkloadMix::default()
    };
    mix.phases().unwrap()
}

fn config(workload: PlannedWorkload, directory: &std::path::Path) -> Config {
    Config {
        workload,
        entries: None,
        memory_bytes: Some(256 << 10),
        weights: None,
        confirm: 2,
        presets: false,
        seed: 1,
        directory: directory.to_owned(),
        command: "test".to_owned(),
        spec: None,
    }
}

fn generated(phases: Vec<Phase>) -> PlannedWorkload {
    PlannedWorkload::Phases { phases, key_bytes: 16, value_bytes: 112 }
}

#[test]
fn advice_has_measured_costs() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(generated(mix(20_000, 0.0, 500, 50)), directory.path());
    let advice = config.run(&mut NoProgress).unwrap();
    assert_eq!(advice.ranked.iter().filter(|it| it.measured.is_some()).count(), 2);
    assert_eq!(advice.cells.len(), 2);
    for (ranked, cell) in advice.ranked.iter().zip(&advice.cells) {
        let measured = ranked.measured.unwrap();
        assert_eq!(cell.spec, ranked.spec);
        // The workload is measured at full size, so the corrected cost equals the measured cost.
        assert_eq!(measured.entries, 20_000);
        assert_eq!(measured.costs, DesignCosts::from_cell(cell, 20_000));
        assert!((measured.cost - ranked.cost).abs() < 1e-9, "{ranked:?}");
        assert!(ranked.spec.parse::<lsmx_compaction::PolicySpec>().is_ok(), "{}", ranked.spec);
        assert_eq!(2 * ranked.memtable_bytes + ranked.block_cache_bytes, 256 << 10);
    }
    let costs: Vec<f64> = advice.ranked.iter().take(2).map(|it| it.cost).collect();
    assert!(costs[0] <= costs[1], "{costs:?}");
    assert!(advice.ranked.iter().any(|it| it.pareto));
    assert!(advice.searched.simulations >= advice.searched.designs);
}

#[test]
fn weights_change_the_best_design() {
    let directory = tempfile::tempdir().unwrap();
    let best = |weights: &str| {
        let config = Config {
            weights: Some(weights.parse().unwrap()),
            confirm: 0,
            ..config(generated(mix(20_000, 0.3, 500, 50)), directory.path())
        };
        config.run(&mut NoProgress).unwrap().ranked.remove(0)
    };
    let (writes, ranges) = (best("writes=1"), best("ranges=1"));
    assert!(writes.costs.writes < ranges.costs.writes / 2.0, "{writes:?} {ranges:?}");
    assert!(ranges.costs.ranges < writes.costs.ranges, "{writes:?} {ranges:?}");
    assert!(writes.reason.contains("100 % of its cost is writes"), "{}", writes.reason);
    assert!(writes.measured.is_none() && writes.pareto);
}

#[test]
fn advice_for_large_plan_is_measured_with_less_data() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        entries: Some(4_000_000),
        memory_bytes: Some(64 << 20),
        confirm: 1,
        ..config(generated(mix(10_000, 0.0, 100, 0)), directory.path())
    };
    let problem = config.search_problem().unwrap();
    assert_eq!(count_writes(&problem.phases), 4_000_000);
    let confirming = config.confirmation_run(&problem);
    assert!(
        count_puts(&confirming.phases) * 128 <= CONFIRM_BYTES_MAX + 128,
        "{:?}",
        confirming.phases
    );
    assert!(confirming.factor < 0.3);
}

#[test]
fn advice_for_trace_replays_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.tsv");
    let mut text = String::new();
    for key in 0..3000_u32 {
        text.push_str(&format!(
            "put\t{:08x}\t{}\n",
            key.wrapping_mul(0x9e37_79b9),
            "v".repeat(100)
        ));
        if key % 3 == 0 {
            text.push_str(&format!("get\t{:08x}\n", (key / 2).wrapping_mul(0x9e37_79b9)));
        }
    }
    std::fs::write(&path, text).unwrap();
    let trace = Arc::new(TraceFile::open(&path).unwrap());
    let config = Config { confirm: 1, ..config(PlannedWorkload::Trace(trace), directory.path()) };
    let advice = config.run(&mut NoProgress).unwrap();
    assert_eq!(advice.asked.entries, 3000);
    assert_eq!((advice.asked.key_len, advice.asked.value_len), (8, 100));
    let measured = advice.ranked[0].measured.unwrap();
    assert_eq!(measured.entries, 3000);
    assert!(advice.cells[0].point_lookups[0].ops == 1000, "{:?}", advice.cells[0].point_lookups);
}

#[test]
fn invalid_parameters_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = config(generated(mix(1000, 0.0, 0, 0)), directory.path());
        change(&mut config);
        config.run(&mut NoProgress).unwrap_err().to_string()
    };
    let error = refused(&|config| config.memory_bytes = Some(1000));
    assert!(error.starts_with("--memory-budget is 1000, must be at least 131072"), "{error}");
    let error = refused(&|config| config.entries = Some(0));
    assert!(error.starts_with("--entries is 0"), "{error}");
    let error = refused(&|config| config.weights = Some("ranges=1".parse().unwrap()));
    assert!(error.contains("no such lookups"), "{error}");
}
