//! One file per command.

pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod db;
pub(crate) mod explore;
pub(crate) mod iocost;
pub(crate) mod rmw;
pub(crate) mod simulate;
pub(crate) mod stress;

use std::ffi::OsString;
use std::path::Path;

/// Returns the command line without the program and without the flags that do not change the result.
fn result_words(words: &[OsString]) -> String {
    const WITH_VALUE: [&str; 6] = ["--resume", "--json", "--csv", "--html", "--columns", "--dir"];
    let mut kept = Vec::new();
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        if WITH_VALUE.contains(&flag) {
            if !word.contains('=') {
                words.next();
            }
        } else if !["--dry-run", "--explain", "--no-legend"].contains(&flag) {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// Returns the message of an interrupted run that can be resumed.
fn parting(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "interrupted; finished cells are in {directory}, the same command continues with the others"
    )
}
