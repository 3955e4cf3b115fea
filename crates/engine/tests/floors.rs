//! A file uses what stands below it: the `use` lines of the sources, read as arrows.
//!
//! Modules cannot be kept from forming a knot by the compiler, and do so unnoticed. Code under
//! `#[cfg(test)]` may look up.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "it reads sources, not data")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Modules of the crate that the engine and its operand stores share.
const BASE: &[&[&str]] = &[
    &["sync"],
    &["failpoint", "work_counter", "malformed", "key", "key_search"],
    &["coding", "checksum", "error_chain", "file_name"],
    &["slice", "filter", "file_header", "tombstone_index"],
    &["range_tombstone"],
];

/// Modules of the engine from the ground up; a floor uses those before it, and its own.
const ENGINE: &[&[&str]] = &[
    &["error", "cursor", "background_error", "callback", "merge_operator", "deferred_drop"],
    &["vfs", "env"],
    &["operand_store"],
    &["format"],
    &["log_reader"],
    &["workload_trace"],
    &["dump"],
    &["memtable", "wal", "manifest"],
    &["event"],
    &["job_tracing"],
    &["cache"],
    &["metrics"],
    &["table"],
    &["value_log"],
    &["options"],
    &["tree"],
    &["state"],
    &["lookup", "iter", "write"],
    &["jobs"],
    // And what opens a database for models of threads.
    &["db", "loom_models"],
    &["tokio"],
    // Text alone.
    &["book"],
    // What fuzzers and benchmarks drive; not part of what users get.
    &["fuzzing", "benching"],
];

/// Modules of the compaction crate.
const COMPACTION: &[&[&str]] = &[
    &["ids", "key_range", "rng"],
    &["error", "table_meta"],
    &["run"],
    &["shape"],
    &["job"],
    &["running_jobs", "output_splitter", "apply", "explain"],
    &["policy", "trigger", "parameter"],
    &["layout", "granularity", "file_picker", "ttl"],
    &["model_tree", "composed"],
    &["check_policy", "presets"],
    &["spec"],
];

/// Modules of the crate of the simulator.
const SIMULATOR: &[&[&str]] = &[
    &["workload"],
    &["cost_model", "math"],
    &["position", "sampler", "entry_counts"],
    &["seq_range"],
    &["histogram", "table_size", "split_points", "file_grouping", "block_cache"],
    &["subcompactions", "merge_input", "output_writer", "write_model"],
    &["merge", "config", "report"],
    &["error", "lookups"],
    &["simulation"],
];

/// Modules of the crate of operand buckets.
const DELTA: &[&[&str]] = &[
    &["options", "memory"],
    &["format"],
    &["files", "range_markers"],
    &["bucket", "cache"],
    &["view"],
    &["plan", "cursor", "log"],
    &["operand_view", "recovery"],
    &["state"],
    &["delivery", "collection"],
    &["store"],
    &["factory", "dump"],
    // Not part of the crate that users get.
    &["fuzzing"],
];

/// Crates from the ground up, with the name each goes by in a `Cargo.toml`.
const CRATES: &[(&str, &str)] = &[
    ("base", "lsmx-base"),
    ("compaction", "lsmx-compaction"),
    ("engine", "lsmx"),
    ("simulator", "lsmx-simulator"),
    ("delta", "lsmx-delta"),
    ("stress", "lsmx-stress"),
    ("bench", "lsmx-bench"),
    ("cli", "lsmx-cli"),
];

/// Arrows that run up and have a reason.
const EXCUSED: &[(&str, &str, &str)] = &[];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The source without comments, and without what is compiled for tests alone.
fn shipped(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut text = lines.collect::<Vec<_>>().join("\n");
    while let Some(from) = text.find("#[cfg(test)]") {
        let rest = &text[from..];
        // The item ends with its first `;`, or with the brace that closes its first one.
        let semicolon = rest.find(';').unwrap_or(rest.len());
        let brace = rest.find('{').unwrap_or(rest.len());
        let len = if semicolon < brace { semicolon + 1 } else { brace + block(&rest[brace..]) };
        text.replace_range(from..from + len, "");
    }
    text
}

/// Length of a block that begins with a brace.
fn block(text: &str) -> usize {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Top modules that a source names as `crate::…`, in `use` lines and elsewhere, and the items that
/// it takes from the root of the crate.
fn named(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|character| character.is_alphanumeric() || character == '_') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let list = &list[..block(rest).saturating_sub(2)];
            let mut depth = 0;
            let mut name = String::new();
            for character in list.chars().chain([',']) {
                match character {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => names.push(std::mem::take(&mut name)),
                    _ if depth == 0 && !character.is_whitespace() => name.push(character),
                    _ => {}
                }
            }
        } else {
            let name = rest.chars().take_while(|at| at.is_alphanumeric() || *at == '_').collect();
            names.push(name);
        }
    }
    for name in &mut names {
        name.truncate(name.find("::").unwrap_or(name.len()));
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Where the root of the crate has its names from: `pub use module::Name`.
fn root_names(root: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for statement in shipped(root).split(';') {
        let Some(path) = statement.trim().strip_prefix("pub use ") else { continue };
        let Some((module, _)) = path.split_once("::") else { continue };
        let (_, items) = path.rsplit_once("::{").or_else(|| path.rsplit_once("::")).unwrap();
        for item in items.trim_end_matches('}').split(',') {
            names.insert(item.trim().to_owned(), module.to_owned());
        }
    }
    names
}

/// Arrows that run up, as `from -> to (file)`.
fn arrows_up(src: &Path, floors: &[&[&str]]) -> Vec<String> {
    let floor = |module: &str| floors.iter().position(|floor| floor.contains(&module));
    let root = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let roots = root_names(&root);
    let mut files = Vec::new();
    sources(src, &mut files);
    files.sort();
    let mut up = Vec::new();
    for file in files {
        let inside = file.strip_prefix(src).unwrap().to_str().unwrap().to_owned();
        let module = inside.split(['/', '.']).next().unwrap();
        if module == "lib" || inside.ends_with("tests.rs") {
            continue;
        }
        let Some(own) = floor(module) else {
            up.push(format!("{module} stands on no floor ({inside})"));
            continue;
        };
        let text = shipped(&std::fs::read_to_string(&file).unwrap());
        for name in named(&text) {
            let target = roots.get(&name).unwrap_or(&name);
            let excused = EXCUSED.iter().any(|&(from, to, _)| (from, to) == (module, target));
            match floor(target) {
                Some(other) if other > own && !excused => {
                    up.push(format!("{module} -> {target} ({inside})"));
                }
                Some(_) => {}
                // A name from another crate, or a macro.
                None => {}
            }
        }
    }
    up.sort();
    up.dedup();
    up
}

#[test]
fn base_modules_use_what_stands_below_them() {
    let up = arrows_up(&crates().join("base/src"), BASE);
    assert!(up.is_empty(), "arrows that run up:\n{}", up.join("\n"));
}

#[test]
fn engine_modules_use_what_stands_below_them() {
    let up = arrows_up(&crates().join("engine/src"), ENGINE);
    assert!(up.is_empty(), "arrows that run up:\n{}", up.join("\n"));
}

#[test]
fn compaction_modules_use_what_stands_below_them() {
    let up = arrows_up(&crates().join("compaction/src"), COMPACTION);
    assert!(up.is_empty(), "arrows that run up:\n{}", up.join("\n"));
}

#[test]
fn simulator_modules_use_what_stands_below_them() {
    let up = arrows_up(&crates().join("simulator/src"), SIMULATOR);
    assert!(up.is_empty(), "arrows that run up:\n{}", up.join("\n"));
}

#[test]
fn delta_modules_use_what_stands_below_them() {
    let up = arrows_up(&crates().join("delta/src"), DELTA);
    assert!(up.is_empty(), "arrows that run up:\n{}", up.join("\n"));
}

/// Only the top modules know the database handle (and what drives it for the fuzzers).
#[test]
fn only_db_names_the_handle() {
    let src = crates().join("engine/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let inside = file.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let above = ["db/", "tokio/", "fuzzing", "loom_models"]
            .iter()
            .any(|module| inside.starts_with(module));
        if inside == "lib.rs" || above {
            continue;
        }
        let text = shipped(&std::fs::read_to_string(&file).unwrap());
        let words = text.split(|at: char| !(at.is_alphanumeric() || at == '_'));
        assert!(words.into_iter().all(|word| word != "Db"), "{inside} names Db");
    }
}

#[test]
fn crates_use_those_below_them() {
    for (own, (dir, _)) in CRATES.iter().enumerate() {
        let Ok(text) = std::fs::read_to_string(crates().join(dir).join("Cargo.toml")) else {
            continue;
        };
        // What tests need is their own business: a crate names itself there to switch a feature on, and the
        // engine's sweeps have the stores of the crate above.
        let text = text.split("[dev-dependencies]").next().unwrap_or_default();
        for (name, above) in CRATES[own + 1..].iter().map(|(_, name)| (name, dir)) {
            let names = |line: &str| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            };
            assert!(!text.lines().any(names), "{above} uses {name}");
        }
    }
}

#[test]
fn arrows_are_read_as_they_stand() {
    let text = "use crate::a::B;\nuse crate::{c, d::{E, F}, G};\nfn f(x: crate::h::I) {}
        // use crate::comment::No;
        #[cfg(test)]\nuse crate::only_tests;\n#[cfg(test)]\nmod tests { use crate::no::{A}; }";
    assert_eq!(named(&shipped(text)), ["a", "c", "d", "G", "h"]);
    let roots = root_names("pub use error::{Error, Result};\npub use read::range::Range;");
    assert_eq!(roots["Result"], "error");
    assert_eq!(roots["Range"], "read");
    assert_eq!(block("{ a { b } c } d"), 13);
}
