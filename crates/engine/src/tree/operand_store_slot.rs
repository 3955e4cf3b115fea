//! Operand store of a tree: its state, its reservation, and the objects that connect it with the engine.

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
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::operand_files::{PinnedOperandView, StoreLifetime};

/// An open operand store.
#[derive(Debug)]
pub(crate) struct AttachedStore {
    pub(crate) factory: Arc<dyn OperandStoreFactory>,
    pub(crate) store: Arc<dyn OperandStore>,
    pub(crate) lifetime: Arc<StoreLifetime>,
    /// Token with which the store was opened.
    pub(crate) opened: Option<StoreToken>,
    /// Whether a collection of the store is running.
    pub(crate) is_collecting: AtomicBool,
    /// Whether the store must be recovered before the next collection. Written only by the thread that has reserved the
    /// store.
    pub(crate) is_abandoned: AtomicBool,
    /// Number of collections since the store was opened. Written only by the thread that has reserved the store.
    pub(crate) collection_count: AtomicU64,
    /// Block cache to whose budget the memory of the store is charged.
    pub(crate) cache: Arc<BlockCache>,
    /// Memory of the store in bytes that is currently charged to the block cache.
    pub(crate) charged_bytes: AtomicU64,
    /// Upper bound of the bytes that all stores of the database may have to rewrite.
    pub(crate) total_rewrite_bytes: Arc<AtomicU64>,
    /// Part of `total_rewrite_bytes` that belongs to this store.
    pub(crate) rewrite_bytes: AtomicU64,
}

impl Drop for AttachedStore {
    fn drop(&mut self) {
        self.cache.update_operand_store_bytes(self.charged_bytes.load(Ordering::Relaxed), 0);
        let bytes = self.rewrite_bytes.load(Ordering::Relaxed);
        self.total_rewrite_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl AttachedStore {
    /// Charges the current memory of the store to the block cache, and updates its rewrite bytes.
    pub(crate) fn update_memory_charge(&self) {
        let bytes = self.store.memory_bytes();
        let before = self.charged_bytes.swap(bytes, Ordering::Relaxed);
        if before != bytes {
            self.cache.update_operand_store_bytes(before, bytes);
        }
        let bytes = self.store.rewrite_bytes_max();
        let before = self.rewrite_bytes.swap(bytes, Ordering::Relaxed);
        self.total_rewrite_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.total_rewrite_bytes.fetch_sub(before, Ordering::Relaxed);
    }

    /// Abandons all prepared changes. The caller must have reserved the store, or no other thread uses it.
    pub(crate) fn abandon(&self) {
        self.store.abandon();
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Like [`AttachedStore::abandon`], but also discards the files of these changes. No manifest may contain a token
    /// of these changes, and no append of such a token may have been attempted.
    pub(crate) fn discard_prepared(&self) {
        self.store.discard_prepared();
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Like [`AttachedStore::abandon`], but also deletes the files that the store has created. No manifest may contain a token
    /// of these files.
    pub(crate) fn discard_changes(&self) {
        self.abandon();
        self.lifetime.files.discard_created_files();
    }

    /// Returns whether [`AttachedStore::recover`] must be called before the next collection.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Recovers the store after [`AttachedStore::abandon`]. The caller must have reserved the store.
    pub(crate) fn recover(&self) -> Result<()> {
        self.store.recover()?;
        self.is_abandoned.store(false, Ordering::Release);
        Ok(())
    }

    /// Begins a collection. Returns `None` if a collection is already running.
    pub(crate) fn begin_collection(&self) -> Option<CollectionGuard<'_>> {
        CollectionGuard::begin(&self.is_collecting)
    }

    /// Returns a pinned view that contains the prepared changes.
    pub(crate) fn prepared_view(&self, prepared: PreparedVersion) -> PinnedOperandView {
        self.pin_view(prepared.view, Some(prepared.token))
    }

    /// Returns a pinned view of the store as it was when it was opened.
    pub(crate) fn initial_view(&self) -> PinnedOperandView {
        self.pin_view(self.store.view(), self.opened)
    }

    fn pin_view(&self, view: Arc<dyn OperandView>, token: Option<StoreToken>) -> PinnedOperandView {
        let collection_count = self.collection_count.load(Ordering::Relaxed);
        let _lifetime = Some(Arc::clone(&self.lifetime));
        PinnedOperandView { view, token, collection_count, _lifetime }
    }
}

/// A running collection of an operand store. Dropping the guard ends the collection.
#[derive(Debug)]
pub(crate) struct CollectionGuard<'a>(&'a AtomicBool);

impl CollectionGuard<'_> {
    fn begin(is_collecting: &AtomicBool) -> Option<CollectionGuard<'_>> {
        // The guard must be created only after a success, because dropping it ends the collection.
        (!is_collecting.swap(true, Ordering::AcqRel)).then(|| CollectionGuard(is_collecting))
    }
}

impl Drop for CollectionGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Slot for the operand store of a tree. Contains the state of the store, if the tree has one, and its reservation.
#[derive(Debug, Default)]
pub(crate) struct OperandStoreSlot {
    attached: ArcSwapOption<AttachedStore>,
    /// Set if the tree requires a store that is not open.
    unavailable: ArcSwapOption<UnavailableStore>,
    /// Whether `unavailable` is set.
    is_unavailable: AtomicBool,
    /// WAL segments with operations that the operand store lacks, because the store was not open during recovery.
    kept_log: ArcSwapOption<KeptLog>,
    is_reserved: AtomicBool,
}

/// Reservation of an operand store by one thread. A thread needs it from the first change of the store until the change
/// is installed.
#[derive(Debug)]
pub(crate) struct StoreInstallGuard<'a> {
    slot: &'a OperandStoreSlot,
    progress: &'a Signal,
    pub(crate) attached: Arc<AttachedStore>,
}

impl Drop for StoreInstallGuard<'_> {
    fn drop(&mut self) {
        // A thread that fails without a panic has already abandoned its changes.
        if std::thread::panicking() {
            self.attached.abandon();
        }
        self.slot.release(self.progress);
    }
}

/// Error that another thread has reserved the operand store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreReserved;

impl OperandStoreSlot {
    /// Returns the operand store if it is open.
    pub(crate) fn attached(&self) -> Option<Arc<AttachedStore>> {
        self.attached.load_full()
    }

    /// Returns whether the tree has an operand store, open or not.
    pub(crate) fn is_used(&self) -> bool {
        self.attached.load().is_some() || self.is_unavailable()
    }

    /// Sets the open operand store.
    pub(crate) fn attach(&self, attached: Arc<AttachedStore>) {
        self.attached.store(Some(attached));
        self.is_unavailable.store(false, Ordering::Release);
        self.unavailable.store(None);
    }

    /// Removes the operand store.
    pub(crate) fn detach(&self) {
        self.attached.store(None);
    }

    /// Records that the operand store of the tree is not open. `unavailable` contains the reason.
    pub(crate) fn set_unavailable(&self, unavailable: UnavailableStore) {
        self.unavailable.store(Some(Arc::new(unavailable)));
        self.is_unavailable.store(true, Ordering::Release);
    }

    /// Returns whether the tree requires an operand store that is not open.
    #[inline]
    pub(crate) fn is_unavailable(&self) -> bool {
        self.is_unavailable.load(Ordering::Acquire)
    }

    /// Returns the name of the operand store, open or not.
    pub(crate) fn name(&self) -> Option<String> {
        let open = self.attached.load().as_ref().map(|open| open.factory.name().to_owned());
        open.or_else(|| self.unavailable.load().as_ref().map(|closed| closed.store.clone()))
    }

    /// Returns the operand store as the manifest records it.
    pub(crate) fn stored_options(&self) -> Option<StoredOperandStore> {
        let kept = self.kept_log().map(|kept| (*kept).clone());
        self.name().map(|name| StoredOperandStore::new(name, kept))
    }

    /// Returns the WAL segments with operations that are neither in the tree nor in the store.
    pub(crate) fn kept_log(&self) -> Option<Arc<KeptLog>> {
        self.kept_log.load_full()
    }

    /// Sets the WAL segments with operations that are neither in the tree nor in the store.
    pub(crate) fn set_kept_log(&self, kept: Option<KeptLog>) {
        self.kept_log.store(kept.map(Arc::new));
    }

    /// Returns an error if the tree requires an operand store that is not open.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_unavailable() {
            return Ok(());
        }
        self.unavailable.load().as_ref().map_or(Ok(()), |closed| Err(closed.error()))
    }

    /// Waits until no thread has reserved the operand store, and reserves it. Returns `None` if no store is open.
    pub(crate) fn reserve<'a>(
        &'a self,
        env: &Env,
        progress: &'a Signal,
    ) -> Option<StoreInstallGuard<'a>> {
        self.attached.load().as_ref()?;
        env.wait(WaitCause::BackgroundWork, progress, None, &mut || {
            !self.is_reserved.swap(true, Ordering::AcqRel)
        });
        self.guard(progress)
    }

    /// Reserves the operand store without waiting. Returns `None` if no store is open.
    ///
    /// # Errors
    /// [`StoreReserved`] if another thread has reserved the store.
    pub(crate) fn try_reserve<'a>(
        &'a self,
        progress: &'a Signal,
    ) -> Result<Option<StoreInstallGuard<'a>>, StoreReserved> {
        if self.attached.load().is_none() {
            return Ok(None);
        }
        if self.is_reserved.swap(true, Ordering::AcqRel) {
            return Err(StoreReserved);
        }
        Ok(self.guard(progress))
    }

    /// Returns whether a thread has reserved the operand store.
    pub(crate) fn is_reserved(&self) -> bool {
        self.is_reserved.load(Ordering::Acquire)
    }

    /// Returns the guard for a thread that has just set `is_reserved`.
    fn guard<'a>(&'a self, progress: &'a Signal) -> Option<StoreInstallGuard<'a>> {
        // The store may have been detached during the previous reservation.
        let attached = self.attached();
        if attached.is_none() {
            self.release(progress);
        }
        attached.map(|attached| StoreInstallGuard { slot: self, progress, attached })
    }

    fn release(&self, progress: &Signal) {
        self.is_reserved.store(false, Ordering::Release);
        progress.notify();
    }
}

/// Merges operands for a store with the merge operator of the keyspace.
#[derive(Debug)]
pub(crate) struct ResolverMerger(pub(crate) Arc<MergeResolver>);

impl OperandMerger for ResolverMerger {
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.0.merge_partial_for_store(key, older, newer)
    }
}

/// Counts reads of a store as cache hits and misses of bucket blocks.
#[derive(Debug)]
pub(crate) struct BucketReadCounters(pub(crate) Arc<BlockCache>);

impl OperandReadCounters for BucketReadCounters {
    fn record_hit(&self) {
        self.0.counters.add_hits(BlockKind::Bucket, 1);
    }

    fn record_read(&self, _bytes: u64) {
        self.0.counters.add_miss(BlockKind::Bucket);
    }
}

/// View of an operand store that the tree requires but that is not open. Every read fails.
#[derive(Clone, Debug)]
pub(crate) struct UnavailableStore {
    pub(crate) keyspace: String,
    pub(crate) store: String,
    /// Error of the attempt to open the store. `None` if the options contain no operand store.
    pub(crate) cause: Option<Arc<Error>>,
}

impl UnavailableStore {
    /// Returns the view for a super version.
    pub(crate) fn view(self, token: Option<StoreToken>) -> PinnedOperandView {
        let collection_count = 0;
        PinnedOperandView { view: Arc::new(self), token, collection_count, _lifetime: None }
    }

    fn error(&self) -> Error {
        Error::NoOperandStore {
            keyspace: self.keyspace.clone(),
            store: self.store.clone(),
            cause: self.cause.clone(),
        }
    }
}

impl OperandView for UnavailableStore {
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
        Box::new(UnavailableCursor(self))
    }

    fn copy_to(&self, _: &dyn OperandFiles) -> Result<StoreToken> {
        Err(self.error())
    }
}

/// Cursor of an unavailable operand store. It is never valid, and every move fails.
struct UnavailableCursor(Arc<UnavailableStore>);

impl fmt::Debug for UnavailableCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnavailableCursor").field(&self.0).finish()
    }
}

impl Cursor for UnavailableCursor {
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

    /// Regression test: a failed attempt to begin a collection ended the running collection, so that another one could
    /// begin.
    #[test]
    fn collection_running_second_begin_fails() {
        let is_collecting = AtomicBool::new(false);
        let first = CollectionGuard::begin(&is_collecting).unwrap();
        for _ in 0..3 {
            assert!(CollectionGuard::begin(&is_collecting).is_none());
        }
        drop(first);
        assert!(CollectionGuard::begin(&is_collecting).is_some());
    }
}
