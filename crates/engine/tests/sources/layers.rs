//! Checks that modules import only modules of lower or equal layers, and that imports between files form no cycle.
//!
//! The tests parse the sources. Code under `#[cfg(test)]` is exempt and may import any module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{files, read, root};

const BASE: &[&[&str]] = &[
    &["sync"],
    &["failpoint", "work_counter", "malformed", "key", "key_search"],
    &["coding", "checksum", "error_chain", "file_name"],
    &["slice", "filter", "file_header", "tombstone_index"],
    &["range_tombstone"],
];

const ENGINE: &[&[&str]] = &[
    &[
        "error",
        "cursor",
        "background_error",
        "callback",
        "merge_operator",
        "compaction_filter",
        "deferred_drop",
    ],
    &["vfs", "env"],
    &["operand_store"],
    &["format"],
    &["log_reader", "followers"],
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
    // `loom_models` opens databases, so it belongs to the layer of `db`.
    &["db", "loom_models"],
    &["tokio"],
    &["book"],
    // Builds for users do not contain `benching`.
    &["benching"],
];

const COMPACTION: &[&[&str]] = &[
    &["ids", "key_range", "rng"],
    &["error", "table_meta"],
    &["run"],
    &["shape"],
    &["job", "tree_edit"],
    &["running_jobs", "output_splitter", "apply", "ingest", "explain"],
    &["policy", "trigger", "parameter"],
    &["layout", "granularity", "file_picker", "ttl", "delete_persistence"],
    &["model_tree", "composed"],
    &["check_policy", "presets"],
    &["spec"],
];

const SIMULATOR: &[&[&str]] = &[
    &["workload"],
    &["cost_model", "math"],
    &["position", "sampler", "entry_counts", "write_counts"],
    &["seq_range"],
    &["histogram", "table_size", "split_points", "file_grouping", "block_cache"],
    &["subcompactions", "merge_input", "output_writer", "write_model"],
    &["merge", "config", "report"],
    &["error", "lookups"],
    &["simulation"],
];

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
    &["key_search"],
    &["factory", "dump"],
];

const RAFT: &[&[&str]] = &[
    &["error", "options", "application"],
    &["record"],
    &["snapshot"],
    &["config"],
    &["store"],
    &["build_install", "log_store", "state_reader"],
    &["state_machine"],
    &["open"],
];

const BACKUP: &[&[&str]] = &[
    &["error"],
    &["blocking", "record", "source_file", "transfer", "staging"],
    &["catalog"],
    &["manifest", "log_chunk"],
    &["read_only", "restore_point", "upload"],
    &["create", "prune", "restore_marker"],
    &["restore"],
    &["repository"],
    &["archiver"],
];

/// Crates with layers of modules. Each row has the directory of the crate and the layers, lowest first.
const LAYERED: &[(&str, &[&[&str]])] = &[
    ("base", BASE),
    ("compaction", COMPACTION),
    ("engine", ENGINE),
    ("simulator", SIMULATOR),
    ("delta", DELTA),
    ("raft", RAFT),
    ("backup", BACKUP),
];

/// Crates, lowest layer first. Each row has the directory and the package name in `Cargo.toml`.
const CRATES: &[(&str, &str)] = &[
    ("base", "lsmx-base"),
    ("compaction", "lsmx-compaction"),
    ("engine", "lsmx"),
    ("simulator", "lsmx-simulator"),
    ("delta", "lsmx-delta"),
    ("raft", "lsmx-raft"),
    ("backup", "lsmx-backup"),
    ("bench", "lsmx-bench"),
    // `testkit` depends on `bench` only if an optional feature is enabled.
    ("testkit", "lsmx-testkit"),
    ("stress", "lsmx-stress"),
    ("cli", "lsmx-cli"),
];

fn crate_dir(name: &str) -> PathBuf {
    root().join("crates").join(name)
}

/// Returns the source without comments and without items under `#[cfg(test)]`.
fn production_code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut text = lines.collect::<Vec<_>>().join("\n");
    while let Some(from) = text.find("#[cfg(test)]") {
        let rest = &text[from..];
        // An item ends with a semicolon or with the closing brace of its body, whichever begins first.
        let semicolon = rest.find(';').unwrap_or(rest.len());
        let brace = rest.find('{').unwrap_or(rest.len());
        let len = if semicolon < brace { semicolon + 1 } else { brace + block(&rest[brace..]) };
        text.replace_range(from..from + len, "");
    }
    text
}

/// Returns the length in bytes of the block at the start of the text. The block begins with an opening brace.
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

/// Returns the imports from higher layers, and the modules to which no layer is assigned.
fn upward_imports(src: &Path, layers: &[&[&str]]) -> Vec<String> {
    let layer_of = |module: &str| {
        let top = module.split("::").next().unwrap();
        layers.iter().position(|layer| layer.contains(&top))
    };
    let mut up = Vec::new();
    for (module, targets) in file_imports(src, str::to_owned) {
        let Some(own) = layer_of(&module) else {
            up.push(format!("{module} has no layer"));
            continue;
        };
        let higher = targets.iter().filter(|target| layer_of(target).is_some_and(|it| it > own));
        up.extend(higher.map(|target| format!("{module} -> {target}")));
    }
    up
}

/// Returns, for each module of a crate, the modules from which it uses items through `crate::` or `super::` paths.
/// `edit` transforms the source of each file first.
fn file_imports(src: &Path, edit: impl Fn(&str) -> String) -> BTreeMap<String, BTreeSet<String>> {
    let files = files(src, "rs");
    let module_of = |file: &Path| {
        let inside = file.strip_prefix(src).unwrap().with_extension("");
        let path = inside.to_str().unwrap().replace('/', "::");
        path.strip_suffix("::mod").unwrap_or(&path).to_owned()
    };
    let modules: BTreeSet<String> = files.iter().map(|file| module_of(file)).collect();
    let mut imports = BTreeMap::new();
    for file in &files {
        let own = module_of(file);
        let is_test = own.split("::").any(|name| matches!(name, "tests" | "models"));
        if own == "lib" || is_test {
            continue;
        }
        let text = production_code(&read(file));
        let mut named = BTreeSet::new();
        for path in code_paths(&edit(&text)) {
            let mut parts: Vec<&str> = path.split("::").collect();
            let mut base: Vec<&str> = own.split("::").collect();
            match parts.remove(0) {
                "crate" => base.clear(),
                _ => {
                    base.pop();
                }
            }
            base.extend(parts);
            assert!(
                base.first().is_some_and(|name| !name.starts_with(char::is_uppercase)),
                "{own} imports {path} from the crate root"
            );
            while !base.is_empty() && !modules.contains(&base.join("::")) {
                base.pop();
            }
            let target = base.join("::");
            if !target.is_empty() && target != own {
                named.insert(target);
            }
        }
        imports.insert(own, named);
    }
    imports
}

fn without_reexports(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) =
        ["\npub use ", "\npub(crate) use "].iter().filter_map(|start| rest.find(start)).min()
    {
        kept.push_str(&rest[..at]);
        rest = rest[at..].split_once(';').unwrap().1;
    }
    kept + rest
}

/// Returns the paths that start with `crate::` or `super::`. Lists in braces are expanded.
fn code_paths(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            let is_part =
                |character: char| character.is_alphanumeric() || "_:$".contains(character);
            // Skips `pub(in crate::module)`, which is no import.
            if before.is_some_and(is_part) || text[..at].ends_with("pub(in ") {
                continue;
            }
            expand(start.trim_end_matches("::"), &text[at + start.len()..], &mut paths);
        }
    }
    paths
}

/// Expands `text` into paths, prepends `prefix` to each, and appends them to `paths`. `text` starts with a name, a
/// path, or a list in braces.
fn expand(prefix: &str, text: &str, paths: &mut Vec<String>) {
    if text.starts_with('{') {
        let list = &text[1..block(text) - 1];
        let (mut depth, mut from) = (0, 0);
        for (at, character) in list.char_indices().chain([(list.len(), ',')]) {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    let item = list[from..at].trim();
                    if !item.is_empty() {
                        expand(prefix, item, paths);
                    }
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let end = text.find(|at: char| !at.is_alphanumeric() && at != '_').unwrap_or(text.len());
    let path = match &text[..end] {
        "self" => prefix.to_owned(),
        name => format!("{prefix}::{name}"),
    };
    match text[end..].strip_prefix("::") {
        Some(rest) => expand(&path, rest, paths),
        None => paths.push(path),
    }
}

/// Returns a cycle of imports, or `None`.
fn find_cycle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    /// Visits imports depth first, starting with the imports of the last module in `path`. Returns the first cycle
    /// found.
    fn visit(
        imports: &BTreeMap<String, BTreeSet<String>>,
        path: &mut Vec<String>,
        finished: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        for target in imports.get(path.last().unwrap()).into_iter().flatten() {
            if let Some(start) = path.iter().position(|module| module == target) {
                return Some(path[start..].to_vec());
            }
            if !finished.contains(target) {
                path.push(target.clone());
                if let Some(cycle) = visit(imports, path, finished) {
                    return Some(cycle);
                }
                path.pop();
            }
        }
        finished.insert(path.last().unwrap().clone());
        None
    }
    let mut finished = BTreeSet::new();
    imports.keys().find_map(|module| visit(imports, &mut vec![module.clone()], &mut finished))
}

/// The test ignores re-exports of items of child modules (`pub use`).
#[test]
fn files_form_no_cycles() {
    for (name, _) in LAYERED {
        let imports = file_imports(&crate_dir(name).join("src"), without_reexports);
        let cycle = find_cycle(&imports);
        assert!(cycle.is_none(), "crate {name}: cycle of imports: {}", cycle.unwrap().join(" -> "));
    }
}

/// Type names that may occur twice in a crate. The asynchronous handles have the same names as the blocking handles.
/// Loom has its own synchronization primitives.
const SHARED_NAMES: [&str; 9] = [
    "Condvar",
    "Db",
    "Follower",
    "Keyspace",
    "Range",
    "Snapshot",
    "Change",
    "Transaction",
    "TransactionRange",
];

/// Types that may have methods outside the module that defines the type. Some methods of `WriteBatch` need a type of a
/// higher layer. For the other types, methods are grouped by task.
const SPLIT_TYPES: [&str; 4] = ["WriteBatch", "TreeShape", "DataBlock", "MemVfs"];

/// Returns the names of items that are defined at the start of a line with the given keyword, such as `struct`.
fn names_after<'a>(text: &'a str, keyword: &str) -> Vec<&'a str> {
    let words = text.lines().filter_map(|line| {
        let mut words = line.split([' ', '(', '<', '{', ';']).filter(|word| !word.is_empty());
        let is_visibility = |word: &&str| matches!(*word, "pub" | "crate)" | "super)" | "in");
        let first = words.by_ref().find(|word| !is_visibility(word) && !word.ends_with(')'))?;
        (first == keyword).then(|| words.next()).flatten()
    });
    words.collect()
}

#[test]
fn type_names_are_unique_and_methods_are_in_the_module_of_the_type() {
    for (name, _) in LAYERED {
        let mut files = files(&crate_dir(name).join("src"), "rs");
        files.retain(|file| !file.ends_with("tests.rs"));
        let texts: Vec<String> = files.iter().map(|file| production_code(&read(file))).collect();
        let mut homes: BTreeMap<&str, &PathBuf> = BTreeMap::new();
        for (file, text) in files.iter().zip(&texts) {
            for type_name in
                ["struct", "enum"].iter().flat_map(|keyword| names_after(text, keyword))
            {
                let other = homes.insert(type_name, file).filter(|other| *other != file);
                let is_shared = SHARED_NAMES.contains(&type_name);
                assert!(other.is_none() || is_shared, "{type_name}: {file:?} and {other:?}");
            }
        }
        for (file, text) in files.iter().zip(&texts) {
            let inherent = text.lines().filter(|line| {
                line.starts_with("impl") && line.ends_with('{') && !line.contains(" for ")
            });
            for line in inherent {
                let target = line.trim_start_matches("impl");
                let target = match target.strip_prefix('<') {
                    Some(rest) => rest.split_once("> ").map_or(rest, |(_, target)| target),
                    None => target.trim_start(),
                };
                let type_name = target.split(['<', ' ']).next().unwrap();
                let home = homes.get(type_name).filter(|home| **home != file);
                let is_excused =
                    SHARED_NAMES.contains(&type_name) || SPLIT_TYPES.contains(&type_name);
                assert!(home.is_none() || is_excused, "methods of {type_name} in {file:?}");
            }
        }
    }
}

#[test]
fn find_cycle_returns_modules_that_import_each_other() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut imports = BTreeMap::from([
        ("a".to_owned(), set(&["b"])),
        ("b".to_owned(), set(&["c"])),
        ("c".to_owned(), set(&[])),
    ]);
    assert_eq!(find_cycle(&imports), None);
    imports.insert("c".to_owned(), set(&["b"]));
    assert_eq!(find_cycle(&imports), Some(vec!["b".to_owned(), "c".to_owned()]));
}

#[test]
fn code_paths_expands_lists() {
    let text = "use crate::a::{b::{C, self}, D};\npub(in crate::x) fn f(x: super::y::Z) {}\npub use crate::p::Q;";
    let paths = code_paths(&without_reexports(text));
    assert_eq!(paths, ["crate::a::b::C", "crate::a::b", "crate::a::D", "super::y::Z"]);
}

#[test]
fn modules_import_lower_layers() {
    for (name, layers) in LAYERED {
        let up = upward_imports(&crate_dir(name).join("src"), layers);
        assert!(up.is_empty(), "upward imports in {name}:\n{}", up.join("\n"));
    }
}

/// Only modules of the top layers may use the type `Db`.
#[test]
fn only_db_names_the_handle() {
    let src = crate_dir("engine/src");
    for file in files(&src, "rs") {
        let inside = file.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        let above =
            ["db/", "tokio/", "loom_models"].iter().any(|module| inside.starts_with(module));
        if inside == "lib.rs" || above || file.ends_with("tests.rs") {
            continue;
        }
        let text = production_code(&read(&file));
        let words = text.split(|at: char| !(at.is_alphanumeric() || at == '_'));
        assert!(words.into_iter().all(|word| word != "Db"), "{inside} uses Db");
    }
}

#[test]
fn crates_depend_on_lower_crates() {
    for (own, (dir, _)) in CRATES.iter().enumerate() {
        let Ok(text) = std::fs::read_to_string(crate_dir(dir).join("Cargo.toml")) else {
            continue;
        };
        // The test ignores development dependencies. Some crates have a development dependency on themselves to enable
        // features. The engine's tests use `lsmx-delta`.
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
fn production_code_has_no_comments_and_tests() {
    let text = "use crate::a::B;
        // use crate::comment::No;
        #[cfg(test)]\nuse crate::only_tests;\n#[cfg(test)]\nmod tests { use crate::no::{A}; }";
    assert_eq!(code_paths(&production_code(text)), ["crate::a::B"]);
    assert_eq!(block("{ a { b } c } d"), 13);
}
