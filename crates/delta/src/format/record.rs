//! Record: an operand or an anchor of a key.
//!
//! ```text
//! varint  bytes of the key      the key
//! varint  number                its own; of a folded operand the largest
//! varint  tag                   0: an anchor; else an operand, 1 + (number - smallest number in it)
//! varint  bytes of the operand  the operand; not with an anchor
//! ```
//!
//! Records stand in order: key ascending, then number descending.

use std::cmp::Ordering;

use bytes::Bytes;
use lsmx::{Malformed, SeqNo};
use lsmx_base::coding::{Decoder, put_bytes, put_varint};

/// An operand, or an anchor that voids the operands of its key below its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Bytes,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    /// None: an anchor.
    pub(crate) operand: Option<Bytes>,
}

impl Record {
    pub(crate) fn anchor(key: Bytes, seq: SeqNo) -> Record {
        Record { key, first: seq, last: seq, operand: None }
    }

    /// Key ascending, newest first.
    pub(crate) fn order(&self, other: &Record) -> Ordering {
        (&self.key, other.last).cmp(&(&other.key, self.last))
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put(out, &self.key, (self.first, self.last), self.operand.as_deref());
    }

    /// Bytes that it takes, about.
    pub(crate) fn size(&self) -> usize {
        self.key.len() + self.operand.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES
    }
}

/// Lengths, number and tag, about.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 8;

/// Appends a record.
pub(crate) fn put(
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

/// A record that still lies where it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    pub(crate) operand: Option<&'a [u8]>,
}

/// The next record.
pub(crate) fn get<'a>(decoder: &mut Decoder<'a>) -> Result<RecordRef<'a>, Malformed> {
    let key = decoder.bytes("key of a record")?;
    let last = decoder.varint("number of a record")?;
    if last > SeqNo::MAX.0 {
        let expected = "a sequence number";
        return Err(Malformed::Field { what: "number of a record", found: last, expected });
    }
    let tag = decoder.varint("tag of a record")?;
    if tag == 0 {
        return Ok(RecordRef { key, first: SeqNo(last), last: SeqNo(last), operand: None });
    }
    let first = last.checked_sub(tag - 1).ok_or(Malformed::Field {
        what: "tag of a record",
        found: tag,
        expected: "at most one more than its number",
    })?;
    let operand = Some(decoder.bytes("operand")?);
    Ok(RecordRef { key, first: SeqNo(first), last: SeqNo(last), operand })
}

/// Calls `each` with all records of `bytes`, and where each begins; they must stand in order.
pub(crate) fn for_each<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(usize, RecordRef<'a>),
) -> Result<(), Malformed> {
    let mut decoder = Decoder::new(bytes);
    let mut before: Option<RecordRef<'_>> = None;
    while !decoder.is_empty() {
        let at = decoder.offset();
        let record = get(&mut decoder)?;
        if before.is_some_and(|before| (before.key, record.last) >= (record.key, before.last)) {
            return Err(Malformed::Order { what: "records" });
        }
        before = Some(record);
        each(at, record);
    }
    Ok(())
}

/// All records of `bytes`, which they share.
pub(crate) fn decode_all(bytes: &Bytes) -> Result<Vec<Record>, Malformed> {
    let mut records = Vec::new();
    for_each(bytes, |_, record| records.push(record.shared(bytes)))?;
    Ok(records)
}

impl RecordRef<'_> {
    /// The record as one that shares `bytes`, which it lies in.
    pub(crate) fn shared(&self, bytes: &Bytes) -> Record {
        Record {
            key: bytes.slice_ref(self.key),
            first: self.first,
            last: self.last,
            operand: self.operand.map(|operand| bytes.slice_ref(operand)),
        }
    }
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
            Record::anchor(Bytes::from_static(b"a"), SeqNo(8)),
            operand(b"a", 7, 7, &[3; 500]),
            Record::anchor(Bytes::from_static(b"b"), SeqNo::MAX),
        ]
    }

    #[test]
    fn records_come_back_and_cuts_are_errors_or_fewer_records() {
        let mut bytes = Vec::new();
        records().iter().for_each(|record| record.put(&mut bytes));
        assert_eq!(decode_all(&bytes.clone().into()).unwrap(), records());
        for len in 0..bytes.len() {
            if let Ok(fewer) = decode_all(&Bytes::copy_from_slice(&bytes[..len])) {
                assert_eq!(fewer, records()[..fewer.len()]);
            }
        }
    }

    #[test]
    fn records_out_of_order_are_refused() {
        let mut bytes = Vec::new();
        records().iter().rev().for_each(|record| record.put(&mut bytes));
        assert!(matches!(decode_all(&bytes.into()), Err(Malformed::Order { .. })));
    }
}
