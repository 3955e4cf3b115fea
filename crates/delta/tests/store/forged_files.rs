//! Checks files with invalid contents but valid checksums. No writer and no disk error produces such files.
//!
//! Every call must return a result, or an error that names a file. No call may panic, hang, or allocate unbounded
//! memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::common::{Driver, Write, disk};
use lsmx::operand_store::OperandReadTier;
use lsmx::vfs::MemVfs;
use lsmx::{Error, Result, SeqNo};
use lsmx_base::sync::{Arc, Ordering};
use lsmx_testkit::delta::{frame_ranges, repair_file};
use lsmx_testkit::{TestRng, scaled, seed};

const INPUTS: u64 = 3000;

/// Changes some bytes of frames, sometimes including the frame kind, and corrects the checksums.
fn forge(bytes: &mut [u8], rng: &mut TestRng) {
    let frames = frame_ranges(bytes);
    for _ in 0..=rng.below(2) {
        let (from, end) = *rng.choose(&frames);
        for _ in 0..=rng.below(3) {
            // The length before the frame kind is not changed. Otherwise the later frames would not be found.
            let at = from + 12 + rng.below(end - from - 12);
            bytes[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ (1 << rng.below(8)),
                _ => rng.next_u64().to_le_bytes()[0],
            };
        }
    }
    repair_file(bytes);
}

/// Opens, verifies and reads a store. Then delivers an operand and runs a collection.
fn exercise(driver: &mut Driver, vfs: MemVfs) -> Result<()> {
    let verified = driver.open_on(Arc::new(vfs)).and_then(|()| driver.verify());
    driver.store.live_files();
    let view = driver.store.view();
    for key in 0..20 {
        let (key, at) = (format!("key{key:02}"), SeqNo(driver.seq));
        view.read_operands(key.as_bytes(), at, OperandReadTier::Storage, &mut Vec::new())?;
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
    let sample = Driver::sample(2000);
    let files = sample.mem.snapshot_all();
    let paths: Vec<&PathBuf> = files.keys().collect();
    let log = paths.iter().find(|path| path.extension().is_some_and(|it| it == "operands"));
    let (mut accepted, mut rejected) = (0_u64, 0_u64);
    for input in 0..inputs {
        let mut rng = TestRng::new(seed.wrapping_mul(0x1_0000_0001).wrapping_add(input));
        // Half of the cases change the log, because most decoders read the log.
        let forged = if rng.is_one_in(2) { log.unwrap() } else { rng.choose(&paths) };
        let vfs = disk();
        for (path, bytes) in &files {
            let mut bytes = bytes.clone();
            if path == *forged {
                forge(&mut bytes, &mut rng);
            }
            vfs.write_all(path, &bytes).unwrap();
        }
        let mut driver = Driver::new(sample.options);
        (driver.token, driver.seq) = (sample.token, sample.seq);
        driver.files.next_number.store(1000, Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(|| exercise(&mut driver, vfs))) {
            Ok(Ok(())) => accepted += 1,
            Ok(Err(error)) if names_a_file(&error) => rejected += 1,
            Ok(Err(error)) => panic!("seed {seed}, input {input}: {error:?} names no file"),
            Err(_) => panic!("seed {seed}, input {input}: panic"),
        }
    }
    println!("{inputs} inputs, {accepted} accepted, {rejected} rejected");
    assert!(rejected > inputs / 4, "{rejected} of {inputs} rejected");
}
