//! Invalid contents with valid checksums, which no writer and no disk produces.
//!
//! Every call returns a result or an error that names a file. No panic, no hang, no unbounded allocation.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::common::{Driver, Write};
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{OperandFiles, OperandReadTier};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Error, Result, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_delta::DeltaOptions;
use lsmx_testkit::{TestRng, scaled, seed};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const INPUTS: u64 = 3000;
const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 16;

/// As `docs/reference/format.md` says of blocks.
fn checksum(bytes: &[u8], uid: u64, offset: u64) -> u64 {
    let mut x = uid ^ offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    xxh3_64_with_seed(bytes, x ^ (x >> 31))
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Where the frames of a file begin, and end.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some(length) = bytes.get(at + 8..at + 12) {
        let end = at + FRAME_HEADER_BYTES + u32::from_le_bytes(length.try_into().unwrap()) as usize;
        frames.push((at, end));
        at = end;
    }
    frames
}

/// Changes some bytes of a frame, its kind perhaps among them, and puts its checksum right.
fn forge(bytes: &mut [u8], rng: &mut TestRng) {
    let uid = number(&bytes[16..24]);
    let frames = frames(bytes);
    for _ in 0..=rng.below(2) {
        let (from, end) = frames[rng.below(frames.len())];
        for _ in 0..=rng.below(3) {
            // From the kind on: with another length there would be other frames behind.
            let at = from + 12 + rng.below(end - from - 12);
            bytes[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ (1 << rng.below(8)),
                _ => rng.next_u64().to_le_bytes()[0],
            };
        }
        let sum = checksum(&bytes[from + 8..end], uid, from as u64);
        bytes[from..from + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A store with frames of all kinds, and its files.
fn store() -> (Driver, BTreeMap<PathBuf, Vec<u8>>) {
    let options = DeltaOptions::default().bucket_bytes(1024).log_bytes_max(2500).cache_bytes(2000);
    let mut driver = Driver::new(options);
    let mut rng = TestRng::new(3);
    for round in 0..12 {
        let writes: Vec<Write> = (0..25)
            .map(|_| {
                let key = format!("key{:02}", rng.below(20)).into_bytes();
                match rng.below(12) {
                    0 => Write::DeleteMarker { key },
                    1 if round > 8 => {
                        Write::RangeDeleteMarker { start: key, end: Some(b"key19".to_vec()) }
                    }
                    _ => Write::Operand { key, bytes: 12 },
                }
            })
            .collect();
        driver.flush(&writes);
        if round < 10 {
            driver.collect(None).unwrap();
        }
    }
    let path = |(kind, number)| driver.files.path(kind, number);
    let read = |path: PathBuf| {
        let bytes = driver.mem.read_all(&path).unwrap();
        (path, bytes)
    };
    let files = driver.files.existing_files().into_iter().map(path).map(read).collect();
    (driver, files)
}

/// Asks all there is to be asked, and writes.
fn play(driver: &mut Driver, vfs: MemVfs) -> Result<()> {
    let verified = driver.open_on(Arc::new(vfs)).and_then(|()| driver.verify());
    driver.store.live_files();
    let view = driver.store.view();
    let mut found = Vec::new();
    for key in 0..20 {
        let key = format!("key{key:02}");
        view.read_operands(
            key.as_bytes(),
            SeqNo(driver.seq),
            OperandReadTier::Storage,
            &mut found,
        )?;
    }
    let mut cursor = view.clone().cursor(SeqNo::MAX, OperandReadTier::Storage);
    cursor.first()?;
    for _ in 0..10_000 {
        if !cursor.valid() {
            break;
        }
        cursor.next()?;
    }
    cursor.last()?;
    let writes =
        (0..60).map(|key| Write::Operand { key: format!("key{key:02}").into(), bytes: 40 });
    let (prepared, _) = driver.deliver(&writes.collect::<Vec<_>>())?;
    driver.store.mark_committed(prepared.token);
    let store = driver.store.clone();
    if let Some(mut collection) = store.collect(&[SeqNo(driver.seq)])? {
        collection.moved_operands()?;
        store.mark_committed(collection.prepare()?.token);
    }
    verified
}

fn names_a_file(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::UnsupportedVersion { .. } | Error::Io { .. })
}

#[test]
fn forged_file_is_read_or_rejected() {
    let (seed, inputs) = (seed(), scaled(INPUTS));
    let (driver, files) = store();
    let (token, seq) = (driver.token, driver.seq);
    let paths: Vec<&PathBuf> = files.keys().collect();
    let (mut answered, mut refused) = (0_u64, 0_u64);
    for input in 0..inputs {
        let mut rng = TestRng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(input));
        // The log is one of many files, and most is decoded of it.
        let log = paths.iter().position(|path| path.extension().is_some_and(|it| it == "operands"));
        let victim = match rng.below(2) {
            0 => log.unwrap(),
            _ => rng.below(paths.len()),
        };
        let vfs = MemVfs::new();
        vfs.create_dir(Path::new("db")).unwrap();
        for (path, bytes) in &files {
            let mut bytes = bytes.clone();
            if path == paths[victim] {
                forge(&mut bytes, &mut rng);
            }
            vfs.write_all(path, &bytes).unwrap();
        }
        let mut driver = Driver::new(driver.options);
        (driver.token, driver.seq) = (token, seq);
        driver.files.next.store(1000, lsmx_base::sync::Ordering::Relaxed);
        let played = catch_unwind(AssertUnwindSafe(|| play(&mut driver, vfs)));
        match played {
            Ok(Ok(())) => answered += 1,
            Ok(Err(error)) if names_a_file(&error) => refused += 1,
            Ok(Err(error)) => panic!("seed {seed}, input {input}: {error:?} names no file"),
            Err(_) => panic!("seed {seed}, input {input} panicked"),
        }
    }
    println!("{inputs} inputs, {answered} answered, {refused} refused");
    assert!(refused > inputs / 4, "{refused} of {inputs} refused");
}
