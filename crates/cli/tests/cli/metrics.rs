//! Tests of the metrics in the results of `lsmx explore`.

use std::collections::BTreeSet;

use lsmx_bench::experiment::{explore, iocost, rmw, simulate, steady_state, throughput, tuning};
use lsmx_bench::metric::{MetricRegistry, flatten_scalars};
use serde_json::Value;

use crate::common::{TestDir, cells, experiment, list, number, numbers, sum_of_levels, text};

/// Checks that each number in a result is a registered metric. Tables and `compare` interpret only registered metrics.
#[test]
fn each_number_of_a_result_is_a_metric() {
    let tree = "--policy tiering,tsa --entries 20000 --memtable 64K --deletes 0.1 --updates 0.2 --selectivity 0.001,0.01";
    let commands: [(String, &MetricRegistry, &str); 9] = [
        (format!("explore {tree}"), &explore::columns::REGISTRY, "/cells"),
        (format!("simulate {tree}"), &simulate::columns::REGISTRY, "/cells"),
        (
            "bench fillrandom readwhilewriting --entries 5000".to_owned(),
            &throughput::columns::REGISTRY,
            "/cells",
        ),
        (
            "bench --experiment caching --entries 5000 --memtable 64K --ops 500".to_owned(),
            &tuning::columns::READS,
            "/cells",
        ),
        (
            "bench --experiment data-size --entries 400".to_owned(),
            &tuning::columns::SIZES,
            "/cells",
        ),
        (
            "bench --experiment steady-state --entries 5000 --rate 5000 --minutes 0.005".to_owned(),
            &steady_state::columns::REGISTRY,
            "/cells",
        ),
        (
            "rmw --entries 2000 --ops 2000 --mix ycsb-e".to_owned(),
            &rmw::columns::REGISTRY,
            "/cells",
        ),
        (
            "rmw --entries 2000 --ops 2000 --experiment read-sources".to_owned(),
            &rmw::columns::REGISTRY,
            "/cells",
        ),
        (
            "iocost --entries 5000 --memtable 64K --lookups 500".to_owned(),
            &iocost::columns::REGISTRY,
            "/points",
        ),
    ];
    for (words, registry, rows) in commands {
        for row in list(&experiment(&words).result, rows) {
            for (name, value) in flatten_scalars(row) {
                let part = name.split(['.', '[']).next().unwrap();
                // Skips the description of the workload. Also skips predictions, because predictions have the same
                // names as measured metrics.
                let described = matches!(part, "workload" | "simulated" | "history");
                assert!(
                    described || !value.is_number() || registry.find(&name).is_some(),
                    "{words}: {name} is not a metric"
                );
            }
        }
    }
}

#[test]
fn job_time_is_split_into_cpu_and_waits() {
    let words = "explore --policy lo+1 --entries 30000 --value-len 48 --memtable 64K --lookups 0 \
                 --ranges 0";
    let compaction = |words: &str| cells(words)[0]["compaction"].clone();
    let measured = compaction(words);
    let [thread_us, cpu_us, fraction] =
        ["/thread_us_total", "/cpu_us_total", "/cpu_fraction"].map(|path| number(&measured, path));
    assert!(cpu_us > 0.0 && cpu_us <= thread_us * 1.05, "{cpu_us} of {thread_us}");
    assert!((fraction - cpu_us / thread_us).abs() < 1e-9);
    let waits = ["read_wait", "write_wait", "sync_wait"];
    let mut parts_us = cpu_us;
    for wait in waits {
        let wait_us = number(&measured, &format!("/{wait}_us_total"));
        let fraction = number(&measured, &format!("/{wait}_fraction"));
        assert!((fraction - wait_us / thread_us).abs() < 1e-9, "{wait}");
        parts_us += wait_us;
    }
    assert!(parts_us <= thread_us * 1.05, "{parts_us} of {thread_us}");
    // In the results of a deterministic run, only latencies depend on the machine.
    let deterministic = compaction(&format!("{words} --deterministic"));
    for time in ["thread", "cpu"].into_iter().chain(waits) {
        assert_eq!(number(&deterministic, &format!("/{time}_us_total")), 0.0, "{time}");
    }
}

#[test]
fn space_peak_includes_inputs_and_outputs_of_a_job() {
    let cells = cells(
        "explore --policy full,lo+1 --entries 60000 --value-len 48 --memtable 64K --lookups 0 \
         --ranges 0 --deterministic",
    );
    for cell in &cells {
        let bytes = sum_of_levels(cell, "/bytes");
        let [peak, transient] =
            ["/space_peak_bytes", "/space_transient_bytes"].map(|path| number(cell, path));
        assert!(transient > 0.0 && peak >= bytes && peak <= bytes + transient * 2.0, "{cell}");
        let end = number(cell, "/space_amplification");
        assert!((number(cell, "/space_amplification_peak") / end - peak / bytes).abs() < 1e-6);
    }
    let transient = numbers(&cells, "/space_transient_bytes");
    assert!(transient[0] > 2.0 * transient[1], "`full` rewrites complete levels: {transient:?}");
}

#[test]
fn deletes_persist_sooner_under_a_policy_with_a_bound() {
    let cells = cells(
        "explore --policy lo+1,tsa(0.25) --entries 60000 --value-len 48 --deletes 0.1 \
         --memtable 32K --size-ratio 4 --lookups 0 --ranges 0 --deterministic",
    );
    let within = |cell: &Value, share: f64| {
        let rows = list(cell, "/delete_persistence/within");
        number(rows.iter().find(|row| row["share_of_run"] == share).unwrap(), "/share")
    };
    for cell in &cells {
        let persistence = &cell["delete_persistence"];
        assert_eq!(persistence["deletes"], 6000);
        let tombstones = sum_of_levels(cell, "/tombstones");
        assert_eq!(number(persistence, "/live_tombstones"), tombstones);
        assert_eq!(persistence["oldest_age_us"].is_null(), tombstones == 0.0);
        // The clock of a deterministic run advances by 1 µs per operation.
        assert!(number(persistence, "/run_us") >= 60_000.0);
        assert!(within(cell, 0.1) <= within(cell, 0.75));
    }
    let (plain, bounded) = (&cells[0], &cells[1]);
    assert_eq!(bounded["spec"], "tsa(T=4,D=0.25)");
    assert!(within(plain, 0.5) < within(bounded, 0.5), "{plain}\n{bounded}");
    let live = numbers(&cells, "/delete_persistence/live_tombstones");
    assert!(live[1] < live[0], "{live:?}");
    let oldest = bounded["delete_persistence"]["oldest_age_us"].as_f64().unwrap_or(0.0);
    assert!(oldest <= 0.25 * 60_000.0 + 1000.0, "{oldest}");
}

#[test]
fn read_amplification_is_blocks_per_successful_lookup() {
    let cell = &cells(
        "explore --policy tiering --entries 40000 --value-len 48 --memtable 64K --block-cache 64K \
         --lookups 2000 --empty-lookups 0,0.5,1 --ranges 50 --selectivity 0.001,0.01 --deterministic",
    )[0];
    let rows = list(cell, "/point_lookups");
    let amplification = |row: usize| number(&rows[row], "/read_amplification");
    assert!((amplification(0) - number(&rows[0], "/ios_per_get")).abs() < 1e-9);
    let blocks = rows[1]["blocks_read"].as_object().unwrap().values();
    let blocks: f64 = blocks.map(|count| count.as_f64().unwrap()).sum();
    assert!((amplification(1) - blocks / 1000.0).abs() < 1e-9);
    assert!(rows[2]["read_amplification"].is_null(), "no lookup was successful");

    let ranges = list(cell, "/range_lookups/by_selectivity");
    assert_eq!(numbers(ranges, "/selectivity"), [0.001, 0.01]);
    let entries = numbers(ranges, "/entries");
    assert!(entries[1] > 8.0 * entries[0], "{entries:?}");
    assert_eq!(number(cell, "/range_lookups/ops"), 100.0);
    assert_eq!(number(cell, "/range_lookups/entries"), entries.iter().sum::<f64>());
}

/// With `--write-control stop`, writes wait only when the compaction backlog reaches the hard limit.
#[test]
fn write_control_stop_waits_at_the_hard_stop_and_never_slows() {
    let words = "explore --policy full --entries 40000 --value-len 48 --memtable 16K --lookups 0 \
                 --ranges 0 --write-control stop";
    let cell = &cells(words)[0];
    assert_eq!(cell["workload"]["write_control"], "stop");
    let stalls = &cell["stalls"];
    assert!(number(stalls, "/too_many_runs") > 0.0, "{stalls}");
    assert_eq!(number(stalls, "/throttled_us"), 0.0);
    let causes = ["/too_many_runs", "/memtables_full", "/memory_full"];
    let sum: f64 = causes.iter().map(|cause| number(stalls, cause)).sum();
    assert_eq!(number(stalls, "/count"), sum);
    assert!(number(stalls, "/total_us") >= number(stalls, "/max_us"));
    // The latency of a put includes the time that the put waits.
    assert!(number(cell, "/put_latency_us/max") >= 0.5 * number(stalls, "/max_us"));
}

/// Checks that `--workers`, `--table` and `--filter-last-run` take effect.
#[test]
fn workers_table_and_filter_flags_take_effect() {
    let words = "explore --policy full --entries 20000 --value-len 48 --memtable 64K --table 32K \
                 --lookups 2000 --empty-lookups 1 --ranges 0 --sweep filter-last-run=false,true";
    for cell in cells(&format!("{words} --workers 1")) {
        let workload = &cell["workload"];
        assert_eq!(workload["workers"], 1);
        assert_eq!(
            (&workload["table_bytes"], &workload["memtable_bytes"]),
            (&32768.into(), &65536.into())
        );
    }
    let cells = cells(&format!("{words} --deterministic"));
    assert!(cells[0]["workload"]["workers"].is_null(), "a deterministic run has no threads");
    assert!(cells[0]["workload"]["filter_last_run"].is_null());
    assert_eq!(cells[1]["workload"]["filter_last_run"], true);
    // If the last run has no filter, each lookup of an absent key reads a data block.
    let blocks = |cell: &Value| {
        let blocks = &cell["point_lookups"][0]["blocks_read"];
        blocks["data"].as_f64().unwrap_or(0.0)
    };
    let blocks: Vec<f64> = cells.iter().map(blocks).collect();
    assert!(blocks[0] > 1000.0 && blocks[1] < 100.0, "{blocks:?}");
}

/// Each of these flags changes what a deterministic run measures. `--direct-io` must not.
#[test]
fn block_filter_memtable_and_zipf_flags_take_effect() {
    let words = "explore --policy tiering --entries 6000 --value-len 48 --memtable 32K --lookups 300 \
                 --ranges 0 --updates 0.3 --distribution zipf --deterministic";
    let digest = |flag: &str| text(&cells(&format!("{words} {flag}"))[0], "digest").to_owned();
    let flags = [
        "",
        "--block-bytes 16K",
        "--filter-bits 16",
        "--compression lz4",
        "--memtable-kind skip-list",
        "--zipf 0.5",
    ];
    let digests: BTreeSet<String> = flags.into_iter().map(digest).collect();
    assert_eq!(digests.len(), flags.len());
    assert_eq!(digest("--direct-io"), digest(""));
}

/// Checks two settings of a phases file. `empty-lookups` sets the shares of lookups of absent keys, and `hot` selects
/// the keys that are used most often.
#[test]
fn phases_have_their_own_shares_and_hot_keys() {
    let dir = TestDir::new();
    let run = |hot: u64| {
        let file = dir.write(
            "phases.toml",
            format!(
                "[[phase]]\nentries = 4000\nsettle = true\n\
                 [[phase]]\nentries = 4000\nupdates = 1.0\ndistribution = \"zipf\"\n\
                 lookups = 400\nempty-lookups = [0.0, 0.25]\n\
                 [[phase]]\nentries = 4000\nupdates = 1.0\ndistribution = \"zipf\"\nhot = {hot}\n\
                 ranges = 20\nselectivity = 0.01\n"
            ),
        );
        let words = "--policy tiering --value-len 48 --memtable 32K --deterministic";
        cells(&format!("explore {words} --phases {file}")).remove(0)
    };
    let (same, other) = (run(0), run(1));
    // Digests include the workload. The workloads differ in `hot`, so a comparison of digests would prove nothing.
    let entries = |cell: &Value| sum_of_levels(cell, "/entries");
    assert!(
        entries(&other) > entries(&same),
        "with another `hot`, the third phase updates other keys"
    );
    let lookups = list(&other, "/point_lookups");
    assert_eq!(numbers(lookups, "/alpha"), [0.0, 0.25]);
    assert_eq!(lookups[1]["ops"], 400);
    assert_eq!(other["workload"]["phases"][2]["hot"], 1);
}
