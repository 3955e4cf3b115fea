//! Pages of `--html`, opened in a browser where there is one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::lsmx;

const CHECK: &str = include_str!("html/check.js");

/// Names under which Chromium and its kin are installed.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The first browser in `PATH` that starts; some systems install a stub under its name.
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

/// What the browser found wrong with a page, and what it has seen of it.
#[derive(Debug)]
struct Looked {
    findings: Vec<String>,
    seen: serde_json::Value,
}

fn look(browser: &Path, page: &str, dark: bool, width: u32, directory: &Path) -> Looked {
    let scheme = if dark { "dark" } else { "light" };
    let copy = page
        .replacen("<html", &format!("<html style=\"color-scheme: {scheme}\""), 1)
        .replacen("</body>", &format!("<script>const DARK = {dark};\n{CHECK}</script></body>"), 1);
    let file = directory.join("copy.html");
    fs::write(&file, copy).unwrap();
    let output = Command::new(browser)
        // The page is our own; where tests run as root there is no sandbox to be had.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.join("profile").display()))
        .arg(format!("--window-size={width},1000"))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let report = dom
        .split_once("<pre id=\"findings\">BEGIN\n")
        .and_then(|(_, rest)| rest.split_once("\nEND"))
        .unwrap_or_else(|| panic!("the page's check did not end: {}", output.status))
        .0;
    let mut findings: Vec<String> = report.lines().map(str::to_owned).collect();
    let seen = findings.pop().unwrap();
    let seen = serde_json::from_str(seen.strip_prefix("SEEN ").unwrap()).unwrap();
    Looked { findings, seen }
}

/// Looks at a page by day, by night and through a narrow window; `least` has what must be seen.
fn fine_to_look_at(page: &str, least: &[(&str, u64)], directory: &Path) {
    let Some(browser) = browser() else { return };
    for (dark, width) in [(false, 1400), (true, 1400), (false, 520)] {
        let looked = look(&browser, page, dark, width, directory);
        assert!(
            looked.findings.is_empty(),
            "dark {dark}, width {width}: {:#?}",
            &looked.findings[..looked.findings.len().min(20)]
        );
        for (what, least) in least {
            let seen = looked.seen[what].as_u64().unwrap();
            assert!(seen >= *least, "{seen} {what} are less than {least}: {looked:?}");
        }
    }
}

/// Runs `lsmx` with these words and gives the page that it wrote.
fn page(words: &str, more: &[&str], directory: &Path) -> String {
    let file = directory.join("page.html");
    let mut arguments: Vec<&str> = words.split_whitespace().collect();
    arguments.extend(more);
    arguments.extend(["--html", file.to_str().unwrap(), "--dir", directory.to_str().unwrap()]);
    lsmx(&arguments).ok();
    fs::read_to_string(file).unwrap()
}

#[test]
fn a_page_of_all_policies_has_every_plot_and_nothing_overlaps() {
    let directory = tempfile::tempdir().unwrap();
    let words = "explore --policy all --entries 20000 --value-len 48 --memtable 16K --size-ratio 4 \
                 --updates 0.3 --deletes 0.1 --lookups 500 --empty-lookups 0,0.5,1 --ranges 20 \
                 --selectivity 0.01 --seed 4";
    let page = page(words, &[], directory.path());
    for title in [
        "Summary",
        "What it costs to write, to read and to keep",
        "What compaction did",
        "Latency",
        "Point lookups",
        "Range lookups",
        "The tree over time",
    ] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    let policies = 6;
    let least = [
        // Four of costs, at least six of compaction, two of latencies, eight of point lookups, two of
        // ranges, one of bytes written; and the trees.
        ("plots", 23 + policies),
        ("marks", 23 * policies),
        ("texts", 23 * policies),
        ("tables", 1),
        ("choosers", 1),
    ];
    fine_to_look_at(&page, &least, directory.path());
}

#[test]
fn eighteen_policies_and_long_names_find_room() {
    let directory = tempfile::tempdir().unwrap();
    let mut policies = vec!["universal".to_owned(), "universal(trigger=6,stop=24)".to_owned()];
    for policy in ["full", "lo+1", "tiering", "1-leveling", "leveled"] {
        policies.push(policy.to_owned());
        policies.extend([3, 5].map(|ratio| format!("{policy}(T={ratio})")));
    }
    policies.push("leveled(T=7)".to_owned());
    assert_eq!(policies.len(), 18);
    let words = "explore --deterministic --entries 6000 --value-len 48 --memtable 16K --lookups 200 \
                 --ranges 10 --selectivity 0.01 --updates 0.4";
    let page = page(words, &["--policy", &policies.join(",")], directory.path());
    for policy in &policies {
        assert!(page.contains(&format!("<g class=\"series\" data-name=\"{policy}\">")), "{policy}");
    }
    let least = [("plots", 15 + 18), ("marks", 15 * 18), ("texts", 15 * 18)];
    fine_to_look_at(&page, &least, directory.path());
}

#[test]
fn what_comes_from_outside_stays_text() {
    let directory = tempfile::tempdir().unwrap();
    let hostile = "</pre></title><script>found.push('ran')</script>&<!--";
    let phases = directory.path().join("phases <b>&amp;.toml");
    fs::write(
        &phases,
        format!("# {hostile}\n[[phase]]\nname = \"{hostile}\"\nentries = 3000\nlookups = 100\n"),
    )
    .unwrap();
    let words = "explore --policy tiering,full --memtable 16K --phases";
    let page = page(words, &[phases.to_str().unwrap()], directory.path());
    assert!(!page.contains("<script>found") && !page.contains("<b>"), "raw text of others");
    assert!(page.contains("&lt;script&gt;found.push('ran')&lt;/script&gt;&amp;&lt;!--"));
    assert!(page.contains("phases &lt;b&gt;&amp;amp;.toml"));
    fine_to_look_at(&page, &[("plots", 10), ("tables", 1)], directory.path());
}

#[test]
fn a_page_of_workloads_has_rates_and_latencies() {
    let directory = tempfile::tempdir().unwrap();
    let words = "bench fillrandom readrandom scan ycsb-a --entries 5000 --threads 1";
    let page = page(words, &[], directory.path());
    for title in ["Summary", "Rates", "Latency", "Amplification"] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    fine_to_look_at(&page, &[("plots", 4), ("marks", 20), ("tables", 1)], directory.path());
}

#[test]
fn a_page_of_cache_sizes_has_the_curves_beside_the_published_ones() {
    let directory = tempfile::tempdir().unwrap();
    let words =
        "iocost --entries 20000 --memtable 64K --table 64K --block-bytes 1024,4096 --gets 1000";
    let page = page(words, &[], directory.path());
    for title in ["Memory for metadata", "Reads and hits", "Every cache size"] {
        let sections = page.matches(&format!("<h3>{title}</h3>")).count();
        assert_eq!(sections, 2, "sections {title}");
    }
    assert!(page.contains("Pebble 1.1, 20 G") && page.contains("absent keys"));
    fine_to_look_at(&page, &[("plots", 6), ("marks", 100), ("texts", 80)], directory.path());
}

#[test]
fn page_of_updates_has_each_plot() {
    let directory = tempfile::tempdir().unwrap();
    let words = "rmw --records 2000 --ops 2000";
    let bars = page(words, &[], directory.path());
    for title in ["Summary", "Rates and costs of each mode", "Latency"] {
        assert!(bars.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    fine_to_look_at(&bars, &[("plots", 8), ("marks", 30), ("tables", 1)], directory.path());
    let lines = page(words, &["--experiment", "read-ratio"], directory.path());
    assert!(lines.contains("<h3>Over read ratio</h3>"));
    fine_to_look_at(&lines, &[("plots", 8), ("marks", 60), ("tables", 1)], directory.path());
}

#[test]
fn pages_of_experiments_have_their_plots() {
    let directory = tempfile::tempdir().unwrap();
    for (experiment, title, plots) in [
        ("caching", "Effect of the cache and the filters", 6),
        ("filter-size", "Effect of the cache and the filters", 6),
        ("put-over-time", "Puts over time", 4),
    ] {
        let words = "bench --entries 5000 --memtable 64K --ops 1000 --experiment";
        let page = page(words, &[experiment], directory.path());
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
        fine_to_look_at(&page, &[("plots", plots), ("marks", plots)], directory.path());
    }
}

#[test]
fn a_page_of_advice_has_the_ranking_and_the_confirmed_designs() {
    let directory = tempfile::tempdir().unwrap();
    let words =
        "advise --entries 10000 --memory 192K --lookups 300 --ranges 20 --confirm 2 --presets";
    let page = page(words, &[], directory.path());
    for title in ["Ranking", "What the costs are made of", "The Pareto front", "Summary"] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    fine_to_look_at(&page, &[("plots", 5 + 15), ("marks", 100), ("tables", 2)], directory.path());
}

#[test]
fn an_unwritable_page_is_known_before_the_run() {
    lsmx(&["explore", "--policy", "full", "--html", "no/such/page.html"])
        .fails(1, &["cannot write no/such/page.html"]);
    lsmx(&["bench", "fillseq", "--html", "no/such/page.html"])
        .fails(1, &["cannot write no/such/page.html"]);
    lsmx(&["simulate", "--policy", "full", "--html", "no/such/page.html"])
        .fails(1, &["cannot write no/such/page.html"]);
}

#[test]
fn a_sweep_is_followed_over_its_points() {
    let directory = tempfile::tempdir().unwrap();
    let words = "explore --policy full,tiering,1-leveling --deterministic --entries 4000 --value-len 48 \
                 --memtable 16K --lookups 200 --ranges 10 --selectivity 0.01 --repeat 2";
    let sweep = ["--sweep", "size-ratio=3,5", "--sweep", "updates=0,0.5"];
    let page = page(words, &sweep, directory.path());
    for (number, point) in
        ["size-ratio 3, updates 0", "size-ratio 3, updates 0.5", "size-ratio 5, updates 0"]
            .iter()
            .enumerate()
    {
        assert!(page.contains(&format!("{} · {point}</h2>", number + 1)), "{point}");
    }
    assert!(page.contains("<h3>Over all workloads</h3>"));
    fine_to_look_at(&page, &[("plots", 5 + 4 * 20), ("tables", 4)], directory.path());
}

/// No time, no log, and the closed form beside the simulation.
#[test]
fn a_simulation_has_a_page_of_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("page.html");
    let words = "simulate --policy full,tiering,1-leveling --entries 3000000000 --updates 0.3 --lookups 1000 \
                 --empty-lookups 0,1 --ranges 10 --selectivity 0.0001 --sweep size-ratio=4,10";
    let words: Vec<&str> = words.split_whitespace().collect();
    lsmx(&[&words[..], &["--html", file.to_str().unwrap()]].concat()).ok();
    let page = fs::read_to_string(file).unwrap();
    for title in [
        "Over all workloads",
        "Summary",
        "What it costs to write, to read and to keep",
        "What compaction did",
        "Point lookups",
        "Range lookups",
        "Model and simulation",
    ] {
        assert!(page.contains(&format!("<h3>{title}</h3>")), "no section {title}");
    }
    assert!(page.contains("<title>lsmx simulate</title>"));
    for nothing in ["<h3>Latency</h3>", "put max", "The longest put", "with the log", "engine</"] {
        assert!(!page.contains(nothing), "{nothing}");
    }
    fine_to_look_at(&page, &[("plots", 4 + 2 * 12), ("tables", 2)], directory.path());
}

#[test]
fn finished_cells_are_shown_without_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let finished = directory.path().join("finished");
    let words = "explore --policy full,tiering --deterministic --entries 2000 --memtable 16K \
                 --lookups 50 --ranges 5 --resume";
    let words: Vec<&str> = words.split_whitespace().chain([finished.to_str().unwrap()]).collect();
    lsmx(&words).ok();
    let file = directory.path().join("page.html");
    // Where it is written does not make it another run; what is run there does.
    lsmx(&[&words[..], &["--html", file.to_str().unwrap()]].concat()).ok();
    let page = fs::read_to_string(file).unwrap();
    assert!(page.contains("<h3>The tree over time</h3>") && page.contains("tiering"));
}
