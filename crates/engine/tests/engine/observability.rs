//! Counters of operations, sampled latencies, the text for Prometheus, and the metrics file.

#![allow(clippy::disallowed_methods, reason = "one test reads and writes a document")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Counter;
use lsmx::metrics::{
    BlockKind, CacheMetrics, CompactionDebtMetrics, FilterCounts, KeyspaceMetrics, LatencySampling,
    LevelMetrics,
};
use lsmx::operand_store::OperandMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Durability, KeyspaceOptions, Metrics, MetricsReading, Options, ReadOptions, RepairOptions,
    WriteBatch,
};

use crate::harness::database::{assert_clean, inline, metrics, open, small};

fn with_counter() -> Options {
    inline().keyspace_defaults(small().merge_operator(Counter))
}

#[test]
fn operations_are_counted_by_kind() {
    let db = open(&MemVfs::new(), with_counter());
    let keyspace = db.default_keyspace();
    db.put("a", "11111111").unwrap();
    db.delete("b").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&keyspace, "c", "33333333");
    batch.merge(&keyspace, "n", 1u64.to_le_bytes());
    batch.delete_range(&keyspace, "x".."y");
    db.write(batch, Durability::Buffered).unwrap();
    assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_none());
    assert_eq!(keyspace.multi_get(["c", "d", "c"]).unwrap().iter().flatten().count(), 2);
    keyspace.fetch_update("a", |_| b"2".to_vec()).unwrap();

    let counted = metrics(&db);
    let operations = counted.operations;
    assert_eq!((operations.puts, operations.deletes), (3, 1));
    assert_eq!((operations.range_deletes, operations.merges), (1, 1));
    // Of the lookups, two are gets, three are keys of `multi_get`, and one is that of the update.
    assert_eq!((counted.gets, operations.multi_get_keys), (6, 3));
    assert_eq!((operations.gets_found, operations.gets_absent), (4, 2));
    assert_eq!(operations.get_bytes, 4 * 9);
    assert_eq!(counted.put_bytes, 9 + 9 + 2);
    assert_eq!(counted.ingested_bytes, counted.put_bytes + 1 + 9 + 2);
    assert_eq!(db.metrics().keyspaces["default"], counted);
}

#[test]
fn failed_gets_are_neither_found_nor_absent() {
    let faulty = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let db = open(&faulty, inline());
    db.put("a", "1").unwrap();
    db.flush().unwrap();
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]);
    faulty.add_rule(rule.from_then_on());
    assert!(db.get("a").is_err());
    assert!(db.default_keyspace().multi_get(["a", "b"]).is_err());
    let counted = metrics(&db);
    assert_eq!(counted.gets, 3);
    let operations = counted.operations;
    assert_eq!((operations.gets_found, operations.gets_absent), (0, 0));
}

#[test]
fn scans_count_entries_and_bytes() {
    let db = open(&MemVfs::new(), inline());
    let keyspace = db.default_keyspace();
    for number in 0..3_000u32 {
        keyspace.put(number.to_be_bytes(), "12345").unwrap();
    }
    assert_eq!(keyspace.iter().limit(10).count(), 10);
    let counted = metrics(&db).operations;
    assert_eq!((counted.scans, counted.scan_entries, counted.scan_bytes), (1, 10, 90));

    // A running scan has counted all but its last entries.
    let mut range = keyspace.iter().rev();
    assert_eq!(range.by_ref().take(2_000).count(), 2_000);
    let running = metrics(&db).operations.scan_entries;
    assert!((10 + 1_000..=10 + 2_000).contains(&running), "{running}");
    drop(range);
    assert_eq!(metrics(&db).operations.scan_entries, 2_010);

    // A cursor counts each entry once, and a value when it is read.
    let mut cursor = keyspace.cursor(&ReadOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    for _ in 0..2 {
        assert_eq!(cursor.value().unwrap(), Some(&b"12345"[..]));
    }
    cursor.next().unwrap();
    cursor.seek([9]).unwrap();
    assert_eq!(cursor.key(), None);
    drop(cursor);
    let counted = metrics(&db).operations;
    assert_eq!((counted.scans, counted.scan_entries), (3, 2_012));
    assert_eq!(counted.scan_bytes, 2_010 * 9 + 4 + 5 + 4);
}

#[test]
fn latency_sampling_measures_with_the_clock_of_the_database() {
    let db = open(&MemVfs::new(), inline().latency_sampling(LatencySampling::OneIn(1)));
    let keyspace = db.default_keyspace();
    db.put("a", "1").unwrap();
    db.get("a").unwrap();
    keyspace.multi_get(["a", "b"]).unwrap();
    keyspace.fetch_update("a", |_| b"2".to_vec()).unwrap();
    assert_eq!(keyspace.iter().count(), 1);
    let latency = db.metrics().operation_latency;
    // The virtual clock advances by 1 µs per operation. An update is a read and a commit.
    assert_eq!((latency.get_ns.count, latency.get_ns.p50 / 100), (1, 10));
    assert_eq!((latency.multi_get_ns.count, latency.multi_get_ns.p50 / 100), (1, 10));
    assert_eq!((latency.commit_ns.count, latency.commit_ns.p50 / 100), (2, 10));
    assert_eq!((latency.update_ns.count, latency.update_ns.p50 / 100), (1, 20));
    // The second step finds the end.
    assert_eq!(latency.scan_step_ns.count, 2);

    db.set_latency_sampling(LatencySampling::Off);
    db.get("a").unwrap();
    assert_eq!(db.metrics().operation_latency, latency);
    db.set_latency_sampling(LatencySampling::OneIn(1));
    assert!(db.get("absent").unwrap().is_none());
    assert_eq!(db.metrics().operation_latency.get_ns.count, 2);
}

#[test]
fn prometheus_text_has_the_counters_of_an_open_database() {
    let db = open(&MemVfs::new(), inline());
    let users = db.keyspace("users", KeyspaceOptions::default()).unwrap();
    users.put("ada", "1815").unwrap();
    db.flush().unwrap();
    let text = db.metrics().to_prometheus(&[]);
    for line in [
        "lsmx_puts_total{keyspace=\"users\"} 1",
        "lsmx_puts_total{keyspace=\"default\"} 0",
        "lsmx_level_files{keyspace=\"users\",level=\"0\"} 1",
        "lsmx_keyspace_info{keyspace=\"users\",policy=\"leveled\"} 1",
        "lsmx_read_only 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
    }
}

/// The list in `docs/reference/prometheus.md` has all metrics. `UPDATE=1` rewrites it.
#[test]
fn document_lists_all_metrics_for_prometheus() {
    let keyspace = KeyspaceMetrics {
        operand_store: Some(OperandMetrics::default()),
        oldest_tombstone_age_us: Some(0),
        compaction_debt: CompactionDebtMetrics {
            headroom_bytes: Some(0),
            write_rate_max: Some(0),
            ..CompactionDebtMetrics::default()
        },
        levels: vec![LevelMetrics::default()],
        ..KeyspaceMetrics::default()
    };
    let mut metrics = Metrics {
        keyspaces: [("default".to_owned(), keyspace)].into(),
        cache: [(BlockKind::Data, CacheMetrics::default())].into(),
        filter_by_level: [(0, FilterCounts::default())].into(),
        ..Metrics::default()
    };
    metrics.memory.budget_bytes = Some(0);
    metrics.background_io.rate = Some(0);
    let text = metrics.to_prometheus(&[]);
    let mut rows = String::new();
    for family in text.split("# HELP ").skip(1) {
        let mut lines = family.lines();
        let (name, help) = lines.next().unwrap().split_once(' ').unwrap();
        let (_, kind) = lines.next().unwrap().rsplit_once(' ').unwrap();
        let sample = lines.next().unwrap();
        let labels = sample.split_once('{').map_or("", |(_, rest)| rest);
        let labels = labels.split('"').step_by(2).filter_map(|part| part.strip_suffix('='));
        let labels: Vec<_> =
            labels.map(|label| format!("`{}`", label.trim_start_matches(','))).collect();
        let (labels, help) = (labels.join(", "), help.trim_end_matches('.'));
        rows += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/prometheus.md");
    let page = std::fs::read_to_string(path).unwrap();
    let heading = "| --- | --- | --- | --- |\n";
    let (text, listed) = page.split_once(heading).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{text}{heading}{rows}")).unwrap();
    } else {
        assert!(listed == rows, "UPDATE=1 rewrites the list in {path}");
    }
}

/// The dashboard for Grafana queries only metrics that the engine emits.
#[test]
fn dashboard_queries_existing_metrics() {
    let text = include_str!("../../../../docs/grafana/lsmx.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let options = inline().memory_budget(64 << 20).background_io_rate(1 << 30);
    let db = open(&MemVfs::new(), options);
    for _ in 0..2 {
        db.put("a", "1").unwrap();
        db.put("c", "3").unwrap();
        db.flush().unwrap();
    }
    // The lookup of an absent key uses the filter of the newer run.
    assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_none());
    let emitted = db.metrics().to_prometheus(&[]);
    let is_emitted = |name: &str| {
        emitted
            .lines()
            .any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
    };
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let names = query.match_indices("lsmx_").map(|(at, _)| {
                let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
                query[at..].split(|char| !is_name(char)).next().unwrap()
            });
            for name in names {
                assert!(is_emitted(name), "{name} of {query} is not emitted");
                queries += 1;
            }
        }
    }
    assert!(queries > 20, "{queries}");
}

fn read_file(disk: &(impl Vfs + Clone)) -> Option<MetricsReading> {
    let options = Options::default().vfs(Arc::new(disk.clone()));
    lsmx::read_metrics_file("db", &options).unwrap()
}

fn stepped() -> Options {
    let background = Background::Stepped { seed: 3, workers: 1 };
    Options::default().background(background).metrics_file(Duration::from_secs(1))
}

#[test]
fn metrics_file_is_written_in_its_interval_and_removed_at_close() {
    let disk = MemVfs::new();
    let db = open(&disk, stepped());
    db.env().pause_us(10);
    let first = read_file(&disk).unwrap();
    assert_eq!((first.process_id, first.interval_us), (std::process::id(), 1_000_000));
    db.put("a", "1").unwrap();
    assert_eq!(read_file(&disk).unwrap(), first);
    db.env().pause_us(1_500_000);
    let second = read_file(&disk).unwrap();
    assert_eq!(second.open_us, first.open_us);
    assert!(second.time_us >= first.time_us + 1_000_000, "{} {}", first.time_us, second.time_us);
    assert_eq!(second.metrics.keyspaces["default"].operations.puts, 1);
    assert_eq!(second.metrics.metrics_file_failures, 0);
    db.close(None).unwrap();
    assert_eq!(read_file(&disk), None);
    assert!(!disk.paths().iter().any(|path| path.to_string_lossy().contains("METRICS")));
}

#[test]
fn metrics_file_failure_is_counted_and_stops_nothing() {
    let disk = MemVfs::new();
    let faulty = FaultVfs::new(Arc::new(disk.clone()), 1);
    let calls = [VfsCall::Create, VfsCall::Append, VfsCall::Rename];
    for (seed, call) in (0..).zip(calls) {
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[call]);
        faulty.add_rule(rule.path_contains("METRICS").from_then_on());
        let background = Background::Stepped { seed, workers: 1 };
        let db = open(&faulty, stepped().background(background));
        db.env().pause_us(3_500_000);
        db.put("a", "1").unwrap();
        db.flush().unwrap();
        assert!(db.metrics().metrics_file_failures >= 3, "{call:?}");
        assert_eq!(read_file(&disk), None);
        assert!(db.health().is_good(), "{call:?}");
        faulty.clear_rules();
        db.env().pause_us(2_000_000);
        assert!(read_file(&disk).is_some(), "{call:?}");
        db.close(None).unwrap();
    }
}

#[test]
fn metrics_file_of_a_killed_process_is_ignored_and_removed() {
    let disk = MemVfs::new();
    let db = open(&disk, inline());
    db.put("a", "1").unwrap();
    db.close(None).unwrap();
    for name in ["db/METRICS", "db/METRICS.tmp"] {
        disk.write_all(Path::new(name), b"{\"process_id\": 7").unwrap();
    }
    // An incomplete file counts as none.
    assert_eq!(read_file(&disk), None);
    let options = || Options::default().vfs(Arc::new(disk.clone()));
    assert_clean(&disk);
    let observed = lsmx::observe("db", &options()).unwrap();
    assert_eq!(observed.other_files, 0);
    let report = lsmx::repair("db", &options(), &RepairOptions::default()).unwrap();
    assert!(!report.damaged && report.lost.is_empty(), "{report:?}");
    let db = open(&disk, inline());
    assert!(!disk.paths().iter().any(|path| path.to_string_lossy().contains("METRICS")));
    // A checkpoint has none either, even if one is being written.
    disk.write_all(Path::new("db/METRICS"), b"{}").unwrap();
    db.checkpoint("copy").unwrap();
    assert!(!disk.paths().iter().any(|path| path.starts_with("copy/METRICS")));
}
