//! Metrics: what a number in a result means, declared once.
//!
//! Each experiment lists its metrics in its module `columns`. Text tables and their legends, CSV files, tables in HTML,
//! `lsmx compare` and the reference of the results ([`reference()`]) read these lists.

pub mod compare;
mod flatten;
pub mod html;
mod row;
pub mod table;
mod unit;

pub(crate) use flatten::for_each_mut;
pub use flatten::{scalar_text, scalars, union_table};
pub use row::Row;
pub use unit::Unit;

use std::cmp::Ordering;

use crate::experiment::{advise, explore, iocost, rmw, simulate, throughput, tuning};

/// Which change of a number is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Less,
    /// More is better.
    More,
    /// The number is neither a cost nor a rate.
    Neither,
}

/// The meaning of a number in a result.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Flat name in JSON, such as `compaction.jobs`. A `*` stands for any text without `.`, `[` and `]`.
    pub key: &'static str,
    /// Heading of the column. Each `{}` is replaced by the text of a `*`.
    pub title: &'static str,
    /// Unit of the number, and how tables show it.
    pub unit: Unit,
    /// Which change is an improvement.
    pub better: Better,
    /// Whether `lsmx compare --fail-above` may fail because of it.
    pub gates: bool,
    /// Whether the number is a time, which depends on the machine and its load.
    pub is_time: bool,
    /// Header of the CSV column; empty if the CSV file has no such column.
    pub csv: &'static str,
    /// Explanation for the legend, in one line.
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
    Metric { key, title, unit, better: Better::Neither, gates: false, is_time, csv: "", about }
}

/// Declares the metrics of a latency: mean, percentiles and maximum. The fourth argument is the start of the names of the
/// CSV columns.
macro_rules! latency {
    ($key:literal, $title:literal, $about:literal) => {
        $crate::metric::latency!(@ $key, $title, $about, [""; "", "", "", "", "", ""])
    };
    ($key:literal, $title:literal, $about:literal, $csv:literal) => {
        $crate::metric::latency!(@ $key, $title, $about,
            [$csv; "mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"])
    };
    (@ $key:literal, $title:literal, $about:literal,
        [$csv:literal; $mean:literal, $p50:literal, $p90:literal, $p99:literal, $p999:literal, $max:literal]) => {
        [
            $crate::metric::metric(
                concat!($key, ".mean"),
                concat!($title, " mean"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $mean)),
            $crate::metric::metric(
                concat!($key, ".p50"),
                concat!($title, " median"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $p50)),
            $crate::metric::metric(
                concat!($key, ".p90"),
                concat!($title, " p90"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $p90)),
            $crate::metric::metric(
                concat!($key, ".p99"),
                concat!($title, " p99"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $p99)),
            $crate::metric::metric(
                concat!($key, ".p999"),
                concat!($title, " p99.9"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $p999)),
            $crate::metric::metric(
                concat!($key, ".max"),
                concat!($title, " max"),
                $crate::metric::Unit::Micros,
                $about,
            )
            .cost()
            .csv(concat!($csv, $max)),
        ]
    };
}
pub(crate) use latency;

impl Metric {
    /// Marks a cost: less is better.
    pub const fn cost(self) -> Metric {
        Metric { better: Better::Less, gates: true, ..self }
    }

    /// Marks a rate: more is better.
    pub const fn rate(self) -> Metric {
        Metric { better: Better::More, gates: true, ..self }
    }

    /// Excludes the metric from `lsmx compare --fail-above`.
    pub const fn ungated(self) -> Metric {
        Metric { gates: false, ..self }
    }

    /// Marks a number that depends on the machine and its load.
    pub const fn time(self) -> Metric {
        Metric { is_time: true, ..self }
    }

    /// Sets the header of the CSV column.
    pub const fn csv(self, csv: &'static str) -> Metric {
        Metric { csv, ..self }
    }

    /// Returns the heading of the column with this flat name, or `None` if the name is not of this metric.
    pub fn title_of(&self, name: &str) -> Option<String> {
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

/// Returns the texts of the stars of a pattern, or `None` if the pattern does not match the name.
fn match_stars<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = pattern.split('*');
    let mut rest = name.strip_prefix(parts.next()?)?;
    let mut stars = Vec::new();
    for part in parts {
        // In brackets a star may contain dots, as in `point_lookups[0.5].ops`.
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
pub struct Registry {
    /// Name of the command.
    pub command: &'static str,
    /// Lists of metrics. A name that matches several metrics belongs to the first of them.
    pub metrics: &'static [&'static [Metric]],
    /// Names of the columns that identify a row. Each block of a table has them.
    pub identity: &'static [&'static str],
    /// Columns of the text table, unless the user names others. A name may have stars.
    pub shown: &'static [&'static str],
}

impl Registry {
    /// Returns all metrics in order.
    pub fn metrics(&self) -> impl Iterator<Item = &'static Metric> {
        self.metrics.iter().copied().flatten()
    }

    /// Returns the metric of a flat name.
    pub fn find(&self, name: &str) -> Option<&'static Metric> {
        self.metrics().find(|metric| match_stars(metric.key, name).is_some())
    }

    /// Returns the columns of `names`, in this order, for which a row has a value. Names may have stars. Columns of one name
    /// are ordered by the numbers for which the stars stand.
    pub fn columns(&self, names: &[impl AsRef<str>], rows: &[Row]) -> Vec<Column> {
        let mut columns: Vec<Column> = Vec::new();
        for pattern in names {
            let numbers = |name: &str| -> Option<Vec<f64>> {
                let stars = match_stars(pattern.as_ref(), name)?;
                Some(stars.iter().map(|star| star.parse().unwrap_or(0.0)).collect())
            };
            let mut matching: Vec<(Vec<f64>, &str)> = rows
                .iter()
                .flat_map(Row::names)
                .filter_map(|name| Some((numbers(name)?, name)))
                .collect();
            // The sort is stable, so that names stay in their order.
            matching.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
            for (_, name) in matching {
                if columns.iter().any(|column| column.name == name) {
                    continue;
                }
                if let Some(metric) = self.find(name)
                    && let Some(title) = metric.title_of(name)
                {
                    columns.push(Column { name: name.to_owned(), title, metric });
                }
            }
        }
        columns.retain(|column| rows.iter().any(|row| row.shown(&column.name).is_some()));
        columns
    }

    /// Returns the header and the rows of the CSV file: the metrics that have a CSV header.
    pub fn csv(&self, rows: &[Row]) -> (Vec<String>, Vec<Vec<String>>) {
        let metrics = || self.metrics().filter(|metric| !metric.csv.is_empty());
        let header = metrics().map(|metric| metric.csv.to_owned()).collect();
        let line = |row: &Row| {
            let field = |metric: &Metric| row.get(metric.key).map(scalar_text).unwrap_or_default();
            metrics().map(field).collect()
        };
        (header, rows.iter().map(line).collect())
    }
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Flat name.
    pub name: String,
    /// Heading.
    pub title: String,
    /// Meaning.
    pub metric: &'static Metric,
}

impl Column {
    /// Returns the text of a cell, or `–` without a value.
    pub fn text(&self, row: &Row) -> String {
        let Some(value) = row.shown(&self.name) else { return "–".to_owned() };
        match value.as_f64() {
            Some(number) if self.metric.unit != Unit::Text => self.metric.unit.text(number),
            _ => scalar_text(value),
        }
    }
}

/// The metrics of all commands.
pub const ALL: [&Registry; 9] = [
    &explore::columns::REGISTRY,
    &simulate::columns::REGISTRY,
    &throughput::columns::REGISTRY,
    &tuning::columns::READS,
    &tuning::columns::SLICES,
    &iocost::columns::REGISTRY,
    &rmw::columns::REGISTRY,
    &advise::columns::RANKED,
    &advise::columns::PRESETS,
];

/// Returns the first metric of any command with this flat name.
pub fn find(name: &str) -> Option<&'static Metric> {
    ALL.iter().find_map(|registry| registry.find(name))
}

/// Returns the registry of a result by the command line that made it, such as `lsmx bench fillseq`.
#[must_use]
pub fn registry_of(command_line: &str) -> Option<&'static Registry> {
    let mut words = command_line.split_whitespace().skip(1);
    let command = words.find(|word| !word.starts_with('-'))?;
    if command == "bench" && words.any(|word| word.starts_with("--experiment")) {
        return Some(&tuning::columns::READS);
    }
    ALL.into_iter().find(|registry| registry.command == command)
}

/// Returns the reference of all results as Markdown: a table per command.
pub fn reference() -> String {
    let mut text = String::new();
    for registry in ALL {
        text.push_str(&format!("\n## {}\n\n", registry.command));
        text.push_str("| name in JSON | title in tables | unit | better | CSV | meaning |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for metric in registry.metrics() {
            let better = match metric.better {
                Better::Less => "less",
                Better::More => "more",
                Better::Neither => "",
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
            let (mut keys, mut titles, mut headers) =
                (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            for metric in registry.metrics() {
                assert!(keys.insert(metric.key), "{}: {} twice", registry.command, metric.key);
                assert!(
                    titles.insert(metric.title),
                    "{}: {} twice",
                    registry.command,
                    metric.title
                );
                assert!(
                    metric.csv.is_empty() || headers.insert(metric.csv),
                    "{} twice",
                    metric.csv
                );
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
            ("lsmx db stats", None),
            ("", None),
        ] {
            assert_eq!(registry_of(line).map(|registry| registry.command), command, "{line}");
        }
    }

    /// `UPDATE=1` writes the page.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "it reads a page of the book, no database")]
    fn reference_page_lists_all_metrics() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/results.md");
        let old = std::fs::read_to_string(path).unwrap_or_default();
        const MARK: &str = "<!-- generated from the metrics of lsmx-bench -->\n";
        let head = old.split(MARK).next().unwrap_or_default();
        let new = format!("{head}{MARK}{}", reference());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &new).unwrap();
        } else {
            assert!(old == new, "docs/reference/results.md is out of date; UPDATE=1 writes it");
        }
    }
}
