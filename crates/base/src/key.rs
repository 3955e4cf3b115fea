//! Internal keys and the order of entries.

use std::cmp::Ordering;
use std::fmt;

/// Sequence number: the position of a write in the total order of all writes of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqNo(pub u64);

impl SeqNo {
    /// Smaller than the sequence number of every write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// Larger than the sequence number of every write. Sequence numbers have 56 bits.
    pub const MAX: SeqNo = SeqNo((1 << 56) - 1);
}

impl fmt::Display for SeqNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kind of an entry. A number that was once used on disk is never reused.
///
/// The number 4 is reserved for single deletes. The flag 0x80 marks entries that expire: their stored value begins with
/// the expiry time, a u64 in microseconds of the database clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// A tombstone. It deletes the key.
    Delete = 0,
    /// The entry's value is the value of the key.
    Put = 1,
    /// The entry's value is a merge operand.
    Merge = 2,
    /// The entry's value is a pointer into the value log.
    ValuePointer = 3,
    /// The entry's value is an expiry time and the value of the key.
    PutExpiring = 0x81,
    /// The entry's value is an expiry time and a pointer into the value log.
    ValuePointerExpiring = 0x83,
}

/// Flag of the kinds whose entries expire.
const EXPIRING: u8 = 0x80;

impl EntryKind {
    /// The largest kind. Among entries of one key and one sequence number it comes first.
    pub const MAX: EntryKind = EntryKind::ValuePointerExpiring;

    /// Returns whether the stored value begins with an expiry time.
    #[inline]
    #[must_use]
    pub fn is_expiring(self) -> bool {
        self as u8 & EXPIRING != 0
    }

    /// Returns whether the entry has a value, inline or in the value log.
    #[inline]
    #[must_use]
    pub fn is_value(self) -> bool {
        !matches!(self, EntryKind::Delete | EntryKind::Merge)
    }

    /// Returns the kind of the same entry without its expiry time.
    #[inline]
    #[must_use]
    pub fn without_expiry(self) -> EntryKind {
        match self {
            EntryKind::PutExpiring => EntryKind::Put,
            EntryKind::ValuePointerExpiring => EntryKind::ValuePointer,
            kind => kind,
        }
    }

    /// Returns the kind of the same entry with an expiry time. Kinds without a value stay unchanged.
    #[inline]
    #[must_use]
    pub fn with_expiry(self) -> EntryKind {
        match self {
            EntryKind::Put => EntryKind::PutExpiring,
            EntryKind::ValuePointer => EntryKind::ValuePointerExpiring,
            kind => kind,
        }
    }

    /// Returns the kind with this number, or `None` if this version does not know it.
    #[must_use]
    pub fn from_u8(byte: u8) -> Option<EntryKind> {
        match byte {
            0 => Some(EntryKind::Delete),
            1 => Some(EntryKind::Put),
            2 => Some(EntryKind::Merge),
            3 => Some(EntryKind::ValuePointer),
            0x81 => Some(EntryKind::PutExpiring),
            0x83 => Some(EntryKind::ValuePointerExpiring),
            _ => None,
        }
    }
}

/// User key, sequence number and kind of an entry.
///
/// Internal keys are ordered by ascending user key, then by descending sequence number, then by descending kind. The
/// newest entry of a key therefore comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InternalKey<'a> {
    /// Key that the user wrote.
    pub user_key: &'a [u8],
    /// Sequence number of the write.
    pub seq: SeqNo,
    /// Kind of the entry.
    pub kind: EntryKind,
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

/// The first 16 bytes of a user key as two big-endian numbers, padded with zeros.
///
/// If two prefixes differ, the keys have the same order as the prefixes. If they are equal, the keys must be compared.
/// Most comparisons need only the prefixes, which saves the memory access to the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPrefix(pub [u64; 2]);

impl KeyPrefix {
    /// Returns the prefix of a user key.
    #[inline]
    #[must_use]
    pub fn new(user_key: &[u8]) -> KeyPrefix {
        let second = user_key.get(size_of::<u64>()..).unwrap_or_default();
        KeyPrefix([first_eight_bytes(user_key), first_eight_bytes(second)])
    }
}

/// Returns the first eight bytes as a big-endian number, padded with zeros.
#[inline]
pub(crate) fn first_eight_bytes(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(padded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_and_max_is_largest() {
        let kinds: Vec<EntryKind> = (0..=u8::MAX).filter_map(EntryKind::from_u8).collect();
        assert!(kinds.iter().all(|&kind| EntryKind::from_u8(kind as u8) == Some(kind)));
        assert_eq!(kinds.iter().max(), Some(&EntryKind::MAX));
        for kind in kinds {
            assert_eq!(kind.without_expiry().with_expiry().is_expiring(), kind.is_value());
            assert!(!kind.without_expiry().is_expiring());
        }
    }

    #[test]
    fn key_prefix_different_prefixes_compare_like_keys() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"a", b"a\0", b"ab", b"abcdefgh", b"abcdefghi", b"abcdefghijklmnop", b"b"];
        for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
            if KeyPrefix::new(a) != KeyPrefix::new(b) {
                assert_eq!(KeyPrefix::new(a).cmp(&KeyPrefix::new(b)), a.cmp(b));
            }
        }
        assert_eq!(KeyPrefix::new(b"abcdefghijklmnop"), KeyPrefix::new(b"abcdefghijklmnopq"));
        assert_eq!(KeyPrefix::new(b"a"), KeyPrefix::new(b"a\0"));
    }
}
