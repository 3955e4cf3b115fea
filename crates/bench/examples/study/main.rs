//! Reads what `scripts/study` measured and prints it beside what the study published, with a verdict on
//! each of its claims, as Markdown.
//!
//! `cargo run --release -p lsmx-bench --example study -- DIR`
//!
//! A claim is a list of figures computed from the results and a range they are to lie in; the code
//! decides whether it holds. Why one does not hold is a text that stands beside the claim; it was found
//! out by hand. The published figures are those of Sarkar et al., "Constructing and Analyzing the LSM
//! Compaction Design Space", PVLDB 14 (2021), some read off its figures, which is right to 1 or 2 %.

#![allow(clippy::print_stderr, reason = "a program that says what went wrong")]

mod claim;
mod experiments;
mod figures;
mod results;
mod strategy;
mod table;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use claim::Verdict;
use results::Results;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory] = arguments.as_slice() else {
        eprintln!("usage: study DIR, where scripts/study wrote its results");
        return ExitCode::from(2);
    };
    let text = match Results::read(Path::new(directory)) {
        Ok(results) => report(&results),
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

/// All experiments, and how many of the claims hold.
fn report(results: &Results) -> String {
    let sections = experiments::all(results);
    let mut text = String::from("| experiment | claims | hold | do not hold | not measured |\n");
    text.push_str("| --- | --- | --- | --- | --- |\n");
    let mut all = [0; 4];
    for section in &sections {
        let count = |verdict| section.claims.iter().filter(|at| at.verdict() == verdict).count();
        let counts = [
            section.claims.len() - count(Verdict::Told),
            count(Verdict::Holds),
            count(Verdict::DoesNotHold),
            count(Verdict::NotMeasured),
        ];
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum += count;
        }
        text.push_str(&row(section.title, counts));
    }
    text.push_str(&row("all", all));
    for section in &sections {
        text.push_str(&section.markdown());
    }
    text
}

fn row(title: &str, counts: [usize; 4]) -> String {
    let [claims, holds, not, missing] = counts;
    format!("| {title} | {claims} | {holds} | {not} | {missing} |\n")
}
