//! Metrics, text tables and CSV rows of `lsmx iocost`.

use super::page;
use super::result::{ByteShare, CacheSizePoint, DatabaseCost, IoCostResult};
use crate::error::Result;
use crate::metric::table::{TableStyleOptions, format_table};
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, latency, metric};
use crate::numbers::ratio;
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

#[rustfmt::skip]
const DATABASE: &[Metric] = &[
    metric("block_bytes", "block", Unit::Bytes, "target size of a data block").csv("block_bytes"),
    metric("filter_bits", "filter bits", Unit::Text, "width of the filters' fingerprints in bits").csv("filter_bits"),
    metric("cache_kind", "cache kind", Unit::Text, "implementation of the block cache").csv("cache_kind"),
    metric("db_bytes", "database", Unit::Bytes, "bytes of the tables").csv("db_bytes"),
    metric("entries", "entries", Unit::Count, "entries in the tables, with old versions and tombstones").csv("entries"),
];

#[rustfmt::skip]
const POINT: &[Metric] = &[
    metric("cache_bytes", "cache", Unit::Bytes, "size of the block cache").csv("cache_bytes"),
    metric("cache_fraction", "of db", Unit::SmallShare, "block cache ÷ bytes of the tables").csv("cache_fraction"),
    metric("at", "size for", Unit::Text, "inflection_1: the cache holds all filters but the last run's, and top indexes; inflection_2: also index blocks; all_metadata: also the last run's filters, which only this line uses").csv("at"),
    metric("hit_rate.filter", "filter hits", Unit::Share, "share of the filters that lookups of present keys found in the block cache; – if they used no filter").rate().csv("filter_hit_rate"),
    metric("hit_rate.top_index", "top index hits", Unit::Share, "share of the top indexes that lookups of present keys found in memory; the top index of a table locates its index blocks").rate().csv("top_index_hit_rate"),
    metric("hit_rate.index", "index hits", Unit::Share, "share of the index blocks that lookups of present keys found in memory").rate().csv("index_hit_rate"),
    metric("hit_rate.range_tombstones", "range tombstone hits", Unit::Share, "share of the range tombstones that lookups of present keys found in memory").rate().csv("range_tombstones_hit_rate"),
    metric("hit_rate.data", "data hits", Unit::Share, "share of the data blocks that lookups of present keys found in memory").rate().csv("data_hit_rate"),
    metric("hit_rate.*", "{} hits", Unit::Share, "share of the blocks of this kind that lookups of present keys found in memory").rate(),
    metric("hit_rate_overall", "hits", Unit::Share, "share of all blocks that lookups of present keys found in memory").rate().csv("hit_rate_overall"),
    metric("ios_per_get", "I/Os", Unit::Blocks, "blocks of any kind (data, index, top index, filter) per lookup of a present key that the block cache did not have").cost().csv("ios_per_get"),
    metric("physical_reads_per_get", "reads", Unit::Mean, "read calls to the file system per lookup of a present key").csv("physical_reads_per_get"),
    metric("physical_read_bytes_per_get", "read bytes", Unit::MeanBytes, "bytes of these calls per lookup").csv("physical_read_bytes_per_get"),
    metric("device_reads_per_get", "device reads", Unit::Mean, "reads of the block device per lookup of a present key, by all processes").csv("device_reads_per_get"),
    metric("device_read_bytes_per_get", "device bytes", Unit::MeanBytes, "bytes that the device read for this process per lookup").csv("device_read_bytes_per_get"),
    metric("ios_per_absent_get", "I/Os absent", Unit::Blocks, "blocks of any kind per lookup of an absent key that the block cache did not have; only the row all_metadata uses the filter of the last run").cost().csv("ios_per_absent_get"),
    metric("physical_reads_per_absent_get", "reads absent", Unit::Mean, "read calls to the file system per lookup of an absent key").csv("physical_reads_per_absent_get"),
    metric("device_reads_per_absent_get", "device reads absent", Unit::Mean, "reads of the block device per lookup of an absent key").csv("device_reads_per_absent_get"),
    metric("filter_false_positive_rate", "false positives", Unit::SmallShare, "share of the filter checks for absent keys that passed").cost().ungated().csv("filter_false_positive_rate"),
    metric("filter_negatives", "filter negatives", Unit::Count, "filter checks that excluded a table").csv("filter_negatives"),
    metric("filter_false_positives", "filter passes", Unit::Count, "filter checks for absent keys that passed").cost().ungated().csv("filter_false_positives"),
    metric("filter_by_level[*].*", "L{} {}", Unit::Mean, "filter checks for absent keys in this level"),
    metric("warm_up_gets", "warm-up", Unit::Count, "lookups before the measurement, until the cached metadata was steady"),
    metric("resident_bytes.*", "{} resident", Unit::Bytes, "bytes of the blocks of this kind in memory at the end"),
    metric("blocks_per_get.*", "{} blocks", Unit::Mean, "blocks of this kind per lookup of a present key"),
];

/// Metrics of `lsmx iocost`.
pub const REGISTRY: MetricRegistry = MetricRegistry {
    command: "iocost",
    metrics: &[
        DATABASE,
        POINT,
        &latency!("get_latency_us", "present get", "time of a lookup of a present key", "get_"),
        &latency!(
            "absent_get_latency_us",
            "absent get",
            "time of a lookup of an absent key",
            "absent_get_"
        ),
    ],
    identity: &["cache_bytes", "cache_fraction", "at"],
    shown: &[
        "hit_rate.filter",
        "hit_rate.top_index",
        "hit_rate.index",
        "hit_rate.data",
        "ios_per_get",
        "ios_per_absent_get",
        "get_latency_us.mean",
        "get_latency_us.p99",
        "get_latency_us.max",
        "absent_get_latency_us.mean",
        "device_reads_per_get",
        "device_read_bytes_per_get",
    ],
};

impl Report for IoCostResult {
    fn registry(&self) -> &'static MetricRegistry {
        &REGISTRY
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        String::new()
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let rows = |cost| sorted_points(cost).into_iter().map(move |point| build_row(cost, point));
        self.costs().flat_map(rows).collect()
    }

    fn text(&self, style: &TableStyleOptions) -> Result<String> {
        let mut text = String::new();
        let last = self.costs().count() - 1;
        for (index, cost) in self.costs().enumerate() {
            let mut rows: Vec<ResultRow> = sorted_points(cost)
                .into_iter()
                .map(|point| build_row(cost, point))
                .collect::<Result<_>>()?;
            if !self.settings.direct_io {
                // Without direct I/O most reads are served by the page cache, so device reads are not shown.
                rows.iter_mut().for_each(|row| row.remove_prefix("device_"));
            }
            let style =
                TableStyleOptions { legend: style.legend && index == last, ..style.clone() };
            text.push_str(&format!(
                "{}\n{}",
                table_heading(self, cost),
                format_table(&REGISTRY, &rows, &style)?
            ));
        }
        Ok(text)
    }

    fn html(&self) -> Result<String> {
        page::iocost_page(self)
    }
}

/// Returns the summary that is printed above the table of a database.
fn table_heading(result: &IoCostResult, cost: &DatabaseCost) -> String {
    let settings = &result.settings;
    let database = match (&settings.database, settings.key_len, settings.value_len) {
        (Some(path), _, _) => format!("{path}, keyspace {}", settings.keyspace),
        (None, Some(key), Some(value)) => format!(
            "{} records of {key} + {value} B (key + value), memtable {}, table {}",
            cost.entries,
            format_bytes(settings.memtable_bytes.unwrap_or_default()),
            format_bytes(settings.table_bytes.unwrap_or_default()),
        ),
        (None, _, _) => String::new(),
    };
    let levels = cost.levels.iter().map(|level| {
        let runs = if level.runs == 1 { String::new() } else { format!(" in {} runs", level.runs) };
        format!("L{} {}{runs}", level.level, format_bytes(level.bytes))
    });
    let share = |share: ByteShare| {
        format!("{} ({:.3} %)", format_bytes(share.bytes), share.fraction * 100.0)
    };
    let above = cost.entries.saturating_sub(cost.entries_last_run);
    let all = &cost.with_all_filters;
    let by_level = all.filter_by_level.iter();
    let by_level =
        by_level.map(|at| format!(", L{} {:.4} %", at.level, at.false_positive_rate * 100.0));
    format!(
        "{database}, {}, {} lookups of present and of absent keys per row{}, seed {}\n\
         tables {}: {}; {:.1} % of the entries are above the last run\n\
         inflection 1, from which a lookup reads two blocks: {} = filters without the last run {}, top indexes {}, range tombstones {}\n\
         inflection 2, from which a lookup reads one block: {} = inflection 1 and index blocks {}; the index takes {:.2} B per data block\n\
         all metadata: {} = inflection 2 and the filters of the last run\n\
         false positives of filters, with all metadata in the cache: {} of {} checks ({:.4} %{})\n",
        cost.name(),
        settings.gets,
        if settings.direct_io { ", without the page cache" } else { "" },
        result.provenance.seed,
        format_bytes(cost.db_bytes),
        levels.collect::<Vec<_>>().join(", "),
        ratio(above, cost.entries) * 100.0,
        share(cost.inflection_1),
        format_bytes(cost.filter_bytes),
        format_bytes(cost.top_index_bytes),
        format_bytes(cost.range_tombstone_bytes),
        share(cost.inflection_2),
        format_bytes(cost.index_bytes),
        ratio(cost.index_bytes + cost.top_index_bytes, cost.data_blocks),
        share(cost.all_metadata),
        all.filter_false_positives,
        all.filter_negatives + all.filter_false_positives,
        all.filter_false_positive_rate * 100.0,
        by_level.collect::<String>(),
    )
}

/// Returns the measurements of all cache sizes in ascending order of the cache size, including `with_all_filters`.
pub(super) fn sorted_points(cost: &DatabaseCost) -> Vec<&CacheSizePoint> {
    let mut points: Vec<&CacheSizePoint> =
        cost.points.iter().chain([&cost.with_all_filters]).collect();
    points.sort_by_key(|point| point.cache_bytes);
    points
}

pub(super) fn build_row(cost: &DatabaseCost, point: &CacheSizePoint) -> Result<ResultRow> {
    Ok(ResultRow::new(point)?
        .with_value("block_bytes", cost.block_bytes)
        .with_value("filter_bits", cost.filter_bits.map(|bits| bits.to_string()))
        .with_value("cache_kind", cost.cache_kind.to_string())
        .with_value("db_bytes", cost.db_bytes)
        .with_value("entries", cost.entries))
}
