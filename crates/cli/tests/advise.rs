//! `lsmx advise` as a user meets it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test, with files of its own")]

mod common;

use std::fs;

use common::lsmx;
use serde_json::Value;

/// Small enough for a test, large enough for a tree.
const SMALL: [&str; 9] =
    ["advise", "--entries", "15000", "--memory", "256K", "--confirm", "1", "--seed", "3"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut words = SMALL.to_vec();
    words.extend(more);
    words
}

#[test]
fn the_answer_is_a_table_and_files_that_agree() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (json, csv, html) = (path("a.json"), path("a.csv"), path("a.html"));
    let flags = ["--lookups", "500", "--ranges", "20", "--presets"];
    let files = ["--json", &json, "--csv", &csv, "--html", &html];
    let said = lsmx(&with(&[&flags[..], &files[..]].concat())).ok();
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let ranked = result["ranked"].as_array().unwrap();
    for (at, it) in ranked.iter().enumerate() {
        for field in ["policy", "spec", "cost", "simulated", "measured", "reason", "pareto"] {
            assert!(it.get(field).is_some(), "{field} is missing in {it}");
        }
        assert_eq!(it["measured"].is_null(), at >= 1, "{it}");
    }
    let best = ranked[0]["spec"].as_str().unwrap();
    assert!(said.contains(&format!("lsmx explore --policy '{best}'")), "{said}");
    // What is to be pasted can be played, and is what was measured.
    let (memtable, cache) =
        (ranked[0]["memtable_bytes"].to_string(), ranked[0]["block_cache_bytes"].to_string());
    let again = path("again.json");
    lsmx(&[
        "explore",
        "--policy",
        best,
        "--entries",
        "15000",
        "--memtable",
        &memtable,
        "--block-cache",
        &cache,
        "--lookups",
        "500",
        "--ranges",
        "20",
        "--seed",
        "3",
        "--deterministic",
        "--json",
        &again,
    ])
    .ok();
    let again: Value = serde_json::from_str(&fs::read_to_string(&again).unwrap()).unwrap();
    let space = &again["cells"][0]["space_amplification"];
    assert_eq!(space, &ranked[0]["measured"]["costs"]["space"]);
    let presets = result["presets"]["cells"].as_array().unwrap();
    // Without deletes those that look at tombstones are `lo+1`.
    assert_eq!(presets.len(), 15, "{presets:?}");
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), ranked.len() + 1);
    let page = fs::read_to_string(&html).unwrap();
    for title in ["Ranking", "What the costs are made of", "The Pareto front", "Every preset"] {
        assert!(page.contains(title), "{title}");
    }
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
    let (phases, trace) = (phases.to_str().unwrap(), trace.to_str().unwrap());
    for flags in [["--spec", phases], ["--phases", phases], ["--trace", trace]] {
        let said = lsmx(&with(&flags)).ok();
        assert!(said.starts_with("15000 writes of "), "{said}");
    }
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let weights = |text| lsmx(&with(&["--weights", text]));
    weights("speed=1")
        .fails(2, &["--weights", "\"speed\"", "known: writes, points, ranges, space"]);
    weights("writes=0").fails(2, &["at least one weight"]);
    lsmx(&with(&["--lookups", "0", "--weights", "points=1"])).fails(2, &["points=1"]);
    lsmx(&["advise", "--memory", "1K"]).fails(2, &["--memory", "131072"]);
    lsmx(&["advise", "--entries", "0"]).fails(2, &["--entries"]);
    lsmx(&with(&["--spec", "no-such-file.toml"])).fails(1, &["no-such-file.toml"]);
    lsmx(&with(&["--spec", "a", "--phases", "b"])).fails(2, &["--spec", "--phases"]);
    lsmx(&with(&["--updates", "2"])).fails(2, &["--updates"]);
}
