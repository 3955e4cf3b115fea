//! Record: a merge operand or a delete marker of a key.
//!
//! ```text
//! varint  length of the key      then the key
//! varint  sequence number        of a folded operand: the largest sequence number in it
//! varint  tag                    0 for a delete marker
//!                                1 + (largest - smallest sequence number) for an operand
//! varint  length of the operand  then the operand; absent for a delete marker
//! ```
//!
//! Records are ordered by ascending key, then by descending sequence number.

use std::cmp::Ordering;

use bytes::Bytes;
use lsmx::Error;
use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use super::frame::{FrameKind, put_frame};
use super::invalid_field;

/// Approximate bytes of a record's lengths, sequence number and tag.
const RECORD_OVERHEAD_BYTES: usize = 8;

/// A merge operand, or a delete marker that covers the older operands of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    /// Smallest sequence number in a folded operand. Equal to `last` in all other records.
    pub first: SeqNo,
    pub last: SeqNo,
    /// `None` for a delete marker.
    pub operand: Option<Bytes>,
}

impl Record {
    pub fn new_delete_marker(key: Bytes, seq: SeqNo) -> Record {
        Record { key, first: seq, last: seq, operand: None }
    }

    /// Compares two records by ascending key, then by descending sequence number.
    pub fn cmp_by_key_and_seq(&self, other: &Record) -> Ordering {
        (&self.key, other.last).cmp(&(&other.key, self.last))
    }

    pub fn put(&self, out: &mut Vec<u8>) {
        put_record(out, &self.key, (self.first, self.last), self.operand.as_deref());
    }

    /// Returns the approximate encoded size, in bytes.
    pub fn size(&self) -> usize {
        self.key.len() + self.operand.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES
    }
}

/// A record that borrows its key and operand from encoded bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    pub key: &'a [u8],
    pub first: SeqNo,
    pub last: SeqNo,
    pub operand: Option<&'a [u8]>,
}

impl<'a> RecordRef<'a> {
    /// Decodes the record at `offset` of `bytes`. Panics if the record is invalid.
    pub fn decode_valid(bytes: &'a [u8], offset: usize) -> RecordRef<'a> {
        #[expect(clippy::expect_used, reason = "the caller has encoded or checked the record")]
        decode_record(&mut Decoder::new(&bytes[offset..])).expect("the record is valid")
    }

    /// Returns an owned record that shares the memory of `bytes`. The record must have been decoded from `bytes`.
    pub fn to_record(self, bytes: &Bytes) -> Record {
        Record {
            key: bytes.slice_ref(self.key),
            first: self.first,
            last: self.last,
            operand: self.operand.map(|operand| bytes.slice_ref(operand)),
        }
    }
}

pub fn put_record(
    out: &mut Vec<u8>,
    key: &[u8],
    (first, last): (SeqNo, SeqNo),
    operand: Option<&[u8]>,
) {
    put_bytes(out, key);
    put_varint(out, last.0);
    match operand {
        None => put_varint(out, 0),
        Some(operand) => {
            put_varint(out, 1 + last.0.saturating_sub(first.0));
            put_bytes(out, operand);
        }
    }
}

/// Appends a page frame with the given records to `out`. `start` is the file offset at which `out` begins.
///
/// Returns the file offset and the size of the frame, in bytes.
pub fn put_page(
    out: &mut Vec<u8>,
    (uid, start): (u64, u64),
    kind: FrameKind,
    page: &[Record],
) -> Result<(u64, u64), Error> {
    let (from, offset) = (out.len(), start + len_u64(out.len()));
    put_frame(out, (uid, offset), kind, |out| page.iter().for_each(|record| record.put(out)))?;
    Ok((offset, len_u64(out.len() - from)))
}

pub fn decode_seq(decoder: &mut Decoder<'_>, what: &'static str) -> Result<SeqNo, Malformed> {
    let found = decoder.varint(what)?;
    let seq = (found <= SeqNo::MAX.0).then_some(SeqNo(found));
    seq.ok_or(invalid_field(what, found, "a sequence number"))
}

fn decode_record<'a>(decoder: &mut Decoder<'a>) -> Result<RecordRef<'a>, Malformed> {
    let key = decoder.bytes("key of a record")?;
    let last = decode_seq(decoder, "number of a record")?;
    let tag = decoder.varint("tag of a record")?;
    if tag == 0 {
        return Ok(RecordRef { key, first: last, last, operand: None });
    }
    let first = last.0.checked_sub(tag - 1);
    let first = first.ok_or(invalid_field("tag of a record", tag, "at most its number plus 1"))?;
    Ok(RecordRef { key, first: SeqNo(first), last, operand: Some(decoder.bytes("operand")?) })
}

/// Calls `visit` with the offset and the value of each record. Fails if the records are not in strictly ascending
/// order.
pub fn for_each_record<'a>(
    bytes: &'a [u8],
    mut visit: impl FnMut(usize, RecordRef<'a>),
) -> Result<(), Malformed> {
    let mut decoder = Decoder::new(bytes);
    let mut before: Option<RecordRef<'_>> = None;
    while !decoder.is_empty() {
        let at = decoder.offset();
        let record = decode_record(&mut decoder)?;
        if before.is_some_and(|before| (before.key, record.last) >= (record.key, before.last)) {
            return Err(Malformed::Order { what: "records" });
        }
        before = Some(record);
        visit(at, record);
    }
    Ok(())
}

/// Encoded records in record order, with an index of their offsets.
#[derive(Clone, Debug)]
pub struct SortedRecords {
    bytes: Bytes,
    offsets: Arc<[u32]>,
}

impl SortedRecords {
    /// Encodes records, which must be in order. Fails with [`Error::TooLarge`] if they need more than 4 GiB.
    pub fn encode(records: &[Record]) -> Result<SortedRecords, Error> {
        let mut bytes = Vec::with_capacity(records.iter().map(|record| record.size() + 8).sum());
        let mut offsets = Vec::with_capacity(records.len());
        for record in records {
            offsets.push(encode_offset(bytes.len())?);
            record.put(&mut bytes);
        }
        // The memory accounting of tails counts the length, so the buffer must not have unused capacity.
        bytes.shrink_to_fit();
        Ok(SortedRecords { bytes: bytes.into(), offsets: offsets.into() })
    }

    /// Checks encoded records and finds their offsets. `bytes` must have at most 4 GiB, like the contents of a frame.
    pub fn decode(bytes: Bytes) -> Result<SortedRecords, Malformed> {
        let mut offsets = Vec::new();
        for_each_record(&bytes, |at, _| offsets.push(u32::try_from(at).unwrap_or(u32::MAX)))?;
        Ok(SortedRecords { bytes, offsets: offsets.into() })
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    pub fn record(&self, index: usize) -> RecordRef<'_> {
        RecordRef::decode_valid(&self.bytes, self.offsets[index] as usize)
    }

    /// Returns an owned record that shares the memory of the encoded bytes.
    pub fn owned_record(&self, index: usize) -> Record {
        self.record(index).to_record(&self.bytes)
    }

    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        (0..self.len()).map(|index| self.record(index))
    }

    /// Returns the index of the first record whose key is at or after `key`.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.partition_point(|record| record.key < key)
    }

    /// Returns the index of the first record whose key is after `key`.
    pub fn upper_bound(&self, key: &[u8]) -> usize {
        self.partition_point(|record| record.key <= key)
    }

    fn partition_point(&self, is_before: impl Fn(RecordRef<'_>) -> bool) -> usize {
        let decode = |offset: &u32| RecordRef::decode_valid(&self.bytes, *offset as usize);
        self.offsets.partition_point(|offset| is_before(decode(offset)))
    }
}

fn encode_offset(offset: usize) -> Result<u32, Error> {
    u32::try_from(offset).map_err(|_| Error::TooLarge {
        what: "operands of a bucket that are in memory",
        bytes: len_u64(offset),
        limit: u64::from(u32::MAX),
    })
}

/// Decodes all records. They share the memory of `bytes`.
pub fn decode_records(bytes: &Bytes) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    for_each_record(bytes, |_, record| records.push(record.to_record(bytes)))?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let operand = |key: &'static [u8], first, last, bytes: &'static [u8]| Record {
            key: Bytes::from_static(key),
            first: SeqNo(first),
            last: SeqNo(last),
            operand: Some(Bytes::from_static(bytes)),
        };
        vec![
            operand(b"", 0, 0, b""),
            operand(b"a", 9, 300, b"x"),
            Record::new_delete_marker(Bytes::from_static(b"a"), SeqNo(8)),
            operand(b"a", 7, 7, &[3; 500]),
            Record::new_delete_marker(Bytes::from_static(b"b"), SeqNo::MAX),
        ]
    }

    #[test]
    fn records_round_trip_and_truncation_is_an_error_or_a_prefix() {
        let mut bytes = Vec::new();
        records().iter().for_each(|record| record.put(&mut bytes));
        assert_eq!(decode_records(&bytes.clone().into()).unwrap(), records());
        for len in 0..bytes.len() {
            if let Ok(prefix) = decode_records(&Bytes::copy_from_slice(&bytes[..len])) {
                assert_eq!(prefix, records()[..prefix.len()]);
            }
        }
    }

    #[test]
    fn records_out_of_order_are_rejected() {
        let mut bytes = Vec::new();
        records().iter().rev().for_each(|record| record.put(&mut bytes));
        assert!(matches!(decode_records(&bytes.into()), Err(Malformed::Order { .. })));
    }
}
