//! Checks of the quarantine of blob files and of the files of operand stores.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Event, Keyspace, Options};
use lsmx_testkit::EventLog;

use super::Outcome;
use super::clock::MINUTE_US;
use super::small_database::{files, keyspace_options, open_with};

/// A keyspace whose files with the extension `end` become unreadable.
struct Fixture {
    disk: MemVfs,
    faults: FaultVfs,
    db: Db,
    keyspace: Keyspace,
    end: &'static str,
    events: EventLog,
}

impl Fixture {
    fn new(seed: u64, end: &'static str, kind: &str) -> Fixture {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
        let events = EventLog::default();
        let options = Options::default().background(Background::Inline).seed(seed);
        let db = open_with(&faults, options.listener(Arc::new(events.clone()))).unwrap();
        let keyspace = db.keyspace("files", keyspace_options(kind)).unwrap();
        Fixture { disk, faults, db, keyspace, end, events }
    }

    /// Returns the number of background failures that name a file.
    fn failures_of(&self, file: &Path) -> usize {
        let names_file =
            |event: &Event| matches!(event, Event::Failure(it) if it.error.path() == Some(file));
        self.events.count(names_file)
    }

    /// From now on each read of a file that exists now returns altered bytes.
    fn alter_reads(&self) {
        for path in files(&self.disk, self.end) {
            let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]);
            self.faults.add_rule(rule.path_contains(&path.to_string_lossy()).from_then_on());
        }
    }

    /// From now on all reads fail of the existing file that is read first. Returns its path once it is known.
    fn fail_reads_of_one(&self) -> Arc<OnceLock<PathBuf>> {
        let bad = Arc::new(OnceLock::new());
        let (chosen, present) = (Arc::clone(&bad), files(&self.disk, self.end));
        let is_bad = move |path: &Path| {
            present.iter().any(|it| it == path) && chosen.get_or_init(|| path.to_owned()) == path
        };
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]);
        self.faults.add_rule(rule.path_where(is_bad).from_then_on());
        bad
    }

    /// Calls `write` with each number, again after a background error.
    fn write(&self, numbers: Range<u64>, write: impl Fn(u64) -> lsmx::Result<()>) {
        for number in numbers {
            match write(number) {
                Err(Error::Background { .. }) => write(number).unwrap(),
                done => done.unwrap(),
            }
        }
    }
}

/// The quarantine of an unreadable bucket ends once the bucket can be read.
pub(crate) fn readable_bucket_leaves_quarantine(seed: u64) -> Outcome {
    let fixture = Fixture::new(seed, ".bucket", "operands");
    let merge = |number: u64| fixture.keyspace.merge((number % 61).to_be_bytes(), [7; 24]);
    fixture.write(0..900, merge);
    fixture.alter_reads();
    fixture.write(0..300, merge);
    assert!(!fixture.db.health().quarantined.is_empty(), "no bucket was quarantined");
    fixture.faults.clear_rules();
    fixture.db.env().advance_us(2 * MINUTE_US);
    fixture.write(0..600, merge);
    fixture.db.flush().unwrap();
    let idle = fixture.db.wait_idle();
    assert!(fixture.db.health().is_good(), "{:?}, {idle:?}", fixture.db.health());
    idle.unwrap();
    Ok(())
}

/// No job reads a quarantined blob file. Only the periodic recheck of the quarantine reads it.
pub(crate) fn quarantined_blob_file_is_not_read(seed: u64) -> Outcome {
    const STEPS: u64 = 60;
    const STEP_US: u64 = 10_000_000;
    let fixture = Fixture::new(seed, ".blob", "values");
    // Every fourth key is written once, so that each blob file keeps some of its values.
    let put = |number: u64| {
        let key = if number.is_multiple_of(4) { number } else { number % 97 };
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match fixture.keyspace.put(key, [7; 64]) {
            // The check counts reads, so a refused write does not matter.
            Err(Error::Background { .. }) => Ok(()),
            result => result,
        }
    };
    fixture.write(0..500, put);
    let bad = fixture.fail_reads_of_one();
    fixture.write(500..1_000, put);
    let bad = bad.get().expect("no job read a blob file");
    let recheck_count = || {
        let quarantined = fixture.db.health().quarantined;
        quarantined.iter().find(|file| file.path == *bad).map(|file| file.failed_reads)
    };
    let read_count = || fixture.faults.fired_counts().values().sum::<u64>();
    let job_count = || fixture.db.metrics().keyspaces["files"].compaction.jobs;
    let (jobs_before, failures_before) = (job_count(), fixture.failures_of(bad));
    let mut quiet_steps = 0;
    for step in 0..STEPS {
        let (rechecks, reads) = (recheck_count(), read_count());
        assert!(rechecks.is_some(), "{} is not quarantined", bad.display());
        fixture.db.env().advance_us(STEP_US);
        let first = 1_000 + 40 * step;
        fixture.write(first..first + 40, put);
        if recheck_count() == rechecks {
            quiet_steps += 1;
            assert_eq!(read_count(), reads, "step {step}: jobs read {}", bad.display());
        }
    }
    assert!(quiet_steps > 0, "each step rechecks the file");
    assert!(job_count() > jobs_before, "no job ran");
    assert_eq!(fixture.failures_of(bad), failures_before);
    Ok(())
}
