//! Errors of writes and background jobs: the cause of the read-only state, and a deferred error.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::error::{Error, Result};

/// Read-only state and deferred error of a database.
///
/// The first error of the write path makes the database read-only: every later write returns this error. An error of a
/// background job that does not prevent writes is deferred: the next write returns it once.
#[derive(Debug, Default)]
pub(crate) struct BackgroundErrorState {
    /// True if `cause` has a value. `check_writable` reads the flag without the lock.
    is_read_only: AtomicBool,
    cause: Mutex<Option<Arc<Error>>>,
    /// True if `deferred` has a value. Writes read the flag without the lock.
    has_deferred: AtomicBool,
    deferred: Mutex<Option<Error>>,
}

impl BackgroundErrorState {
    /// Returns [`Error::ReadOnly`] with the first cause if the database is read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only.load(Ordering::Acquire)
            && let Some(cause) = &*self.cause.lock()
        {
            return Err(Error::ReadOnly { cause: Arc::clone(cause) });
        }
        Ok(())
    }

    /// Makes the database read-only. Returns the error for all later writes, and whether `error` is the
    /// first cause.
    pub(crate) fn set_read_only(&self, error: Error) -> (Error, bool) {
        let mut cause = self.cause.lock();
        let is_first = cause.is_none();
        let cause = match error {
            // A component that has already failed returns `ReadOnly`. Its cause is reused, so that it is not wrapped
            // twice.
            Error::ReadOnly { cause: known } => cause.get_or_insert(known),
            error => cause.get_or_insert_with(|| Arc::new(error)),
        };
        self.is_read_only.store(true, Ordering::Release);
        (Error::ReadOnly { cause: Arc::clone(cause) }, is_first)
    }

    /// Stores the error of a background job until the next write returns it. Returns false and drops `error` if a
    /// deferred error is stored already.
    pub(crate) fn defer_error(&self, error: Error) -> bool {
        if failpoint::is_on(Failpoint::BackgroundErrorNotReported) {
            return true;
        }
        let mut deferred = self.deferred.lock();
        let is_free = deferred.is_none();
        deferred.get_or_insert(error);
        self.has_deferred.store(true, Ordering::Release);
        is_free
    }

    /// Returns the deferred error, and removes it.
    pub(crate) fn check_deferred_error(&self) -> Result<()> {
        if !self.has_deferred.load(Ordering::Acquire) {
            return Ok(());
        }
        self.take_deferred().map_or(Ok(()), Err)
    }

    /// Drops the deferred error.
    pub(crate) fn clear_deferred_error(&self) {
        self.take_deferred();
    }

    fn take_deferred(&self) -> Option<Error> {
        let mut deferred = self.deferred.lock();
        self.has_deferred.store(false, Ordering::Release);
        deferred.take()
    }

    /// Returns the error that made the database read-only, if it is read-only.
    pub(crate) fn read_only_cause(&self) -> Option<Arc<Error>> {
        self.cause.lock().clone()
    }

    /// Ends the read-only state.
    pub(crate) fn clear(&self) {
        if failpoint::is_on(Failpoint::ReadOnlyNotCleared) {
            return;
        }
        let mut cause = self.cause.lock();
        *cause = None;
        // The deferred error may have the same cause as the read-only state, so it is dropped, too.
        self.clear_deferred_error();
        self.is_read_only.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(work: &'static str) -> Error {
        Error::Background { work, keyspace: None, cause: Arc::new(Error::Closed) }
    }

    #[test]
    fn deferred_error_is_returned_once() {
        let state = BackgroundErrorState::default();
        assert!(state.check_deferred_error().is_ok());
        assert!(state.defer_error(failed("compaction")));
        assert!(!state.defer_error(failed("removal")), "the first error is kept");
        let returned = state.check_deferred_error();
        assert!(matches!(returned, Err(Error::Background { work: "compaction", .. })));
        assert!(state.check_deferred_error().is_ok());
        assert!(state.defer_error(failed("removal")));
        state.clear_deferred_error();
        assert!(state.check_deferred_error().is_ok());
    }
}
