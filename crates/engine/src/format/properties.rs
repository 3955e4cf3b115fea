//! Table properties: tagged fields in a block of kind [`Open`](super::BlockKind::Open). Integers are little-endian.
//!
//! ```text
//!  0      fields, tags ascending, each
//!     2   tag     u16; if the top bit is set, a reader that does not know the tag must reject the table
//!     v   length  varint
//!     n   value   as the tag says
//! ```
//!
//! Each new field gets a new tag, and the meaning of a tag never changes. Readers skip unknown tags without the top
//! bit.

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_u32, put_u64, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_compaction::ExpirySummary;

use super::block::BlockHandle;
use super::expiry::{
    add_expiring_bytes, decode_expiring_bytes, decode_expiry_summary, put_expiring_bytes,
    put_expiry_summary,
};
use crate::format::prefix_extractor::PrefixExtractor;
use crate::format::version_edit::KEYSPACE_NAME_BYTES_MAX;
use lsmx_base::filter::CODING_BINARY_FUSE_16;

/// Flag of tags that a reader must know to read the table.
const REQUIRED: u16 = 0x8000;

const TOP_INDEX: u16 = REQUIRED | 1;
const FILTER: u16 = REQUIRED | 2;
const RANGE_TOMBSTONES: u16 = REQUIRED | 3;
const ENTRIES: u16 = 4;
const TOMBSTONES: u16 = 5;
const RANGE_TOMBSTONE_COUNT: u16 = 6;
const KEY_BYTES: u16 = 7;
const VALUE_BYTES: u16 = 8;
const SMALLEST: u16 = 9;
const LARGEST: u16 = 10;
const SEQ_SMALLEST: u16 = 11;
const SEQ_LARGEST: u16 = 12;
const DATA_BLOCKS: u16 = 13;
const INDEX_BLOCKS: u16 = 14;
const DATA_BYTES: u16 = 15;
const INDEX_BYTES: u16 = 16;
const OLDEST_TOMBSTONE_US: u16 = 17;
const CREATED_US: u16 = 18;
const ENCODINGS: u16 = 19;
const KEYSPACE: u16 = 21;
/// Kind of the key prefixes in the filter. A reader that does not know this tag uses the filter for full keys only.
const PREFIXES: u16 = 23;
/// Bytes of expiring entries. A reader that does not know this tag knows only the number of these entries.
const EXPIRING_BYTES: u16 = 26;
/// Present in external tables. A reader that does not know this tag must reject the table.
const EXTERNAL_SEQ: u16 = REQUIRED | 20;

/// Summary of expiry times. The tag is required: a reader that does not know it does not know the kinds of expiring
/// entries either.
const EXPIRY: u16 = REQUIRED | 22;

/// Value of [`EXTERNAL_SEQ`]. It means that the manifest contains the sequence number of all entries.
const SEQ_IN_MANIFEST: u64 = 0;

/// Properties of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableProperties {
    /// Location of the top index. `None` if the table has no entries.
    pub top_index: Option<BlockHandle>,
    /// Location of the filter. `None` if the table has no filter.
    pub filter: Option<BlockHandle>,
    /// Location of the range tombstone block. `None` if the table has no range tombstones.
    pub range_tombstones: Option<BlockHandle>,
    /// Number of entries of all kinds, without range tombstones.
    pub entries: u64,
    /// Number of point tombstones.
    pub tombstones: u64,
    /// Number of range tombstone fragments.
    pub range_tombstone_count: u64,
    /// Total size of the user keys of all entries in bytes.
    pub key_bytes: u64,
    /// Total size of the values of all entries in bytes.
    pub value_bytes: u64,
    /// Smallest user key of an entry or start of a range tombstone.
    pub smallest: Bytes,
    /// Upper bound of the user keys of all entries and range tombstones: the largest user key of an entry or the
    /// largest key of a range tombstone, see
    /// [`RangeTombstone::largest_key`](lsmx_base::range_tombstone::RangeTombstone::largest_key). For a range tombstone
    /// without an end, its start is used.
    pub largest: Bytes,
    /// Smallest sequence number of an entry or range tombstone.
    pub seq_smallest: SeqNo,
    /// Largest sequence number of an entry or range tombstone.
    pub seq_largest: SeqNo,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Number of index blocks. The top index is not counted.
    pub index_blocks: u64,
    /// Total size of all data blocks in bytes. Data blocks are the first blocks of the file.
    pub data_bytes: u64,
    /// Total size of all index blocks in bytes. The top index is not counted.
    pub index_bytes: u64,
    /// Write time of the oldest tombstone in microseconds of the database clock. `None` if the table has no tombstones.
    pub oldest_tombstone_us: Option<u64>,
    /// Creation time of the table in microseconds of the database clock.
    pub created_us: u64,
    /// Highest encoding numbers of data, index, filter and range tombstone blocks, in this order. Each block states its
    /// own encoding, so readers do not need this field to decode blocks.
    pub encodings: [u8; 4],
    /// Id and name of the keyspace, if they are recorded. Repair uses them if the manifest is lost.
    pub keyspace: Option<(u32, String)>,
    /// Expiry times of the entries. `None` if no entry expires.
    pub expiry: Option<ExpirySummary>,
    /// Kind of the key prefixes in the filter. `None` if the filter contains only full keys.
    pub prefixes: Option<PrefixExtractor>,
    /// True if the table was written outside the database. All entries of such a table have the sequence number 0. When
    /// the table is ingested, the manifest assigns one sequence number to all entries.
    pub is_external: bool,
}

impl TableProperties {
    /// Returns whether the filter has fingerprints of 16 bits.
    pub(crate) fn has_16_bit_filter(&self) -> bool {
        self.filter.is_some() && self.encodings[2] == CODING_BINARY_FUSE_16
    }

    /// Encodes the properties as the contents of a properties block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut fields: Vec<(u16, Vec<u8>)> = Vec::new();
        for (tag, handle) in [
            (TOP_INDEX, self.top_index),
            (FILTER, self.filter),
            (RANGE_TOMBSTONES, self.range_tombstones),
        ] {
            if let Some(handle) = handle {
                let mut value = Vec::new();
                handle.put(&mut value);
                fields.push((tag, value));
            }
        }
        for (tag, number) in [
            (ENTRIES, Some(self.entries)),
            (TOMBSTONES, Some(self.tombstones)),
            (RANGE_TOMBSTONE_COUNT, Some(self.range_tombstone_count)),
            (KEY_BYTES, Some(self.key_bytes)),
            (VALUE_BYTES, Some(self.value_bytes)),
            (SEQ_SMALLEST, Some(self.seq_smallest.0)),
            (SEQ_LARGEST, Some(self.seq_largest.0)),
            (DATA_BLOCKS, Some(self.data_blocks)),
            (INDEX_BLOCKS, Some(self.index_blocks)),
            (DATA_BYTES, Some(self.data_bytes)),
            (INDEX_BYTES, Some(self.index_bytes)),
            (OLDEST_TOMBSTONE_US, self.oldest_tombstone_us),
            (CREATED_US, Some(self.created_us)),
            (EXTERNAL_SEQ, self.is_external.then_some(SEQ_IN_MANIFEST)),
        ] {
            if let Some(number) = number {
                let mut value = Vec::new();
                put_u64(&mut value, number);
                fields.push((tag, value));
            }
        }
        if let Some(expiry) = &self.expiry {
            let mut value = Vec::new();
            put_expiry_summary(&mut value, expiry);
            fields.push((EXPIRY, value));
        }
        if let Some(bytes) = self.expiry.and_then(|expiry| expiry.bytes) {
            let mut value = Vec::new();
            put_expiring_bytes(&mut value, &bytes);
            fields.push((EXPIRING_BYTES, value));
        }
        if let Some(prefixes) = self.prefixes {
            let mut value = Vec::new();
            prefixes.put(&mut value);
            fields.push((PREFIXES, value));
        }
        fields.push((SMALLEST, self.smallest.to_vec()));
        fields.push((LARGEST, self.largest.to_vec()));
        fields.push((ENCODINGS, self.encodings.to_vec()));
        if let Some((id, name)) = &self.keyspace {
            let mut value = Vec::new();
            put_u32(&mut value, *id);
            value.extend_from_slice(name.as_bytes());
            fields.push((KEYSPACE, value));
        }
        fields.sort_unstable();
        let mut out = Vec::new();
        for (tag, value) in fields {
            out.extend_from_slice(&tag.to_le_bytes());
            put_varint(&mut out, len_u64(value.len()));
            out.extend_from_slice(&value);
        }
        out
    }

    /// Decodes the contents of a properties block. Keys share the memory of `block`.
    ///
    /// # Errors
    /// Fails if the fields are malformed or inconsistent, or if a tag with the top bit is unknown.
    pub fn decode(block: &Bytes) -> Result<TableProperties, Malformed> {
        let mut properties = TableProperties::default();
        let mut decoder = Decoder::new(block);
        let (mut previous, mut expiring_bytes) = (None::<u16>, None);
        while !decoder.is_empty() {
            let low = decoder.u8("property tag")?;
            let tag = u16::from_le_bytes([low, decoder.u8("property tag")?]);
            if previous.is_some_and(|previous| previous >= tag) {
                return Err(Malformed::Order { what: "property tags are" });
            }
            previous = Some(tag);
            let value = block.slice_ref(decoder.bytes("property")?);
            if tag == EXPIRING_BYTES {
                let mut decoder = Decoder::new(&value);
                expiring_bytes = Some(decode_expiring_bytes(&mut decoder)?);
                decoder.finish("bytes after a property")?;
            } else {
                properties.set_property(tag, &value)?;
            }
        }
        add_expiring_bytes(&mut properties.expiry, expiring_bytes)?;
        properties.check_consistency()?;
        Ok(properties)
    }

    fn set_property(&mut self, tag: u16, value: &Bytes) -> Result<(), Malformed> {
        let mut decoder = Decoder::new(value);
        match tag {
            SMALLEST => {
                self.smallest = value.clone();
                return Ok(());
            }
            LARGEST => {
                self.largest = value.clone();
                return Ok(());
            }
            TOP_INDEX => self.top_index = Some(BlockHandle::decode(&mut decoder)?),
            FILTER => self.filter = Some(BlockHandle::decode(&mut decoder)?),
            RANGE_TOMBSTONES => self.range_tombstones = Some(BlockHandle::decode(&mut decoder)?),
            ENTRIES => self.entries = decoder.u64("entries")?,
            TOMBSTONES => self.tombstones = decoder.u64("tombstones")?,
            RANGE_TOMBSTONE_COUNT => self.range_tombstone_count = decoder.u64("spans")?,
            KEY_BYTES => self.key_bytes = decoder.u64("key bytes")?,
            VALUE_BYTES => self.value_bytes = decoder.u64("value bytes")?,
            SEQ_SMALLEST => self.seq_smallest = SeqNo(decoder.u64("smallest number")?),
            SEQ_LARGEST => self.seq_largest = SeqNo(decoder.u64("largest number")?),
            DATA_BLOCKS => self.data_blocks = decoder.u64("data blocks")?,
            INDEX_BLOCKS => self.index_blocks = decoder.u64("index blocks")?,
            DATA_BYTES => self.data_bytes = decoder.u64("data bytes")?,
            INDEX_BYTES => self.index_bytes = decoder.u64("index bytes")?,
            OLDEST_TOMBSTONE_US => {
                self.oldest_tombstone_us = Some(decoder.u64("oldest tombstone")?);
            }
            CREATED_US => self.created_us = decoder.u64("creation time")?,
            ENCODINGS => {
                for encoding in &mut self.encodings {
                    *encoding = decoder.u8("encodings")?;
                }
            }
            KEYSPACE => {
                let id = decoder.u32("keyspace id")?;
                self.keyspace = Some((id, keyspace_name(&value[size_of::<u32>()..])?));
                return Ok(());
            }
            EXTERNAL_SEQ => {
                let found = decoder.u64("sequence number of an external table")?;
                if found != SEQ_IN_MANIFEST {
                    let what = "sequence number of an external table";
                    return Err(Malformed::invalid_field(what, found, "0"));
                }
                self.is_external = true;
            }
            PREFIXES => match PrefixExtractor::decode(&mut decoder)? {
                None => return Ok(()),
                prefixes => self.prefixes = prefixes,
            },
            EXPIRY => self.expiry = Some(decode_expiry_summary(&mut decoder)?),
            unknown if unknown & REQUIRED != 0 => {
                return Err(Malformed::invalid_field(
                    "property tag",
                    u64::from(unknown),
                    "a known tag",
                ));
            }
            _ => return Ok(()),
        }
        decoder.finish("bytes after a property")
    }

    /// Checks that the fields are consistent:
    /// - A handle is present if and only if its count is not 0.
    /// - The number of expiring entries and the fields of an external table are valid.
    /// - The smallest key is at most the largest key.
    fn check_consistency(&self) -> Result<(), Malformed> {
        let pairs = [
            ("top index handle", self.top_index.is_some(), self.entries),
            ("range tombstone handle", self.range_tombstones.is_some(), self.range_tombstone_count),
        ];
        for (what, is_present, count) in pairs {
            if is_present != (count > 0) {
                return Err(Malformed::invalid_field(
                    what,
                    u64::from(is_present),
                    "present if and only if the count is not 0",
                ));
            }
        }
        let expiring = self.expiry.map_or(0, |expiry| expiry.entries);
        if expiring > self.entries || (self.is_external && expiring > 0) {
            let expected = "at most the number of entries, and 0 in an external table";
            return Err(Malformed::invalid_field("number of expiring entries", expiring, expected));
        }
        if self.is_external && (self.seq_largest > SeqNo::ZERO || self.range_tombstone_count > 0) {
            let (what, found) = ("largest number of an external table", self.seq_largest.0);
            return Err(Malformed::invalid_field(what, found, "0, without range tombstones"));
        }
        if self.smallest > self.largest {
            return Err(Malformed::Order { what: "smallest and largest key are" });
        }
        Ok(())
    }
}

fn keyspace_name(bytes: &[u8]) -> Result<String, Malformed> {
    let name = std::str::from_utf8(bytes).ok().filter(|name| name.len() <= KEYSPACE_NAME_BYTES_MAX);
    name.map(str::to_owned).ok_or(Malformed::invalid_field(
        "bytes of a keyspace name",
        len_u64(bytes.len()),
        "at most 255 bytes of text",
    ))
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::ExpiringBytes;

    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn sample() -> TableProperties {
        TableProperties {
            top_index: Some(BlockHandle { offset: 5_000, bytes: 40 }),
            filter: Some(BlockHandle { offset: 6_000, bytes: 33 }),
            range_tombstones: Some(BlockHandle { offset: 7_000, bytes: 50 }),
            entries: 100,
            tombstones: 3,
            range_tombstone_count: 2,
            key_bytes: 800,
            value_bytes: 4_000,
            smallest: Bytes::from_static(b"a"),
            largest: Bytes::from_static(b"zz"),
            seq_smallest: SeqNo(7),
            seq_largest: SeqNo(1 << 40),
            data_blocks: 2,
            index_blocks: 1,
            data_bytes: 4_900,
            index_bytes: 100,
            oldest_tombstone_us: Some(123),
            created_us: 456,
            encodings: [0; 4],
            keyspace: Some((7, "users".to_owned())),
            expiry: Some(ExpirySummary {
                entries: 5,
                earliest_us: 10,
                median_us: 20,
                latest_us: 30,
                bytes: Some(ExpiringBytes { expiring: 400, total: 2_000, median_us: 30 }),
            }),
            prefixes: Some(PrefixExtractor::Length(4)),
            is_external: false,
        }
    }

    fn external_sample() -> TableProperties {
        TableProperties {
            range_tombstones: None,
            range_tombstone_count: 0,
            seq_smallest: SeqNo::ZERO,
            seq_largest: SeqNo::ZERO,
            keyspace: None,
            expiry: None,
            is_external: true,
            ..sample()
        }
    }

    #[test]
    fn properties_round_trip() {
        for properties in [sample(), external_sample(), TableProperties::default()] {
            assert_eq!(TableProperties::decode(&properties.encode().into()), Ok(properties));
        }
    }

    /// A table of an earlier build has no bytes of expiring entries.
    #[test]
    fn properties_without_expiring_bytes_round_trip() {
        let expiry = sample().expiry.map(|expiry| ExpirySummary { bytes: None, ..expiry });
        let properties = TableProperties { expiry, ..sample() };
        assert_eq!(TableProperties::decode(&properties.encode().into()), Ok(properties));
    }

    #[test]
    fn properties_damaged_is_error_or_does_not_panic() {
        let block = sample().encode();
        for len in 0..block.len() {
            if let Ok(properties) = TableProperties::decode(&block[..len].to_vec().into()) {
                // A block that is truncated between two fields decodes to fewer fields. The checksum of the block
                // detects this.
                assert_ne!(properties, sample());
            }
        }
        for (_, damaged) in copies_with_flipped_bit(&block) {
            let _ = TableProperties::decode(&damaged.into());
        }
    }

    #[test]
    fn properties_unknown_tag_is_skipped_unless_required() {
        let properties = sample();
        let mut block = properties.encode();
        // Tags are in ascending order. Tags with the top bit are therefore the last ones.
        let required_at = block.len() - required_field_bytes(&properties);
        block.splice(required_at..required_at, [0xff, 0x7f, 2, 1, 1]);
        assert_eq!(TableProperties::decode(&block.clone().into()), Ok(properties));
        block.extend_from_slice(&(REQUIRED | 40).to_le_bytes());
        block.push(0);
        let error = TableProperties::decode(&block.into()).unwrap_err();
        assert!(matches!(error, Malformed::Field { what: "property tag", .. }), "{error}");
    }

    #[test]
    fn properties_external_table_with_sequence_number_is_error() {
        for properties in [
            TableProperties { seq_largest: SeqNo(1), ..external_sample() },
            TableProperties { is_external: true, expiry: None, ..sample() },
        ] {
            let error = TableProperties::decode(&properties.encode().into()).unwrap_err();
            let what = "largest number of an external table";
            assert!(matches!(error, Malformed::Field { what: found, .. } if found == what));
        }
    }

    #[test]
    fn properties_field_too_long_is_error() {
        let mut block = Vec::new();
        block.extend_from_slice(&CREATED_US.to_le_bytes());
        block.extend_from_slice(&[9, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(matches!(TableProperties::decode(&block.into()), Err(Malformed::Field { .. })));
    }

    fn required_field_bytes(properties: &TableProperties) -> usize {
        let without = TableProperties {
            top_index: None,
            filter: None,
            range_tombstones: None,
            expiry: None,
            ..properties.clone()
        };
        // The bytes of expiring entries are not required.
        let expiry = properties.expiry.map(|expiry| ExpirySummary { bytes: None, ..expiry });
        let required = TableProperties { expiry, ..properties.clone() };
        required.encode().len() - without.encode().len()
    }
}
