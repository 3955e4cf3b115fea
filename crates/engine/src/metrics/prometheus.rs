//! Metrics in the text format of Prometheus.

use std::fmt::Write as _;

use crate::metrics::Metrics;
use crate::metrics::families::{MetricKind, metric_families};

/// Returns all metrics as text. Each sample gets `labels` in addition to its own.
pub(super) fn render_text(metrics: &Metrics, labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for family in metric_families(metrics) {
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(text, "# TYPE {} {kind}", family.name);
        for sample in &family.samples {
            let _ = write!(text, "{}{}", family.name, sample.suffix);
            let own = sample.labels.iter().map(|(name, value)| (*name, &**value));
            write_labels(&mut text, labels.iter().copied().chain(own));
            let _ = writeln!(text, " {}", sample.value);
        }
    }
    text
}

fn write_labels<'a>(text: &mut String, labels: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut separator = '{';
    for (name, value) in labels {
        text.push(separator);
        separator = ',';
        text.push_str(name);
        text.push_str("=\"");
        for char in value.chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                char => text.push(char),
            }
        }
        text.push('"');
    }
    if separator == ',' {
        text.push('}');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Value, json};

    use super::*;
    use crate::format::BlockKind;
    use crate::metrics::{
        CacheMetrics, CompactionDebtMetrics, FilterCounts, KeyspaceMetrics, LevelMetrics,
    };
    use crate::operand_store::OperandMetrics;

    /// A line of a sample.
    #[derive(Debug, PartialEq)]
    struct Series {
        name: String,
        labels: BTreeMap<String, String>,
        value: f64,
    }

    fn is_name(name: &str) -> bool {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
    }

    fn parse_series(line: &str) -> Series {
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        assert!(is_name(name), "{line}");
        let mut labels = BTreeMap::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                assert!(is_name(label), "{line}");
                let (mut value, mut chars) = (String::new(), after.chars());
                loop {
                    match chars.next().unwrap() {
                        '"' => break,
                        '\\' => value.push(match chars.next().unwrap() {
                            'n' => '\n',
                            char @ ('\\' | '"') => char,
                            char => panic!("escape {char:?} in {line}"),
                        }),
                        char => value.push(char),
                    }
                }
                assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
                match chars.next().unwrap() {
                    ',' => rest = chars.as_str(),
                    '}' => {
                        rest = chars.as_str();
                        break;
                    }
                    char => panic!("{char:?} after a label in {line}"),
                }
            }
        }
        let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
        Series { name: name.to_owned(), labels, value }
    }

    /// Parses the text and checks the rules of the format and of the names.
    fn parse(text: &str) -> Vec<Series> {
        assert!(text.ends_with('\n'));
        let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut all = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(help.ends_with('.') && !help.contains('\\'), "{line}");
            assert!(names.insert(name.to_owned()), "{name} is not contiguous");
            assert!(name.starts_with("lsmx_"), "{name}");
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (typed, kind) = kind.split_once(' ').unwrap();
            assert_eq!(typed, name);
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{kind}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} {kind}");
            for unit in ["_us", "_ns", "_ms", "_kb"] {
                assert!(!name.ends_with(unit), "{name}");
            }
            let first = all.len();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let series = parse_series(line);
                let suffix = series.name.strip_prefix(name).unwrap();
                match (kind, suffix) {
                    ("histogram", "_bucket") => {
                        assert!(series.labels.contains_key("le"), "{line}");
                    }
                    ("histogram", "_sum" | "_count") | ("counter" | "gauge", "") => {}
                    _ => panic!("{line} in {name}"),
                }
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "{line} twice");
                all.push(series);
            }
            assert!(all.len() > first, "{name} has no samples");
        }
        all
    }

    /// Returns metrics in which every optional part exists.
    fn full_metrics() -> Metrics {
        let keyspace = KeyspaceMetrics {
            policy: "leveled".to_owned(),
            operand_store: Some(OperandMetrics::default()),
            oldest_tombstone_age_us: Some(0),
            compaction_debt: CompactionDebtMetrics {
                headroom_bytes: Some(0),
                write_rate_max: Some(0),
                ..CompactionDebtMetrics::default()
            },
            levels: vec![LevelMetrics::default()],
            ..KeyspaceMetrics::default()
        };
        let mut metrics = Metrics {
            keyspaces: [("a\"b\\c\nd".to_owned(), keyspace)].into(),
            cache: [(BlockKind::TopIndex, CacheMetrics::default())].into(),
            filter_by_level: [(3, FilterCounts::default())].into(),
            ..Metrics::default()
        };
        metrics.memory.budget_bytes = Some(0);
        metrics.background_io.rate = Some(0);
        metrics
    }

    /// Replaces each number by a different one. `path` names the current value.
    fn number_leaves(value: &mut Value, path: &str, numbers: &mut BTreeMap<u64, String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    number_leaves(field, &format!("{path}.{name}"), numbers);
                }
            }
            Value::Array(items) => {
                items.iter_mut().for_each(|item| number_leaves(item, path, numbers));
            }
            Value::Number(_) if !path.ends_with(".level") => {
                let number = 1_000_003 + 2 * numbers.len() as u64;
                *value = json!(number);
                numbers.insert(number, path.to_owned());
            }
            _ => {}
        }
    }

    #[test]
    fn prometheus_text_obeys_the_format() {
        for metrics in [Metrics::default(), full_metrics()] {
            parse(&metrics.to_prometheus(&[]));
            for series in parse(&metrics.to_prometheus(&[("database", "x\"y")])) {
                assert_eq!(series.labels["database"], "x\"y");
            }
        }
        let series = parse(&full_metrics().to_prometheus(&[]));
        let labels = |name: &str| &series.iter().find(|it| it.name == name).unwrap().labels;
        assert_eq!(labels("lsmx_puts_total")["keyspace"], "a\"b\\c\nd");
        assert_eq!(labels("lsmx_level_bytes")["level"], "0");
        assert_eq!(labels("lsmx_cache_hits_total")["kind"], "top_index");
        assert_eq!(labels("lsmx_keyspace_info")["policy"], "leveled");
    }

    /// A metric that is missing in the tables of `families` fails this test.
    #[test]
    fn prometheus_text_has_every_metric() {
        let mut numbers = BTreeMap::new();
        let mut value = serde_json::to_value(full_metrics()).unwrap();
        number_leaves(&mut value, "", &mut numbers);
        let metrics: Metrics = serde_json::from_value(value).unwrap();
        let series = parse(&metrics.to_prometheus(&[]));
        let values: Vec<f64> = series.iter().map(|series| series.value).collect();
        for (number, path) in numbers {
            // `filter` is the sum over all levels, `snapshots` equals that of `held`, and a sum replaces each mean.
            let is_redundant =
                path.starts_with(".filter.") || path == ".snapshots" || path.ends_with(".mean");
            let expected = [1.0, 1e6, 1e9].map(|unit| number as f64 / unit);
            assert!(is_redundant || values.iter().any(|value| expected.contains(value)), "{path}");
        }
    }

    #[test]
    fn block_kind_name_is_its_serialized_name() {
        for kind in BlockKind::ALL {
            assert_eq!(json!(kind), json!(kind.name()));
        }
    }
}
