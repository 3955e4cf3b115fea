//! Sorted entries → table file.
//!
//! 1. Entries gather in a data block until it is about as long as it should be (`block_end.rs`). The
//!    block is sealed and queued for the file; where it ends goes into an index block.
//! 2. Full index blocks wait in memory, so that all data blocks are next to each other in the file,
//!    and all index blocks too.
//! 3. `finish` writes index blocks, top index, filter, range tombstones, properties and footer, and
//!    syncs the file. The name is the directory's business, and that is the caller's.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::filter;
use lsmx_base::filter::key_hash;
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::{self, RangeTombstone};
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::block::{self, BLOCK_CONTENT_BYTES_MAX, Compression, Handle, TRAILER_BYTES};
use crate::format::data_block::{self, DataBlockBuilder};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::{self, Boundary, PrefixIndexBuilder, Separator, SuccinctIndexBuilder};
use crate::format::properties::TableProperties;
use crate::format::range_tombstones;
use crate::format::{BlockKind, FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::table::block_end::{BlockEnd, BlockEnds};
use crate::table::options::TableOptions;
use crate::vfs::{File, Vfs};

/// Bytes gathered before they are handed to the file.
const APPEND_BYTES: usize = 256 << 10;

/// What a finished table is, for the manifest and for the shape of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Bytes of the file.
    pub bytes: u64,
    /// The table's uid.
    pub uid: u64,
    /// XXH3-64 of the whole file.
    pub checksum: u64,
    /// Smallest user key of an entry or start of a range tombstone.
    pub smallest: Bytes,
    /// Largest user key of an entry, or the end of a range tombstone if that is larger: for an end
    /// that is the smallest key after another, that other key.
    pub largest: Bytes,
    /// Entries of all kinds.
    pub entries: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Fragmented range tombstones.
    pub range_tombstones: u64,
    /// Bytes of the user keys of all entries.
    pub key_bytes: u64,
    /// Bytes of the values of all entries.
    pub value_bytes: u64,
    /// Smallest sequence number.
    pub seq_smallest: SeqNo,
    /// Largest sequence number.
    pub seq_largest: SeqNo,
    /// When the oldest tombstone was written, in microseconds, as far as it was noted.
    pub oldest_tombstone_us: Option<u64>,
    /// Smallest sequence number of a tombstone, those of range tombstones included.
    pub tombstone_seq_smallest: Option<SeqNo>,
    /// When the table was written, in microseconds, as noted.
    pub created_us: u64,
    /// Data blocks.
    pub data_blocks: u64,
    /// Bytes of the filter block in the file, 0 without one.
    pub filter_bytes: u64,
    /// Bytes of the index blocks in the file, the top index not among them.
    pub index_bytes: u64,
    /// Bytes of the top index in the file.
    pub top_index_bytes: u64,
    /// Whether a filter was wanted and could not be built.
    pub filter_failed: bool,
}

/// How a data block ends.
struct Ending {
    /// For its index block; none after the last of the table.
    boundary: Option<Boundary>,
    /// For the top index, should the index block end here too.
    separator: Separator,
}

impl Ending {
    fn between(last: InternalKey<'_>, next: Option<InternalKey<'_>>) -> Ending {
        Ending {
            boundary: next.map(|next| Boundary::between(last, next)),
            separator: Separator::between(last, next),
        }
    }
}

/// Writes one table. A writer that returned an error is of no further use; the file it leaves is
/// the caller's to remove.
#[derive(Debug)]
pub struct TableWriter {
    file: Arc<dyn File>,
    path: PathBuf,
    uid: u64,
    options: TableOptions,

    /// Bytes for the file that wait for [`APPEND_BYTES`].
    pending: Vec<u8>,
    /// Bytes handed to the file and pending.
    offset: u64,
    checksum: StreamingChecksum,

    data: DataBlockBuilder,
    sealed: Vec<u8>,
    scratch: Vec<u8>,
    ends: BlockEnds,
    index: SuccinctIndexBuilder,
    index_blocks: Vec<(Separator, Vec<u8>)>,
    index_blocks_bytes: u64,
    hashes: Vec<u64>,
    spans: Vec<RangeTombstone>,

    /// Number and kind of the last entry; the data block has its user key.
    last: Option<(SeqNo, EntryKind)>,
    properties: TableProperties,
    /// Kept by the manifest, for the table has no property for it.
    tombstone_seq_smallest: Option<SeqNo>,
    failed: Option<Error>,
}

impl TableWriter {
    /// Creates the file of a table. `uid` should be random: it ties every block to this table.
    ///
    /// # Errors
    /// When an option is out of range, or the file cannot be created (its name being taken
    /// included).
    pub fn create(
        vfs: &dyn Vfs,
        path: &Path,
        uid: u64,
        options: &TableOptions,
    ) -> Result<TableWriter> {
        options.validate()?;
        let file = vfs.create(path).map_err(|error| Error::io("create", path, error))?;
        Ok(TableWriter {
            file,
            path: path.to_owned(),
            uid,
            options: options.clone(),
            pending: Vec::with_capacity(APPEND_BYTES),
            offset: 0,
            checksum: StreamingChecksum::new(0),
            data: DataBlockBuilder::new(options.restart_interval, options.block_tags),
            sealed: Vec::new(),
            scratch: Vec::new(),
            ends: BlockEnds::new(options.block_bytes as usize),
            index: SuccinctIndexBuilder::default(),
            index_blocks: Vec::new(),
            index_blocks_bytes: 0,
            hashes: Vec::new(),
            spans: Vec::new(),
            last: None,
            properties: TableProperties { seq_smallest: SeqNo::MAX, ..TableProperties::default() },
            tombstone_seq_smallest: None,
            failed: None,
        })
    }

    /// Adds an entry, which must be larger than the one before.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] if it is not, [`Error::TooLarge`] past the limits of keys and values;
    /// else when the file cannot be written.
    pub fn add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        self.check_usable()?;
        let added = self.try_add(key, value);
        self.remember(added)
    }

    fn try_add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        for (what, bytes, limit) in [
            ("key", len_u64(key.user_key.len()), KEY_BYTES_MAX),
            ("value", len_u64(value.len()), VALUE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Error::TooLarge { what, bytes, limit });
            }
        }
        if key.seq > SeqNo::MAX {
            let (what, expected) = ("sequence number", "at most 56 bits");
            let wrong = Malformed::Field { what, found: key.seq.0, expected };
            return Err(Error::malformed(wrong, &self.path, self.offset));
        }
        let common = data_block::common_prefix(self.data.last_key(), key.user_key);
        let mut new_user_key = true;
        if let Some(last) = self.last() {
            // From the first byte that differs on.
            let order = last.user_key[common..].cmp(&key.user_key[common..]);
            let order = order.then(key.seq.cmp(&last.seq)).then(key.kind.cmp(&last.kind));
            if order != Ordering::Less {
                return Err(Error::OutOfOrder { path: self.path.clone() });
            }
            new_user_key = common < key.user_key.len() || common < last.user_key.len();
        }
        self.end_block_before(key, common, value)?;
        self.data.add_with(key, common, value);
        if new_user_key && self.options.filter.is_some() {
            self.hashes.push(key_hash(key.user_key));
        }
        self.last = Some((key.seq, key.kind));
        let properties = &mut self.properties;
        if properties.entries == 0 {
            properties.smallest = Bytes::copy_from_slice(key.user_key);
        }
        properties.entries += 1;
        if key.kind == EntryKind::Delete {
            properties.tombstones += 1;
            let smallest = &mut self.tombstone_seq_smallest;
            *smallest = Some(smallest.map_or(key.seq, |seq| seq.min(key.seq)));
        }
        properties.key_bytes += len_u64(key.user_key.len());
        properties.value_bytes += len_u64(value.len());
        properties.seq_smallest = properties.seq_smallest.min(key.seq);
        properties.seq_largest = properties.seq_largest.max(key.seq);
        Ok(())
    }

    /// Ends the data block if it is to end before this entry, which has its first `common` bytes in
    /// common with the last one.
    fn end_block_before(
        &mut self,
        key: InternalKey<'_>,
        common: usize,
        value: &[u8],
    ) -> Result<()> {
        while let Some(last) = self.last.filter(|_| !self.data.is_empty()) {
            let bytes = self.data.bytes() + TRAILER_BYTES;
            let with = self.data.bytes_with(key, common, value) + TRAILER_BYTES;
            match self.ends.before(&self.data, (bytes, with), key, common, last) {
                BlockEnd::No => break,
                BlockEnd::Here => {
                    let (seq, kind) = last;
                    let last = InternalKey { user_key: self.data.last_key(), seq, kind };
                    let end = Ending::between(last, Some(key));
                    self.data.finish(&mut self.sealed);
                    self.write_data_block(end)?;
                }
                BlockEnd::At(mark) => {
                    let end = self.data.finish_at_split(mark, &mut self.sealed, |next| {
                        Ending::between(mark.last(), Some(next))
                    });
                    let end =
                        end.map_err(|what| Error::malformed(what, &self.path, self.offset))?;
                    self.write_data_block(end)?;
                }
            }
        }
        Ok(())
    }

    /// The key of the last entry.
    fn last(&self) -> Option<InternalKey<'_>> {
        self.last.map(|(seq, kind)| InternalKey { user_key: self.data.last_key(), seq, kind })
    }

    /// Adds a range tombstone. Any order, and any overlap with others, will do: what is written is
    /// fragmented.
    pub fn add_span(&mut self, span: RangeTombstone) {
        self.spans.push(span);
    }

    /// Notes when a tombstone of this table was written; the oldest is kept.
    pub fn note_tombstone_time(&mut self, us: u64) {
        let oldest = &mut self.properties.oldest_tombstone_us;
        *oldest = Some(oldest.map_or(us, |oldest| oldest.min(us)));
    }

    /// Notes when the table is written.
    pub fn note_created(&mut self, us: u64) {
        self.properties.created_us = us;
    }

    /// Notes which keyspace the table is for: its id and its name, of at most 255 bytes.
    pub fn note_keyspace(&mut self, id: u32, name: &str) {
        self.properties.keyspace = Some((id, name.to_owned()));
    }

    /// Bytes that the file would have if it were finished now, about.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        let open = if self.data.is_empty() { 0 } else { self.data.bytes() + TRAILER_BYTES };
        let bits_per_key = self.options.filter.map_or(0, |width| u64::from(width.bits_per_key()));
        let filter = len_u64(self.hashes.len()) * bits_per_key / 8;
        self.offset
            + len_u64(open)
            + self.index_blocks_bytes
            + len_u64(self.index.bytes() + FOOTER_BYTES)
            + filter
    }

    /// Entries added so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// User key of the last entry.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.last.map(|_| self.data.last_key())
    }

    /// Writes what is left and syncs the file.
    ///
    /// # Errors
    /// [`Error::EmptyTable`] if nothing was added; else when the file cannot be written or synced.
    pub fn finish(mut self) -> Result<TableSummary> {
        self.check_usable()?;
        let mut spans = range_tombstone::fragment(&self.spans);
        if self.properties.entries == 0 && spans.is_empty() {
            return Err(Error::EmptyTable { path: self.path });
        }
        if let Some(last) = self.last() {
            let end = Ending::between(last, None);
            self.data.finish(&mut self.sealed);
            self.write_data_block(end)?;
        }
        self.properties.data_bytes = self.offset;
        let top_index_bytes = self.write_indexes()?;
        let (filter_bytes, filter_failed) = self.write_filter()?;
        self.write_spans(&mut spans)?;

        self.properties.encodings = [
            self.data.coding(),
            index::ENCODING_SUCCINCT,
            self.options.filter.unwrap_or_default().coding(),
            range_tombstones::ENCODING_FRAGMENTS,
        ];
        self.sealed = self.properties.encode();
        let properties = self.write_block(BlockKind::Open, Compression::None)?;
        let footer = Footer { properties, uid: self.uid, version: FORMAT_VERSION };
        self.sealed = footer.encode();
        self.append_sealed()?;
        self.flush()?;
        if !failpoint::is_on(Failpoint::EditBeforeTableSync) {
            self.file.sync().map_err(|error| Error::io("sync", &self.path, error))?;
        }
        let properties = self.properties;
        Ok(TableSummary {
            bytes: self.offset,
            uid: self.uid,
            checksum: self.checksum.digest(),
            smallest: properties.smallest,
            largest: properties.largest,
            entries: properties.entries,
            tombstones: properties.tombstones,
            range_tombstones: properties.range_tombstone_count,
            key_bytes: properties.key_bytes,
            value_bytes: properties.value_bytes,
            seq_smallest: properties.seq_smallest,
            seq_largest: properties.seq_largest,
            oldest_tombstone_us: properties.oldest_tombstone_us,
            tombstone_seq_smallest: self.tombstone_seq_smallest,
            created_us: properties.created_us,
            data_blocks: properties.data_blocks,
            filter_bytes,
            index_bytes: properties.index_bytes,
            top_index_bytes,
            filter_failed,
        })
    }

    /// Queues the data block just sealed for the file and gives it its place in the index.
    fn write_data_block(&mut self, end: Ending) -> Result<()> {
        let handle = self.write_block(BlockKind::Data, self.options.compression)?;
        self.properties.data_blocks += 1;
        self.index_data_block(handle, end);
        Ok(())
    }

    /// Gives a data block, which ends as said, its place in the index.
    fn index_data_block(&mut self, handle: Handle, end: Ending) {
        let is_last = end.boundary.is_none();
        self.index.add(handle, end.boundary);
        let target = self.options.index_block_bytes as usize;
        if is_last || self.index.is_full(target.saturating_sub(TRAILER_BYTES)) {
            let contents = self.index.finish();
            self.index_blocks_bytes += len_u64(contents.len() + TRAILER_BYTES);
            self.index_blocks.push((end.separator, contents));
        }
    }

    /// Writes index blocks and top index; returns the bytes of the latter in the file.
    fn write_indexes(&mut self) -> Result<u64> {
        let start = self.offset;
        let mut top = PrefixIndexBuilder::new();
        for (separator, contents) in std::mem::take(&mut self.index_blocks) {
            self.sealed = contents;
            let handle = self.write_block(BlockKind::Index, Compression::None)?;
            top.add(separator, handle);
        }
        self.properties.index_blocks = u64::from(top.count());
        self.properties.index_bytes = self.offset - start;
        if top.count() == 0 {
            return Ok(0);
        }
        let bytes = len_u64(top.bytes());
        if bytes > BLOCK_CONTENT_BYTES_MAX {
            let limit = BLOCK_CONTENT_BYTES_MAX;
            return Err(Error::TooLarge { what: "top index", bytes, limit });
        }
        self.sealed = top.finish();
        let handle = self.write_block(BlockKind::TopIndex, Compression::None)?;
        self.properties.top_index = Some(handle);
        Ok(handle.bytes)
    }

    /// Writes the filter; returns its bytes in the file, and whether it could not be built.
    fn write_filter(&mut self) -> Result<(u64, bool)> {
        let Some(width) = self.options.filter.filter(|_| !self.hashes.is_empty()) else {
            return Ok((0, false));
        };
        if failpoint::is_on(Failpoint::FilterMissesKey) && self.hashes.len() > 1 {
            self.hashes.pop();
        }
        let Some(contents) = filter::build_filter(&mut self.hashes, width) else {
            return Ok((0, true));
        };
        self.sealed = contents;
        let handle = self.write_block(BlockKind::Filter, Compression::None)?;
        self.properties.filter = Some(handle);
        Ok((handle.bytes, false))
    }

    fn write_spans(&mut self, spans: &mut [RangeTombstone]) -> Result<()> {
        if let Some(last) = self.last() {
            self.properties.largest = Bytes::copy_from_slice(last.user_key);
        }
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Ok(());
        };
        let properties = &mut self.properties;
        if properties.entries == 0 || first.start < properties.smallest {
            properties.smallest = first.start.clone();
        }
        let end = last.largest_key().unwrap_or(&last.start);
        if *end > *properties.largest {
            properties.largest = Bytes::copy_from_slice(end);
        }
        for seq in spans.iter().flat_map(|span| &span.seqs) {
            properties.seq_smallest = properties.seq_smallest.min(*seq);
            properties.seq_largest = properties.seq_largest.max(*seq);
            let smallest = &mut self.tombstone_seq_smallest;
            *smallest = Some(smallest.map_or(*seq, |smallest| smallest.min(*seq)));
        }
        properties.range_tombstone_count = len_u64(spans.len());
        self.sealed = range_tombstones::encode(spans);
        let (bytes, limit) = (len_u64(self.sealed.len()), BLOCK_CONTENT_BYTES_MAX);
        if bytes > limit {
            return Err(Error::TooLarge { what: "range tombstones", bytes, limit });
        }
        let handle = self.write_block(BlockKind::RangeTombstones, Compression::None)?;
        self.properties.range_tombstones = Some(handle);
        Ok(())
    }

    /// Seals the contents in `sealed` as a block and queues it for the file.
    fn write_block(&mut self, kind: BlockKind, compression: Compression) -> Result<Handle> {
        let offset = self.offset;
        block::seal(&mut self.sealed, kind, compression, self.uid, offset, &mut self.scratch);
        let bytes = len_u64(self.sealed.len());
        self.append_sealed()?;
        Ok(Handle { offset, bytes })
    }

    /// Queues the bytes in `sealed` for the file.
    fn append_sealed(&mut self) -> Result<()> {
        self.checksum.update(&self.sealed);
        self.offset += len_u64(self.sealed.len());
        if self.pending.len() + self.sealed.len() > APPEND_BYTES {
            self.flush()?;
        }
        if self.sealed.len() >= APPEND_BYTES {
            let appended = self.file.append(&self.sealed);
            // A block this long is rare; its memory is not kept for the small ones to come.
            self.sealed = Vec::new();
            return appended.map_err(|error| Error::io("append to", &self.path, error));
        }
        self.pending.extend_from_slice(&self.sealed);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            let appended = self.file.append(&self.pending);
            self.pending.clear();
            appended.map_err(|error| Error::io("append to", &self.path, error))?;
        }
        Ok(())
    }

    fn check_usable(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Keeps the first error: no later call may answer as if nothing had been.
    fn remember(&mut self, result: Result<()>) -> Result<()> {
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }
}
