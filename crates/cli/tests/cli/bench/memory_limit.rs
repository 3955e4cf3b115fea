//! Tests of `lsmx bench --memory-limit`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::common::{
    CliOutput, TestDir, assert_contains, cells, command, experiment, interrupt, lsmx, number,
    numbers, read_json, spawn, text,
};
use serde_json::json;

/// Arguments of a small run with a limit.
const LIMITED: &str =
    "--entries 20000 --memtable 256K --block-cache 256K --memory-limit 32M --ops 500";

/// Returns whether memory control groups can be created. If not, reports that the test is skipped.
fn has_groups(test: &str) -> bool {
    let dir = TestDir::new();
    let words = format!("bench fillseq {LIMITED} --dir {}", dir.root().display());
    let output = lsmx(&words.replace("20000", "10"));
    assert_eq!(output.code, 0, "{output:?}");
    let has_groups = output.stderr.is_empty();
    if !has_groups {
        lsmx_stress::report_skipped(test, output.stderr);
    }
    has_groups
}

/// Returns the groups of a process that runs `lsmx bench`.
fn groups_of(parent: u32) -> Vec<PathBuf> {
    let prefix = format!("lsmx-bench-{parent}-");
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(directory) = open.pop() {
        // Other processes remove groups at any time.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name();
                let is_wanted = name.to_str().is_some_and(|name| name.starts_with(&prefix));
                if is_wanted { &mut found } else { &mut open }.push(entry.path());
            }
        }
    }
    found
}

/// Starts a run that does not end by itself, and waits until its database exists. Returns the process and the ids of its
/// child processes.
fn start_endless_run(root: &Path) -> (Child, Vec<u32>) {
    let limit = "--memtable 1M --block-cache 1M --memory-limit 64M";
    let words = format!("bench fillrandom --entries 1G {limit} --dir {}", root.display());
    let mut parent = spawn(&words);
    // The command creates a temporary directory, and each repetition creates one in it.
    let has_database = || {
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
        let repetitions = entries(root.to_owned()).flat_map(|entry| entries(entry.path()));
        repetitions.into_iter().any(|repetition| repetition.path().join("lsmx").exists())
    };
    while !has_database() {
        assert!(parent.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let groups = groups_of(parent.id());
    let processes = groups.iter().flat_map(|group| {
        let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap();
        processes.lines().map(|id| id.parse().unwrap()).collect::<Vec<u32>>()
    });
    let processes: Vec<u32> = processes.collect();
    assert_eq!((groups.len(), processes.len()), (1, 1), "one engine has one process");
    (parent, processes)
}

fn is_running(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

fn kill(process: u32) {
    let killed = Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    assert!(killed.success());
}

#[test]
fn limited_run_measures_all_workloads_and_the_device() {
    if !has_groups("a limited run") {
        return;
    }
    let words = "fillrandom readrandom readrandom:threads=2 seekrandom:entries=100 scan \
                 readwhilewriting deleterandom ycsb-f";
    let run = experiment(&format!("bench {words} {LIMITED} --repeat 2"));
    let cells = run.cells();
    let names: Vec<&str> = cells.iter().map(|cell| text(cell, "workload")).collect();
    let mut expected: Vec<&str> = words.split_whitespace().collect();
    expected[2] = "readrandom";
    expected.insert(5, "scan-backward");
    assert_eq!(names, expected);
    assert_eq!(numbers(cells, "/threads")[..3], [1.0, 1.0, 2.0]);
    for cell in cells {
        assert_eq!(cell["ops_per_s_runs"].as_array().unwrap().len(), 2);
        assert!(cell["device_read_bytes_per_op"].is_number(), "{cell}");
    }
    let settings = &run.result["settings"];
    assert_eq!(settings["memory_limit_bytes"], 32 << 20);
    assert!(text(settings, "memory_limit_method").starts_with("cgroup v"), "{settings}");
    assert_contains(&run.table, &["limited to 32.0 MiB by cgroup v"]);
    let Some(device) = run.result["device"].as_array() else {
        return lsmx_stress::report_skipped("reads of the device", "no direct reads");
    };
    assert_eq!(numbers(device, "/threads"), [1.0, 2.0]);
    for cell in device {
        assert_eq!((text(cell, "workload"), text(cell, "engine")), ("page reads", "device"));
        // Two repetitions, each before and after the workloads.
        assert_eq!(cell["ops_per_s_runs"].as_array().unwrap().len(), 4);
        assert!(number(cell, "/ops_per_s") > 0.0 && number(cell, "/latency_us/p99") > 0.0);
    }
    assert_contains(&run.table, &["page reads", "device read"]);
}

/// The pages of an existing database are in the page cache. A limited run must read them again, otherwise they would
/// not count toward the limit.
#[test]
fn limited_run_reads_an_existing_database_from_the_device() {
    if !has_groups("reads of an existing database") {
        return;
    }
    let dir = TestDir::on_disk();
    let db = format!("--db {}", dir.path("data"));
    let flags = LIMITED.replace("--memory-limit 32M", "");
    cells(&format!("bench fillrandom {flags} {db}"));
    let read_bytes = |limit: &str| {
        let run = experiment(&format!("bench readrandom {flags} {limit} {db}"));
        let is_in_memory = text(&run.result["provenance"], "file_system") == "tmpfs";
        (!is_in_memory).then(|| number(&run.cells()[0], "/device_read_bytes_per_op"))
    };
    let Some(cached) = read_bytes("") else {
        return lsmx_stress::report_skipped("reads of an existing database", "files are in memory");
    };
    let limited = read_bytes("--memory-limit 32M").unwrap();
    assert!(cached == 0.0 && limited > 100.0, "{cached} {limited}");

    let limited = format!("{LIMITED} {db}");
    lsmx(&format!("bench fillrandom {limited}"))
        .fails(2, &["lsmx, fillrandom: fillrandom contradicts --db", "one already"]);
    lsmx(&format!("bench readrandom:ops=9 {limited} --seed 9"))
        .fails(2, &["lsmx, readrandom:ops=9: --db is", "--seed"]);
}

#[test]
fn limited_steady_state_runs_in_a_process_of_its_own() {
    if !has_groups("a steady state with a limit") {
        return;
    }
    let dir = TestDir::on_disk();
    let db = dir.path("data");
    let words = format!("bench --experiment steady-state --minutes 0.01 --db {db}");
    // The memtable is so large that the testing phase has no write stall. A stall could fill its second half, which is an
    // error.
    let limited = "--entries 20000 --memtable 64M --block-cache 256K --memory-limit 320M";
    let run = experiment(&format!("{words} --testing-minutes 0.02 {limited}"));
    assert!(text(&run.result["settings"], "memory_limit_method").starts_with("cgroup v"));
    assert_contains(&run.table, &["limited to 320.0 MiB by cgroup v"]);
    let cell = &run.cells()[0];
    assert!(number(cell, "/gets") > 0.0 && number(cell, "/puts") > 0.0, "{cell}");
    assert!(number(cell, "/sustained_ops_per_s") > number(cell, "/scheduled_ops_per_s"), "{cell}");
    lsmx(&format!("{words} --rate 1000 {limited} --seed 9"))
        .fails(2, &["lsmx, steady-state: --db is", "--seed"]);
}

#[test]
fn process_without_enough_memory_is_an_error_that_names_the_workload() {
    if !has_groups("an engine without enough memory") {
        return;
    }
    let dir = TestDir::on_disk();
    let words = "bench fillrandom --entries 1M --memtable 64K --block-cache 64K --memory-limit 1M";
    let parent = spawn(&format!("{words} --dir {}", dir.root().display()));
    let id = parent.id();
    let error = "lsmx, fillrandom: the process needed more memory than --memory-limit 1.0 MiB";
    CliOutput::new(parent.wait_with_output().unwrap()).fails(1, &[error]);
    assert!(dir.names().is_empty() && groups_of(id).is_empty());
}

#[test]
fn killed_process_is_an_error_that_names_the_workload() {
    if !has_groups("a killed process") {
        return;
    }
    let dir = TestDir::on_disk();
    let (parent, processes) = start_endless_run(dir.root());
    let id = parent.id();
    kill(processes[0]);
    let error = "lsmx, fillrandom: the process ended early, signal: 9";
    CliOutput::new(parent.wait_with_output().unwrap()).fails(1, &[error]);
    assert!(dir.names().is_empty() && groups_of(id).is_empty());
}

#[test]
fn interrupted_limited_run_leaves_no_process_and_no_files() {
    if !has_groups("an interrupted run with a limit") {
        return;
    }
    let dir = TestDir::on_disk();
    let (parent, processes) = start_endless_run(dir.root());
    let id = parent.id();
    let output = interrupt(parent);
    assert_eq!((output.code, output.stderr.as_str()), (130, ""), "{output:?}");
    assert!(!is_running(processes[0]) && groups_of(id).is_empty());
    assert!(dir.names().is_empty());
}

/// A killed parent cannot remove its group and its files. The next run does.
#[test]
fn processes_of_a_killed_parent_end() {
    if !has_groups("a killed parent") {
        return;
    }
    let dir = TestDir::on_disk();
    let (mut parent, processes) = start_endless_run(dir.root());
    let id = parent.id();
    kill(id);
    parent.wait().unwrap();
    while is_running(processes[0]) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let words = format!("bench fillseq {LIMITED} --dir {}", dir.root().display());
    lsmx(&words.replace("20000", "10")).ok();
    assert!(dir.names().is_empty() && groups_of(id).is_empty());
}

/// The test removes the mounts of the control groups in a mount namespace.
#[test]
fn without_groups_reads_bypass_the_page_cache() {
    let dir = TestDir::on_disk();
    let json = dir.path("a.json");
    let words = format!("bench fillrandom readrandom {LIMITED} --json {json} --dir");
    let lsmx = command(&words);
    let arguments = lsmx.get_args().map(|word| word.to_str().unwrap()).collect::<Vec<_>>();
    let script = "umount -a -l -t cgroup,cgroup2 && exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_lsmx")])
        .args(arguments)
        .arg(dir.root())
        .output();
    let output = match output {
        Ok(output) if output.status.success() => CliOutput::new(output),
        other => {
            let reason = format!("no mount namespace or no direct reads: {other:?}");
            return lsmx_stress::report_skipped("a limit without groups", reason);
        }
    };
    let note = "note: memory is not limited: ";
    assert!(output.stderr.starts_with(note) && output.stderr.lines().count() == 1, "{output:?}");
    assert_contains(&output.stderr, &["no hierarchy of memory control groups"]);
    let result = read_json(json);
    assert_eq!(result["settings"]["memory_limit_method"], json!("direct I/O"));
    let read = &result["cells"][1];
    // Some lookups find their block in the block cache.
    assert!(number(read, "/device_read_bytes_per_op") >= 3000.0, "{read}");
    assert_eq!(dir.names(), ["a.json"]);
}

/// The run fails if another engine returns a wrong result.
#[cfg(feature = "peer-fjall")]
#[test]
fn peers_run_in_groups_of_their_own() {
    if !has_groups("peers with a limit") {
        return;
    }
    let peers = if cfg!(feature = "peer-rocksdb") { "rocksdb,fjall" } else { "fjall" };
    let engines = 1 + peers.split(',').count();
    let limited = LIMITED.replace("32M", "64M");
    let run =
        experiment(&format!("bench fillrandom readrandom {limited} --peers {peers} --repeat 2"));
    assert_eq!(run.cells().len(), 2 * engines);
    for step in run.cells().chunks(engines) {
        let interval = &step[0]["best_peer_ratio"];
        assert!(number(interval, "/min") <= number(interval, "/median"), "{interval}");
        assert!(step[1..].iter().all(|cell| cell["best_peer_ratio"].is_null()));
    }
    assert_contains(&run.table, &["÷ best"]);
}
