//! The HTML page of `lsmx iocost`: the three plots of the study of Pebble's read path, with the published curves.

use lsmx::metrics::BlockKind;
use maud::{Markup, html};

use super::columns::{REGISTRY, build_row, sorted_points};
use super::result::{CacheSizePoint, DatabaseCost, IoCostResult};
use crate::error::Result;
use crate::metric::html::{PageRow, render_table_and_legend};
use crate::numbers::{ratio, to_f64};
use crate::report::html::page::{render_line_figure, render_page, render_section};
use crate::report::html::plot::frame::{Axis, NumberFormat};
use crate::report::html::plot::lines::PlotLine;
use crate::report::html::plot::marker::Marker;
use crate::report::html::plot::scale::Scale;
use crate::report::html::value;

/// Name and points of a published curve. Each point is a pair: the cache size in percent of the database size, and the
/// number of I/Os per lookup.
type PublishedCurve = (&'static str, &'static [(f64, f64)]);

/// Published numbers of I/Os per lookup for different cache sizes. Pebble 1.1.5 was measured with 200 million and with
/// 20 billion records. The newer engines were measured with ten million records of the same lengths.
const PUBLISHED: [PublishedCurve; 5] = [
    (
        "Pebble 1.1, 200 M",
        &[
            (0.10, 3.13),
            (0.14, 2.25),
            (0.2, 1.97),
            (0.4, 1.70),
            (0.6, 1.44),
            (0.8, 1.19),
            (0.91, 1.04),
            (1.0, 1.03),
            (2.0, 1.02),
            (3.0, 1.01),
        ],
    ),
    (
        "Pebble 1.1, 20 G",
        &[
            (0.10, 2.84),
            (0.11, 2.42),
            (0.2, 1.96),
            (0.4, 1.70),
            (0.6, 1.48),
            (0.8, 1.35),
            (0.91, 1.33),
            (1.0, 1.32),
            (2.0, 1.16),
            (3.0, 1.08),
        ],
    ),
    ("Pebble 2.1, 10 M", &[(0.2, 2.09), (0.5, 1.01)]),
    ("RocksDB 10.10, 10 M", &[(0.2, 2.24), (0.5, 1.58)]),
    ("fjall 3.1, 10 M", &[(0.2, 2.05), (0.5, 1.72)]),
];

pub(super) fn iocost_page(result: &IoCostResult) -> Result<String> {
    let tables: Vec<Markup> = result.costs().map(render_table).collect::<Result<_>>()?;
    let several = !result.others.is_empty();
    let sections = html! {
        @for (cost, table) in result.costs().zip(&tables) {
            @if several {
                h2 { (cost.name()) }
            }
            (render_metadata_needs(cost))
            (render_curves(cost))
            (table)
        }
    };
    let settings = &result.settings;
    let of = match (&settings.database, settings.key_len, settings.value_len) {
        (None, Some(key), Some(value)) => {
            format!(
                "{} records of {key} + {value} B",
                value::format_count(to_f64(result.cost.entries))
            )
        }
        (path, _, _) => {
            format!("{}, keyspace {}", path.as_deref().unwrap_or_default(), settings.keyspace)
        }
    };
    let headline = format!(
        "Reads per point lookup: {of}, {}; {} lookups per cache size.",
        value::format_bytes(to_f64(result.cost.db_bytes)),
        value::format_count(to_f64(settings.gets)),
    );
    Ok(render_page("lsmx iocost", &headline, &result.provenance, &[], &sections))
}

fn render_metadata_needs(cost: &DatabaseCost) -> Markup {
    let rows = [
        ("filters without the last sorted run", cost.filter_bytes),
        ("top indexes", cost.top_index_bytes),
        ("range tombstones", cost.range_tombstone_bytes),
        ("inflection 1", cost.inflection_1.bytes),
        ("index blocks", cost.index_bytes),
        ("inflection 2", cost.inflection_2.bytes),
        ("filters of all sorted runs", cost.all_filters_bytes),
        ("all metadata", cost.all_metadata.bytes),
    ];
    let content = html! {
        div class="scroll" {
            table {
                thead {
                    tr {
                        th scope="col" { "in memory" }
                        th scope="col" { "bytes" }
                        th scope="col" { "of the database" small { "%" } }
                    }
                }
                tbody {
                    @for (name, bytes) in rows {
                        tr {
                            th scope="row" { (name) }
                            td { (value::format_bytes(to_f64(bytes))) }
                            td { (format!("{:.4}", ratio(bytes, cost.db_bytes) * 100.0)) }
                        }
                    }
                }
            }
        }
    };
    let blocks = format!(
        "{} data blocks, {} index blocks; the index takes {:.2} bytes of memory per data block.",
        value::format_count(to_f64(cost.data_blocks)),
        value::format_count(to_f64(cost.index_blocks)),
        ratio(cost.index_bytes + cost.top_index_bytes, cost.data_blocks),
    );
    render_section("Memory for metadata", &blocks, &content)
}

fn render_curves(cost: &DatabaseCost) -> Markup {
    let kinds = [
        (BlockKind::Filter, "filter"),
        (BlockKind::TopIndex, "top index"),
        (BlockKind::Index, "index"),
        (BlockKind::Data, "data"),
    ];
    let by_kind: Vec<PlotLine> = kinds
        .iter()
        .enumerate()
        .map(|(number, (kind, name))| {
            cache_size_line(cost, number, name, |point| {
                point.hit_rate.get(kind).map(|rate| rate * 100.0)
            })
        })
        .collect();
    let overall =
        cache_size_line(cost, 0, "all blocks", |point| Some(point.hit_rate_overall * 100.0));
    let mut ios = vec![
        cache_size_line(cost, 0, "present keys", |point| Some(point.ios_per_get)),
        cache_size_line(cost, 1, "absent keys", |point| Some(point.ios_per_absent_get)),
    ];
    ios.extend((2..).zip(PUBLISHED).map(|(number, (name, points))| {
        PlotLine::new(Marker::with_number(number), name, points.to_vec())
    }));
    let percent: NumberFormat = |x| format!("{} %", value::format_plain(x));
    let content = html! {
        div class="plots" {
            (render_plot("I/Os per get, beside what was published (present keys)", ios, value::format_plain))
            (render_plot("Hit rate by kind of block, present keys", by_kind, percent))
            (render_plot("Hit rate over all blocks, present keys", vec![overall], percent))
        }
    };
    let how = "Over the size of the block cache in percent of the database, on a logarithmic axis. The published curves are \
               of other data sets of the same records.";
    render_section("Reads and hits", how, &content)
}

/// Returns the plot line of a measurement. The x axis is the cache size in percent of the database size.
fn cache_size_line(
    cost: &DatabaseCost,
    number: usize,
    name: &str,
    of: impl Fn(&CacheSizePoint) -> Option<f64>,
) -> PlotLine {
    let points = cost.points.iter().filter(|point| point.cache_bytes > 0);
    let points = points.filter_map(|point| Some((point.cache_fraction * 100.0, of(point)?)));
    PlotLine::new(Marker::with_number(number), name, points.collect())
}

fn render_plot(title: &str, lines: Vec<PlotLine>, format: NumberFormat) -> Markup {
    render_line_figure(
        title,
        lines,
        |sizes| {
            Axis::new(
                Scale::log_with_margin(sizes),
                "cache, % of the database",
                value::format_plain,
            )
        },
        |values| Axis::with_zero(values, format),
    )
}

fn render_table(cost: &DatabaseCost) -> Result<Markup> {
    const SHOWN: [&str; 12] = [
        "cache_fraction",
        "at",
        "ios_per_get",
        "physical_reads_per_get",
        "ios_per_absent_get",
        "physical_reads_per_absent_get",
        "hit_rate.filter",
        "hit_rate.top_index",
        "hit_rate.index",
        "hit_rate.data",
        "get_latency_us.mean",
        "get_latency_us.p99",
    ];
    let subject = |point: &CacheSizePoint| {
        let name = value::format_bytes(to_f64(point.cache_bytes));
        Ok(PageRow { name, marker: Marker::with_number(0), row: build_row(cost, point)? })
    };
    let subjects: Vec<PageRow> =
        sorted_points(cost).into_iter().map(subject).collect::<Result<_>>()?;
    let content = render_table_and_legend(&REGISTRY, "cache", &SHOWN, &subjects);
    let how = "Only lookups of the line all_metadata use the filters of the last sorted run.";
    Ok(render_section("Every cache size", how, &content))
}
