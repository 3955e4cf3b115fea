//! Tests of the HTML pages that `--html` writes. A browser renders the pages if one is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{TestDir, assert_contains, command, experiment, lsmx};

const CHECK: &str = include_str!("html/check.js");

/// Names of Chromium and its derivatives. `.ci/run` looks for the same names.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Returns the first browser in `PATH` that starts. Some systems install a stub under the name of a browser.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let starts = |browser: &PathBuf| {
        Command::new(browser).arg("--version").output().is_ok_and(|ended| ended.status.success())
    };
    let found = std::env::split_paths(&path)
        .flat_map(|directory| BROWSERS.map(|name| directory.join(name)))
        .find(|browser| browser.is_file() && starts(browser));
    if found.is_none() {
        let reason = format!("no browser in PATH starts, looked for {}", BROWSERS.join(", "));
        lsmx_stress::report_skipped("the check of a page of --html", reason);
    }
    found
}

/// Renders a page in a browser. Returns the layout errors that `check.js` found, and the number of elements of each
/// kind.
fn render(browser: &Path, page: &str, dark: bool, width: u32) -> (Vec<String>, serde_json::Value) {
    let dir = TestDir::new();
    let scheme = if dark { "dark" } else { "light" };
    let copy = page
        .replacen("<html", &format!("<html style=\"color-scheme: {scheme}\""), 1)
        .replacen("</body>", &format!("<script>const DARK = {dark};\n{CHECK}</script></body>"), 1);
    let file = dir.write("copy.html", copy);
    let output = Command::new(browser)
        // The browser sandbox does not work for root. The test renders only its own pages, so the sandbox is not
        // needed.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.path("profile")))
        .arg(format!("--window-size={width},1000"))
        .arg(format!("file://{file}"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let report = dom
        .split_once("<pre id=\"findings\">BEGIN\n")
        .and_then(|(_, rest)| rest.split_once("\nEND"))
        .unwrap_or_else(|| panic!("check.js did not finish: {}", output.status))
        .0;
    let (findings, seen) = report.rsplit_once("SEEN ").unwrap();
    (findings.lines().map(str::to_owned).collect(), serde_json::from_str(seen).unwrap())
}

/// Checks the sections of a page and its rendering in both color schemes and in a narrow window. `minimum` holds the
/// minimum number of rendered elements of each kind.
#[track_caller]
fn check_page(page: &str, sections: &[&str], minimum: &[(&str, u64)]) {
    for title in sections {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    let Some(browser) = browser() else { return };
    for (dark, width) in [(false, 1400), (true, 1400), (false, 520)] {
        let (mut findings, seen) = render(&browser, page, dark, width);
        findings.truncate(20);
        assert!(findings.is_empty(), "dark {dark}, width {width}: {findings:#?}");
        for (part, minimum) in minimum {
            let count = seen[part].as_u64().unwrap();
            assert!(count >= *minimum, "{count} {part} are less than {minimum}: {seen}");
        }
    }
}

#[test]
fn page_of_all_policies_has_every_plot_and_no_overlaps() {
    let page = experiment(
        "explore --policy all --entries 20000 --value-len 48 --memtable 16K --size-ratio 4 \
         --updates 0.3 --deletes 0.1 --lookups 500 --empty-lookups 0,0.5,1 --ranges 20 \
         --selectivity 0.01 --seed 4",
    );
    let sections = [
        "Summary",
        "What it costs to write, to read and to keep",
        "What compaction did",
        "Latency",
        "Point lookups",
        "Range lookups",
        "The tree over time",
    ];
    let policies = 6;
    let minimum = [
        // The page has at least 23 plots: 4 of costs, 6 of compaction, 2 of latencies, 8 of point lookups, 2 of range
        // lookups, and 1 of written bytes. One more plot for each policy shows the tree.
        ("plots", 23 + policies),
        ("marks", 23 * policies),
        ("texts", 23 * policies),
        ("tables", 1),
        ("choosers", 1),
    ];
    check_page(&page.html, &sections, &minimum);
}

#[test]
fn page_of_eighteen_policies_with_long_names_has_no_overlaps() {
    let mut policies = vec!["universal".to_owned(), "universal(trigger=6,stop=24)".to_owned()];
    for policy in ["full", "lo+1", "tiering", "1-leveling", "leveled"] {
        policies.push(policy.to_owned());
        policies.extend([3, 5].map(|ratio| format!("{policy}(T={ratio})")));
    }
    policies.push("leveled(T=7)".to_owned());
    assert_eq!(policies.len(), 18);
    let page = experiment(&format!(
        "explore --policy {} --deterministic --entries 6000 --value-len 48 --memtable 16K \
         --lookups 200 --ranges 10 --selectivity 0.01 --updates 0.4",
        policies.join(",")
    ))
    .html;
    for policy in &policies {
        assert_contains(&page, &[&format!("<g class=\"series\" data-name=\"{policy}\">")]);
    }
    check_page(&page, &[], &[("plots", 15 + 18), ("marks", 15 * 18), ("texts", 15 * 18)]);
}

#[test]
fn text_of_the_user_is_escaped() {
    let dir = TestDir::new();
    let hostile = "</pre></title><script>found.push('ran')</script>&<!--";
    let phases = dir.write(
        "phases <b>&amp;.toml",
        format!("# {hostile}\n[[phase]]\nname = \"{hostile}\"\nentries = 3000\nlookups = 100\n"),
    );
    let html = dir.path("page.html");
    let mut run = command("explore --policy tiering,full --memtable 16K");
    run.args(["--phases", &phases, "--html", &html]);
    assert!(run.status().unwrap().success());
    let page = fs::read_to_string(html).unwrap();
    assert!(!page.contains("<script>found") && !page.contains("<b>"), "unescaped text");
    assert_contains(
        &page,
        &[
            "&lt;script&gt;found.push('ran')&lt;/script&gt;&amp;&lt;!--",
            "phases &lt;b&gt;&amp;amp;.toml",
        ],
    );
    check_page(&page, &[], &[("plots", 10), ("tables", 1)]);
}

#[test]
fn page_of_bench_has_rates_and_latencies() {
    let page = experiment("bench fillrandom readrandom scan ycsb-a --entries 5000 --threads 1");
    let sections = ["Summary", "Rates", "Latency", "Amplification"];
    check_page(&page.html, &sections, &[("plots", 4), ("marks", 20), ("tables", 1)]);
}

#[test]
fn pages_of_bench_experiments_have_their_plots() {
    for (experiment, title, plots) in [
        ("caching --ops 1000", "Effect of the cache and the filters", 6),
        ("filter-size --ops 1000", "Effect of the cache and the filters", 7),
        ("put-over-time --ops 1000", "Puts over time", 4),
        ("data-size", "Effect of the amount of data", 7),
    ] {
        let words = format!("bench --entries 5000 --memtable 64K --experiment {experiment}");
        let page = crate::common::experiment(&words);
        check_page(&page.html, &[title], &[("plots", plots), ("marks", plots)]);
    }
}

#[test]
fn page_of_steady_state_has_each_minute() {
    let words = "--entries 5000 --memtable 64K --rate 5000 --minutes 0.01";
    let page = experiment(&format!("bench --experiment steady-state {words}"));
    let sections = ["Summary", "Latency", "By minute"];
    check_page(&page.html, &sections, &[("plots", 12), ("marks", 20), ("tables", 1)]);
}

#[test]
fn page_of_iocost_has_a_part_for_each_block_size() {
    let page = experiment(
        "iocost --entries 20000 --memtable 64K --table 64K --block-bytes 1024,4096 --gets 1000",
    )
    .html;
    let sections = ["Memory for metadata", "Reads and hits", "Every cache size"];
    for title in sections {
        assert_eq!(page.matches(&format!("<h3>{title}</h3>")).count(), 2, "sections {title}");
    }
    assert_contains(&page, &["Pebble 1.1, 20 G", "absent keys"]);
    check_page(&page, &sections, &[("plots", 6), ("marks", 100), ("texts", 80)]);
}

#[test]
fn pages_of_rmw_have_each_plot() {
    let bars = experiment("rmw --records 2000 --ops 2000");
    let sections = ["Summary", "Rates and costs of each mode", "Latency"];
    check_page(&bars.html, &sections, &[("plots", 8), ("marks", 30), ("tables", 1)]);
    let lines = experiment("rmw --records 2000 --ops 2000 --experiment read-ratio");
    let minimum = [("plots", 8), ("marks", 60), ("tables", 1)];
    check_page(&lines.html, &["Over read ratio"], &minimum);
}

#[test]
fn page_of_advise_has_the_ranking_and_the_confirmed_designs() {
    let page = experiment(
        "advise --entries 10000 --memory 192K --lookups 300 --ranges 20 --confirm 2 --presets",
    );
    let sections = ["Ranking", "What the costs are made of", "The Pareto front", "Summary"];
    check_page(&page.html, &sections, &[("plots", 5 + 15), ("marks", 100), ("tables", 2)]);
}

#[test]
fn page_of_a_sweep_has_a_part_for_each_point() {
    let page = experiment(
        "explore --policy full,tiering,1-leveling --deterministic --entries 4000 --value-len 48 \
         --memtable 16K --lookups 200 --ranges 10 --selectivity 0.01 --repeat 2 \
         --sweep size-ratio=3,5 --sweep updates=0,0.5",
    )
    .html;
    for point in [
        "1 · size-ratio 3, updates 0</h2>",
        "2 · size-ratio 3, updates 0.5</h2>",
        "3 · size-ratio 5, updates 0</h2>",
    ] {
        assert_contains(&page, &[point]);
    }
    check_page(&page, &["Over all workloads"], &[("plots", 5 + 4 * 20), ("tables", 4)]);
}

#[test]
fn page_of_a_simulation_has_no_times_and_no_log() {
    let page = experiment(
        "simulate --policy full,tiering,1-leveling --entries 3000000000 --updates 0.3 \
         --lookups 1000 --empty-lookups 0,1 --ranges 10 --selectivity 0.0001 --sweep size-ratio=4,10",
    )
    .html;
    let sections = [
        "Over all workloads",
        "Summary",
        "What it costs to write, to read and to keep",
        "What compaction did",
        "Point lookups",
        "Range lookups",
        "Model and simulation",
    ];
    assert_contains(&page, &["<title>lsmx simulate</title>"]);
    for absent in ["<h3>Latency</h3>", "put max", "The longest put", "with the log", "engine</"] {
        assert!(!page.contains(absent), "{absent}");
    }
    check_page(&page, &sections, &[("plots", 4 + 2 * 12), ("tables", 2)]);
}

/// `--html` does not affect the results, so a finished run can be resumed with `--html` to write a page.
#[test]
fn page_of_finished_cells_needs_no_run() {
    let dir = TestDir::new();
    let words = "explore --policy full,tiering --deterministic --entries 2000 --memtable 16K \
                 --lookups 50 --ranges 5 --resume";
    let (resume, html) = (dir.path("finished"), dir.path("page.html"));
    lsmx(&format!("{words} {resume}")).ok();
    lsmx(&format!("{words} {resume} --html {html}")).ok();
    let page = fs::read_to_string(html).unwrap();
    assert_contains(&page, &["<h3>The tree over time</h3>", "tiering"]);
}
