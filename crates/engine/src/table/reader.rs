//! Table reader. A point lookup uses the filter, the top index, an index block and a data block, in this order.

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::filter::{Filter, key_hash, prefix_hash};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::{BlockBytes, Slice};
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_compaction::FileId;

use crate::cache::{BlockCache, MetadataBlock, MetadataKind, MetadataSlot, TableMetadataSlots};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, BlockHandle};
use crate::format::data_block::DataBlock;
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::IndexBlock;
use crate::format::properties::TableProperties;
use crate::format::range_tombstones::FragmentedTombstones;
use crate::table::fd_cache::{CachedFile, FdCache, FileIdentity, read_exact};
use crate::table::read_buffer::with_read_buffer;
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::vfs::{File, Vfs};

/// Number of bytes that are read from the end of the file when a table is opened. They contain the properties, except
/// if the smallest and largest key are long.
const TAIL_BYTES: u64 = 1024;

/// Fields of the manifest record that identify a table file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableIdentity {
    /// Number of the file.
    pub id: FileId,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Random uid of the table.
    pub uid: u64,
    /// XXH3-64 checksum of the whole file.
    pub checksum: u64,
    /// Largest sequence number of an entry. All entries of an ingested table have this sequence number.
    pub seq_largest: SeqNo,
}

/// The newest visible entry of a key in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Sequence number.
    pub seq: SeqNo,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Value of the entry. It shares the memory of the cached block.
    pub value: Slice,
}

/// A table that is open for reading. Several threads can use it concurrently without a lock.
#[derive(Debug)]
pub struct Table {
    pub(super) file: Arc<CachedFile>,
    path: PathBuf,
    identity: TableIdentity,
    properties: TableProperties,
    /// Sequence number of all entries of an ingested table. The file contains 0 instead.
    ingest_seq: Option<SeqNo>,
    slots: Arc<TableMetadataSlots>,
    /// Id of this open table in the keys of the block cache.
    cache_id: u64,
    /// Time of the last lookup in microseconds. Policies use it as a hint, so relaxed ordering is sufficient.
    last_read_us: AtomicU64,
}

impl Table {
    /// Opens a table, and reads its footer and its properties.
    ///
    /// # Errors
    /// - [`Error::Io`] if the file cannot be opened or read, with kind `NotFound` if the file is missing.
    /// - [`Error::Corrupt`] if the file is corrupt or does not match `identity`.
    /// - [`Error::UnsupportedVersion`] if a newer version of lsmx has written the file.
    pub fn open(
        vfs: &dyn Vfs,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        Table::open_pinned(vfs.open(path), path, identity, cache)
    }

    /// Opens a table whose reads bypass all caches, see [`Vfs::open_uncached`].
    pub(crate) fn open_from_device(
        vfs: &dyn Vfs,
        path: &Path,
        identity: &TableIdentity,
    ) -> Result<Table> {
        Table::open_pinned(vfs.open_uncached(path), path, identity, &BlockCache::new(0))
    }

    /// Opens a table. The file descriptor stays open as long as the table is open.
    fn open_pinned(
        opened: io::Result<Arc<dyn File>>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        let file = opened.map_err(|error| Error::io("open", path, error))?;
        let file_identity = FileIdentity::of_table(identity.bytes, identity.uid);
        let pinned = CachedFile::new_pinned(Arc::clone(&file), path, file_identity);
        Table::from_file(&*file, Arc::new(pinned), path, identity, cache)
    }

    /// Opens a table. The descriptor cache may close the file descriptor and reopen the file later.
    pub(crate) fn open_cached(
        fd_cache: &Arc<FdCache>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        let file_identity = FileIdentity::of_table(identity.bytes, identity.uid);
        let cached = CachedFile::new(fd_cache, path, file_identity);
        let file = cached.open_initially()?;
        Table::from_file(&*file, cached, path, identity, cache)
    }

    fn from_file(
        file: &dyn File,
        cached: Arc<CachedFile>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        let properties = read_properties(file, path, identity, cache)?;
        let cache_id = match failpoint::is_on(Failpoint::CacheKeyReused) {
            true => cache.next_cache_id() % 8,
            false => cache.next_cache_id(),
        };
        let key_bytes = properties.smallest.len() + properties.largest.len();
        let key_bytes = len_u64(key_bytes + path.as_os_str().len());
        let slots =
            TableMetadataSlots::new(cache, key_bytes, properties.index_blocks.min(identity.bytes));
        Ok(Table {
            file: cached,
            path: path.to_owned(),
            identity: *identity,
            last_read_us: AtomicU64::new(properties.created_us),
            ingest_seq: properties.is_external.then_some(identity.seq_largest),
            properties,
            slots,
            cache_id,
        })
    }

    /// Returns the newest entry of `user_key` in this table whose sequence number is at most `snapshot`.
    ///
    /// If `use_filter` is true, checks the filter first. Does not consider range tombstones, see
    /// [`Table::covering_tombstone`].
    ///
    /// # Errors
    /// Fails if a block is corrupt or cannot be read.
    #[cfg(any(test, feature = "internals"))]
    pub fn get(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        use_filter: bool,
    ) -> Result<Option<TableEntry>> {
        let mut context = ReadContext::for_lookup(ReadPurpose::Lookup);
        let filter_hash = use_filter.then(|| key_hash(user_key));
        let found = self.get_in_context(user_key, snapshot, filter_hash, &mut context);
        context.publish_counts(self.cache());
        found
    }

    /// Like [`Table::get`], but as part of a larger lookup. The caller publishes the counts in `context`.
    ///
    /// `filter_hash` is the [`key_hash`] of the key, or `None` if the filter must not be used.
    pub(crate) fn get_in_context(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        filter_hash: Option<u64>,
        context: &mut ReadContext,
    ) -> Result<Option<TableEntry>> {
        if self.is_invisible_at(snapshot) {
            return Ok(None);
        }
        let has_filter = filter_hash.is_some() && self.properties.filter.is_some();
        if let Some(hash) = filter_hash
            && !self.may_contain_hash(hash, context)?
        {
            if has_filter {
                context.record_filter_negative(self.slots.level());
            }
            return Ok(None);
        }
        let found = self.get_unfiltered(user_key, snapshot, context)?;
        if has_filter && found.is_none() {
            context.record_filter_false_positive(self.slots.level());
        }
        Ok(found)
    }

    fn get_unfiltered(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        context: &mut ReadContext,
    ) -> Result<Option<TableEntry>> {
        let Some(handle) = self.find_data_block(user_key, snapshot, context)? else {
            return Ok(None);
        };
        // All entries of earlier blocks are before (`user_key`, `snapshot`), and all entries of later blocks are after
        // it. Only this block can contain the entry.
        let block = self.data_block(handle, context)?;
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        let block = DataBlock::new(block).map_err(at)?;
        let Some(hit) = block.get(user_key, snapshot).map_err(at)? else {
            return Ok(None);
        };
        // `into_subrange` reuses the reference to the block. Slicing would increment its reference count.
        let value =
            Slice::from_block(block.into_bytes().into_subrange(hit.value_at, hit.value_end));
        let seq = self.ingest_seq.unwrap_or(hit.seq);
        Ok(Some(TableEntry { seq, kind: hit.kind, value }))
    }

    /// Loads the filter into the cache, if the table has a filter.
    pub(super) fn load_filter(&self, purpose: ReadPurpose) -> Result<()> {
        let Some(handle) = self.properties.filter else { return Ok(()) };
        let slot = &self.slots.filter;
        let context = &mut ReadContext::new(purpose);
        self.with_metadata(slot, MetadataKind::Filter, 0, handle, context, Filter::new, |_| Ok(()))
    }

    /// Returns false if the filter excludes `user_key`. If the table has no filter, returns whether it has entries.
    ///
    /// # Errors
    /// Fails if the filter is corrupt or cannot be read.
    pub fn may_contain(&self, user_key: &[u8]) -> Result<bool> {
        self.may_contain_hash(key_hash(user_key), &mut ReadContext::new(ReadPurpose::Lookup))
    }

    /// Like [`Table::may_contain`], but for a job. The filter is cached, and the access is not counted.
    pub(crate) fn may_contain_for_job(&self, user_key: &[u8]) -> Result<bool> {
        self.may_contain_hash(key_hash(user_key), &mut ReadContext::new(ReadPurpose::WarmUp))
    }

    /// Returns false if the filter excludes a hash. If the table has no filter, returns whether it has entries.
    #[inline]
    fn may_contain_hash(&self, hash: u64, context: &mut ReadContext) -> Result<bool> {
        let Some(handle) = self.properties.filter else {
            return Ok(self.properties.entries > 0);
        };
        let slot = &self.slots.filter;
        self.with_metadata(slot, MetadataKind::Filter, 0, handle, context, Filter::new, |filter| {
            Ok(filter.may_contain(hash))
        })
    }

    /// Returns false if the filter excludes all keys between two bounds. Returns true if the filter contains no
    /// prefixes, or if the keys between the bounds have no common prefix.
    ///
    /// # Errors
    /// Fails if the filter is corrupt or cannot be read.
    pub(crate) fn may_contain_between(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        context: &mut ReadContext,
    ) -> Result<bool> {
        let (Some(_), Some(prefixes)) = (self.properties.filter, self.properties.prefixes) else {
            return Ok(true);
        };
        let Some(prefix) = prefixes.prefix_of_range(lower, upper) else { return Ok(true) };
        self.may_contain_hash(prefix_hash(prefix), context)
    }

    /// Returns whether the filter is in memory.
    pub(crate) fn is_filter_resident(&self) -> bool {
        self.is_resident(MetadataKind::Filter)
    }

    /// Returns the sequence number of the newest range tombstone that covers `user_key` and is visible at `snapshot`.
    ///
    /// # Errors
    /// Fails if the range tombstones are corrupt or cannot be read.
    pub fn covering_tombstone(&self, user_key: &[u8], snapshot: SeqNo) -> Result<Option<SeqNo>> {
        let context = &mut ReadContext::new(ReadPurpose::Lookup);
        self.covering_tombstone_in_context(user_key, snapshot, context)
    }

    /// Like [`Table::covering_tombstone`], but as part of a larger lookup. The caller publishes the counts in
    /// `context`.
    #[inline]
    pub(crate) fn covering_tombstone_in_context(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        context: &mut ReadContext,
    ) -> Result<Option<SeqNo>> {
        let covering =
            |tombstones: &FragmentedTombstones| tombstones.newest_covering_seq(user_key, snapshot);
        self.with_range_tombstones(context, covering).map(Option::flatten)
    }

    /// Returns all range tombstones of this table as fragments in key order.
    ///
    /// # Errors
    /// Fails if the range tombstones are corrupt or cannot be read.
    pub fn range_tombstones(&self, purpose: ReadPurpose) -> Result<FragmentedTombstones> {
        self.range_tombstones_in_context(&mut ReadContext::new(purpose))
    }

    /// Like [`Table::range_tombstones`], but as part of a larger read.
    pub(crate) fn range_tombstones_in_context(
        &self,
        context: &mut ReadContext,
    ) -> Result<FragmentedTombstones> {
        self.with_range_tombstones(context, FragmentedTombstones::clone)
            .map(Option::unwrap_or_default)
    }

    /// Calls `read` with the range tombstones, if the table has any.
    #[inline]
    fn with_range_tombstones<R>(
        &self,
        context: &mut ReadContext,
        read: impl FnOnce(&FragmentedTombstones) -> R,
    ) -> Result<Option<R>> {
        match self.properties.range_tombstones {
            Some(handle) => self.read_range_tombstones(handle, context, read).map(Some),
            None => Ok(None),
        }
    }

    #[inline(never)]
    fn read_range_tombstones<R>(
        &self,
        handle: BlockHandle,
        context: &mut ReadContext,
        read: impl FnOnce(&FragmentedTombstones) -> R,
    ) -> Result<R> {
        let (slot, kind) = (&self.slots.range_tombstones, MetadataKind::RangeTombstones);
        let decode = |contents| FragmentedTombstones::decode(&contents);
        self.with_metadata(slot, kind, 0, handle, context, decode, |spans| Ok(read(spans)))
    }

    /// Records that a flush has written the table through the page cache.
    pub(crate) fn mark_written_cached(&self) {
        self.file.mark_written_cached();
    }

    /// Opens the file if the descriptor cache has closed it. The file then stays open as long as the table is open.
    pub(crate) fn keep_open(&self) -> Result<()> {
        self.file.keep_open()
    }

    /// Returns the properties of the table.
    #[must_use]
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// Returns the identity of the table as the manifest records it.
    #[must_use]
    pub fn identity(&self) -> &TableIdentity {
        &self.identity
    }

    /// Sets the sequence number of all entries of an external table.
    pub(crate) fn set_ingest_seq(&mut self, seq: SeqNo) {
        self.identity.seq_largest = seq;
        self.ingest_seq = self.properties.is_external.then_some(seq);
    }

    /// Returns the sequence number of all entries if the table was ingested. Otherwise, returns `None`, because the
    /// file contains the sequence numbers.
    #[inline]
    pub(crate) fn ingest_seq(&self) -> Option<SeqNo> {
        self.ingest_seq
    }

    /// Returns whether the table was ingested after `snapshot`.
    #[inline]
    pub(crate) fn is_invisible_at(&self, snapshot: SeqNo) -> bool {
        self.ingest_seq.is_some_and(|seq| seq > snapshot)
            && !failpoint::is_on(Failpoint::IngestIgnoresSnapshot)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records the time of a lookup in microseconds.
    #[inline]
    pub fn record_read(&self, now_us: u64) {
        self.last_read_us.store(now_us, Ordering::Relaxed);
    }

    /// Returns the time of the last lookup in microseconds. Before the first lookup, returns the creation time of the
    /// table.
    #[must_use]
    pub fn last_read_us(&self) -> u64 {
        self.last_read_us.load(Ordering::Relaxed)
    }

    /// Sets the level to which filter results are attributed.
    pub(crate) fn set_level(&self, level: u8) {
        self.slots.set_level(level);
    }

    /// Removes the filter from the cache. Called if the table becomes part of the last sorted run.
    pub fn release_filter(&self) {
        self.slots.release_filter();
    }

    /// Returns the first data block that can contain an entry at or after (`user_key`, `seq`). Returns `None` if all
    /// entries are before this position.
    fn find_data_block(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        context: &mut ReadContext,
    ) -> Result<Option<BlockHandle>> {
        let Some((ordinal, handle, count)) = self.with_top_index(context, |top| {
            Ok(top.seek(user_key, seq)?.map(|(ordinal, handle)| (ordinal, handle, top.count())))
        })?
        else {
            return Ok(None);
        };
        let found =
            self.with_index(ordinal, count, handle, context, |index| index.seek(user_key, seq))?;
        match found {
            Some((_, data)) => Ok(Some(data)),
            None => Err(self.index_order_error(handle)),
        }
    }

    /// Returns the error for an index block whose last separator is before a key that the top index assigns to it. Only
    /// the prefix encoding stores a last separator.
    #[cold]
    pub(super) fn index_order_error(&self, index: BlockHandle) -> Error {
        let what = "index blocks and top index are";
        Error::malformed(Malformed::Order { what }, &self.path, index.offset)
    }

    /// Returns the top index, or `None` if the table has no entries.
    pub(super) fn top_index(&self, context: &mut ReadContext) -> Result<Option<Arc<IndexBlock>>> {
        self.with_top_index(context, |top| Ok(Some(top.clone())))
    }

    /// Returns the index block with this ordinal.
    pub(super) fn index_block(
        &self,
        ordinal: usize,
        top: &IndexBlock,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Result<Arc<IndexBlock>> {
        let clone = |index: &Arc<IndexBlock>| Ok(Some(index.clone()));
        let found = self.with_index(ordinal, top.count(), handle, context, clone)?;
        found.ok_or_else(|| self.index_order_error(handle))
    }

    fn with_top_index<R>(
        &self,
        context: &mut ReadContext,
        read: impl FnOnce(&Arc<IndexBlock>) -> Result<Option<R>, Malformed>,
    ) -> Result<Option<R>> {
        let Some(handle) = self.properties.top_index else {
            return Ok(None);
        };
        let slot = &self.slots.top_index;
        let decode = |contents| self.decode_top_index(contents);
        self.with_metadata(slot, MetadataKind::TopIndex, 0, handle, context, decode, read)
    }

    fn decode_top_index(&self, contents: Bytes) -> Result<IndexBlock, Malformed> {
        let top = IndexBlock::new(contents)?;
        if len_u64(top.count()) != self.properties.index_blocks {
            return Err(Malformed::Field {
                what: "entries of the top index",
                found: len_u64(top.count()),
                expected: "as many as the properties say",
            });
        }
        Ok(top)
    }

    fn with_index<R>(
        &self,
        ordinal: usize,
        count: usize,
        handle: BlockHandle,
        context: &mut ReadContext,
        read: impl FnOnce(&Arc<IndexBlock>) -> Result<Option<R>, Malformed>,
    ) -> Result<Option<R>> {
        let Some(slot) = self.slots.index_slot(ordinal, count) else {
            return Ok(None);
        };
        self.with_metadata(
            slot,
            MetadataKind::Index,
            ordinal,
            handle,
            context,
            IndexBlock::new,
            read,
        )
    }

    /// Calls `read` with a metadata block. If its slot is empty, the block is first read from the file.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "shared by all kinds of metadata")]
    fn with_metadata<T: MetadataBlock, R>(
        &self,
        slot: &MetadataSlot<T>,
        metadata: MetadataKind,
        ordinal: usize,
        handle: BlockHandle,
        context: &mut ReadContext,
        decode: impl FnOnce(Bytes) -> Result<T, Malformed>,
        read: impl FnOnce(&Arc<T>) -> Result<R, Malformed>,
    ) -> Result<R> {
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        if let Some(content) = &*slot.get() {
            context.record_hit(self.cache(), metadata.block_kind());
            return read(content).map_err(at);
        }
        let content = self.load_metadata(slot, metadata, ordinal, handle, context, decode)?;
        read(&content).map_err(at)
    }

    /// Reads a metadata block from the file, and fills its slot.
    ///
    /// This is a separate function, so that only the cache-hit path is inlined into lookups.
    #[cold]
    fn load_metadata<T: MetadataBlock>(
        &self,
        slot: &MetadataSlot<T>,
        metadata: MetadataKind,
        ordinal: usize,
        handle: BlockHandle,
        context: &mut ReadContext,
        decode: impl FnOnce(Bytes) -> Result<T, Malformed>,
    ) -> Result<Arc<T>> {
        let purpose = context.admit_read(handle)?;
        let contents = self.read_block(handle, metadata.block_kind(), purpose)?;
        let decoded = decode(contents);
        let content = decoded.map_err(|what| Error::malformed(what, &self.path, handle.offset))?;
        let content = Arc::new(content);
        if purpose != ReadPurpose::Job {
            self.slots.fill(slot, metadata, ordinal, &content);
        }
        Ok(content)
    }

    /// Returns the contents of a data block from the cache or from the file.
    #[inline]
    pub(super) fn data_block(
        &self,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Result<BlockBytes> {
        if let Some(block) = self.cache().get_data_block(self.cache_id, handle.offset) {
            context.record_hit(self.cache(), BlockKind::Data);
            return Ok(block);
        }
        let purpose = context.admit_read(handle)?;
        let block = self.read_data_block(handle, purpose)?;
        if purpose == ReadPurpose::Lookup {
            self.cache().insert_data_block(self.cache_id, handle.offset, &block);
        }
        Ok(block)
    }

    /// Returns the contents of a data block if the cache contains it. Does not mark the block as used.
    pub(super) fn peek_data_block(
        &self,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Option<BlockBytes> {
        let block = self.cache().peek_data_block(self.cache_id, handle.offset)?;
        context.record_hit(self.cache(), BlockKind::Data);
        Some(block)
    }

    /// Returns whether the filter, the top index or the range tombstones are in memory. For index blocks, use
    /// [`Table::is_index_block_resident`].
    pub(super) fn is_resident(&self, kind: MetadataKind) -> bool {
        match kind {
            MetadataKind::Filter => self.slots.filter.get().is_some(),
            MetadataKind::TopIndex => self.slots.top_index.get().is_some(),
            MetadataKind::RangeTombstones => self.slots.range_tombstones.get().is_some(),
            MetadataKind::Index => false,
        }
    }

    /// Returns whether the index block with this ordinal is in memory. `count` is the number of index blocks.
    pub(super) fn is_index_block_resident(&self, ordinal: usize, count: usize) -> bool {
        self.slots.index_slot(ordinal, count).is_some_and(|slot| slot.get().is_some())
    }

    /// Returns whether a data block is in memory.
    pub(super) fn is_data_block_resident(&self, handle: BlockHandle) -> bool {
        self.cache().peek_data_block(self.cache_id, handle.offset).is_some()
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        self.slots.cache()
    }

    /// Estimates how many bytes of data blocks a scan of `entries` entries reads, including the block to which it
    /// seeks.
    pub(super) fn estimate_scan_bytes(&self, entries: u64) -> u64 {
        let (blocks, all_entries) = (self.properties.data_blocks.max(1), self.properties.entries);
        // On average, a seek leads to the middle of a block.
        let further = entries.saturating_mul(blocks).saturating_add(all_entries / 2);
        let further = further / all_entries.max(1);
        further.saturating_add(1).saturating_mul(self.properties.data_bytes / blocks)
    }

    /// Hints to the file system that a block will be read. Returns whether the file system prefetches the block or has
    /// it in memory.
    pub(crate) fn will_need(&self, handle: BlockHandle) -> Result<bool> {
        self.file.will_need(handle.offset, handle.bytes)
    }

    /// Reads a metadata block from the file and verifies it.
    fn read_block(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        purpose: ReadPurpose,
    ) -> Result<Bytes> {
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        // A corrupt handle must not cause a large allocation.
        handle.check_bounds(self.identity.bytes).map_err(at)?;
        self.file.read_with_retry(purpose, |source| {
            let read = || self.file.read_exact_from(source, handle.offset, handle.bytes);
            let stored = self.file.measure_read(purpose, read)?;
            if purpose.is_counted_in_statistics() {
                self.cache().counters.add_miss(kind);
            }
            block::decode_block(stored, kind, self.identity.uid, handle.offset).map_err(at)
        })
    }

    /// Reads a data block from the file and verifies it.
    fn read_data_block(&self, handle: BlockHandle, purpose: ReadPurpose) -> Result<BlockBytes> {
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        // A corrupt handle must not cause a large allocation.
        handle.check_bounds(self.identity.bytes).map_err(at)?;
        let bytes = to_usize("block", handle.bytes).map_err(at)?;
        with_read_buffer(bytes, |stored| {
            self.file.read_with_retry(purpose, |source| {
                self.file.read_from_source(source, handle.offset, stored)?;
                self.decode_data_block(stored, handle, purpose)
            })
        })
    }

    /// Verifies the stored bytes of a data block, and returns a copy of its decompressed contents.
    pub(super) fn decode_data_block(
        &self,
        stored: &[u8],
        handle: BlockHandle,
        purpose: ReadPurpose,
    ) -> Result<BlockBytes> {
        if purpose.is_counted_in_statistics() {
            self.cache().counters.add_miss(BlockKind::Data);
        }
        // The cache counts the bytes of blocks that readers hold. Blocks of jobs are not counted, because a job holds
        // only a few blocks at a time.
        let live = (purpose != ReadPurpose::Job).then(|| self.cache().live_block_counter());
        block::decode_block_copy(stored, BlockKind::Data, self.identity.uid, handle.offset, live)
            .map_err(|what| Error::malformed(what, &self.path, handle.offset))
    }
}

/// Reads the end of a table file, and checks the size of the file, its footer and its properties.
fn read_properties(
    file: &dyn File,
    path: &Path,
    identity: &TableIdentity,
    cache: &BlockCache,
) -> Result<TableProperties> {
    let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
    if bytes != identity.bytes {
        let what = "table size";
        let wrong = Malformed::Identity { what, expected: identity.bytes, found: bytes };
        return Err(Error::malformed(wrong, path, 0));
    }
    let footer_bytes = len_u64(FOOTER_BYTES);
    let Some(footer_at) = bytes.checked_sub(footer_bytes) else {
        let what = "table footer";
        let short = Malformed::Truncated { what, needed: footer_bytes, found: bytes };
        return Err(Error::malformed(short, path, 0));
    };
    let tail_at = bytes.saturating_sub(TAIL_BYTES);
    let tail = read_exact(file, path, tail_at, bytes - tail_at)?;
    cache.counters.add_miss(BlockKind::Open);
    let footer = Footer::decode(&tail[tail.len() - FOOTER_BYTES..])
        .map_err(|what| Error::malformed(what, path, footer_at))?;
    if footer.uid != identity.uid {
        let what = "table uid";
        let foreign = Malformed::Identity { what, expected: identity.uid, found: footer.uid };
        return Err(Error::malformed(foreign, path, footer_at));
    }
    let handle = footer.properties;
    handle.check_bounds(footer_at).map_err(|what| Error::malformed(what, path, footer_at))?;
    let stored = match handle.offset.checked_sub(tail_at) {
        Some(start) => {
            let start = to_usize("properties", start)
                .map_err(|what| Error::malformed(what, path, footer_at))?;
            let end = tail.len() - FOOTER_BYTES;
            let bytes = to_usize("properties", handle.bytes).unwrap_or(end);
            tail[start..end.min(start + bytes)].to_vec()
        }
        None => {
            cache.counters.add_miss(BlockKind::Open);
            read_exact(file, path, handle.offset, handle.bytes)?
        }
    };
    let properties = block::decode_block(stored, BlockKind::Open, identity.uid, handle.offset)
        .and_then(|contents| TableProperties::decode(&contents))
        .map_err(|what| Error::malformed(what, path, handle.offset))?;
    let handles = [properties.top_index, properties.filter, properties.range_tombstones];
    for handle in handles.into_iter().flatten() {
        handle
            .check_bounds(footer_at)
            .map_err(|what| Error::malformed(what, path, footer.properties.offset))?;
    }
    Ok(properties)
}
