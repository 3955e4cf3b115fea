//! Sweeps, repetitions, interruptions: `lsmx explore` as a run of many cells.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{
    Said, cells as cells_of, interrupt, lsmx, read_json, read_rows, run, spawn, text,
};
use serde_json::Value;

/// A tree of a few levels within a fraction of a second.
const TINY: &str = "--entries 6000 --value-len 48 --memtable 64K --lookups 200 --ranges 5 \
                    --selectivity 0.01";

fn explore(words: &str) -> Said {
    run("explore", words)
}

fn cells(words: &str, directory: &Path) -> Vec<Value> {
    cells_of("explore", words, directory)
}

/// Removes times and the command line. Everything else depends on the seed alone.
fn without_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| {
                let timed = name.contains("latency_us") || name == "elapsed_s" || name == "command";
                !timed
            });
            members.values_mut().for_each(without_times);
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_times),
        _ => {}
    }
}

#[test]
fn every_combination_has_a_cell_and_a_row() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("cells.csv");
    let cells = cells(
        &format!(
            "--policy full,tiering --sweep size-ratio=2,4 --sweep updates=0,0.5 --deterministic \
             {TINY} --csv {}",
            csv.display()
        ),
        directory.path(),
    );
    let sweeps: Vec<String> =
        cells.iter().map(|cell| format!("{} {}", cell["policy"], cell["sweep"])).collect();
    assert_eq!(sweeps.len(), 8);
    assert_eq!(sweeps[0], r#""full" {"size-ratio":2,"updates":0}"#);
    assert_eq!(sweeps[3], r#""tiering" {"size-ratio":2,"updates":0.5}"#);
    let digests: BTreeSet<&str> = cells.iter().map(|at| at["digest"].as_str().unwrap()).collect();
    assert_eq!(digests.len(), 8, "each cell is another run");
    assert_eq!(cells[7]["spec"], "tiering(T=4)");
    assert_eq!(cells[7]["workload"]["phases"][0]["updates"], 3000);

    let rows = read_rows(&csv);
    let header: Vec<&str> = rows[0].split(',').collect();
    assert_eq!(header[..4], ["size-ratio", "updates", "policy", "spec"]);
    for column in ["write_amplification", "compaction.jobs", "point_lookups[1.0].ios_per_get"] {
        assert!(header.contains(&column), "{column} is not in {header:?}");
    }
    assert_eq!(rows.len(), 1 + 8);
    assert!(rows[3].starts_with("2,0.5,full,"), "{}", rows[3]);
}

#[test]
fn parameters_of_policies_and_switches_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let cells = cells(
        &format!(
            "--policy leveled(T=4),1-leveling --sweep policy.trigger=2,6 \
             --sweep interleave=false,true --deterministic {TINY}"
        ),
        directory.path(),
    );
    let specs: Vec<&str> = cells.iter().map(|cell| text(cell, "spec")).collect();
    assert_eq!(specs[..2], ["leveled(T=4,trigger=2)", "1-leveling(trigger=2)"]);
    assert_eq!(specs[4..6], ["leveled(T=4,trigger=6)", "1-leveling(trigger=6)"]);
    let phases: Vec<usize> =
        cells.iter().map(|cell| cell["workload"]["phases"].as_array().unwrap().len()).collect();
    assert_eq!(phases, [4, 4, 2, 2, 4, 4, 2, 2]);
}

#[test]
fn repetitions_give_medians_with_intervals() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("--policy lo+1 --deterministic {TINY}");
    let mut moved = Vec::new();
    for seed in 3..9 {
        let cells = cells(&format!("{words} --seed {seed}"), directory.path());
        moved.push(cells[0]["data_moved_ratio"].as_f64().unwrap());
    }
    let repeated = &cells(&format!("{words} --seed 3 --repeat 6"), directory.path())[0];
    let metric = &repeated["repeats"]["metrics"]["data_moved_ratio"];
    let values: Vec<f64> =
        metric["values"].as_array().unwrap().iter().map(|at| at.as_f64().unwrap()).collect();
    assert_eq!(values, moved, "the repetitions are the runs with the seeds that follow");
    assert_eq!(repeated["repeats"]["seeds"], serde_json::json!([3, 4, 5, 6, 7, 8]));
    moved.sort_by(f64::total_cmp);
    assert_eq!(repeated["data_moved_ratio"].as_f64(), Some(moved[2]));
    assert_eq!(metric["low"].as_f64(), Some(moved[0]));
    assert_eq!(metric["interval"]["high"].as_f64(), Some(moved[5]));
    assert_eq!(metric["interval"]["confidence"].as_f64(), Some(0.96875));
    let place = repeated["seed"].as_u64().unwrap() - 3;
    assert_eq!(repeated["repeats"]["digests"][usize::try_from(place).unwrap()], repeated["digest"]);
}

#[test]
fn a_dry_run_lists_the_cells_and_runs_none() {
    let directory = tempfile::tempdir().unwrap();
    let text = explore(&format!(
        "--policy full,tiering --sweep memtable=16K,32K --repeat 3 --entries 1000000 --dry-run \
         --dir {} --resume {}/cells",
        directory.path().display(),
        directory.path().display()
    ))
    .ok();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let cells: Vec<&str> = text.lines().filter(|line| line.contains("1201000")).collect();
    assert_eq!(cells.len(), 4, "{text}");
    assert!(cells[1].trim_start().starts_with("tiering") && cells[1].contains("16384"), "{text}");
    assert!(text.contains("12 runs to come, 0 finished"), "{text}");
    assert!(text.contains("100000 writes"), "the rate is stated: {text}");
}

#[test]
fn resume_of_another_run_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let (dir, cells) = (directory.path().display(), directory.path().join("cells"));
    let resume =
        |words: &str| explore(&format!("{words} {TINY} --dir {dir} --resume {}", cells.display()));
    resume("--policy full --deterministic").ok();
    resume("--policy tiering --deterministic")
        .fails(2, &["--resume", "the command line", "--policy full"]);
    fs::write(cells.join("000000.json"), "{}").unwrap();
    resume("--policy full --deterministic").fails(2, &["000000.json"]);
    let plan = fs::read_to_string(cells.join("plan.json")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    fs::write(cells.join("plan.json"), plan.replace(version, "0.0.0")).unwrap();
    resume("--policy full --deterministic").fails(2, &["lsmx 0.0.0", version]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_sweep_goes_on_and_gives_what_an_uninterrupted_one_gives() {
    const CELLS: usize = 16;
    let directory = tempfile::tempdir().unwrap();
    let words = |name: &str| {
        let dir = directory.path().display();
        format!(
            "explore --policy full,lo+1,tiering,universal --sweep memtable=64K,128K --repeat 2 \
             --entries 12000 --value-len 48 --lookups 500 --ranges 20 --updates 0.2 --deletes 0.1 \
             --deterministic --dir {dir} --resume {dir}/{name}-cells --json {dir}/{name}.json"
        )
    };
    let finished = |name: &str| {
        let cells = fs::read_dir(directory.path().join(format!("{name}-cells")));
        let names = cells.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("0000")).count()
    };
    let temporary = || {
        let entries = fs::read_dir(directory.path()).unwrap().flatten();
        entries.filter(|at| at.file_name().to_string_lossy().starts_with("lsmx-explore-")).count()
    };

    let mut child = spawn(&words("interrupted"));
    while finished("interrupted") < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let Said { code, stderr: said, .. } = interrupt(child);
    assert_eq!(code, 130);
    assert!(said.contains("interrupted-cells") && said.lines().count() == 1, "{said}");
    assert_eq!(temporary(), 0, "the database of the cell at hand is gone");
    let kept = finished("interrupted");
    assert!((3..CELLS).contains(&kept), "{kept} cells were finished");
    let first = directory.path().join("interrupted-cells/000000.json");
    let before = fs::read_to_string(&first).unwrap();

    let run = |name: &str| {
        lsmx(&words(name).split_whitespace().collect::<Vec<_>>()).ok();
        let mut result = read_json(&directory.path().join(format!("{name}.json")));
        // Nothing that was measured before the interruption was measured again.
        let elapsed = result["cells"][0]["repeats"]["metrics"]["elapsed_s"]["values"][0].clone();
        without_times(&mut result);
        (serde_json::to_string_pretty(&result).unwrap(), elapsed)
    };
    let (resumed, elapsed) = run("interrupted");
    let before: Value = serde_json::from_str(&before).unwrap();
    assert_eq!(elapsed, before["elapsed_s"]);
    let (straight, _) = run("straight");
    assert_eq!(resumed, straight);
    assert_eq!((finished("interrupted"), finished("straight")), (CELLS, CELLS));
    assert_eq!(resumed.matches("\"digest\"").count(), CELLS / 2);
}
