//! Blocks of a damaged table: where they are as far as its indexes tell, and elsewhere by trying.
//!
//! Data blocks stand next to each other from the first byte on, so where one ends the next begins. A block
//! whose place is known and whose length is not ends where a checksum of all before it stands. Behind a
//! damaged one even the place is unknown, and has to be tried as well; its checksum tells it, for place
//! and file are part of that.

use std::path::Path;

use bytes::Bytes;
use lsmx_base::checksum::{StreamingChecksum, location_seed};
use lsmx_base::coding::{get_u64, len_u64, to_usize};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, Compression, Handle, TRAILER_BYTES};
use crate::format::footer::{FOOTER_BYTES, Footer};
use crate::format::index::IndexBlock;
use crate::format::properties::TableProperties;
use crate::vfs::{File, Vfs};

/// Longest block that is looked for where nothing but its beginning is known.
const BLOCK_BYTES_MAX: u64 = 64 << 20;
/// As long a block may be of which not even the beginning is known.
const FOUND_BYTES_MAX: usize = 128 << 10;
/// How far behind a damaged block the next is looked for.
const SEARCH_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are summed at most in search of one block: some seconds.
const SUMMED_BYTES_MAX: u64 = 16 << 30;
/// What a sum costs besides, as bytes.
const SUM_COST_BYTES: u64 = 512;

/// A table as a file, of which nothing is believed.
#[derive(Debug)]
pub(crate) struct Remains<'a> {
    path: &'a Path,
    file: Arc<dyn File>,
    bytes: u64,
    uid: u64,
    properties: Option<TableProperties>,
}

/// Some data blocks, in order.
#[derive(Debug)]
enum Stretch {
    /// An index block tells where they are.
    Told(Vec<Handle>),
    /// They lie from one place to another, if there are any.
    Between(u64, u64),
}

impl<'a> Remains<'a> {
    /// Opens a file for what is left of it. Its uid is `uid`, or if that is not known what its footer says.
    ///
    /// # Errors
    /// It cannot be opened, or its footer is needed and cannot be read.
    pub(crate) fn open(vfs: &dyn Vfs, path: &'a Path, uid: Option<u64>) -> Result<Remains<'a>> {
        let file = vfs.open(path).map_err(|error| Error::io("open", path, error))?;
        let bytes = file.len().map_err(|error| Error::io("read the size of", path, error))?;
        let at = |what: Malformed| {
            Error::malformed(what, path, bytes.saturating_sub(len_u64(FOOTER_BYTES)))
        };
        let mut remains = Remains { path, file, bytes, uid: uid.unwrap_or(0), properties: None };
        let footer = remains.footer();
        match (&footer, uid) {
            (Ok(footer), None) => remains.uid = footer.uid,
            (Err(error), None) => return Err(error.clone()),
            // The uid is what ties blocks to their table, so those of another are none of it.
            (Ok(footer), Some(expected)) if footer.uid != expected => {
                let (what, found) = ("table uid", footer.uid);
                return Err(at(Malformed::Identity { what, expected, found }));
            }
            (_, Some(_)) => {}
        }
        let properties = footer.and_then(|footer| {
            let contents = remains.block(footer.properties, BlockKind::Open)?;
            TableProperties::decode(&contents)
                .map_err(|what| Error::malformed(what, path, footer.properties.offset))
        });
        remains.properties = properties.ok();
        Ok(remains)
    }

    /// The file's uid.
    pub(crate) fn uid(&self) -> u64 {
        self.uid
    }

    /// What the table says of itself, if that can be read.
    pub(crate) fn properties(&self) -> Option<&TableProperties> {
        self.properties.as_ref()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    fn footer(&self) -> Result<Footer> {
        let Some(at) = self.bytes.checked_sub(len_u64(FOOTER_BYTES)) else {
            let (what, needed) = ("table footer", len_u64(FOOTER_BYTES));
            let short = Malformed::Truncated { what, needed, found: self.bytes };
            return Err(Error::malformed(short, self.path, 0));
        };
        let bytes = self.read(at, len_u64(FOOTER_BYTES))?;
        Footer::decode(&bytes).map_err(|what| Error::malformed(what, self.path, at))
    }

    /// The contents of a block.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be.
    pub(crate) fn block(&self, handle: Handle, kind: BlockKind) -> Result<Bytes> {
        let at = |what: Malformed| Error::malformed(what, self.path, handle.offset);
        handle.check(self.bytes).map_err(at)?;
        let stored = self.read(handle.offset, handle.bytes)?;
        block::open(stored, kind, self.uid, handle.offset).map_err(at)
    }

    /// Reads bytes that the file has, by its length.
    fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let at = |what: Malformed| Error::malformed(what, self.path, offset);
        let mut buffer = vec![0; to_usize("bytes of a block", bytes).map_err(at)?];
        let read = self.file.read_at(&mut buffer, offset);
        let found = read.map_err(|error| Error::io("read", self.path, error))?;
        if found < buffer.len() {
            let (needed, found) = (bytes, len_u64(found));
            return Err(at(Malformed::Truncated { what: "table", needed, found }));
        }
        Ok(buffer)
    }

    /// Hands out every data block that can be had, in order: its contents, or why there are none. What is
    /// lost and how long it was is known for those that an index tells of; elsewhere an error stands for
    /// all that lies between two blocks. Returns where the last block ends.
    ///
    /// # Errors
    /// What `visit` says.
    pub(crate) fn data_blocks(
        &self,
        visit: &mut dyn FnMut(Handle, Result<Bytes>) -> Result<()>,
    ) -> Result<u64> {
        let mut end = 0;
        for stretch in self.stretches() {
            match stretch {
                Stretch::Told(handles) => {
                    for handle in handles {
                        visit(handle, self.block(handle, BlockKind::Data))?;
                        end = handle.end().unwrap_or(end);
                    }
                }
                Stretch::Between(from, to) => end = self.walk(from, to, visit)?,
            }
        }
        Ok(end)
    }

    /// The contents of the range tombstone block, for a table whose properties cannot be read: it is
    /// behind the data blocks, if there is one.
    ///
    /// # Errors
    /// It is not there, and something could not be read where it may have been.
    pub(crate) fn find_spans(&self, data_end: u64) -> Result<Option<Bytes>> {
        let (mut at, mut lost) = (data_end, None);
        while at < self.bytes {
            let found = self.block_at(at, self.bytes).or_else(|| {
                lost.get_or_insert(at);
                self.block_behind(at + 1, self.bytes)
            });
            match found {
                Some((handle, BlockKind::RangeTombstones)) => {
                    return self.block(handle, BlockKind::RangeTombstones).map(Some);
                }
                // The properties come last.
                Some((_, BlockKind::Open)) if lost.is_none() => return Ok(None),
                Some((_, BlockKind::Open)) | None => break,
                Some((handle, _)) => at = handle.offset + handle.bytes,
            }
        }
        let at = lost.unwrap_or(self.bytes);
        let (what, expected) = ("block behind the data blocks", "one whose checksum fits");
        Err(Error::malformed(Malformed::Field { what, found: at, expected }, self.path, at))
    }

    /// What index blocks tell, and what lies between.
    fn stretches(&self) -> Vec<Stretch> {
        let data_end = match &self.properties {
            Some(properties) if properties.data_bytes <= self.bytes => properties.data_bytes,
            _ => self.bytes,
        };
        let (mut stretches, mut at) = (Vec::new(), 0);
        for handles in self.told() {
            let Some(first) = handles.first() else { continue };
            if first.offset > at {
                stretches.push(Stretch::Between(at, first.offset));
            }
            at = handles.last().and_then(|last| last.end().ok()).unwrap_or(at).max(at);
            stretches.push(Stretch::Told(handles));
        }
        if at < data_end {
            stretches.push(Stretch::Between(at, data_end));
        }
        stretches
    }

    /// The data blocks of each index block that can be read.
    fn told(&self) -> Vec<Vec<Handle>> {
        let entries = |handle, kind| {
            let contents = self.block(handle, kind).ok()?;
            let entries = IndexBlock::new(contents).ok()?.entries().ok()?;
            Some(entries.into_iter().map(|(_, handle)| handle).collect::<Vec<_>>())
        };
        let top = self.properties.as_ref().and_then(|properties| properties.top_index);
        let indexes = top.and_then(|top| entries(top, BlockKind::TopIndex)).unwrap_or_default();
        indexes.into_iter().filter_map(|index| entries(index, BlockKind::Index)).collect()
    }

    /// Goes from block to block without an index; returns where the data blocks end.
    fn walk(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(Handle, Result<Bytes>) -> Result<()>,
    ) -> Result<u64> {
        let mut at = from;
        while at < to {
            let found = self.block_at(at, to);
            let (handle, kind) = match found {
                Some(found) => found,
                None => {
                    let why = Malformed::Field {
                        what: "data block without an index",
                        found: at,
                        expected: "a block whose checksum fits",
                    };
                    let next = self.block_behind(at + 1, to);
                    let end = next.map_or(to, |(handle, _)| handle.offset);
                    let lost = Handle { offset: at, bytes: end - at };
                    visit(lost, Err(Error::malformed(why, self.path, at)))?;
                    let Some(next) = next else { break };
                    next
                }
            };
            if kind != BlockKind::Data {
                // What comes after the data blocks has begun.
                return Ok(handle.offset);
            }
            visit(handle, self.block(handle, kind))?;
            at = handle.offset + handle.bytes;
        }
        if at == self.bytes {
            // The file ends where a block does, and that was not the last.
            let (what, needed) = ("table", self.bytes + len_u64(FOOTER_BYTES));
            let short = Malformed::Truncated { what, needed, found: self.bytes };
            visit(Handle { offset: at, bytes: 0 }, Err(Error::malformed(short, self.path, at)))?;
        }
        Ok(at)
    }

    /// The block that begins here, wherever it ends.
    fn block_at(&self, at: u64, to: u64) -> Option<(Handle, BlockKind)> {
        let most = (to - at).min(BLOCK_BYTES_MAX);
        // Most blocks are short, and little is read in vain then.
        let mut window = SEARCH_BYTES_MAX.min(most);
        loop {
            let bytes = self.read(at, window).ok()?;
            let mut search = Search::new(self.uid, at, &bytes);
            if let Some(found) = search.block_from(0, bytes.len()) {
                return Some(found);
            }
            if window == most {
                return None;
            }
            window = (window * 8).min(most);
        }
    }

    /// The first block that begins here or a bit later.
    fn block_behind(&self, from: u64, to: u64) -> Option<(Handle, BlockKind)> {
        let longest = len_u64(FOUND_BYTES_MAX);
        let window = to.saturating_sub(from).min(SEARCH_BYTES_MAX + longest);
        let bytes = self.read(from, window).ok()?;
        let mut search = Search::new(self.uid, from, &bytes);
        (0..bytes.len()).find_map(|start| {
            may_begin(&bytes[start..]).then(|| search.block_from(start, FOUND_BYTES_MAX)).flatten()
        })
    }
}

/// Whether a block of a table may begin so: with a coding, or with the length of what is packed.
fn may_begin(bytes: &[u8]) -> bool {
    bytes.len() > TRAILER_BYTES && (bytes[0] <= 1 || bytes[3] == 0)
}

/// A search for blocks in a stretch of a file.
struct Search<'a> {
    uid: u64,
    at: u64,
    bytes: &'a [u8],
    /// Where a block may end: behind what can be a trailer.
    ends: Vec<usize>,
    /// What may yet be spent.
    left: u64,
}

impl<'a> Search<'a> {
    /// Nothing is searched yet of these bytes, which lie at `at` of the file `uid`.
    fn new(uid: u64, at: u64, bytes: &'a [u8]) -> Search<'a> {
        let may_end = |&end: &usize| {
            let trailer = &bytes[end - TRAILER_BYTES..end];
            BlockKind::from_u8(trailer[0]).is_some() && Compression::from_u8(trailer[1]).is_some()
        };
        let ends = (TRAILER_BYTES + 1..=bytes.len()).filter(may_end).collect();
        Search { uid, at, bytes, ends, left: SUMMED_BYTES_MAX }
    }

    /// The block that begins at this place of the bytes, if there is one of at most so many bytes.
    fn block_from(&mut self, start: usize, longest: usize) -> Option<(Handle, BlockKind)> {
        let first = self.ends.partition_point(|&end| end <= start + TRAILER_BYTES);
        let offset = self.at + len_u64(start);
        let mut sum = StreamingChecksum::new(location_seed(self.uid, offset));
        let mut summed = start;
        for &end in self.ends[first..].iter().take_while(|&&end| end - start <= longest) {
            let covered = end - size_of::<u64>();
            self.left = self.left.checked_sub(len_u64(covered - summed) + SUM_COST_BYTES)?;
            sum.update(&self.bytes[summed..covered]);
            summed = covered;
            if get_u64(self.bytes, covered) == Some(sum.digest()) {
                let kind = BlockKind::from_u8(self.bytes[end - TRAILER_BYTES])?;
                return Some((Handle { offset, bytes: len_u64(end - start) }, kind));
            }
        }
        None
    }
}
