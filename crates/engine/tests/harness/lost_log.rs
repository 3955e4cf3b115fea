//! Checks of the reports of recovery and repair after log segments were damaged or lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::wal::{RecoveryReport, WalOptions};
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Event, KeyspaceOptions, Options, RecoveryMode, RepairOptions,
    RepairReport, ValueSeparation, WriteBatch,
};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;
use super::oracle::{self, DIR};
use super::small_database::{files, open_with, policy};

/// The keyspaces of [`killed`]. The first has small memtables and is flushed often. The second is flushed by `flush()`
/// only.
const KEYSPACES: [&str; 2] = ["flushed", "unflushed"];

/// The last key in key order. Every commit overwrites its value with the number of the commit.
const NEWEST: [u8; 1] = [0xff];

/// Maximum length of a value in bytes. Values longer than half of this maximum go to blob files.
const VALUE_BYTES_MAX: u64 = 160;

fn keyspace_options(keyspace: &str) -> KeyspaceOptions {
    let bytes = if keyspace == KEYSPACES[0] { 2 << 10 } else { 1 << 20 };
    let separation =
        ValueSeparation { threshold_bytes: VALUE_BYTES_MAX / 2, ..ValueSeparation::default() };
    KeyspaceOptions::default().memtable_bytes(bytes).value_separation(separation)
}

fn open(disk: &MemVfs, mode: RecoveryMode) -> lsmx::Result<(Db, Arc<RecoveryReport>)> {
    let events = EventLog::default();
    let options = Options::default()
        .background(Background::Inline)
        .seed(1)
        .wal(WalOptions { segment_bytes: 3_000, ..WalOptions::default() })
        .recovery(mode)
        .listener(Arc::new(events.clone()));
    let db = open_with(disk, options)?;
    let reports = events.select(|event| match event {
        Event::Recovery(report) => Some(Arc::clone(report)),
        _ => None,
    });
    Ok((db, reports.last().cloned().unwrap_or_default()))
}

/// Commits to both keyspaces and kills the process. Returns the disk and the last sequence number of each commit. If
/// `flushed` is true, all keyspaces are also flushed between some commits.
fn killed(rng: &mut TestRng, flushed: bool) -> (MemVfs, Vec<u64>) {
    let disk = MemVfs::new();
    let (db, _) = open(&disk, RecoveryMode::Strict).unwrap();
    let keyspaces = KEYSPACES.map(|name| db.keyspace(name, keyspace_options(name)).unwrap());
    let policies = ["tiering(T=30)", "tiering(T=8)", "tiering(T=3)", "full", "leveled"];
    keyspaces[0].set_policy(policy(rng.choose::<&str>(&policies))).unwrap();
    let mut seqs = vec![0];
    for number in 1..=40_u64 + rng.below(30) {
        let mut batch = WriteBatch::new();
        for keyspace in &keyspaces {
            let len = usize::try_from(1 + rng.below(VALUE_BYTES_MAX)).unwrap();
            batch.put(keyspace, number.to_be_bytes(), vec![7; len]);
            batch.put(keyspace, NEWEST, number.to_be_bytes());
        }
        db.write(batch, Durability::Sync).unwrap();
        seqs.push(db.snapshot().seq().0);
        if flushed && rng.below(30) == 0 {
            db.flush().unwrap();
        }
    }
    (disk.crash(CrashImage::Keep, 0), seqs)
}

/// Returns a copy of the disk with one flipped bit in a record of a random log segment.
fn damaged(disk: &MemVfs, rng: &mut TestRng) -> MemVfs {
    const HEADER_BYTES: u64 = 80;
    let copy = disk.crash(CrashImage::Keep, 0);
    let path = rng.choose(&files(&copy, ".wal")).clone();
    let bytes = copy.read_all(&path).unwrap();
    let written = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) as u64;
    let offset = HEADER_BYTES + rng.below(written.saturating_sub(HEADER_BYTES).max(1));
    copy.flip_bits(&path, offset, 1 << rng.below(8)).unwrap();
    copy
}

/// Checks that each keyspace contains exactly the commits up to the sequence number that the report states for it.
fn compare(db: &Db, seqs: &[u64], reported: &BTreeMap<String, u64>, when: &str) {
    for name in KEYSPACES {
        let keyspace = db.open_keyspace(name, None).unwrap();
        let mut commits = 0u64;
        for entry in keyspace.iter() {
            let (key, value) = entry.unwrap();
            if key[..] == NEWEST {
                assert_eq!(value[..], commits.to_be_bytes(), "{when}: newest commit of {name}");
            } else {
                commits += 1;
                assert_eq!(key[..], commits.to_be_bytes(), "{when}: entry {commits} of {name}");
            }
        }
        let last = seqs[usize::try_from(commits).unwrap()];
        assert_eq!(reported.get(name), Some(&last), "{when}: reported end of {name}");
    }
}

fn numbers(reported: &BTreeMap<String, Option<u64>>) -> BTreeMap<String, u64> {
    reported.iter().map(|(name, seq)| (name.clone(), seq.unwrap_or(0))).collect()
}

/// After damage to a log record, a tolerant open and a repair report, for each keyspace, up to which sequence number it
/// is complete. The number is larger for a keyspace that was flushed after the damaged commit.
pub(crate) fn each_keyspace_is_complete_as_reported(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, seqs) = killed(&mut rng, false);
    let (mut apart, mut copies) = (0, 0);
    while copies < 6 || apart == 0 {
        copies += 1;
        assert!(copies < 100, "no keyspace was flushed after the damaged commit");
        let damaged = damaged(&disk, &mut rng);
        let opened = damaged.crash(CrashImage::Keep, 0);
        let (db, report) = open(&opened, RecoveryMode::Tolerant).unwrap();
        let reported = report.complete_through.iter().map(|(name, seq)| (name.clone(), seq.0));
        let reported = reported.collect();
        compare(&db, &seqs, &reported, "tolerant open");
        apart += u64::from(reported[KEYSPACES[0]] != reported[KEYSPACES[1]]);
        let report = repair(&damaged, &RepairOptions::default()).unwrap();
        let (db, _) = open(&damaged, RecoveryMode::Strict).unwrap();
        compare(&db, &seqs, &numbers(&report.complete_through), "repair");
    }
    Ok(())
}

fn repair(disk: &MemVfs, options: &RepairOptions) -> lsmx::Result<RepairReport> {
    lsmx::repair(DIR, &Options::default().vfs(Arc::new(disk.clone())), options)
}

/// A dry run of a repair reports the same findings, losses and sequence numbers as the repair.
///
/// Regression: for a damaged log the dry run reported "nothing is lost".
pub(crate) fn dry_run_reports_the_losses_of_the_repair(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, _) = killed(&mut rng, false);
    for _ in 0..6 {
        let damaged = damaged(&disk, &mut rng);
        let [dry, real] = [true, false].map(|dry_run| {
            let options = RepairOptions { dry_run, ..RepairOptions::default() };
            let report = repair(&damaged, &options).unwrap();
            (report.findings, report.lost, report.complete_through)
        });
        assert_eq!(dry, real, "reports of the dry run and of the repair");
    }
    Ok(())
}

/// Repairs a database with the option `common_prefix`. Afterwards both keyspaces must end at the same commit. If this
/// is impossible, the repair must fail and change no file. Returns whether the repair dropped tables.
fn restore_common_prefix(disk: &MemVfs, seqs: &[u64]) -> bool {
    let before = disk.snapshot_all();
    let options = RepairOptions { common_prefix: true, ..RepairOptions::default() };
    let dry = repair(disk, &RepairOptions { dry_run: true, ..options.clone() });
    let report = match repair(disk, &options) {
        Err(Error::NoCommonPrefix { .. }) => {
            assert!(
                dry.is_err() && disk.snapshot_all() == before,
                "a refused repair changes files"
            );
            return false;
        }
        report => report.unwrap(),
    };
    let dry = dry.unwrap();
    assert_eq!((&dry.lost, &dry.complete_through), (&report.lost, &report.complete_through));
    let reported = numbers(&report.complete_through);
    assert_eq!(reported[KEYSPACES[0]], reported[KEYSPACES[1]], "last commits of both keyspaces");
    let (db, _) = open(disk, RecoveryMode::Strict).unwrap();
    compare(&db, seqs, &reported, "common prefix");
    drop(db);
    oracle::verify(disk).unwrap();
    report.tables_dropped > 0
}

/// One keyspace was flushed after the damaged commit, and compactions merged some of its tables with older tables. A
/// repair with `common_prefix` must restore a common prefix of both keyspaces or fail.
pub(crate) fn common_prefix_is_restored_or_refused(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (mut restored, mut tries) = (0, 0);
    while restored == 0 || tries < 8 {
        let flushed = rng.below(2) == 0;
        let (disk, seqs) = killed(&mut rng, flushed);
        restored += u64::from(restore_common_prefix(&damaged(&disk, &mut rng), &seqs));
        tries += 1;
        assert!(tries < 100, "no table was dropped");
    }
    Ok(())
}

/// If a log segment other than the oldest is missing, an open and `verify` return an error that names it.
///
/// Regression: the error named the undamaged segment before the missing one.
pub(crate) fn missing_segment_is_named(seed: u64) -> Outcome {
    let (disk, _) = killed(&mut TestRng::new(seed), false);
    let segments = files(&disk, ".wal");
    assert!(segments.len() > 2, "{segments:?}");
    for missing in &segments[1..] {
        let damaged = disk.crash(CrashImage::Keep, 0);
        damaged.remove(missing).unwrap();
        let verified = oracle::verify(&damaged).map(drop);
        let opened = open(&damaged, RecoveryMode::Strict).map(drop);
        for (call, result) in [("verify", verified), ("open", opened)] {
            let named = matches!(&result, Err(Error::Missing { path, .. }) if path == missing);
            assert!(named, "{call} without {}: {result:?}", missing.display());
        }
    }
    Ok(())
}
