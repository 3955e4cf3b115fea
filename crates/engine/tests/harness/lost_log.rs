//! Checks of what is reported where a part of the log is lost.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::wal::{RecoveryReport, WalOptions};
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Event, KeyspaceOptions, Options, RecoveryMode, RepairOptions,
    RepairReport, ValueSeparation, WriteBatch,
};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;
use super::oracle::DIR;

/// The keyspaces of [`killed`]: of the first memtables are flushed, of the second none.
const KEYSPACES: [&str; 2] = ["flushed", "unflushed"];

/// A key that every commit overwrites with its number, behind all others.
const NEWEST: [u8; 1] = [0xff];

/// Half of the values go to blob files.
const VALUE_BYTES_MAX: u64 = 160;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn tuning(keyspace: &str) -> KeyspaceOptions {
    let bytes = if keyspace == KEYSPACES[0] { 2 << 10 } else { 1 << 20 };
    let separation =
        ValueSeparation { threshold_bytes: VALUE_BYTES_MAX / 2, ..ValueSeparation::default() };
    KeyspaceOptions::default().memtable_bytes(bytes).value_separation(separation)
}

fn open(disk: &MemVfs, mode: RecoveryMode) -> Result<(Db, Arc<RecoveryReport>), Error> {
    let events = EventLog::default();
    let options = Options::default()
        .background(Background::Inline)
        .seed(1)
        .wal(WalOptions { segment_bytes: 3_000, ..WalOptions::default() })
        .recovery(mode)
        .listener(Arc::new(events.clone()));
    let db = Db::open(DIR, options.vfs(Arc::new(disk.clone())))?;
    let reports = events.select(|event| match event {
        Event::Recovery(report) => Some(Arc::clone(report)),
        _ => None,
    });
    Ok((db, reports.last().cloned().unwrap_or_default()))
}

/// A database that was killed after commits to both keyspaces, and the last sequence number of each commit. If
/// `flushed`, all keyspaces are flushed after some commits.
fn killed(rng: &mut TestRng, flushed: bool) -> Result<(MemVfs, Vec<u64>), String> {
    let disk = MemVfs::new();
    let (db, _) = open(&disk, RecoveryMode::Strict).map_err(failed)?;
    let mut keyspaces = Vec::new();
    for name in KEYSPACES {
        keyspaces.push(db.keyspace(name, tuning(name)).map_err(failed)?);
    }
    let policy = rng.choose(&["tiering(T=30)", "tiering(T=8)", "tiering(T=3)", "full", "leveled"]);
    keyspaces[0].set_policy(policy.parse::<lsmx::PolicySpec>().map_err(failed)?).map_err(failed)?;
    let mut seqs = vec![0];
    for number in 1..=40_u64 + rng.below(30) {
        let mut batch = WriteBatch::new();
        for keyspace in &keyspaces {
            let bytes = usize::try_from(1 + rng.below(VALUE_BYTES_MAX)).map_err(failed)?;
            batch.put(keyspace, number.to_be_bytes(), vec![7; bytes]);
            batch.put(keyspace, NEWEST, number.to_be_bytes());
        }
        db.write(batch, Durability::Sync).map_err(failed)?;
        seqs.push(db.snapshot().seq().0);
        if flushed && rng.below(30) == 0 {
            db.flush().map_err(failed)?;
        }
    }
    Ok((disk.crash(CrashImage::Keep, 0), seqs))
}

fn segments(disk: &MemVfs) -> Vec<PathBuf> {
    let mut paths = disk.paths();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    paths
}

/// Changes a byte of a record in one of the segments.
fn damage(disk: &MemVfs, rng: &mut TestRng) -> Outcome {
    let path = rng.choose(&segments(disk)).clone();
    let bytes = disk.read_all(&path).map_err(failed)?;
    let written = bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) as u64;
    let header = 80;
    let offset = header + rng.below(written.saturating_sub(header).max(1));
    disk.flip_bits(&path, offset, 1 << rng.below(8)).map_err(failed)
}

/// The keyspaces hold the commits up to the reported numbers and none after them.
fn compare(db: &Db, seqs: &[u64], reported: &BTreeMap<String, u64>) -> Outcome {
    for name in KEYSPACES {
        let keyspace = db.open_keyspace(name, None).map_err(failed)?;
        let mut commits = 0u64;
        for entry in keyspace.iter() {
            let (key, value) = entry.map_err(failed)?;
            if key[..] == NEWEST {
                if value[..] != commits.to_be_bytes() {
                    return Err(format!("{name} holds {value:?} as the newest of {commits}"));
                }
                continue;
            }
            commits += 1;
            if key[..] != commits.to_be_bytes() {
                return Err(format!("{name} holds {key:?} as its entry {commits}"));
            }
        }
        let last = seqs[usize::try_from(commits).map_err(failed)?];
        if reported.get(name) != Some(&last) {
            let reported = reported.get(name);
            return Err(format!("{name} ends at {last}, and {reported:?} is reported"));
        }
    }
    Ok(())
}

fn numbers(reported: &BTreeMap<String, Option<u64>>) -> BTreeMap<String, u64> {
    reported.iter().map(|(name, seq)| (name.clone(), seq.unwrap_or(0))).collect()
}

/// A damaged record of the log: a tolerant open and a repair report for each keyspace the last commit up to which
/// it is complete. Flushes of one keyspace reach past the damage.
pub(crate) fn each_keyspace_is_complete_as_reported(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, seqs) = killed(&mut rng, false)?;
    let mut apart = 0;
    for _ in 0..6 {
        let damaged = disk.crash(CrashImage::Keep, 0);
        damage(&damaged, &mut rng)?;
        let opened = damaged.crash(CrashImage::Keep, 0);
        let (db, report) = open(&opened, RecoveryMode::Tolerant).map_err(failed)?;
        let reported = report.complete_through.iter().map(|(name, seq)| (name.clone(), seq.0));
        let reported = reported.collect();
        compare(&db, &seqs, &reported).map_err(|what| format!("tolerant open: {what}"))?;
        apart += u64::from(reported[KEYSPACES[0]] != reported[KEYSPACES[1]]);
        let report = repair(&damaged, RepairOptions::default())?;
        let (db, _) = open(&damaged, RecoveryMode::Strict).map_err(failed)?;
        compare(&db, &seqs, &numbers(&report.complete_through))
            .map_err(|what| format!("repair: {what}"))?;
    }
    if apart > 0 { Ok(()) } else { Err("no flush reached past the damage".to_owned()) }
}

fn repair(disk: &MemVfs, options: RepairOptions) -> Result<RepairReport, String> {
    lsmx::repair(DIR, &Options::default().vfs(Arc::new(disk.clone())), &options).map_err(failed)
}

/// A dry run reports the findings, the losses and the ends of the keyspaces that the repair reports.
///
/// The dry run said "nothing is lost" where the log was damaged.
pub(crate) fn dry_run_reports_the_losses_of_the_repair(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, _) = killed(&mut rng, false)?;
    for _ in 0..6 {
        let damaged = disk.crash(CrashImage::Keep, 0);
        damage(&damaged, &mut rng)?;
        let dry = repair(&damaged, RepairOptions { dry_run: true, ..RepairOptions::default() })?;
        let real = repair(&damaged, RepairOptions::default())?;
        let told = |report: RepairReport| (report.findings, report.lost, report.complete_through);
        let (dry, real) = (told(dry), told(real));
        if dry != real {
            return Err(format!("the dry run reports {dry:?}, the repair {real:?}"));
        }
    }
    Ok(())
}

/// A repair that is to restore a common prefix brings both keyspaces to the last commit before the damage, or refuses
/// and changes nothing. Returns which.
fn restore_common_prefix(disk: &MemVfs, seqs: &[u64]) -> Outcome<bool> {
    let before = disk.snapshot_all();
    let options = RepairOptions { common_prefix: true, ..RepairOptions::default() };
    let dry = lsmx::repair(
        DIR,
        &Options::default().vfs(Arc::new(disk.clone())),
        &RepairOptions { dry_run: true, ..options.clone() },
    );
    let report = match lsmx::repair(DIR, &Options::default().vfs(Arc::new(disk.clone())), &options)
    {
        Err(Error::NoCommonPrefix { .. }) if dry.is_err() && disk.snapshot_all() == before => {
            return Ok(false);
        }
        report => report.map_err(failed)?,
    };
    let dry = dry.map_err(failed)?;
    if (&dry.lost, &dry.complete_through) != (&report.lost, &report.complete_through) {
        return Err(format!("the dry run reports {dry:?}, the repair {report:?}"));
    }
    let reported = numbers(&report.complete_through);
    if reported[KEYSPACES[0]] != reported[KEYSPACES[1]] {
        return Err(format!("the prefixes end at {reported:?}"));
    }
    let (db, _) = open(disk, RecoveryMode::Strict).map_err(failed)?;
    compare(&db, seqs, &reported)?;
    drop(db);
    lsmx::verify(DIR, &Options::default().vfs(Arc::new(disk.clone()))).map_err(failed)?;
    Ok(report.tables_dropped > 0)
}

/// Flushes of one keyspace reach past the damage of the log, and compactions merge some of them with older tables.
pub(crate) fn common_prefix_is_restored_or_refused(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (mut restored, mut tries) = (0, 0);
    while restored == 0 || tries < 8 {
        let flushed = rng.below(2) == 0;
        let (disk, seqs) = killed(&mut rng, flushed)?;
        damage(&disk, &mut rng)?;
        restored += u64::from(restore_common_prefix(&disk, &seqs)?);
        tries += 1;
        if tries == 100 {
            return Err("no table was dropped".to_owned());
        }
    }
    Ok(())
}

/// A segment is missing that is not the oldest one: the errors of an open and of `verify` name it.
///
/// They accused the intact segment before it.
pub(crate) fn missing_segment_is_named(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let (disk, _) = killed(&mut rng, false)?;
    let segments = segments(&disk);
    for missing in &segments[1..] {
        let damaged = disk.crash(CrashImage::Keep, 0);
        damaged.remove(missing).map_err(failed)?;
        let verified =
            lsmx::verify(DIR, &Options::default().vfs(Arc::new(damaged.clone()))).map(drop);
        let opened = open(&damaged, RecoveryMode::Strict).map(drop);
        for (call, result) in [("verify", verified), ("open", opened)] {
            match result {
                Err(Error::Missing { path, .. }) if path == *missing => {}
                other => return Err(format!("{call} without {}: {other:?}", missing.display())),
            }
        }
    }
    if segments.len() > 2 { Ok(()) } else { Err(format!("{segments:?} are too few")) }
}
