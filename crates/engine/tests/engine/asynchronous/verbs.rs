//! Every read and write of the blocking handles has an asynchronous twin.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the public methods of a type that are defined in the files of a folder, recursively.
fn methods(folder: &str, of: &str) -> BTreeSet<String> {
    methods_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder), of)
}

fn methods_in(folder: &Path, of: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            names.append(&mut methods_in(&path, of));
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

/// Methods without an asynchronous twin: they never block and are called on `as_blocking`, or they are administrative and
/// are called by `run_blocking`.
const WITHOUT_TWIN: &[(&str, &[&str])] = &[
    (
        "Db",
        &[
            "checkpoint",
            "drop_keyspace",
            "env",
            "flush",
            "health",
            "keyspace_exists",
            "keyspaces",
            "read_metrics",
            "record_trace",
            "resume",
            "set_background_io_rate",
            "wait_idle",
            "warm_up",
            "with_deadline",
        ],
    ),
    (
        "Keyspace",
        &[
            "approximate_size",
            "compact_range",
            "explain",
            "first",
            "last",
            "metadata",
            "name",
            "operands_to_tree",
            "options",
            "set_policy",
        ],
    ),
    ("Snapshot", &["first", "last", "seq"]),
];

#[test]
fn asynchronous_handle_has_every_read_and_write() {
    for ((of, without_twin), at_least) in WITHOUT_TWIN.iter().zip([20, 24, 8]) {
        let (blocking, tasks) = (methods("db", of), methods("tokio", of));
        assert!(blocking.len() >= at_least, "{of}: {blocking:?}");
        let missing: Vec<_> = blocking.difference(&tasks).map(String::as_str).collect();
        let expected: BTreeSet<_> = without_twin.iter().copied().collect();
        assert_eq!(missing, expected.into_iter().collect::<Vec<_>>(), "missing in {of}");
    }
}
