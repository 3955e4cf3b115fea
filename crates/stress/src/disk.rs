//! The disk of a child: the real one, or the real one with calls that fail now and then, as those of a
//! bad disk or a full one do.
//!
//! Calls that write fail, and calls that read never do: so whatever a read says is held against the
//! database. When a failure has made that read-only, the disk is well again for as long as it takes to
//! resume, which must work at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{Db, Error};

use crate::Outcome;
use lsmx_testkit::{TestRng, mix_seeds};

/// Calls that fail.
const WRITES: &[VfsCall] =
    &[VfsCall::Append, VfsCall::Create, VfsCall::Sync, VfsCall::SyncDir, VfsCall::Rename];
/// One child in so many has a disk that fails.
const SICK_ONE_IN: u64 = 3;
/// What a disk's draws follow from, apart from those of options.
const PURPOSE: u64 = 0x0064_6973_6b21;
/// Calls within which the next one fails: one of these.
const CALLS: [u64; 3] = [30, 300, 3000];

/// A disk, and who heals it.
#[derive(Debug)]
pub(crate) struct Disk {
    /// None on a disk that is well.
    faults: Option<FaultVfs>,
    /// How it fails next. Held by whoever resumes.
    rng: Mutex<TestRng>,
    /// Times that the database was resumed.
    resumed: AtomicU64,
}

impl Disk {
    /// One that follows from a seed, if it may fail at all; well until [`Disk::fall_ill`].
    pub(crate) fn drawn(seed: u64, fails: bool) -> Disk {
        let seed = mix_seeds(seed, PURPOSE);
        let mut rng = TestRng::new(seed);
        let is_sick = fails && rng.is_one_in(SICK_ONE_IN);
        let faults = is_sick.then(|| FaultVfs::new(Arc::new(OsVfs), seed));
        Disk { faults, rng: Mutex::new(rng), resumed: AtomicU64::new(0) }
    }

    /// As a file system.
    pub(crate) fn vfs(&self) -> Arc<dyn Vfs> {
        match &self.faults {
            Some(faults) => Arc::new(faults.clone()),
            None => Arc::new(OsVfs),
        }
    }

    /// Has a call to come fail, if the disk is one that does, or all from some call on. It may be ill already.
    pub(crate) fn fall_ill(&self) {
        let Some(faults) = &self.faults else { return };
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        faults.clear_rules();
        faults.add_rule(rule(&mut rng));
    }

    /// Whether an error is one that the disk may be to blame for.
    pub(crate) fn excuses(&self, error: &Error) -> bool {
        let of_disks =
            matches!(error, Error::Io { .. } | Error::ReadOnly { .. } | Error::Background { .. });
        self.faults.is_some() && of_disks
    }

    /// Times that [`Disk::heal`] had something to do.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Has a database take writes again that a failing disk has made read-only.
    ///
    /// # Errors
    /// When that does not work though the disk is well, or reads fail before.
    pub(crate) fn heal(&self, db: &Db) -> Outcome {
        let Some(faults) = &self.faults else { return Ok(()) };
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cause) = db.health().read_only else {
            // A compaction has failed that writes wait for, and is tried again by itself. Until then the
            // disk is well.
            faults.clear_rules();
            return Ok(());
        };
        let read = db.get(b"any").map(drop);
        read.map_err(|error| format!("a read while read-only by {cause}: {error:?}"))?;
        faults.clear_rules();
        db.resume().map_err(|error| format!("resuming after {cause}: {error:?}"))?;
        faults.add_rule(rule(&mut rng));
        self.resumed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// What fails next, drawn.
fn rule(rng: &mut TestRng) -> FaultRule {
    let errno = if rng.is_one_in(2) { Errno::NoSpace } else { Errno::Io };
    let rule = match rng.is_one_in(3) {
        true => FaultRule::new(Fault::ShortWrite(errno)).for_calls(&[VfsCall::Append]),
        false => FaultRule::new(Fault::Error(errno)).for_calls(WRITES),
    };
    let within = *rng.choose(&CALLS);
    let rule = rule.nth(rng.below(within));
    match rng.is_one_in(2) {
        true => rule.from_then_on(),
        false => rule,
    }
}
