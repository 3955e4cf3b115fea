//! Runs measurements and writes the pages of `docs/results`.
//!
//! Usage: `cargo run --release -p lsmx-bench --example results -- [--measure] [PAGE[.RUN]]...`
//!
//! Without names the program writes all pages. Each page has a template in `crates/bench/examples/results`. A template
//! contains these items:
//!
//! - `{{run ID: COMMAND}}`: a command, with the commit and the machine of its output. `--measure` runs the command and
//!   stores its output in `docs/results/data/PAGE.ID.txt`, or its CSV file in `PAGE.ID.csv` if the page has a table of
//!   this run. The first line of the file contains the command, the commit, the date and the machine.
//! - `{{table ID: COLUMN COLUMN=…}}`: a table of these CSV columns, with the titles and units of their metrics. `=TITLE`
//!   replaces the title.
//! - `{{output ID}}`: the output as a code block. `{{markdown ID}}`: the output as Markdown text.
//! - `{{ID/ROW/COLUMN}}`: a number of the CSV file. `ROW` is the start of a row. `{{A ÷ B}}`: the ratio of two numbers.
//! - `{{bars NAME: DESCRIPTION}}`: a figure with horizontal bars, `docs/results/figures/PAGE.NAME.svg`. Each following
//!   line of the item describes a bar: `SERIES | LABEL | VALUE`. The value is a number, `ID/ROW/COLUMN` or a ratio.
//!   Bars of one series have the same color.
//!
//! A template command that starts with `lsmx` runs the release build.

#![allow(clippy::print_stderr, reason = "the program prints its errors")]
#![allow(clippy::disallowed_methods, reason = "writes documents, not database files")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use lsmx_bench::metric::{self, Metric, MetricRegistry, Unit};
use lsmx_bench::report::html::figure::{FigureBar, render_bar_figure};
use lsmx_bench::report::provenance::Provenance;

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let written = match flags.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => list_pages().and_then(|pages| write_pages(&pages, &names, false)),
        ["--measure"] => list_pages().and_then(|pages| write_pages(&pages, &names, true)),
        _ => Err("usage: results [--measure] [PAGE[.RUN]]...".to_owned()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn repository_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read_file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the names of all pages that have a template.
fn list_pages() -> Result<Vec<String>> {
    let directory = repository_path().join("crates/bench/examples/results");
    let files = std::fs::read_dir(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut names = Vec::new();
    for file in files {
        let path = file.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Writes the pages in `names`, or all pages if `names` is empty. With `measure`, first runs the commands of these
/// pages. The name `PAGE.RUN` runs only the command `RUN` of the page.
fn write_pages(pages: &[String], names: &[String], measure: bool) -> Result<()> {
    for page in pages {
        let page = ResultsPage::new(page)?;
        let is_named = |name: &str| {
            let starts = |named: &String| name == named || name.starts_with(&format!("{named}."));
            names.is_empty() || names.iter().any(starts)
        };
        if measure {
            for (id, command) in page.runs() {
                if is_named(&format!("{}.{id}", page.name)) {
                    page.measure(id, command)?;
                }
            }
        }
        if names.is_empty() || names.iter().any(|name| name.split('.').next() == Some(&page.name)) {
            for (name, text) in page.files()? {
                write_file(&repository_path().join("docs/results").join(name), &text)?;
            }
        }
    }
    Ok(())
}

struct ResultsPage {
    name: String,
    template: String,
}

impl ResultsPage {
    fn new(name: &str) -> Result<ResultsPage> {
        let path = repository_path().join(format!("crates/bench/examples/results/{name}.md"));
        Ok(ResultsPage { name: name.to_owned(), template: read_file(&path)? })
    }

    /// Returns the name and the command of each run in the template.
    fn runs(&self) -> impl Iterator<Item = (&str, &str)> {
        let items = self.template.split("{{run ").skip(1);
        items.filter_map(|rest| rest.split_once("}}")?.0.split_once(": "))
    }

    fn data_path(&self, id: &str) -> PathBuf {
        let has_table = self.template.contains(&format!("{{{{table {id}:"));
        let extension = if has_table { "csv" } else { "txt" };
        repository_path().join(format!("docs/results/data/{}.{id}.{extension}", self.name))
    }

    /// Runs a command and stores its output. The first line of the file contains command, commit, date and machine.
    fn measure(&self, id: &str, command: &str) -> Result<()> {
        eprintln!("{}.{id}: {command}", self.name);
        let path = self.data_path(id);
        let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
        let mut shell = match command.strip_prefix("lsmx ") {
            Some(arguments) => format!("{target}/release/lsmx {arguments}"),
            None => command.to_owned(),
        };
        let is_csv = path.extension().is_some_and(|extension| extension == "csv");
        if is_csv {
            shell.push_str(&format!(" --csv {}", path.display()));
        }
        let mut output = run_command(&shell)?;
        if is_csv {
            // The CSV file does not contain errors of single engines.
            eprintln!("{output}");
            output = read_file(&path)?;
        }
        let commit = run_command(
            "git rev-parse --short HEAD; git diff --quiet HEAD -- crates/*/src || echo changed",
        )?;
        let date = run_command("date -u +%F")?;
        let origin = Provenance::new(command.to_owned(), None, 0, &std::env::temp_dir());
        let origin = format!(
            "# {command} | commit {}, {} | {}, {}, {}\n",
            commit.trim().replace('\n', ", "),
            date.trim(),
            origin.cpu,
            std::env::consts::OS,
            origin.file_system
        );
        write_file(&path, &(origin + &output))
    }

    /// Returns the names and the contents of the files in `docs/results` that the template describes: the page, which
    /// is the template with all items replaced, and its figures.
    fn files(&self) -> Result<Vec<(String, String)>> {
        let notice = "<!-- Written by `cargo run --release -p lsmx-bench --example results`. -->\n";
        let mut text = String::from(notice);
        let mut figures = Vec::new();
        let mut parts = self.template.split("{{");
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (item, rest) = part.split_once("}}").ok_or("an item has no end")?;
            let with_item = |why| format!("{}: {{{{{item}}}}}: {why}", self.name);
            match item.strip_prefix("bars ") {
                Some(bars) => {
                    let (name, description, image) = self.figure(bars).map_err(with_item)?;
                    text.push_str(&format!("![{description}]({name})"));
                    figures.push((name, image));
                }
                None => text.push_str(&self.item(item).map_err(with_item)?),
            }
            text.push_str(rest);
        }
        figures.push((format!("{}.md", self.name), text));
        Ok(figures)
    }

    /// Returns the file name, the description and the content of a figure.
    fn figure(&self, item: &str) -> Result<(String, String, String)> {
        let (name, rest) = item.split_once(": ").ok_or("no name")?;
        let mut lines = rest.trim_end().lines();
        let description = lines.next().unwrap_or_default().to_owned();
        let bars = lines.map(|line| {
            let fields: Vec<&str> = line.split(" | ").collect();
            let [series, label, value] = fields[..] else {
                return Err(format!("{line}: not SERIES | LABEL | VALUE"));
            };
            let series = series.trim().parse().map_err(|_| format!("{series} is no series"))?;
            let value = match value.trim().parse() {
                Ok(value) => value,
                Err(_) => self.number_or_ratio(value)?.0,
            };
            Ok(FigureBar { name: label.trim().to_owned(), series, value })
        });
        let bars = bars.collect::<Result<Vec<FigureBar>>>()?;
        let file = format!("figures/{}.{name}.svg", self.name);
        let image = render_bar_figure(&description, &bars);
        Ok((file, description, image))
    }

    fn item(&self, item: &str) -> Result<String> {
        if let Some(run) = item.strip_prefix("run ") {
            let (id, command) = run.split_once(": ").ok_or("no command")?;
            let origin = self.data(id)?.origin;
            // The command may contain the separator.
            let [machine, commit, _] = origin.rsplitn(3, " | ").collect::<Vec<_>>()[..] else {
                return Err("its data has no origin".to_owned());
            };
            return Ok(format!("```sh\n{command}\n```\n\n*Measured at {commit}, on {machine}.*"));
        }
        if let Some(id) = item.strip_prefix("output ") {
            return Ok(format!("```text\n{}\n```", self.data(id)?.text.trim_end()));
        }
        if let Some(id) = item.strip_prefix("markdown ") {
            return Ok(self.data(id)?.text.trim_end().to_owned());
        }
        if let Some(table) = item.strip_prefix("table ") {
            let (id, columns) = table.split_once(": ").ok_or("no columns")?;
            return self.data(id)?.table(columns);
        }
        match self.number_or_ratio(item)? {
            (ratio, None) => Ok(format!("{ratio:.2}")),
            (number, Some(unit)) => Ok(match unit.name() {
                "" => unit.format_number(number),
                name => format!("{} {name}", unit.format_number(number)),
            }),
        }
    }

    /// Returns the number `ID/ROW/COLUMN` and its unit, or the ratio of two such numbers.
    fn number_or_ratio(&self, text: &str) -> Result<(f64, Option<Unit>)> {
        let number = |path: &str| -> Result<(f64, Unit)> {
            let (id, cell) = path.trim().split_once('/').ok_or("no such item")?;
            let (row, column) = cell.rsplit_once('/').ok_or("no column")?;
            self.data(id)?.number(row, column)
        };
        match text.split_once('÷') {
            Some((a, b)) => Ok((number(a)?.0 / number(b)?.0, None)),
            None => number(text).map(|(number, unit)| (number, Some(unit))),
        }
    }

    fn data(&self, id: &str) -> Result<PageData> {
        let mut runs = self.runs();
        let (_, command) = runs.find(|(name, _)| *name == id).ok_or(format!("no run {id}"))?;
        let whole = read_file(&self.data_path(id))?;
        let (origin, text) = whole.split_once('\n').ok_or("its data is empty")?;
        Ok(PageData {
            origin: origin.to_owned(),
            command: command.to_owned(),
            text: text.to_owned(),
        })
    }
}

/// Runs a shell command in the repository and returns its standard output.
fn run_command(command: &str) -> Result<String> {
    let output = Command::new("bash").args(["-c", command]).current_dir(repository_path()).output();
    let output = output.map_err(|error| format!("{command}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{command}: {error}"))
}

/// The stored output of a run.
struct PageData {
    origin: String,
    command: String,
    text: String,
}

impl PageData {
    /// Returns the header and the rows of a CSV output.
    fn rows(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let mut reader = csv::Reader::from_reader(self.text.as_bytes());
        let fields = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect();
        let header = reader.headers().map(fields).map_err(|error| error.to_string())?;
        let rows = reader
            .records()
            .map(|record| record.as_ref().map(fields).map_err(csv::Error::to_string));
        Ok((header, rows.collect::<Result<_>>()?))
    }

    /// Returns the metric of a CSV column, and the heading of the column.
    fn metric(&self, column: &str) -> Result<(&'static Metric, String)> {
        let command = self.command.split(' ').nth(1).unwrap_or_default();
        let is_own = |at: &&MetricRegistry| at.command.split(' ').next() == Some(command);
        // Other programs name their columns like metrics of `lsmx`.
        let is_other = !metric::ALL.iter().any(&is_own);
        let registries = metric::ALL.iter().filter(|at| is_other || is_own(at));
        let find = |column: &str| {
            let mut metrics = registries.clone().flat_map(|registry| registry.metrics());
            metrics.find_map(|metric| {
                let key = if metric.csv == column { metric.key } else { column };
                Some((metric, metric.expand_title(key)?))
            })
        };
        let (name, end) = match column.rsplit_once('.') {
            Some((name, "low")) => (name, " min"),
            Some((name, "high")) => (name, " max"),
            _ => (column, ""),
        };
        // The column of a swept flag has the name of the flag.
        let found = find(name).or_else(|| find(&format!("sweep.{name}")));
        let (metric, title) = found.ok_or(format!("{column} is no metric of {command}"))?;
        Ok((metric, title + end))
    }

    fn table(&self, columns: &str) -> Result<String> {
        let (header, rows) = self.rows()?;
        let (mut titles, mut indices, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for column in columns.split(' ') {
            let (name, title) = column.split_once('=').unwrap_or((column, ""));
            let place = header.iter().position(|at| at == name);
            indices.push(place.ok_or(format!("no column {name}"))?);
            let (metric, own) = self.metric(name)?;
            let title = if title.is_empty() { own } else { title.replace('_', " ") };
            titles.push(match metric.unit.name() {
                "" => title,
                unit => format!("{title}, {unit}"),
            });
            units.push(metric.unit);
        }
        let mut text = format!("| {} |\n", titles.join(" | "));
        let alignment = units.iter().map(|unit| if *unit == Unit::Text { "---" } else { "---:" });
        text.push_str(&format!("| {} |\n", alignment.collect::<Vec<_>>().join(" | ")));
        for row in rows {
            let cell = |(index, unit): (&usize, &Unit)| match row[*index].parse::<f64>() {
                Ok(number) if *unit != Unit::Text => unit.format_number(number),
                _ if ["", "null"].contains(&row[*index].as_str()) => "–".to_owned(),
                _ => row[*index].clone(),
            };
            let cells: Vec<String> = indices.iter().zip(&units).map(cell).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        Ok(text.trim_end().to_owned())
    }

    /// Returns a number of the CSV output. `row` contains the first fields of the row, separated by commas. A field may
    /// contain commas.
    fn number(&self, row: &str, column: &str) -> Result<(f64, Unit)> {
        let (header, rows) = self.rows()?;
        let place =
            header.iter().position(|at| at == column).ok_or(format!("no column {column}"))?;
        let start = format!("{row},");
        let starts = |at: &&Vec<String>| format!("{},", at.join(",")).starts_with(&start);
        let found = rows.iter().find(starts).ok_or(format!("no row {row}"))?;
        let number = found[place].parse().map_err(|_| format!("{} is no number", found[place]))?;
        Ok((number, self.metric(column)?.0.unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the test fails, `cargo run -p lsmx-bench --example results` writes the pages.
    #[test]
    fn pages_are_up_to_date() {
        for name in list_pages().unwrap() {
            for (file, expected) in ResultsPage::new(&name).unwrap().files().unwrap() {
                let path = repository_path().join("docs/results").join(&file);
                assert!(
                    read_file(&path).unwrap() == expected,
                    "docs/results/{file} is out of date"
                );
            }
        }
    }

    #[test]
    fn table_has_titles_and_units_of_metrics() {
        let data = PageData {
            origin: String::new(),
            command: "lsmx explore".to_owned(),
            text:
                "policy,data_moved_ratio,data_moved_ratio.low\n\"tsa(1,2)\",2.5,2\nfull,10,null\n"
                    .to_owned(),
        };
        let table = data.table("policy data_moved_ratio").unwrap();
        assert_eq!(
            table,
            "| policy | moved, × |\n| --- | ---: |\n| tsa(1,2) | 2.50 |\n| full | 10.00 |"
        );
        let table = data.table("policy data_moved_ratio.low").unwrap();
        assert_eq!(
            table,
            "| policy | moved min, × |\n| --- | ---: |\n| tsa(1,2) | 2.00 |\n| full | – |"
        );
        assert_eq!(data.number("full", "data_moved_ratio").unwrap().0, 10.0);
        assert_eq!(data.number("tsa(1,2)", "data_moved_ratio").unwrap().0, 2.5);
        assert!(data.number("x", "data_moved_ratio").is_err());
        assert!(data.table("nothing").unwrap_err().contains("no column nothing"));
    }
}
