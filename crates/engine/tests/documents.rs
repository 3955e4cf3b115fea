//! Every link and path in the documents exists.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "it reads documents, not data")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Collects the Markdown files below a directory.
fn markdown(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Returns the links and the paths in backquotes that name no file or directory.
fn missing(document: &Path, text: &str) -> Vec<String> {
    let folder = document.parent().unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| {
        let link = rest.split(')').next().unwrap();
        let path = link.split('#').next().unwrap();
        let is_file = !path.is_empty() && !path.contains("://") && !path.contains("::");
        is_file.then(|| (link, folder.join(path)))
    });
    let paths = text.split('`').skip(1).step_by(2).filter_map(|code| {
        let top = ["docs/", "crates/", "scripts/", "fuzz/", "tests/outside/"];
        let is_path = top.iter().any(|top| code.starts_with(top))
            && code.chars().all(|char| char.is_ascii_alphanumeric() || "_-./".contains(char));
        is_path.then(|| (code, root().join(code)))
    });
    links.chain(paths).filter(|(_, path)| !path.exists()).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn documents_name_files_that_exist() {
    let mut documents =
        vec![root().join("README.md"), root().join("CHANGELOG.md"), root().join("CONTRIBUTING.md")];
    markdown(&root().join("docs"), &mut documents);
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        let missing = missing(&document, &text);
        assert!(missing.is_empty(), "{} names missing files: {missing:?}", document.display());
    }
}

#[test]
fn missing_link_and_path_are_found() {
    let text =
        "[a](README.md) [b](no.md#x) [c](https://x.y) `docs/no.md` `crates/engine` `crates/<x>`";
    assert_eq!(missing(&root().join("README.md"), text), ["no.md#x", "docs/no.md"]);
}
