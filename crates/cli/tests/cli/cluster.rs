//! Test of `scripts/cluster`, which runs cells on a Ray cluster.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cells::{CellRun, in_one_process, without_times};
use crate::common::{CliOutput, TestDir, read_json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cluster");
const CELLS: usize = 8;
const EXPLORE: &str = "--policy full,tiering --sweep memtable=64K,128K --repeat 2 --seed 9 \
                       --deterministic --entries 40000 --value-len 48 --lookups 500 --ranges 20";
/// Number of killed processes. Each cell may be killed as often.
const KILLS: usize = 4;

/// Starts the script. Ray writes its own files to `ray`.
fn start(run: &CellRun, databases: &TestDir, ray: &TestDir, json: &str) -> Child {
    let lsmx = env!("CARGO_BIN_EXE_lsmx");
    let mut command = python(ray);
    command.arg(SCRIPT).args([&run.dir.path("list"), &run.results, "--cores", "2"]);
    command.args(["--retries", &KILLS.to_string(), "--lsmx", lsmx]);
    command.args(["--dir", databases.root().to_str().unwrap(), "--", "--json", json]);
    // The processes of Ray are killed with the group.
    command.process_group(0).spawn().unwrap()
}

fn python(home: &TestDir) -> Command {
    let mut command = Command::new("python3");
    command.env("HOME", home.root()).env("RAY_TMPDIR", home.root());
    command.env("RAY_USAGE_STATS_ENABLED", "0");
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
    let has_ray = python(&ray).args(["-c", "import ray"]).status();
    if !has_ray.is_ok_and(|status| status.success()) {
        return lsmx_stress::report_skipped("scripts/cluster", "python3 has no package ray");
    }
    let run = CellRun::new("explore", EXPLORE);
    let databases = TestDir::new();
    let json = run.dir.path("collected.json");
    let mut script = start(&run, &databases, &ray, &json);
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

    let again = CliOutput::new(start(&run, &databases, &ray, &json).wait_with_output().unwrap());
    assert_eq!(again.code, 0, "{again:?}");
    for (index, before) in before.into_iter().enumerate() {
        assert!(before.is_none_or(|before| finished(index) == Some(before)), "{index} ran again");
    }
    let one = in_one_process(&format!("explore {EXPLORE}")).1;
    assert_eq!(without_times(read_json(json)), without_times(one));
}
