//! Tests of experiments with many configurations: sweeps, repetitions, dry runs and interruptions.

use std::collections::BTreeSet;
use std::fs;

use crate::common::{
    TestDir, assert_contains, cells, experiment, list, lsmx, number, numbers, read_json, text,
};
use serde_json::{Value, json};

/// Arguments of a run that takes a fraction of a second and builds a tree with a few levels.
const TINY: &str = "--entries 6000 --value-len 48 --memtable 64K --lookups 200 --ranges 5 \
                    --selectivity 0.01";

#[test]
fn every_combination_has_a_cell_and_a_row() {
    let words = "--policy full,tiering --sweep size-ratio=2,4 --sweep updates=0,0.5";
    let run = experiment(&format!("explore {words} --deterministic {TINY}"));
    let cells = run.cells();
    assert_eq!(cells.len(), 8);
    let named = |cell: &Value| format!("{} {}", cell["policy"], cell["sweep"]);
    assert_eq!(named(&cells[0]), r#""full" {"size-ratio":2,"updates":0}"#);
    assert_eq!(named(&cells[3]), r#""tiering" {"size-ratio":2,"updates":0.5}"#);
    let digests: BTreeSet<&str> = cells.iter().map(|cell| text(cell, "digest")).collect();
    assert_eq!(digests.len(), 8, "each configuration has its own digest");
    assert_eq!(cells[7]["spec"], "tiering(T=4)");
    assert_eq!(cells[7]["workload"]["phases"][0]["updates"], 3000);

    let header: Vec<&str> = run.csv[0].split(',').collect();
    assert_eq!(header[..4], ["size-ratio", "updates", "policy", "spec"]);
    for column in ["write_amplification", "compaction.jobs", "point_lookups[1.0].ios_per_get"] {
        assert!(header.contains(&column), "{column} is not in {header:?}");
    }
    assert_eq!(run.csv.len(), 1 + 8);
    assert!(run.csv[3].starts_with("2,0.5,full,"), "{}", run.csv[3]);
}

#[test]
fn policy_parameters_and_switches_are_swept() {
    let words = "--policy leveled(T=4),1-leveling --sweep policy.trigger=2,6 \
                 --sweep interleave=false,true --deterministic";
    let cells = cells(&format!("explore {words} {TINY}"));
    let specs: Vec<&str> = cells.iter().map(|cell| text(cell, "spec")).collect();
    assert_eq!(specs[..2], ["leveled(T=4,trigger=2)", "1-leveling(trigger=2)"]);
    assert_eq!(specs[4..6], ["leveled(T=4,trigger=6)", "1-leveling(trigger=6)"]);
    let phases: Vec<usize> =
        cells.iter().map(|cell| list(cell, "/workload/phases").len()).collect();
    assert_eq!(phases, [4, 4, 2, 2, 4, 4, 2, 2]);
}

#[test]
fn repetitions_give_medians_with_intervals() {
    let words = format!("explore --policy lo+1 --deterministic {TINY}");
    let run = |seed: u64| number(&cells(&format!("{words} --seed {seed}"))[0], "/data_moved_ratio");
    let mut moved: Vec<f64> = (3..9).map(run).collect();
    let repeated = &cells(&format!("{words} --seed 3 --repeat 6"))[0];
    let repeats = &repeated["repeats"];
    let metric = &repeats["metrics"]["data_moved_ratio"];
    assert_eq!(metric["values"], json!(moved), "repetitions use consecutive seeds");
    assert_eq!(repeats["seeds"], json!([3, 4, 5, 6, 7, 8]));
    moved.sort_by(f64::total_cmp);
    assert_eq!(repeated["data_moved_ratio"], json!(moved[2]));
    assert_eq!(metric["low"], json!(moved[0]));
    assert_eq!(metric["interval"]["high"], json!(moved[5]));
    assert_eq!(metric["interval"]["confidence"], json!(0.96875));
    let median = usize::try_from(repeated["seed"].as_u64().unwrap() - 3).unwrap();
    assert_eq!(repeats["digests"][median], repeated["digest"]);
}

#[test]
fn dry_run_lists_the_cells_and_runs_none() {
    let dir = TestDir::new();
    let (root, resume) = (dir.root().display(), dir.path("cells"));
    // Regression test: a dry run wrote its command line to an existing directory, so that no other command could use it.
    fs::create_dir(&resume).unwrap();
    let words = "--policy full,tiering --sweep memtable=16K,32K --repeat 3 --entries 1000000";
    let table = lsmx(&format!("explore {words} --dry-run --dir {root} --resume {resume}")).ok();
    let cells: Vec<&str> = table.lines().filter(|line| line.contains("1201000")).collect();
    assert_eq!(cells.len(), 4, "{table}");
    assert!(cells[1].trim_start().starts_with("tiering") && cells[1].contains("16384"), "{table}");
    assert_contains(&table, &["12 runs to come, 0 finished", "100000 writes"]);

    let words = "--dry-run --read-ratio 0.1,0.9 --entries 1000000";
    let table = lsmx(&format!("rmw {words} --dir {root} --resume {resume}")).ok();
    let modes = ["lsmx get-put tree", "lsmx merge tree", "lsmx kd tree"];
    assert_contains(&table, &[&modes[..], &["10.0", "90.0", "976.6 MiB", "39.1 MiB"]].concat());
    assert_eq!(dir.names(), ["cells"]);
    assert_eq!(fs::read_dir(&resume).unwrap().count(), 0);
}

#[test]
fn resume_of_another_run_is_rejected() {
    let dir = TestDir::new();
    let resume = |words: &str| {
        lsmx(&format!("explore {words} --deterministic {TINY} --resume {}", dir.root().display()))
    };
    resume("--policy full").ok();
    // Regression test: an output could replace the plan or a finished cell.
    for name in ["plan.json", "000000.json"] {
        resume(&format!("--policy full --json {}", dir.path(name))).fails(2, &[name, "--resume"]);
    }
    resume("--policy full").ok();
    resume("--policy tiering").fails(2, &["--resume", "the command line", "--policy full"]);
    dir.write("000000.json", "{}");
    resume("--policy full").fails(2, &["000000.json"]);
    let plan = fs::read_to_string(dir.path("plan.json")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    dir.write("plan.json", plan.replace(version, "0.0.0"));
    resume("--policy full").fails(2, &["lsmx 0.0.0", version]);
}

#[cfg(unix)]
#[test]
fn resumed_sweep_equals_uninterrupted_sweep() {
    use crate::common::{interrupt, remove_times, spawn};

    const CELLS: usize = 32;
    let dir = TestDir::new();
    let words = |name: &str| {
        let root = dir.root().display();
        format!(
            "explore --policy full,lo+1,tiering,universal --sweep memtable=64K,128K --repeat 4 \
             --entries 12000 --value-len 48 --lookups 500 --ranges 20 --updates 0.2 --deletes 0.1 \
             --deterministic --dir {root} --resume {root}/{name}-cells --json {root}/{name}.json"
        )
    };
    let finished = |name: &str| {
        let cells = fs::read_dir(dir.path(&format!("{name}-cells")));
        let names = cells.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("0000")).count()
    };

    let mut child = spawn(&words("interrupted"));
    while finished("interrupted") < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupted = interrupt(child);
    assert_eq!(interrupted.code, 130);
    assert_contains(&interrupted.stderr, &["interrupted-cells"]);
    assert_eq!(interrupted.stderr.lines().count(), 1);
    assert_eq!(dir.names(), ["interrupted-cells"], "the temporary database is removed");
    let kept = finished("interrupted");
    assert!((3..CELLS).contains(&kept), "{kept} configurations were finished");
    let before = read_json(dir.path("interrupted-cells/000000.json"));

    let run = |name: &str| {
        lsmx(&words(name)).ok();
        read_json(dir.path(&format!("{name}.json")))
    };
    let (mut resumed, mut straight) = (run("interrupted"), run("straight"));
    // The resumed run does not repeat the configurations that were finished before the interruption.
    let elapsed =
        numbers(resumed["cells"].as_array().unwrap(), "/repeats/metrics/elapsed_s/values/0");
    assert_eq!(elapsed[0], number(&before, "/elapsed_s"));
    remove_times(&mut resumed);
    remove_times(&mut straight);
    assert_eq!(resumed, straight);
    assert_eq!((finished("interrupted"), finished("straight")), (CELLS, CELLS));
    assert_eq!(list(&resumed, "/cells").len(), CELLS / 4);
}
