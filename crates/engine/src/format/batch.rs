//! A commit as the WAL holds it: the operations of one batch, in the order they take effect.
//!
//! ```text
//! operation  code u8 · keyspace varint · key length varint · key
//!            then, unless the code is that of a tombstone: value length varint · value
//!
//!            code 5, a range delete, whose key is the first that it deletes, has instead of a value:
//!            end kind u8, 0 = a key follows, 1 = the end of the keyspace
//!            only for end kind 0: end length varint · end, the first key it leaves
//! ```
//! The codes of entries are those of their kinds in tables. A range delete is no kind of entry.
//! The first operation has the record's first sequence number, each later one the next number.
//! The record around the payload holds the count of operations and the checksums.

use std::ops::Range;

use lsmx_base::coding::{Decoder, len_u64, put_bytes, put_varint, varint_len};
use lsmx_base::key::EntryKind;
use lsmx_base::malformed::Malformed;

/// Code of a range delete. Codes 0 to 4 and 0x80 are kinds of entries, or reserved for them.
const RANGE_DELETE: u8 = 5;
const END_KEY: u8 = 0;
const END_OF_KEYSPACE: u8 = 1;

/// Appends one operation to a payload.
pub(crate) fn put_operation(
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

/// Bytes that [`put_operation`] appends; for a tombstone one less.
pub(crate) fn operation_bytes(keyspace: u32, key: &[u8], value: &[u8]) -> usize {
    let lengths = varint_len(len_u64(key.len())) + varint_len(len_u64(value.len()));
    1 + varint_len(u64::from(keyspace)) + lengths + key.len() + value.len()
}

/// Appends a range delete to a payload: of all keys from `start` on, before `end`, or up to the end
/// of the keyspace. The range is not empty.
pub(crate) fn put_range_delete(
    payload: &mut Vec<u8>,
    keyspace: u32,
    start: &[u8],
    end: Option<&[u8]>,
) {
    payload.push(RANGE_DELETE);
    put_varint(payload, u64::from(keyspace));
    put_bytes(payload, start);
    match end {
        Some(end) => {
            payload.push(END_KEY);
            put_bytes(payload, end);
        }
        None => payload.push(END_OF_KEYSPACE),
    }
}

/// What an operation does to its keyspace; places are places in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes an entry.
    Entry {
        /// What the entry does.
        kind: EntryKind,
        /// Place of the value, empty for a tombstone.
        value: Range<usize>,
    },
    /// Deletes the keys from the operation's key on.
    DeleteRange {
        /// Place of the first key that is left; `None` for the end of the keyspace.
        end: Option<Range<usize>>,
    },
}

/// One operation of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Id of the keyspace it works on.
    pub keyspace: u32,
    /// Place of the key.
    pub key: Range<usize>,
    /// What it does.
    pub action: Action,
}

impl Operation {
    /// Moves its places by so many bytes, to where the payload begins in a buffer.
    pub(crate) fn move_by(&mut self, bytes: usize) {
        let moved = |place: &Range<usize>| place.start + bytes..place.end + bytes;
        self.key = moved(&self.key);
        match &mut self.action {
            Action::Entry { value, .. } => *value = moved(value),
            Action::DeleteRange { end } => *end = end.as_ref().map(moved),
        }
    }
}

/// Reads the operations of a payload one after the other.
#[derive(Debug)]
pub(crate) struct Operations<'a> {
    payload: &'a [u8],
    rest: Decoder<'a>,
    failed: bool,
}

impl<'a> Operations<'a> {
    /// Starts at the first operation.
    pub(crate) fn new(payload: &'a [u8]) -> Operations<'a> {
        Operations { payload, rest: Decoder::new(payload), failed: false }
    }

    fn bytes(&mut self, what: &'static str) -> Result<Range<usize>, Malformed> {
        let bytes = self.rest.bytes(what)?;
        let end = self.rest.offset();
        Ok(end - bytes.len()..end)
    }

    fn operation(&mut self) -> Result<Operation, Malformed> {
        let code = self.rest.u8("kind of an operation")?;
        let kind = EntryKind::from_u8(code);
        if kind.is_none() && code != RANGE_DELETE {
            return Err(Malformed::Field {
                what: "kind of an operation",
                found: u64::from(code),
                expected: "a known kind",
            });
        }
        let keyspace = self.rest.varint("keyspace of an operation")?;
        let keyspace = u32::try_from(keyspace).map_err(|_| Malformed::Field {
            what: "keyspace of an operation",
            found: keyspace,
            expected: "at most 32 bits",
        })?;
        let key = self.bytes("key of an operation")?;
        let action = match kind {
            Some(EntryKind::Delete) => {
                Action::Entry { kind: EntryKind::Delete, value: key.end..key.end }
            }
            Some(kind) => Action::Entry { kind, value: self.bytes("value of an operation")? },
            None => Action::DeleteRange { end: self.range_end(&key)? },
        };
        Ok(Operation { keyspace, key, action })
    }

    fn range_end(&mut self, start: &Range<usize>) -> Result<Option<Range<usize>>, Malformed> {
        match self.rest.u8("end kind of a range delete")? {
            END_OF_KEYSPACE => Ok(None),
            END_KEY => {
                let end = self.bytes("end of a range delete")?;
                if self.payload[end.clone()] <= self.payload[start.clone()] {
                    return Err(Malformed::Order { what: "start and end of a range delete are" });
                }
                Ok(Some(end))
            }
            other => Err(Malformed::Field {
                what: "end kind of a range delete",
                found: u64::from(other),
                expected: "0 (a key) or 1 (the end of the keyspace)",
            }),
        }
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
        put_operation(&mut payload, EntryKind::Put, 0, b"apple", b"red");
        put_operation(&mut payload, EntryKind::Delete, 300, b"", b"");
        put_operation(&mut payload, EntryKind::Put, 7, &[0xff; 200], b"");
        put_range_delete(&mut payload, 2, b"from", Some(b"to"));
        put_range_delete(&mut payload, 0, b"", None);
        payload
    }

    fn value(operation: &Operation) -> (EntryKind, Range<usize>) {
        match &operation.action {
            Action::Entry { kind, value } => (*kind, value.clone()),
            Action::DeleteRange { .. } => panic!("a range delete"),
        }
    }

    #[test]
    fn operations_come_back_as_written() {
        let payload = sample();
        let read: Vec<_> = Operations::new(&payload).collect::<Result<_, _>>().unwrap();
        assert_eq!(read.len(), 5);
        let (kind, place) = value(&read[0]);
        assert_eq!((kind, read[0].keyspace), (EntryKind::Put, 0));
        assert_eq!(&payload[read[0].key.clone()], b"apple");
        assert_eq!(&payload[place], b"red");
        let (kind, place) = value(&read[1]);
        assert_eq!((kind, read[1].keyspace), (EntryKind::Delete, 300));
        assert!(read[1].key.is_empty() && place.is_empty());
        assert_eq!(&payload[read[2].key.clone()], &[0xff; 200]);
        let Action::DeleteRange { end: Some(end) } = read[3].action.clone() else {
            panic!("{:?}", read[3])
        };
        assert_eq!((&payload[read[3].key.clone()], &payload[end]), (&b"from"[..], &b"to"[..]));
        assert_eq!(read[3].keyspace, 2);
        assert_eq!(read[4].action, Action::DeleteRange { end: None });
    }

    #[test]
    fn a_range_delete_of_nothing_is_refused() {
        for end in [&b""[..], b"a", b"b"] {
            let mut payload = Vec::new();
            put_range_delete(&mut payload, 0, b"b", Some(end));
            assert!(Operations::new(&payload).any(|read| read.is_err()), "{end:?}");
        }
    }

    #[test]
    fn every_truncation_is_an_error_or_fewer_operations() {
        let payload = sample();
        for length in 0..payload.len() {
            let read: Vec<_> = Operations::new(&payload[..length]).collect();
            assert!(read.len() < 5 || read.iter().any(Result::is_err), "cut at {length}");
        }
    }

    #[test]
    fn no_flipped_bit_panics() {
        let payload = sample();
        for bit in 0..payload.len() * 8 {
            let mut flipped = payload.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            for operation in Operations::new(&flipped).flatten() {
                let end = match &operation.action {
                    Action::Entry { value, .. } => value.end,
                    Action::DeleteRange { end } => end.as_ref().map_or(0, |end| end.end),
                };
                assert!(operation.key.end <= flipped.len() && end <= flipped.len());
            }
        }
    }
}
