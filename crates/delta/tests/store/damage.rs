//! Changes bytes of files, truncates files, and removes files. Each read must return a correct result, or an error that
//! names the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::Driver;
use lsmx::vfs::MemVfs;
use lsmx::{Error, Result};
use lsmx_base::sync::Arc;

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Returns a file system with copies of the files. The file at `damaged` contains `bytes`, or does not exist if
/// `bytes` is `None`.
fn copy_files(files: &Files, damaged: &Path, bytes: Option<&[u8]>) -> MemVfs {
    let vfs = crate::common::disk();
    for (path, whole) in files {
        let bytes = if path == damaged { bytes } else { Some(&whole[..]) };
        if let Some(bytes) = bytes {
            vfs.write_all(path, bytes).unwrap();
        }
    }
    vfs
}

fn names_file(error: &Error, file: &Path) -> bool {
    match error {
        Error::Corrupt { path, .. }
        | Error::UnsupportedVersion { path, .. }
        | Error::Io { path, .. } => path == file,
        _ => false,
    }
}

/// Opens and reads a store, then verifies it. Returns both results. Panics if a read returns a wrong result.
fn open_and_verify(driver: &mut Driver, vfs: MemVfs) -> (Result<()>, Result<()>) {
    let opened = driver.open_on(Arc::new(vfs)).and_then(|()| driver.check());
    (opened, driver.verify())
}

#[test]
fn damaged_file_is_reported_or_harmless() {
    let files = Driver::sample(0).mem.snapshot_all();
    let (mut found, mut harmless) = (0, 0);
    for (path, whole) in &files {
        let mut driver = Driver::sample(0);
        let mut is_reported = |bytes: Option<&[u8]>, damage: &str| {
            let (opened, verified) = open_and_verify(&mut driver, copy_files(&files, path, bytes));
            for error in [opened.as_ref().err(), verified.as_ref().err()].into_iter().flatten() {
                assert!(names_file(error, path), "{damage} of {}: {error:?}", path.display());
            }
            assert!(opened.is_ok() || verified.is_err(), "{damage} of {}", path.display());
            if verified.is_err() {
                found += 1
            } else {
                harmless += 1
            }
            verified.is_err()
        };
        // The log also contains all pages that were written after its snapshot. A bucket file with only such pages may
        // be missing.
        assert!(is_reported(None, "removal") || path.extension().is_some_and(|it| it == "bucket"));
        let step = (whole.len() / 150).max(1);
        for at in (0..64.min(whole.len())).chain((64..whole.len()).step_by(step)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            is_reported(Some(&bytes), &format!("byte {at}"));
            is_reported(Some(&whole[..at]), &format!("cut at {at}"));
        }
        let longer = [&whole[..], b"beyond"].concat();
        assert!(!is_reported(Some(&longer), "bytes after the end"));
    }
    let kinds = files.len();
    println!("{kinds} files, {found} found, {harmless} harmless");
    assert!(kinds > 4 && found > 500, "{kinds} files, {found} found");
}

#[test]
fn dump_prints_every_frame_and_reports_damage() {
    let files = Driver::sample(0).mem.snapshot_all();
    let intact = copy_files(&files, Path::new(""), None);
    let mut all = Vec::new();
    for (path, whole) in &files {
        lsmx_delta::dump(&intact, path, &mut all).unwrap();
        let mut bytes = whole.clone();
        *bytes.last_mut().unwrap() ^= 1;
        let mut text = Vec::new();
        lsmx_delta::dump(&copy_files(&files, path, Some(&bytes)), path, &mut text).unwrap_err();
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().last().unwrap().starts_with("damaged: "), "{text}");
    }
    let all = String::from_utf8(all).unwrap();
    for kind in ["sorted page", "index", "filter", "unsorted page", "snapshot", "end of delivery"] {
        assert!(all.contains(&format!(" {kind}: ")), "no {kind} in\n{all}");
    }
}
