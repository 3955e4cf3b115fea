//! Tests of `--emit-cells`, `--run-cell` and `--collect`.

use std::fs;

use crate::common::{
    CliOutput, TestDir, command, list, lsmx, number, numbers, read_json, remove_times,
};
use serde_json::Value;

/// The list of cells of an experiment, and a directory for their results.
pub(crate) struct CellRun {
    pub(crate) dir: TestDir,
    experiment: &'static str,
    pub(crate) results: String,
}

impl CellRun {
    /// Writes the list. `words` are the arguments of the experiment.
    pub(crate) fn new(experiment: &'static str, words: &str) -> CellRun {
        let dir = TestDir::new();
        let list = dir.path("list");
        assert_eq!(lsmx(&format!("{experiment} {words} --emit-cells {list}")).ok(), "");
        let results = dir.path("results");
        fs::create_dir(&results).unwrap();
        CellRun { dir, experiment, results }
    }

    fn cell_words(&self, index: u64) -> String {
        let (list, results) = (self.dir.path("list"), &self.results);
        format!("{} --run-cell {list}:{index} --json {results}", self.experiment)
    }

    fn count(&self) -> u64 {
        u64::try_from(fs::read_to_string(self.dir.path("list")).unwrap().lines().count()).unwrap()
    }

    fn result(&self, index: u64) -> Value {
        read_json(format!("{}/{index:06}.json", self.results))
    }

    fn collect(&self, words: &str) -> CliOutput {
        lsmx(&format!("{} --collect {} {words}", self.experiment, self.results))
    }

    /// Collects the results. Returns the printed tables and the JSON result.
    fn collected(&self, words: &str) -> (String, Value) {
        let json = self.dir.path("collected.json");
        let table = self.collect(&format!("--json {json} {words}")).ok();
        (table, read_json(json))
    }
}

/// Runs an experiment in one process. Returns the printed tables and the JSON result.
pub(crate) fn in_one_process(words: &str) -> (String, Value) {
    let dir = TestDir::new();
    let json = dir.path("one.json");
    let databases = match words.starts_with("simulate") {
        true => String::new(),
        false => format!("--dir {}", dir.root().display()),
    };
    let table = lsmx(&format!("{words} --json {json} {databases}")).ok();
    (table, read_json(json))
}

pub(crate) fn without_times(mut result: Value) -> Value {
    remove_times(&mut result);
    result
}

const EXPLORE: &str = "--policy full,tiering --sweep memtable=64K,128K --repeat 2 --seed 5 \
                       --deterministic --entries 12000 --value-len 48 --lookups 500 --ranges 20 \
                       --updates 0.2 --deletes 0.1";
/// Columns of `explore` that do not depend on the time.
const COLUMNS: &str =
    "--columns policy,data_moved_ratio,digest,levels,point_lookups[*].ios_per_get";

/// Kills processes while they run a cell, and runs their cells again.
#[cfg(unix)]
#[test]
fn killed_cells_run_again_and_equal_one_process() {
    use std::os::unix::process::ExitStatusExt;

    let run = CellRun::new("explore", EXPLORE);
    let databases = TestDir::new();
    let words = |index| format!("{} --dir {}", run.cell_words(index), databases.root().display());
    let mut kills = 0;
    for index in 0..run.count() {
        if index == 7 {
            run.collect("").fails(2, &["1 of 8 cells are missing: 7"]);
        }
        let mut child = command(&words(index)).spawn().unwrap();
        // The directory of the database exists from the begin to the end of the run.
        while databases.names().is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        if child.wait().unwrap().signal().is_some() {
            kills += 1;
            assert!(!fs::exists(format!("{}/{index:06}.json", run.results)).unwrap());
        }
        lsmx(&words(index)).ok();
    }
    assert!(kills > 0, "no process was killed");
    assert!(databases.names().is_empty(), "temporary files remain: {:?}", databases.names());

    let (table, collected) = run.collected(COLUMNS);
    let (table_of_one, one) = in_one_process(&format!("explore {EXPLORE} {COLUMNS}"));
    assert_eq!(without_times(collected.clone()), without_times(one.clone()));
    assert_eq!(table, table_of_one);
    let compared = compare_with_collected(&run, &one);
    assert_eq!(compared.matches("the same digest").count(), 4, "{compared}");
    let command = collected["provenance"]["command"].as_str().unwrap();
    assert!(command.ends_with(&format!("lsmx explore {}", words_of(EXPLORE))), "{command}");
}

/// Passes the result of one process and the collected result to `lsmx compare`. Returns the printed differences.
pub(crate) fn compare_with_collected(run: &CellRun, one: &Value) -> String {
    let one = run.dir.write("one.json", one.to_string());
    lsmx(&format!("compare {one} {} --fail-above 0", run.dir.path("collected.json"))).ok()
}

/// Returns the words of a command line, separated by single spaces.
fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn results_and_lists_of_other_experiments_are_refused() {
    let dir = TestDir::new();
    let phases = dir.write("phases.toml", "[[phase]]\nentries = 1000\n");
    let words = format!("--policy full,tiering --phases {phases}");
    let run = CellRun::new("explore", &words);
    lsmx(&run.cell_words(0)).ok();
    lsmx(&run.cell_words(2)).fails(2, &["list: it has no cell 2"]);
    let rmw = CellRun { experiment: "rmw", ..run };
    lsmx(&rmw.cell_words(0)).fails(2, &["list: it has cells of `lsmx explore`"]);
    rmw.collect("").fails(2, &["1 of 2 cells are missing: 1"]);
    let run = CellRun { experiment: "explore", ..rmw };
    let other = CellRun::new("explore", "--policy full,rr --entries 1000");
    lsmx(&other.cell_words(1)).ok();
    let foreign = format!("{}/000001.json", run.results);
    fs::copy(format!("{}/000001.json", other.results), &foreign).unwrap();
    run.collect("").fails(2, &["000001.json: it belongs to another list"]);
    fs::remove_file(&foreign).unwrap();

    lsmx(&run.cell_words(1)).ok();
    // Regression test: a collected result could replace an input of the experiment.
    run.collect(&format!("--json {phases}")).fails(2, &["phases.toml contradicts the input "]);
    let version = env!("CARGO_PKG_VERSION");
    let list = fs::read_to_string(run.dir.path("list")).unwrap();
    let old = list.replace(&format!("\"version\":\"{version}\""), "\"version\":\"0.0.0\"");
    run.dir.write("list", old);
    lsmx(&run.cell_words(1)).fails(2, &["list: it holds cells of lsmx 0.0.0"]);
    run.dir.write("list", list);
    dir.write("phases.toml", "[[phase]]\nentries = 2000\n");
    lsmx(&run.cell_words(1)).fails(2, &["list: ", "phases.toml has changed"]);
    run.collect("").fails(2, &["000000.json: ", "phases.toml has changed"]);
}

#[test]
fn simulated_cells_equal_one_process() {
    let words = "--policy full,tiering --sweep entries=1M,1G --repeat 2";
    let run = CellRun::new("simulate", words);
    assert_eq!(run.count(), 8);
    (0..8).for_each(|index| assert_eq!(lsmx(&run.cell_words(index)).ok(), ""));
    let columns = "--columns policy,seed,data_moved_ratio";
    let (table, collected) = run.collected(columns);
    assert!(table.starts_with("memtables and tables hold 64.0 MiB of data"), "{table}");
    let (table_of_one, one) = in_one_process(&format!("simulate {words} {columns}"));
    assert_eq!(without_times(collected), without_times(one));
    assert_eq!(table, table_of_one);
}

#[test]
fn rmw_cells_are_combined_like_repetitions() {
    let words = "--mode get-put,merge --read-ratio 0.1,0.5 --repeat 2 --entries 1000 --ops 500";
    let run = CellRun::new("rmw", words);
    assert_eq!(run.count(), 8);
    for index in (0..8).rev() {
        lsmx(&format!("{} --dir {}", run.cell_words(index), run.dir.root().display())).ok();
    }
    let collected = run.collected("").1;
    let one = in_one_process(&format!("rmw {words}")).1;
    let described = |result: &Value| -> Vec<Value> {
        let fields = ["/mode", "/base", "/read_ratio", "/workload", "/repeats/seeds"];
        let of_cell = |cell| {
            fields.iter().map(|field| Value::clone(Value::pointer(cell, field).unwrap())).collect()
        };
        list(result, "/cells").iter().map(of_cell).collect()
    };
    assert_eq!(described(&collected), described(&one));
    let parts: Vec<f64> =
        (0..8).map(|index| number(&run.result(index), "/cells/0/elapsed_s")).collect();
    for (cell, parts) in list(&collected, "/cells").iter().zip(parts.chunks(2)) {
        assert_eq!(numbers(list(cell, "/repeats/metrics/elapsed_s/values"), ""), parts);
    }
}

#[test]
fn bench_cells_are_combined_like_repetitions() {
    let words = "fillrandom readrandom --entries 2000 --ops 200 --repeat 3 --memory-limit 400M";
    // A note on standard error states whether memory can be limited.
    let ok = |words: &str| assert_eq!(lsmx(words).code, 0, "{words}");
    let run = CellRun::new("bench", "fillrandom");
    let disk = TestDir::on_disk();
    ok(&format!("bench {words} --emit-cells {}", run.dir.path("list")));
    assert_eq!(run.count(), 3);
    (0..3).for_each(|at| ok(&format!("{} --dir {}", run.cell_words(at), disk.root().display())));
    let collected = run.collected("").1;
    for workload in ["/cells/0", "/cells/1"] {
        let rates: Vec<f64> = (0..3)
            .map(|index| number(&run.result(index), &format!("{workload}/ops_per_s")))
            .collect();
        let runs = list(&collected, &format!("{workload}/ops_per_s_runs"));
        assert_eq!(numbers(runs, ""), rates);
    }
    // Each repetition measures the device twice, with two queue depths.
    if let Some(device) = run.result(0).get("device") {
        assert_eq!(device.as_array().unwrap().len(), 4);
        let device = list(&collected, "/device");
        assert_eq!(device.len(), 2);
        assert!(device.iter().all(|cell| list(cell, "/ops_per_s_runs").len() == 6));
        assert_ne!(device[0]["threads"], device[1]["threads"]);
    }
}

/// Regression test: without the directory of the results, each cell replaced the same file.
#[test]
fn result_of_another_cell_is_not_replaced() {
    let run = CellRun::new("simulate", "--policy full,tiering --entries 10000");
    let list = run.dir.path("list");
    let run_cell = |index: u64, target: &str| {
        lsmx(&format!("simulate --run-cell {list}:{index} --json {target}"))
    };
    let before = run.dir.names();
    for target in ["missing", "missing/"].map(|name| run.dir.path(name)) {
        run_cell(0, &target).fails(2, &["missing", "there is no such directory", "*.json"]);
    }
    assert_eq!(run.dir.names(), before);
    let file = run.dir.path("a.json");
    for _ in 0..2 {
        run_cell(0, &file).ok();
    }
    run_cell(1, &file).fails(2, &["a.json: it has the result of cell 0"]);
    let (collected, own) = (run.results.clone(), format!("{}/000000.json", run.results));
    for index in 0..2 {
        run_cell(index, &collected).ok();
    }
    lsmx(&format!("simulate --collect {collected} --json {own}"))
        .fails(2, &["000000.json contradicts the input "]);
    let phases = run.dir.write("phases.toml", "[[phase]]\nentries = 1000\n");
    lsmx(&format!("simulate --policy full --phases {phases} --emit-cells {phases}"))
        .fails(2, &["phases.toml contradicts the input "]);
    assert!(fs::read_to_string(&phases).unwrap().starts_with("[[phase]]"));
    assert_eq!(read_json(&file)["cell"]["index"], 0);
}
