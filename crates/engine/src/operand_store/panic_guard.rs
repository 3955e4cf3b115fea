//! Turns panics of a user's operand store into errors that name the store.
//!
//! A store whose [`OperandStore::committed`] or [`OperandStore::abandon`] has panicked may not know what became of its last
//! delivery. Such a call is repeated before the store is used again.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering};

use crate::cursor::Cursor;
use crate::error::{Error, Result, UserCode};
use crate::operand_store::{
    Collection, Delivery, Operand, OperandFileKind, OperandFiles, OperandMetrics, OperandReads,
    OperandStore, OperandView, Prepared, Token,
};

/// A store whose calls return an error where those of the inner one panic.
#[derive(Debug)]
pub(crate) struct ContainedStore {
    inner: Arc<dyn OperandStore>,
    name: Arc<str>,
    /// Whether the database is closed. Pairs with the release of its lock.
    closed: Arc<AtomicBool>,
    /// Calls that panicked and must be repeated, oldest first.
    owed: Mutex<Vec<Owed>>,
}

/// A call that settles what a store has prepared.
#[derive(Clone, Copy, Debug)]
enum Owed {
    Committed(Token),
    Abandon,
}

fn contain<T>(name: &str, call: impl FnOnce() -> T) -> Result<T> {
    Error::catch_user(|| UserCode::OperandStore(name.to_owned()), call)
}

fn contain_result<T>(name: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    contain(name, call)?
}

/// Returns [`Error::Closed`] for a read of a file that failed after the close of the database: the next owner may
/// have removed or replaced the file.
fn unless_closed<T>(result: Result<T>, closed: &AtomicBool) -> Result<T> {
    match result {
        Err(Error::Io { .. } | Error::Corrupt { .. } | Error::Missing { .. })
            if closed.load(Ordering::Acquire)
                && !failpoint::is_on(Failpoint::ReadDuringCloseNamesFile) =>
        {
            Err(Error::Closed)
        }
        result => result,
    }
}

impl ContainedStore {
    pub(crate) fn new(
        inner: Arc<dyn OperandStore>,
        name: &str,
        closed: Arc<AtomicBool>,
    ) -> Arc<ContainedStore> {
        Arc::new(ContainedStore { inner, name: name.into(), closed, owed: Mutex::default() })
    }

    fn view_of(&self, inner: Arc<dyn OperandView>) -> Arc<dyn OperandView> {
        let (name, closed) = (Arc::clone(&self.name), Arc::clone(&self.closed));
        Arc::new(ContainedView { inner, name, closed })
    }

    fn prepared(&self, prepared: Prepared) -> Prepared {
        let Prepared { token, view } = prepared;
        Prepared { token, view: self.view_of(view) }
    }

    /// Makes a call that settles, after those that have panicked before.
    fn settle(&self, call: Option<Owed>) -> Result<()> {
        let mut owed = std::mem::take(&mut *self.owed.lock());
        owed.extend(call);
        while let Some(&first) = owed.first() {
            let called = contain(&self.name, || match first {
                Owed::Committed(token) => self.inner.committed(token),
                Owed::Abandon => self.inner.abandon(),
            });
            if let Err(error) = called {
                *self.owed.lock() = owed;
                return Err(error);
            }
            owed.remove(0);
        }
        Ok(())
    }
}

impl OperandStore for ContainedStore {
    fn view(&self) -> Arc<dyn OperandView> {
        let view = contain(&self.name, || self.inner.view());
        self.view_of(view.unwrap_or_else(|error| error.resume_panic()))
    }

    fn deliver(&self, through: SeqNo) -> Result<Box<dyn Delivery + '_>> {
        self.settle(None)?;
        let inner = contain_result(&self.name, || self.inner.deliver(through))?;
        Ok(Box::new(ContainedDelivery { inner, store: self }))
    }

    fn committed(&self, token: Token) {
        // Repeated before the next use.
        let _ = self.settle(Some(Owed::Committed(token)));
    }

    fn abandon(&self) {
        // Repeated before the next use.
        let _ = self.settle(Some(Owed::Abandon));
    }

    fn collection_is_due(&self) -> bool {
        let due = contain(&self.name, || self.inner.collection_is_due());
        due.unwrap_or_else(|error| error.resume_panic())
    }

    fn collect(&self, snapshots: &[SeqNo]) -> Result<Option<Box<dyn Collection + '_>>> {
        self.settle(None)?;
        let collection = contain_result(&self.name, || self.inner.collect(snapshots))?;
        Ok(collection.map(|inner| Box::new(ContainedCollection { inner, store: self }) as _))
    }

    fn collect_all(&self) -> Result<Box<dyn Collection + '_>> {
        self.settle(None)?;
        let inner = contain_result(&self.name, || self.inner.collect_all())?;
        Ok(Box::new(ContainedCollection { inner, store: self }))
    }

    fn check_file(&self, kind: OperandFileKind, number: u64) -> Option<Result<u64>> {
        let checked = contain(&self.name, || self.inner.check_file(kind, number));
        checked.unwrap_or_else(|panicked| Some(Err(panicked)))
    }

    fn leave_out(&self, files: &[(OperandFileKind, u64)]) {
        // The next change of these files calls this again.
        let _ = contain(&self.name, || self.inner.leave_out(files));
    }

    fn live_files(&self) -> Vec<(OperandFileKind, u64)> {
        // A store that does not know of its last commit would name the files of the one before.
        let files =
            self.settle(None).and_then(|()| contain(&self.name, || self.inner.live_files()));
        files.unwrap_or_else(|error| error.resume_panic())
    }

    // Observation must not end what it observes: a store that panics here counts as empty.

    fn memory_bytes(&self) -> u64 {
        contain(&self.name, || self.inner.memory_bytes()).unwrap_or(0)
    }

    fn rewritten_bytes(&self) -> u64 {
        contain(&self.name, || self.inner.rewritten_bytes()).unwrap_or(0)
    }

    fn metrics(&self) -> OperandMetrics {
        contain(&self.name, || self.inner.metrics()).unwrap_or_default()
    }
}

struct ContainedDelivery<'a> {
    inner: Box<dyn Delivery + 'a>,
    store: &'a ContainedStore,
}

impl Delivery for ContainedDelivery<'_> {
    fn may_hold(&self, key: &[u8]) -> bool {
        contain(&self.store.name, || self.inner.may_hold(key)).unwrap_or(true)
    }

    fn operand(&mut self, key: &[u8], seq: SeqNo, operand: &[u8]) -> Result<()> {
        contain_result(&self.store.name, || self.inner.operand(key, seq, operand))
    }

    fn anchor(&mut self, key: &[u8], seq: SeqNo) -> Result<()> {
        contain_result(&self.store.name, || self.inner.anchor(key, seq))
    }

    fn range_anchor(&mut self, start: &[u8], end: Option<&[u8]>, seq: SeqNo) -> Result<()> {
        contain_result(&self.store.name, || self.inner.range_anchor(start, end, seq))
    }

    fn prepare(self: Box<Self>) -> Result<Prepared> {
        let ContainedDelivery { inner, store } = *self;
        contain_result(&store.name, || inner.prepare()).map(|prepared| store.prepared(prepared))
    }
}

struct ContainedCollection<'a> {
    inner: Box<dyn Collection + 'a>,
    store: &'a ContainedStore,
}

impl Collection for ContainedCollection<'_> {
    fn leaving(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        let leaving = contain_result(&self.store.name, || self.inner.leaving())?;
        Ok(leaving.map(|inner| contained_cursor(Ok(inner), &self.store.name, &self.store.closed)))
    }

    fn prepare(self: Box<Self>) -> Result<Prepared> {
        let ContainedCollection { inner, store } = *self;
        contain_result(&store.name, || inner.prepare()).map(|prepared| store.prepared(prepared))
    }
}

#[derive(Debug)]
struct ContainedView {
    inner: Arc<dyn OperandView>,
    name: Arc<str>,
    closed: Arc<AtomicBool>,
}

impl OperandView for ContainedView {
    fn is_empty(&self) -> bool {
        contain(&self.name, || self.inner.is_empty()).unwrap_or(false)
    }

    fn may_hold(&self, key: &[u8]) -> bool {
        contain(&self.name, || self.inner.may_hold(key)).unwrap_or(true)
    }

    fn operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReads,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        let read = contain_result(&self.name, || self.inner.operands(key, at, reads, found));
        unless_closed(read, &self.closed)
    }

    fn will_need(&self, key: &[u8], at: SeqNo) {
        // A hint.
        let _ = contain(&self.name, || self.inner.will_need(key, at));
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReads) -> Box<dyn Cursor> {
        let inner = contain(&self.name, || Arc::clone(&self.inner).cursor(at, reads));
        contained_cursor(inner, &self.name, &self.closed)
    }

    fn keep_open(&self) {
        // A file that is not open is an error of the read that needs it.
        let _ = contain(&self.name, || self.inner.keep_open());
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<Token> {
        unless_closed(contain_result(&self.name, || self.inner.copy_to(target)), &self.closed)
    }
}

fn contained_cursor(
    inner: Result<Box<dyn Cursor>>,
    name: &Arc<str>,
    closed: &Arc<AtomicBool>,
) -> Box<dyn Cursor> {
    Box::new(ContainedCursor { inner, name: Arc::clone(name), closed: Arc::clone(closed) })
}

/// A cursor that is not valid after a panic, as after an error.
struct ContainedCursor {
    inner: Result<Box<dyn Cursor>>,
    name: Arc<str>,
    closed: Arc<AtomicBool>,
}

impl ContainedCursor {
    fn go(&mut self, step: impl FnOnce(&mut dyn Cursor) -> Result<()>) -> Result<()> {
        let inner = self.inner.as_mut().map_err(|error| error.clone())?;
        let moved = contain(&self.name, || step(&mut **inner));
        let moved = moved.unwrap_or_else(|panicked| {
            self.inner = Err(panicked.clone());
            Err(panicked)
        });
        unless_closed(moved, &self.closed)
    }

    fn valid_inner(&self) -> &dyn Cursor {
        // Callers call this only while the cursor is valid, which it is not after an error.
        self.inner.as_deref().expect("the cursor is valid")
    }
}

impl Cursor for ContainedCursor {
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
        self.go(|inner| inner.first())
    }

    fn last(&mut self) -> Result<()> {
        self.go(|inner| inner.last())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.go(|inner| inner.seek(user_key, seq))
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.go(|inner| inner.seek_before(user_key, seq))
    }

    fn next(&mut self) -> Result<()> {
        self.go(|inner| inner.next())
    }

    fn prev(&mut self) -> Result<()> {
        self.go(|inner| inner.prev())
    }
}
