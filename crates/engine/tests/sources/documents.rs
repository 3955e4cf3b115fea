//! Checks that every link and path in the documents exists, and that the book in `docs` lists all its pages.

use std::path::{Path, PathBuf};

use crate::{files, read, root};

/// Returns whether a page has a heading with this anchor.
fn has_heading(page: &Path, anchor: &str) -> bool {
    let text = read(page);
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let chars = title.chars().filter(|&char| char.is_alphanumeric() || " -_".contains(char));
        chars.map(|char| if char == ' ' { '-' } else { char }).eq(anchor.chars())
    })
}

/// Returns the links and backquoted paths of a document whose file, directory or heading does not exist.
fn missing(document: &Path, text: &str, sources_of_crates: &[PathBuf]) -> Vec<String> {
    let folder = document.parent().unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| {
        let link = rest.split(')').next().unwrap();
        let path = link.split('#').next().unwrap();
        let is_file = !link.is_empty() && !path.contains("://") && !path.contains("::");
        let file = if path.is_empty() { document.to_owned() } else { folder.join(path) };
        is_file.then_some((link, file))
    });
    let paths = text.split('`').skip(1).step_by(2).filter_map(|code| {
        let top =
            ["docs/", "crates/", "examples/replicated_kv", "scripts/", "fuzz/", "tests/outside/"];
        let is_path = top.iter().any(|top| code.starts_with(top))
            && code.chars().all(|char| char.is_ascii_alphanumeric() || "_-./".contains(char));
        is_path.then(|| (code, root().join(code)))
    });
    let missing = links.chain(paths).filter(|(name, path)| {
        !path.exists()
            || name.split_once('#').is_some_and(|(_, heading)| !has_heading(path, heading))
    });
    let mut missing: Vec<_> = missing.map(|(name, _)| name.to_owned()).collect();
    // A document may name a source file by the last components of the path.
    let sources = text.split('`').skip(1).step_by(2).filter(|code| {
        let is_path =
            |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "_/.".contains(char);
        code.ends_with(".rs") && !code.starts_with("crates/") && code.chars().all(is_path)
    });
    let exists = |code: &str| sources_of_crates.iter().any(|source| source.ends_with(code));
    missing.extend(sources.filter(|code| !exists(code)).map(str::to_owned));
    missing
}

#[test]
fn documents_name_files_that_exist() {
    let mut documents = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|name| root().join(name))
        .to_vec();
    documents.push(root().join("examples/replicated_kv/README.md"));
    documents.extend(files(&root().join("docs"), "md"));
    let mut sources = files(&root().join("crates"), "rs");
    sources.extend(files(&root().join("examples"), "rs"));
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let missing = missing(&document, &read(&document), &sources);
        assert!(missing.is_empty(), "{} names missing files: {missing:?}", document.display());
    }
}

/// Returns the document paths that occur in a source text.
fn documents_in(text: &str) -> impl Iterator<Item = &str> {
    let rests = text.match_indices("docs/").map(|(at, _)| &text[at..]);
    let paths = rests.map(|rest| {
        let is_path = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        &rest[..rest.find(|char| !is_path(char)).unwrap_or(rest.len())]
    });
    paths.filter(|path| path.ends_with(".md"))
}

#[test]
fn sources_name_documents_that_exist() {
    let mut sources = vec![root().join("scripts/study"), root().join("scripts/long")];
    sources.extend(["rs", "toml"].iter().flat_map(|end| files(&root().join("crates"), end)));
    sources.retain(|source| !source.ends_with(file!()));
    let mut documents = 0;
    for source in sources {
        for path in documents_in(&read(&source)) {
            assert!(root().join(path).exists(), "{} names {path}", source.display());
            documents += 1;
        }
    }
    assert!(documents > 20, "{documents}");
}

/// Returns the languages of the code blocks in a page.
fn code_languages(text: &str) -> Vec<&str> {
    let fences = text.lines().filter_map(|line| line.trim_start().strip_prefix("```"));
    fences.step_by(2).collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    assert!(pages.len() > 10, "{pages:?}");
    pages
}

#[test]
fn book_summary_lists_every_page() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    for page in pages() {
        let link = format!("]({})", page.strip_prefix(&docs).unwrap().display());
        assert_eq!(summary.matches(&link).count(), 1, "SUMMARY.md lists {link} once");
    }
}

#[test]
fn book_code_blocks_name_their_language_and_rust_is_compiled() {
    let compiled = read(&root().join("crates/engine/src/book.rs"));
    for page in pages() {
        let text = read(&page);
        let languages = code_languages(&text);
        assert!(!languages.contains(&""), "{}: a code block has no language", page.display());
        if languages.iter().any(|language| language.split(',').any(|word| word == "rust")) {
            let path = page.strip_prefix(root()).unwrap().display().to_string();
            assert!(compiled.contains(&path), "book.rs does not compile the samples of {path}");
        }
    }
}

fn text_of(dir: &str, extension: &str) -> String {
    files(&root().join(dir), extension).iter().map(|file| read(file)).collect()
}

/// Returns the identifier at the start of `text`.
fn name(text: &str) -> &str {
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    &text[..end.unwrap_or(text.len())]
}

fn public_fields(source: &str) -> impl Iterator<Item = String> {
    let fields = source.split("    pub ").skip(1);
    let fields = fields.filter(|rest| rest[name(rest).len()..].starts_with(": "));
    fields.map(|rest| name(rest).to_owned())
}

/// Checks that a page contains each name as the end of a quoted text: a character of `starts`, the name, and a
/// backquote.
fn assert_page_has(page: &str, names: &[String], starts: &[char]) {
    let text = read(&root().join(page));
    let is_listed =
        |name: &&String| starts.iter().any(|start| text.contains(&format!("{start}{name}`")));
    let missing: Vec<_> = names.iter().filter(|name| !is_listed(name)).collect();
    assert!(missing.is_empty(), "{page} lacks {missing:?}");
}

#[test]
fn options_page_lists_every_option() {
    let source = text_of("crates/engine/src/options", "rs");
    let source = source.replace("#[cfg(feature = \"internals\")]\n    pub fn ", "");
    let builders = source.split("    pub fn ").skip(1).filter(|rest| {
        let signature = rest.split('{').next().unwrap();
        signature.contains("mut self")
    });
    let mut names: Vec<_> = builders.map(|rest| name(rest).to_owned()).collect();
    for file in ["read.rs", "write.rs", "value_separation.rs"] {
        names.extend(public_fields(&read(&root().join("crates/engine/src/options").join(file))));
    }
    assert!(names.len() > 10, "{names:?}");
    assert_page_has("docs/reference/options.md", &names, &['`']);
}

#[test]
fn metrics_page_lists_every_field() {
    let names: Vec<_> = public_fields(&text_of("crates/engine/src/metrics", "rs")).collect();
    assert!(names.len() > 100, "{names:?}");
    // The page lists nested fields as `outer.field`.
    assert_page_has("docs/reference/metrics.md", &names, &['`', '.']);
}

#[test]
fn command_pages_list_every_flag() {
    let pages = text_of("docs/reference/commands", "md");
    let source = text_of("crates/cli/src/args", "rs");
    let mut flags = 0;
    for rest in source.split("#[arg(long").skip(1) {
        let after = rest.split_once(")]\n").unwrap().1.trim_start();
        let field = after.strip_prefix("pub(crate) ").unwrap_or(after);
        let flag = format!("--{}", name(field).replace('_', "-"));
        let is_listed = |end: &str| pages.contains(&format!("`{flag}{end}"));
        assert!(is_listed("`") || is_listed(" "), "no page lists {flag}");
        flags += 1;
    }
    assert!(flags > 80, "{flags}");
}

#[test]
fn code_languages_are_those_of_opening_fences() {
    let text = "a\n```rust,no_run\nx\n```\n  ```\nx\n  ```\n";
    assert_eq!(code_languages(text), ["rust,no_run", ""]);
}

#[test]
fn missing_link_and_path_are_found() {
    let text = "[a](README.md) [b](no.md#x) [h](README.md#map) [i](README.md#no) [c](https://x.y) `docs/no.md` `crates/engine` `crates/<x>` `a/b.rs` `a/no.rs`";
    let sources = [PathBuf::from("crates/x/a/b.rs")];
    assert_eq!(
        missing(&root().join("README.md"), text, &sources),
        ["no.md#x", "README.md#no", "docs/no.md", "a/no.rs"]
    );
}
