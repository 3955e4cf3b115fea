//! The first write-path error makes the database read-only; every later write is told the same. What
//! failed in the background and harms no write is told to one write.

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};

/// Whether the database takes writes, and if not, why.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failed: AtomicBool,
    cause: Mutex<Option<Arc<Error>>>,
    /// Whether `owed` holds an error, so that a write need not lock it.
    owes: AtomicBool,
    /// What failed in the background, until a write is told.
    owed: Mutex<Option<Error>>,
}

impl Health {
    /// Fails with the first cause while the database is read-only.
    pub(crate) fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire)
            && let Some(cause) = &*self.cause.lock()
        {
            return Err(Error::ReadOnly { cause: Arc::clone(cause) });
        }
        Ok(())
    }

    /// Makes the database read-only because of `error`, unless it is already; returns what every
    /// write from now on is told, and whether this error was the first.
    pub(crate) fn fail(&self, error: Error) -> (Error, bool) {
        let mut cause = self.cause.lock();
        let first = cause.is_none();
        let cause = match error {
            // Another part has remembered the failure by itself already.
            Error::ReadOnly { cause: known } => cause.get_or_insert(known),
            error => cause.get_or_insert_with(|| Arc::new(error)),
        };
        self.failed.store(true, Ordering::Release);
        (Error::ReadOnly { cause: Arc::clone(cause) }, first)
    }

    /// Has the next write told that background work has failed; false if it is told of something else already.
    pub(crate) fn owe(&self, error: Error) -> bool {
        if lsmx_base::failpoint::is_on(lsmx_base::failpoint::Failpoint::BackgroundErrorNotReported)
        {
            return true;
        }
        let mut owed = self.owed.lock();
        let free = owed.is_none();
        owed.get_or_insert(error);
        self.owes.store(true, Ordering::Release);
        free
    }

    /// Tells a write what has failed in the background, once.
    pub(crate) fn check_owed(&self) -> Result<()> {
        if !self.owes.load(Ordering::Acquire) {
            return Ok(());
        }
        self.take_owed().map_or(Ok(()), Err)
    }

    /// Forgets what no write has been told yet.
    pub(crate) fn forgive(&self) {
        self.take_owed();
    }

    fn take_owed(&self) -> Option<Error> {
        let mut owed = self.owed.lock();
        self.owes.store(false, Ordering::Release);
        owed.take()
    }

    /// The cause, while there is one.
    pub(crate) fn cause(&self) -> Option<Arc<Error>> {
        self.cause.lock().clone()
    }

    /// Takes writes again.
    pub(crate) fn clear(&self) {
        if lsmx_base::failpoint::is_on(lsmx_base::failpoint::Failpoint::ReadOnlyNotCleared) {
            return;
        }
        let mut cause = self.cause.lock();
        *cause = None;
        // Jobs may have failed for the same reason.
        self.forgive();
        self.failed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(work: &'static str) -> Error {
        Error::Background { work, keyspace: None, cause: Arc::new(Error::Closed) }
    }

    #[test]
    fn each_failure_is_told_to_one_write() {
        let health = Health::default();
        assert!(health.check_owed().is_ok());
        assert!(health.owe(failed("compaction")));
        assert!(!health.owe(failed("removal")), "the first is told first");
        let told = health.check_owed();
        assert!(matches!(told, Err(Error::Background { work: "compaction", .. })), "{told:?}");
        assert!(health.check_owed().is_ok());
        assert!(health.owe(failed("removal")));
        health.forgive();
        assert!(health.check_owed().is_ok());
    }
}
