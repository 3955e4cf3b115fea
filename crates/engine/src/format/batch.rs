//! A commit as the WAL holds it: the operations of one batch, in the order they take effect.
//!
//! ```text
//! operation  kind u8 · keyspace varint · key length varint · key
//!            then, unless the kind is a tombstone: value length varint · value
//! ```
//! The first operation has the record's first sequence number, each later one the next number.
//! The record around the payload holds the count of operations and the checksums.

use std::ops::Range;

use crate::coding::{Decoder, len_u64, put_bytes, put_varint, varint_len};
use crate::error::Malformed;
use crate::key::Kind;

/// Appends one operation to a payload.
pub(crate) fn put_operation(
    payload: &mut Vec<u8>,
    kind: Kind,
    keyspace: u32,
    key: &[u8],
    value: &[u8],
) {
    payload.push(kind as u8);
    put_varint(payload, u64::from(keyspace));
    put_bytes(payload, key);
    if kind != Kind::Delete {
        put_bytes(payload, value);
    }
}

/// Bytes that [`put_operation`] appends; for a tombstone one less.
pub(crate) fn operation_bytes(keyspace: u32, key: &[u8], value: &[u8]) -> usize {
    let lengths = varint_len(len_u64(key.len())) + varint_len(len_u64(value.len()));
    1 + varint_len(u64::from(keyspace)) + lengths + key.len() + value.len()
}

/// One operation of a payload; key and value are places in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// What it does.
    pub kind: Kind,
    /// Id of the keyspace it does it in.
    pub keyspace: u32,
    /// Place of the key.
    pub key: Range<usize>,
    /// Place of the value, empty for a tombstone.
    pub value: Range<usize>,
}

/// Reads the operations of a payload one after the other.
#[derive(Debug)]
pub(crate) struct Operations<'a> {
    rest: Decoder<'a>,
    failed: bool,
}

impl<'a> Operations<'a> {
    /// Starts at the first operation.
    pub(crate) fn new(payload: &'a [u8]) -> Operations<'a> {
        Operations { rest: Decoder::new(payload), failed: false }
    }

    fn bytes(&mut self, what: &'static str) -> Result<Range<usize>, Malformed> {
        let bytes = self.rest.bytes(what)?;
        let end = self.rest.offset();
        Ok(end - bytes.len()..end)
    }

    fn operation(&mut self) -> Result<Operation, Malformed> {
        let byte = self.rest.u8("kind of an operation")?;
        let kind = Kind::from_u8(byte).ok_or(Malformed::Field {
            what: "kind of an operation",
            found: u64::from(byte),
            expected: "a known kind",
        })?;
        let keyspace = self.rest.varint("keyspace of an operation")?;
        let keyspace = u32::try_from(keyspace).map_err(|_| Malformed::Field {
            what: "keyspace of an operation",
            found: keyspace,
            expected: "at most 32 bits",
        })?;
        let key = self.bytes("key of an operation")?;
        let value = if kind == Kind::Delete {
            key.end..key.end
        } else {
            self.bytes("value of an operation")?
        };
        Ok(Operation { kind, keyspace, key, value })
    }
}

impl Iterator for Operations<'_> {
    type Item = Result<Operation, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let operation = self.operation();
        self.failed = operation.is_err();
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut payload = Vec::new();
        put_operation(&mut payload, Kind::Put, 0, b"apple", b"red");
        put_operation(&mut payload, Kind::Delete, 300, b"", b"");
        put_operation(&mut payload, Kind::Put, 7, &[0xff; 200], b"");
        payload
    }

    #[test]
    fn operations_come_back_as_written() {
        let payload = sample();
        let read: Vec<_> = Operations::new(&payload).collect::<Result<_, _>>().unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!((read[0].kind, read[0].keyspace), (Kind::Put, 0));
        assert_eq!(&payload[read[0].key.clone()], b"apple");
        assert_eq!(&payload[read[0].value.clone()], b"red");
        assert_eq!((read[1].kind, read[1].keyspace), (Kind::Delete, 300));
        assert!(read[1].key.is_empty() && read[1].value.is_empty());
        assert_eq!(&payload[read[2].key.clone()], &[0xff; 200]);
    }

    #[test]
    fn every_truncation_is_an_error_or_fewer_operations() {
        let payload = sample();
        for length in 0..payload.len() {
            let read: Vec<_> = Operations::new(&payload[..length]).collect();
            assert!(read.len() < 3 || read.iter().any(Result::is_err), "cut at {length}");
        }
    }

    #[test]
    fn no_flipped_bit_panics() {
        let payload = sample();
        for bit in 0..payload.len() * 8 {
            let mut flipped = payload.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            for operation in Operations::new(&flipped).flatten() {
                assert!(operation.key.end <= flipped.len() && operation.value.end <= flipped.len());
            }
        }
    }
}
