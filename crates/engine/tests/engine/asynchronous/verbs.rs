//! The asynchronous handles have every read and write method of the blocking handles.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the public methods of a type in all source files of a directory.
fn methods(folder: &Path, type_name: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            names.append(&mut methods(&path, type_name));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let start = format!("impl {type_name} {{");
        let mut inside = false;
        for line in text.lines() {
            if line.starts_with("impl ") || line == "}" {
                inside = line == start;
            }
            let Some(item) = line.strip_prefix("    pub ").filter(|_| inside) else { continue };
            if let Some(function) = item.strip_prefix("async ").unwrap_or(item).strip_prefix("fn ")
            {
                let end = function.find(['(', '<']).unwrap();
                names.insert(function[..end].to_owned());
            }
        }
    }
    names
}

/// Methods without an asynchronous version. Tasks call nonblocking methods on the handle that `as_blocking` returns,
/// and administrative methods inside `run_blocking`.
const WITHOUT_TWIN: &[(&str, &[&str])] = &[
    (
        "Db",
        &[
            "archive_log",
            "checkpoint",
            "drop_keyspace",
            "env",
            "flush",
            "health",
            "ingest",
            "keyspace_exists",
            "keyspaces",
            "open_follower",
            "publish_metrics",
            "read_metrics",
            "record_trace",
            "resume",
            "set_background_io_rate",
            "set_latency_sampling",
            "wait_idle",
            "warm_up",
            "with_deadline",
        ],
    ),
    (
        "Keyspace",
        &[
            "approximate_count",
            "approximate_size",
            "bulk_load",
            "bulk_loader",
            "compact_range",
            "cursor",
            "explain",
            "external_table_writer",
            "first",
            "ingest",
            "last",
            "metadata",
            "name",
            "operands_to_tree",
            "options",
            "set_options",
            "set_policy",
        ],
    ),
    ("Snapshot", &["cursor", "first", "last", "seq"]),
    ("Transaction", &[]),
];

#[test]
fn asynchronous_handle_has_every_read_and_write() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for ((type_name, without_twin), count_min) in WITHOUT_TWIN.iter().zip([20, 24, 8, 12]) {
        let blocking = methods(&src.join("db"), type_name);
        assert!(blocking.len() >= count_min, "{type_name}: {blocking:?}");
        let asynchronous = methods(&src.join("tokio"), type_name);
        let missing: Vec<_> = blocking.difference(&asynchronous).map(String::as_str).collect();
        let expected: BTreeSet<_> = without_twin.iter().copied().collect();
        assert_eq!(missing, expected.into_iter().collect::<Vec<_>>(), "missing in {type_name}");
    }
}
