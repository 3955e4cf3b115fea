//! The figures of a cell of `lsmx explore`: each says what its name says.

use std::fs;
use std::path::Path;

use crate::common::lsmx;
use serde_json::Value;

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    let file = directory.join("result.json");
    let words = format!(
        "explore {words} --value-len 48 --json {} --dir {}",
        file.display(),
        directory.display()
    );
    lsmx(&words.split_whitespace().collect::<Vec<_>>()).ok();
    let result: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    result["cells"].as_array().unwrap().clone()
}

fn number(cell: &Value, path: &str) -> f64 {
    cell.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {cell}"))
}

/// Every number in the cells of a result is a metric, so that tables can show it and `compare` knows its meaning.
#[test]
fn each_number_of_a_result_is_a_metric() {
    use lsmx_bench::experiment::{explore, iocost, rmw, simulate, throughput, tuning};
    use lsmx_bench::metric::{Registry, scalars};

    let directory = tempfile::tempdir().unwrap();
    let tree = "--policy tiering,tsa --entries 20000 --memtable 64K --deletes 0.1 --updates 0.2 --selectivity 0.001,0.01";
    let commands: [(&str, &str, &Registry, &str); 6] = [
        ("explore", tree, &explore::columns::REGISTRY, "cells"),
        ("simulate", tree, &simulate::columns::REGISTRY, "cells"),
        (
            "bench",
            "fillrandom readwhilewriting --entries 5000",
            &throughput::columns::REGISTRY,
            "cells",
        ),
        (
            "bench",
            "--experiment caching --entries 5000 --memtable 64K --ops 500",
            &tuning::columns::READS,
            "cells",
        ),
        ("rmw", "--entries 2000 --ops 2000 --mix ycsb-e", &rmw::columns::REGISTRY, "cells"),
        (
            "iocost",
            "--entries 5000 --memtable 64K --lookups 500",
            &iocost::columns::REGISTRY,
            "points",
        ),
    ];
    for (command, words, registry, rows) in commands {
        let result = crate::common::result(command, words, directory.path());
        for row in result[rows].as_array().unwrap() {
            for (name, value) in scalars(row) {
                let part = name.split(['.', '[']).next().unwrap();
                // The workload describes the cell; predictions have the names of what they predict.
                let described = matches!(part, "workload" | "simulated" | "history");
                assert!(
                    described || !value.is_number() || registry.find(&name).is_some(),
                    "{command}: {name} is not a metric"
                );
            }
        }
    }
}

#[test]
fn time_of_jobs_is_split_into_processor_and_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy lo+1 --entries 30000 --memtable 64K --lookups 0 --ranges 0";
    let cell = &cells(words, directory.path())[0];
    let (thread_us, cpu_us) =
        (number(cell, "/compaction/thread_us_total"), number(cell, "/compaction/cpu_us_total"));
    assert!(cpu_us > 0.0 && cpu_us <= thread_us * 1.05, "{cpu_us} of {thread_us}");
    let fraction = number(cell, "/compaction/cpu_fraction");
    assert!((fraction - cpu_us / thread_us).abs() < 1e-9);
    // Nothing of the machine is in a deterministic result but latencies.
    let cell = &cells(&format!("{words} --deterministic"), directory.path())[0];
    assert_eq!(number(cell, "/compaction/thread_us_total"), 0.0);
    assert_eq!(number(cell, "/compaction/cpu_us_total"), 0.0);
}

#[test]
fn space_peaks_while_old_and_new_files_stand_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy full,lo+1 --entries 60000 --memtable 64K --lookups 0 --ranges 0 \
                 --deterministic";
    let cells = cells(words, directory.path());
    for cell in &cells {
        let levels = cell["levels"].as_array().unwrap();
        let bytes: f64 = levels.iter().map(|level| number(level, "/bytes")).sum();
        let (peak, transient) =
            (number(cell, "/space_peak_bytes"), number(cell, "/space_transient_bytes"));
        assert!(transient > 0.0 && peak >= bytes && peak <= bytes + transient * 2.0, "{cell}");
        let end = number(cell, "/space_amplification");
        assert!((number(cell, "/space_amplification_peak") / end - peak / bytes).abs() < 1e-6);
    }
    let transient = |cell: &Value| number(cell, "/space_transient_bytes");
    assert!(transient(&cells[0]) > 2.0 * transient(&cells[1]), "full rewrites whole levels");
}

#[test]
fn deletes_persist_sooner_where_a_policy_sees_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy lo+1,tsa(0.25) --entries 60000 --deletes 0.1 --memtable 32K --size-ratio 4 \
                 --lookups 0 --ranges 0 --deterministic";
    let cells = cells(words, directory.path());
    let within = |cell: &Value, share: f64| {
        let rows = cell["delete_persistence"]["within"].as_array().unwrap();
        let row = rows.iter().find(|row| row["share_of_run"] == share).unwrap();
        number(row, "/share")
    };
    for cell in &cells {
        let persistence = &cell["delete_persistence"];
        assert_eq!(persistence["deletes"], 6000);
        let levels = cell["levels"].as_array().unwrap();
        let tombstones: f64 = levels.iter().map(|level| number(level, "/tombstones")).sum();
        assert_eq!(number(persistence, "/live_tombstones"), tombstones);
        assert_eq!(persistence["oldest_age_us"].is_null(), tombstones == 0.0);
        // A microsecond an operation.
        assert!(number(persistence, "/run_us") >= 60_000.0);
        assert!(within(cell, 0.1) <= within(cell, 0.75));
    }
    let (plain, bounded) = (&cells[0], &cells[1]);
    assert_eq!(bounded["spec"], "tsa(T=4,D=0.25)", "as it was asked for");
    assert!(within(plain, 0.5) < within(bounded, 0.5), "{plain}\n{bounded}");
    let live = |cell: &Value| number(cell, "/delete_persistence/live_tombstones");
    assert!(live(bounded) < live(plain));
    let oldest = bounded["delete_persistence"]["oldest_age_us"].as_f64().unwrap_or(0.0);
    assert!(oldest <= 0.25 * 60_000.0 + 1000.0, "{oldest}");
}

#[test]
fn read_amplification_is_blocks_per_lookup_that_finds_something() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy tiering --entries 40000 --memtable 64K --block-cache 64K --lookups 2000 \
                 --empty-lookups 0,0.5,1 --ranges 50 --selectivity 0.001,0.01 --deterministic";
    let cell = &cells(words, directory.path())[0];
    let rows = cell["point_lookups"].as_array().unwrap();
    let blocks = |row: &Value| {
        row["blocks_read"].as_object().unwrap().values().map(|n| n.as_f64().unwrap()).sum::<f64>()
    };
    assert!(
        (number(&rows[0], "/read_amplification") - number(&rows[0], "/ios_per_get")).abs() < 1e-9
    );
    let expected = blocks(&rows[1]) / 1000.0;
    assert!((number(&rows[1], "/read_amplification") - expected).abs() < 1e-9);
    assert!(rows[2]["read_amplification"].is_null(), "nothing was found");

    let ranges = cell["range_lookups"]["by_selectivity"].as_array().unwrap();
    let entries: Vec<f64> = ranges.iter().map(|row| number(row, "/entries")).collect();
    assert_eq!(
        (&ranges[0]["selectivity"], &ranges[1]["selectivity"]),
        (&0.001.into(), &0.01.into())
    );
    assert!(entries[1] > 8.0 * entries[0], "{entries:?}");
    assert_eq!(number(cell, "/range_lookups/ops"), 100.0);
    assert_eq!(number(cell, "/range_lookups/entries"), entries.iter().sum::<f64>());
}

/// The study's control: writes run at full speed into the hard stop, and wait there.
#[test]
fn writes_stop_at_the_hard_stop_and_are_not_slowed_before() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy full --entries 40000 --memtable 16K --lookups 0 --ranges 0 \
                 --write-control stop";
    let cell = &cells(words, directory.path())[0];
    assert_eq!(cell["workload"]["write_control"], "stop");
    let stalls = &cell["stalls"];
    assert!(number(stalls, "/too_many_runs") > 0.0, "{stalls}");
    assert_eq!(number(stalls, "/throttled_us"), 0.0);
    let causes = ["/too_many_runs", "/memtables_full", "/memory_full"];
    let sum: f64 = causes.iter().map(|cause| number(stalls, cause)).sum();
    assert_eq!(number(stalls, "/count"), sum);
    assert!(number(stalls, "/total_us") >= number(stalls, "/max_us"));
    // Who waits at the stop shows in the latencies of puts.
    assert!(number(cell, "/put_latency_us/max") >= 0.5 * number(stalls, "/max_us"));
}

/// What the study had and lsmx has not by default: one thread that compacts, filters everywhere.
#[test]
fn threads_tables_and_the_filter_of_the_last_run_can_be_as_in_the_study() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--policy full --entries 20000 --memtable 64K --table 32K --lookups 2000 \
                 --empty-lookups 1 --ranges 0 --sweep filter-last-run=false,true";
    for cell in &cells(&format!("{words} --workers 1"), directory.path()) {
        assert_eq!(cell["workload"]["workers"], 1);
        assert_eq!(cell["workload"]["table_bytes"], 32 << 10);
        assert_eq!(cell["workload"]["memtable_bytes"], 64 << 10);
    }
    let of_both = cells(&format!("{words} --deterministic"), directory.path());
    assert!(of_both[0]["workload"]["workers"].is_null(), "there is no thread");
    assert_eq!(of_both[1]["workload"]["filter_last_run"], true);
    assert!(of_both[0]["workload"]["filter_last_run"].is_null(), "left out where it is not asked");
    // Without its filter the last run gives a data block for each absent key that the cache does not
    // have, with it hardly any.
    let data =
        |cell: &Value| cell["point_lookups"][0]["blocks_read"]["data"].as_f64().unwrap_or(0.0);
    assert!(data(&of_both[0]) > 1000.0, "{}", of_both[0]["point_lookups"]);
    assert!(data(&of_both[1]) < 100.0, "{}", of_both[1]["point_lookups"]);
}

/// Phases: several shares of absent keys in one, and favourites that change from one to the next.
#[test]
fn phases_have_shares_and_favourites_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let run = |hot: u64| {
        let file = directory.path().join("phases.toml");
        let text = format!(
            "[[phase]]\nentries = 4000\nsettle = true\n\
             [[phase]]\nentries = 4000\nupdates = 1.0\ndistribution = \"zipf\"\n\
             lookups = 400\nempty-lookups = [0.0, 0.25]\n\
             [[phase]]\nentries = 4000\nupdates = 1.0\ndistribution = \"zipf\"\nhot = {hot}\n\
             ranges = 20\nselectivity = 0.01\n"
        );
        fs::write(&file, text).unwrap();
        let words =
            format!("--policy tiering --memtable 32K --deterministic --phases {}", file.display());
        cells(&words, directory.path()).remove(0)
    };
    let (same, other) = (run(0), run(1));
    let entries = |cell: &Value| {
        let levels = cell["levels"].as_array().unwrap();
        levels.iter().map(|level| number(level, "/entries")).sum::<f64>()
    };
    // The digest covers the workload, so it would differ in any case.
    assert!(entries(&other) > entries(&same), "updates of others meet fewer of their own kind");
    let alphas: Vec<f64> =
        other["point_lookups"].as_array().unwrap().iter().map(|at| number(at, "/alpha")).collect();
    assert_eq!(alphas, [0.0, 0.25]);
    assert_eq!(other["point_lookups"][1]["ops"], 400);
    assert_eq!(other["workload"]["phases"][2]["hot"], 1);
}
