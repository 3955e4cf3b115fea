//! Compares results of lsmx with the figures and claims of a published study. Prints Markdown.
//!
//! Usage: `cargo run --release -p lsmx-bench --example study -- DIR [FIGURE]`. DIR contains the results of
//! `scripts/study`. FIGURE is an SVG file that the program writes.
//!
//! `claims.toml` contains the claims, the expected range or order of their figures, and the reasons why claims do not
//! hold. This program computes the figures and decides whether the claims hold. The study is Sarkar et al.,
//! "Constructing and Analyzing the LSM Compaction Design Space", PVLDB 14 (2021). Some figures of the study are read
//! from plots, with an error of 1 to 2 %.

#![allow(clippy::print_stderr, reason = "the program prints its errors")]

mod claim;
mod experiments;
mod figures;
mod published_full;
mod published_picks;
mod results;
mod strategy;
mod table;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use claim::{Claim, ClaimKind, ClaimTexts, Verdict};
use lsmx_bench::report::file::write_file;
use lsmx_bench::report::html::figure::render_bar_figure;
use results::Results;
use table::{MarkdownTable, ReportSection};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, figure) = match arguments.as_slice() {
        [directory] => (directory, None),
        [directory, figure] => (directory, Some(figure)),
        _ => {
            eprintln!("usage: study DIR [FIGURE], where scripts/study wrote its results to DIR");
            return ExitCode::from(2);
        }
    };
    let text = match report(Path::new(directory), figure.map(Path::new)) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns the report about the results in `directory`, and writes the figure.
fn report(directory: &Path, figure: Option<&Path>) -> Result<String, String> {
    let texts = ClaimTexts::read().map_err(|error| error.to_string())?;
    let results = Results::read(directory)?;
    if let Some(path) = figure {
        let description = "Bytes that compaction wrote ÷ ingested bytes, load of unique keys.";
        let image = render_bar_figure(description, &experiments::written_bars(&results));
        write_file(path, image.as_bytes()).map_err(|error| error.to_string())?;
    }
    Ok(write_report(&results, &texts))
}

/// Returns a table with the number of claims by verdict for each experiment, followed by the report of each experiment
/// and the commits of the results.
fn write_report(results: &Results, texts: &ClaimTexts) -> String {
    let sections = experiments::build_sections(results, texts);
    let header = [
        "experiment",
        "judged",
        "hold",
        "do not hold",
        "fitted",
        "not comparable",
        "not measured",
        "claims of lsmx that hold",
    ];
    let mut table = MarkdownTable::new("", header);
    let claims = |sections: &[ReportSection]| -> Vec<Claim> {
        sections.iter().flat_map(|section| section.claims.clone()).collect()
    };
    for section in sections.iter().filter(|section| !section.claims.is_empty()) {
        table.add_row(&section.title, count_verdicts(&section.claims));
    }
    table.add_row("all", count_verdicts(&claims(&sections)));
    let mut text = table.to_markdown();
    for section in &sections {
        text.push_str(&section.to_markdown());
    }
    text.push_str("\n## Commits\n\n");
    text.push_str(&commits_table(results).to_markdown());
    for claim in claims(&sections) {
        if let Some(statement) = claim.unexplained() {
            eprintln!("claims.toml contains no reason: {statement}");
        }
    }
    text
}

/// Returns a table with the commit at which each part of `scripts/study` was measured.
fn commits_table(results: &Results) -> MarkdownTable {
    let mut table = MarkdownTable::new("", ["commit", "results"]);
    for (commit, names) in results.names_by_commit() {
        table.add_row(commit, [names.join(", ")]);
    }
    table
}

/// Returns the numbers of claims of the study by verdict, and the number of claims of this project.
fn count_verdicts(claims: &[Claim]) -> Vec<String> {
    let count = |verdict| {
        let counted = claims.iter().filter(|claim| claim.kind() != ClaimKind::Own);
        counted.filter(|claim| claim.verdict() == verdict).count()
    };
    let (holds, fails) = (count(Verdict::Holds), count(Verdict::DoesNotHold));
    let own = claims.iter().filter(|claim| claim.kind() == ClaimKind::Own);
    let own = own.filter(|claim| claim.verdict() != Verdict::Undecided);
    let (own_holds, own_all) =
        (own.clone().filter(|claim| claim.verdict() == Verdict::Holds).count(), own.count());
    let numbers = [
        holds + fails,
        holds,
        fails,
        count(Verdict::Fitted),
        count(Verdict::NotComparable),
        count(Verdict::NotMeasured),
    ];
    let own = if own_all == 0 { "–".to_owned() } else { format!("{own_holds} of {own_all}") };
    numbers.iter().map(ToString::to_string).chain([own]).collect()
}
