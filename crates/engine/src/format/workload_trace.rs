//! Workload trace: a record of the operations that users execute on a live database.
//!
//! ```text
//! header  0  8  magic            "LSMXTRC1"
//!         8  4  format version   u32
//!        12  4  flags            u32, bit 0: keys are hashed, bit 1: values are kept
//!        16  8  uid              u64, random; with the next field it seeds every checksum
//!        24  8  begun            u64, microseconds of the database's clock
//!        32  8  checksum         u64, over bytes 0..32
//! ```
//!
//! `file_header` describes the common part of all file headers. Log records follow the header, see
//! [`super::log_record`]. The sequence number of a record is the number of its first item, counted from 1. The payload
//! of a record is a sequence of items:
//!
//! ```text
//! item    code u8, bit 7: the commit was synced · microseconds since the item before varint ·
//!  1 put            keyspace varint · key length varint · key · value bytes varint [· value]
//!  2 delete         keyspace · key
//!  3 merge          as put, with the operand
//!  4 delete range   keyspace · first key · end of the range, `range_end.rs`
//!  5 get            keyspace · key · found varint, 0 = absent, else bytes of the value plus 1
//!  6 scan           keyspace · start kind u8, bit 0: backward, bit 1: a key follows
//!                   only with bit 1: key to start from · entries read varint
//!  7 batch          operations varint: number of following writes that form one commit
//!  8 keyspace       number varint · name length varint · name
//!  9 lost           operations varint: number of operations that were not recorded here
//! 10 end            operations varint: number of recorded operations; nothing follows
//! ```
//!
//! The item that assigns a number to a keyspace precedes all operations on this keyspace. A key has at most 65,537 bytes. A
//! longer key of a read is truncated to this length. A hashed key has the length of the original key, but at least eight
//! bytes and at most 64 KiB.

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::file_header::FileHeaderFormat;
use lsmx_base::malformed::Malformed;

use crate::format::log_record::LogChecksumSeed;
use crate::format::range_end::{decode_range_end, put_range_end};
use crate::format::{FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Magic number: the first bytes of a trace.
pub const TRACE_MAGIC: [u8; 8] = *b"LSMXTRC1";
/// Size of the header of a trace in bytes. The first record follows the header.
pub const TRACE_HEADER_BYTES: usize = 40;
const HEADER: FileHeaderFormat = FileHeaderFormat::new("trace header", TRACE_MAGIC, FORMAT_VERSION);

const KEYS_HASHED: u32 = 1;
const VALUES_KEPT: u32 = 1 << 1;
const SYNCED: u8 = 1 << 7;
const BACKWARD: u8 = 1;
const START_KEY: u8 = 1 << 1;

/// Maximum length of a key in a trace, in bytes. It exceeds the maximum length of a stored key by one byte, because the
/// exclusive end of a range may be the successor of the longest key.
pub(crate) const TRACE_KEY_BYTES_MAX: usize = (64 << 10) + 1;
const _: () = assert!(len_u64(TRACE_KEY_BYTES_MAX) == KEY_BYTES_MAX + 1, "as the comment says");

/// Header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// Whether the trace contains hashes instead of keys.
    pub keys_hashed: bool,
    /// Whether the trace contains values and merge operands. Otherwise, it contains only their sizes.
    pub values_kept: bool,
    /// Random uid of the trace.
    pub uid: u64,
    /// Start time of the trace in microseconds of the database clock.
    pub begun_us: u64,
}

impl TraceHeader {
    /// Encodes the header.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; TRACE_HEADER_BYTES] {
        let hashed = if self.keys_hashed { KEYS_HASHED } else { 0 };
        let kept = if self.values_kept { VALUES_KEPT } else { 0 };
        HEADER.encode(hashed | kept, [self.uid, self.begun_us])
    }

    /// Decodes the header from the first bytes of a trace.
    ///
    /// # Errors
    /// Fails if the header is invalid, or if this build does not support its format version.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn decode(bytes: &[u8]) -> Result<TraceHeader, Malformed> {
        let (flags, [uid, begun_us]) = HEADER.decode(bytes)?;
        if flags & !(KEYS_HASHED | VALUES_KEPT) != 0 {
            return Err(Malformed::invalid_field(
                "flags of a trace",
                u64::from(flags),
                "known bits only",
            ));
        }
        Ok(TraceHeader {
            keys_hashed: flags & KEYS_HASHED != 0,
            values_kept: flags & VALUES_KEPT != 0,
            uid,
            begun_us,
        })
    }

    /// Returns the seed for the checksums of the records in this trace.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    #[must_use]
    pub(crate) fn seed(&self) -> LogChecksumSeed {
        LogChecksumSeed::new(self.uid, self.begun_us)
    }
}

/// A value or a merge operand in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceValue<'a> {
    /// Size of the original value in bytes.
    pub bytes: u64,
    /// Contents of the value. `None` if the trace contains only sizes.
    pub content: Option<&'a [u8]>,
}

/// Event that an item describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceEvent<'a> {
    /// Put of one key.
    Put {
        /// Number of the keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: TraceValue<'a>,
    },
    /// Delete of one key.
    Delete {
        /// Number of the keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Merge of an operand into the value of a key.
    Merge {
        /// Number of the keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: TraceValue<'a>,
    },
    /// Delete of a range of keys.
    DeleteRange {
        /// Number of the keyspace.
        keyspace: u32,
        /// First deleted key.
        start: &'a [u8],
        /// Exclusive end of the range. `None` stands for the end of the keyspace.
        end: Option<&'a [u8]>,
    },
    /// Lookup of one key.
    Get {
        /// Number of the keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// Size of the found value in bytes. `None` if the key was absent.
        found: Option<u64>,
    },
    /// Iteration over entries in key order.
    Scan {
        /// Number of the keyspace.
        keyspace: u32,
        /// Whether the scan iterates in descending key order.
        backward: bool,
        /// Bound at which the scan started. `None` if it started at an end of the keyspace.
        start: Option<&'a [u8]>,
        /// Number of entries that the scan read.
        entries: u64,
    },
    /// Start of a commit that consists of the following writes.
    Batch {
        /// Number of writes in the commit.
        operations: u64,
    },
    /// Assigns a number to a keyspace.
    Keyspace {
        /// Number of the keyspace.
        keyspace: u32,
        /// Name of the keyspace at its first operation in the trace. A later rename is not recorded.
        name: &'a str,
    },
    /// Operations are missing at this point, because the recorder could not write them fast enough.
    Lost {
        /// Number of missing operations.
        operations: u64,
    },
    /// End of a complete trace.
    End {
        /// Total number of recorded operations.
        operations: u64,
    },
}

impl TraceEvent<'_> {
    fn code(&self) -> u8 {
        match self {
            TraceEvent::Put { .. } => 1,
            TraceEvent::Delete { .. } => 2,
            TraceEvent::Merge { .. } => 3,
            TraceEvent::DeleteRange { .. } => 4,
            TraceEvent::Get { .. } => 5,
            TraceEvent::Scan { .. } => 6,
            TraceEvent::Batch { .. } => 7,
            TraceEvent::Keyspace { .. } => 8,
            TraceEvent::Lost { .. } => 9,
            TraceEvent::End { .. } => 10,
        }
    }

    /// Returns whether the event is an operation of a user.
    #[must_use]
    pub fn is_operation(&self) -> bool {
        self.code() <= 6
    }

    /// Returns whether the event can request a sync: it is a write or the start of a commit.
    fn is_write(&self) -> bool {
        self.code() <= 4 || self.code() == 7
    }
}

/// One item of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceItem<'a> {
    /// Microseconds since the previous item. For the first item, microseconds since the start of the trace.
    pub after_us: u64,
    /// Whether the commit requested a sync. Always false for events that are not commits.
    pub synced: bool,
    /// The event.
    pub event: TraceEvent<'a>,
}

impl TraceItem<'_> {
    /// Appends the encoded item to `out`. `values_kept` must equal the field in the header of the trace.
    #[cfg_attr(feature = "internals", visibility::make(pub))]
    pub(crate) fn encode(&self, values_kept: bool, out: &mut Vec<u8>) {
        out.push(self.event.code() | if self.synced { SYNCED } else { 0 });
        put_varint(out, self.after_us);
        let put_key = |out: &mut Vec<u8>, keyspace: u32, key: &[u8]| {
            put_varint(out, u64::from(keyspace));
            put_bytes(out, key);
        };
        match self.event {
            TraceEvent::Put { keyspace, key, value }
            | TraceEvent::Merge { keyspace, key, operand: value } => {
                put_key(out, keyspace, key);
                match value.content {
                    Some(content) if values_kept => put_bytes(out, content),
                    _ => put_varint(out, value.bytes),
                }
            }
            TraceEvent::Delete { keyspace, key } => put_key(out, keyspace, key),
            TraceEvent::DeleteRange { keyspace, start, end } => {
                put_key(out, keyspace, start);
                put_range_end(out, end);
            }
            TraceEvent::Get { keyspace, key, found } => {
                put_key(out, keyspace, key);
                put_varint(out, found.map_or(0, |bytes| bytes + 1));
            }
            TraceEvent::Scan { keyspace, backward, start, entries } => {
                put_varint(out, u64::from(keyspace));
                let backward = if backward { BACKWARD } else { 0 };
                out.push(backward | if start.is_some() { START_KEY } else { 0 });
                if let Some(start) = start {
                    put_bytes(out, start);
                }
                put_varint(out, entries);
            }
            TraceEvent::Batch { operations }
            | TraceEvent::Lost { operations }
            | TraceEvent::End { operations } => put_varint(out, operations),
            TraceEvent::Keyspace { keyspace, name } => put_key(out, keyspace, name.as_bytes()),
        }
    }
}

/// Iterator over the items in the payload of a record. The iterator ends after the first error.
#[derive(Debug)]
pub struct TraceItems<'a> {
    rest: Decoder<'a>,
    values_kept: bool,
    failed: bool,
}

impl<'a> TraceItems<'a> {
    /// Returns an iterator that starts at the first item. `values_kept` must equal the field in the header of the
    /// trace.
    #[must_use]
    pub fn new(payload: &'a [u8], values_kept: bool) -> TraceItems<'a> {
        TraceItems { rest: Decoder::new(payload), values_kept, failed: false }
    }

    fn decode_item(&mut self) -> Result<TraceItem<'a>, Malformed> {
        let code = self.rest.u8("code of an item")?;
        let after_us = self.rest.varint("time of an item")?;
        let synced = code & SYNCED != 0;
        let event = self.decode_event(code & !SYNCED)?;
        if synced && !event.is_write() {
            return Err(Malformed::invalid_field(
                "code of an item",
                u64::from(code),
                "synced only for commits",
            ));
        }
        Ok(TraceItem { after_us, synced, event })
    }

    fn decode_event(&mut self, code: u8) -> Result<TraceEvent<'a>, Malformed> {
        Ok(match code {
            1 => {
                let (keyspace, key) = (self.decode_keyspace()?, self.decode_key()?);
                TraceEvent::Put { keyspace, key, value: self.decode_value()? }
            }
            2 => TraceEvent::Delete { keyspace: self.decode_keyspace()?, key: self.decode_key()? },
            3 => {
                let (keyspace, key) = (self.decode_keyspace()?, self.decode_key()?);
                TraceEvent::Merge { keyspace, key, operand: self.decode_value()? }
            }
            4 => {
                let (keyspace, start) = (self.decode_keyspace()?, self.decode_key()?);
                let end = decode_range_end(&mut self.rest, "end of a range delete")?;
                let end = end.map(check_key).transpose()?;
                if end.is_some_and(|end| end <= start) {
                    return Err(Malformed::Order { what: "start and end of a range delete are" });
                }
                TraceEvent::DeleteRange { keyspace, start, end }
            }
            5 => {
                let (keyspace, key) = (self.decode_keyspace()?, self.decode_key()?);
                let found = self.rest.varint("value found")?.checked_sub(1);
                if found.is_some_and(|bytes| bytes > VALUE_BYTES_MAX) {
                    return Err(Malformed::invalid_field(
                        "bytes of a value",
                        found.unwrap_or(0),
                        "at most 1 GiB",
                    ));
                }
                TraceEvent::Get { keyspace, key, found }
            }
            6 => {
                let keyspace = self.decode_keyspace()?;
                let kind = self.rest.u8("start kind of a scan")?;
                if kind & !(BACKWARD | START_KEY) != 0 {
                    return Err(Malformed::invalid_field(
                        "start kind of a scan",
                        u64::from(kind),
                        "0 to 3",
                    ));
                }
                let start = if kind & START_KEY != 0 { Some(self.decode_key()?) } else { None };
                let entries = self.rest.varint("entries of a scan")?;
                TraceEvent::Scan { keyspace, backward: kind & BACKWARD != 0, start, entries }
            }
            7 => TraceEvent::Batch { operations: self.decode_operations()? },
            8 => {
                let keyspace = self.decode_keyspace()?;
                let name = self.rest.bytes("name of a keyspace")?;
                let name = std::str::from_utf8(name).map_err(|error| {
                    Malformed::invalid_field(
                        "name of a keyspace",
                        len_u64(error.valid_up_to()),
                        "valid UTF-8",
                    )
                })?;
                TraceEvent::Keyspace { keyspace, name }
            }
            9 => TraceEvent::Lost { operations: self.decode_operations()? },
            10 => TraceEvent::End { operations: self.decode_operations()? },
            _ => {
                return Err(Malformed::invalid_field(
                    "code of an item",
                    u64::from(code),
                    "a known code",
                ));
            }
        })
    }

    fn decode_operations(&mut self) -> Result<u64, Malformed> {
        self.rest.varint("operations of an item")
    }

    fn decode_keyspace(&mut self) -> Result<u32, Malformed> {
        let number = self.rest.varint("keyspace of an item")?;
        let expected = "at most 32 bits";
        u32::try_from(number)
            .map_err(|_| Malformed::invalid_field("keyspace of an item", number, expected))
    }

    fn decode_key(&mut self) -> Result<&'a [u8], Malformed> {
        check_key(self.rest.bytes("key of an item")?)
    }

    fn decode_value(&mut self) -> Result<TraceValue<'a>, Malformed> {
        if self.values_kept {
            let content = self.rest.bytes("value of an item")?;
            return Ok(TraceValue { bytes: len_u64(content.len()), content: Some(content) });
        }
        let bytes = self.rest.varint("bytes of a value")?;
        if bytes > VALUE_BYTES_MAX {
            return Err(Malformed::invalid_field("bytes of a value", bytes, "at most 1 GiB"));
        }
        Ok(TraceValue { bytes, content: None })
    }
}

fn check_key(key: &[u8]) -> Result<&[u8], Malformed> {
    if key.len() > TRACE_KEY_BYTES_MAX {
        return Err(Malformed::invalid_field(
            "bytes of a key",
            len_u64(key.len()),
            "at most 65,537",
        ));
    }
    Ok(key)
}

impl<'a> Iterator for TraceItems<'a> {
    type Item = Result<TraceItem<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let item = self.decode_item();
        self.failed = item.is_err();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn items(values_kept: bool) -> Vec<TraceItem<'static>> {
        let content = values_kept.then_some(&b"red"[..]);
        let value = TraceValue { bytes: 3, content };
        let end = Some(&b"pear"[..]);
        let start = Some(&b"b"[..]);
        [
            (TraceEvent::Keyspace { keyspace: 300, name: "fruit" }, false),
            (TraceEvent::Batch { operations: 4 }, true),
            (TraceEvent::Put { keyspace: 300, key: b"apple", value }, true),
            (TraceEvent::Delete { keyspace: 300, key: b"" }, true),
            (TraceEvent::Merge { keyspace: 0, key: b"plum", operand: value }, true),
            (TraceEvent::DeleteRange { keyspace: 0, start: b"b", end }, true),
            (TraceEvent::DeleteRange { keyspace: 0, start: b"", end: None }, false),
            (TraceEvent::Get { keyspace: 0, key: b"apple", found: Some(0) }, false),
            (TraceEvent::Get { keyspace: 0, key: b"apple", found: None }, false),
            (TraceEvent::Scan { keyspace: 0, backward: true, start: None, entries: 1000 }, false),
            (TraceEvent::Scan { keyspace: 0, backward: false, start, entries: 0 }, false),
            (TraceEvent::Lost { operations: 7 }, false),
            (TraceEvent::End { operations: 9 }, false),
        ]
        .into_iter()
        .zip([0, 1, 127, 128, 1 << 40].into_iter().cycle())
        .map(|((event, synced), after_us)| TraceItem { after_us, synced, event })
        .collect()
    }

    fn payload(values_kept: bool) -> Vec<u8> {
        let mut payload = Vec::new();
        for item in items(values_kept) {
            item.encode(values_kept, &mut payload);
        }
        payload
    }

    #[test]
    fn trace_items_with_and_without_values_round_trip() {
        for kept in [false, true] {
            let payload = payload(kept);
            let read: Vec<_> = TraceItems::new(&payload, kept).collect::<Result<_, _>>().unwrap();
            assert_eq!(read, items(kept));
        }
        assert!(payload(true).len() > payload(false).len());
    }

    #[test]
    fn trace_items_truncated_is_error_or_fewer_items() {
        for kept in [false, true] {
            let payload = payload(kept);
            for length in 0..payload.len() {
                let read: Vec<_> = TraceItems::new(&payload[..length], kept).collect();
                assert!(read.len() < 13 || read.iter().any(Result::is_err), "cut at {length}");
            }
        }
    }

    #[test]
    fn trace_items_flipped_bit_is_error_or_reencodes_equal() {
        for kept in [false, true] {
            let payload = payload(kept);
            for (bit, flipped) in copies_with_flipped_bit(&payload) {
                let read: Vec<_> = TraceItems::new(&flipped, kept).collect();
                if let Ok(items) = read.into_iter().collect::<Result<Vec<_>, _>>() {
                    let mut again = Vec::new();
                    items.iter().for_each(|item| item.encode(kept, &mut again));
                    assert_eq!(again, flipped, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn trace_header_round_trips_and_damaged_is_error() {
        for (keys_hashed, values_kept) in [(false, false), (true, false), (false, true)] {
            let header = TraceHeader { keys_hashed, values_kept, uid: 77, begun_us: 1_000_000 };
            let good = header.encode();
            assert_eq!(TraceHeader::decode(&good), Ok(header));
            for (bit, bad) in copies_with_flipped_bit(&good) {
                assert!(TraceHeader::decode(&bad).is_err(), "bit {bit}");
            }
            for length in 0..good.len() {
                assert!(TraceHeader::decode(&good[..length]).is_err());
            }
        }
    }
}
