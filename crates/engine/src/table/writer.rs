//! Table writer: writes sorted entries to a table file.
//!
//! 1. Entries are added to a data block until [`BlockSplitter`] ends the block. The block is then written, and its
//!    handle and boundary are added to the current index block.
//! 2. Full index blocks are kept in memory. All data blocks are therefore adjacent in the file, and all index blocks as
//!    well.
//! 3. `finish` writes the index blocks, the top index, the filter, the range tombstones, the properties and the footer,
//!    and syncs the file. The caller must sync the directory.

use std::cmp::Ordering;
use std::path::Path;

use bytes::Bytes;
use lsmx_base::coding::len_u64;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::filter::{self, key_hash, prefix_hash};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::range_tombstone::{self, RangeTombstone};

use crate::error::{Error, Result};
use crate::format::block::{
    self, BLOCK_CONTENT_BYTES_MAX, BlockHandle, Compression, TRAILER_BYTES,
};
use crate::format::data_block::{self, DataBlockBuilder};
use crate::format::expiry::{check_expiring_value, entry_bytes, split_expiry};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::{self, Boundary, PrefixIndexBuilder, Separator, SuccinctIndexBuilder};
use crate::format::properties::TableProperties;
use crate::format::range_tombstones;
use crate::format::{BlockKind, FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::table::block_splitter::{BlockSplitter, SplitDecision};
use crate::table::expiry_sketch::ExpirySketch;
use crate::table::file_appender::{APPEND_BYTES, FileAppender};
use crate::table::options::TableOptions;
use crate::vfs::Vfs;

/// Description of a finished table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Uid of the table.
    pub uid: u64,
    /// XXH3-64 checksum of the whole file.
    pub checksum: u64,
    /// Smallest sequence number of a point tombstone or range tombstone.
    pub tombstone_seq_smallest: Option<SeqNo>,
    /// True if the options require a filter that could not be built.
    pub filter_failed: bool,
    /// Properties of the table.
    pub properties: TableProperties,
}

/// Keys that separate a data block from the next data block.
struct BlockEnd {
    /// Boundary that the index block stores after the data block. `None` for the last data block of the table.
    boundary: Option<Boundary>,
    /// Separator that the top index stores if the data block is the last one of its index block.
    separator: Separator,
}

impl BlockEnd {
    fn between_keys(last: InternalKey<'_>, next: Option<InternalKey<'_>>) -> BlockEnd {
        BlockEnd {
            boundary: next.map(|next| Boundary::between(last, next)),
            separator: Separator::between(last, next),
        }
    }
}

/// Writes a table. After an error, all further calls fail, and the caller must delete the file.
#[derive(Debug)]
pub struct TableWriter {
    file: FileAppender,
    uid: u64,
    options: TableOptions,

    data: DataBlockBuilder,
    /// Contents of the block that is written next.
    block: Vec<u8>,
    /// Buffer for compressed contents.
    compressed: Vec<u8>,
    splitter: BlockSplitter,
    index: SuccinctIndexBuilder,
    /// Finished index blocks, each with the separator after it.
    index_blocks: Vec<(Separator, Vec<u8>)>,
    index_blocks_bytes: u64,
    /// Hashes of user keys and key prefixes for the filter.
    key_hashes: Vec<u64>,
    /// Hash of the last prefix that was added.
    last_prefix_hash: Option<u64>,
    range_tombstones: Vec<RangeTombstone>,
    /// See [`TableWriter::set_time_of_new_tombstones`].
    new_tombstones_us: Option<u64>,

    /// Sequence number and kind of the last entry. `data` contains its user key.
    last: Option<(SeqNo, EntryKind)>,
    properties: TableProperties,
    tombstone_seq_smallest: Option<SeqNo>,
    /// Sketch of the expiry times. `None` before the first expiring entry.
    expiry: Option<Box<ExpirySketch>>,
    /// Bytes of all entries, see [`entry_bytes`].
    bytes: u64,
    first_error: Option<Error>,
}

impl TableWriter {
    /// Creates the file of a table. `uid` should be random, because it seeds the checksums of all blocks.
    ///
    /// # Errors
    /// Fails if an option is not valid, if the file already exists, or if the file cannot be created.
    pub fn create(
        vfs: &dyn Vfs,
        path: &Path,
        uid: u64,
        options: &TableOptions,
    ) -> Result<TableWriter> {
        options.validate()?;
        Ok(TableWriter {
            file: FileAppender::create(vfs, path)?,
            uid,
            options: options.clone(),
            data: DataBlockBuilder::new(options.restart_interval, options.block_tags),
            block: Vec::new(),
            compressed: Vec::new(),
            splitter: BlockSplitter::new(
                options.block_bytes as usize,
                options.compression == Compression::None,
            ),
            index: SuccinctIndexBuilder::default(),
            index_blocks: Vec::new(),
            index_blocks_bytes: 0,
            key_hashes: Vec::new(),
            last_prefix_hash: None,
            range_tombstones: Vec::new(),
            new_tombstones_us: None,
            last: None,
            properties: TableProperties { seq_smallest: SeqNo::MAX, ..TableProperties::default() },
            tombstone_seq_smallest: None,
            expiry: None,
            bytes: 0,
            first_error: None,
        })
    }

    /// Adds an entry. Entries must be added in internal-key order.
    ///
    /// # Errors
    /// - [`Error::OutOfOrder`] if the entry is not after the previous entry.
    /// - [`Error::TooLarge`] if the key or the value is too large.
    /// - [`Error::Io`] if the file cannot be written.
    pub fn add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        self.check_no_error()?;
        let added = self.try_add(key, value);
        if let Err(error) = &added {
            self.first_error = Some(error.clone());
        }
        added
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
        check_expiring_value(key.kind, value.len())
            .map_err(|wrong| Error::malformed(wrong, self.file.path(), self.file.bytes()))?;
        if key.seq > SeqNo::MAX {
            let (what, expected) = ("sequence number", "at most 56 bits");
            let wrong = Malformed::Field { what, found: key.seq.0, expected };
            return Err(Error::malformed(wrong, self.file.path(), self.file.bytes()));
        }
        let common = data_block::common_prefix(self.data.last_key(), key.user_key);
        let mut is_new_user_key = true;
        if let Some(last) = self.last_internal_key() {
            let order = last.user_key[common..].cmp(&key.user_key[common..]);
            let order = order.then(key.seq.cmp(&last.seq)).then(key.kind.cmp(&last.kind));
            if order != Ordering::Less {
                return Err(Error::OutOfOrder { path: self.file.path().to_owned() });
            }
            is_new_user_key = common < key.user_key.len() || common < last.user_key.len();
        }
        self.end_block_before(key, common, value)?;
        self.data.add_with_shared_prefix(key, common, value);
        if is_new_user_key && self.options.filter.is_some() {
            self.key_hashes.push(key_hash(key.user_key));
            self.add_prefix(key);
        }
        self.last = Some((key.seq, key.kind));
        let properties = &mut self.properties;
        if properties.entries == 0 {
            properties.smallest = Bytes::copy_from_slice(key.user_key);
        }
        properties.entries += 1;
        properties.key_bytes += len_u64(key.user_key.len());
        properties.value_bytes += len_u64(value.len());
        properties.seq_smallest = properties.seq_smallest.min(key.seq);
        properties.seq_largest = properties.seq_largest.max(key.seq);
        if key.kind == EntryKind::Delete {
            properties.tombstones += 1;
            self.record_tombstone_seq(key.seq);
        }
        let bytes = entry_bytes(key, value);
        self.bytes += bytes;
        if key.kind.is_expiring() {
            self.expiry.get_or_insert_default().add(split_expiry(value).0, bytes);
        }
        Ok(())
    }

    /// Adds the prefix of a key to the filter, except if the previous key has the same prefix.
    #[inline]
    fn add_prefix(&mut self, key: InternalKey<'_>) {
        let prefix = self.options.prefixes.and_then(|prefixes| prefixes.prefix(key.user_key));
        let Some(hash) = prefix.map(prefix_hash) else { return };
        if self.last_prefix_hash.replace(hash) == Some(hash) {
            return;
        }
        if key.kind == EntryKind::Delete && failpoint::is_on(Failpoint::PrefixOfTombstoneOmitted) {
            return;
        }
        self.key_hashes.push(hash);
    }

    /// Ends the data block before this entry if the splitter decides so. `common` is the number of bytes that the user
    /// key shares with the previous user key.
    fn end_block_before(
        &mut self,
        key: InternalKey<'_>,
        common: usize,
        value: &[u8],
    ) -> Result<()> {
        while let Some(last) = self.last.filter(|_| !self.data.is_empty()) {
            let bytes = self.data.bytes() + TRAILER_BYTES;
            let bytes_with = self.data.bytes_after_add(key, common, value) + TRAILER_BYTES;
            match self.splitter.decide_split(&self.data, (bytes, bytes_with), key, common, last) {
                SplitDecision::Continue => break,
                SplitDecision::EndHere(padded_bytes) => {
                    let (seq, kind) = last;
                    let last = InternalKey { user_key: self.data.last_key(), seq, kind };
                    let end = BlockEnd::between_keys(last, Some(key));
                    self.data.finish(&mut self.block);
                    let padding = padded_bytes.map_or(0, |padded| padded.saturating_sub(bytes));
                    self.write_data_block(end, padding)?;
                }
                SplitDecision::EndAt(mark) => {
                    let end = self.data.finish_at_split(mark, &mut self.block, |next| {
                        BlockEnd::between_keys(mark.last_key(), Some(next))
                    });
                    let end = end.map_err(|what| {
                        Error::malformed(what, self.file.path(), self.file.bytes())
                    })?;
                    self.write_data_block(end, 0)?;
                }
            }
        }
        Ok(())
    }

    fn last_internal_key(&self) -> Option<InternalKey<'_>> {
        self.last.map(|(seq, kind)| InternalKey { user_key: self.data.last_key(), seq, kind })
    }

    fn record_tombstone_seq(&mut self, seq: SeqNo) {
        let smallest = &mut self.tombstone_seq_smallest;
        *smallest = Some(smallest.map_or(seq, |smallest| smallest.min(seq)));
    }

    /// Adds a range tombstone. Range tombstones may overlap and may be added in any order. `finish` splits them into
    /// fragments.
    pub fn add_range_tombstone(&mut self, tombstone: RangeTombstone) {
        self.range_tombstones.push(tombstone);
    }

    /// Records the write time of a tombstone in microseconds. The properties contain the smallest of these times.
    pub fn record_tombstone_time(&mut self, us: u64) {
        let oldest = &mut self.properties.oldest_tombstone_us;
        *oldest = Some(oldest.map_or(us, |oldest| oldest.min(us)));
    }

    /// Sets the write time in microseconds of all tombstones if [`TableWriter::record_tombstone_time`] is not called.
    pub fn set_time_of_new_tombstones(&mut self, us: u64) {
        self.new_tombstones_us = Some(us);
    }

    /// Sets the creation time of the table in microseconds.
    pub fn set_creation_time(&mut self, us: u64) {
        self.properties.created_us = us;
    }

    /// Sets the id and the name of the keyspace. The name must have at most 255 bytes.
    pub fn set_keyspace(&mut self, id: u32, name: &str) {
        self.properties.keyspace = Some((id, name.to_owned()));
    }

    /// Marks the table as external. All entries must have the sequence number 0, and all user keys must be different.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn set_external(&mut self) {
        self.properties.is_external = true;
    }

    /// Estimates the size in bytes that the finished file would have without further entries.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        let open = if self.data.is_empty() { 0 } else { self.data.bytes() + TRAILER_BYTES };
        let bits_per_key = self.options.filter.map_or(0, |width| u64::from(width.bits_per_key()));
        let filter = len_u64(self.key_hashes.len()) * bits_per_key / 8;
        self.file.bytes()
            + len_u64(open)
            + self.index_blocks_bytes
            + len_u64(self.index.bytes() + FOOTER_BYTES)
            + filter
    }

    /// Returns the user key of the last entry.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.last.map(|_| self.data.last_key())
    }

    /// Writes the remaining blocks and syncs the file.
    ///
    /// # Errors
    /// - [`Error::EmptyTable`] if no entry and no range tombstone was added.
    /// - [`Error::Io`] if the file cannot be written or synced.
    pub fn finish(mut self) -> Result<TableSummary> {
        self.check_no_error()?;
        let mut tombstones = range_tombstone::fragment(&self.range_tombstones);
        if self.properties.entries == 0 && tombstones.is_empty() {
            return Err(Error::EmptyTable { path: self.file.path().to_owned() });
        }
        if self.properties.tombstones > 0 || !tombstones.is_empty() {
            let oldest = &mut self.properties.oldest_tombstone_us;
            *oldest = oldest.or(self.new_tombstones_us);
        }
        if let Some(last) = self.last_internal_key() {
            let end = BlockEnd::between_keys(last, None);
            let bytes = self.data.bytes() + TRAILER_BYTES;
            let padded_bytes = self.splitter.padded_last_block(bytes, self.index.block_sizes());
            self.data.finish(&mut self.block);
            self.write_data_block(end, padded_bytes.map_or(0, |padded| padded - bytes))?;
        }
        self.properties.data_bytes = self.file.bytes();
        self.properties.expiry = self.expiry.take().and_then(|expiry| expiry.summary(self.bytes));
        self.write_index()?;
        let filter_failed = !self.write_filter()?;
        self.write_range_tombstones(&mut tombstones)?;

        self.properties.encodings = [
            self.data.format_version(),
            index::ENCODING_SUCCINCT,
            self.options.filter.unwrap_or_default().format_code(),
            range_tombstones::ENCODING_FRAGMENTS,
        ];
        self.block = self.properties.encode();
        let properties = self.write_block(BlockKind::Open, Compression::None, 0)?;
        let footer = Footer { properties, uid: self.uid, version: FORMAT_VERSION };
        self.file.write(&footer.encode())?;
        self.file.flush()?;
        if !failpoint::is_on(Failpoint::EditBeforeTableSync) {
            self.file.sync()?;
        }
        Ok(TableSummary {
            bytes: self.file.bytes(),
            uid: self.uid,
            checksum: self.file.checksum(),
            tombstone_seq_smallest: self.tombstone_seq_smallest,
            filter_failed,
            properties: self.properties,
        })
    }

    /// Writes the contents in `block` as a data block, and adds it to the index. `padding` is the number of padding
    /// bytes.
    fn write_data_block(&mut self, end: BlockEnd, padding: usize) -> Result<()> {
        let handle = self.write_block(BlockKind::Data, self.options.compression, padding)?;
        self.splitter.start_block(self.file.bytes());
        self.properties.data_blocks += 1;
        let is_last = end.boundary.is_none();
        self.index.add(handle, end.boundary);
        let target = self.options.index_block_bytes as usize;
        if is_last || self.index.is_full(target.saturating_sub(TRAILER_BYTES)) {
            let contents = self.index.finish();
            self.index_blocks_bytes += len_u64(contents.len() + TRAILER_BYTES);
            self.index_blocks.push((end.separator, contents));
        }
        Ok(())
    }

    /// Writes the index blocks and the top index.
    fn write_index(&mut self) -> Result<()> {
        let start = self.file.bytes();
        let mut top = PrefixIndexBuilder::new();
        for (separator, contents) in std::mem::take(&mut self.index_blocks) {
            self.block = contents;
            let handle = self.write_block(BlockKind::Index, Compression::None, 0)?;
            top.add(separator, handle);
        }
        self.properties.index_blocks = u64::from(top.count());
        self.properties.index_bytes = self.file.bytes() - start;
        if top.count() == 0 {
            return Ok(());
        }
        check_block_bytes("top index", top.bytes())?;
        self.block = top.finish();
        let handle = self.write_block(BlockKind::TopIndex, Compression::None, 0)?;
        self.properties.top_index = Some(handle);
        Ok(())
    }

    /// Writes the filter if the options require one. Returns false if the filter could not be built.
    fn write_filter(&mut self) -> Result<bool> {
        let Some(width) = self.options.filter.filter(|_| !self.key_hashes.is_empty()) else {
            return Ok(true);
        };
        if failpoint::is_on(Failpoint::FilterMissesKey) && self.key_hashes.len() > 1 {
            self.key_hashes.pop();
        }
        let Some(contents) = filter::build_filter(&mut self.key_hashes, width) else {
            return Ok(false);
        };
        self.block = contents;
        let handle = self.write_block(BlockKind::Filter, Compression::None, 0)?;
        self.properties.filter = Some(handle);
        self.properties.prefixes = self.options.prefixes;
        Ok(true)
    }

    /// Writes the fragmented range tombstones, and extends the key range and the sequence range of the table by them.
    fn write_range_tombstones(&mut self, tombstones: &mut [RangeTombstone]) -> Result<()> {
        if let Some(last) = self.last_internal_key() {
            self.properties.largest = Bytes::copy_from_slice(last.user_key);
        }
        let (Some(first), Some(last)) = (tombstones.first(), tombstones.last()) else {
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
        for &seq in tombstones.iter().flat_map(|tombstone| &tombstone.seqs) {
            self.properties.seq_smallest = self.properties.seq_smallest.min(seq);
            self.properties.seq_largest = self.properties.seq_largest.max(seq);
            self.record_tombstone_seq(seq);
        }
        self.properties.range_tombstone_count = len_u64(tombstones.len());
        self.block = range_tombstones::encode(tombstones);
        check_block_bytes("range tombstones", self.block.len())?;
        let handle = self.write_block(BlockKind::RangeTombstones, Compression::None, 0)?;
        self.properties.range_tombstones = Some(handle);
        Ok(())
    }

    /// Encodes the contents in `block` and writes the block. `padding` is the number of padding bytes.
    fn write_block(
        &mut self,
        kind: BlockKind,
        compression: Compression,
        padding: usize,
    ) -> Result<BlockHandle> {
        let offset = self.file.bytes();
        block::encode_block(
            &mut self.block,
            kind,
            compression,
            padding,
            self.uid,
            offset,
            &mut self.compressed,
        );
        let bytes = len_u64(self.block.len());
        let written = self.file.write(&self.block);
        if self.block.len() >= APPEND_BYTES {
            // Free the memory that a single long block needed.
            self.block = Vec::new();
        }
        written?;
        Ok(BlockHandle { offset, bytes })
    }

    fn check_no_error(&self) -> Result<()> {
        self.first_error.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }
}

fn check_block_bytes(what: &'static str, bytes: usize) -> Result<()> {
    let (bytes, limit) = (len_u64(bytes), BLOCK_CONTENT_BYTES_MAX);
    if bytes > limit { Err(Error::TooLarge { what, bytes, limit }) } else { Ok(()) }
}
