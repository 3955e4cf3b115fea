//! Measures how the time to open a database depends on the number of records. A small template for new experiments.

#![allow(clippy::print_stdout, reason = "the program prints a table")]

use std::path::PathBuf;

use lsmx::{Db, Options};
use lsmx_bench::Result;
use lsmx_bench::clock::Stopwatch;
use lsmx_bench::metric::table::TableStyleOptions;
use lsmx_bench::metric::{MetricRegistry, ResultRow, Unit, metric};
use lsmx_bench::peers::lsmx::engine_error;
use lsmx_bench::report::{Report, provenance::Provenance};
use serde::Serialize;

const REGISTRY: MetricRegistry = MetricRegistry {
    command: "open-time",
    metrics: &[&[
        metric("records", "records", Unit::Count, "records in the database").csv("records"),
        metric("open_s", "open", Unit::Seconds, "time to open the database").cost().csv("open_s"),
    ]],
    identity: &["records"],
    shown: &["open_s"],
};

struct Config {
    records: Vec<u64>,
    directory: PathBuf,
}
#[derive(Serialize)]
struct Cell {
    records: u64,
    open_s: f64,
}
#[derive(Serialize)]
struct OpenTimes {
    provenance: Provenance,
    cells: Vec<Cell>,
}

impl Config {
    fn run(&self) -> Result<OpenTimes> {
        let measure = |&records: &u64| {
            let path = self.directory.join(records.to_string());
            let db =
                Db::open(&path, Options::default()).map_err(engine_error("open a database"))?;
            for key in 0..records {
                db.put(key.to_be_bytes(), [0; 100]).map_err(engine_error("put a record"))?;
            }
            db.close(None).map_err(engine_error("close the database"))?;
            let stopwatch = Stopwatch::start();
            Db::open(&path, Options::default()).map_err(engine_error("open the database"))?;
            Ok(Cell { records, open_s: stopwatch.elapsed_s() })
        };
        let cells = self.records.iter().map(measure).collect::<Result<_>>()?;
        let provenance = Provenance::new("open-time".to_owned(), None, 0, &self.directory);
        Ok(OpenTimes { provenance, cells })
    }
}

impl Report for OpenTimes {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }
    fn provenance(&self) -> &Provenance {
        &self.provenance
    }
    fn head(&self) -> String {
        "records of 8 + 100 B".to_owned()
    }
    fn rows(&self) -> Result<Vec<ResultRow>> {
        self.cells.iter().map(|cell| Ok(ResultRow::new(cell)?)).collect()
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let result =
        Config { records: vec![1_000, 10_000], directory: directory.path().into() }.run()?;
    print!("{}", result.text(&TableStyleOptions::default())?);
    Ok(())
}
