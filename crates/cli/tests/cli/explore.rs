//! Tests of `lsmx explore`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{
    TestDir, assert_contains, cells, experiment, list, lsmx, number, numbers, text,
};
use serde_json::Value;

/// Arguments of a short run with several levels.
const SMALL: &str = "--entries 20000 --value-len 48 --memtable 16K --size-ratio 4 --lookups 500 \
                     --ranges 20 --selectivity 0.01";

/// Compares the result digests with the checked-in file `tests/digests.txt`. With `UPDATE=1`, the test rewrites the
/// file.
#[test]
fn deterministic_digests_equal_the_checked_in_list() {
    let cells = cells(
        "explore --policy all --deterministic --seed 7 --entries 6000 --value-len 48 --memtable 16K \
         --size-ratio 3 --lookups 200 --ranges 5 --selectivity 0.01 --deletes 0.1 \
         --range-deletes 0.001",
    );
    let list: String = cells
        .iter()
        .map(|cell| format!("{} {}\n", text(cell, "policy"), text(cell, "digest")))
        .collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digests.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &list).unwrap();
    }
    assert_eq!(list, fs::read_to_string(&file).unwrap());
    let digests: BTreeSet<&str> = cells.iter().map(|cell| text(cell, "digest")).collect();
    assert_eq!(digests.len(), cells.len(), "each policy has its own digest");
}

/// JSON pointers of numbers that each element of `cells` in a result must have.
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
fn cell_has_every_documented_field() {
    let words = "--policy leveled --updates 0.2 --deletes 0.1 --empty-lookups 0,0.5,1";
    let run = experiment(&format!("explore {words} {SMALL}"));
    assert!(run.table.lines().any(|line| line.trim_start().starts_with("leveled ")));
    assert_contains(&run.table, &["write amp", "α=1"]);
    let cell = &run.cells()[0];
    for path in FIELDS.split_whitespace() {
        number(cell, path);
    }
    assert_eq!(cell["policy"], "leveled");
    assert!(text(cell, "spec").starts_with("leveled"));
    assert!(cell["workload"].is_object());
    assert!(cell["point_lookups"][0]["blocks_read"].is_object());
    assert!(cell["range_lookups"]["blocks_read"].is_object());
    assert!(cell["digest"].is_null(), "no digest without --deterministic");
    // The workload has 14,000 inserts, 4,000 updates and 2,000 deletes. Keys have 16 bytes, and values have 48 bytes.
    assert_eq!(cell["ingested_bytes"], 18_000 * 64 + 2_000 * 16);
    assert_eq!(cell["point_lookups"][1]["alpha"], 0.5);
    assert_eq!(cell["point_lookups"][1]["ops"], 500);
    assert_eq!(cell["range_lookups"]["ops"], 20);
    assert!(number(cell, "/space_amplification") >= 1.0);
    let moved = number(cell, "/compaction/read_bytes") + number(cell, "/compaction/written_bytes");
    let ratio = moved / number(cell, "/ingested_bytes");
    assert!((number(cell, "/data_moved_ratio") - ratio).abs() < 1e-9);
    check_history(cell);
}

/// Checks the array `history` of a result. The counters never decrease, and the last element describes the tree at the
/// end of the run.
fn check_history(cell: &Value) {
    let history = list(cell, "/history");
    assert!((20..=200).contains(&history.len()), "{} elements", history.len());
    for counter in ["/ingested_bytes", "/flushed_bytes", "/read_bytes", "/written_bytes"] {
        assert!(numbers(history, counter).is_sorted(), "{counter} decreases");
    }
    let last = history.last().unwrap();
    assert_eq!(last["ingested_bytes"], cell["ingested_bytes"]);
    assert_eq!(last["flushed_bytes"], cell["flushed_bytes"]);
    assert_eq!(last["read_bytes"], cell["compaction"]["read_bytes"]);
    assert_eq!(last["written_bytes"], cell["compaction"]["written_bytes"]);
    let (in_history, levels) = (list(last, "/levels"), list(cell, "/levels"));
    assert_eq!(in_history.len(), levels.len());
    for field in ["/level", "/runs", "/files", "/bytes"] {
        assert_eq!(numbers(in_history, field), numbers(levels, field), "{field}");
    }
}

#[test]
fn digest_depends_on_the_seed() {
    for mix in [
        "--interleave --updates 0.3 --deletes 0.1",
        "--interleave --merges 0.3 --deletes 0.1",
        "--interleave --range-deletes 0.02 --deletes 0.1",
    ] {
        let run = |seed: u64| {
            let policies = "--policy lo+1,tiering,leveled";
            cells(&format!("explore {policies} --deterministic --seed {seed} {SMALL} {mix}"))
        };
        let (one, same, other) = (run(7), run(7), run(8));
        for ((one, same), other) in one.iter().zip(&same).zip(&other) {
            assert_eq!(text(one, "digest"), text(same, "digest"), "{mix}");
            assert_ne!(text(one, "digest"), text(other, "digest"), "{mix}");
            assert_eq!(one["history"], same["history"]);
            check_history(one);
            let phases = list(one, "/workload/phases").iter();
            let range_deletes: u64 =
                phases.map(|phase| phase["range_deletes"].as_u64().unwrap_or(0)).sum();
            assert_eq!(range_deletes, if mix.contains("range") { 400 } else { 0 });
        }
    }
}

/// The experiment fails if a lookup returns a wrong value.
#[test]
fn every_distribution_and_interleaving_gives_right_answers() {
    let words = "--policy lo+1 --entries 8000 --value-len 48 --memtable 64K --size-ratio 2 \
                 --lookups 500 --ranges 20 --selectivity 0.01 --updates 0.3 --deletes 0.2 \
                 --sweep distribution=uniform,zipf,prefix-zipf,normal,sequential,shifting";
    for more in ["", "--interleave --merges 0.2", "--write-control stop"] {
        let cells = cells(&format!("explore {words} {more}"));
        assert_eq!(numbers(&cells, "/point_lookups/0/ops"), [500.0; 6], "{more}");
    }
}

#[test]
fn data_moved_has_the_published_order_of_policies() {
    let cells = cells(
        "explore --policy full,lo+1,universal --deterministic --entries 150000 --value-len 48 \
         --memtable 128K --lookups 0 --ranges 0",
    );
    let moved = numbers(&cells, "/data_moved_ratio");
    assert!(moved[0] > moved[1] && moved[1] > moved[2], "{moved:?}");
}

/// The printed table has a note on the write amplification of the policies `full` and `universal`, if the table
/// contains these policies.
#[test]
fn table_explains_the_writes_of_full_and_universal() {
    for (policies, noted) in [
        ("full,universal,tiering", &["`full` ", "`universal` "][..]),
        ("universal(trigger=6)", &["`universal` "]),
        ("lo+1,leveled", &[]),
    ] {
        for command in ["explore", "simulate"] {
            let words = format!("{command} --policy {policies} --entries 2000 --lookups 10");
            let table = experiment(&words).table;
            assert_contains(&table, noted);
            assert_eq!(table.matches("note: ").count(), noted.len(), "{table}");
        }
    }
}

#[test]
fn phases_and_data_files_are_run() {
    let dir = TestDir::new();
    let phases = dir.write(
        "phases.toml",
        "[[phase]]\nname = \"load\"\nentries = 5000\nsettle = true\n\
         [[phase]]\nentries = 2000\nupdates = 0.5\nlookups = 300\nempty-lookups = 0.5\n\
         distribution = \"zipf\"\nranges = 10\n",
    );
    let words = format!("explore --policy tiering --memtable 16K --phases {phases}");
    let cell = &cells(&words)[0];
    assert_eq!(cell["ingested_bytes"], 7000 * 128);
    assert_eq!(cell["point_lookups"][0]["ops"], 300);
    assert_eq!(cell["workload"]["phases"][0]["name"], "load");

    let line = |i: u32| format!("{{\"key\":\"k{i}\",\"value\":\"value {i}\"}}\n");
    let data = dir.write("data.jsonl", (0..3000).map(line).collect::<String>());
    let digest = |order: &str| {
        let cells = cells(&format!(
            "explore --policy full --deterministic --memtable 4K --data {data} --data-order {order}"
        ));
        assert_eq!(cells[0]["workload"]["records"]["records"], 3000);
        assert_eq!(cells[0]["point_lookups"][1]["ops"], 300);
        text(&cells[0], "digest").to_owned()
    };
    assert_eq!(digest("shuffled"), digest("shuffled"));
    assert_ne!(digest("shuffled"), digest("file"));
}

/// Several threads perform the same lookups as one thread. Each row of the result has its own block reads.
#[test]
fn threads_share_the_lookups_of_phases_without_writes() {
    let dir = TestDir::new();
    let phases = dir.write(
        "phases.toml",
        "[[phase]]\nentries = 8000\nsettle = true\n\
         [[phase]]\nlookups = 10000\nempty-lookups = [0.0, 0.5]\nranges = 100\n\
         selectivity = 0.01\n\
         [[phase]]\nentries = 100\nlookups = 50\n",
    );
    let words = "explore --policy tiering --memtable 32K --block-cache 64K --sweep threads=1,2";
    let cells = cells(&format!("{words} --phases {phases}"));
    assert!(cells[0]["workload"]["threads"].is_null());
    assert_eq!(cells[1]["workload"]["threads"], 2);
    assert_eq!(cells[1]["sweep"]["threads"], 2);
    for cell in &cells {
        let lookups = list(cell, "/point_lookups");
        assert_eq!(numbers(lookups, "/alpha"), [0.0, 0.5]);
        assert_eq!(numbers(lookups, "/ops"), [10_050.0, 10_000.0]);
        let ios = numbers(lookups, "/ios_per_get");
        assert!(ios[0] > 0.0 && ios[1] > 0.0, "{ios:?}");
        // Half of the lookups in the second row find their key.
        assert!((number(&lookups[1], "/read_amplification") - 2.0 * ios[1]).abs() < 1e-9);
        assert_eq!(cell["range_lookups"]["ops"], 100);
        assert!(number(cell, "/range_lookups/blocks_read/data") > 0.0);
    }
    assert_eq!(cells[0]["range_lookups"]["entries"], cells[1]["range_lookups"]["entries"]);
}

#[test]
fn malformed_file_is_named_with_line_and_column() {
    let dir = TestDir::new();
    for (flag, text, code, parts) in [
        ("phases", "[[phase]]\nentries = 5\nsped = 1\n", 2, ["line 3, column 1: ", "sped"]),
        ("phases", "[[phase]]\nentries = 5\n updates = 2\n", 2, ["line 3, column 2: ", "updates"]),
        ("data", "a\tb\nbroken\n", 1, ["line 2 is malformed", "no tab"]),
        ("trace", "put\ta\tb\nfetch\ta\n", 1, ["line 2 is malformed", "fetch is no operation"]),
        ("trace", "", 1, ["holds", "no records"]),
    ] {
        let file = dir.write("wrong.tsv", text);
        lsmx(&format!("explore --policy full --{flag} {file}"))
            .fails(code, &[&["wrong.tsv"], &parts[..]].concat());
    }
}
