//! Internal keys: user key, sequence number, kind, and their order.

use std::cmp::Ordering;
use std::fmt;

/// Place of a write in the one order of all writes of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// Smaller than the number of any write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// Larger than the number of any write; numbers of writes fit in 56 bits.
    pub const MAX: SeqNo = SeqNo((1 << 56) - 1);
}

impl fmt::Display for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an entry does to its key. A number once on disk is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A tombstone: the key has no value from here on.
    Delete = 0,
    /// The key has this value from here on.
    Put = 1,
    /// The value is an operand that changes what is older.
    Merge = 2,
    /// The value is a pointer into the value log.
    ValuePointer = 3,
    // 4 is reserved for single delete, 0x80 as a flag for an entry with an expiry.
}

impl Kind {
    /// The kind that a byte on disk stands for, or `None` for a byte this version does not know.
    #[must_use]
    pub fn from_u8(byte: u8) -> Option<Kind> {
        match byte {
            0 => Some(Kind::Delete),
            1 => Some(Kind::Put),
            2 => Some(Kind::Merge),
            3 => Some(Kind::ValuePointer),
            _ => None,
        }
    }
}

/// User key, sequence number and kind of an entry, borrowed.
///
/// Order: user key ascending, then sequence number descending (newest first), then kind descending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InternalKey<'a> {
    /// The key the user gave.
    pub user_key: &'a [u8],
    /// Place in the order of writes.
    pub seq: SeqNo,
    /// What the entry does.
    pub kind: Kind,
}

impl Ord for InternalKey<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.user_key
            .cmp(other.user_key)
            .then_with(|| other.seq.cmp(&self.seq))
            .then_with(|| other.kind.cmp(&self.kind))
    }
}

impl PartialOrd for InternalKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The first sixteen bytes of a user key as two big-endian numbers, with zeros behind a shorter
/// one: prefixes that differ compare as the keys do, equal ones say nothing. It decides nearly every
/// comparison without a look at the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix(pub(crate) [u64; 2]);

impl Prefix {
    /// The prefix of a user key.
    #[inline]
    pub(crate) fn of(user_key: &[u8]) -> Prefix {
        let word = |from: usize| {
            let bytes = user_key.get(from..).unwrap_or_default();
            match bytes.first_chunk() {
                Some(whole) => u64::from_be_bytes(*whole),
                None => {
                    let mut padded = [0; size_of::<u64>()];
                    padded[..bytes.len()].copy_from_slice(bytes);
                    u64::from_be_bytes(padded)
                }
            }
        };
        Prefix([word(0), word(size_of::<u64>())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_that_differ_compare_as_keys() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"abcdefghi", b"abcdefghijklmnop", b"b"];
        for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
            if Prefix::of(a) != Prefix::of(b) {
                assert_eq!(Prefix::of(a).cmp(&Prefix::of(b)), a.cmp(b));
            }
        }
        assert_eq!(Prefix::of(b"abcdefghijklmnop"), Prefix::of(b"abcdefghijklmnopq"));
        assert_eq!(Prefix::of(b"a"), Prefix::of(b"a\0"));
    }
}
