//! What `lsmx iocost` found out as a table for people, and as flat rows.

use lsmx::metrics::BlockKind;

use crate::experiment::iocost::result::{Cost, IoCost, Point, Share};

use super::text::{bytes, grid};

/// What stands where there is nothing to say.
const NOTHING: &str = "–";

/// Kinds of blocks that a lookup may need, as columns.
const KINDS: [(BlockKind, &str); 5] = [
    (BlockKind::Filter, "filter"),
    (BlockKind::TopIndex, "top"),
    (BlockKind::Index, "index"),
    (BlockKind::RangeTombstones, "spans"),
    (BlockKind::Data, "data"),
];

/// The databases one after the other: what they need in memory, and a line per cache size.
#[must_use]
pub fn table(result: &IoCost) -> String {
    result.costs().map(|cost| one(result, cost)).collect::<Vec<_>>().join("\n")
}

fn one(result: &IoCost, cost: &Cost) -> String {
    let settings = &result.settings;
    let what = match (&settings.database, settings.key_len, settings.value_len) {
        (Some(path), _, _) => format!("{path}, keyspace {}, {}", settings.keyspace, cost.name()),
        (None, Some(key), Some(value)) => format!(
            "{} records of {key} + {value} B, {}, memtable {}, table {}",
            cost.entries,
            cost.name(),
            bytes(settings.memtable_bytes.unwrap_or_default()),
            bytes(settings.table_bytes.unwrap_or_default()),
        ),
        (None, _, _) => String::new(),
    };
    let levels = cost.levels.iter().map(|level| {
        let runs = if level.runs == 1 { String::new() } else { format!(" in {} runs", level.runs) };
        format!("L{} {}{runs}", level.level, bytes(level.bytes))
    });
    let above = cost.entries.saturating_sub(cost.entries_last_run);
    let share = |share: Share| format!("{} ({:.3} %)", bytes(share.bytes), share.fraction * 100.0);
    let index_bytes_per_block =
        crate::numbers::ratio(cost.index_bytes + cost.top_index_bytes, cost.data_blocks);
    let direct = if settings.direct_io { ", past the page cache" } else { "" };
    let mut text = format!(
        "{what}, {} gets per point{direct}, seed {}\n\
         {}: {}; {:.1} % of the entries above the last run\n\
         inflection 1 {}: filters without the last run {}, top index {}\n\
         inflection 2 {}: with {} of index blocks, {index_bytes_per_block:.2} B per data block\n\
         all metadata {}: with the last run's filters, which are asked in the last line alone; {} of {} answers about absent keys were false ({:.4} %{})\n",
        settings.gets,
        result.provenance.seed,
        bytes(cost.db_bytes),
        levels.collect::<Vec<_>>().join(", "),
        crate::numbers::ratio(above, cost.entries) * 100.0,
        share(cost.inflection_1),
        bytes(cost.filter_bytes),
        bytes(cost.top_index_bytes),
        share(cost.inflection_2),
        bytes(cost.index_bytes),
        share(cost.all_metadata),
        cost.with_all_filters.filter_false_positives,
        cost.with_all_filters.filter_negatives + cost.with_all_filters.filter_false_positives,
        cost.with_all_filters.filter_false_positive_rate * 100.0,
        by_level(&cost.with_all_filters),
    );
    let seen: Vec<(BlockKind, &str)> = KINDS
        .into_iter()
        .filter(|(kind, _)| cost.points.iter().any(|point| point.hit_rate.contains_key(kind)))
        .collect();
    let mut header: Vec<String> = ["cache", "% of db", ""].into_iter().map(str::to_owned).collect();
    header.extend(seen.iter().map(|(_, name)| format!("{name} hit %")));
    let device: &[&str] = if settings.direct_io { &["device", "device B"] } else { &[] };
    header.extend(
        ["all %", "I/Os per get", "reads"]
            .iter()
            .chain(device)
            .chain(&["absent", "reads", "mean µs", "p99", "absent µs"])
            .map(|&name| name.to_owned()),
    );
    let rows = all_points(cost).map(|point| row(point, &seen, settings.direct_io));
    text.push_str(&grid(header, rows.collect::<Vec<_>>()));
    text.push('\n');
    text
}

/// Shares of false answers, level by level.
fn by_level(point: &Point) -> String {
    let rate = |rate: f64| format!("{:.4}", rate * 100.0);
    let levels = point.filter_by_level.iter();
    levels.map(|at| format!(", L{} {}", at.level, rate(at.false_positive_rate))).collect()
}

/// The points of the sweep, and the one with all filters.
fn all_points(cost: &Cost) -> impl Iterator<Item = &Point> {
    cost.points.iter().chain([&cost.with_all_filters])
}

fn row(point: &Point, kinds: &[(BlockKind, &str)], direct_io: bool) -> Vec<String> {
    let told = |figure: Option<f64>, decimals: usize| {
        figure.map_or_else(|| NOTHING.to_owned(), |figure| format!("{figure:.decimals$}"))
    };
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let mut row = vec![
        bytes(point.cache_bytes),
        format!("{:.3}", point.cache_fraction * 100.0),
        match point.at {
            Some("inflection_1") => "← 1".to_owned(),
            Some("all_metadata") => "all".to_owned(),
            Some(_) => "← 2".to_owned(),
            None => String::new(),
        },
    ];
    row.extend(kinds.iter().map(|(kind, _)| {
        point.hit_rate.get(kind).map_or_else(|| NOTHING.to_owned(), |rate| percent(*rate))
    }));
    row.extend([
        percent(point.hit_rate_overall),
        format!("{:.3}", point.ios_per_get),
        format!("{:.3}", point.physical_reads_per_get),
    ]);
    if direct_io {
        row.push(told(point.device_reads_per_get, 3));
        row.push(told(point.device_read_bytes_per_get, 0));
    }
    row.extend([
        format!("{:.4}", point.ios_per_absent_get),
        format!("{:.4}", point.physical_reads_per_absent_get),
        format!("{:.1}", point.get_latency_us.mean),
        format!("{:.1}", point.get_latency_us.p99),
        format!("{:.1}", point.absent_get_latency_us.mean),
    ]);
    row
}

/// Header of the flat rows.
pub const COLUMNS: [&str; 29] = [
    "block_bytes",
    "filter_bits",
    "cache_kind",
    "db_bytes",
    "entries",
    "cache_bytes",
    "cache_fraction",
    "at",
    "filter_hit_rate",
    "top_index_hit_rate",
    "index_hit_rate",
    "range_tombstones_hit_rate",
    "data_hit_rate",
    "hit_rate_overall",
    "ios_per_get",
    "physical_reads_per_get",
    "physical_read_bytes_per_get",
    "device_reads_per_get",
    "device_read_bytes_per_get",
    "ios_per_absent_get",
    "physical_reads_per_absent_get",
    "device_reads_per_absent_get",
    "filter_false_positive_rate",
    "filter_negatives",
    "filter_false_positives",
    "get_mean_us",
    "get_p99_us",
    "absent_get_mean_us",
    "absent_get_p99_us",
];

/// A flat row per database and cache size, in the order of [`COLUMNS`]; empty where a figure is absent.
pub fn rows(result: &IoCost) -> impl Iterator<Item = Vec<String>> + '_ {
    result.costs().flat_map(|cost| all_points(cost).map(move |point| flat(cost, point)))
}

fn flat(cost: &Cost, point: &Point) -> Vec<String> {
    let mut row = vec![
        cost.block_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        cost.filter_bits.map(|bits| bits.to_string()).unwrap_or_default(),
        cost.cache_kind.to_string(),
        cost.db_bytes.to_string(),
        cost.entries.to_string(),
        point.cache_bytes.to_string(),
        point.cache_fraction.to_string(),
        point.at.unwrap_or_default().to_owned(),
    ];
    row.extend(
        KINDS
            .iter()
            .map(|(kind, _)| point.hit_rate.get(kind).map(f64::to_string).unwrap_or_default()),
    );
    let told = |figure: Option<f64>| figure.map(|it| it.to_string()).unwrap_or_default();
    let measured = |figure: f64| figure.to_string();
    row.extend([
        measured(point.hit_rate_overall),
        measured(point.ios_per_get),
        measured(point.physical_reads_per_get),
        measured(point.physical_read_bytes_per_get),
        told(point.device_reads_per_get),
        told(point.device_read_bytes_per_get),
        measured(point.ios_per_absent_get),
        measured(point.physical_reads_per_absent_get),
        told(point.device_reads_per_absent_get),
        measured(point.filter_false_positive_rate),
        point.filter_negatives.to_string(),
        point.filter_false_positives.to_string(),
        measured(point.get_latency_us.mean),
        measured(point.get_latency_us.p99),
        measured(point.absent_get_latency_us.mean),
        measured(point.absent_get_latency_us.p99),
    ]);
    row
}
