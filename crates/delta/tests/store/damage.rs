//! Changed bytes, cut files and missing files: each result is correct, or an error names the file.

use std::path::Path;

use crate::common::{Driver, Write};
use lsmx::operand_store::{OperandFileKind, OperandFiles};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Error, Result};
use lsmx_base::sync::Arc;
use lsmx_delta::DeltaOptions;
use lsmx_testkit::TestRng;

/// A store with sorted parts, unsorted pages, files of an earlier opening, tails, and a log with all kinds
/// of entries.
fn store() -> Driver {
    let options = DeltaOptions::default().bucket_bytes(1024).log_bytes_max(2500).cache_bytes(0);
    let mut driver = Driver::new(options);
    let mut rng = TestRng::new(7);
    for round in 0..14 {
        let mut writes = Vec::new();
        for _ in 0..25 {
            let key = format!("key{:02}", rng.below(20)).into_bytes();
            writes.push(match rng.below(12) {
                0 => Write::DeleteMarker { key },
                1 if round > 10 => {
                    Write::RangeDeleteMarker { start: key, end: Some(b"key19".to_vec()) }
                }
                _ => Write::Operand { key, bytes: 12 },
            });
        }
        driver.flush(&writes);
        if round < 12 {
            driver.collect(None).unwrap();
        }
        if round == 9 {
            driver.reopen().unwrap();
        }
    }
    driver.check().unwrap();
    driver.verify().unwrap();
    driver
}

/// A file system with the same files, one of them with other bytes.
fn changed(driver: &Driver, victim: &Path, bytes: Option<&[u8]>) -> MemVfs {
    let vfs = MemVfs::new();
    vfs.create_dir("db".as_ref()).unwrap();
    for (kind, number) in driver.files.existing_files() {
        let path = driver.files.path(kind, number);
        if path != victim {
            vfs.create(&path).unwrap().append(&contents(driver, &path)).unwrap();
        } else if let Some(bytes) = bytes {
            vfs.create(&path).unwrap().append(bytes).unwrap();
        }
    }
    vfs
}

fn contents(driver: &Driver, path: &Path) -> Vec<u8> {
    let file = driver.files.vfs.open(path).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Whether the error names the file.
fn names(error: &Error, file: &Path) -> bool {
    match error {
        Error::Corrupt { path, .. }
        | Error::UnsupportedVersion { path, .. }
        | Error::Io { path, .. } => path == file,
        _ => false,
    }
}

/// Opens and asks everything; wrong answers panic.
fn ask(driver: &mut Driver, vfs: MemVfs) -> (Result<()>, Result<()>) {
    let answers = driver.open_on(Arc::new(vfs)).and_then(|()| driver.check());
    (answers, driver.verify())
}

#[test]
fn damaged_file_is_reported_or_harmless() {
    let source = store();
    let (mut found, mut harmless, mut kinds) = (0, 0, 0);
    for (kind, number) in source.files.existing_files() {
        let path = source.files.path(kind, number);
        let whole = contents(&source, &path);
        let mut driver = store();
        kinds += 1;
        let mut try_one = |bytes: Option<&[u8]>, what: &str| {
            let (answers, verified) = ask(&mut driver, changed(&source, &path, bytes));
            for error in [answers.as_ref().err(), verified.as_ref().err()].into_iter().flatten() {
                assert!(names(error, &path), "{what} of {}: {error:?}", path.display());
            }
            assert!(answers.is_ok() || verified.is_err(), "{what} of {}", path.display());
            if verified.is_err() {
                found += 1
            } else {
                harmless += 1
            }
            verified.is_err()
        };
        // Pages that came after the log's snapshot are in the log too, so their file may go.
        assert!(try_one(None, "all") || kind == OperandFileKind::Bucket);
        let step = (whole.len() / 150).max(1);
        for at in (0..64.min(whole.len())).chain((64..whole.len()).step_by(step)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            try_one(Some(&bytes), &format!("byte {at}"));
            try_one(Some(&whole[..at]), &format!("cut at {at}"));
        }
        // Bytes behind what counts are nobody's.
        let longer = [&whole[..], b"beyond"].concat();
        assert!(!try_one(Some(&longer), "longer"));
    }
    println!("{kinds} files, {found} found, {harmless} harmless");
    assert!(kinds > 4 && found > 500, "{kinds} files, {found} found");
}

#[test]
fn dump_prints_every_frame_and_reports_damage() {
    let source = store();
    let mut all = String::new();
    for (kind, number) in source.files.existing_files() {
        let path = source.files.path(kind, number);
        let mut text = Vec::new();
        lsmx_delta::dump(&*source.files.vfs, &path, &mut text).unwrap();
        all.push_str(std::str::from_utf8(&text).unwrap());
        let mut bytes = contents(&source, &path);
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let vfs = changed(&source, &path, Some(&bytes));
        let mut text = Vec::new();
        lsmx_delta::dump(&vfs, &path, &mut text).unwrap_err();
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().last().unwrap().starts_with("damaged: "), "{text}");
    }
    for kind in ["sorted page", "index", "filter", "unsorted page", "snapshot", "end of delivery"] {
        assert!(all.contains(&format!(" {kind}: ")), "no {kind} in\n{all}");
    }
}
