//! Test of `scripts/cluster`, which runs cells on a Ray cluster.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cells::{CellRun, compare_with_collected, in_one_process, without_times};
use crate::common::{CliOutput, TestDir, read_json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster");
const CELLS: usize = 8;
const EXPLORE: &str = "--policy full,tiering --sweep memtable=64K,128K --repeat 2 --seed 9 \
                       --deterministic --entries 40000 --value-len 48 --lookups 500 --ranges 20";
/// An experiment with four short cells.
const SHORT_EXPLORE: &str = "--policy full,tiering --sweep memtable=64K,128K --seed 9 --deterministic \
                             --entries 10000 --value-len 48 --lookups 200 --ranges 20";
/// Number of killed processes. Each cell may be killed as often.
const KILLS: usize = 4;

/// Returns whether Python has the package. Reports a skipped test otherwise.
fn has_ray(home: &TestDir) -> bool {
    let imported = python(home).args(["-c", "import ray"]).status();
    let has_ray = imported.is_ok_and(|status| status.success());
    if !has_ray {
        lsmx_stress::report_skipped("scripts/cluster", "python3 has no package ray");
    }
    has_ray
}

/// Starts the script with further arguments `words`. Ray writes its own files to `ray`.
fn start(run: &CellRun, databases: &TestDir, ray: &TestDir, words: &str) -> Child {
    let lsmx = env!("CARGO_BIN_EXE_lsmx");
    let mut command = python(ray);
    command.arg(SCRIPT).args([&run.dir.path("list"), &run.results]);
    command.args(words.split_whitespace());
    command.args(["--retries", &KILLS.to_string(), "--lsmx", lsmx]);
    command.args(["--dir", databases.root().to_str().unwrap()]);
    command.args(["--", "--json", &run.dir.path("collected.json")]);
    // The processes of Ray are killed with the group.
    command.process_group(0).spawn().unwrap()
}

fn python(home: &TestDir) -> Command {
    let mut command = Command::new("python3");
    command.env("HOME", home.root()).env("RAY_TMPDIR", home.root());
    // A cluster that `ray.init` has started requires the token that it has written to the home directory.
    command.env("RAY_USAGE_STATS_ENABLED", "0").env("RAY_AUTH_MODE", "token");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn signal(name: &str, process: &str) {
    let arguments = [name, "--", process];
    // The process may have ended.
    let _ = Command::new("kill").args(arguments).stderr(Stdio::null()).status().unwrap();
}

/// Returns the process and its parent of each `lsmx` that runs a cell with its database in `databases`.
fn cell_processes(databases: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).into_owned();
        let is_lsmx = words.starts_with(env!("CARGO_BIN_EXE_lsmx"));
        if !is_lsmx || !words.contains(databases.to_str().unwrap()) {
            continue;
        }
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let parent = stat.rsplit(") ").next().unwrap().split(' ').nth(1);
        if let Some(parent) = parent {
            let process = entry.file_name().into_string().unwrap();
            found.push((process, parent.to_owned()));
        }
    }
    found
}

/// Kills Ray workers and an `lsmx` process while they run cells, then kills the script and starts it again.
#[test]
fn cluster_with_killed_workers_equals_one_process() {
    let ray = TestDir::on_disk();
    if !has_ray(&ray) {
        return;
    }
    let run = CellRun::new("explore", EXPLORE);
    let databases = TestDir::new();
    let start = || start(&run, &databases, &ray, "--cores 2");
    let mut script = start();
    let mut killed = BTreeSet::new();
    while killed.len() < KILLS {
        if script.try_wait().unwrap().is_some() {
            panic!("{:?}", CliOutput::new(script.wait_with_output().unwrap()));
        }
        for (process, worker) in cell_processes(databases.root()) {
            if worker != "1" && killed.len() < KILLS && killed.insert(process.clone()) {
                let victim = if killed.len() == 1 { &process } else { &worker };
                assert_ne!(victim, &script.id().to_string());
                signal("-KILL", victim);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    while fs::read_dir(&run.results).unwrap().count() < 2 && script.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("-KILL", &format!("-{}", script.id()));
    script.wait().unwrap();
    let finished = |index: usize| {
        let path = format!("{}/{index:06}.json", run.results);
        fs::exists(&path).unwrap().then(|| read_json(path))
    };
    let before: Vec<_> = (0..CELLS).map(finished).collect();
    assert!(before.iter().any(Option::is_some));

    let again = CliOutput::new(start().wait_with_output().unwrap());
    assert_eq!(again.code, 0, "{again:?}");
    for (index, before) in before.into_iter().enumerate() {
        assert!(before.is_none_or(|before| finished(index) == Some(before)), "{index} ran again");
    }
    let one = in_one_process(&format!("explore {EXPLORE}")).1;
    let collected = read_json(run.dir.path("collected.json"));
    assert_eq!(without_times(collected), without_times(one));
}

#[test]
fn cluster_per_machine_runs_one_cell_at_a_time() {
    let ray = TestDir::on_disk();
    if !has_ray(&ray) {
        return;
    }
    let run = CellRun::new("explore", SHORT_EXPLORE);
    let databases = TestDir::new();
    let mut script = start(&run, &databases, &ray, "--cores 2 --per machine");
    let mut processes_max = 0;
    while script.try_wait().unwrap().is_none() {
        processes_max = processes_max.max(cell_processes(databases.root()).len());
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = CliOutput::new(script.wait_with_output().unwrap());
    assert_eq!((output.code, processes_max), (0, 1), "{output:?}");
    let one = in_one_process(&format!("explore {SHORT_EXPLORE}")).1;
    let compared = compare_with_collected(&run, &one);
    assert_eq!(compared.matches("the same digest").count(), 4, "{compared}");
}

/// Connects the script to a cluster that was started without the resource `machine`.
#[test]
fn cluster_per_machine_without_the_resource_is_an_error() {
    const HEAD: &str = "import ray, sys\n\
                        context = ray.init(num_cpus=1, include_dashboard=False)\n\
                        print(context.address_info['gcs_address'], flush=True)\n\
                        sys.stdin.read()";
    let ray = TestDir::on_disk();
    if !has_ray(&ray) {
        return;
    }
    // The cluster ends with its standard input.
    let mut head = python(&ray).args(["-c", HEAD]).stdin(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(head.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
    let run = CellRun::new("explore", SHORT_EXPLORE);
    let words = format!("--per machine --address {address}");
    let script = start(&run, &TestDir::new(), &ray, &words);
    let output = CliOutput::new(script.wait_with_output().unwrap());
    assert_eq!(output.code, 1, "{output:?}");
    let expected = "error: --per machine: start each machine with ray start --resources";
    assert!(output.stderr.contains(expected), "{output:?}");
    assert_eq!(fs::read_dir(&run.results).unwrap().count(), 0);
    drop(head.stdin.take());
    head.wait().unwrap();
}
