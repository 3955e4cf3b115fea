//! Compares results of lsmx with the figures and claims of a published study. Prints Markdown.
//!
//! Usage: `cargo run --release -p lsmx-bench --example study -- DIR`. DIR contains the results of `scripts/study`.
//!
//! `claims.toml` contains the claims, the expected range or order of their figures, and the reasons why claims do not
//! hold. This program computes the figures and decides whether the claims hold. The study is Sarkar et al.,
//! "Constructing and Analyzing the LSM Compaction Design Space", PVLDB 14 (2021). Some figures of the study are read
//! from plots, with an error of 1 to 2 %.

#![allow(clippy::print_stderr, reason = "the program prints its errors")]

mod claim;
mod experiments;
mod figures;
mod results;
mod strategy;
mod table;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use claim::{ClaimTexts, Verdict};
use results::Results;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory] = arguments.as_slice() else {
        eprintln!("usage: study DIR, where scripts/study wrote its results");
        return ExitCode::from(2);
    };
    let texts = ClaimTexts::read().map_err(|error| error.to_string());
    let results = Results::read(Path::new(directory));
    let text = match texts.and_then(|texts| Ok(write_report(&results?, &texts))) {
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

/// Returns a table with the number of confirmed claims per experiment, followed by the report of each experiment.
fn write_report(results: &Results, texts: &ClaimTexts) -> String {
    let sections = experiments::build_sections(results, texts);
    let mut text = String::from("| experiment | claims | hold | do not hold | not measured |\n");
    text.push_str("| --- | --- | --- | --- | --- |\n");
    let mut all = [0; 4];
    for section in &sections {
        let count = |verdict| section.claims.iter().filter(|at| at.verdict() == verdict).count();
        let counts = [
            section.claims.len() - count(Verdict::Undecided),
            count(Verdict::Holds),
            count(Verdict::DoesNotHold),
            count(Verdict::NotMeasured),
        ];
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum += count;
        }
        text.push_str(&format_row(&section.title, counts));
    }
    text.push_str(&format_row("all", all));
    for section in &sections {
        text.push_str(&section.to_markdown());
    }
    text
}

fn format_row(title: &str, counts: [usize; 4]) -> String {
    let [claims, holds, not, missing] = counts;
    format!("| {title} | {claims} | {holds} | {not} | {missing} |\n")
}
