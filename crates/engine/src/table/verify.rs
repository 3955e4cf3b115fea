//! Checks a whole table against itself and against what the manifest says of it.

use lsmx_base::checksum::StreamingChecksum;
use lsmx_base::coding::len_u64;
use lsmx_base::filter::Filter;
use lsmx_base::filter::key_hash;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::BlockBytes;

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::block::{self, Handle};
use crate::format::data_block::DataBlock;
use crate::format::data_block::cursor::DataBlockCursor;
use crate::format::index::{IndexBlock, Separator};
use crate::format::range_tombstones::FragmentedTombstones;

use crate::table::reader::Table;

/// Bytes of one read while the whole file is summed.
const CHUNK_BYTES: u64 = 256 << 10;

/// What the entries read so far come to.
#[derive(Debug, Default)]
struct Tally {
    entries: u64,
    tombstones: u64,
    key_bytes: u64,
    value_bytes: u64,
    data_blocks: u64,
    index_blocks: u64,
    smallest: Option<Vec<u8>>,
    last: Option<(Vec<u8>, SeqNo, EntryKind)>,
    seqs: Option<(SeqNo, SeqNo)>,
    separator: Option<Separator>,
    filter: Option<Filter>,
}

impl Tally {
    fn number(&mut self, seq: SeqNo) {
        let (smallest, largest) = self.seqs.unwrap_or((seq, seq));
        self.seqs = Some((smallest.min(seq), largest.max(seq)));
    }
}

/// The way to a data block: both index levels, each with the ordinal of what it must lead to.
struct Route<'a> {
    top: (&'a IndexBlock, usize),
    index: (&'a IndexBlock, usize),
}

impl Route<'_> {
    /// Whether a lookup comes this way.
    fn leads_to(&self, user_key: &[u8], seq: SeqNo) -> Result<(), Malformed> {
        for (index, ordinal) in [self.top, self.index] {
            if index.seek(user_key, seq)?.is_none_or(|(found, _)| found != ordinal) {
                return Err(Malformed::Order { what: "entry and the way the index leads are" });
            }
        }
        Ok(())
    }
}

impl Table {
    /// Reads the whole file past the cache and checks: every block's checksum, the file's, the order of
    /// the keys, that searches
    /// inside blocks find them, that both index levels lead to them and their separators separate, that
    /// the filter lets every key
    /// pass, and that the properties tell the truth.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place; or when the file cannot be read.
    pub fn verify(&self) -> Result<()> {
        // Blocks first: an error names the block that is damaged, as a read of it does, and not the file.
        self.verify_blocks()?;
        self.verify_checksum()
    }

    fn verify_blocks(&self) -> Result<()> {
        let mut tally = Tally::default();
        if let Some(handle) = self.properties.filter {
            let contents = self.fetch(handle, BlockKind::Filter)?;
            tally.filter = Some(Filter::new(contents).map_err(|what| self.at(handle, what))?);
        }
        if let Some(handle) = self.properties.top_index {
            self.verify_entries(handle, &mut tally)?;
        }
        self.verify_properties(tally)
    }

    fn verify_checksum(&self) -> Result<()> {
        let mut sum = StreamingChecksum::new(0);
        let mut offset = 0;
        while offset < self.identity.bytes {
            let bytes = CHUNK_BYTES.min(self.identity.bytes - offset);
            sum.update(&self.file.read_exact(offset, bytes)?);
            offset += bytes;
        }
        let (expected, found) = (self.identity.checksum, sum.digest());
        if found != expected {
            return Err(Error::malformed(Malformed::Checksum { expected, found }, &self.path, 0));
        }
        Ok(())
    }

    fn verify_entries(&self, top_handle: Handle, tally: &mut Tally) -> Result<()> {
        let top = self.index_past_cache(top_handle, BlockKind::TopIndex)?;
        let mut data_end = 0;
        let stretches = top.entries().map_err(|what| self.at(top_handle, what))?;
        for (top_ordinal, (top_separator, index_handle)) in stretches.into_iter().enumerate() {
            tally.index_blocks += 1;
            let index = self.index_past_cache(index_handle, BlockKind::Index)?;
            let entries = index.entries().map_err(|what| self.at(index_handle, what))?;
            let last = entries.last().and_then(|(separator, _)| separator.as_ref());
            if last.is_some() && last != top_separator.as_ref() {
                let what = "index block's last separator and the top index are";
                return Err(self.at(top_handle, Malformed::Order { what }));
            }
            for (ordinal, (separator, handle)) in entries.into_iter().enumerate() {
                let separator = separator.or_else(|| top_separator.clone());
                if handle.offset != data_end {
                    let expected = "the end of the data block before";
                    let what = "data block offset";
                    let found = handle.offset;
                    return Err(self.at(index_handle, Malformed::Field { what, found, expected }));
                }
                data_end = handle.end().map_err(|what| self.at(index_handle, what))?;
                let route = Route { top: (&top, top_ordinal), index: (&index, ordinal) };
                self.verify_data_block(&route, separator, handle, tally)?;
            }
        }
        if data_end != self.properties.data_bytes {
            let what = "end of the data blocks";
            let expected = "what the properties say";
            return Err(self.at(top_handle, Malformed::Field { what, found: data_end, expected }));
        }
        Ok(())
    }

    fn index_past_cache(&self, handle: Handle, kind: BlockKind) -> Result<IndexBlock> {
        let contents = self.fetch(handle, kind)?;
        IndexBlock::new(contents).map_err(|what| self.at(handle, what))
    }

    fn verify_data_block(
        &self,
        route: &Route<'_>,
        separator: Option<Separator>,
        handle: Handle,
        tally: &mut Tally,
    ) -> Result<()> {
        let at = |what: Malformed| self.at(handle, what);
        let contents = BlockBytes::copy_from(&self.fetch(handle, BlockKind::Data)?);
        let block = DataBlock::new(contents).map_err(at)?;
        block.check().map_err(at)?;
        let mut cursor = DataBlockCursor::new(block);
        tally.data_blocks += 1;
        cursor.first().map_err(at)?;
        if let Some(before) = tally.separator.take()
            && cursor.valid()
            && !before.is_before(cursor.key().user_key, cursor.key().seq)
        {
            let what = "first entry and the separator of the block before are";
            return Err(at(Malformed::Order { what }));
        }
        while cursor.valid() {
            let key = cursor.key();
            if let Some((user_key, seq, kind)) = &tally.last {
                let last = lsmx_base::key::InternalKey { user_key, seq: *seq, kind: *kind };
                if last >= key {
                    return Err(at(Malformed::Order { what: "entries are" }));
                }
            }
            if separator.as_ref().is_some_and(|after| after.is_before(key.user_key, key.seq)) {
                return Err(at(Malformed::Order { what: "entry and the block's separator are" }));
            }
            route.leads_to(key.user_key, key.seq).map_err(at)?;
            if let Some(filter) = &tally.filter
                && !filter.may_contain(key_hash(key.user_key))
            {
                let what = "keys of the block that the filter keeps out";
                return Err(at(Malformed::Field { what, found: 1, expected: "0" }));
            }
            tally.entries += 1;
            tally.tombstones += u64::from(key.kind == EntryKind::Delete);
            tally.key_bytes += len_u64(key.user_key.len());
            tally.value_bytes += len_u64(cursor.value().len());
            if tally.smallest.is_none() {
                tally.smallest = Some(key.user_key.to_vec());
            }
            tally.number(key.seq);
            tally.last = Some((key.user_key.to_vec(), key.seq, key.kind));
            cursor.next().map_err(at)?;
        }
        tally.separator = separator;
        Ok(())
    }

    fn verify_properties(&self, mut tally: Tally) -> Result<()> {
        let mut smallest = tally.smallest.take();
        let mut largest = tally.last.take().map(|(user_key, ..)| user_key);
        let mut spans = FragmentedTombstones::default();
        if let Some(handle) = self.properties.range_tombstones {
            let contents = self.fetch(handle, BlockKind::RangeTombstones)?;
            spans =
                FragmentedTombstones::decode(&contents).map_err(|what| self.at(handle, what))?;
        }
        for span in spans.as_slice() {
            let end = span.largest_key().unwrap_or(&span.start);
            if smallest.as_ref().is_none_or(|smallest| **smallest > *span.start) {
                smallest = Some(span.start.to_vec());
            }
            if largest.as_ref().is_none_or(|largest| **largest < *end) {
                largest = Some(end.to_vec());
            }
            for &seq in &span.seqs {
                tally.number(seq);
            }
        }
        let properties = &self.properties;
        let (seq_smallest, seq_largest) = tally.seqs.unwrap_or_default();
        for (what, said, found) in [
            ("entries", properties.entries, tally.entries),
            ("tombstones", properties.tombstones, tally.tombstones),
            ("range tombstones", properties.range_tombstone_count, len_u64(spans.as_slice().len())),
            ("key bytes", properties.key_bytes, tally.key_bytes),
            ("value bytes", properties.value_bytes, tally.value_bytes),
            ("data blocks", properties.data_blocks, tally.data_blocks),
            ("index blocks", properties.index_blocks, tally.index_blocks),
            ("smallest number", properties.seq_smallest.0, seq_smallest.0),
            ("largest number", properties.seq_largest.0, seq_largest.0),
        ] {
            if said != found {
                return Err(self.wrong_properties(what, found));
            }
        }
        let keys = [
            ("smallest key's length", &properties.smallest, smallest.unwrap_or_default()),
            ("largest key's length", &properties.largest, largest.unwrap_or_default()),
        ];
        for (what, said, found) in keys {
            if **said != *found {
                return Err(self.wrong_properties(what, len_u64(found.len())));
            }
        }
        Ok(())
    }

    fn wrong_properties(&self, what: &'static str, found: u64) -> Error {
        Error::malformed(
            Malformed::Field { what, found, expected: "what the properties say" },
            &self.path,
            0,
        )
    }

    fn at(&self, handle: Handle, what: Malformed) -> Error {
        Error::malformed(what, &self.path, handle.offset)
    }

    /// Reads a block past the cache.
    fn fetch(&self, handle: Handle, kind: BlockKind) -> Result<bytes::Bytes> {
        handle.check(self.identity.bytes).map_err(|what| self.at(handle, what))?;
        let stored = self.file.read_exact(handle.offset, handle.bytes)?;
        block::open(stored, kind, self.identity.uid, handle.offset)
            .map_err(|what| self.at(handle, what))
    }
}
