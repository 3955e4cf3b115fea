//! No verb of the blocking handles is missing.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of the public functions in the `impl` blocks of a type, over all files of a folder and of those in it.
fn verbs(folder: &str, of: &str) -> BTreeSet<String> {
    verbs_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder), of)
}

fn verbs_in(folder: &Path, of: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            names.append(&mut verbs_in(&path, of));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let mut inside = false;
        for line in text.lines() {
            if line.starts_with("impl ") {
                inside = line == format!("impl {of} {{");
            } else if line == "}" {
                inside = false;
            }
            let function = line.strip_prefix(if of.is_empty() { "pub " } else { "    pub " });
            let Some(function) = function.filter(|_| inside || of.is_empty()) else { continue };
            let function = function.strip_prefix("async ").unwrap_or(function);
            if let Some(function) = function.strip_prefix("fn ") {
                let end = function.find(['(', '<']).unwrap();
                names.insert(function[..end].to_owned());
            }
        }
    }
    names
}

#[test]
fn every_verb_is_there() {
    for (of, at_least) in [("Db", 30), ("Keyspace", 30), ("Snapshot", 8)] {
        let (blocking, tasks) = (verbs("db", of), verbs("tokio", of));
        assert!(blocking.len() >= at_least, "{of}: {blocking:?}");
        let missing: Vec<_> = blocking.difference(&tasks).collect();
        assert!(missing.is_empty(), "{of} lacks {missing:?}");
    }
}
