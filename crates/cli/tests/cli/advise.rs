//! Tests of `lsmx advise`.

use crate::common::{TestDir, assert_contains, cells, experiment, list, text};

/// Arguments of a short run.
const SMALL: &str = "advise --entries 15000 --memory-budget 256K --confirm 1 --seed 3";

#[test]
fn advise_best_design_can_be_explored() {
    let run = experiment(&format!("{SMALL} --lookups 500 --ranges 20 --presets"));
    let ranked = list(&run.result, "/ranked");
    for (at, design) in ranked.iter().enumerate() {
        for field in ["policy", "spec", "cost", "simulated", "measured", "reason", "pareto"] {
            assert!(design.get(field).is_some(), "{field} is missing in {design}");
        }
        assert_eq!(design["measured"].is_null(), at >= 1, "{design}");
    }
    let best = text(&ranked[0], "spec");
    let without_spaces = best.replace(' ', "");
    assert_contains(&run.table, &[&format!("lsmx explore --policy '{best}'")]);
    let explored = cells(&format!(
        "explore --policy {without_spaces} --entries 15000 --memtable {} --block-cache {} --lookups 500 \
         --ranges 20 --seed 3 --deterministic",
        ranked[0]["memtable_bytes"], ranked[0]["block_cache_bytes"],
    ));
    let space = &explored[0]["space_amplification"];
    assert_eq!(space, &ranked[0]["measured"]["costs"]["space"]);
    // Without deletes, the presets that prefer files with tombstones are equivalent to `lo+1`, so the result does not
    // list them.
    assert_eq!(list(&run.result, "/presets/cells").len(), 15);
    assert_eq!(run.csv.len(), ranked.len() + 1);
    assert_contains(
        &run.html,
        &["Ranking", "What the costs are made of", "The Pareto front", "Every preset"],
    );
}

/// Regression test: without a measured design, the advice had a cost of 0.000 × the cheapest preset.
#[test]
fn presets_without_a_measured_design_state_no_ratio() {
    let words = SMALL.replace("--confirm 1", "--confirm 0 --presets");
    let run = experiment(&format!("{words} --lookups 100 --ranges 5"));
    assert_eq!(run.result["presets"]["advice_to_best"], serde_json::Value::Null);
    assert_contains(&run.table, &["Every preset, measured on the engine.\n"]);
    assert!(!run.html.contains("The first design above costs"));
}

#[test]
fn workload_comes_from_a_phases_file_or_a_trace() {
    let dir = TestDir::new();
    let phases = "[[phase]]\nentries = 1000\nsettle = true\n[[phase]]\nlookups = 100\n";
    let phases = dir.write("phases.toml", phases);
    let line = |key: u32| format!("put\t{:08x}\tvalue\n", key.wrapping_mul(0x9e37_79b9));
    let trace = dir.write("trace.tsv", (0..5000).map(line).collect::<String>());
    for (flag, file) in [("--phases", &phases), ("--trace", &trace)] {
        let advice = experiment(&format!("{SMALL} {flag} {file}")).table;
        assert!(advice.starts_with("15000 writes of "), "{advice}");
    }
}
