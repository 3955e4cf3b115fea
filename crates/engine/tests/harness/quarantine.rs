//! Checks of the quarantine of blob files and of the files of operand stores.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Event, Keyspace, KeyspaceOptions, Options, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::EventLog;

use super::Outcome;

const MINUTE_US: u64 = 60_000_000;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A keyspace whose files that end so are unreadable from the point on at which background work needs them.
struct Fixture {
    disk: MemVfs,
    faults: FaultVfs,
    db: Db,
    keyspace: Keyspace,
    end: &'static str,
    events: EventLog,
}

impl Fixture {
    /// Returns the number of background failures that name a file.
    fn failures_of(&self, file: &Path) -> usize {
        let names_file =
            |event: &Event| matches!(event, Event::Failure(it) if it.error.path() == Some(file));
        self.events.count(names_file)
    }

    fn new(seed: u64, end: &'static str, tuning: KeyspaceOptions) -> Outcome<Fixture> {
        let disk = MemVfs::new();
        let faults = FaultVfs::new(Arc::new(disk.clone()), seed);
        let events = EventLog::default();
        let options = Options::default().background(Background::Inline).seed(seed);
        let options = options.listener(Arc::new(events.clone()));
        let db = Db::open("db", options.vfs(Arc::new(faults.clone()))).map_err(failed)?;
        let tuning = tuning.memtable_bytes(1 << 10).table_bytes(2 << 10).block_bytes(256);
        let tuning = tuning.merge_operator(Append::default());
        let keyspace = db.keyspace("files", tuning).map_err(failed)?;
        Ok(Fixture { disk, faults, db, keyspace, end, events })
    }

    /// Each read of a file that is there from now on returns altered bytes.
    fn alter_reads(&self) {
        for path in self.disk.paths() {
            let path = path.to_string_lossy().into_owned();
            if path.ends_with(self.end) {
                let rule = FaultRule::new(Fault::AlteredRead).for_calls(&[VfsCall::Read]);
                self.faults.add_rule(rule.path_contains(&path).from_then_on());
            }
        }
    }

    /// The first file with this ending that is read from now on is the one whose reads all fail.
    fn fail_reads_of_one(&self) -> Arc<OnceLock<PathBuf>> {
        let bad = Arc::new(OnceLock::new());
        let (chosen, end) = (Arc::clone(&bad), self.end);
        let present = self.disk.paths();
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Read]).path_where(
            move |path| {
                path.to_string_lossy().ends_with(end)
                    && present.iter().any(|it| it == path)
                    && chosen.get_or_init(|| path.to_owned()) == path
            },
        );
        self.faults.add_rule(rule.from_then_on());
        bad
    }

    /// Makes writes; a background error refuses one and the next one is done.
    fn write(&self, numbers: Range<u64>, write: impl Fn(u64) -> lsmx::Result<()>) -> Outcome {
        for number in numbers {
            match write(number) {
                Err(Error::Background { .. }) => {
                    write(number).map_err(failed)?;
                }
                done => done.map_err(failed)?,
            }
        }
        Ok(())
    }
}

/// The quarantine of an unreadable bucket ends once the bucket can be read.
pub(crate) fn readable_bucket_leaves_quarantine(seed: u64) -> Outcome {
    let store =
        DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10));
    let fixture = Fixture::new(seed, ".bucket", KeyspaceOptions::default().operand_store(store))?;
    let merge = |number: u64| fixture.keyspace.merge((number % 61).to_be_bytes(), [7; 24]);
    fixture.write(0..900, merge)?;
    fixture.alter_reads();
    fixture.write(0..300, merge)?;
    if fixture.db.health().quarantined.is_empty() {
        return Err("no bucket was quarantined".to_owned());
    }
    fixture.faults.clear_rules();
    fixture.db.env().advance_us(2 * MINUTE_US);
    fixture.write(0..600, merge)?;
    fixture.db.flush().map_err(failed)?;
    let idle = fixture.db.wait_idle();
    match fixture.db.health().is_good() {
        true => idle.map_err(failed),
        false => Err(format!("{:?} after {idle:?}", fixture.db.health())),
    }
}

/// No job reads a quarantined blob file. Only the periodic recheck of the quarantine reads it.
pub(crate) fn quarantined_blob_file_is_not_read(seed: u64) -> Outcome {
    const STEPS: u32 = 60;
    const STEP_US: u64 = 10_000_000;
    let separation = ValueSeparation {
        threshold_bytes: 8,
        blob_file_bytes: 2 << 10,
        garbage_ratio: 0.2,
        ..ValueSeparation::default()
    };
    let tuning = KeyspaceOptions::default().value_separation(separation);
    let fixture = Fixture::new(seed, ".blob", tuning)?;
    // Every fourth key is written once, so that each blob file keeps some of its values.
    let put = |number: u64| {
        let key = if number.is_multiple_of(4) { number } else { number % 97 };
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        match fixture.keyspace.put(key, [7; 64]) {
            // The reads are counted, whatever the writes are refused for.
            Err(Error::Background { .. }) => Ok(()),
            result => result,
        }
    };
    fixture.write(0..500, put)?;
    let bad = fixture.fail_reads_of_one();
    fixture.write(500..1_000, put)?;
    let bad = bad.get().ok_or("no job read a blob file")?;
    let recheck_count = || {
        let quarantined = fixture.db.health().quarantined;
        quarantined.iter().find(|file| file.path == *bad).map(|file| file.failed_reads)
    };
    let read_count = || fixture.faults.fired_counts().values().sum::<u64>();
    let job_count = || fixture.db.metrics().keyspaces["files"].compaction.jobs;
    let (jobs_before, failures_before) = (job_count(), fixture.failures_of(bad));
    let mut quiet_steps = 0;
    for step in 0..u64::from(STEPS) {
        let (rechecks, reads) =
            (recheck_count().ok_or("the file is not quarantined")?, read_count());
        fixture.db.env().advance_us(STEP_US);
        let first = 1_000 + 40 * step;
        fixture.write(first..first + 40, put)?;
        if recheck_count() == Some(rechecks) {
            quiet_steps += 1;
            let added = read_count() - reads;
            if added > 0 {
                return Err(format!("step {step}: {added} reads of {} by jobs", bad.display()));
            }
        }
    }
    let (jobs, failures) = (job_count() - jobs_before, fixture.failures_of(bad) - failures_before);
    match (quiet_steps, jobs, failures) {
        (1.., 1.., 0) => Ok(()),
        _ => {
            Err(format!("{quiet_steps} steps without a recheck, {jobs} jobs, {failures} failures"))
        }
    }
}
