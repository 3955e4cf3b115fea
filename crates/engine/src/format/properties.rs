//! Properties of a table: tagged fields, little-endian, in a block of kind `open`.
//!
//! ```text
//!  0      fields, tags ascending, each
//!     2   tag     u16; with the top bit a reader that does not know it must refuse the table
//!     v   length  varint
//!     n   value   as the tag says
//! ```
//!
//! A field is added by giving it a new tag, and never changes its meaning. A reader skips unknown
//! tags without the top bit.

use bytes::Bytes;
use lsmx_base::coding::{Decoder, len_u64, put_u32, put_u64, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::block::Handle;
use crate::format::edit::KEYSPACE_NAME_BYTES_MAX;
use lsmx_base::filter::CODING_BINARY_FUSE_16;

/// Tags with this bit must be understood.
const MUST: u16 = 0x8000;

const TOP_INDEX: u16 = MUST | 1;
const FILTER: u16 = MUST | 2;
const RANGE_TOMBSTONES: u16 = MUST | 3;
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
const CODINGS: u16 = 19;
const KEYSPACE: u16 = 21;
// MUST | 20 is reserved for a global sequence number (u64) that stands for the number of every
// entry of an ingested table; a version that does not know it must not read such a table.

/// What a table says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Where the top index lies; `None` if the table has no entries.
    pub top_index: Option<Handle>,
    /// Where the filter lies, if there is one.
    pub filter: Option<Handle>,
    /// Where the range tombstones lie, if there are any.
    pub range_tombstones: Option<Handle>,
    /// Entries of all kinds.
    pub entries: u64,
    /// Tombstones among the entries.
    pub tombstones: u64,
    /// Fragmented range tombstones.
    pub range_tombstone_count: u64,
    /// Bytes of the user keys of all entries.
    pub key_bytes: u64,
    /// Bytes of the values of all entries.
    pub value_bytes: u64,
    /// Smallest user key of an entry or start of a range tombstone.
    pub smallest: Bytes,
    /// Largest user key of an entry, or end of a range tombstone if that is larger (such an end is
    /// itself not deleted). Of a range tombstone without an end only the start counts.
    pub largest: Bytes,
    /// Smallest sequence number of an entry or range tombstone.
    pub seq_smallest: SeqNo,
    /// Largest sequence number of an entry or range tombstone.
    pub seq_largest: SeqNo,
    /// Data blocks.
    pub data_blocks: u64,
    /// Index blocks, the top index not among them.
    pub index_blocks: u64,
    /// Bytes of the data blocks in the file; they are the first in it.
    pub data_bytes: u64,
    /// Bytes of the index blocks in the file, the top index not among them.
    pub index_bytes: u64,
    /// When the oldest tombstone was written, in microseconds of the database's clock.
    pub oldest_tombstone_us: Option<u64>,
    /// When the table was written, in microseconds of the database's clock.
    pub created_us: u64,
    /// Codings of data, index, filter and range tombstone blocks, for people to read: each block
    /// says its own.
    pub codings: [u8; 4],
    /// Id and name of the keyspace that it was written for, as far as it was noted: for the day on which
    /// the manifest is lost.
    pub keyspace: Option<(u32, String)>,
}

impl Properties {
    /// Whether the filter has fingerprints of 16 bits.
    pub(crate) fn filter_is_wide(&self) -> bool {
        self.filter.is_some() && self.codings[2] == CODING_BINARY_FUSE_16
    }

    /// The contents of a properties block.
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
        ] {
            if let Some(number) = number {
                let mut value = Vec::new();
                put_u64(&mut value, number);
                fields.push((tag, value));
            }
        }
        fields.push((SMALLEST, self.smallest.to_vec()));
        fields.push((LARGEST, self.largest.to_vec()));
        fields.push((CODINGS, self.codings.to_vec()));
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

    /// Reads the contents of a properties block.
    ///
    /// # Errors
    /// When they are not those of one, or a tag that must be understood is unknown.
    pub fn decode(block: &Bytes) -> Result<Properties, Malformed> {
        let mut properties = Properties::default();
        let mut decoder = Decoder::new(block);
        let mut previous: Option<u16> = None;
        while !decoder.is_empty() {
            let low = decoder.u8("property tag")?;
            let tag = u16::from_le_bytes([low, decoder.u8("property tag")?]);
            if previous.is_some_and(|previous| previous >= tag) {
                return Err(Malformed::Order { what: "property tags are" });
            }
            previous = Some(tag);
            let value = block.slice_ref(decoder.bytes("property")?);
            properties.set(tag, &value)?;
        }
        properties.check()?;
        Ok(properties)
    }

    fn set(&mut self, tag: u16, value: &Bytes) -> Result<(), Malformed> {
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
            TOP_INDEX => self.top_index = Some(Handle::get(&mut decoder)?),
            FILTER => self.filter = Some(Handle::get(&mut decoder)?),
            RANGE_TOMBSTONES => self.range_tombstones = Some(Handle::get(&mut decoder)?),
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
            CODINGS => {
                for coding in &mut self.codings {
                    *coding = decoder.u8("codings")?;
                }
            }
            KEYSPACE => {
                let id = decoder.u32("keyspace id")?;
                self.keyspace = Some((id, keyspace_name(&value[size_of::<u32>()..])?));
                return Ok(());
            }
            unknown if unknown & MUST != 0 => {
                return Err(Malformed::Field {
                    what: "property tag",
                    found: u64::from(unknown),
                    expected: "one that this version understands",
                });
            }
            _ => return Ok(()),
        }
        if !decoder.is_empty() {
            return Err(Malformed::Field {
                what: "bytes after a property",
                found: len_u64(decoder.remaining()),
                expected: "0",
            });
        }
        Ok(())
    }

    /// What must hold whatever the table: counts that say there are blocks go with handles.
    fn check(&self) -> Result<(), Malformed> {
        let pairs = [
            ("top index handle", self.top_index.is_some(), self.entries),
            ("range tombstone handle", self.range_tombstones.is_some(), self.range_tombstone_count),
        ];
        for (what, there, count) in pairs {
            if there != (count > 0) {
                return Err(Malformed::Field {
                    what,
                    found: u64::from(there),
                    expected: "there if and only if the counts say so",
                });
            }
        }
        if self.smallest > self.largest {
            return Err(Malformed::Order { what: "smallest and largest key are" });
        }
        Ok(())
    }
}

fn keyspace_name(bytes: &[u8]) -> Result<String, Malformed> {
    let name = std::str::from_utf8(bytes).ok().filter(|name| name.len() <= KEYSPACE_NAME_BYTES_MAX);
    name.map(str::to_owned).ok_or(Malformed::Field {
        what: "bytes of a keyspace name",
        found: len_u64(bytes.len()),
        expected: "at most 255 bytes of text",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Properties {
        Properties {
            top_index: Some(Handle { offset: 5_000, bytes: 40 }),
            filter: Some(Handle { offset: 6_000, bytes: 33 }),
            range_tombstones: Some(Handle { offset: 7_000, bytes: 50 }),
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
            codings: [0; 4],
            keyspace: Some((7, "users".to_owned())),
        }
    }

    #[test]
    fn properties_come_back() {
        for properties in [sample(), Properties::default()] {
            assert_eq!(Properties::decode(&properties.encode().into()), Ok(properties));
        }
    }

    #[test]
    fn no_damage_panics_and_cut_fields_are_errors() {
        let block = sample().encode();
        for len in 0..block.len() {
            if let Ok(properties) = Properties::decode(&block[..len].to_vec().into()) {
                // A cut between two fields leaves a shorter list, which the block checksum finds.
                assert_ne!(properties, sample());
            }
        }
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let _ = Properties::decode(&damaged.into());
        }
    }

    #[test]
    fn unknown_tags_are_skipped_unless_they_must_be_understood() {
        let properties = sample();
        let mut block = properties.encode();
        // Tags are in order and those with the top bit come last.
        let must_at = block.len() - properties_with_must(&properties);
        block.splice(must_at..must_at, [0xff, 0x7f, 2, 1, 1]);
        assert_eq!(Properties::decode(&block.clone().into()), Ok(properties));
        block.extend_from_slice(&(MUST | 20).to_le_bytes());
        block.push(0);
        let error = Properties::decode(&block.into()).unwrap_err();
        assert!(matches!(error, Malformed::Field { what: "property tag", .. }), "{error}");
    }

    #[test]
    fn a_field_that_is_too_long_is_an_error() {
        let mut block = Vec::new();
        block.extend_from_slice(&CREATED_US.to_le_bytes());
        block.extend_from_slice(&[9, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(matches!(Properties::decode(&block.into()), Err(Malformed::Field { .. })));
    }

    fn properties_with_must(properties: &Properties) -> usize {
        let without = Properties {
            top_index: None,
            filter: None,
            range_tombstones: None,
            ..properties.clone()
        };
        properties.encode().len() - without.encode().len()
    }
}
