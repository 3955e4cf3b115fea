//! Golden files in `tests/golden`, which contain the bytes of released format versions.

use std::path::{Path, PathBuf};

use lsmx::vfs::{OsVfs, Vfs};

pub(crate) fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Reads a golden file. If the file does not exist and `UPDATE=1` is set in the environment, creates the file with the
/// bytes that `written` returns. Existing files are never rewritten.
pub(crate) fn golden(name: &str, written: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = golden_path(name);
    if !path.exists() && std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        let bytes = written();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        OsVfs.create(&path).unwrap().append(&bytes).unwrap();
    }
    let file = OsVfs.open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

pub(crate) fn assert_same_bytes(name: &str, written: &[u8], golden: &[u8]) {
    let differs = written.iter().zip(golden).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{name}: first byte that differs");
    assert_eq!(written.len(), golden.len(), "{name}: length");
}
