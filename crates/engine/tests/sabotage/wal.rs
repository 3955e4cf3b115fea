//! Checks of the WAL after power losses, failed writes and damage.
//!
//! A replay returns a prefix of the appended records that includes all synced records, or an error that names the
//! file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::harness::log_crashes::{
    DB_UID, Ledger, Promises, append, check, dir, disk, enumerate_crashes, options, read_back,
    restart,
};
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::internals::wal::{RecoveryMode, Wal, WalOptions};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Error, SeqNo};
use lsmx_testkit::TestRng;

#[test]
fn after_a_crash_at_any_operation_a_prefix_with_all_synced_commits_is_there() {
    let _alone = lsmx_testkit::run_alone();
    let images: u64 = (0..36).map(|seed| enumerate_crashes(seed, 120).unwrap()).sum();
    assert!(images > 5_000, "only {images} images");
}

/// For every `k`, makes the k-th append or sync fail. The log must then reject all calls, keep all synced records on
/// the disk, and accept records again after a restart.
fn sweep_faults(seed: u64) -> Result<u64, String> {
    for k in 0.. {
        let (disk, ledger) = (disk(), Ledger::default());
        let vfs = FaultVfs::new(Arc::new(disk.clone()), seed ^ k);
        let errno = [Errno::Io, Errno::NoSpace][usize::from(k % 2 == 0)];
        let fault = [Fault::Error(errno), Fault::ShortWrite(errno)][usize::from(k % 3 == 0)];
        let calls: &[VfsCall] = match fault {
            Fault::ShortWrite(_) => &[VfsCall::Append],
            _ => &[VfsCall::Append, VfsCall::Sync, VfsCall::SyncDir, VfsCall::Create],
        };
        vfs.add_rule(FaultRule::new(fault).for_calls(calls).nth(k).once());
        let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
        let at_failure = |promises: &Promises| {
            CrashImage::ALL.iter().try_for_each(|&image| {
                check(&disk.crash(image, seed ^ k), promises)
                    .map_err(|broken| format!("reopened after the failure, {image:?}: {broken}"))
            })
        };
        let done = faulty_workload(&shared, &ledger, seed, &at_failure);
        let fired: u64 = vfs.fired_counts().values().sum();
        done.map_err(|broken| format!("seed {seed}, k {k}: {broken}"))?;
        for image in CrashImage::ALL {
            let crashed = disk.crash(image, seed ^ k);
            if ledger.now().oldest != 0 {
                check(&crashed, &ledger.now())
                    .map_err(|broken| format!("seed {seed}, k {k}, {image:?}: {broken}"))?;
            }
        }
        if fired == 0 {
            return Ok(k);
        }
    }
    unreachable!("some k is past the last call")
}

fn faulty_workload(
    vfs: &Arc<dyn Vfs>,
    ledger: &Ledger,
    seed: u64,
    at_failure: &dyn Fn(&Promises) -> Result<(), String>,
) -> Result<(), String> {
    let mut rng = TestRng::new(seed);
    let mut next = 1;
    let ledger_for_wal = Arc::new(ledger.clone());
    let wal = Wal::create(vfs.clone(), dir(), DB_UID, ledger_for_wal, options(), SeqNo(next));
    let Ok(wal) = wal else { return Ok(()) };
    let Ok(first) = wal.sync_first_segment() else { return Ok(()) };
    ledger.change(|promises| promises.oldest = first);
    for _ in 0..40 {
        let done = if !rng.is_one_in(3) {
            append(&wal, ledger, &mut next, 2)
        } else {
            wal.sync().map(|synced| ledger.change(|promises| promises.synced = synced.0))
        };
        if done.is_err() {
            // The log must reject calls even when the disk works again.
            if !matches!(wal.append(std::iter::empty()), Err(Error::ReadOnly { .. })) {
                return Err("an append went through after a failure".to_owned());
            }
            if !matches!(wal.sync(), Err(Error::ReadOnly { .. })) {
                return Err("a sync went through after a failure".to_owned());
            }
            let promises = ledger.now();
            at_failure(&promises)?;
            // The fault fires once, so the restart succeeds.
            restart(&wal, ledger, &mut next).map_err(|error| format!("{error:?}"))?;
            assert!(ledger.now().oldest > promises.oldest);
        }
    }
    Ok(())
}

#[test]
fn after_any_failed_call_nothing_false_is_said_and_a_restart_goes_on() {
    let _alone = lsmx_testkit::run_alone();
    let points: u64 = (0..8).map(|seed| sweep_faults(seed).unwrap()).sum();
    assert!(points > 200, "only {points} fault points");
}

/// Returns a log of several synced segments. If `clean` is true, the log was also closed.
fn closed_log(clean: bool) -> (MemVfs, Promises) {
    let (vfs, ledger) = (disk(), Ledger::default());
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let ledger_for_wal = Arc::new(ledger.clone());
    let wal = Wal::create(shared, dir(), DB_UID, ledger_for_wal, options(), SeqNo(1)).unwrap();
    let oldest = wal.sync_first_segment().unwrap();
    ledger.change(|promises| promises.oldest = oldest);
    let mut next = 1;
    for _ in 0..12 {
        append(&wal, &ledger, &mut next, 2).unwrap();
    }
    let synced = wal.sync().unwrap().0;
    ledger.change(|promises| promises.synced = synced);
    if clean {
        let mark = wal.close().unwrap();
        ledger.change(|promises| promises.mark = Some(mark));
    }
    assert!(wal.segments().len() > 2);
    if clean {
        // The drop of a closed log removes the preallocated zeros at the ends of the segments.
        drop(wal);
    }
    (vfs.crash(CrashImage::Keep, 0), ledger.now())
}

/// Changes every byte in three ways and truncates every file at every length. Each replay must return the same records
/// as before, or an error that names the file.
fn damage_everything(vfs: &MemVfs, promises: &Promises) -> Result<u64, String> {
    let mut noticed = 0;
    let mut judge = |disk: &MemVfs, path: &Path, what: String| {
        let whole: Vec<u64> = (1..=promises.synced).collect();
        match read_back(disk, promises, RecoveryMode::Strict) {
            Ok((numbers, _)) if numbers == whole => Ok(()),
            Ok((numbers, report)) => {
                Err(format!("{} {what}: {} commits, {report:?}", path.display(), numbers.len()))
            }
            Err(error) => {
                noticed += 1;
                match error.to_string().contains(&*path.to_string_lossy()) {
                    true => Ok(()),
                    false => Err(format!("{} {what}: {error}", path.display())),
                }
            }
        }
    };
    for (path, bytes) in vfs.snapshot_all() {
        for (at, byte) in bytes.iter().enumerate() {
            for mask in [1 << (at % 8), *byte, !*byte] {
                let disk = vfs.crash(CrashImage::Keep, 0);
                disk.flip_bits(&path, at as u64, mask).unwrap();
                judge(&disk, &path, format!("byte {at} xor {mask:#04x}"))?;
            }
            let disk = vfs.crash(CrashImage::Keep, 0);
            disk.truncate(&path, at as u64).unwrap();
            let last = promises
                .named
                .iter()
                .max()
                .is_some_and(|id| path.to_string_lossy().contains(&format!("{id:06}")));
            // If the manifest has no mark, the length of the last segment is unknown.
            if promises.mark.is_some() || !last {
                judge(&disk, &path, format!("cut to {at}"))?;
            }
        }
    }
    Ok(noticed)
}

#[test]
fn every_damaged_byte_and_every_cut_of_a_clean_log_is_noticed() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, promises) = closed_log(true);
    assert!(damage_everything(&vfs, &promises).unwrap() > 1_000);
}

#[test]
fn every_damaged_byte_of_what_was_synced_is_noticed_without_a_clean_close() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, promises) = closed_log(false);
    assert!(damage_everything(&vfs, &promises).unwrap() > 1_000);
}

#[test]
fn a_missing_segment_is_named() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, promises) = closed_log(true);
    for path in vfs.snapshot_all().into_keys() {
        let disk = vfs.crash(CrashImage::Keep, 0);
        disk.remove(&path).unwrap();
        let error = read_back(&disk, &promises, RecoveryMode::Strict).unwrap_err();
        assert!(
            matches!(&error, Error::Missing { path: missing, .. } if *missing == path),
            "{error}"
        );
    }
}

#[test]
fn swapped_copied_and_foreign_segments_are_refused_or_harmless() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, promises) = closed_log(true);
    let files: Vec<(PathBuf, Vec<u8>)> = vfs.snapshot_all().into_iter().collect();
    for (a, _) in &files {
        for (b, bytes) in &files {
            if a != b {
                let disk = vfs.crash(CrashImage::Keep, 0);
                disk.write_all(a, bytes).unwrap();
                let error = read_back(&disk, &promises, RecoveryMode::Strict).unwrap_err();
                assert!(error.to_string().contains(&*a.to_string_lossy()), "{error}");
            }
        }
    }
    // A torn new segment may contain a copy of an older segment. The manifest does not name the new segment, so replay
    // ends before it.
    let disk = vfs.crash(CrashImage::Keep, 0);
    let copy = PathBuf::from("db/000099.wal");
    disk.write_all(&copy, &files[0].1).unwrap();
    let (numbers, report) = read_back(&disk, &promises, RecoveryMode::Strict).unwrap();
    assert!(numbers.iter().copied().eq(1..=promises.synced));
    assert_eq!(report.cut_at, Some((copy, 0)));
    // A torn new segment may also contain a segment of another database. If such a segment replaces a live one, replay
    // returns an error that names it.
    let foreign = MemVfs::new();
    foreign.create_dir(dir()).unwrap();
    let ledger = Arc::new(Ledger::default());
    let vfs_of_foreign: Arc<dyn Vfs> = Arc::new(foreign.clone());
    Wal::create(vfs_of_foreign, dir(), DB_UID + 1, ledger, options(), SeqNo(1)).unwrap();
    let bytes = foreign.read_all(Path::new("db/000001.wal")).unwrap();
    let torn = PathBuf::from("db/000099.wal");
    disk.write_all(&torn, &bytes).unwrap();
    let (numbers, report) = read_back(&disk, &promises, RecoveryMode::Strict).unwrap();
    assert!(numbers.iter().copied().eq(1..=promises.synced));
    assert_eq!(report.cut_at, Some((torn, 0)));
    let live = &files[0].0;
    disk.write_all(live, &bytes).unwrap();
    let error = read_back(&disk, &promises, RecoveryMode::Strict).unwrap_err();
    assert!(error.to_string().contains(&*live.to_string_lossy()), "{error}");
}

#[test]
fn tolerant_mode_keeps_the_prefix_before_the_damage_and_reports_it() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, promises) = closed_log(true);
    for (path, bytes) in vfs.snapshot_all() {
        for at in 0..bytes.len() as u64 {
            let disk = vfs.crash(CrashImage::Keep, 0);
            disk.flip_bits(&path, at, 0x10).unwrap();
            let Ok((numbers, report)) = read_back(&disk, &promises, RecoveryMode::Tolerant) else {
                // Both recovery modes reject a changed uid or version.
                assert!(at < 80, "byte {at}");
                continue;
            };
            assert!(numbers.iter().copied().eq(1..=numbers.len() as u64));
            assert!(report.damage.is_some(), "{} byte {at}", path.display());
            let left = promises.synced - numbers.len() as u64;
            assert!(report.records_beyond <= left && report.records_beyond + 1 >= left);
        }
    }
}

#[test]
fn a_tail_is_cut_and_reported_with_what_lies_beyond() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, ledger) = (disk(), Ledger::default());
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let wal = Wal::create(
        shared,
        dir(),
        DB_UID,
        Arc::new(ledger.clone()),
        WalOptions::default(),
        SeqNo(1),
    )
    .unwrap();
    let oldest = wal.sync_first_segment().unwrap();
    ledger.change(|promises| promises.oldest = oldest);
    let mut next = 1;
    append(&wal, &ledger, &mut next, 1).unwrap();
    wal.sync().unwrap();
    let path = PathBuf::from(format!("db/{oldest:06}.wal"));
    let end = || wal.segments()[0].bytes;
    let cut_at = end();
    append(&wal, &ledger, &mut next, 3).unwrap();
    vfs.flip_bits(&path, cut_at, 1).unwrap();
    let (numbers, report) = read_back(&vfs, &ledger.now(), RecoveryMode::Strict).unwrap();
    assert_eq!(numbers, [1]);
    assert_eq!(report.cut_at, Some((path.clone(), cut_at)));
    assert_eq!(report.records_beyond, 2);
    assert_eq!(report.bytes_cut, end() - cut_at);
    assert_eq!(report.last_seq, SeqNo(1));
}

#[test]
fn a_group_is_one_write_and_a_sync_is_due_by_bytes_or_time() {
    let _alone = lsmx_testkit::run_alone();
    let (vfs, ledger) = (disk(), Ledger::default());
    let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
    let options = WalOptions { sync_every_bytes: 1_000, ..WalOptions::default() };
    let wal =
        Wal::create(shared, dir(), DB_UID, Arc::new(ledger.clone()), options, SeqNo(1)).unwrap();
    wal.sync_first_segment().unwrap();
    assert!(!wal.is_sync_due(5));
    let before = vfs.operations();
    let mut next = 1;
    append(&wal, &ledger, &mut next, 4).unwrap();
    assert_eq!(vfs.operations(), before + 1);
    assert!(!wal.is_sync_due(10));
    assert!(wal.is_sync_due(1_000_010));
    assert_eq!(wal.sync().unwrap(), SeqNo(4));
    assert!(!wal.is_sync_due(9_000_000));
    append(&wal, &ledger, &mut next, 30).unwrap();
    assert!(wal.is_sync_due(9_000_001));
    let operations = vfs.operations();
    wal.sync().unwrap();
    wal.sync().unwrap();
    // The first call syncs and writes a mark. The second call has nothing to do.
    assert_eq!(vfs.operations(), operations + 2);
    assert_eq!(wal.durable_seq(), SeqNo(34));
}
