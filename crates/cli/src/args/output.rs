//! Arguments for the results of experiments.

use std::path::{Path, PathBuf};

use clap::Args;
use lsmx_bench::metric::MetricRegistry;
use lsmx_bench::metric::table::{TableStyleOptions, WIDTH_DEFAULT, check_columns, terminal_width};
use lsmx_bench::report::{Report, csv, file, json};

use crate::failure::Failure;
use crate::output;

/// Files and tables for the result of an experiment.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as one HTML page with plots, which needs no network.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the result as CSV, a row per line of the table, with all columns.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Columns of the table by their names in JSON, or `all`. A `*` stands for any part of a name, as in
    /// `put_latency_us.*` [default: the most important ones].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) columns: Vec<String>,
    /// Print no explanations of the columns below the table.
    #[arg(long)]
    pub(crate) no_legend: bool,
}

impl OutputArgs {
    /// Checks the column names, that each output file is writable, and that no output file replaces another one or an
    /// input. Called before the run, so that no results are lost.
    pub(crate) fn probe(
        &self,
        registry: &MetricRegistry,
        inputs: &[PathBuf],
    ) -> Result<(), Failure> {
        check_columns(registry, &self.columns)?;
        let outputs = self.files();
        file::check_distinct(&outputs, inputs)?;
        for (_, path) in outputs {
            file::check_writable(path)?;
        }
        Ok(())
    }

    /// Returns the flag and the path of each output file.
    pub(crate) fn files(&self) -> Vec<(&'static str, &Path)> {
        let files = [("--json", &self.json), ("--csv", &self.csv), ("--html", &self.html)];
        files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?))).collect()
    }

    /// Writes the output files and prints the tables.
    pub(crate) fn write(&self, result: &impl Report) -> Result<(), Failure> {
        self.write_with_head("", result)
    }

    /// Writes the output files and prints the tables below `head`. Writes each output even if others fail. Returns the
    /// first error.
    pub(crate) fn write_with_head(&self, head: &str, result: &impl Report) -> Result<(), Failure> {
        let write_csv = |path| {
            let (header, rows) = result.csv()?;
            csv::write_csv(path, &header, &rows)
        };
        let write_page = |path| file::write_file(path, result.html()?.as_bytes());
        let written = [
            self.json.as_deref().map(|path| json::write_json(path, result)),
            self.csv.as_deref().map(write_csv),
            self.html.as_deref().map(write_page),
        ];
        let style = TableStyleOptions {
            width: terminal_width().unwrap_or(WIDTH_DEFAULT),
            legend: !self.no_legend,
            columns: self.columns.clone(),
        };
        let printed = output::stdout(format!("{head}{}", result.text(&style)?).as_bytes());
        written.into_iter().flatten().collect::<Result<(), _>>()?;
        printed
    }
}
