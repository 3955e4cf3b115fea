//! File system that injects write errors into a child process of the stress test.
//!
//! Only write calls fail, so a wrong read result is always a bug. All faults are removed before each call of `resume`,
//! so `resume` must succeed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{Db, Error};

use crate::Outcome;
use lsmx_testkit::{TestRng, mix_seeds};

/// File system calls that may fail with an injected error.
const WRITES: &[VfsCall] =
    &[VfsCall::Append, VfsCall::Create, VfsCall::Sync, VfsCall::SyncDir, VfsCall::Rename];
/// A child runs with injected faults with a probability of 1 in this number.
const FAULTY_ONE_IN: u64 = 3;
/// Constant that is combined with the seed of a child. It makes random faults independent of random options.
const SEED_SALT: u64 = 0x0064_6973_6b21;
/// Choices for the maximum number of write calls until the next fault. One choice is drawn for each fault.
const CALLS_UNTIL_FAULT: [u64; 3] = [30, 300, 3000];

/// File system of a child process.
#[derive(Debug)]
pub(crate) struct FaultyDisk {
    /// `None` if no faults are injected.
    faults: Option<FaultVfs>,
    /// Random number generator for the next fault. Its mutex is held during `resume`, so that only one thread at a time
    /// resumes the database.
    rng: Mutex<TestRng>,
    /// Number of successful calls of `resume`.
    resumed: AtomicU64,
}

impl FaultyDisk {
    /// Creates the file system of a child. If `with_faults` is true, one in three seeds enables fault injection.
    ///
    /// Calls fail only after [`FaultyDisk::arm_fault`].
    pub(crate) fn new(seed: u64, with_faults: bool) -> FaultyDisk {
        let seed = mix_seeds(seed, SEED_SALT);
        let mut rng = TestRng::new(seed);
        let is_faulty = with_faults && rng.is_one_in(FAULTY_ONE_IN);
        let faults = is_faulty.then(|| FaultVfs::new(Arc::new(OsVfs), seed));
        FaultyDisk { faults, rng: Mutex::new(rng), resumed: AtomicU64::new(0) }
    }

    pub(crate) fn vfs(&self) -> Arc<dyn Vfs> {
        match &self.faults {
            Some(faults) => Arc::new(faults.clone()),
            None => Arc::new(OsVfs),
        }
    }

    /// Schedules the next fault if fault injection is enabled. Either one write call fails, or one write call and all
    /// later write calls fail.
    pub(crate) fn arm_fault(&self) {
        let Some(faults) = &self.faults else { return };
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        faults.clear_rules();
        faults.add_rule(draw_rule(&mut rng));
    }

    /// Returns whether an injected fault may have caused the error.
    pub(crate) fn may_have_caused(&self, error: &Error) -> bool {
        let is_io_error =
            matches!(error, Error::Io { .. } | Error::ReadOnly { .. } | Error::Background { .. });
        self.faults.is_some() && is_io_error
    }

    /// Returns the number of times that [`FaultyDisk::recover`] resumed the database.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Resumes the database if a fault has made it read-only.
    ///
    /// # Errors
    /// Returns an error if `resume` fails while no fault is active, or if a read fails while the database is read-only.
    pub(crate) fn recover(&self, db: &Db) -> Outcome {
        let Some(faults) = &self.faults else { return Ok(()) };
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cause) = db.health().read_only else {
            // A failed compaction does not make the database read-only. The engine retries the compaction.
            faults.clear_rules();
            return Ok(());
        };
        let read = db.get(b"any").map(drop);
        read.map_err(|error| format!("a read while read-only by {cause}: {error:?}"))?;
        faults.clear_rules();
        db.resume().map_err(|error| format!("resuming after {cause}: {error:?}"))?;
        faults.add_rule(draw_rule(&mut rng));
        self.resumed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn draw_rule(rng: &mut TestRng) -> FaultRule {
    let errno = if rng.is_one_in(2) { Errno::NoSpace } else { Errno::Io };
    let rule = match rng.is_one_in(3) {
        true => FaultRule::new(Fault::ShortWrite(errno)).for_calls(&[VfsCall::Append]),
        false => FaultRule::new(Fault::Error(errno)).for_calls(WRITES),
    };
    let within = *rng.choose(&CALLS_UNTIL_FAULT);
    let rule = rule.nth(rng.below(within));
    match rng.is_one_in(2) {
        true => rule.from_then_on(),
        false => rule,
    }
}
