//! Finds the blocks of a damaged table.
//!
//! Readable index blocks list the data blocks. The other data blocks are found by a search. Data blocks are adjacent
//! and start at offset 0, so a block starts where the previous block ends. The last bytes of a block are its checksum,
//! so the search tries each end until the checksum matches. After a damaged block, the search also tries each start.
//! The checksum covers the table uid and the offset, so a match identifies a block.

use std::path::Path;

use bytes::Bytes;
use lsmx_base::checksum::{StreamingChecksum, file_location_seed};
use lsmx_base::coding::{get_u64, len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, BlockHandle, TRAILER_BYTES};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::IndexBlock;
use crate::format::properties::TableProperties;
use crate::vfs::{File, Vfs};

/// Maximum size of a block with a known start, in bytes.
const KNOWN_START_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of a block with an unknown start, in bytes.
const UNKNOWN_START_BYTES_MAX: usize = 128 << 10;
/// Maximum distance between a damaged block and the next one, in bytes.
const SEARCH_BYTES_MAX: u64 = 1 << 20;
/// Maximum bytes to checksum in one search. A search of this size takes some seconds.
const CHECKSUM_BYTES_MAX: u64 = 16 << 30;
/// Fixed cost of one checksum, expressed as a number of checksummed bytes.
const CHECKSUM_COST_BYTES: u64 = 512;

/// Receives the contents of a data block, or the error of a range of the file without a readable data block.
type BlockVisitor<'a> = dyn FnMut(BlockHandle, Result<Bytes>) -> Result<()> + 'a;

/// A table file that may be damaged anywhere.
#[derive(Debug)]
pub(crate) struct DamagedTable<'a> {
    path: &'a Path,
    file: Arc<dyn File>,
    bytes: u64,
    uid: u64,
    /// `None` if the properties cannot be read.
    properties: Option<TableProperties>,
}

/// A range of the file with data blocks.
#[derive(Debug)]
enum DataRegion {
    /// The blocks in a readable index block.
    Indexed(Vec<BlockHandle>),
    /// A range without a readable index block: start and end offset.
    Unindexed(u64, u64),
}

impl<'a> DamagedTable<'a> {
    /// Opens a table file. Without `uid`, the uid is read from the footer.
    pub(crate) fn open(
        vfs: &dyn Vfs,
        path: &'a Path,
        uid: Option<u64>,
    ) -> Result<DamagedTable<'a>> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        let mut table = DamagedTable { path, file, bytes, uid: uid.unwrap_or(0), properties: None };
        let footer = table.read_footer();
        match (&footer, uid) {
            (Ok(footer), None) => table.uid = footer.uid,
            (Err(error), None) => return Err(error.clone()),
            // Block checksums depend on the uid, so no block of another table could be read.
            (Ok(footer), Some(expected)) if footer.uid != expected => {
                let what = Malformed::Identity { what: "table uid", expected, found: footer.uid };
                let offset = bytes.saturating_sub(len_u64(FOOTER_BYTES));
                return Err(Error::malformed(what, path, offset));
            }
            (_, Some(_)) => {}
        }
        let properties = footer.and_then(|footer| {
            let contents = table.read_block(footer.properties, BlockKind::Open)?;
            TableProperties::decode(&contents)
                .map_err(|what| Error::malformed(what, path, footer.properties.offset))
        });
        table.properties = properties.ok();
        Ok(table)
    }

    pub(crate) fn uid(&self) -> u64 {
        self.uid
    }

    /// Returns the properties, if they can be read.
    pub(crate) fn properties(&self) -> Option<&TableProperties> {
        self.properties.as_ref()
    }

    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    fn read_footer(&self) -> Result<Footer> {
        let Some(offset) = self.bytes.checked_sub(len_u64(FOOTER_BYTES)) else {
            let (what, needed) = ("table footer", len_u64(FOOTER_BYTES));
            let short = Malformed::Truncated { what, needed, found: self.bytes };
            return Err(Error::malformed(short, self.path, 0));
        };
        let bytes = self.read(offset, len_u64(FOOTER_BYTES))?;
        Footer::decode(&bytes).map_err(|what| Error::malformed(what, self.path, offset))
    }

    /// Reads the contents of a block.
    pub(crate) fn read_block(&self, handle: BlockHandle, kind: BlockKind) -> Result<Bytes> {
        let corrupt = |what: Malformed| Error::malformed(what, self.path, handle.offset);
        handle.check_bounds(self.bytes).map_err(corrupt)?;
        let stored = self.read(handle.offset, handle.bytes)?;
        block::decode_block(stored, kind, self.uid, handle.offset).map_err(corrupt)
    }

    fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let corrupt = |what: Malformed| Error::malformed(what, self.path, offset);
        let mut buffer = vec![0; to_usize("bytes of a block", bytes).map_err(corrupt)?];
        let read = self.file.read_at(&mut buffer, offset);
        let found = read.map_err(|error| Error::io("read", self.path, error))?;
        if found < buffer.len() {
            let (what, needed, found) = ("table", bytes, len_u64(found));
            return Err(corrupt(Malformed::Truncated { what, needed, found }));
        }
        Ok(buffer)
    }

    /// Passes each data block in file order to `visit`, as its contents or an error. Without an index, `visit` receives
    /// one error for the whole gap between two readable blocks. Returns the end offset of the last block.
    ///
    /// # Errors
    /// The errors of `visit`.
    pub(crate) fn data_blocks(&self, visit: &mut BlockVisitor<'_>) -> Result<u64> {
        let mut end = 0;
        for region in self.data_regions() {
            match region {
                DataRegion::Indexed(handles) => {
                    self.announce(&handles);
                    for handle in handles {
                        visit(handle, self.read_block(handle, BlockKind::Data))?;
                        end = handle.end_offset().unwrap_or(end);
                    }
                }
                DataRegion::Unindexed(from, to) => end = self.scan_for_blocks(from, to, visit)?,
            }
        }
        Ok(end)
    }

    /// Gives the file system a read-ahead hint for the blocks of one index block.
    fn announce(&self, handles: &[BlockHandle]) {
        if let [first, .., last] = handles {
            let end = last.end_offset().unwrap_or(self.bytes).min(self.bytes);
            self.file.will_need(first.offset, end.saturating_sub(first.offset));
        }
    }

    /// Finds the range tombstone block of a table without readable properties. The search starts at the end of the data
    /// blocks. Returns the contents of the block, or `None` if the table has no range tombstones.
    pub(crate) fn find_range_tombstones(&self, data_end: u64) -> Result<Option<Bytes>> {
        let (mut offset, mut unreadable) = (data_end, None);
        while offset < self.bytes {
            let found = self.read_block_at(offset, self.bytes).or_else(|| {
                unreadable.get_or_insert(offset);
                self.next_block(offset + 1, self.bytes)
            });
            match found {
                Some((handle, BlockKind::RangeTombstones)) => {
                    return self.read_block(handle, BlockKind::RangeTombstones).map(Some);
                }
                // The properties are the last block, so the table has no range tombstones.
                Some((_, BlockKind::Open)) if unreadable.is_none() => return Ok(None),
                Some((_, BlockKind::Open)) | None => break,
                Some((handle, _)) => offset = handle.offset + handle.bytes,
            }
        }
        let offset = unreadable.unwrap_or(self.bytes);
        let expected = "a block with a matching checksum";
        let what = Malformed::invalid_field("block after the data blocks", offset, expected);
        Err(Error::malformed(what, self.path, offset))
    }

    /// Divides the data blocks into indexed and unindexed regions.
    fn data_regions(&self) -> Vec<DataRegion> {
        let data_end = match &self.properties {
            Some(properties) if properties.data_bytes <= self.bytes => properties.data_bytes,
            _ => self.bytes,
        };
        let (mut regions, mut offset) = (Vec::new(), 0);
        for handles in self.read_indexes() {
            let Some(first) = handles.first() else { continue };
            if first.offset > offset {
                regions.push(DataRegion::Unindexed(offset, first.offset));
            }
            let end = handles.last().and_then(|last| last.end_offset().ok());
            offset = end.unwrap_or(offset).max(offset);
            regions.push(DataRegion::Indexed(handles));
        }
        if offset < data_end {
            regions.push(DataRegion::Unindexed(offset, data_end));
        }
        regions
    }

    /// Returns the data blocks of each readable index block.
    fn read_indexes(&self) -> Vec<Vec<BlockHandle>> {
        let entries = |handle, kind| {
            let contents = self.read_block(handle, kind).ok()?;
            let entries = IndexBlock::new(contents).ok()?.entries().ok()?;
            Some(entries.into_iter().map(|(_, handle)| handle).collect::<Vec<_>>())
        };
        let top = self.properties.as_ref().and_then(|properties| properties.top_index);
        let indexes = top.and_then(|top| entries(top, BlockKind::TopIndex)).unwrap_or_default();
        indexes.into_iter().filter_map(|index| entries(index, BlockKind::Index)).collect()
    }

    /// Finds and visits data blocks without an index. Returns the end of the last one.
    fn scan_for_blocks(&self, from: u64, to: u64, visit: &mut BlockVisitor<'_>) -> Result<u64> {
        let mut offset = from;
        while offset < to {
            let (handle, kind) = match self.read_block_at(offset, to) {
                Some(found) => found,
                None => {
                    let expected = "a block with a matching checksum";
                    let why =
                        Malformed::invalid_field("data block without an index", offset, expected);
                    let next = self.next_block(offset + 1, to);
                    let end = next.map_or(to, |(handle, _)| handle.offset);
                    let unreadable = BlockHandle { offset, bytes: end - offset };
                    visit(unreadable, Err(Error::malformed(why, self.path, offset)))?;
                    let Some(next) = next else { break };
                    next
                }
            };
            if kind != BlockKind::Data {
                // A block of another kind follows the last data block.
                return Ok(handle.offset);
            }
            visit(handle, self.read_block(handle, kind))?;
            offset = handle.offset + handle.bytes;
        }
        if offset == self.bytes {
            // The file ends after a data block, so at least its footer is cut off.
            let (what, needed) = ("table", self.bytes + len_u64(FOOTER_BYTES));
            let short = Malformed::Truncated { what, needed, found: self.bytes };
            let why = Error::malformed(short, self.path, offset);
            visit(BlockHandle { offset, bytes: 0 }, Err(why))?;
        }
        Ok(offset)
    }

    /// Finds the block that starts at `offset` and ends before `to`.
    fn read_block_at(&self, offset: u64, to: u64) -> Option<(BlockHandle, BlockKind)> {
        let bytes_max = (to - offset).min(KNOWN_START_BYTES_MAX);
        // Starts with a small window, because most blocks are small.
        let mut window = SEARCH_BYTES_MAX.min(bytes_max);
        loop {
            let bytes = self.read(offset, window).ok()?;
            let mut search = BlockSearch::new(self.uid, offset, &bytes);
            if let Some(found) = search.find_block_from(0, bytes.len()) {
                return Some(found);
            }
            if window == bytes_max {
                return None;
            }
            window = (window * 8).min(bytes_max);
        }
    }

    /// Finds the first block that starts at `from` or within [`SEARCH_BYTES_MAX`] after it.
    fn next_block(&self, from: u64, to: u64) -> Option<(BlockHandle, BlockKind)> {
        let window_max = SEARCH_BYTES_MAX + len_u64(UNKNOWN_START_BYTES_MAX);
        let bytes = self.read(from, to.saturating_sub(from).min(window_max)).ok()?;
        let mut search = BlockSearch::new(self.uid, from, &bytes);
        (0..bytes.len()).find_map(|start| {
            can_start_block(&bytes[start..])
                .then(|| search.find_block_from(start, UNKNOWN_START_BYTES_MAX))
                .flatten()
        })
    }
}

/// Returns whether `bytes` may be the start of a block. A block starts with an encoding or with the size of the
/// compressed data.
fn can_start_block(bytes: &[u8]) -> bool {
    bytes.len() > TRAILER_BYTES && (bytes[0] <= 1 || bytes[3] == 0)
}

/// Searches for blocks in a range of a file.
struct BlockSearch<'a> {
    uid: u64,
    /// Offset of `bytes` in the file.
    offset: u64,
    bytes: &'a [u8],
    /// Positions in `bytes` at which a block may end, because the bytes before look like a block trailer.
    ends: Vec<usize>,
    /// Number of bytes that may still be checksummed.
    budget_bytes: u64,
}

impl<'a> BlockSearch<'a> {
    fn new(uid: u64, offset: u64, bytes: &'a [u8]) -> BlockSearch<'a> {
        let can_end_block = |&end: &usize| {
            let trailer = &bytes[end - TRAILER_BYTES..end];
            BlockKind::from_u8(trailer[0]).is_some() && block::is_compression_byte(trailer[1])
        };
        let ends = (TRAILER_BYTES + 1..=bytes.len()).filter(can_end_block).collect();
        BlockSearch { uid, offset, bytes, ends, budget_bytes: CHECKSUM_BYTES_MAX }
    }

    /// Finds the block of at most `bytes_max` bytes that starts at position `start`.
    fn find_block_from(
        &mut self,
        start: usize,
        bytes_max: usize,
    ) -> Option<(BlockHandle, BlockKind)> {
        let first = self.ends.partition_point(|&end| end <= start + TRAILER_BYTES);
        let offset = self.offset + len_u64(start);
        let mut checksum = StreamingChecksum::new(file_location_seed(self.uid, offset));
        let mut summed = start;
        for &end in self.ends[first..].iter().take_while(|&&end| end - start <= bytes_max) {
            let covered = end - size_of::<u64>();
            let cost = len_u64(covered - summed) + CHECKSUM_COST_BYTES;
            self.budget_bytes = self.budget_bytes.checked_sub(cost)?;
            checksum.update(&self.bytes[summed..covered]);
            summed = covered;
            if get_u64(self.bytes, covered) == Some(checksum.digest()) {
                let kind = BlockKind::from_u8(self.bytes[end - TRAILER_BYTES])?;
                return Some((BlockHandle { offset, bytes: len_u64(end - start) }, kind));
            }
        }
        None
    }
}
