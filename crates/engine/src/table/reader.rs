//! An open table: filter → top index → index block → data block.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::filter::Filter;
use lsmx_base::filter::key_hash;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::{BlockBytes, Slice};
use lsmx_base::sync::{Arc, AtomicU64, Ordering};
use lsmx_compaction::FileId;

use crate::cache::{BlockCache, MetadataKind, MetadataSlot, TableMetadataSlots};
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, Handle};
use crate::format::data_block::DataBlock;
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::IndexBlock;
use crate::format::properties::TableProperties;
use crate::format::range_tombstones::FragmentedTombstones;
use crate::table::access::Access;
use crate::table::cursor::TableCursor;
use crate::table::descriptors::{Descriptor, DescriptorPool, FileIdentity, read_exact};
use crate::table::scratch;
use crate::vfs::{File, Vfs, open_uncached};

/// Bytes read from the end of a file when it is opened. Footer and properties fit unless the
/// table's keys are long.
const OPEN_BYTES: u64 = 1024;

/// What the manifest says of a table: the file must be this one and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableIdentity {
    /// The file's number.
    pub id: FileId,
    /// Bytes of the file.
    pub bytes: u64,
    /// The table's random uid.
    pub uid: u64,
    /// XXH3-64 of the whole file.
    pub checksum: u64,
}

/// Whether blocks that are read stay in the cache. Blocks that are there are used in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillCache {
    /// They stay: lookups.
    Yes,
    /// Metadata stays, and of data the block that a search leads to; what a walk goes on to does
    /// not: long scans must not wash out what lookups need.
    No,
    /// They do not stay and are not counted as hits or misses: the work of jobs is not the cost of
    /// any lookup.
    Job,
    /// Metadata that is read before anybody asks for it: it stays, and is not counted.
    Ahead,
    /// Nothing is read: what is not in memory is [`Error::WouldBlock`].
    Memory,
}

impl FillCache {
    /// Whether hits and misses are those of a reader.
    #[inline]
    pub(crate) fn counts(self) -> bool {
        matches!(self, FillCache::Yes | FillCache::No | FillCache::Memory)
    }
}

/// The newest entry of a key that a reader may see in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sequence number.
    pub seq: SeqNo,
    /// What it does.
    pub kind: EntryKind,
    /// Its value, which shares the memory of the cached block.
    pub value: Slice,
}

/// A table, open for reading. Shared by all readers; holds no lock.
#[derive(Debug)]
pub struct Table {
    pub(crate) file: Arc<Descriptor>,
    pub(crate) path: PathBuf,
    pub(crate) identity: TableIdentity,
    pub(crate) properties: TableProperties,
    slots: Arc<TableMetadataSlots>,
    /// This opening's number in the cache.
    cache_id: u64,
    /// When a lookup last came here; a hint for policies, pairs with nothing.
    last_read_us: AtomicU64,
}

impl Table {
    /// Opens a table and reads its footer and properties.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or read (`NotFound` if it is missing),
    /// [`Error::Corrupt`] when it is damaged or another file than `identity` says,
    /// [`Error::UnsupportedVersion`] when a later version wrote it.
    pub fn open(
        vfs: &dyn Vfs,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        Table::open_staying(vfs.open(path), path, identity, cache)
    }

    /// As [`Table::open`]; reads come from the device, see [`open_uncached`].
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(crate) fn open_from_device(
        vfs: &dyn Vfs,
        path: &Path,
        identity: &TableIdentity,
    ) -> Result<Table> {
        Table::open_staying(open_uncached(vfs, path), path, identity, &BlockCache::new(0))
    }

    fn open_staying(
        opened: io::Result<Arc<dyn File>>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        let file = opened.map_err(|error| Error::io("open", path, error))?;
        let descriptor =
            Descriptor::staying(Arc::clone(&file), path, FileIdentity::table(identity));
        Table::open_file(&*file, Arc::new(descriptor), path, identity, cache)
    }

    /// As [`Table::open`], with a descriptor that the pool may close and open again.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(crate) fn open_in(
        pool: &Arc<DescriptorPool>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
        let descriptor = Descriptor::pooled(pool, path, FileIdentity::table(identity));
        let file = descriptor.open_first()?;
        Table::open_file(&*file, descriptor, path, identity, cache)
    }

    fn open_file(
        file: &dyn File,
        descriptor: Arc<Descriptor>,
        path: &Path,
        identity: &TableIdentity,
        cache: &Arc<BlockCache>,
    ) -> Result<Table> {
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
        let tail_at = bytes.saturating_sub(OPEN_BYTES);
        let tail = read_exact(file, path, tail_at, bytes - tail_at)?;
        cache.count_miss(BlockKind::Open);
        let footer = Footer::decode(&tail[tail.len() - FOOTER_BYTES..])
            .map_err(|what| Error::malformed(what, path, footer_at))?;
        if footer.uid != identity.uid {
            let what = "table uid";
            let foreign = Malformed::Identity { what, expected: identity.uid, found: footer.uid };
            return Err(Error::malformed(foreign, path, footer_at));
        }
        let handle = footer.properties;
        handle.check(footer_at).map_err(|what| Error::malformed(what, path, footer_at))?;
        let stored = match handle.offset.checked_sub(tail_at) {
            Some(at) => {
                let at = to_usize("properties", at)
                    .map_err(|what| Error::malformed(what, path, footer_at))?;
                let end = tail.len() - FOOTER_BYTES;
                let bytes = to_usize("properties", handle.bytes).unwrap_or(end);
                tail[at..end.min(at + bytes)].to_vec()
            }
            None => {
                cache.count_miss(BlockKind::Open);
                read_exact(file, path, handle.offset, handle.bytes)?
            }
        };
        let properties = block::open(stored, BlockKind::Open, identity.uid, handle.offset)
            .and_then(|contents| TableProperties::decode(&contents))
            .map_err(|what| Error::malformed(what, path, handle.offset))?;
        let named = [properties.top_index, properties.filter, properties.range_tombstones];
        for handle in named.into_iter().flatten() {
            handle
                .check(footer_at)
                .map_err(|what| Error::malformed(what, path, footer.properties.offset))?;
        }
        let cache_id = match failpoint::is_on(Failpoint::CacheKeyReused) {
            true => cache.next_table_number() % 8,
            false => cache.next_table_number(),
        };
        let keys = properties.smallest.len() + properties.largest.len();
        let key_bytes = len_u64(keys + path.as_os_str().len());
        let slots = TableMetadataSlots::new(cache, key_bytes, properties.index_blocks.min(bytes));
        Ok(Table {
            file: descriptor,
            path: path.to_owned(),
            identity: *identity,
            last_read_us: AtomicU64::new(properties.created_us),
            properties,
            slots,
            cache_id,
        })
    }

    /// The newest entry of `user_key` in this table that is not newer than `snapshot`. Asks the
    /// filter first if `use_filter` says so and there is one. Range tombstones are not looked at:
    /// see [`Table::covering_span`].
    ///
    /// # Errors
    /// When a block cannot be read or is damaged.
    pub fn get(&self, user_key: &[u8], snapshot: SeqNo, use_filter: bool) -> Result<Option<Found>> {
        let mut access = Access::lookup(FillCache::Yes);
        let found = self.look_up(user_key, snapshot, use_filter, &mut access);
        access.settle(self.cache());
        found
    }

    /// As [`Table::get`]; what it met is in `access`, for the caller to count.
    pub(crate) fn look_up(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        use_filter: bool,
        access: &mut Access,
    ) -> Result<Option<Found>> {
        let filtered = use_filter && self.properties.filter.is_some();
        if use_filter && !self.filter_passes(user_key, access)? {
            if filtered {
                access.filter_negative(self.slots.level());
            }
            return Ok(None);
        }
        let found = self.find(user_key, snapshot, access)?;
        if filtered && found.is_none() {
            access.filter_false_positive(self.slots.level());
        }
        Ok(found)
    }

    /// As [`Table::look_up`], without asking the filter.
    fn find(&self, user_key: &[u8], snapshot: SeqNo, access: &mut Access) -> Result<Option<Found>> {
        let Some(handle) = self.seek_block(user_key, snapshot, access)? else {
            return Ok(None);
        };
        // What comes after the block is after (user_key, snapshot), and what comes before it is before:
        // an entry of this key that the reader may see is in this block, or there is none.
        let block = self.data_block(handle, access)?;
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        let block = DataBlock::new(block).map_err(at)?;
        let Some(hit) = block.get(user_key, snapshot).map_err(at)? else {
            return Ok(None);
        };
        // Narrowing what we hold costs nothing, a slice of it would count one more owner.
        let value = Slice::from_block(block.into_bytes().into_range(hit.value_at, hit.value_end));
        Ok(Some(Found { seq: hit.seq, kind: hit.kind, value }))
    }

    /// Brings the filter into memory, if there is one.
    pub(crate) fn read_filter(&self, fill: FillCache) -> Result<()> {
        let Some(handle) = self.properties.filter else { return Ok(()) };
        let slot = &self.slots.filter;
        let access = &mut Access::of(fill);
        self.with_metadata(slot, MetadataKind::Filter, 0, handle, access, Filter::new, |_| Ok(()))
    }

    /// Whether the filter lets this key pass; without a filter, any key.
    ///
    /// # Errors
    /// When the filter cannot be read or is damaged.
    pub fn may_contain(&self, user_key: &[u8]) -> Result<bool> {
        self.filter_passes(user_key, &mut Access::of(FillCache::Yes))
    }

    fn filter_passes(&self, user_key: &[u8], access: &mut Access) -> Result<bool> {
        let Some(handle) = self.properties.filter else {
            return Ok(self.properties.entries > 0);
        };
        let hash = key_hash(user_key);
        let slot = &self.slots.filter;
        self.with_metadata(slot, MetadataKind::Filter, 0, handle, access, Filter::new, |filter| {
            Ok(filter.may_contain(hash))
        })
    }

    /// The newest range delete of this table that covers `user_key` for a reader at `snapshot`.
    ///
    /// # Errors
    /// When the range tombstones cannot be read or are damaged.
    pub fn covering_span(&self, user_key: &[u8], snapshot: SeqNo) -> Result<Option<SeqNo>> {
        self.covering_span_by(user_key, snapshot, &mut Access::of(FillCache::Yes))
    }

    /// As [`Table::covering_span`]; what it met is in `access`, for the caller to count.
    #[inline]
    pub(crate) fn covering_span_by(
        &self,
        user_key: &[u8],
        snapshot: SeqNo,
        access: &mut Access,
    ) -> Result<Option<SeqNo>> {
        self.with_spans(access, |spans| spans.covering(user_key, snapshot)).map(Option::flatten)
    }

    /// All range tombstones of this table, fragmented, in key order.
    ///
    /// # Errors
    /// When they cannot be read or are damaged.
    pub fn spans(&self, fill: FillCache) -> Result<FragmentedTombstones> {
        self.with_spans(&mut Access::of(fill), FragmentedTombstones::clone)
            .map(Option::unwrap_or_default)
    }

    fn with_spans<R>(
        &self,
        access: &mut Access,
        ask: impl FnOnce(&FragmentedTombstones) -> R,
    ) -> Result<Option<R>> {
        let Some(handle) = self.properties.range_tombstones else {
            return Ok(None);
        };
        let slot = &self.slots.range_tombstones;
        let kind = MetadataKind::RangeTombstones;
        let decode = |contents| FragmentedTombstones::decode(&contents);
        self.with_metadata(slot, kind, 0, handle, access, decode, |spans| Ok(Some(ask(spans))))
    }

    /// A cursor over all entries.
    #[must_use]
    pub fn cursor(self: &Arc<Self>, fill: FillCache) -> TableCursor {
        TableCursor::new(self.clone(), Access::of(fill))
    }

    /// A cursor that is part of a lookup.
    pub(crate) fn cursor_by(self: &Arc<Self>, access: Access) -> TableCursor {
        TableCursor::new(self.clone(), access)
    }

    /// Opens the file, if it is not open, and keeps it open until the table goes.
    pub(crate) fn keep_open(&self) -> Result<()> {
        self.file.keep_open()
    }

    /// What the table says of itself.
    #[must_use]
    pub fn properties(&self) -> &TableProperties {
        &self.properties
    }

    /// Which file this is.
    #[must_use]
    pub fn identity(&self) -> &TableIdentity {
        &self.identity
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that a lookup came here.
    #[inline]
    pub fn touch(&self, now_us: u64) {
        self.last_read_us.store(now_us, Ordering::Relaxed);
    }

    /// When a lookup last came here, in microseconds; the table's creation until then.
    #[must_use]
    pub fn last_read_us(&self) -> u64 {
        self.last_read_us.load(Ordering::Relaxed)
    }

    /// Notes which level it lies in.
    pub(crate) fn set_level(&self, level: u8) {
        self.slots.set_level(level);
    }

    /// Takes the filter out of memory, for a table that has come to lie in the last sorted run.
    pub fn release_filter(&self) {
        self.slots.release_filter();
    }

    /// The first data block that can hold an entry at or after (`user_key`, `seq`), or `None` if
    /// all entries are before.
    fn seek_block(
        &self,
        user_key: &[u8],
        seq: SeqNo,
        access: &mut Access,
    ) -> Result<Option<Handle>> {
        let Some((ordinal, handle, count)) = self.with_top_index(access, |top| {
            Ok(top.seek(user_key, seq)?.map(|(ordinal, handle)| (ordinal, handle, top.count())))
        })?
        else {
            return Ok(None);
        };
        let found =
            self.with_index(ordinal, count, handle, access, |index| index.seek(user_key, seq))?;
        match found {
            Some((_, data)) => Ok(Some(data)),
            None => Err(self.levels_disagree(handle)),
        }
    }

    /// An index block whose last separator is before a key that the top index has it hold; only one of
    /// coding 0 has a last separator.
    #[cold]
    pub(crate) fn levels_disagree(&self, index: Handle) -> Error {
        let what = "index blocks and top index are";
        Error::malformed(Malformed::Order { what }, &self.path, index.offset)
    }

    /// The top index, for a cursor to hold on to; `None` if there are no entries.
    pub(crate) fn top_index(&self, access: &mut Access) -> Result<Option<Arc<IndexBlock>>> {
        self.with_top_index(access, |top| Ok(Some(top.clone())))
    }

    /// An index block, for a cursor to hold on to.
    pub(crate) fn index_block(
        &self,
        ordinal: usize,
        top: &IndexBlock,
        handle: Handle,
        access: &mut Access,
    ) -> Result<Arc<IndexBlock>> {
        let found =
            self.with_index(ordinal, top.count(), handle, access, |index| Ok(Some(index.clone())))?;
        found.ok_or_else(|| self.levels_disagree(handle))
    }

    fn with_top_index<R>(
        &self,
        access: &mut Access,
        ask: impl FnOnce(&Arc<IndexBlock>) -> Result<Option<R>, Malformed>,
    ) -> Result<Option<R>> {
        let Some(handle) = self.properties.top_index else {
            return Ok(None);
        };
        let slot = &self.slots.top_index;
        let decode = |contents| self.decode_top_index(contents);
        self.with_metadata(slot, MetadataKind::TopIndex, 0, handle, access, decode, ask)
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
        top: usize,
        count: usize,
        handle: Handle,
        access: &mut Access,
        ask: impl FnOnce(&Arc<IndexBlock>) -> Result<Option<R>, Malformed>,
    ) -> Result<Option<R>> {
        let Some(slot) = self.slots.index_slot(top, count) else {
            return Ok(None);
        };
        self.with_metadata(slot, MetadataKind::Index, top, handle, access, IndexBlock::new, ask)
    }

    /// Asks a metadata block, which is read if it is not in its slot.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "one place for what all metadata has in common")]
    fn with_metadata<T: crate::cache::MetadataBlock, R>(
        &self,
        slot: &MetadataSlot<T>,
        metadata: MetadataKind,
        ordinal: usize,
        handle: Handle,
        access: &mut Access,
        decode: impl FnOnce(Bytes) -> Result<T, Malformed>,
        ask: impl FnOnce(&Arc<T>) -> Result<R, Malformed>,
    ) -> Result<R> {
        let kind = match metadata {
            MetadataKind::Index => BlockKind::Index,
            MetadataKind::TopIndex => BlockKind::TopIndex,
            MetadataKind::Filter => BlockKind::Filter,
            MetadataKind::RangeTombstones => BlockKind::RangeTombstones,
        };
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        if let Some(content) = &*slot.get() {
            access.hit(self.cache(), kind);
            return ask(content).map_err(at);
        }
        let fill = access.may_read(handle)?;
        let contents = self.read_block(handle, kind, fill)?;
        let content = Arc::new(decode(contents).map_err(at)?);
        // Metadata goes before data: a scan keeps what it has read of it, only jobs leave
        // no trace.
        if fill != FillCache::Job {
            self.slots.fill(slot, metadata, ordinal, &content);
        }
        ask(&content).map_err(at)
    }

    /// The contents of a data block.
    #[inline]
    pub(crate) fn data_block(&self, handle: Handle, access: &mut Access) -> Result<BlockBytes> {
        if let Some(block) = self.cache().get_data_block(self.cache_id, handle.offset) {
            access.hit(self.cache(), BlockKind::Data);
            return Ok(block);
        }
        let fill = access.may_read(handle)?;
        let block = self.read_data_block(handle, fill)?;
        if fill == FillCache::Yes {
            self.cache().insert_data_block(self.cache_id, handle.offset, &block);
        }
        Ok(block)
    }

    /// The contents of a data block if they are in memory; does not count as a use.
    pub(crate) fn peek_data_block(
        &self,
        handle: Handle,
        access: &mut Access,
    ) -> Option<BlockBytes> {
        let block = self.cache().peek_data_block(self.cache_id, handle.offset)?;
        access.hit(self.cache(), BlockKind::Data);
        Some(block)
    }

    /// Whether the range tombstones are in memory.
    pub(crate) fn spans_are_resident(&self) -> bool {
        self.slots.range_tombstones.get().is_some()
    }

    /// Whether the filter is in memory.
    pub(crate) fn filter_is_resident(&self) -> bool {
        self.slots.filter.get().is_some()
    }

    /// Whether the top index is in memory.
    pub(crate) fn top_index_is_resident(&self) -> bool {
        self.slots.top_index.get().is_some()
    }

    /// Whether an index block is in memory; `count` is that of all.
    pub(crate) fn index_is_resident(&self, ordinal: usize, count: usize) -> bool {
        self.slots.index_slot(ordinal, count).is_some_and(|slot| slot.get().is_some())
    }

    /// Whether a data block is in memory.
    pub(crate) fn data_is_resident(&self, handle: Handle) -> bool {
        self.cache().peek_data_block(self.cache_id, handle.offset).is_some()
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        self.slots.cache()
    }

    /// Says that a block is about to be read; returns whether the file system reads it ahead.
    ///
    /// # Errors
    /// When the file cannot be opened again.
    pub(crate) fn will_need(&self, handle: Handle) -> Result<bool> {
        self.file.will_need(handle.offset, handle.bytes)
    }

    /// Reads a metadata block from the file and checks it.
    fn read_block(&self, handle: Handle, kind: BlockKind, fill: FillCache) -> Result<Bytes> {
        // Before memory is taken for it.
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        handle.check(self.identity.bytes).map_err(at)?;
        self.file.reading(fill, |source| {
            let stored = self.file.read_exact_from(source, handle.offset, handle.bytes)?;
            if fill.counts() {
                self.cache().count_miss(kind);
            }
            block::open(stored, kind, self.identity.uid, handle.offset).map_err(at)
        })
    }

    /// Reads a data block from the file and checks it.
    fn read_data_block(&self, handle: Handle, fill: FillCache) -> Result<BlockBytes> {
        // Before memory is taken for it.
        let at = |what: Malformed| Error::malformed(what, &self.path, handle.offset);
        handle.check(self.identity.bytes).map_err(at)?;
        let bytes = to_usize("block", handle.bytes).map_err(at)?;
        scratch::with(bytes, |stored| {
            self.file.reading(fill, |source| {
                self.file.fill_from(source, handle.offset, stored)?;
                self.open_data_block(stored, handle, fill)
            })
        })
    }

    /// Checks the bytes of a data block that was read from the file, and copies its contents.
    pub(crate) fn open_data_block(
        &self,
        stored: &[u8],
        handle: Handle,
        fill: FillCache,
    ) -> Result<BlockBytes> {
        if fill.counts() {
            self.cache().count_miss(BlockKind::Data);
        }
        // Jobs let their blocks go again.
        let live = (fill != FillCache::Job).then(|| self.cache().live_blocks());
        block::open_copied(stored, BlockKind::Data, self.identity.uid, handle.offset, live)
            .map_err(|what| Error::malformed(what, &self.path, handle.offset))
    }
}
