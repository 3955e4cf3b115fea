//! Tests of HTML pages with constructed results. The SVG plots are parsed as XML.

use roxmltree::{Document, Node};
use serde_json::{Value, json};

use super::*;
use crate::experiment::explore::result::{
    DeletePersistence, ExplorationCell, HistoryPoint, RangeLookups, StallTotals,
};
use crate::experiment::repeat;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::experiment::throughput::result::ThroughputResult;
use crate::latency::LatencyUs;
use crate::report::Report;
use crate::report::provenance::Provenance;

const HOSTILE: &str = "</svg><script>alert('&')</script>\"<!--";

fn latency(us: f64) -> LatencyUs {
    LatencyUs { mean: us, p50: us, p90: us * 2.0, p99: us * 9.0, p999: us * 80.0, max: us * 900.0 }
}

/// Returns a constructed result with measurements derived from `number`.
fn cell(policy: &str, number: u32) -> ExplorationCell {
    let (n, x) = (u64::from(number) + 1, f64::from(number) + 1.0);
    let lookups = |alpha: f64| {
        json!({
            "alpha": alpha, "ops": 1000, "latency_us": latency(3.0 + x),
            "ios_per_get": 1.0 + (1.0 - alpha) / x,
            "blocks_read": { "data": 900, "filter": 100 / n },
            "filter_false_positive_rate": 0.01,
        })
    };
    let level = |level: u64, runs: u64| json!({ "level": level, "runs": runs, "files": runs, "bytes": 4096 * runs * (level + 1) });
    let history: Vec<Value> = (0..20_u64)
        .map(|at| {
            json!({
                "ingested_bytes": 6_400 * (at + 1), "flushed_bytes": 6_500 * (at + 1),
                "read_bytes": 0, "written_bytes": 9_000 * n * at,
                "levels": [level(0, at % 4 + 1), level(1, n)],
            })
        })
        .collect();
    let phase = json!({
        "name": "load", "inserts": 1000, "updates": 0, "deletes": 0, "lookups": [], "ranges": 0,
        "selectivity": 0.0, "distribution": "uniform", "settle": true,
    });
    let cell = json!({
        "policy": policy, "spec": format!("{policy}(T=10)"),
        "workload": {
            "records": {
                "source": "generated", "key_len": 16, "value_len": 112, "distribution": "uniform",
            },
            "phases": [phase], "memtable_bytes": 65_536, "table_bytes": 65_536,
            "block_cache_bytes": 65_536, "write_control": "smooth", "deterministic": false,
        },
        "seed": 7, "ingested_bytes": 128_000, "flushed_bytes": 130_000, "flushes": 20,
        "compaction": {
            "jobs": 10 * n, "trivial_moves": n, "read_bytes": 200_000 * n,
            "written_bytes": 190_000 * n, "latency_us": latency(5000.0),
            "thread_us_total": 9000, "cpu_us_total": 6000,
        },
        "data_moved_ratio": 3.0 * x, "write_amplification": 1.0 + 1.5 * x,
        "compaction_write_amplification": 1.5 * x, "device_write_amplification": 2.0 + 1.5 * x,
        "space_amplification": 1.0 + 0.5 / x, "space_amplification_invalid": 0.5 / x,
        "space_amplification_peak": 2.0 + x, "put_latency_us": latency(2.0),
        "delete_persistence": {
            "deletes": 100, "live_tombstones": 10 * n, "oldest_age_us": 500, "age_us_max": 250 * n,
            "run_us": 1000, "within": [],
        },
        "stalls": { "count": n, "total_us": 5000 * n, "max_us": 3000, "throttled_us": 700 },
        "point_lookups": [lookups(0.0), lookups(1.0)],
        "range_lookups": {
            "ops": 10, "entries": 1000, "latency_us": latency(50.0),
            "blocks_read": { "data": 40 * n },
            "by_selectivity": [],
        },
        "levels": [{
            "level": 1, "runs": n, "files": n, "bytes": 128_000, "entries": 1000, "tombstones": 0,
        }],
        "history": history, "elapsed_s": 1.5, "digest": null,
    });
    serde_json::from_value(cell).unwrap()
}

fn result(cells: Vec<ExplorationCell>) -> Exploration {
    let provenance = Provenance {
        version: "1.2.3".to_owned(),
        command: "lsmx explore".to_owned(),
        spec: None,
        seed: 7,
        cpu: "A 9000 x 2".to_owned(),
        kernel: "linux 6".to_owned(),
        file_system: "ext4".to_owned(),
    };
    Exploration { provenance, cells }
}

fn svgs(page: &str) -> Vec<&str> {
    let mut svgs = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find("<svg") {
        let end = begin + rest[begin..].find("</svg>").unwrap() + "</svg>".len();
        svgs.push(&rest[begin..end]);
        rest = &rest[end..];
    }
    svgs
}

/// Parses the first plot after the caption that starts with `title`.
fn plot<'a>(page: &'a str, title: &str) -> Document<'a> {
    let begin = page.find(&format!("<figcaption>{title}")).unwrap_or_else(|| panic!("no {title}"));
    Document::parse(svgs(&page[begin..])[0]).unwrap()
}

fn classed<'a>(node: Node<'a, 'a>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |it: &Node<'_, '_>| {
        it.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class))
    };
    node.descendants().filter(has).collect()
}

fn names<'a>(plot: &'a Document<'a>) -> Vec<&'a str> {
    let series = classed(plot.root(), "series");
    series.iter().map(|it| it.attribute("data-name").unwrap()).collect()
}

fn number(node: &Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

const POLICIES: [&str; 4] = ["full", "lo+1", "tiering", "<b>&own"];

fn four() -> String {
    let cells = POLICIES.iter().zip(0..).map(|(name, n)| cell(name, n)).collect();
    exploration_page(&result(cells)).unwrap()
}

#[test]
fn page_plots_are_well_formed_and_have_labels() {
    let page = four();
    let svgs = svgs(&page);
    let mut plots = 0;
    for svg in &svgs {
        let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        let root = document.root_element();
        if classed(document.root(), "plot").is_empty() {
            continue;
        }
        plots += 1;
        assert!(!root.attribute("aria-label").unwrap().is_empty());
        assert!(!classed(document.root(), "mark").is_empty(), "the plot is empty: {svg}");
    }
    assert!(plots >= 20, "{plots}");
}

#[test]
fn page_series_have_their_points() {
    let page = four();
    let scatter = plot(&page, "Write against read, α = 0");
    let mut shown = names(&scatter);
    shown.sort_unstable();
    assert_eq!(shown, ["<b>&own", "full", "lo+1", "tiering"]);
    for series in classed(scatter.root(), "series") {
        assert_eq!(classed(series, "dot").len(), 1);
        assert_eq!(classed(series, "name").len(), 1, "the series has no name label");
    }

    // The bytes moved by the four policies have the ratio 1 : 2 : 3 : 4. Each policy writes 5 % fewer bytes than it
    // reads.
    let bars = plot(&page, "Data moved by compaction");
    assert_eq!(names(&bars), POLICIES);
    let parts: Vec<Vec<f64>> = classed(bars.root(), "series")
        .into_iter()
        .map(|row| classed(row, "bar").iter().map(|bar| number(bar, "width")).collect())
        .collect();
    for (row, n) in parts.iter().zip([1.0, 2.0, 3.0, 4.0]) {
        assert_eq!(row.len(), 2);
        assert!((row[0] / parts[0][0] - n).abs() < 0.01 && (row[1] / row[0] - 0.95).abs() < 0.01);
    }

    let lines = plot(&page, "I/Os per get");
    for series in classed(lines.root(), "series") {
        // The series has one dot for each of the two shares of absent keys, and one dot next to its name.
        assert_eq!(classed(series, "dot").len(), 3);
        assert_eq!(classed(series, "line").len(), 1);
    }

    let spans = plot(&page, "Puts");
    for series in classed(spans.root(), "series") {
        let dots = classed(series, "dot").into_iter().filter(|dot| dot.has_tag_name("circle"));
        let mut at: Vec<f64> =
            dots.filter(|dot| number(dot, "cx") > 20.0).map(|dot| number(&dot, "cx")).collect();
        at.extend(classed(series, "bar").iter().map(|bar| number(bar, "x") + 1.5));
        assert_eq!(at.len(), 5, "expected marks: median, three percentiles, maximum");
        assert!(at.windows(2).all(|pair| pair[0] < pair[1]), "{at:?}");
    }

    let begin = page.find("<figure data-name=\"tiering\">").unwrap();
    let tree = Document::parse(svgs(&page[begin..])[1]).unwrap();
    // The plot has four areas: the bytes and the runs of each of the two levels.
    assert_eq!(classed(tree.root(), "area").len(), 4);
}

#[test]
fn page_texts_of_users_are_escaped() {
    let mut cells = vec![cell(HOSTILE, 0), cell("full", 1)];
    for cell in &mut cells {
        cell.workload.phases[0].name = HOSTILE.to_owned();
    }
    let mut result = result(cells);
    let provenance = &mut result.provenance;
    for text in [
        &mut provenance.version,
        &mut provenance.command,
        &mut provenance.cpu,
        &mut provenance.kernel,
        &mut provenance.file_system,
    ] {
        HOSTILE.clone_into(text);
    }
    provenance.spec = Some(HOSTILE.to_owned());
    let page = exploration_page(&result).unwrap();
    assert!(!page.contains("<script>alert") && !page.contains("\"<!--"), "text is not escaped");
    assert!(page.matches("&lt;script&gt;alert").count() > 20);
    for svg in svgs(&page) {
        Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    }
}

#[test]
fn page_has_no_external_resources() {
    let page = four().replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<iframe"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn page_sections_without_measurements_are_omitted() {
    let mut cells = vec![cell("full", 0), cell("tiering", 1)];
    for cell in &mut cells {
        cell.point_lookups.clear();
        cell.range_lookups = RangeLookups::default();
        cell.history.clear();
        cell.put_latency_us = LatencyUs::default();
        cell.compaction.latency_us = LatencyUs::default();
        cell.stalls = serde_json::from_value::<StallTotals>(
            json!({ "count": 0, "total_us": 0, "max_us": 0 }),
        )
        .unwrap();
        cell.delete_persistence = DeletePersistence::default();
        cell.compaction.thread_us_total = 0;
        cell.compaction.cpu_us_total = 0;
        cell.compaction.jobs = 0;
    }
    let page = exploration_page(&result(cells)).unwrap();
    for title in ["Point lookups", "Range lookups", "Deletes", "The tree over time"] {
        assert!(!page.contains(&format!("<h3>{title}")), "{title}");
    }
    assert!(page.contains("<h3>Summary") && page.contains("No write waited"));
    for svg in svgs(&page) {
        let document = Document::parse(svg).unwrap();
        assert!(!classed(document.root(), "mark").is_empty(), "the plot is empty: {svg}");
    }
}

#[test]
fn page_numbers_of_empty_cells_are_finite() {
    let mut nothing = cell("full", 0);
    nothing.write_amplification = 0.0;
    nothing.space_amplification = 0.0;
    nothing.history = vec![HistoryPoint::default()];
    nothing.point_lookups[0].ios_per_get = 0.0;
    for cells in [vec![nothing.clone()], vec![nothing, cell("lo+1", 3)], Vec::new()] {
        let page = exploration_page(&result(cells)).unwrap();
        for svg in svgs(&page) {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}

#[test]
fn page_cells_of_several_workloads_are_grouped() {
    let mut cells = Vec::new();
    for memtable in 1..=10 {
        for (policy, n) in POLICIES.iter().zip(0..) {
            let mut one = cell(policy, n);
            one.workload.memtable_bytes = memtable << 20;
            cells.push(one);
        }
        let mut other = cell("tiering", 5);
        other.spec = "tiering(T=4)".to_owned();
        other.workload.memtable_bytes = memtable << 20;
        cells.push(other);
    }
    let page = exploration_page(&result(cells)).unwrap();
    assert_eq!(page.matches("<h2").count(), 10);
    assert!(page.contains("<h2 id=\"g3\">3 · memtable bytes 3 MiB</h2>"));
    assert!(page.contains("<a href=\"#g10\">10 · memtable bytes 10 MiB</a>"));
    let over = plot(&page, "Write amplification</figcaption>");
    assert_eq!(names(&over), names(&plot(&page, "Write amplification:")));
    for series in classed(over.root(), "series") {
        assert_eq!(classed(series, "dot").len(), 11, "expected ten workloads and the name");
    }
    let own = plot(&page, "Write amplification");
    // Policies that occur twice are named with their parameters.
    assert_eq!(names(&own), ["full", "lo+1", "tiering(T=10)", "<b>&own", "tiering(T=4)"]);
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
}

#[test]
fn throughput_page_engines_are_compared_by_workload() {
    use crate::experiment::throughput::result::{ThroughputCell, ThroughputSettings};
    let cell = |workload: &str, engine: &str, ops_per_s: f64| ThroughputCell {
        workload: workload.to_owned(),
        engine: engine.to_owned(),
        threads: 1,
        ops_per_s,
        latency_us: latency(1.0),
        ..ThroughputCell::default()
    };
    let throughput = ThroughputResult {
        provenance: result(Vec::new()).provenance,
        settings: ThroughputSettings::default(),
        cells: vec![
            cell("fillseq", "lsmx", 2e6),
            cell("readrandom", "lsmx", 3e6),
            cell("fillseq", "</g>", 1e6),
            cell("readrandom", "</g>", 4e6),
        ],
        device: Vec::new(),
    };
    let page = throughput.html().unwrap();
    let rates = plot(&page, "Operations per second, readrandom");
    assert_eq!(names(&rates), ["readrandom · lsmx", "readrandom · </g>"]);
    let bars = classed(rates.root(), "bar");
    assert!((number(&bars[1], "width") / number(&bars[0], "width") - 4.0 / 3.0).abs() < 0.01);
    assert!(!page.contains("<h3>Amplification"), "the page has a section without data");
}

#[test]
fn page_of_sweep_has_points_spreads_and_ticks() {
    let mut cells = Vec::new();
    for ratio in [4, 6, 10] {
        for policy in ["full", "tiering"] {
            let repetitions: Vec<ExplorationCell> = (0..3)
                .map(|seed: u32| {
                    let mut one = cell(policy, u32::try_from(ratio).unwrap() + seed);
                    one.spec = format!("{policy}(T={ratio})");
                    one.seed = u64::from(seed);
                    let typed = ("size-ratio".to_owned(), SweepValue::Whole(ratio));
                    one.sweep = SweepPoint(vec![typed]);
                    one
                })
                .collect();
            cells.extend(repeat::summarize_repetitions(repetitions).unwrap());
        }
    }
    let page = exploration_page(&result(cells)).unwrap();
    assert!(page.contains("<h2 id=\"g2\">2 · size-ratio 6</h2>"));
    assert!(page.contains("Medians of 3 repetitions"));
    // The write amplifications of the three seeds are 8.5, 10 and 11.5.
    assert!(page.contains("10.00<small class=\"spread\">8.50 – 11.50</small>"), "no spread");
    // The I/Os per lookup of the three seeds are 1.2, 1.17 and 1.14.
    assert!(page.contains("1.167<small class=\"spread\">1.143 – 1.200</small>"), "no spread");
    let over = plot(&page, "Write amplification</figcaption>");
    assert_eq!(names(&over), ["full", "tiering"]);
    for series in classed(over.root(), "series") {
        assert_eq!(classed(series, "whisker").len(), 3);
        assert_eq!(classed(series, "dot").len(), 4);
    }
    let ticks: Vec<&str> =
        classed(over.root(), "tick").iter().filter_map(|tick| tick.text()).collect();
    for value in ["4", "6", "10"] {
        assert!(ticks.contains(&value), "{ticks:?}");
    }
}

/// Returns a constructed result of `lsmx rmw` with measurements derived from `number`.
fn updates(mode: &str, base: &str, number: u32) -> crate::experiment::rmw::result::RmwCell {
    let x = f64::from(number) + 1.0;
    let cell = json!({
        "engine": "lsmx", "mode": mode, "base": base, "read_ratio": 0.1,
        "workload": {
            "mix": "default", "records": 1000, "loaded_bytes": 1_024_000, "key_len": 24,
            "value_len": 1000, "field_len": 100, "delta_len": 100, "zipf": 0.99, "threads": 1,
            "memory_budget": 4_194_304, "direct_io": false,
        },
        "seed": 7, "ops": 1000, "ops_per_s": 1000.0 * x, "elapsed_s": 1.0, "settle_s": 0.1,
        "reads": 100, "read_latency_us": latency(9.0 * x), "rmws": 900,
        "rmw_latency_us": latency(3.0 * x), "put_latency_us": latency(0.0),
        "scan_latency_us": latency(0.0), "ios_per_read": 1.5, "read_bytes": 1000, "written_bytes": 2000,
        "device": null, "storage_bytes": 3000, "memory_bytes": 4000, "memory_bytes_before": null,
        "checked_records": 900,
    });
    serde_json::from_value(cell).unwrap()
}

#[test]
fn rmw_page_has_bar_and_line_per_mode_and_base() {
    use crate::experiment::rmw::result::RmwResult;

    let pairs = [("get-put", "tree"), ("merge", "tree"), ("kd", "tree"), ("kd", "value-log")];
    let mut result = RmwResult {
        provenance: result(Vec::new()).provenance,
        experiment: None,
        cells: pairs.iter().zip(0..).map(|((mode, base), n)| updates(mode, base, n)).collect(),
    };
    let page = result.html().unwrap();
    let bars = plot(&page, "Operations per second");
    assert_eq!(names(&bars), ["get-put", "merge", "kd", "kd · value-log"]);
    let widths: Vec<f64> =
        classed(bars.root(), "bar").iter().map(|bar| number(bar, "width")).collect();
    assert!((widths[3] / widths[0] - 4.0).abs() < 0.05, "{widths:?}");
    assert!(!page.contains("Bytes that the device read and wrote</figcaption>"), "empty plot");
    for svg in svgs(&page) {
        Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    }

    let mut more = result.cells.clone();
    more.iter_mut().for_each(|cell| (cell.read_ratio, cell.ops_per_s) = (0.9, 7000.0));
    result.cells.append(&mut more);
    let page = result.html().unwrap();
    let lines = plot(&page, "Operations per second");
    assert_eq!(names(&lines), ["get-put", "merge", "kd", "kd · value-log"]);
    for series in classed(lines.root(), "series") {
        assert_eq!(classed(series, "dot").len(), 3, "expected two ratios and the name");
    }
}
