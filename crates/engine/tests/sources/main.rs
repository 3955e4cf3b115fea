//! Tests that read the sources and documents of the repository.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "the tests read no user data")]

mod documents;
mod layers;
mod public_items;

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
