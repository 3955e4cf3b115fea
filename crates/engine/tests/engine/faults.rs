//! Makes each file system call of a run fail in turn, either alone or together with all later calls.
//!
//! The error must have the right type and name the file. No acknowledged commit is lost, `resume` and a reopen succeed,
//! and no call hangs. A failure prints a setting `LSMX_TEST_REPLAY=run:class:k` that replays one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::coverage::{Coverage, file_kind};
use crate::harness::history::{History, draw_commit};
use crate::harness::oracle::{self, CommitKind, Trouble};
use crate::harness::parallel::{in_parallel, watched};
use crate::harness::recorder::Sampling;
use crate::harness::workload::{Faults, Plan, Played, play};
use crate::harness::{Outcome, options};
use lsmx::Db;
use lsmx::env::Background;
use lsmx::internals::vfs::{CallCounts, CrashImage, Errno, Fault, FaultRule, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx_base::file_name::LOCK;
use lsmx_testkit::{TestRng, mix_seeds, scale, scaled, seed};

/// Approximate number of injected faults in CI.
const POINTS: u64 = 4_000;

/// A fault and the file system calls that fail. If `sticky` is set, all calls after the first failure fail as well.
#[derive(Clone, Copy, Debug)]
struct Class {
    name: &'static str,
    fault: Fault,
    calls: &'static [VfsCall],
    sticky: bool,
}

const CHANGES: &[VfsCall] = &[
    VfsCall::Create,
    VfsCall::Rename,
    VfsCall::HardLink,
    VfsCall::Remove,
    VfsCall::CreateDir,
    VfsCall::Reserve,
    VfsCall::SyncDir,
    VfsCall::Lock,
    VfsCall::Append,
    VfsCall::Sync,
];
const QUERIES: &[VfsCall] =
    &[VfsCall::Open, VfsCall::List, VfsCall::Exists, VfsCall::Read, VfsCall::Len];
const SYNCS: &[VfsCall] = &[VfsCall::Sync];
const APPENDS: &[VfsCall] = &[VfsCall::Append];
const RESERVES: &[VfsCall] = &[VfsCall::Reserve];
const READS: &[VfsCall] = &[VfsCall::Read];

const CLASSES: &[Class] = &[
    class("write-eio", Fault::Error(Errno::Io), CHANGES, false),
    class("write-eio-sticky", Fault::Error(Errno::Io), CHANGES, true),
    class("write-full", Fault::Error(Errno::NoSpace), CHANGES, false),
    class("write-full-sticky", Fault::Error(Errno::NoSpace), CHANGES, true),
    class("sync-eio", Fault::Error(Errno::Io), SYNCS, false),
    class("reserve-efbig-sticky", Fault::Error(Errno::FileTooLarge), RESERVES, true),
    class("short-write", Fault::ShortWrite(Errno::NoSpace), APPENDS, false),
    class("short-write-sticky", Fault::ShortWrite(Errno::NoSpace), APPENDS, true),
    class("read-eio", Fault::Error(Errno::Io), QUERIES, false),
    class("read-eio-sticky", Fault::Error(Errno::Io), QUERIES, true),
    class("read-emfile", Fault::Error(Errno::TooManyFiles), QUERIES, false),
    class("short-read", Fault::ShortRead, READS, false),
    class("short-read-sticky", Fault::ShortRead, READS, true),
    class("altered-read", Fault::AlteredRead, READS, false),
    class("altered-read-sticky", Fault::AlteredRead, READS, true),
];

const fn class(name: &'static str, fault: Fault, calls: &'static [VfsCall], sticky: bool) -> Class {
    Class { name, fault, calls, sticky }
}

fn plan(seed: u64, faults: Faults) -> Plan {
    let mut rng = TestRng::new(seed);
    Plan {
        name: seed.to_string(),
        seed,
        steps: 40 + rng.below(40),
        reopens: true,
        policy: options::draw_policy(&mut rng),
        background: Background::Inline,
        faults,
        sampling: Sampling::NONE,
    }
}

/// Executes a run and injects a fault into the k-th call that matches the class.
fn point(seed: u64, class: &Class, k: u64, coverage: &Arc<Coverage>) -> Outcome<Played> {
    let rule = FaultRule::new(class.fault).for_calls(class.calls).nth(k);
    let rule = if class.sticky { rule.from_then_on() } else { rule };
    let label = format!("LSMX_TEST_REPLAY={seed}:{}:{k}", class.name);
    let played = watched(&label, || play(&plan(seed, Faults::By(rule)), coverage));
    let played = played.map_err(|what| {
        format!("{what}\nreplay: {label} cargo test -p lsmx --test engine faults:: -- --nocapture")
    })?;
    if played.fired {
        coverage.add("points", class.name);
    }
    Ok(played)
}

/// Executes a run for every `stride`-th call of each fault class. In each run, the selected call fails. Returns the
/// number of runs.
fn sweep(seed: u64, calls: &CallCounts, stride: u64, coverage: &Arc<Coverage>) -> Outcome<u64> {
    let mut points = 0;
    for (at, class) in CLASSES.iter().enumerate() {
        let mut k = mix_seeds(seed, at as u64) % stride;
        while k < calls.sum_of_counts(class.calls) + stride {
            point(seed, class, k, coverage)?;
            points += 1;
            k += stride;
        }
    }
    Ok(points)
}

/// Replays the run that `LSMX_TEST_REPLAY` names. Returns `None` if the variable is not set.
fn replay() -> Option<Outcome<bool>> {
    let text = std::env::var("LSMX_TEST_REPLAY").ok()?;
    let parts: Vec<&str> = text.split(':').collect();
    let class = CLASSES.iter().find(|class| class.name == parts[1]).expect("a fault class");
    let number = |at: usize| parts[at].parse::<u64>().expect("a number");
    Some(point(number(0), class, number(2), &Arc::default()).map(|played| played.fired))
}

#[test]
fn failing_call_is_reported_and_no_acknowledged_commit_is_lost() {
    if let Some(fired) = replay() {
        println!("fault injected: {}", fired.unwrap());
        return;
    }
    let seed = seed();
    let coverage = Arc::new(Coverage::default());
    let (tried, goal) = (AtomicU64::new(0), scaled(POINTS));
    let failure = in_parallel(|number| {
        let seed = mix_seeds(seed, number) >> 16;
        let calls = play(&plan(seed, Faults::None), &Arc::default())?.calls;
        let all: u64 = CLASSES.iter().map(|class| calls.sum_of_counts(class.calls)).sum();
        // With this stride, eight runs together inject about `POINTS` faults.
        let points = sweep(seed, &calls, (8 * all).div_ceil(POINTS), &coverage)?;
        Ok(tried.fetch_add(points, Ordering::Relaxed) + points < goal)
    });
    println!("{} points\n{coverage}", tried.load(Ordering::Relaxed));
    failure.unwrap_or_else(|what| panic!("{what}"));
    let names: Vec<_> = CLASSES.iter().map(|class| class.name).collect();
    coverage.require("points", &names).unwrap();
    let faults = ["EIO", "ENOSPC", "EMFILE", "short read", "altered read", "short write"];
    coverage.require("faults", &faults).unwrap();
    let failed = ["a commit", "flush", "close", "opening", "making a keyspace", "resume"];
    coverage.require("failed calls", &failed).unwrap();
    coverage.require("failed calls", &["a read", "changing options", "a snapshot"]).unwrap();
    coverage.require("failed calls", &["a read in a transaction"]).unwrap();
    if scale() > 1.0 {
        // The following calls are rare. A test is certain to make them fail only if `LSMX_TEST_SCALE` is above 1.
        let failed = ["dropping a keyspace", "a checkpoint", "compacting a range"];
        coverage.require("failed calls", &failed).unwrap();
    }
}

/// Guarantee 12: opening a damaged database either fails and changes no file, or succeeds and returns correct entries.
#[test]
fn failed_open_of_a_damaged_database_changes_no_file() {
    let seed = seed();
    let coverage = Coverage::default();
    for number in 0..scaled(1_000) {
        let seed = mix_seeds(seed, number) >> 16;
        damage_and_open(seed, &coverage).unwrap_or_else(|what| panic!("{what}\nseed {seed}"));
    }
    println!("{coverage}");
    for group in ["flip", "cut", "removal"] {
        coverage.require(group, &["refused"]).unwrap();
    }
    coverage.require("refused", &["blob", "current", "manifest", "segment", "table"]).unwrap();
}

/// Damages one file of a closed or killed database, opens the database, and checks the result.
fn damage_and_open(seed: u64, coverage: &Coverage) -> Outcome {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options::draw(&mut rng, Background::Inline))?;
    let keyspaces = [db.default_keyspace()];
    let mut history = History::default();
    for number in 1..=5 + rng.below(40) {
        let commit = draw_commit(&mut rng, number, 1, db.env().now_us());
        let kind = CommitKind::random(&mut rng);
        let written = oracle::write(&db, &keyspaces, &commit, kind, true);
        written.map_err(|error| format!("{error:?}"))?;
        history.push(&commit);
    }
    let killed = disk.crash(CrashImage::Keep, 0);
    drop((keyspaces, db));
    let closed = rng.is_one_in(2);
    let disk = if closed { disk } else { killed };
    let path = rng.choose(&disk.paths()).clone();
    let bytes = disk.read_all(&path).map_err(|error| error.to_string())?.len() as u64;
    let (how, done) = match rng.below(4) {
        0 => ("removal", disk.remove(&path)),
        1 => ("cut", disk.truncate(&path, rng.below(bytes + 1))),
        _ if bytes == 0 => return Ok(()),
        _ => ("flip", disk.flip_bits(&path, rng.below(bytes), 1 << rng.below(8))),
    };
    done.map_err(|error| error.to_string())?;
    let before = disk.snapshot_all();
    let options = options::draw(&mut rng, Background::Inline).create_if_missing(false);
    match Db::open(oracle::DIR, options.vfs(Arc::new(disk.clone()))) {
        Ok(db) => {
            coverage.add(how, "opened");
            // After a kill, truncating the log can remove the last sync mark, so lost commits cannot be detected. After
            // a clean close, the manifest contains the mark.
            let undecidable = how == "cut" && file_kind(&path) == "segment" && !closed;
            let last = match oracle::counter(&db) {
                Ok(shown) if undecidable => shown.min(history.last()),
                _ => history.last(),
            };
            let state = history.state(last);
            // The open does not detect a damaged table. The reads that use the table return the error.
            match oracle::compare(&db, &state, &mut rng) {
                Ok(()) | Err(Trouble::Failed(_)) => Ok(()),
                Err(Trouble::Wrong(what)) => Err(format!("{how} of {}: {what}", path.display())),
            }
        }
        Err(error) => {
            coverage.add(how, "refused");
            coverage.add("refused", file_kind(&path));
            let mut after = disk.snapshot_all();
            // Opening a database creates the lock file first. A failed open may leave the lock file behind.
            if !before.contains_key(&oracle::dir().join(LOCK)) {
                after.remove(&oracle::dir().join(LOCK));
            }
            if after == before {
                return Ok(());
            }
            Err(format!("{how} of {}: {error:?}, and files have changed", path.display()))
        }
    }
}

/// Covers every modifying file system call of one run. All calls after the first failure fail as well.
#[test]
fn every_failing_write_call_of_one_run_is_reported() {
    let seed = seed();
    let coverage = Arc::new(Coverage::default());
    let calls = play(&plan(seed, Faults::None), &Arc::default()).unwrap().calls;
    let class = &CLASSES[1];
    let failure = in_parallel(|k| {
        let fired = point(seed, class, k, &coverage)?.fired;
        if !fired && k < calls.sum_of_counts(class.calls) {
            return Err(format!("call {k} of {} did not fail", calls.sum_of_counts(class.calls)));
        }
        Ok(fired)
    });
    failure.unwrap();
    println!("{} points", coverage.count("points", class.name));
}
