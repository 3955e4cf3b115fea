//! `lsmx explore`, run as a user runs it.

use std::fs;
use std::path::Path;

use crate::common::{Said, cells as cells_of, number, run, text};
use serde_json::Value;

/// Small enough for a test, large enough for several levels.
const SMALL: &str = "--entries 20000 --value-len 48 --memtable 16K --size-ratio 4 --lookups 500 \
                     --ranges 20 --selectivity 0.01";

/// For tests with many runs: few flushes, for each of them syncs.
const TINY: &str = "--entries 8000 --value-len 48 --memtable 64K --size-ratio 2 --lookups 500 \
                    --ranges 20 --selectivity 0.01";

fn explore(words: &str) -> Said {
    run("explore", words)
}

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    cells_of("explore", words, directory)
}

/// The digests are compared with those of earlier builds. `UPDATE=1` rewrites the list.
#[test]
fn deterministic_digests_equal_the_checked_in_list() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy all --deterministic --seed 7 --entries 6000 --value-len 48 --memtable 16K \
                 --size-ratio 3 --lookups 200 --ranges 5 --selectivity 0.01 --deletes 0.1 \
                 --range-deletes 0.001";
    let list: String = cells(words, directory.path())
        .iter()
        .map(|cell| format!("{} {}\n", text(cell, "policy"), text(cell, "digest")))
        .collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &list).unwrap();
    }
    assert_eq!(list, fs::read_to_string(&file).unwrap());
}

/// The simulation once ran without end.
#[test]
fn simulate_past_the_bound_fails_at_once_with_an_estimate() {
    let entries = u64::MAX.to_string();
    run("simulate", &format!("--policy leveled --entries {entries}"))
        .fails(1, &["flushes of", "bytes in total are too many"]);
}

#[test]
fn one_policy_gives_one_table_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let table = explore(&format!("--policy tiering {SMALL} --dir {dir}")).ok();
    assert!(table.lines().any(|line| line.trim_start().starts_with("tiering ")), "{table}");
    assert!(table.contains("write amp") && table.contains("α=1"), "{table}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn range_deletes_are_drawn_and_the_digest_stays_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!(
        "--policy full,tiering,leveled --range-deletes 0.02 --deletes 0.1 --interleave \
         --deterministic {SMALL}"
    );
    let (one, other) = (cells(&words, directory.path()), cells(&words, directory.path()));
    assert_eq!(one.len(), 3);
    for (one, other) in one.iter().zip(&other) {
        assert!(one["digest"].is_string() && one["digest"] == other["digest"], "{one}");
        let range_deletes = |phase: &Value| phase["range_deletes"].as_u64().unwrap_or(0);
        let phases = one["workload"]["phases"].as_array().unwrap();
        assert_eq!(phases.iter().map(range_deletes).sum::<u64>(), 400);
    }
}

/// Numbers that each cell has.
const FIELDS: &str = "
    /ingested_bytes /flushed_bytes /compaction/jobs /compaction/trivial_moves
    /compaction/read_bytes /compaction/written_bytes /compaction/latency_us/mean
    /compaction/latency_us/p50 /compaction/latency_us/p90 /compaction/latency_us/p99
    /compaction/latency_us/p999 /compaction/latency_us/max /data_moved_ratio
    /write_amplification /compaction_write_amplification /device_write_amplification
    /space_amplification /space_amplification_invalid /put_latency_us/p999
    /put_latency_us/max /stalls/count /stalls/total_us /stalls/max_us
    /point_lookups/2/ios_per_get /point_lookups/2/filter_false_positive_rate
    /point_lookups/0/latency_us/p99 /range_lookups/ops /range_lookups/entries
    /range_lookups/latency_us/mean /levels/0/level /levels/0/runs /levels/0/files
    /levels/0/bytes /levels/0/entries /levels/0/tombstones /seed";

#[test]
fn a_cell_has_every_field_of_its_contract() {
    let directory = tempfile::tempdir().unwrap();
    let cells = cells(
        &format!("--policy leveled --updates 0.2 --deletes 0.1 --empty-lookups 0,0.5,1 {SMALL}"),
        directory.path(),
    );
    let cell = &cells[0];
    for path in FIELDS.split_whitespace() {
        number(cell, path);
    }
    assert_eq!(cell["policy"], "leveled");
    assert!(cell["spec"].as_str().unwrap().starts_with("leveled"));
    assert!(cell["workload"].is_object());
    assert!(cell["point_lookups"][0]["blocks_read"].is_object());
    assert!(cell["range_lookups"]["blocks_read"].is_object());
    assert!(cell["digest"].is_null(), "no digest without --deterministic");
    // 14,000 inserts, 4,000 updates, 2,000 deletes of 16 + 48 bytes.
    assert_eq!(cell["ingested_bytes"], 18_000 * 64 + 2_000 * 16);
    assert_eq!(cell["point_lookups"][1]["alpha"], 0.5);
    assert_eq!(cell["point_lookups"][1]["ops"], 500);
    assert_eq!(cell["range_lookups"]["ops"], 20);
    assert!(number(cell, "/space_amplification") >= 1.0);
    let moved = number(cell, "/compaction/read_bytes") + number(cell, "/compaction/written_bytes");
    let ratio = moved / number(cell, "/ingested_bytes");
    assert!((number(cell, "/data_moved_ratio") - ratio).abs() < 1e-9);
}

#[test]
fn the_history_ends_with_the_tree_and_follows_from_the_seed() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &str| cells(&format!("--policy tiering,lo+1 {words}"), directory.path());
    let words = format!("--deterministic --seed 3 {SMALL}");
    let (one, other) = (run(&words), run(&words));
    for (cell, same) in one.iter().zip(&other).chain(run(SMALL).iter().map(|cell| (cell, cell))) {
        assert_eq!(cell["history"], same["history"]);
        let history = cell["history"].as_array().unwrap();
        assert!((20..=200).contains(&history.len()), "{} points", history.len());
        for pair in history.windows(2) {
            for counter in ["ingested_bytes", "flushed_bytes", "read_bytes", "written_bytes"] {
                let at = |point: &Value| point[counter].as_u64().unwrap();
                assert!(at(&pair[0]) <= at(&pair[1]), "{counter} falls in {pair:?}");
            }
        }
        let last = history.last().unwrap();
        assert_eq!(last["ingested_bytes"], cell["ingested_bytes"]);
        assert_eq!(last["flushed_bytes"], cell["flushed_bytes"]);
        assert_eq!(last["read_bytes"], cell["compaction"]["read_bytes"]);
        assert_eq!(last["written_bytes"], cell["compaction"]["written_bytes"]);
        let levels = cell["levels"].as_array().unwrap();
        assert_eq!(last["levels"].as_array().unwrap().len(), levels.len());
        for (at_last, level) in last["levels"].as_array().unwrap().iter().zip(levels) {
            for field in ["level", "runs", "files", "bytes"] {
                assert_eq!(at_last[field], level[field], "{field}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_digests_and_other_seeds_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let digests = |words: &str| -> Vec<String> {
        cells(&format!("--deterministic {SMALL} {words}"), directory.path())
            .iter()
            .map(|cell| text(cell, "digest").to_owned())
            .collect()
    };
    let mixed = "--interleave --updates 0.3 --deletes 0.1";
    let first = digests(&format!("--policy all --seed 7 {mixed}"));
    assert!(first.len() >= 6);
    let distinct: std::collections::BTreeSet<&String> = first.iter().collect();
    assert_eq!(distinct.len(), first.len(), "policies differ, so do their digests");
    assert_eq!(first, digests(&format!("--policy all --seed 7 {mixed}")));
    let few = "--policy lo+1,tiering,leveled";
    assert_ne!(
        digests(&format!("{few} --seed 7 {mixed}")),
        digests(&format!("{few} --seed 8 {mixed}"))
    );
    let merging = |seed: u32| {
        digests(&format!("{few} --seed {seed} --interleave --merges 0.3 --deletes 0.1"))
    };
    assert_eq!(merging(7), merging(7));
    assert_ne!(merging(7), merging(8));
}

#[test]
fn every_distribution_and_interleaving_gives_right_answers() {
    // The run itself fails on a wrong answer.
    let directory = tempfile::tempdir().unwrap();
    for distribution in ["uniform", "zipf", "prefix-zipf", "normal", "sequential", "shifting"] {
        for more in ["", "--interleave --merges 0.2", "--write-control stop"] {
            let words = format!(
                "--policy lo+1 --distribution {distribution} --updates 0.3 --deletes 0.2 {more}"
            );
            let cells = cells(&format!("{words} {TINY}"), directory.path());
            assert_eq!(cells[0]["point_lookups"][0]["ops"], 500, "{words}");
        }
    }
}

#[test]
fn data_moved_has_the_order_of_the_study() {
    let directory = tempfile::tempdir().unwrap();
    let cells = cells(
        "--policy full,lo+1,universal --deterministic --entries 150000 --value-len 48 \
         --memtable 128K --lookups 0 --ranges 0",
        directory.path(),
    );
    let moved: Vec<f64> = cells.iter().map(|cell| number(cell, "/data_moved_ratio")).collect();
    assert!(moved[0] > moved[1] && moved[1] > moved[2], "{moved:?}");
}

#[test]
fn phases_and_data_files_are_played() {
    let directory = tempfile::tempdir().unwrap();
    let phases = directory.path().join("phases.toml");
    fs::write(
        &phases,
        "[[phase]]\nname = \"load\"\nentries = 5000\nsettle = true\n\
         [[phase]]\nentries = 2000\nupdates = 0.5\nlookups = 300\nempty-lookups = 0.5\n\
         distribution = \"zipf\"\nranges = 10\n",
    )
    .unwrap();
    let cells_of_phases = cells(
        &format!("--policy tiering --memtable 16K --phases {}", phases.display()),
        directory.path(),
    );
    let cell = &cells_of_phases[0];
    assert_eq!(cell["ingested_bytes"], 7000 * 128);
    assert_eq!(cell["point_lookups"][0]["ops"], 300);
    assert_eq!(cell["workload"]["phases"][0]["name"], "load");

    let data = directory.path().join("data.jsonl");
    let lines: String =
        (0..3000).map(|i| format!("{{\"key\":\"k{i}\",\"value\":\"value {i}\"}}\n")).collect();
    fs::write(&data, lines).unwrap();
    let digest = |order: &str| {
        let words = format!(
            "--policy full --deterministic --memtable 4K --data {} --data-order {order}",
            data.display()
        );
        let cells = cells(&words, directory.path());
        assert_eq!(cells[0]["workload"]["records"]["records"], 3000);
        assert_eq!(cells[0]["point_lookups"][1]["ops"], 300);
        text(&cells[0], "digest").to_owned()
    };
    assert_eq!(digest("shuffled"), digest("shuffled"));
    assert_ne!(digest("shuffled"), digest("file"));
}

#[test]
fn explore_unusable_file_error_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let phases = directory.path().join("wrong.toml");
    for (text, parts) in [
        ("[[phase]]\nentries = 5\nsped = 1\n", &["wrong.toml, line 3, column 1: ", "sped"][..]),
        ("[[phase]]\nentries = 5\n updates = 2\n", &["wrong.toml, line 3, column 2: ", "updates"]),
    ] {
        fs::write(&phases, text).unwrap();
        explore(&format!("--policy full --phases {}", phases.display())).fails(2, parts);
    }
    let data = directory.path().join("data.tsv");
    fs::write(&data, "a\tb\nbroken\n").unwrap();
    explore(&format!("--policy full --data {}", data.display()))
        .fails(1, &["data.tsv, line 2 is malformed", "no tab"]);
}
