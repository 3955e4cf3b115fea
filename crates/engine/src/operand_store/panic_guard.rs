//! Converts panics of a user's operand store to errors that contain the name of the store.
//!
//! If [`OperandStore::mark_committed`], [`OperandStore::abandon`] or [`OperandStore::discard_prepared`] panics, the
//! store may not know the outcome of its last delivery. The call is therefore repeated before the store is used again.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::cursor::Cursor;
use crate::error::{Error, Result, UserCode};
use crate::operand_store::{
    Operand, OperandCollection, OperandDelivery, OperandFileKind, OperandFiles, OperandMetrics,
    OperandReadTier, OperandStore, OperandView, PreparedVersion, StoreToken,
};

/// Calls functions of a user's operand store, and returns panics as errors.
#[derive(Clone, Debug)]
struct PanicGuard {
    store_name: Arc<str>,
    /// Whether the database is closed. Set with release ordering before the lock of the database is released.
    is_closed: Arc<AtomicBool>,
}

impl PanicGuard {
    fn catch<T>(&self, call: impl FnOnce() -> T) -> Result<T> {
        Error::catch_user_panic(|| UserCode::OperandStore((*self.store_name).to_owned()), call)
    }

    fn catch_result<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.catch(call)?
    }

    fn catch_read<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.map_read_error(self.catch_result(read))
    }

    /// Returns the error of a read. After the database is closed, this is [`Error::Closed`], because the next owner may
    /// have deleted or replaced the file.
    fn map_read_error<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(Error::Io { .. } | Error::Corrupt { .. } | Error::Missing { .. })
                if self.is_closed.load(Ordering::Acquire)
                    && !failpoint::is_on(Failpoint::ReadDuringCloseNamesFile) =>
            {
                Err(Error::Closed)
            }
            result => result,
        }
    }

    fn wrap_view(&self, inner: Arc<dyn OperandView>) -> Arc<dyn OperandView> {
        Arc::new(PanicGuardView { inner, guard: self.clone() })
    }

    fn wrap_version(&self, version: PreparedVersion) -> PreparedVersion {
        PreparedVersion { token: version.token, view: self.wrap_view(version.view) }
    }

    fn wrap_cursor(&self, inner: Result<Box<dyn Cursor>>) -> Box<dyn Cursor> {
        Box::new(PanicGuardCursor { inner, guard: self.clone() })
    }
}

/// Call that passes the outcome of a prepared version to the store.
#[derive(Clone, Copy, Debug)]
enum OutcomeCall {
    MarkCommitted(StoreToken),
    Abandon,
    DiscardPrepared,
}

/// Operand store that returns an error if the inner store panics.
#[derive(Debug)]
pub(crate) struct PanicGuardStore {
    inner: Arc<dyn OperandStore>,
    guard: PanicGuard,
    /// Calls that panicked and must be repeated, oldest first.
    pending_calls: Mutex<Vec<OutcomeCall>>,
}

impl PanicGuardStore {
    /// Creates a guarded store. `is_closed` must be set before the lock of the database is released.
    pub(crate) fn new(
        inner: Arc<dyn OperandStore>,
        name: &str,
        is_closed: Arc<AtomicBool>,
    ) -> Arc<PanicGuardStore> {
        let guard = PanicGuard { store_name: name.into(), is_closed };
        Arc::new(PanicGuardStore { inner, guard, pending_calls: Mutex::default() })
    }

    /// Repeats all pending calls, and then performs the given call. If a call panics, this call and all calls after it
    /// remain pending.
    fn report_outcome(&self, call: Option<OutcomeCall>) -> Result<()> {
        let mut pending = std::mem::take(&mut *self.pending_calls.lock());
        pending.extend(call);
        while let Some(&first) = pending.first() {
            let result = self.guard.catch(|| match first {
                OutcomeCall::MarkCommitted(token) => self.inner.mark_committed(token),
                OutcomeCall::Abandon => self.inner.abandon(),
                OutcomeCall::DiscardPrepared => self.inner.discard_prepared(),
            });
            if let Err(error) = result {
                *self.pending_calls.lock() = pending;
                return Err(error);
            }
            pending.remove(0);
        }
        Ok(())
    }
}

impl OperandStore for PanicGuardStore {
    fn view(&self) -> Arc<dyn OperandView> {
        let view = self.guard.catch(|| self.inner.view());
        self.guard.wrap_view(view.unwrap_or_else(|error| error.resume_panic()))
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn OperandDelivery + '_>> {
        self.report_outcome(None)?;
        let inner = self.guard.catch_result(|| self.inner.deliver(through))?;
        Ok(Box::new(PanicGuardDelivery { inner, guard: &self.guard }))
    }

    fn mark_committed(&self, token: StoreToken) {
        // If the store panics, the call is repeated before the store is used again.
        let _ = self.report_outcome(Some(OutcomeCall::MarkCommitted(token)));
    }

    fn abandon(&self) {
        // If the store panics, the call is repeated before the store is used again.
        let _ = self.report_outcome(Some(OutcomeCall::Abandon));
    }

    fn discard_prepared(&self) {
        // If the store panics, the call is repeated before the store is used again.
        let _ = self.report_outcome(Some(OutcomeCall::DiscardPrepared));
    }

    fn recover(&self) -> Result<()> {
        self.report_outcome(None)?;
        self.guard.catch_result(|| self.inner.recover())
    }

    fn is_collection_due(&self) -> bool {
        let is_due = self.guard.catch(|| self.inner.is_collection_due());
        is_due.unwrap_or_else(|error| error.resume_panic())
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn OperandCollection + '_>>> {
        self.report_outcome(None)?;
        let collection = self.guard.catch_result(|| self.inner.collect(snapshots))?;
        Ok(collection
            .map(|inner| Box::new(PanicGuardCollection { inner, guard: &self.guard }) as _))
    }

    fn collect_all(&self) -> Result<Box<dyn OperandCollection + '_>> {
        self.report_outcome(None)?;
        let inner = self.guard.catch_result(|| self.inner.collect_all())?;
        Ok(Box::new(PanicGuardCollection { inner, guard: &self.guard }))
    }

    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        let checked = self.guard.catch(|| self.inner.check_file(kind, number));
        checked.unwrap_or_else(|panic_error| Some(Err(panic_error)))
    }

    fn exclude_files(&self, files: &[(OperandFileKind, u64)]) {
        // A panic is ignored. The engine passes the whole set again when a file enters or leaves the quarantine.
        let _ = self.guard.catch(|| self.inner.exclude_files(files));
    }

    fn remove_void_operands(&self, through: SeqNo, snapshots: &[SeqNo]) {
        // A panic is ignored. The engine repeats the request regularly.
        let _ = self.guard.catch(|| self.inner.remove_void_operands(through, snapshots));
    }

    fn oldest_void_delete(&self) -> Option<SeqNo> {
        // After a panic, the smallest sequence number is returned, which is always a valid lower bound.
        let oldest = self.guard.catch(|| self.inner.oldest_void_delete());
        oldest.unwrap_or(Some(SeqNo::ZERO))
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        // Pending calls are repeated first. If a call of `mark_committed` were still pending, the store would return
        // the files of an older state.
        let files =
            self.report_outcome(None).and_then(|()| self.guard.catch(|| self.inner.live_files()));
        files.unwrap_or_else(|error| error.resume_panic())
    }

    // The next three methods cannot return an error. If the store panics, they return zero.

    fn memory_bytes(&self) -> u64 {
        self.guard.catch(|| self.inner.memory_bytes()).unwrap_or(0)
    }

    fn rewrite_bytes_max(&self) -> u64 {
        self.guard.catch(|| self.inner.rewrite_bytes_max()).unwrap_or(0)
    }

    fn metrics(&self) -> OperandMetrics {
        self.guard.catch(|| self.inner.metrics()).unwrap_or_default()
    }
}

struct PanicGuardDelivery<'a> {
    inner: Box<dyn OperandDelivery + 'a>,
    guard: &'a PanicGuard,
}

impl OperandDelivery for PanicGuardDelivery<'_> {
    fn may_contain(&self, key: &[u8]) -> bool {
        self.guard.catch(|| self.inner.may_contain(key)).unwrap_or(true)
    }

    fn add_operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        self.guard.catch_result(|| self.inner.add_operand(key, seq, operand))
    }

    fn add_delete_marker(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        self.guard.catch_result(|| self.inner.add_delete_marker(key, seq))
    }

    fn add_range_delete_marker(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        seq: SeqNo,
    ) -> Result<()> {
        self.guard.catch_result(|| self.inner.add_range_delete_marker(start, end, seq))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let PanicGuardDelivery { inner, guard } = *self;
        guard.catch_result(|| inner.prepare()).map(|version| guard.wrap_version(version))
    }
}

struct PanicGuardCollection<'a> {
    inner: Box<dyn OperandCollection + 'a>,
    guard: &'a PanicGuard,
}

impl OperandCollection for PanicGuardCollection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        let moved = self.guard.catch_result(|| self.inner.moved_operands())?;
        Ok(moved.map(|inner| self.guard.wrap_cursor(Ok(inner))))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let PanicGuardCollection { inner, guard } = *self;
        guard.catch_result(|| inner.prepare()).map(|version| guard.wrap_version(version))
    }
}

#[derive(Debug)]
struct PanicGuardView {
    inner: Arc<dyn OperandView>,
    guard: PanicGuard,
}

impl OperandView for PanicGuardView {
    fn is_empty(&self) -> bool {
        self.guard.catch(|| self.inner.is_empty()).unwrap_or(false)
    }

    fn may_contain(&self, key: &[u8]) -> bool {
        self.guard.catch(|| self.inner.may_contain(key)).unwrap_or(true)
    }

    fn read_operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReadTier,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        self.guard.catch_read(|| self.inner.read_operands(key, at, reads, found))
    }

    fn prefetch(&self, key: &[u8], at: SeqNo) {
        // A panic is ignored, because prefetching is optional and returns no result.
        let _ = self.guard.catch(|| self.inner.prefetch(key, at));
    }

    fn prefetch_seek(&self, key: &[u8]) {
        let _ = self.guard.catch(|| self.inner.prefetch_seek(key));
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReadTier) -> Box<dyn Cursor> {
        let inner = self.guard.catch(|| Arc::clone(&self.inner).cursor(at, reads));
        self.guard.wrap_cursor(inner)
    }

    fn keep_files_open(&self) {
        // A panic is ignored. If it leaves a file closed, each read that needs the file returns an error.
        let _ = self.guard.catch(|| self.inner.keep_files_open());
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<StoreToken> {
        self.guard.catch_read(|| self.inner.copy_to(target))
    }
}

/// Cursor that is not valid after a panic of the inner cursor.
struct PanicGuardCursor {
    inner: Result<Box<dyn Cursor>>,
    guard: PanicGuard,
}

impl PanicGuardCursor {
    fn reposition(&mut self, call: impl FnOnce(&mut dyn Cursor) -> Result<()>) -> Result<()> {
        let inner = self.inner.as_mut().map_err(|error| error.clone())?;
        let result = self.guard.catch(|| call(&mut **inner)).unwrap_or_else(|panic_error| {
            self.inner = Err(panic_error.clone());
            Err(panic_error)
        });
        self.guard.map_read_error(result)
    }

    fn valid_inner(&self) -> &dyn Cursor {
        // This is called only while the cursor is valid. After an error, the cursor is not valid.
        self.inner.as_deref().expect("the cursor is valid")
    }
}

impl Cursor for PanicGuardCursor {
    fn valid(&self) -> bool {
        self.inner.as_ref().is_ok_and(|inner| inner.valid())
    }

    fn key(&self) -> InternalKey<'_> {
        self.valid_inner().key()
    }

    fn value(&self) -> &[u8] {
        self.valid_inner().value()
    }

    fn value_slice(&self) -> Slice {
        self.valid_inner().value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.reposition(|inner| inner.first())
    }

    fn last(&mut self) -> Result<()> {
        self.reposition(|inner| inner.last())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.reposition(|inner| inner.seek(user_key, seq))
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.reposition(|inner| inner.seek_before(user_key, seq))
    }

    fn next(&mut self) -> Result<()> {
        self.reposition(|inner| inner.next())
    }

    fn prev(&mut self) -> Result<()> {
        self.reposition(|inner| inner.prev())
    }
}
