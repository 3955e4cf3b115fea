//! Declarations of the numbers in results: name, title, unit, meaning, and whether less or more is better.
//!
//! Each experiment declares its metrics in its module `columns`. Text tables, legends, CSV files, HTML pages, `lsmx
//! compare` and the reference of the results ([`render_metric_reference`]) use these declarations.

pub mod compare;
mod flatten;
pub mod html;
mod row;
pub mod table;
mod unit;

pub(crate) use flatten::for_each_scalar_mut;
pub use flatten::{build_union_table, flatten_scalars, format_scalar};
pub use row::ResultRow;
pub use unit::Unit;

use std::cmp::Ordering;

use crate::experiment::bench_experiment::BenchExperiment;
use crate::experiment::{advise, explore, iocost, rmw, simulate, steady_state, throughput, tuning};

/// Whether a lower or a higher value of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterDirection {
    Less,
    More,
    /// The number is neither a cost nor a rate.
    Neither,
}

/// Declaration of a number in a result.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Flat name in JSON, such as `compaction.jobs`. A `*` matches any text without `.`, `[` and `]`.
    pub key: &'static str,
    /// Heading of the column. Each `{}` is replaced by the part of the name that the corresponding `*` matched.
    pub title: &'static str,
    pub unit: Unit,
    pub better: BetterDirection,
    /// Whether a worse value can make `lsmx compare --fail-above` fail.
    pub gates: bool,
    /// Whether the number is a time. Times depend on the machine and its load.
    pub is_time: bool,
    /// Header of the CSV column. If the header is empty, CSV files do not contain the metric.
    pub csv: &'static str,
    /// One-line explanation for legends.
    pub about: &'static str,
}

/// Declares a metric that is neither a cost nor a rate.
pub const fn metric(
    key: &'static str,
    title: &'static str,
    unit: Unit,
    about: &'static str,
) -> Metric {
    let is_time = unit.is_time();
    Metric {
        key,
        title,
        unit,
        better: BetterDirection::Neither,
        gates: false,
        is_time,
        csv: "",
        about,
    }
}

/// Declares the metrics of a latency: mean, percentiles and maximum. The optional fourth argument is the prefix of the
/// CSV column names.
macro_rules! latency {
    ($key:literal, $title:literal, $about:literal $(, $csv:literal)?) => {
        [
            $crate::metric::percentile!($key, $title, $about, ".mean", " mean" $(, $csv, "mean_us")?),
            $crate::metric::percentile!($key, $title, $about, ".p50", " median" $(, $csv, "p50_us")?),
            $crate::metric::percentile!($key, $title, $about, ".p90", " p90" $(, $csv, "p90_us")?),
            $crate::metric::percentile!($key, $title, $about, ".p99", " p99" $(, $csv, "p99_us")?),
            $crate::metric::percentile!($key, $title, $about, ".p999", " p99.9" $(, $csv, "p999_us")?),
            $crate::metric::percentile!($key, $title, $about, ".max", " max" $(, $csv, "max_us")?),
        ]
    };
}
pub(crate) use latency;

macro_rules! percentile {
    ($key:literal, $title:literal, $about:literal, $name:literal, $label:literal
        $(, $csv:literal, $column:literal)?) => {
        $crate::metric::metric(
            concat!($key, $name),
            concat!($title, $label),
            $crate::metric::Unit::Micros,
            $about,
        )
        .cost()
        .csv(concat!($($csv, $column)?))
    };
}
pub(crate) use percentile;

impl Metric {
    /// Marks a cost: less is better.
    pub const fn cost(self) -> Metric {
        Metric { better: BetterDirection::Less, gates: true, ..self }
    }

    /// Marks a rate: more is better.
    pub const fn rate(self) -> Metric {
        Metric { better: BetterDirection::More, gates: true, ..self }
    }

    /// Excludes the metric from `lsmx compare --fail-above`.
    pub const fn ungated(self) -> Metric {
        Metric { gates: false, ..self }
    }

    /// Marks a number that depends on the machine and its load, although its unit is not a time.
    pub const fn time(self) -> Metric {
        Metric { is_time: true, ..self }
    }

    pub const fn csv(self, csv: &'static str) -> Metric {
        Metric { csv, ..self }
    }

    /// Returns the heading of the column with this flat name, or `None` if the name does not match the key of the
    /// metric.
    pub fn expand_title(&self, name: &str) -> Option<String> {
        let stars = match_stars(self.key, name)?;
        let mut title = self.title.to_owned();
        for star in stars {
            let text = match (star, star.parse::<f64>()) {
                ("p50", _) => "median".to_owned(),
                ("p999", _) => "p99.9".to_owned(),
                (_, Ok(number)) => ((number * 1e3).round() / 1e3).to_string(),
                (name, Err(_)) => name.replace('_', " "),
            };
            title = title.replacen("{}", &text, 1);
        }
        Some(title)
    }
}

/// Returns the text that each `*` in the pattern matches, or `None` if the pattern does not match the name.
fn match_stars<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = pattern.split('*');
    let mut rest = name.strip_prefix(parts.next()?)?;
    let mut stars = Vec::new();
    for part in parts {
        // In brackets a `*` also matches dots, as in `point_lookups[0.5].ops`.
        let stop = |c| if part.starts_with(']') { c == ']' } else { ".[]".contains(c) };
        let end = rest.find(stop).unwrap_or(rest.len());
        let (star, after) = rest.split_at(end);
        (stars, rest) = ([stars, vec![star]].concat(), after.strip_prefix(part)?);
        if star.is_empty() {
            return None;
        }
    }
    rest.is_empty().then_some(stars)
}

/// The metrics of an experiment, in the order of its CSV columns.
#[derive(Clone, Copy, Debug)]
pub struct MetricRegistry {
    pub command: &'static str,
    /// Lists of metrics. If several metrics match the name of a number, the first of them is used.
    pub metrics: &'static [&'static [Metric]],
    /// Names of the columns that identify a row. If a table is split into blocks, each block repeats these columns.
    pub identity: &'static [&'static str],
    /// Names of the default columns of the text table. A name may contain `*`.
    pub shown: &'static [&'static str],
}

impl MetricRegistry {
    pub fn metrics(&self) -> impl Iterator<Item = &'static Metric> {
        self.metrics.iter().copied().flatten()
    }

    /// Returns the metric with this flat name.
    pub fn find(&self, name: &str) -> Option<&'static Metric> {
        self.metrics().find(|metric| match_stars(metric.key, name).is_some())
    }

    /// Returns the columns in `names` for which at least one row has a value, in the order of `names`. A name with `*`
    /// selects all matching columns, sorted by the numbers that the `*` matches.
    pub fn columns(&self, names: &[impl AsRef<str>], rows: &[ResultRow]) -> Vec<TableColumn> {
        let mut columns: Vec<TableColumn> = Vec::new();
        for pattern in names {
            let numbers = |name: &str| -> Option<Vec<f64>> {
                let stars = match_stars(pattern.as_ref(), name)?;
                Some(stars.iter().map(|star| star.parse().unwrap_or(0.0)).collect())
            };
            let mut matching: Vec<(Vec<f64>, &str)> = rows
                .iter()
                .flat_map(ResultRow::names)
                .filter_map(|name| Some((numbers(name)?, name)))
                .collect();
            // The sort is stable, so names without numbers keep their order.
            matching.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
            for (_, name) in matching {
                if columns.iter().any(|column| column.name == name) {
                    continue;
                }
                if let Some(metric) = self.find(name)
                    && let Some(title) = metric.expand_title(name)
                {
                    columns.push(TableColumn { name: name.to_owned(), title, metric });
                }
            }
        }
        columns.retain(|column| rows.iter().any(|row| row.displayed_value(&column.name).is_some()));
        columns
    }

    /// Returns the header and the rows of a CSV file with all metrics that have a CSV header.
    ///
    /// If rows have repetitions, each cost and each rate is followed by its minimum and maximum over the repetitions.
    /// The names of these columns end with `.low` and `.high`.
    pub fn csv(&self, rows: &[ResultRow]) -> (Vec<String>, Vec<Vec<String>>) {
        let mut header = Vec::new();
        let mut lines = vec![Vec::new(); rows.len()];
        for metric in self.metrics().filter(|metric| !metric.csv.is_empty()) {
            header.push(metric.csv.to_owned());
            for (line, row) in lines.iter_mut().zip(rows) {
                line.push(row.get(metric.key).map(format_scalar).unwrap_or_default());
            }
            let has_range = |row: &ResultRow| row.repeat_range(metric.key).is_some();
            if metric.better == BetterDirection::Neither || !rows.iter().any(has_range) {
                continue;
            }
            header.extend(["low", "high"].map(|end| format!("{}.{end}", metric.csv)));
            for (line, row) in lines.iter_mut().zip(rows) {
                let range = row.repeat_range(metric.key);
                let text = |at: usize| range.map_or_else(String::new, |ends| ends[at].to_string());
                line.extend([0, 1].map(text));
            }
        }
        (header, lines)
    }
}

#[derive(Clone, Debug)]
pub struct TableColumn {
    /// Flat JSON name of the number, such as `compaction.jobs`.
    pub name: String,
    pub title: String,
    pub metric: &'static Metric,
}

impl TableColumn {
    /// Returns the text of this column in a row, or `–` if the row has no value.
    pub fn format_value(&self, row: &ResultRow) -> String {
        let Some(value) = row.displayed_value(&self.name) else { return "–".to_owned() };
        match value.as_f64() {
            Some(number) if self.metric.unit != Unit::Text => {
                self.metric.unit.format_number(number)
            }
            _ => format_scalar(value),
        }
    }
}

pub const ALL: [&MetricRegistry; 11] = [
    &explore::columns::REGISTRY,
    &simulate::columns::REGISTRY,
    &throughput::columns::REGISTRY,
    &tuning::columns::READS,
    &tuning::columns::SLICES,
    &tuning::columns::SIZES,
    &steady_state::columns::REGISTRY,
    &iocost::columns::REGISTRY,
    &rmw::columns::REGISTRY,
    &advise::columns::RANKED,
    &advise::columns::PRESETS,
];

/// Returns the metric with this flat name. If several commands declare the name, returns the first declaration.
pub fn find_metric(name: &str) -> Option<&'static Metric> {
    ALL.iter().find_map(|registry| registry.find(name))
}

/// Returns the metrics of the command that a command line runs. An example of a command line is `lsmx bench fillseq`.
pub fn find_registry(command_line: &str) -> Option<&'static MetricRegistry> {
    let mut words = command_line.split_whitespace().skip(1);
    let command = words.find(|word| !word.starts_with('-'))?;
    if command == "bench"
        && let Some(flag) = words.find(|word| word.starts_with("--experiment"))
    {
        let name = flag.split_once('=').map(|(_, name)| name).or_else(|| words.next())?;
        return Some(name.parse::<BenchExperiment>().ok()?.registry());
    }
    ALL.into_iter().find(|registry| registry.command == command)
}

/// Returns the reference of all metrics as Markdown, with a table per command.
pub fn render_metric_reference() -> String {
    let mut text = String::new();
    for registry in ALL {
        text.push_str(&format!("\n## {}\n\n", registry.command));
        text.push_str("| name in JSON | title in tables | unit | better | CSV | meaning |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for metric in registry.metrics() {
            let better = match metric.better {
                BetterDirection::Less => "less",
                BetterDirection::More => "more",
                BetterDirection::Neither => "",
            };
            let csv =
                if metric.csv.is_empty() { String::new() } else { format!("`{}`", metric.csv) };
            text.push_str(&format!(
                "| `{}` | {} | {} | {better} | {csv} | {} |\n",
                metric.key,
                metric.title.replace("{}", "…"),
                metric.unit.name(),
                metric.about
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stars_match_names_and_identities() {
        for (pattern, name, stars) in [
            ("a.b", "a.b", Some(vec![])),
            ("a.*", "a.mean", Some(vec!["mean"])),
            ("a.*", "a.b.c", None),
            ("a.*", "a.", None),
            ("p[*].ops", "p[0.5].ops", Some(vec!["0.5"])),
            ("p[*].us.*", "p[1.0].us.p999", Some(vec!["1.0", "p999"])),
            ("p[*].ops", "p[0.5].ops.x", None),
        ] {
            assert_eq!(match_stars(pattern, name), stars, "{pattern} {name}");
        }
    }

    #[test]
    fn each_metric_is_declared_once_and_explained() {
        for registry in ALL {
            let mut seen = BTreeSet::new();
            for metric in registry.metrics() {
                for unique in [("key", metric.key), ("title", metric.title), ("csv", metric.csv)] {
                    let is_new = unique == ("csv", "") || seen.insert(unique);
                    assert!(is_new, "{}: {unique:?} twice", registry.command);
                }
                assert!(metric.about.len() > 10, "{}: {}", registry.command, metric.key);
                let stars = metric.key.matches('*').count();
                assert_eq!(metric.title.matches("{}").count(), stars, "{}", metric.key);
            }
            for name in registry.identity.iter().chain(registry.shown) {
                let exists = registry.metrics().any(|metric| {
                    metric.key == *name
                        || match_stars(metric.key, &name.replace('*', "x")).is_some()
                });
                assert!(exists, "{}: {name} is not declared", registry.command);
            }
        }
    }

    #[test]
    fn registry_follows_from_the_command_line() {
        for (line, command) in [
            ("lsmx bench fillseq --entries 10", Some("bench")),
            ("./lsmx --no-progress rmw --mode kd", Some("rmw")),
            ("lsmx bench --experiment=caching", Some(tuning::columns::READS.command)),
            ("lsmx bench --experiment data-size", Some(tuning::columns::SIZES.command)),
            (
                "lsmx bench --minutes 5 --experiment steady-state",
                Some(steady_state::columns::REGISTRY.command),
            ),
            ("lsmx db stats", None),
            ("", None),
        ] {
            assert_eq!(find_registry(line).map(|registry| registry.command), command, "{line}");
        }
    }

    /// With the environment variable `UPDATE=1` the test writes the page.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "writes a page of the documentation")]
    fn reference_page_lists_all_metrics() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/results.md");
        let old = std::fs::read_to_string(path).unwrap_or_default();
        const MARK: &str = "<!-- generated from the metrics of lsmx-bench -->\n";
        let head = old.split(MARK).next().unwrap_or_default();
        let new = format!("{head}{MARK}{}", render_metric_reference());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &new).unwrap();
        } else {
            assert!(old == new, "docs/reference/results.md is out of date; UPDATE=1 writes it");
        }
    }
}
