//! For each deliberate bug of the engine, the check that detects it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::harness::coverage::Coverage;
use crate::harness::crash_history;
use crate::harness::cursors::cursor_moves_equal_the_model;
use crate::harness::followers;
use crate::harness::gate::{self, Gate, each, returns_while_blocked};
use crate::harness::guards::{guards_during_large_batches, guards_older_than_the_memtables};
use crate::harness::history::draw_commit;
use crate::harness::liveness::{self, Kind, Mode};
use crate::harness::log_archives;
use crate::harness::log_crashes::enumerate_crashes;
use crate::harness::oracle::CommitKind;
use crate::harness::recorder::Sampling;
use crate::harness::transactions::{locked_increments, random_transactions};
use crate::harness::workload::{Faults, Plan, play};
use crate::harness::{
    Outcome, clock, closing, compaction_filters, delete_persistence, descriptors, device_hangs,
    disk_use, expiry, failed_open, identity, lost_log, memory, missing_store, options, oracle,
    quarantine, queues, range_tombstones, writers,
};
use lsmx::compaction::{CompactionPolicy, Debt, Job, Level, RunningJobs, TreeShape};
use lsmx::env::{Background, Env};
use lsmx::internals::cache::BlockCache;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::table::{Table, TableIdentity};
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, Error, Event, EventListener, KeyspaceOptions, Options, PolicySpec, SeqNo,
    WriteBatch,
};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_stress::{Detection, format_detections};
use lsmx_testkit::{TestRng, mix_seeds, seed};

/// A function of a seed that returns an error if it detects a bug.
type Check = fn(u64) -> Outcome;

/// Maximum number of runs of a check with an enabled bug. If all of them pass, the bug counts as missed. A run finds some
/// bugs with a probability of only 2 %.
const TRIES: u64 = 2_000;
/// Number of runs of a check without a bug, all of which must pass.
const PASSES: u64 = 2;

/// Returns the name of the check that must detect a bug, and the check.
fn check_for(bug: Failpoint) -> (&'static str, Check) {
    match bug {
        Failpoint::WalSyncSkipped
        | Failpoint::WalOlderSegmentUnsynced
        | Failpoint::DirectoryNotSynced
        | Failpoint::EditBeforeTableSync
        | Failpoint::DirectAppendsNotSynced
        | Failpoint::FlushWithoutWalSync
        | Failpoint::InputsDeletedEarly
        | Failpoint::SeqReused
        | Failpoint::FileNumberReused
        | Failpoint::FileNumbersNotReserved
        | Failpoint::EditWithoutWalSync
        | Failpoint::CloneSplit
        | Failpoint::KeyspaceIdReused
        | Failpoint::CheckpointUnsynced
        | Failpoint::TornTailRefused
        | Failpoint::BufferedNotLogged
        | Failpoint::ReplaySkipsUnflushed
        | Failpoint::ReplaySkipsRangeDeletes
        | Failpoint::TokenNotCommitted
        | Failpoint::PointerBeforeValue
        | Failpoint::TornRecordReplayed
        | Failpoint::SegmentDeletedEarly => ("crashes", crashes),
        Failpoint::TombstoneDroppedEarly
        | Failpoint::SnapshotVersionDropped
        | Failpoint::PrefixOfTombstoneOmitted
        | Failpoint::FilterMissesKey
        | Failpoint::SpanSkippedByFilter
        | Failpoint::SpanIgnoresSnapshot
        | Failpoint::SpanLostAtCut
        | Failpoint::SpanLostAtSubcompaction
        | Failpoint::KeyLostAtSubcompaction
        | Failpoint::SpanDroppedEarly
        | Failpoint::CoveredFileDroppedEarly
        | Failpoint::OperandsFoldedOverSnapshot
        | Failpoint::FoldIgnoresBaseValue
        | Failpoint::FoldedValueStale
        | Failpoint::DeleteMarkerSkipped
        | Failpoint::LiveBlobDeleted
        | Failpoint::OperandsReordered
        | Failpoint::CacheKeyReused
        | Failpoint::OperandLostAtSplit
        | Failpoint::DropNotLogged
        | Failpoint::RenameNotLogged
        | Failpoint::RenameKeepsOldName
        | Failpoint::IngestSkipsFlush
        | Failpoint::IngestIgnoresSnapshot
        | Failpoint::BatchSplit => ("contents", contents),
        Failpoint::FilterIgnoresSnapshots
        | Failpoint::FilterUncoversOlderVersion
        | Failpoint::FilterErrorRemovesValue => {
            ("compaction filters", compaction_filters::history_equals_the_model)
        }
        Failpoint::RangeReadsNotValidated
        | Failpoint::OwnWritesUnseen
        | Failpoint::ReadsValidatedFromCommit
        | Failpoint::GuardIgnoresIngest
        | Failpoint::UnpublishedRangesIgnored
        | Failpoint::FlushedRangesIgnored
        | Failpoint::LockedReadsNotChecked
        | Failpoint::QueuedRangesNotChecked => ("transactions", random_transactions),
        Failpoint::FollowerFilesDeleted
        | Failpoint::FollowerReadsUnpinned
        | Failpoint::FollowerShowsUnsynced
        | Failpoint::FollowerSkipsManifestCheck => {
            ("followers", followers::history_equals_the_model)
        }
        Failpoint::ArchiveReturnsUnsynced
        | Failpoint::ArchiveIgnoresStructure
        | Failpoint::HeldSegmentDeleted
        | Failpoint::ArchiveGapIgnored => {
            ("archives of the log", log_archives::history_equals_the_model)
        }
        Failpoint::KeyNotLocked | Failpoint::DeadlockNotFound => ("locks", locked_increments),
        Failpoint::ExpiryUncoversOlderVersion
        | Failpoint::SnapshotIgnoresItsTime
        | Failpoint::OperandsFoldedOntoExpiringBase
        | Failpoint::ExpiryLostAtSeparation
        | Failpoint::CloneLosesExpiry => {
            ("histories of expiring values", expiry::history_equals_the_model)
        }
        Failpoint::CoveredTombstoneDropped
        | Failpoint::LogNotEmptied
        | Failpoint::GarbageAgeIgnored
        | Failpoint::VoidOperandsKept
        | Failpoint::StoreLogNotReplaced => {
            ("traces of deleted values", delete_persistence::history_leaves_no_trace)
        }
        Failpoint::UpdateWithoutGuard => ("updates", updates),
        Failpoint::SuperVersionChangeIgnored => ("updates over a seal", updates_over_a_seal),
        Failpoint::GuardScansCommit => ("guards during large batches", guards_during_large_batches),
        Failpoint::AdmissionIgnoresReserved => ("batches in flight", memory::batches_in_flight),
        Failpoint::DroppedMemtableCounted => ("drops among folds", memory::drops_among_folds),
        Failpoint::GuardHistoryForgotten => {
            ("guards of old reads", guards_older_than_the_memtables)
        }
        Failpoint::FollowerSyncForgotten
        | Failpoint::CommitPublishedEarly
        | Failpoint::WakeUpLost => ("writers", |seed| writers::play(seed).map(drop)),
        Failpoint::SnapshotInTwoSteps => ("snapshots among writers", snapshots_among_writers),
        Failpoint::NewestFlushedFirst => ("contents among threads", contents_among_threads),
        Failpoint::AppendErrorIgnored => ("crashes after a failed append", |seed| {
            crashes_after(seed, Fault::ShortWrite(Errno::Io), VfsCall::Append, ".wal")
        }),
        Failpoint::SyncRetried => ("crashes after a failed sync", |seed| {
            crashes_after(seed, Fault::Error(Errno::Io), VfsCall::Sync, ".wal")
        }),
        Failpoint::UncertainTablesDeleted => ("crashes after a failed edit", |seed| {
            crashes_after(seed, Fault::Error(Errno::Io), VfsCall::Sync, "MANIFEST")
        }),
        Failpoint::ReadOnlyNotCleared => {
            ("failing writes", |seed| failing(seed, &[VfsCall::Append, VfsCall::Sync], 100))
        }
        Failpoint::BackgroundErrorNotReported => ("a failing compaction", failing_compaction),
        Failpoint::ReadErrorIsNotFound => {
            ("failing reads", |seed| failing(seed, &[VfsCall::Read], 1_000))
        }
        Failpoint::OpenErrorCreatesDatabase => {
            ("failing questions", |seed| failing(seed, &[VfsCall::Exists, VfsCall::List], 10))
        }
        Failpoint::CursorKeepsPosition => ("moves of cursors", cursor_moves_equal_the_model),
        Failpoint::IteratorContinuesAfterError => ("iterators that fail", iterators_that_fail),
        Failpoint::ReadDuringCloseNamesFile => {
            ("reads over a close", closing::reads_over_a_close_return_values_or_closed)
        }
        Failpoint::StoreFilesOutsideBudget | Failpoint::JobFilesOutsideBudget => {
            ("few descriptors", descriptors::few_descriptors_are_refused_or_enough)
        }
        Failpoint::OperandQuarantineNotCleared => {
            ("an unreadable bucket", quarantine::readable_bucket_leaves_quarantine)
        }
        Failpoint::QuarantinedBlobRead => {
            ("an unreadable blob file", quarantine::quarantined_blob_file_is_not_read)
        }
        Failpoint::RetriedWithoutPause => ("a full disk", full_disk),
        Failpoint::ReserveNotKept => {
            ("a full disk and its reserve", disk_use::full_disk_takes_the_reserve)
        }
        Failpoint::ReserveUnbounded => ("bounds of the reserve", disk_use::reserve_is_bounded),
        Failpoint::ReserveRequired => {
            ("a reserve that cannot be made", disk_use::reserve_is_dispensable)
        }
        Failpoint::IdleMemtablePinsLog => ("an idle memtable", disk_use::idle_memtable_is_flushed),
        Failpoint::RemovalNotAwaited => {
            ("an idle database", disk_use::idle_database_removes_nothing)
        }
        Failpoint::PanicStrandsGroup
        | Failpoint::PanicEndsThread
        | Failpoint::PanicNotConverted => ("panics of the file system", panics_of_the_file_system),
        Failpoint::LengthTrusted => ("bytes that end early", bytes_that_end_early),
        Failpoint::ObservationTakesLogLock => {
            ("observation while a device hangs", hanging_observation)
        }
        Failpoint::DeadlineIgnoresDevice => {
            ("closes while a device hangs", device_hangs::close_keeps_deadline)
        }
        Failpoint::FollowerExceedsDeadline => {
            ("writes behind a device that hangs", device_hangs::follower_keeps_deadline)
        }
        Failpoint::ReentryUnchecked => ("calls of a listener", calls_of_a_listener),
        Failpoint::EventsDuringLead => {
            ("a listener that waits for a writer", listener_waits_for_writer)
        }
        Failpoint::FlushWaitsForStore => ("flushes while an operand store hangs", |_| {
            device_hangs::flushes_while_store_hangs("lsmx-compact")
        }),
        Failpoint::WalDamageTreatedAsTail => ("damage in the log", damage_in_the_log),
        Failpoint::ChecksumWithoutLocation => ("foreign blocks", foreign_blocks),
        Failpoint::ClockJumpTrusted => {
            ("a clock that jumps", clock::jump_of_a_running_database_is_harmless)
        }
        Failpoint::TimeOverflows => ("the end of time", clock::time_near_its_end_is_harmless),
        Failpoint::OutputOverwritesEngineFile => {
            ("names of outputs", identity::output_over_an_engine_file_is_refused)
        }
        Failpoint::StrayFileNumberCounts => {
            ("stray files", identity::stray_file_with_an_impossible_number_is_ignored)
        }
        Failpoint::CheckpointKeepsUid => {
            ("segments of a checkpoint", identity::segment_of_a_checkpoint_is_foreign)
        }
        Failpoint::CorruptReadNotRepeated => ("a transient bad read", transient_bad_read),
        Failpoint::DamagedInputsStayBusy => ("an unreadable file", unreadable_file),
        Failpoint::GrownTailTreatedAsDamage | Failpoint::OldestSegmentUnsynced => {
            ("crashes of the log", |seed| enumerate_crashes(seed, 120).map(drop))
        }
        Failpoint::StallUnnoticed => ("a policy that stalls", stalling_policy),
        Failpoint::HiddenSpanNumbersKept => (
            "a flush of nested range deletes",
            range_tombstones::flush_of_nested_range_deletes_is_linear,
        ),
        Failpoint::DamagedSpansFailAllScans => (
            "damaged range tombstones",
            range_tombstones::damaged_range_tombstones_fail_overlapping_reads_only,
        ),
        Failpoint::FailedOpenLeavesFiles => {
            ("opens that fail", failed_open::failed_open_leaves_no_files)
        }
        Failpoint::IntactSegmentBlamed => {
            ("missing log segments", lost_log::missing_segment_is_named)
        }
        Failpoint::DryRunMissesCommits => {
            ("dry runs of repairs", lost_log::dry_run_reports_the_losses_of_the_repair)
        }
        Failpoint::SegmentCutAfterClose => {
            ("a handle dropped after close", closing::closed_database_changes_no_file)
        }
        Failpoint::BlockedDropCountsAsDone => ("late snapshots", queues::late_snapshot_keeps_files),
        Failpoint::OneFlushThread => ("flushes while a flush to a store hangs", |_| {
            device_hangs::flushes_while_store_hangs("lsmx-flush")
        }),
        Failpoint::FlushesAfterDamageIgnored => {
            ("ends of keyspaces", lost_log::each_keyspace_is_complete_as_reported)
        }
        Failpoint::KeptLogRemoved | Failpoint::KeptLogDeliveredTwice => {
            ("a missing operand store", missing_store::operands_wait_for_their_store)
        }
        Failpoint::DroppedFlushStaysCounted => {
            ("common prefixes", lost_log::common_prefix_is_restored_or_refused)
        }
    }
}

fn plan(seed: u64, faults: Faults) -> Plan {
    let mut rng = TestRng::new(seed);
    Plan {
        name: seed.to_string(),
        seed,
        steps: 80 + rng.below(120),
        reopens: true,
        policy: options::draw_policy(&mut rng),
        background: Background::Inline,
        faults,
        sampling: Sampling::NONE,
    }
}

/// Runs a random workload and checks disk images of it. `chance` of a million images are checked.
fn images(plan: Plan, chance: u64) -> Outcome {
    let coverage = Arc::new(Coverage::default());
    let plan = Plan { sampling: Sampling::Chance(chance), ..plan };
    let played = play(&plan, &coverage)?;
    for crash in &played.crashes {
        oracle::check(crash, &played.histories[crash.promises.epoch], &coverage)
            .map_err(|what| oracle::tell(&plan.name, crash, &what))?;
    }
    Ok(())
}

fn crashes(seed: u64) -> Outcome {
    images(plan(seed, Faults::None), 15_000)
}

fn contents(seed: u64) -> Outcome {
    play(&plan(seed, Faults::None), &Arc::default()).map(drop)
}

/// Several memtables wait for a flush at the same time, and flushes overlap compactions.
fn contents_among_threads(seed: u64) -> Outcome {
    let background = Background::Stepped { seed, workers: 2 };
    // The run is long, because few runs ever have two memtables that wait for a flush.
    let plan = Plan { background, steps: 500, ..plan(seed, Faults::None) };
    play(&plan, &Arc::default()).map(drop)
}

/// One of the first matching calls fails. Disk images are checked before and after this failure.
fn crashes_after(seed: u64, fault: Fault, call: VfsCall, file: &'static str) -> Outcome {
    let k = TestRng::new(seed).below(40);
    let rule = FaultRule::new(fault).for_calls(&[call]).path_contains(file).nth(k);
    images(plan(seed, Faults::By(rule)), 5_000)
}

/// One of the first `within` calls of the given kinds fails.
fn failing(seed: u64, calls: &[VfsCall], within: u64) -> Outcome {
    let k = TestRng::new(seed).below(within);
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(calls).nth(k);
    play(&plan(seed, Faults::By(rule)), &Arc::default()).map(drop)
}

/// Writes to a small tree while reads of one table return altered bytes. If `times` is `None`, every later read is
/// altered, otherwise one read.
fn altered_reads(seed: u64, times: Option<u64>) -> Result<Db, String> {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
    let tuning = KeyspaceOptions::default().memtable_bytes(2 << 10).block_bytes(256);
    let options = Options::default().background(Background::Inline).seed(seed);
    let options = options.keyspace_defaults(tuning.table_bytes(2 << 10));
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(faults.clone()))).map_err(failed)?;
    let mut rng = TestRng::new(seed);
    let mut write = |count: u64| -> Outcome {
        for _ in 0..count {
            match db.put(rng.bytes(6), [7; 60]) {
                Err(lsmx::Error::Background { .. }) if times.is_none() => {}
                done => done.map_err(failed)?,
            }
        }
        Ok(())
    };
    write(300)?;
    let table =
        disk.paths().into_iter().rfind(|path| path.extension().is_some_and(|it| it == "sst"));
    let table = table.ok_or("nothing was flushed")?.to_string_lossy().into_owned();
    let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]).path_contains(&table);
    faults.add_rule(if times.is_some() { rule.once() } else { rule.from_then_on() });
    write(2_000)?;
    if faults.fired_counts().is_empty() {
        return Err("no job read the table".to_owned());
    }
    Ok(db)
}

fn transient_bad_read(seed: u64) -> Outcome {
    let db = altered_reads(seed, Some(1))?;
    db.wait_idle().map_err(failed)
}

/// Reads of one table always return altered bytes. Writes continue, and the number of runs in L0 must stay bounded.
fn unreadable_file(seed: u64) -> Outcome {
    let db = altered_reads(seed, None)?;
    let levels = &db.metrics().keyspaces["default"].levels;
    let runs = levels.first().map_or(0, |level| level.runs);
    let refused = (0..20u64).filter(|number| db.put(number.to_be_bytes(), "v").is_err()).count();
    match (runs, refused) {
        (0..=20, 0..=10) => Ok(()),
        _ => Err(format!("L0 holds {runs} runs, {refused} of 20 writes are refused")),
    }
}

/// A compaction policy that stops writes at three runs and never picks a job.
#[derive(Debug)]
struct Stalling;

impl CompactionPolicy for Stalling {
    fn name(&self) -> &str {
        "stalling"
    }

    fn pick(&self, _: &TreeShape, _: &RunningJobs) -> Option<Job> {
        None
    }

    fn debt(&self, _: &TreeShape, _: &RunningJobs) -> Debt {
        Debt::default()
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        shape.runs_of(Level(0)).len() >= 3
    }
}

fn stalling_policy(seed: u64) -> Outcome {
    let tuning = KeyspaceOptions::default().policy(Arc::new(Stalling));
    let options = Options::default().background(Background::Inline).seed(seed);
    let options = options.keyspace_defaults(tuning);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(MemVfs::new()))).map_err(failed)?;
    for number in 0..3u64 {
        db.put(number.to_be_bytes(), "v").map_err(failed)?;
        db.flush().map_err(failed)?;
    }
    match (db.put("k", "v"), db.wait_idle()) {
        (Err(lsmx::Error::PolicyStalled { .. }), Err(lsmx::Error::PolicyStalled { .. })) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// A background compaction cannot create its tables. The next write must return the failure.
fn failing_compaction(seed: u64) -> Outcome {
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk), seed);
    let options = lsmx::Options::default().background(Background::Inline).seed(seed);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(faults.clone()))).map_err(failed)?;
    let keyspace = db.default_keyspace();
    keyspace
        .set_policy("tiering(T=20)".parse::<lsmx::PolicySpec>().map_err(|why| format!("{why}"))?)
        .map_err(failed)?;
    for _ in 0..12 {
        keyspace.put("a", "1").map_err(failed)?;
        keyspace.put("z", "1").map_err(failed)?;
        db.flush().map_err(failed)?;
    }
    let create =
        FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Create]).path_contains(".sst");
    faults.add_rule(create.from_then_on());
    // With this policy the tree stays below the hard stop, at which every write fails.
    keyspace
        .set_policy("tiering(T=10)".parse::<lsmx::PolicySpec>().map_err(|why| format!("{why}"))?)
        .map_err(failed)?;
    let _ = db.wait_idle();
    if faults.fired_counts().is_empty() {
        return Err("no compaction was tried".to_owned());
    }
    match keyspace.put("k", "v") {
        Err(lsmx::Error::Background { .. }) => Ok(()),
        other => Err(format!("the write after it: {other:?}")),
    }
}

fn failed(error: lsmx::Error) -> String {
    format!("{error:?}")
}

/// Flips one bit of the log of a killed process. The open must either fail or return all synced commits.
fn damage_in_the_log(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options::draw(&mut rng, Background::Inline))?;
    let keyspaces = [db.default_keyspace()];
    let count = 3 + rng.below(5);
    for number in 1..=count {
        let commit = draw_commit(&mut rng, number, 1, db.env().now_us());
        let kind = CommitKind::random(&mut rng);
        oracle::write(&db, &keyspaces, &commit, kind, true).map_err(failed)?;
    }
    // The test simulates a killed process. After a power loss, the mark of the last sync may be missing, and recovery
    // cannot distinguish damage after the previous mark from an incomplete commit.
    let crashed = disk.crash(CrashImage::Keep, seed);
    let logs: Vec<_> =
        crashed.paths().into_iter().filter(|p| p.to_string_lossy().ends_with(".wal")).collect();
    let path = rng.choose(&logs).clone();
    let bytes = crashed.read_all(&path).map_err(|error| error.to_string())?.len() as u64;
    let flipped = crashed.flip_bits(&path, rng.below(bytes), 1 << rng.below(8));
    flipped.map_err(|error| error.to_string())?;
    let before = crashed.snapshot_all();
    match oracle::open(&crashed, options::draw(&mut rng, Background::Inline)) {
        Ok(db) => match oracle::counter(&db)? {
            found if found == count => Ok(()),
            found => Err(format!("{found} of {count} synced commits are there, and no word of it")),
        },
        Err(_) if crashed.snapshot_all() == before => Ok(()),
        Err(_) => Err("an opening that was refused has changed something".to_owned()),
    }
}

/// Two threads append to a value by updates, and a third thread by merges. A merge may be committed between the read
/// and the write of an update. No append may be lost.
fn updates(seed: u64) -> Outcome {
    const TIMES: usize = 12;
    let disk = MemVfs::new();
    let mut rng = TestRng::new(seed);
    let background = Background::Stepped { seed, workers: 1 };
    let db = oracle::open(&disk, options::draw(&mut rng, background))?;
    let keyspace = db.default_keyspace();
    let longer = |old: Option<&[u8]>| [old.unwrap_or_default(), b"u"].concat();
    let env = db.env();
    let threads: Result<Vec<_>, _> = (0..3)
        .map(|thread| {
            let keyspace = keyspace.clone();
            let body = move || {
                for _ in 0..TIMES {
                    match thread {
                        0 => keyspace.merge("n", "m").expect("a merge"),
                        _ => drop(keyspace.fetch_update("n", longer).expect("an update")),
                    }
                }
            };
            env.spawn("lengthener", body)
        })
        .collect();
    for thread in threads.map_err(|error| error.to_string())? {
        env.join(thread).map_err(|_| "a thread panicked".to_owned())?;
    }
    match keyspace.get("n").map_err(failed)? {
        Some(value) if value.len() == 3 * TIMES => Ok(()),
        found => Err(format!("{found:?} after {TIMES} additions by each of three")),
    }
}

/// One thread fills the memtable and then replaces a value, which seals the memtable. Another thread updates the value
/// at the same time. In either order, the last value starts with the replacement.
fn updates_over_a_seal(seed: u64) -> Outcome {
    let tuning = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = oracle::open(&MemVfs::new(), options.keyspace_defaults(tuning))?;
    let keyspace = db.default_keyspace();
    for round in 0..20 {
        let replacement = format!("{round};");
        let (writer, value) = (db.clone(), replacement.clone());
        let replace = move || {
            writer.put("other", [0; 2 << 10]).expect("a put");
            writer.put("k", value).expect("a put");
        };
        let thread = db.env().spawn("writer", replace).map_err(|error| error.to_string())?;
        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"+"].concat();
        keyspace.fetch_update("k", append).map_err(failed)?;
        db.env().join(thread).map_err(|_| "a thread panicked".to_owned())?;
        match keyspace.get("k").map_err(failed)? {
            Some(value) if value.starts_with(replacement.as_bytes()) => {}
            found => return Err(format!("{found:?} after the value {replacement:?} was put")),
        }
    }
    Ok(())
}

/// Each commit of the writers adds one number while another thread takes snapshots. Each snapshot must contain exactly
/// the commits up to its sequence number, also during flushes and compactions.
fn snapshots_among_writers(seed: u64) -> Outcome {
    const WRITERS: u8 = 2;
    const TIMES: u64 = 60;
    let disk = MemVfs::new();
    let tuning = KeyspaceOptions::default().memtable_bytes(1 << 10);
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = oracle::open(&disk, options.keyspace_defaults(tuning))?;
    let (keyspace, begun) = (db.default_keyspace(), db.snapshot().seq().0);
    let mut bodies: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    for writer in 0..WRITERS {
        let keyspace = keyspace.clone();
        bodies.push(Box::new(move || {
            for number in 1..=TIMES {
                let value = [number.to_le_bytes(); 16].concat();
                keyspace.put([writer], value).expect("a put");
            }
        }));
    }
    let looker = db.clone();
    bodies.push(Box::new(move || {
        for _ in 0..TIMES {
            let view = looker.snapshot();
            let count = |writer| match view.get(&keyspace, [writer]).expect("a get") {
                Some(value) => u64::from_le_bytes(value[..8].try_into().expect("a number")),
                None => 0,
            };
            assert_eq!((0..WRITERS).map(count).sum::<u64>(), view.seq().0 - begun);
        }
    }));
    let env = db.env();
    let threads: Result<Vec<_>, _> =
        bodies.into_iter().map(|body| env.spawn("counter", body)).collect();
    for thread in threads.map_err(|error| error.to_string())? {
        env.join(thread).map_err(|_| "a thread panicked".to_owned())?;
    }
    Ok(())
}

/// Two databases differ only in their values. The data blocks of one database are copied over those of the other. A
/// lookup must not return a value of the wrong database.
fn foreign_blocks(seed: u64) -> Outcome {
    let make = |seed: u64, value: u8| -> Outcome<MemVfs> {
        let disk = MemVfs::new();
        let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 20).block_bytes(128);
        let options = Options::default().background(Background::Inline).seed(seed);
        let db = oracle::open(&disk, options.keyspace_defaults(keyspace))?;
        let mut batch = WriteBatch::new();
        for number in 0..64u8 {
            batch.put(&db.default_keyspace(), [number], [value; 20]);
        }
        db.write(batch, Durability::Sync).map_err(failed)?;
        db.close(None).map_err(failed)?;
        Ok(disk)
    };
    let (disk, other) = (make(seed, b'a')?, make(seed + 1, b'b')?);
    let (path, table) = only_table(&disk)?;
    let data = usize::try_from(table.properties().data_bytes).map_err(|e| e.to_string())?;
    let (foreign_path, _) = only_table(&other)?;
    let read = |disk: &MemVfs, path: &Path| disk.read_all(path).map_err(|e| e.to_string());
    let foreign = read(&other, &foreign_path)?;
    disk.overwrite(&path, 0, &foreign[..data]).map_err(|error| error.to_string())?;
    let db = match oracle::open(&disk, Options::default().background(Background::Inline)) {
        Ok(db) => db,
        Err(_) => return Ok(()),
    };
    match Db::get(&db, [7]) {
        Ok(Some(value)) if value[..] == [b'a'; 20] => Ok(()),
        Ok(_) => Err("a block of another database is taken for one of this".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Returns the path and the reader of the only table in a closed database.
fn only_table(disk: &MemVfs) -> Outcome<(std::path::PathBuf, Table)> {
    let loaded = Manifest::load(disk, oracle::dir()).map_err(failed)?;
    let files = loaded.state.keyspaces.values().flat_map(|keyspace| keyspace.tree.files());
    let file = files.last().ok_or("there is no table")?;
    let identity = TableIdentity {
        id: file.id,
        bytes: file.bytes,
        uid: file.uid,
        checksum: file.checksum,
        seq_largest: SeqNo(file.seq_largest),
    };
    let path = FileName::Table(file.id.0).in_dir(oracle::dir());
    let table = Table::open(disk, &path, &identity, &BlockCache::new(0)).map_err(failed)?;
    Ok((path, table))
}

/// One read of an iterator fails. After that, the iterator must return only errors.
fn iterators_that_fail(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
    let tuning = options::draw_keyspace(&mut rng).memtable_bytes(1 << 20);
    let options = Options::default().background(Background::Inline).block_cache_bytes(0);
    let options = options.keyspace_defaults(tuning);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))).map_err(failed)?;
    for number in 0..100u8 {
        db.put([number], [number; 90]).map_err(failed)?;
    }
    db.flush().map_err(failed)?;
    let k = rng.below(8);
    disk.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]).nth(k));
    let mut range = db.default_keyspace().iter();
    let backward = rng.is_one_in(2);
    let mut step = || if backward { range.next_back() } else { range.next() };
    while let Some(entry) = step() {
        if entry.is_err() {
            return match step() {
                Some(Err(_)) => Ok(()),
                after => Err(format!("after an error an iterator gives {after:?}")),
            };
        }
    }
    Ok(())
}

/// Compactions fail because the disk is full. The engine must retry them after a pause and not in a busy loop.
fn full_disk(seed: u64) -> Outcome {
    const TRIES_MAX: u64 = 20;
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), seed);
    let tuning = |policy: &str| -> Outcome<KeyspaceOptions> {
        let policy: PolicySpec = policy.parse().map_err(|error| format!("{error}"))?;
        Ok(KeyspaceOptions::default().memtable_bytes(1 << 10).policy(policy))
    };
    let options = Options::default().background(Background::Inline).seed(seed);
    let options = options.keyspace_defaults(tuning("tiering(T=20)")?);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))).map_err(failed)?;
    for number in 0..60u64 {
        db.put((number * 7_919 % 40).to_be_bytes(), [1; 60]).map_err(failed)?;
    }
    db.flush().map_err(failed)?;
    let tries = Arc::new(AtomicU64::new(0));
    // A busy loop would block this thread. After too many attempts, the hook therefore ends the fault.
    let (counted, emptied) = (Arc::clone(&tries), disk.clone());
    disk.set_delay_hook(Some(Arc::new(move |_, _| {
        if counted.fetch_add(1, Ordering::Relaxed) >= TRIES_MAX {
            emptied.clear_rules();
        }
    })));
    disk.add_rule(FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Create]).chance(1.0));
    let full = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(&[VfsCall::Create]);
    disk.add_rule(full.path_contains(".sst").from_then_on());
    db.keyspace("default", tuning("full")?).map_err(failed)?;
    match (db.wait_idle(), db.health().read_only) {
        _ if tries.load(Ordering::Relaxed) > TRIES_MAX => Err("it spins".to_owned()),
        (_, Some(cause)) => Err(format!("{cause:?}")),
        (Ok(()), None) => Err("nobody is told that the disk is full".to_owned()),
        (Err(_), None) => Ok(()),
    }
}

/// A file system call panics. Every call must return, the reported cause must name the file system, and `resume` must
/// allow writes again.
fn panics_of_the_file_system(seed: u64) -> Outcome {
    let calls = [VfsCall::Append, VfsCall::Sync, VfsCall::Create, VfsCall::Remove];
    let call = *TestRng::new(seed).choose(&calls);
    liveness::play(Kind::VfsPanic { call }, Mode::Stepped, seed, Duration::from_secs(60)).map(drop)
}

/// A panic of a file system call reaches the commit pipeline or a job, because the guard of the file system is
/// disabled. The cause need not be named, but no call may hang.
fn panics_that_reach_the_engine(seed: u64) -> Outcome {
    let hangs = |what: &String| ["more steps", "hangs"].iter().any(|text| what.contains(text));
    // The calls that a commit leader makes.
    let call = *TestRng::new(seed).choose(&[VfsCall::Append, VfsCall::Sync]);
    let played =
        liveness::play(Kind::VfsPanic { call }, Mode::Stepped, seed, Duration::from_secs(60));
    played.map(drop).or_else(|what| if hangs(&what) { Err(what) } else { Ok(()) })
}

/// Truncated files and blocks are rejected without a panic.
fn bytes_that_end_early(seed: u64) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options::draw(&mut rng, Background::Inline))?;
    let keyspaces = [db.default_keyspace()];
    for number in 1..=20 {
        let commit = draw_commit(&mut rng, number, 1, db.env().now_us());
        let kind = CommitKind::random(&mut rng);
        oracle::write(&db, &keyspaces, &commit, kind, false).map_err(failed)?;
    }
    let seeds = lsmx_testkit::engine::seeds_from_files(&disk.snapshot_all());
    for target in lsmx_testkit::engine::TARGETS {
        let inputs = seeds.inputs(target.name);
        if !inputs.is_empty() {
            let input = rng.choose(inputs);
            let len = usize::try_from(rng.below(input.len() as u64 + 1)).unwrap_or(0);
            target.run(&input[..len]);
        }
    }
    Ok(())
}

/// Calls a function at each event.
struct Listening<F>(F);

impl<F: Fn(&Event) + Send + Sync> EventListener for Listening<F> {
    fn on_event(&self, event: &Event) {
        (self.0)(event);
    }
}

/// A listener calls `flush` on the thread that runs flushes. The call must return [`Error::Reentrant`].
fn calls_of_a_listener(_: u64) -> Outcome {
    let (handles, received) = channel::<Db>();
    let (answers, answer) = channel();
    let shared = std::sync::Mutex::new((received, answers));
    let listener = Listening(move |event: &Event| {
        let shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(event, Event::FlushBegin(_))
            && let Ok(db) = shared.0.recv()
        {
            let _ = shared.1.send(db.flush());
        }
    });
    let options = Options::default().listener(Arc::new(listener));
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(MemVfs::new()))).map_err(failed)?;
    db.put("key", "value").map_err(failed)?;
    handles.send(db.clone()).map_err(|error| error.to_string())?;
    drop(handles);
    // The call runs on its own thread. If it hangs, the test abandons the thread.
    let env = db.env().clone();
    env.spawn("flush", move || drop(db.flush())).map_err(|error| error.to_string())?;
    match answer.recv_timeout(gate::patience()) {
        Ok(Err(Error::Reentrant { .. })) => Ok(()),
        Ok(result) => Err(format!("the call of a listener returns {result:?}")),
        Err(_) => Err("the call of a listener hangs".to_owned()),
    }
}

/// A write fails, and the listener that receives the failure waits until the next write returns.
fn listener_waits_for_writer(_: u64) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Append], ".wal"), "");
    let (returned, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let late = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&late);
    let listener = Listening(move |event: &Event| {
        if matches!(event, Event::ReadOnly(_)) {
            let wait = wait.lock().unwrap_or_else(PoisonError::into_inner);
            if wait.recv_timeout(gate::patience()) == Err(RecvTimeoutError::Timeout) {
                noted.store(1, Ordering::Relaxed);
            }
        }
    });
    let options = Options::default().listener(Arc::new(listener));
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))).map_err(failed)?;
    disk.add_rule(
        FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]).path_contains(".wal"),
    );
    gate.shut();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            db.default_keyspace().with_write_options(Durability::Sync).put("leader", "value")
        });
        gate.wait_until_blocked(1);
        scope.spawn(|| {
            let _returned = returned;
            db.put("next", "value")
        });
        // Waits until the second write is queued behind the first.
        while db.metrics().commits.behind_sync == 0 {
            std::thread::yield_now();
        }
        gate.open();
    });
    match late.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err("a write waits for a listener".to_owned()),
    }
}

/// `metrics` must return while an append to the log hangs.
fn hanging_observation(_: u64) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Append], ".wal"), "");
    let db = Db::open(oracle::DIR, Options::default().vfs(Arc::new(disk))).map_err(failed)?;
    let hanging = || drop(db.put("key", "value"));
    returns_while_blocked(&gate, hanging, || drop(db.metrics()))
}

/// Runs a check with up to `tries` seeds. Returns the number of the first failed run and its error.
fn found(check: Check, seed: u64, tries: u64) -> Option<(u64, String)> {
    (0..tries).find_map(|number| {
        // A panic also counts as detection, because debug assertions detect bugs too.
        let tried = std::panic::catch_unwind(|| check(mix_seeds(seed, number) >> 16));
        match tried {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some((number, what)),
            Err(_) => Some((number, "a panic".to_owned())),
        }
    })
}

#[test]
fn every_deliberate_bug_is_found() {
    let _alone = lsmx_testkit::run_alone();
    let seed = seed();
    let clock = Env::default();
    let (mut caught, mut missed) = (Vec::new(), Vec::new());
    let mut passed = BTreeSet::new();
    for &bug in Failpoint::ALL {
        let (check, by) = check_for(bug);
        failpoint::enable(bug);
        let start_ns = clock.monotonic_ns();
        let failed = found(by, seed, TRIES);
        let ms = (clock.monotonic_ns() - start_ns) / 1_000_000;
        failpoint::disable();
        match failed {
            Some((number, what)) => {
                caught.push(Detection { failpoint: bug, check, runs: number + 1, ms });
                let what: String = what.chars().take(150).collect();
                println!("{}: at try {}: {what}", bug.name(), number + 1);
            }
            None => missed.push(bug.name()),
        }
        if passed.insert(check)
            && let Some((_, what)) = found(by, seed, PASSES)
        {
            panic!("the check {check:?} fails without a bug: {what}");
        }
    }
    failpoint::enable(Failpoint::PanicNotConverted);
    let hangs = found(panics_that_reach_the_engine, seed, 20);
    failpoint::disable();
    assert!(hangs.is_none(), "a panic that reaches the engine: {hangs:?}");
    println!("\n{}", format_detections(&caught));
    assert!(missed.is_empty(), "bugs that no check found: {missed:?}");
}

/// With an enabled failpoint, `proptest` shrinks a failing history to a few steps. The report contains these steps as a
/// test.
#[test]
fn failing_crash_history_is_reduced_to_a_few_steps() {
    let _alone = lsmx_testkit::run_alone();
    for bug in
        [Failpoint::WalSyncSkipped, Failpoint::EditBeforeTableSync, Failpoint::FoldedValueStale]
    {
        // Three or four steps are necessary. Other causes of a flush than the step `Flush` need a few commits. A reduction
        // may end at a longer history from which no single step can be removed, so several seeds are tried.
        let is_short = (0..5).any(|attempt| {
            failpoint::enable(bug);
            let played = crash_history::play_random(20_000, mix_seeds(seed(), attempt));
            failpoint::disable();
            let (report, steps) = played.expect_err(bug.name());
            println!("{}: {steps} steps: {report}", bug.name());
            assert!(report.contains("#[test]"), "{report}");
            steps <= 8
        });
        assert!(is_short, "{}: no reduced history has eight steps or fewer", bug.name());
    }
}

/// `verify` reports a table whose filter rejects one of its keys.
#[test]
fn verify_key_that_the_filter_misses_is_error() {
    let _alone = lsmx_testkit::run_alone();
    failpoint::enable(Failpoint::FilterMissesKey);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, Options::default().background(Background::Inline)).unwrap();
    (0..100u8).for_each(|key| db.put([key], "value").unwrap());
    db.close(None).unwrap();
    let verified = oracle::verify(&disk);
    failpoint::disable();
    assert!(matches!(verified, Err(Error::Corrupt { .. })), "{verified:?}");
}

/// Part of guarantee 17. The check reads work counters of the process, so it must not run in parallel with other
/// tests.
#[test]
fn flush_of_nested_range_deletes_is_linear() {
    let _alone = lsmx_testkit::run_alone();
    range_tombstones::flush_of_nested_range_deletes_is_linear(0).unwrap();
}
