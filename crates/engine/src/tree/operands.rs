//! The operand store beside a tree: whether there is one, whose turn it is, and what it is given of
//! the engine.

use std::fmt;

use arc_swap::ArcSwapOption;
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, Ordering, Signal};

use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::env::{Env, WaitCause};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::operand_store::{
    Operand, OperandFiles, OperandMerger, OperandReadCounters, OperandReadTier, OperandStore,
    OperandStoreFactory, OperandView, PreparedVersion, StoreToken,
};
use crate::options::stored::{KeptLog, StoredOperandStore};
use crate::tree::merge_resolver::Merging;
use crate::tree::version::{BesideView, Life};

/// A store that is open beside a tree.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) factory: Arc<dyn OperandStoreFactory>,
    pub(crate) store: Arc<dyn OperandStore>,
    pub(crate) life: Arc<Life>,
    /// The token it was opened with.
    pub(crate) opened: Option<StoreToken>,
    /// A collection is under way.
    pub(crate) collecting: AtomicBool,
    /// What it takes of memory it takes from here.
    pub(crate) cache: Arc<BlockCache>,
    /// Bytes that it was last found to take.
    pub(crate) charged: AtomicU64,
    /// What all stores may have to write anew, and how much of that is this one's.
    pub(crate) rewritten_bytes: Arc<AtomicU64>,
    pub(crate) rewritten: AtomicU64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.cache.replace_operand_store_bytes(self.charged.load(Ordering::Relaxed), 0);
        let rewritten = self.rewritten.load(Ordering::Relaxed);
        self.rewritten_bytes.fetch_sub(rewritten, Ordering::Relaxed);
    }
}

impl Attached {
    /// Looks how much memory the store takes, and how much room on the disk is to be kept for it.
    pub(crate) fn charge(&self) {
        let bytes = self.store.memory_bytes();
        let before = self.charged.swap(bytes, Ordering::Relaxed);
        if before != bytes {
            self.cache.replace_operand_store_bytes(before, bytes);
        }
        let bytes = self.store.rewrite_bytes_max();
        let before = self.rewritten.swap(bytes, Ordering::Relaxed);
        self.rewritten_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.rewritten_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Begins a collection, unless one is under way.
    pub(crate) fn begin_collecting(&self) -> Option<Collecting<'_>> {
        Collecting::begin(&self.collecting)
    }

    /// What super versions have of what was prepared.
    pub(crate) fn beside(&self, prepared: PreparedVersion) -> BesideView {
        let (view, token) = (prepared.view, Some(prepared.token));
        BesideView { view, token, _life: Some(Arc::clone(&self.life)) }
    }

    /// What super versions have of a store that was just opened.
    pub(crate) fn first_view(&self) -> BesideView {
        let (view, token) = (self.store.view(), self.opened);
        BesideView { view, token, _life: Some(Arc::clone(&self.life)) }
    }
}

/// A collection under way.
#[derive(Debug)]
pub(crate) struct Collecting<'a>(&'a AtomicBool);

impl Collecting<'_> {
    fn begin(under_way: &AtomicBool) -> Option<Collecting<'_>> {
        // Made by whoever may have it and nobody else, for dropping it ends the collection.
        (!under_way.swap(true, Ordering::AcqRel)).then(|| Collecting(under_way))
    }
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whether a tree has an operand store, and who is at it.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    attached: ArcSwapOption<Attached>,
    /// The store that it needs and that is not open.
    lacking: ArcSwapOption<Lacking>,
    lacks: AtomicBool,
    /// What the store has not got yet, because it was missing when the log was replayed.
    kept_log: ArcSwapOption<KeptLog>,
    /// Whether somebody has the turn.
    taken: AtomicBool,
}

/// The turn to deliver to a store or to take from it, from the first byte to the commit.
#[derive(Debug)]
pub(crate) struct StoreTurn<'a> {
    beside: &'a Beside,
    progress: &'a Signal,
    pub(crate) attached: Arc<Attached>,
}

impl Drop for StoreTurn<'_> {
    fn drop(&mut self) {
        // Whoever has the turn says so itself if it ends badly, unless it cannot any more.
        if std::thread::panicking() {
            self.attached.store.abandon();
        }
        self.beside.taken.store(false, Ordering::Release);
        self.progress.notify();
    }
}

/// Another thread has reserved the operand store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl Beside {
    /// The store, if it is open.
    pub(crate) fn attached(&self) -> Option<Arc<Attached>> {
        self.attached.load_full()
    }

    /// Whether operands live in a store, given or not.
    pub(crate) fn is_there(&self) -> bool {
        self.attached.load().is_some() || self.lacks()
    }

    /// Gives it the store.
    pub(crate) fn attach(&self, attached: Arc<Attached>) {
        self.attached.store(Some(attached));
        self.lacks.store(false, Ordering::Release);
        self.lacking.store(None);
    }

    /// Takes the store away.
    pub(crate) fn detach(&self) {
        self.attached.store(None);
    }

    /// Says that it needs a store that is not open.
    pub(crate) fn set_lacking(&self, lacking: Lacking) {
        self.lacking.store(Some(Arc::new(lacking)));
        self.lacks.store(true, Ordering::Release);
    }

    /// Whether it needs a store that is not open.
    #[inline]
    pub(crate) fn lacks(&self) -> bool {
        self.lacks.load(Ordering::Acquire)
    }

    /// Name of the store, open or not.
    pub(crate) fn name(&self) -> Option<String> {
        let given = self.attached.load().as_ref().map(|there| there.factory.name().to_owned());
        given.or_else(|| self.lacking.load().as_ref().map(|lacking| lacking.store.clone()))
    }

    /// What the manifest keeps of the store.
    pub(crate) fn stored(&self) -> Option<StoredOperandStore> {
        let kept = self.kept_log().map(|kept| (*kept).clone());
        self.name().map(|name| StoredOperandStore::new(name, kept))
    }

    /// Log segments with operations that neither the tree nor the store has.
    pub(crate) fn kept_log(&self) -> Option<Arc<KeptLog>> {
        self.kept_log.load_full()
    }

    /// Says which log segments hold such operations.
    pub(crate) fn set_kept_log(&self, kept: Option<KeptLog>) {
        self.kept_log.store(kept.map(Arc::new));
    }

    /// Fails if it needs a store that is not open.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.lacks() {
            return Ok(());
        }
        self.lacking.load().as_ref().map_or(Ok(()), |lacking| Err(lacking.error()))
    }

    /// Waits until the store is free and reserves it; `None` if there is no store.
    pub(crate) fn turn<'a>(&'a self, env: &Env, progress: &'a Signal) -> Option<StoreTurn<'a>> {
        self.attached.load().as_ref()?;
        env.wait(WaitCause::BackgroundWork, progress, None, &mut || {
            !self.taken.swap(true, Ordering::AcqRel)
        });
        self.reserved(progress)
    }

    /// Reserves the store if there is one.
    ///
    /// # Errors
    /// [`Busy`] if another thread has it.
    pub(crate) fn try_turn<'a>(
        &'a self,
        progress: &'a Signal,
    ) -> Result<Option<StoreTurn<'a>>, Busy> {
        if self.attached.load().is_none() {
            return Ok(None);
        }
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(Busy);
        }
        Ok(self.reserved(progress))
    }

    /// Whether a thread has reserved the store.
    pub(crate) fn is_reserved(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// The reservation of a thread that has set `taken`.
    fn reserved<'a>(&'a self, progress: &'a Signal) -> Option<StoreTurn<'a>> {
        // The store is detached under a reservation only.
        match self.attached() {
            Some(attached) => Some(StoreTurn { beside: self, progress, attached }),
            None => {
                self.taken.store(false, Ordering::Release);
                progress.notify();
                None
            }
        }
    }
}

/// Folds with the operator of a keyspace, if it has been given.
#[derive(Debug)]
pub(crate) struct Folds(pub(crate) Arc<Merging>);

impl OperandMerger for Folds {
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.0.partial_beside(key, older, newer)
    }
}

/// Counts reads of stores as blocks of their kind.
#[derive(Debug)]
pub(crate) struct Counts(pub(crate) Arc<BlockCache>);

impl OperandReadCounters for Counts {
    fn record_hit(&self) {
        self.0.count_hits(BlockKind::Bucket, 1);
    }

    fn record_read(&self, _bytes: u64) {
        self.0.count_miss(BlockKind::Bucket);
    }
}

/// Stands in super versions for a store that is not open: every use of it is an error.
#[derive(Clone, Debug)]
pub(crate) struct Lacking {
    /// The keyspace.
    pub(crate) keyspace: String,
    /// Name of the store.
    pub(crate) store: String,
    /// Why the store could not be opened; `None` if it was not given.
    pub(crate) cause: Option<Arc<Error>>,
}

impl Lacking {
    /// What super versions have of it.
    pub(crate) fn view(self, token: Option<StoreToken>) -> BesideView {
        BesideView { view: Arc::new(self), token, _life: None }
    }

    fn error(&self) -> Error {
        Error::NoOperandStore {
            keyspace: self.keyspace.clone(),
            store: self.store.clone(),
            cause: self.cause.clone(),
        }
    }
}

impl OperandView for Lacking {
    fn is_empty(&self) -> bool {
        false
    }

    fn may_contain(&self, _: &[u8]) -> bool {
        true
    }

    fn read_operands(
        &self,
        _: &[u8],
        _: SeqNo,
        _: OperandReadTier,
        _: &mut Vec<Operand>,
    ) -> Result<()> {
        Err(self.error())
    }

    fn cursor(self: Arc<Self>, _: SeqNo, _: OperandReadTier) -> Box<dyn Cursor> {
        Box::new(NoCursor(self))
    }

    fn copy_to(&self, _: &dyn OperandFiles) -> Result<StoreToken> {
        Err(self.error())
    }
}

/// Stands nowhere, and fails to move.
struct NoCursor(Arc<Lacking>);

impl fmt::Debug for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NoCursor").field(&self.0).finish()
    }
}

impl Cursor for NoCursor {
    fn valid(&self) -> bool {
        false
    }
    fn key(&self) -> InternalKey<'_> {
        unreachable!("the cursor is never valid")
    }
    fn value(&self) -> &[u8] {
        unreachable!("the cursor is never valid")
    }
    fn value_slice(&self) -> Slice {
        unreachable!("the cursor is never valid")
    }
    fn first(&mut self) -> Result<()> {
        Err(self.0.error())
    }
    fn last(&mut self) -> Result<()> {
        Err(self.0.error())
    }
    fn seek(&mut self, _: &[u8], _: SeqNo) -> Result<()> {
        Err(self.0.error())
    }
    fn seek_before(&mut self, _: &[u8], _: SeqNo) -> Result<()> {
        Err(self.0.error())
    }
    fn next(&mut self) -> Result<()> {
        Err(self.0.error())
    }
    fn prev(&mut self) -> Result<()> {
        Err(self.0.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asked in vain once ended the collection that was under way, and the next began beside it.
    #[test]
    fn one_collection_is_under_way_at_a_time() {
        let under_way = AtomicBool::new(false);
        let first = Collecting::begin(&under_way).unwrap();
        for _ in 0..3 {
            assert!(Collecting::begin(&under_way).is_none());
        }
        drop(first);
        assert!(Collecting::begin(&under_way).is_some());
    }
}
