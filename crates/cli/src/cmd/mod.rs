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

/// The command line without the program and the flags that only say where something is written.
fn what_is_run(words: &[OsString]) -> String {
    const PLACES: [&str; 5] = ["--resume", "--json", "--csv", "--html", "--dir"];
    let mut kept = Vec::new();
    let mut words = words.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        if PLACES.contains(&flag) {
            if !word.contains('=') {
                words.next();
            }
        } else if !["--dry-run", "--explain"].contains(&flag) {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// What an interrupted run says that can go on.
fn parting(directory: &Path) -> String {
    let directory = directory.display();
    format!("interrupted; finished cells are in {directory}, the same command goes on from there")
}
