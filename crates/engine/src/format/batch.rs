//! Payload of a WAL record: the operations of one commit, in commit order.
//!
//! ```text
//! operation  code u8 · keyspace varint · key length varint · key
//!            then, except for tombstones: value length varint · value
//!
//!            code 5 (range delete): the key is the start of the range, and the end of the range,
//!            `range_end.rs`, follows instead of a value
//! ```
//!
//! The code of an entry is its entry kind, which tables also use. Code 5 is not an entry kind. The first operation has
//! the first sequence number of the record. The sequence number increases by one with each operation. The header of the
//! record contains the number of operations and the checksums.

use std::ops::Range;

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_u64, put_varint, varint_len};
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;

use crate::format::expiry::{EXPIRY_BYTES, check_expiring_value};
use crate::format::range_end::{decode_range_end, put_range_end};

/// Code of a range delete. Entry kinds use the codes 0 to 4. Codes with the flag 0x80 are also entry kinds, or are
/// reserved for entry kinds.
const RANGE_DELETE: u8 = 5;

/// Appends a put, a merge or a delete of one key to a payload. `value` is ignored for a delete.
pub fn put_operation(
    payload: &mut Vec<u8>,
    kind: EntryKind,
    keyspace: u32,
    key: &[u8],
    value: &[u8],
) {
    payload.push(kind as u8);
    put_varint(payload, u64::from(keyspace));
    put_bytes(payload, key);
    if kind != EntryKind::Delete {
        put_bytes(payload, value);
    }
}

/// Appends a put that expires at `expiry_us`, in microseconds of the database clock.
pub fn put_expiring_operation(
    payload: &mut Vec<u8>,
    keyspace: u32,
    key: &[u8],
    expiry_us: u64,
    value: &[u8],
) {
    payload.push(EntryKind::PutExpiring as u8);
    put_varint(payload, u64::from(keyspace));
    put_bytes(payload, key);
    put_varint(payload, len_u64(EXPIRY_BYTES + value.len()));
    put_u64(payload, expiry_us);
    payload.extend_from_slice(value);
}

/// Returns the size in bytes of the operation that [`put_operation`] appends. The result is one byte too large for a
/// delete.
pub(crate) fn operation_bytes(keyspace: u32, key: &[u8], value: &[u8]) -> usize {
    let lengths = varint_len(len_u64(key.len())) + varint_len(len_u64(value.len()));
    1 + varint_len(u64::from(keyspace)) + lengths + key.len() + value.len()
}

/// Appends a range delete to a payload. The range starts at `start` (inclusive) and ends at `end` (exclusive). If `end`
/// is `None`, the range ends at the end of the keyspace. The range must not be empty.
pub fn put_range_delete(payload: &mut Vec<u8>, keyspace: u32, start: &[u8], end: Option<&[u8]>) {
    payload.push(RANGE_DELETE);
    put_varint(payload, u64::from(keyspace));
    put_bytes(payload, start);
    put_range_end(payload, end);
}

/// Effect of an operation. Values and range ends are represented as byte ranges in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// Writes an entry.
    Entry {
        /// Kind of the entry.
        kind: EntryKind,
        /// Byte range of the value, which is empty for a tombstone.
        value: Range<usize>,
    },
    /// Deletes a range of keys. The key of the operation is the start of the range.
    DeleteRange {
        /// Byte range of the exclusive end key. `None` stands for the end of the keyspace.
        end: Option<Range<usize>>,
    },
}

/// One decoded operation of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOperation {
    /// Id of the keyspace.
    pub keyspace: u32,
    /// Byte range of the key in the payload.
    pub key: Range<usize>,
    /// Effect of the operation.
    pub action: OperationEffect,
}

impl BatchOperation {
    /// Adds `bytes` to all byte ranges. This converts ranges in a payload to ranges in a buffer that contains the
    /// payload at offset `bytes`.
    pub(crate) fn shift_positions(&mut self, bytes: usize) {
        let shifted = |range: &Range<usize>| range.start + bytes..range.end + bytes;
        self.key = shifted(&self.key);
        match &mut self.action {
            OperationEffect::Entry { value, .. } => *value = shifted(value),
            OperationEffect::DeleteRange { end } => *end = end.as_ref().map(shifted),
        }
    }
}

/// Iterator over the operations of a payload. The iterator ends after the first error.
#[derive(Debug)]
pub struct BatchOperationIter<'a> {
    payload: &'a [u8],
    rest: Decoder<'a>,
    failed: bool,
}

impl<'a> BatchOperationIter<'a> {
    /// Returns an iterator that starts at the first operation.
    pub fn new(payload: &'a [u8]) -> BatchOperationIter<'a> {
        BatchOperationIter { payload, rest: Decoder::new(payload), failed: false }
    }

    fn decode_length_prefixed(&mut self, what: &'static str) -> Result<Range<usize>, Malformed> {
        let bytes = self.rest.bytes(what)?;
        let end = self.rest.offset();
        Ok(end - bytes.len()..end)
    }

    fn decode_operation(&mut self) -> Result<BatchOperation, Malformed> {
        let code = self.rest.u8("kind of an operation")?;
        let kind = EntryKind::from_u8(code);
        if kind.is_none() && code != RANGE_DELETE {
            return Err(Malformed::invalid_field(
                "kind of an operation",
                u64::from(code),
                "a known kind",
            ));
        }
        let keyspace = self.rest.varint("keyspace of an operation")?;
        let keyspace = u32::try_from(keyspace).map_err(|_| {
            Malformed::invalid_field("keyspace of an operation", keyspace, "at most 32 bits")
        })?;
        let key = self.decode_length_prefixed("key of an operation")?;
        let action = match kind {
            Some(EntryKind::Delete) => {
                OperationEffect::Entry { kind: EntryKind::Delete, value: key.end..key.end }
            }
            Some(kind) => {
                let value = self.decode_length_prefixed("value of an operation")?;
                check_expiring_value(kind, value.len())?;
                OperationEffect::Entry { kind, value }
            }
            None => OperationEffect::DeleteRange { end: self.decode_range_end(&key)? },
        };
        Ok(BatchOperation { keyspace, key, action })
    }

    fn decode_range_end(
        &mut self,
        start: &Range<usize>,
    ) -> Result<Option<Range<usize>>, Malformed> {
        let Some(end) = decode_range_end(&mut self.rest, "end of a range delete")? else {
            return Ok(None);
        };
        if *end <= self.payload[start.clone()] {
            return Err(Malformed::Order { what: "start and end of a range delete are" });
        }
        Ok(Some(self.rest.offset() - end.len()..self.rest.offset()))
    }
}

impl Iterator for BatchOperationIter<'_> {
    type Item = Result<BatchOperation, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let operation = self.decode_operation();
        self.failed = operation.is_err();
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::copies_with_flipped_bit;

    fn sample() -> Vec<u8> {
        let mut payload = Vec::new();
        put_operation(&mut payload, EntryKind::Put, 0, b"apple", b"red");
        put_operation(&mut payload, EntryKind::Delete, 300, b"", b"");
        put_operation(&mut payload, EntryKind::Put, 7, &[0xff; 200], b"");
        put_range_delete(&mut payload, 2, b"from", Some(b"to"));
        put_range_delete(&mut payload, 0, b"", None);
        payload
    }

    fn value(operation: &BatchOperation) -> (EntryKind, Range<usize>) {
        match &operation.action {
            OperationEffect::Entry { kind, value } => (*kind, value.clone()),
            OperationEffect::DeleteRange { .. } => panic!("a range delete"),
        }
    }

    #[test]
    fn batch_operations_round_trip() {
        let payload = sample();
        let read: Vec<_> = BatchOperationIter::new(&payload).collect::<Result<_, _>>().unwrap();
        assert_eq!(read.len(), 5);
        let (kind, range) = value(&read[0]);
        assert_eq!((kind, read[0].keyspace), (EntryKind::Put, 0));
        assert_eq!(&payload[read[0].key.clone()], b"apple");
        assert_eq!(&payload[range], b"red");
        let (kind, range) = value(&read[1]);
        assert_eq!((kind, read[1].keyspace), (EntryKind::Delete, 300));
        assert!(read[1].key.is_empty() && range.is_empty());
        assert_eq!(&payload[read[2].key.clone()], &[0xff; 200]);
        let OperationEffect::DeleteRange { end: Some(end) } = read[3].action.clone() else {
            panic!("{:?}", read[3])
        };
        assert_eq!((&payload[read[3].key.clone()], &payload[end]), (&b"from"[..], &b"to"[..]));
        assert_eq!(read[3].keyspace, 2);
        assert_eq!(read[4].action, OperationEffect::DeleteRange { end: None });
    }

    #[test]
    fn batch_empty_range_delete_is_error() {
        for end in [&b""[..], b"a", b"b"] {
            let mut payload = Vec::new();
            put_range_delete(&mut payload, 0, b"b", Some(end));
            assert!(BatchOperationIter::new(&payload).any(|read| read.is_err()), "{end:?}");
        }
    }

    #[test]
    fn batch_truncated_is_error_or_shorter() {
        let payload = sample();
        for length in 0..payload.len() {
            let read: Vec<_> = BatchOperationIter::new(&payload[..length]).collect();
            assert!(read.len() < 5 || read.iter().any(Result::is_err), "cut at {length}");
        }
    }

    #[test]
    fn batch_flipped_bit_does_not_panic() {
        let payload = sample();
        for (_, flipped) in copies_with_flipped_bit(&payload) {
            for operation in BatchOperationIter::new(&flipped).flatten() {
                let end = match &operation.action {
                    OperationEffect::Entry { value, .. } => value.end,
                    OperationEffect::DeleteRange { end } => end.as_ref().map_or(0, |end| end.end),
                };
                assert!(operation.key.end <= flipped.len() && end <= flipped.len());
            }
        }
    }
}
