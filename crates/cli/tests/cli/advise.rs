//! `lsmx advise`.

use std::fs;

use crate::common::{Said, assert_contains, read_json, run, text};

/// Small enough for a test, large enough for a tree.
fn advise(words: &str) -> Said {
    run("advise", &format!("--entries 15000 --memory-budget 256K --confirm 1 --seed 3 {words}"))
}

#[test]
fn the_answer_is_a_table_and_files_that_agree() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (json, csv, html) = (path("a.json"), path("a.csv"), path("a.html"));
    let said = advise(&format!(
        "--lookups 500 --ranges 20 --presets --json {} --csv {} --html {}",
        json.display(),
        csv.display(),
        html.display()
    ))
    .ok();
    let result = read_json(&json);
    let ranked = result["ranked"].as_array().unwrap();
    for (at, it) in ranked.iter().enumerate() {
        for field in ["policy", "spec", "cost", "simulated", "measured", "reason", "pareto"] {
            assert!(it.get(field).is_some(), "{field} is missing in {it}");
        }
        assert_eq!(it["measured"].is_null(), at >= 1, "{it}");
    }
    let best = text(&ranked[0], "spec");
    assert!(said.contains(&format!("lsmx explore --policy '{best}'")), "{said}");
    // The printed design can be explored, with the measured result.
    let again = path("again.json");
    run(
        "explore",
        &format!(
            "--policy {best} --entries 15000 --memtable {} --block-cache {} --lookups 500 --ranges 20 \
             --seed 3 --deterministic --json {}",
            ranked[0]["memtable_bytes"],
            ranked[0]["block_cache_bytes"],
            again.display()
        ),
    )
    .ok();
    let again = read_json(&again);
    let space = &again["cells"][0]["space_amplification"];
    assert_eq!(space, &ranked[0]["measured"]["costs"]["space"]);
    let presets = result["presets"]["cells"].as_array().unwrap();
    // Without deletes those that look at tombstones are `lo+1`.
    assert_eq!(presets.len(), 15, "{presets:?}");
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), ranked.len() + 1);
    assert_contains(
        &fs::read_to_string(&html).unwrap(),
        &["Ranking", "What the costs are made of", "The Pareto front", "Every preset"],
    );
}

#[test]
fn a_workload_comes_from_flags_a_file_or_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let phases = directory.path().join("phases.toml");
    fs::write(&phases, "[[phase]]\nentries = 1000\nsettle = true\n[[phase]]\nlookups = 100\n")
        .unwrap();
    let trace = directory.path().join("trace.tsv");
    let line = |key: u32| format!("put\t{:08x}\tvalue\n", key.wrapping_mul(0x9e37_79b9));
    fs::write(&trace, (0..5000).map(line).collect::<String>()).unwrap();
    for (flag, file) in [("--spec", &phases), ("--phases", &phases), ("--trace", &trace)] {
        let said = advise(&format!("{flag} {}", file.display())).ok();
        assert!(said.starts_with("15000 writes of "), "{said}");
    }
}
