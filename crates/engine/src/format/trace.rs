//! A trace: operations of users, as they were made on a live database.
//!
//! ```text
//! header  0  8  magic            LSMXTRC1
//!         8  4  format version   u32
//!        12  4  what is kept     u32, bit 0 keys are hashed, bit 1 values are there
//!        16  8  uid              u64, random; with the next field it seeds every checksum
//!        24  8  begun            u64, microseconds of the database's clock
//!        32  8  checksum         u64, over bytes 0..32
//! ```
//! Log records follow ([`super::frame`]); the sequence numbers of a record count items from 1, its
//! payload is items:
//! ```text
//! item    code u8, bit 7: the commit was synced · microseconds since the item before varint ·
//!  1 put            keyspace varint · key length varint · key · value bytes varint [· value]
//!  2 delete         keyspace · key
//!  3 merge          as put, with the operand
//!  4 delete range   keyspace · first key · end kind u8, 0 = a key follows, 1 = end of the keyspace
//!                   only for end kind 0: first key that is left
//!  5 get            keyspace · key · found varint, 0 = absent, else bytes of the value plus 1
//!  6 scan           keyspace · start kind u8, bit 0: backward, bit 1: a key follows
//!                   only with bit 1: key to start from · entries read varint
//!  7 batch          operations varint: so many writes follow that were one commit
//!  8 keyspace       number varint · name length varint · name
//!  9 lost           operations varint: so many were not recorded here
//! 10 end            operations varint: so many were recorded in all; nothing follows
//! ```
//! A keyspace is named before its first operation. Values are there if the header says so; hashed
//! keys have the length that the keys had, eight bytes at least.

use lsmx_base::checksum::xxh3;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::malformed::Malformed;

use crate::format::frame::{LogSeed, u32_at, u64_at};
use crate::format::{FORMAT_VERSION, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Bytes of a trace before its first record.
pub const TRACE_HEADER_BYTES: usize = 40;
/// `LSMXTRC1` read as a little-endian number.
pub const TRACE_MAGIC: u64 = u64::from_le_bytes(*b"LSMXTRC1");
const CHECKSUM_AT: usize = TRACE_HEADER_BYTES - size_of::<u64>();
const _: () = assert!(CHECKSUM_AT == 32, "the picture above says 32");

const KEYS_HASHED: u32 = 1;
const VALUES_KEPT: u32 = 1 << 1;
const SYNCED: u8 = 1 << 7;
const END_KEY: u8 = 0;
const END_OF_KEYSPACE: u8 = 1;
const BACKWARD: u8 = 1;
const START_KEY: u8 = 1 << 1;

/// Header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// Whether keys are hashes of what they were.
    pub keys_hashed: bool,
    /// Whether values and operands are there, and not their sizes alone.
    pub values_kept: bool,
    /// Random number of this trace.
    pub uid: u64,
    /// When it was begun, in microseconds of the database's clock.
    pub begun_us: u64,
}

impl TraceHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; TRACE_HEADER_BYTES] {
        let mut out = [0; TRACE_HEADER_BYTES];
        let hashed = if self.keys_hashed { KEYS_HASHED } else { 0 };
        let kept = if self.values_kept { VALUES_KEPT } else { 0 };
        out[..8].copy_from_slice(&TRACE_MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(hashed | kept).to_le_bytes());
        out[16..24].copy_from_slice(&self.uid.to_le_bytes());
        out[24..32].copy_from_slice(&self.begun_us.to_le_bytes());
        let sum = xxh3(&out[..CHECKSUM_AT]);
        out[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header from the first bytes of a trace.
    ///
    /// # Errors
    /// What is wrong: too short, wrong magic number, newer version, wrong checksum, wrong field.
    pub fn decode(bytes: &[u8]) -> Result<TraceHeader, Malformed> {
        let Some(bytes) = bytes.first_chunk::<TRACE_HEADER_BYTES>() else {
            return Err(Malformed::Truncated {
                what: "header of a trace",
                needed: len_u64(TRACE_HEADER_BYTES),
                found: len_u64(bytes.len()),
            });
        };
        if u64_at(bytes, 0) != TRACE_MAGIC {
            return Err(Malformed::Magic { expected: TRACE_MAGIC, found: u64_at(bytes, 0) });
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(Malformed::Version { found: version, supported: FORMAT_VERSION });
        }
        let (expected, found) = (xxh3(&bytes[..CHECKSUM_AT]), u64_at(bytes, CHECKSUM_AT));
        if found != expected {
            return Err(Malformed::Checksum { expected, found });
        }
        let kept = u32_at(bytes, 12);
        if version == 0 {
            return Err(field("format version", 0, "1 or more"));
        }
        if kept & !(KEYS_HASHED | VALUES_KEPT) != 0 {
            return Err(field("what a trace keeps", u64::from(kept), "known bits alone"));
        }
        Ok(TraceHeader {
            keys_hashed: kept & KEYS_HASHED != 0,
            values_kept: kept & VALUES_KEPT != 0,
            uid: u64_at(bytes, 16),
            begun_us: u64_at(bytes, 24),
        })
    }

    /// What the checksums of its records come from.
    #[must_use]
    pub fn seed(&self) -> LogSeed {
        LogSeed::new(self.uid, self.begun_us)
    }
}

fn field(what: &'static str, found: u64, expected: &'static str) -> Malformed {
    Malformed::Field { what, found, expected }
}

/// A value or an operand of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedValue<'a> {
    /// How many bytes it had.
    pub bytes: u64,
    /// What they were, if the trace keeps values.
    pub content: Option<&'a [u8]>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Traced<'a> {
    /// A key was given a value.
    Put {
        /// Number of its keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: TracedValue<'a>,
    },
    /// A key was deleted.
    Delete {
        /// Number of its keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
    },
    /// An operand was merged into a key.
    Merge {
        /// Number of its keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: TracedValue<'a>,
    },
    /// A range of keys was deleted.
    DeleteRange {
        /// Number of its keyspace.
        keyspace: u32,
        /// The first key that is deleted.
        start: &'a [u8],
        /// The first that is left; `None` for the end of the keyspace.
        end: Option<&'a [u8]>,
    },
    /// A key was looked up.
    Get {
        /// Number of its keyspace.
        keyspace: u32,
        /// The key.
        key: &'a [u8],
        /// Bytes of the value that was found, if there was one.
        found: Option<u64>,
    },
    /// Entries were read in key order.
    Scan {
        /// Number of its keyspace.
        keyspace: u32,
        /// Whether from larger keys to smaller ones.
        backward: bool,
        /// The bound where it began; `None` for the end of the keyspace that it began from.
        start: Option<&'a [u8]>,
        /// How many were read.
        entries: u64,
    },
    /// So many writes that follow were one commit.
    Batch {
        /// How many.
        operations: u64,
    },
    /// A keyspace has this number from here on.
    Keyspace {
        /// The number.
        keyspace: u32,
        /// Its name.
        name: &'a str,
    },
    /// Operations were made here that are not recorded: more came at a time than could be written.
    Lost {
        /// How many.
        operations: u64,
    },
    /// The trace was ended in order.
    End {
        /// Operations recorded in all.
        operations: u64,
    },
}

impl Traced<'_> {
    fn code(&self) -> u8 {
        match self {
            Traced::Put { .. } => 1,
            Traced::Delete { .. } => 2,
            Traced::Merge { .. } => 3,
            Traced::DeleteRange { .. } => 4,
            Traced::Get { .. } => 5,
            Traced::Scan { .. } => 6,
            Traced::Batch { .. } => 7,
            Traced::Keyspace { .. } => 8,
            Traced::Lost { .. } => 9,
            Traced::End { .. } => 10,
        }
    }

    /// Whether it is an operation of a user, and not something about the trace.
    #[must_use]
    pub fn is_operation(&self) -> bool {
        self.code() <= 6
    }

    /// Whether it can be part of a commit.
    fn is_write(&self) -> bool {
        self.code() <= 4 || self.code() == 7
    }
}

/// One item of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceItem<'a> {
    /// Microseconds since the item before; of the first one since the trace was begun.
    pub after_us: u64,
    /// Whether the commit asked for a sync; never so for what is no commit.
    pub synced: bool,
    /// What happened.
    pub what: Traced<'a>,
}

impl TraceItem<'_> {
    /// Appends it to the payload of a record. `values_kept` is what the header says.
    pub fn encode(&self, values_kept: bool, out: &mut Vec<u8>) {
        out.push(self.what.code() | if self.synced { SYNCED } else { 0 });
        put_varint(out, self.after_us);
        let put_key = |out: &mut Vec<u8>, keyspace: u32, key: &[u8]| {
            put_varint(out, u64::from(keyspace));
            put_bytes(out, key);
        };
        match self.what {
            Traced::Put { keyspace, key, value }
            | Traced::Merge { keyspace, key, operand: value } => {
                put_key(out, keyspace, key);
                match value.content {
                    Some(content) if values_kept => put_bytes(out, content),
                    _ => put_varint(out, value.bytes),
                }
            }
            Traced::Delete { keyspace, key } => put_key(out, keyspace, key),
            Traced::DeleteRange { keyspace, start, end } => {
                put_key(out, keyspace, start);
                match end {
                    Some(end) => {
                        out.push(END_KEY);
                        put_bytes(out, end);
                    }
                    None => out.push(END_OF_KEYSPACE),
                }
            }
            Traced::Get { keyspace, key, found } => {
                put_key(out, keyspace, key);
                put_varint(out, found.map_or(0, |bytes| bytes + 1));
            }
            Traced::Scan { keyspace, backward, start, entries } => {
                put_varint(out, u64::from(keyspace));
                let backward = if backward { BACKWARD } else { 0 };
                out.push(backward | if start.is_some() { START_KEY } else { 0 });
                if let Some(start) = start {
                    put_bytes(out, start);
                }
                put_varint(out, entries);
            }
            Traced::Batch { operations }
            | Traced::Lost { operations }
            | Traced::End { operations } => put_varint(out, operations),
            Traced::Keyspace { keyspace, name } => put_key(out, keyspace, name.as_bytes()),
        }
    }
}

/// Reads the items of a record one after the other.
#[derive(Debug)]
pub struct TraceItems<'a> {
    rest: Decoder<'a>,
    values_kept: bool,
    failed: bool,
}

impl<'a> TraceItems<'a> {
    /// Starts at the first item of a payload. `values_kept` is what the header says.
    #[must_use]
    pub fn new(payload: &'a [u8], values_kept: bool) -> TraceItems<'a> {
        TraceItems { rest: Decoder::new(payload), values_kept, failed: false }
    }

    fn item(&mut self) -> Result<TraceItem<'a>, Malformed> {
        let code = self.rest.u8("code of an item")?;
        let after_us = self.rest.varint("time of an item")?;
        let synced = code & SYNCED != 0;
        let what = self.what(code & !SYNCED)?;
        if synced && !what.is_write() {
            return Err(field("code of an item", u64::from(code), "synced for commits alone"));
        }
        Ok(TraceItem { after_us, synced, what })
    }

    fn what(&mut self, code: u8) -> Result<Traced<'a>, Malformed> {
        Ok(match code {
            1 => {
                let (keyspace, key) = (self.keyspace()?, self.key()?);
                Traced::Put { keyspace, key, value: self.value()? }
            }
            2 => Traced::Delete { keyspace: self.keyspace()?, key: self.key()? },
            3 => {
                let (keyspace, key) = (self.keyspace()?, self.key()?);
                Traced::Merge { keyspace, key, operand: self.value()? }
            }
            4 => {
                let (keyspace, start) = (self.keyspace()?, self.key()?);
                let end = match self.rest.u8("end kind of a range delete")? {
                    END_OF_KEYSPACE => None,
                    END_KEY => Some(self.key()?),
                    other => {
                        let expected = "0 (a key) or 1 (the end of the keyspace)";
                        return Err(field(
                            "end kind of a range delete",
                            u64::from(other),
                            expected,
                        ));
                    }
                };
                if end.is_some_and(|end| end <= start) {
                    return Err(Malformed::Order { what: "start and end of a range delete are" });
                }
                Traced::DeleteRange { keyspace, start, end }
            }
            5 => {
                let (keyspace, key) = (self.keyspace()?, self.key()?);
                let found = self.rest.varint("value found")?.checked_sub(1);
                if found.is_some_and(|bytes| bytes > VALUE_BYTES_MAX) {
                    return Err(field("bytes of a value", found.unwrap_or(0), "at most 1 GiB"));
                }
                Traced::Get { keyspace, key, found }
            }
            6 => {
                let keyspace = self.keyspace()?;
                let kind = self.rest.u8("start kind of a scan")?;
                if kind & !(BACKWARD | START_KEY) != 0 {
                    return Err(field("start kind of a scan", u64::from(kind), "0 to 3"));
                }
                let start = if kind & START_KEY != 0 { Some(self.key()?) } else { None };
                let entries = self.rest.varint("entries of a scan")?;
                Traced::Scan { keyspace, backward: kind & BACKWARD != 0, start, entries }
            }
            7 => Traced::Batch { operations: self.operations()? },
            8 => {
                let keyspace = self.keyspace()?;
                let name = self.rest.bytes("name of a keyspace")?;
                let name = std::str::from_utf8(name).map_err(|error| {
                    field("text of a name", len_u64(error.valid_up_to()), "UTF-8 to its end")
                })?;
                Traced::Keyspace { keyspace, name }
            }
            9 => Traced::Lost { operations: self.operations()? },
            10 => Traced::End { operations: self.operations()? },
            _ => return Err(field("code of an item", u64::from(code), "a known code")),
        })
    }

    fn operations(&mut self) -> Result<u64, Malformed> {
        self.rest.varint("operations of an item")
    }

    fn keyspace(&mut self) -> Result<u32, Malformed> {
        let number = self.rest.varint("keyspace of an item")?;
        let expected = "at most 32 bits";
        u32::try_from(number).map_err(|_| field("keyspace of an item", number, expected))
    }

    fn key(&mut self) -> Result<&'a [u8], Malformed> {
        let key = self.rest.bytes("key of an item")?;
        // An end that follows a key of full length is one byte longer.
        if len_u64(key.len()) > KEY_BYTES_MAX + 1 {
            return Err(field("bytes of a key", len_u64(key.len()), "at most 64 KiB"));
        }
        Ok(key)
    }

    fn value(&mut self) -> Result<TracedValue<'a>, Malformed> {
        if self.values_kept {
            let content = self.rest.bytes("value of an item")?;
            return Ok(TracedValue { bytes: len_u64(content.len()), content: Some(content) });
        }
        let bytes = self.rest.varint("bytes of a value")?;
        if bytes > VALUE_BYTES_MAX {
            return Err(field("bytes of a value", bytes, "at most 1 GiB"));
        }
        Ok(TracedValue { bytes, content: None })
    }
}

impl<'a> Iterator for TraceItems<'a> {
    type Item = Result<TraceItem<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let item = self.item();
        self.failed = item.is_err();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(values_kept: bool) -> Vec<TraceItem<'static>> {
        let content = values_kept.then_some(&b"red"[..]);
        let value = TracedValue { bytes: 3, content };
        let end = Some(&b"pear"[..]);
        let start = Some(&b"b"[..]);
        [
            (Traced::Keyspace { keyspace: 300, name: "fruit" }, false),
            (Traced::Batch { operations: 4 }, true),
            (Traced::Put { keyspace: 300, key: b"apple", value }, true),
            (Traced::Delete { keyspace: 300, key: b"" }, true),
            (Traced::Merge { keyspace: 0, key: b"plum", operand: value }, true),
            (Traced::DeleteRange { keyspace: 0, start: b"b", end }, true),
            (Traced::DeleteRange { keyspace: 0, start: b"", end: None }, false),
            (Traced::Get { keyspace: 0, key: b"apple", found: Some(0) }, false),
            (Traced::Get { keyspace: 0, key: b"apple", found: None }, false),
            (Traced::Scan { keyspace: 0, backward: true, start: None, entries: 1000 }, false),
            (Traced::Scan { keyspace: 0, backward: false, start, entries: 0 }, false),
            (Traced::Lost { operations: 7 }, false),
            (Traced::End { operations: 9 }, false),
        ]
        .into_iter()
        .zip([0, 1, 127, 128, 1 << 40].into_iter().cycle())
        .map(|((what, synced), after_us)| TraceItem { after_us, synced, what })
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
    fn items_come_back_with_values_and_without() {
        for kept in [false, true] {
            let payload = payload(kept);
            let read: Vec<_> = TraceItems::new(&payload, kept).collect::<Result<_, _>>().unwrap();
            assert_eq!(read, items(kept));
        }
        assert!(payload(true).len() > payload(false).len());
    }

    #[test]
    fn every_truncation_is_an_error_or_fewer_items() {
        for kept in [false, true] {
            let payload = payload(kept);
            for length in 0..payload.len() {
                let read: Vec<_> = TraceItems::new(&payload[..length], kept).collect();
                assert!(read.len() < 13 || read.iter().any(Result::is_err), "cut at {length}");
            }
        }
    }

    #[test]
    fn no_flipped_bit_panics_and_what_is_read_is_what_is_there() {
        for kept in [false, true] {
            let payload = payload(kept);
            for bit in 0..payload.len() * 8 {
                let mut flipped = payload.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
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
    fn a_header_comes_back_and_every_flipped_bit_is_noticed() {
        for (keys_hashed, values_kept) in [(false, false), (true, false), (false, true)] {
            let header = TraceHeader { keys_hashed, values_kept, uid: 77, begun_us: 1_000_000 };
            let good = header.encode();
            assert_eq!(TraceHeader::decode(&good), Ok(header));
            for bit in 0..good.len() * 8 {
                let mut bad = good;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(TraceHeader::decode(&bad).is_err(), "bit {bit}");
            }
            for length in 0..good.len() {
                assert!(TraceHeader::decode(&good[..length]).is_err());
            }
        }
    }
}
