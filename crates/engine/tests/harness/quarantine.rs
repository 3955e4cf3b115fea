//! Checks of the quarantine of unreadable blob files and files of operand stores.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Event, Options};
use lsmx_testkit::EventLog;

use super::Outcome;
use super::clock::MINUTE_US;
use super::small_database::{files, keyspace_options, open_kinds, open_with, options, policy};

/// A database on a disk whose reads can be altered.
pub(crate) struct FaultyReads {
    pub(crate) disk: MemVfs,
    pub(crate) faults: FaultVfs,
    pub(crate) events: EventLog,
    pub(crate) db: Db,
    /// Number of keys that [`FaultyReads::write`] has written.
    written: u32,
}

/// Executes a write. If it returns an error of background work, executes it a second time.
pub(crate) fn retry(write: impl Fn() -> lsmx::Result<()>) -> lsmx::Result<()> {
    match write() {
        Err(Error::Background { .. }) => write(),
        done => done,
    }
}

impl FaultyReads {
    pub(crate) fn new(background: Background, policy_text: &str) -> FaultyReads {
        let keyspace = keyspace_options("default").policy(policy(policy_text));
        FaultyReads::with_options(options(background).keyspace_defaults(keyspace))
    }

    pub(crate) fn with_options(options: Options) -> FaultyReads {
        let (disk, events) = (MemVfs::new(), EventLog::default());
        let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
        let db = open_with(&faults, options.listener(Arc::new(events.clone()))).unwrap();
        FaultyReads { disk, faults, events, db, written: 0 }
    }

    /// Maps consecutive numbers to keys in random order, so the runs of the tree overlap.
    fn key(&self, number: u32) -> [u8; 4] {
        number.wrapping_mul(0x9e37_79b9).to_be_bytes()
    }

    pub(crate) fn write(&mut self) -> lsmx::Result<()> {
        let key = self.key(self.written);
        retry(|| self.db.put(key, [7; 60]))?;
        self.written += 1;
        Ok(())
    }

    pub(crate) fn write_many(&mut self, count: u32) {
        (0..count).for_each(|_| self.write().unwrap());
    }

    /// Makes all later reads of a file return altered bytes.
    pub(crate) fn alter_reads(&self, file: &Path) {
        self.add_read_fault(file, Fault::AlteredRead);
    }

    /// Injects a fault into all later reads of a file.
    pub(crate) fn add_read_fault(&self, file: &Path, fault: Fault) {
        let rule = FaultRule::new(fault).for_calls(&[VfsCall::Read]);
        self.faults.add_rule(rule.path_contains(&file.to_string_lossy()).from_then_on());
    }

    pub(crate) fn l0_runs(&self) -> u64 {
        self.db.metrics().keyspaces["default"].levels.first().map_or(0, |level| level.runs)
    }

    pub(crate) fn quarantined(&self) -> Vec<PathBuf> {
        self.db.health().quarantined.into_iter().map(|file| file.path).collect()
    }

    /// Returns the files whose quarantine began and the files whose quarantine ended, according to the events.
    pub(crate) fn quarantine_events(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let begun = self.events.select(|event| match event {
            Event::FileQuarantined(file) => Some(file.path.clone()),
            _ => None,
        });
        let ended = self.events.select(|event| match event {
            Event::QuarantineEnd(file) => Some(file.path.clone()),
            _ => None,
        });
        (begun, ended)
    }

    pub(crate) fn check_all_written(&self) {
        for number in 0..self.written {
            assert!(self.db.get(self.key(number)).unwrap().is_some(), "key {number}");
        }
    }

    pub(crate) fn check_good(&self) {
        assert!(self.db.health().is_good(), "{:?}", self.db.health());
    }

    pub(crate) fn advance(&self, us: u64) {
        match self.db.env().background() {
            Background::Inline => self.db.env().advance_us(us),
            _ => self.db.env().pause_us(us),
        }
        let _ = self.db.wait_idle();
    }
}

/// The quarantine of a bucket ends once the bucket is readable again.
pub(crate) fn readable_bucket_leaves_quarantine(seed: u64) -> Outcome {
    let database = FaultyReads::with_options(options(Background::Inline).seed(seed));
    let [_, _, operands] = open_kinds(&database.db);
    let merge = |number: u64| {
        retry(|| operands.merge((number % 61).to_be_bytes(), [7; 24])).unwrap();
    };
    (0..900).for_each(merge);
    for bad in files(&database.disk, ".bucket") {
        database.alter_reads(&bad);
    }
    (0..300).for_each(merge);
    assert!(!database.quarantined().is_empty(), "no bucket was quarantined");
    database.faults.clear_rules();
    database.db.env().advance_us(2 * MINUTE_US);
    (0..600).for_each(merge);
    database.db.flush().unwrap();
    let idle = database.db.wait_idle();
    database.check_good();
    idle.unwrap();
    Ok(())
}

/// No compaction or collection reads a quarantined blob file. Only the periodic check of the quarantine reads it.
pub(crate) fn quarantined_blob_file_is_not_read(seed: u64) -> Outcome {
    const STEPS: u64 = 60;
    const STEP_US: u64 = 10_000_000;
    let database = FaultyReads::with_options(options(Background::Inline).seed(seed));
    let [_, values, _] = open_kinds(&database.db);
    // Every fourth put uses a new key, so each blob file keeps some live values.
    let put = |number: u64| {
        let key = if number.is_multiple_of(4) { number } else { number % 97 };
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match values.put(key, [7; 64]) {
            // A failed write is acceptable, because the check only counts reads.
            Err(Error::Background { .. }) => {}
            done => done.unwrap(),
        }
    };
    (0..500).for_each(put);
    // All reads of one blob file fail. The first existing blob file that a job reads is chosen.
    let bad = Arc::new(OnceLock::new());
    let (chosen, present) = (Arc::clone(&bad), files(&database.disk, ".blob"));
    let is_bad = move |path: &Path| {
        present.iter().any(|it| it == path) && chosen.get_or_init(|| path.to_owned()) == path
    };
    let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]);
    database.faults.add_rule(rule.path_where(is_bad).from_then_on());
    (500..1_000).for_each(put);
    let bad: &PathBuf = bad.get().expect("no job read a blob file");
    let recheck_count = || {
        let quarantined = database.db.health().quarantined;
        quarantined.iter().find(|file| file.path == *bad).map(|file| file.failed_reads)
    };
    let read_count = || database.faults.fired_counts().values().sum::<u64>();
    let job_count = || database.db.metrics().keyspaces["values"].compaction.jobs;
    let failure_count = || {
        let names_bad =
            |event: &Event| matches!(event, Event::Failure(it) if it.error.path() == Some(bad));
        database.events.count(names_bad)
    };
    let (jobs_before, failures_before) = (job_count(), failure_count());
    let mut quiet_steps = 0;
    for step in 0..STEPS {
        let (rechecks, reads) = (recheck_count(), read_count());
        assert!(rechecks.is_some(), "{} is not quarantined", bad.display());
        database.db.env().advance_us(STEP_US);
        let first = 1_000 + 40 * step;
        (first..first + 40).for_each(put);
        if recheck_count() == rechecks {
            quiet_steps += 1;
            assert_eq!(read_count(), reads, "step {step}: jobs read {}", bad.display());
        }
    }
    assert!(quiet_steps > 0, "every step rechecked the file");
    assert!(job_count() > jobs_before, "no job ran");
    assert_eq!(failure_count(), failures_before);
    Ok(())
}
