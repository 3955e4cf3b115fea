//! Separators and boundaries between consecutive blocks.

use std::cmp::Ordering;

use lsmx_base::key::{InternalKey, SeqNo};

use crate::format::data_block::common_prefix;

/// States which blocks contain the versions of the user key of a separator: the block before the separator, the block
/// after it, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeparatorSide {
    /// All versions are in the block before the separator.
    #[default]
    Before,
    /// Versions with this sequence number or a larger one are in the block before the separator. Older versions are in
    /// the block after it.
    Split(SeqNo),
    /// All versions are in the block after the separator.
    After,
}

/// A position between two consecutive blocks. The last entry of the first block is at or before the separator. The
/// first entry of the next block is after the separator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Separator {
    /// User key at or after the last user key of the first block, and at or before the first user key of the next
    /// block.
    pub user_key: Vec<u8>,
    /// States which blocks contain the versions of `user_key`.
    pub versions: SeparatorSide,
}

impl Separator {
    /// Returns a short separator between the last key of a block and the first key of the next block. `next` is `None`
    /// if the block is the last one.
    #[must_use]
    pub fn between(last: InternalKey<'_>, next: Option<InternalKey<'_>>) -> Separator {
        match next {
            Some(next) if next.user_key == last.user_key => {
                let versions = SeparatorSide::Split(last.seq);
                Separator { user_key: last.user_key.to_vec(), versions }
            }
            next => {
                let user_key = shortest_separator(last.user_key, next.map(|next| next.user_key));
                Separator { user_key, versions: SeparatorSide::Before }
            }
        }
    }

    /// Returns whether the separator is before (`user_key`, `seq`). If it is, the block before the separator contains
    /// only entries before (`user_key`, `seq`).
    #[must_use]
    pub fn is_before(&self, user_key: &[u8], seq: SeqNo) -> bool {
        match self.user_key.as_slice().cmp(user_key) {
            Ordering::Less => true,
            Ordering::Equal => match self.versions {
                SeparatorSide::Before => false,
                SeparatorSide::Split(own) => own > seq,
                SeparatorSide::After => true,
            },
            Ordering::Greater => false,
        }
    }
}

/// Returns a short key that is at least `last`, and less than `next` if `next` is given.
pub(super) fn shortest_separator(last: &[u8], next: Option<&[u8]>) -> Vec<u8> {
    let common = next.map_or(0, |next| common_prefix(last, next));
    if common == last.len() {
        return last.to_vec();
    }
    if let Some(next) = next {
        // `last` and `next` first differ at index `common`, where the byte of `next` is larger.
        if next.len() > common + 1 {
            return next[..=common].to_vec();
        }
    }
    for (index, &byte) in last.iter().enumerate().skip(common) {
        if byte == u8::MAX {
            continue;
        }
        let mut key = last[..index].to_vec();
        key.push(byte + 1);
        if next.is_none_or(|next| key.as_slice() < next) && key.len() < last.len() {
            return key;
        }
    }
    last.to_vec()
}

/// Upper bound of the key before a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrecedingKey {
    /// The preceding key is longer than the common prefix, and has this byte at the position of the last byte of the
    /// boundary.
    Byte(u8),
    /// The preceding key ends before the position of the last byte of the boundary.
    End,
    /// The preceding key has the same user key as the boundary, and this sequence number.
    Version(SeqNo),
}

/// A separator, and an upper bound of the key before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    /// The shortest prefix of the key after the boundary that is greater than the key before the boundary. If both keys
    /// have the same user key, this is the whole user key.
    pub(crate) user_key: Vec<u8>,
    pub(crate) preceding: PrecedingKey,
}

impl Boundary {
    /// Returns the boundary between the last key of a block and the first key of the next block.
    pub(crate) fn between(last: InternalKey<'_>, next: InternalKey<'_>) -> Boundary {
        let common = common_prefix(last.user_key, next.user_key);
        match next.user_key.get(..=common) {
            None => Boundary {
                user_key: next.user_key.to_vec(),
                preceding: PrecedingKey::Version(last.seq),
            },
            Some(user_key) => Boundary {
                user_key: user_key.to_vec(),
                preceding: last
                    .user_key
                    .get(common)
                    .map_or(PrecedingKey::End, |&byte| PrecedingKey::Byte(byte)),
            },
        }
    }

    /// If the boundary separates two versions of one user key, returns the sequence number of the last version before
    /// the boundary.
    pub(super) fn last_seq_before(&self) -> Option<SeqNo> {
        match self.preceding {
            PrecedingKey::Version(seq) => Some(seq),
            PrecedingKey::Byte(_) | PrecedingKey::End => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use lsmx_base::key::EntryKind;

    fn key(user_key: &[u8], seq: u64) -> InternalKey<'_> {
        InternalKey { user_key, seq: SeqNo(seq), kind: EntryKind::Put }
    }

    #[test]
    fn separator_between_keys_is_short() {
        let separator = |a: &str, b: &str| {
            Separator::between(key(a.as_bytes(), 1), Some(key(b.as_bytes(), 1))).user_key
        };
        assert_eq!(separator("user:0001234", "user:00013"), b"user:000124");
        assert_eq!(separator("apple", "banana"), b"b");
        assert_eq!(separator("apple", "b"), b"aq");
        assert_eq!(separator("a", "b"), b"a");
        assert_eq!(separator("a", "ab"), b"a");
        assert_eq!(shortest_separator(b"abc", None), b"b");
        assert_eq!(shortest_separator(&[255, 255, 7], None), [255, 255, 7]);
        assert_eq!(shortest_separator(&[255, 255, 7, 1], None), [255, 255, 8]);
        assert!(shortest_separator(&[], None).is_empty());
        let same = Separator::between(key(b"k", 9), Some(key(b"k", 8)));
        assert_eq!(
            same,
            Separator { user_key: b"k".to_vec(), versions: SeparatorSide::Split(SeqNo(9)) }
        );
    }

    proptest! {
        #[test]
        fn separator_random_keys_lies_between(
            a in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), 0..4u8], 0..6),
            b in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), 0..4u8], 0..6),
        ) {
            prop_assume!(a != b);
            let (last, next) = if a < b { (a, b) } else { (b, a) };
            let short = shortest_separator(&last, Some(&next));
            prop_assert!(last <= short && short < next && short.len() <= last.len().max(1));
            let end = shortest_separator(&last, None);
            prop_assert!(last <= end && end.len() <= last.len());
        }
    }
}
