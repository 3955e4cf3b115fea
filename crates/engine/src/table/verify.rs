//! Verification of a table: checks that the table is consistent and matches its manifest record.

use lsmx_base::coding::len_u64;
use lsmx_base::filter::{Filter, key_hash, prefix_hash};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, BlockHandle};
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::expiry::{entry_bytes, expiry_of};
use crate::format::index::{IndexBlock, Separator};
use crate::format::range_tombstones::FragmentedTombstones;
use crate::table::reader::Table;

/// Reads a whole table without the cache. Checks these conditions:
///
/// 1. The checksums of all blocks and of the file are correct.
/// 2. Keys are in order, and searches inside data blocks find them.
/// 3. Both levels of the index lead to each key, and their separators separate the blocks.
/// 4. The filter does not exclude any key or its prefix.
/// 5. The properties match the contents.
/// 6. An external table contains one put or delete per key, with the sequence number 0.
///
/// # Errors
/// Returns the first violation with its offset, or the error of a read.
pub fn verify_table(table: &Table) -> Result<()> {
    // Blocks are verified first, so that an error names the corrupt block instead of the file.
    verify_table_blocks(table)?;
    let (expected, found) =
        (table.identity().checksum, table.file.compute_checksum(table.identity().bytes)?);
    if found != expected {
        return Err(Error::malformed(Malformed::Checksum { expected, found }, table.path(), 0));
    }
    Ok(())
}

/// Like [`verify_table`], but does not verify the checksum of the file.
pub(crate) fn verify_table_blocks(table: &Table) -> Result<()> {
    TableVerifier { table, totals: EntryTotals::default(), filter: None }.verify_blocks()
}

/// Totals of the entries that were read so far.
#[derive(Debug, Default)]
struct EntryTotals {
    entries: u64,
    tombstones: u64,
    /// Number of expiring entries.
    expiring: u64,
    /// Bytes of expiring entries and of all entries, see [`entry_bytes`].
    expiring_bytes: u64,
    bytes: u64,
    expiry_us: Option<(u64, u64)>,
    key_bytes: u64,
    value_bytes: u64,
    data_blocks: u64,
    index_blocks: u64,
    smallest_key: Option<Vec<u8>>,
    last: Option<(Vec<u8>, SeqNo, EntryKind)>,
    /// Smallest and largest sequence number.
    seqs: Option<(SeqNo, SeqNo)>,
    /// Separator after the last data block.
    separator: Option<Separator>,
}

impl EntryTotals {
    fn add_seq(&mut self, seq: SeqNo) {
        let (smallest, largest) = self.seqs.unwrap_or((seq, seq));
        self.seqs = Some((smallest.min(seq), largest.max(seq)));
    }

    fn add_entry(&mut self, key: InternalKey<'_>, value: &[u8]) {
        self.entries += 1;
        self.tombstones += u64::from(key.kind == EntryKind::Delete);
        let bytes = entry_bytes(key, value);
        self.bytes += bytes;
        if let Some(us) = expiry_of(key.kind, value) {
            self.expiring += 1;
            self.expiring_bytes += bytes;
            let (earliest, latest) = self.expiry_us.unwrap_or((us, us));
            self.expiry_us = Some((earliest.min(us), latest.max(us)));
        }
        self.key_bytes += len_u64(key.user_key.len());
        self.value_bytes += len_u64(value.len());
        if self.smallest_key.is_none() {
            self.smallest_key = Some(key.user_key.to_vec());
        }
        self.add_seq(key.seq);
        self.last = Some((key.user_key.to_vec(), key.seq, key.kind));
    }
}

/// Index path to a data block: the top index and an index block, each with the ordinal that a search must return.
struct IndexPath<'a> {
    top: (&'a IndexBlock, usize),
    index: (&'a IndexBlock, usize),
}

impl IndexPath<'_> {
    fn check_index_search(&self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        for (index, ordinal) in [self.top, self.index] {
            if index.seek(user_key, seq)?.is_none_or(|(found, _)| found != ordinal) {
                return Err(Malformed::Order { what: "entry and the index path to it are" });
            }
        }
        Ok(())
    }
}

struct TableVerifier<'a> {
    table: &'a Table,
    totals: EntryTotals,
    filter: Option<Filter>,
}

impl TableVerifier<'_> {
    fn verify_blocks(mut self) -> Result<()> {
        let properties = self.table.properties();
        if let Some(handle) = properties.filter {
            let contents = self.read_block(handle, BlockKind::Filter)?;
            self.filter = Some(Filter::new(contents).map_err(|what| self.error_at(handle, what))?);
        }
        if let Some(handle) = properties.top_index {
            self.verify_entries(handle)?;
        }
        self.verify_properties()
    }

    fn verify_entries(&mut self, top_handle: BlockHandle) -> Result<()> {
        let top = self.read_index(top_handle, BlockKind::TopIndex)?;
        let mut data_end = 0;
        let index_blocks = top.entries().map_err(|what| self.error_at(top_handle, what))?;
        for (top_ordinal, (top_separator, index_handle)) in index_blocks.into_iter().enumerate() {
            self.totals.index_blocks += 1;
            let index = self.read_index(index_handle, BlockKind::Index)?;
            let data_blocks = index.entries().map_err(|what| self.error_at(index_handle, what))?;
            let last = data_blocks.last().and_then(|(separator, _)| separator.as_ref());
            if last.is_some() && last != top_separator.as_ref() {
                let what = "index block's last separator and the top index are";
                return Err(self.error_at(top_handle, Malformed::Order { what }));
            }
            for (ordinal, (separator, handle)) in data_blocks.into_iter().enumerate() {
                let separator = separator.or_else(|| top_separator.clone());
                if handle.offset != data_end {
                    let (what, found) = ("data block offset", handle.offset);
                    let expected = "the end of the previous data block";
                    return Err(
                        self.error_at(index_handle, Malformed::Field { what, found, expected })
                    );
                }
                data_end = handle.end_offset().map_err(|what| self.error_at(index_handle, what))?;
                let path = IndexPath { top: (&top, top_ordinal), index: (&index, ordinal) };
                self.verify_data_block(&path, separator, handle)?;
            }
        }
        if data_end != self.table.properties().data_bytes {
            let (what, expected) = ("end of the data blocks", "what the properties say");
            return Err(
                self.error_at(top_handle, Malformed::Field { what, found: data_end, expected })
            );
        }
        Ok(())
    }

    fn verify_data_block(
        &mut self,
        path: &IndexPath<'_>,
        separator: Option<Separator>,
        handle: BlockHandle,
    ) -> Result<()> {
        let table = self.table;
        let at = |what: Malformed| Error::malformed(what, table.path(), handle.offset);
        let contents = BlockBytes::copy_from(&self.read_block(handle, BlockKind::Data)?);
        let block = DataBlock::new(contents).map_err(at)?;
        block.check_invariants().map_err(at)?;
        let mut cursor = DataBlockCursor::new(block);
        self.totals.data_blocks += 1;
        cursor.first().map_err(at)?;
        if let Some(before) = self.totals.separator.take()
            && cursor.valid()
            && !before.is_before(cursor.key().user_key, cursor.key().seq)
        {
            let what = "first entry and the separator of the previous block are";
            return Err(at(Malformed::Order { what }));
        }
        while cursor.valid() {
            let key = cursor.key();
            if let Some((user_key, seq, kind)) = &self.totals.last {
                let last = InternalKey { user_key, seq: *seq, kind: *kind };
                if last >= key {
                    return Err(at(Malformed::Order { what: "entries are" }));
                }
                if table.properties().is_external && user_key == key.user_key {
                    return Err(at(Malformed::Order { what: "keys of an external table are" }));
                }
            }
            if table.properties().is_external
                && !matches!(key.kind, EntryKind::Put | EntryKind::Delete)
            {
                let (what, found) = ("kind of an entry of an external table", key.kind as u64);
                return Err(at(Malformed::invalid_field(what, found, "a put or a delete")));
            }
            if separator.as_ref().is_some_and(|after| after.is_before(key.user_key, key.seq)) {
                return Err(at(Malformed::Order { what: "entry and the block's separator are" }));
            }
            path.check_index_search(key.user_key, key.seq).map_err(at)?;
            let prefixes = table.properties().prefixes;
            let prefix = prefixes.and_then(|prefixes| prefixes.prefix(key.user_key));
            if let Some(filter) = &self.filter
                && !(filter.may_contain(key_hash(key.user_key))
                    && prefix.is_none_or(|prefix| filter.may_contain(prefix_hash(prefix))))
            {
                let what = "keys of the block that the filter rules out";
                return Err(at(Malformed::Field { what, found: 1, expected: "0" }));
            }
            self.totals.add_entry(key, cursor.value());
            cursor.next().map_err(at)?;
        }
        self.totals.separator = separator;
        Ok(())
    }

    fn verify_properties(mut self) -> Result<()> {
        let properties = self.table.properties();
        let mut smallest = self.totals.smallest_key.take();
        let mut largest = self.totals.last.take().map(|(user_key, ..)| user_key);
        let mut tombstones = FragmentedTombstones::default();
        if let Some(handle) = properties.range_tombstones {
            let contents = self.read_block(handle, BlockKind::RangeTombstones)?;
            tombstones = FragmentedTombstones::decode(&contents)
                .map_err(|what| self.error_at(handle, what))?;
        }
        for tombstone in tombstones.as_slice() {
            let end = tombstone.largest_key().unwrap_or(&tombstone.start);
            if smallest.as_ref().is_none_or(|smallest| **smallest > *tombstone.start) {
                smallest = Some(tombstone.start.to_vec());
            }
            if largest.as_ref().is_none_or(|largest| **largest < *end) {
                largest = Some(end.to_vec());
            }
            tombstone.seqs.iter().for_each(|&seq| self.totals.add_seq(seq));
        }
        let range_tombstones = len_u64(tombstones.as_slice().len());
        let totals = &self.totals;
        let (seq_smallest, seq_largest) = totals.seqs.unwrap_or_default();
        let expiry = properties.expiry;
        let (earliest_us, latest_us) = totals.expiry_us.unwrap_or_default();
        let bytes = expiry.and_then(|expiry| expiry.bytes);
        let bytes =
            bytes.map_or((totals.expiring_bytes, totals.bytes), |it| (it.expiring, it.total));
        for (what, expected, found) in [
            ("entries", properties.entries, totals.entries),
            ("tombstones", properties.tombstones, totals.tombstones),
            ("expiring entries", expiry.map_or(0, |expiry| expiry.entries), totals.expiring),
            ("earliest expiry", expiry.map_or(0, |expiry| expiry.earliest_us), earliest_us),
            ("latest expiry", expiry.map_or(0, |expiry| expiry.latest_us), latest_us),
            ("bytes of expiring entries", bytes.0, totals.expiring_bytes),
            ("bytes of all entries", bytes.1, totals.bytes),
            ("range tombstones", properties.range_tombstone_count, range_tombstones),
            ("key bytes", properties.key_bytes, totals.key_bytes),
            ("value bytes", properties.value_bytes, totals.value_bytes),
            ("data blocks", properties.data_blocks, totals.data_blocks),
            ("index blocks", properties.index_blocks, totals.index_blocks),
            ("smallest number", properties.seq_smallest.0, seq_smallest.0),
            ("largest number", properties.seq_largest.0, seq_largest.0),
        ] {
            if expected != found {
                return Err(self.properties_error(what, found));
            }
        }
        for (what, expected, found) in [
            ("smallest key's length", &properties.smallest, smallest.unwrap_or_default()),
            ("largest key's length", &properties.largest, largest.unwrap_or_default()),
        ] {
            if **expected != *found {
                return Err(self.properties_error(what, len_u64(found.len())));
            }
        }
        Ok(())
    }

    fn properties_error(&self, what: &'static str, found: u64) -> Error {
        let wrong = Malformed::Field { what, found, expected: "what the properties say" };
        Error::malformed(wrong, self.table.path(), 0)
    }

    fn error_at(&self, handle: BlockHandle, what: Malformed) -> Error {
        Error::malformed(what, self.table.path(), handle.offset)
    }

    fn read_index(&self, handle: BlockHandle, kind: BlockKind) -> Result<IndexBlock> {
        let contents = self.read_block(handle, kind)?;
        IndexBlock::new(contents).map_err(|what| self.error_at(handle, what))
    }

    /// Reads a block without the cache and verifies it.
    fn read_block(&self, handle: BlockHandle, kind: BlockKind) -> Result<bytes::Bytes> {
        let identity = self.table.identity();
        handle.check_bounds(identity.bytes).map_err(|what| self.error_at(handle, what))?;
        let stored = self.table.file.read_exact(handle.offset, handle.bytes)?;
        block::decode_block(stored, kind, identity.uid, handle.offset)
            .map_err(|what| self.error_at(handle, what))
    }
}
