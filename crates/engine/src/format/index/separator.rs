//! Where one block ends and the next begins.

use std::cmp::Ordering;

use lsmx_base::key::{InternalKey, SeqNo};

use crate::format::data_block::common_prefix;

/// On which side of a separator the versions of its user key are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// All in the block before it.
    #[default]
    Before,
    /// Those down to this sequence number before it, the older ones after it.
    Split(SeqNo),
    /// All after it.
    After,
}

/// A place between two blocks: at or after the last entry of the one, before the first of the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Separator {
    /// Not before the last user key of the one, not after the first of the next.
    pub user_key: Vec<u8>,
    /// On which side this key is.
    pub versions: Versions,
}

impl Separator {
    /// The shortest separator between the last key of a block and the first of the next, if there
    /// is a next.
    #[must_use]
    pub fn between(last: InternalKey<'_>, next: Option<InternalKey<'_>>) -> Separator {
        match next {
            Some(next) if next.user_key == last.user_key => {
                let versions = Versions::Split(last.seq);
                Separator { user_key: last.user_key.to_vec(), versions }
            }
            next => {
                let user_key = shortest(last.user_key, next.map(|next| next.user_key));
                Separator { user_key, versions: Versions::Before }
            }
        }
    }

    /// Whether the separator is before (`user_key`, `seq`), so that the block before it is too.
    #[must_use]
    pub fn is_before(&self, user_key: &[u8], seq: SeqNo) -> bool {
        match self.user_key.as_slice().cmp(user_key) {
            Ordering::Less => true,
            Ordering::Equal => match self.versions {
                Versions::Before => false,
                Versions::Split(own) => own > seq,
                Versions::After => true,
            },
            Ordering::Greater => false,
        }
    }
}

/// The shortest key `s` with `last ≤ s`, and `s < next` where there is a next.
pub(super) fn shortest(last: &[u8], next: Option<&[u8]>) -> Vec<u8> {
    let common = next.map_or(0, |next| common_prefix(last, next));
    if common == last.len() {
        return last.to_vec();
    }
    if let Some(next) = next {
        // `last` and `next` differ at `common`, and `next` is the larger.
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

/// What is just before a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    /// A key with this byte where the boundary has its last one.
    Byte(u8),
    /// A key that ends where the boundary has its last byte.
    End,
    /// The version of the boundary's own key with this number.
    Version(SeqNo),
}

/// A separator, and what the one before it cannot be larger than.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    /// The first bytes of the first key after it, up to the first that differs from the key before;
    /// if that is the same user key, all of it.
    pub(crate) user_key: Vec<u8>,
    pub(crate) below: Below,
}

impl Boundary {
    /// The boundary between the last key of a block and the first of the next.
    pub(crate) fn between(last: InternalKey<'_>, next: InternalKey<'_>) -> Boundary {
        let common = common_prefix(last.user_key, next.user_key);
        match next.user_key.get(..=common) {
            None => Boundary { user_key: next.user_key.to_vec(), below: Below::Version(last.seq) },
            Some(user_key) => Boundary {
                user_key: user_key.to_vec(),
                below: last.user_key.get(common).map_or(Below::End, |&byte| Below::Byte(byte)),
            },
        }
    }

    /// The number of the last version before it, if it is inside a user key.
    pub(super) fn seq(&self) -> Option<SeqNo> {
        match self.below {
            Below::Version(seq) => Some(seq),
            Below::Byte(_) | Below::End => None,
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
    fn separators_are_short() {
        let separator = |a: &str, b: &str| {
            Separator::between(key(a.as_bytes(), 1), Some(key(b.as_bytes(), 1))).user_key
        };
        assert_eq!(separator("user:0001234", "user:00013"), b"user:000124");
        assert_eq!(separator("apple", "banana"), b"b");
        assert_eq!(separator("apple", "b"), b"aq");
        assert_eq!(separator("a", "b"), b"a");
        assert_eq!(separator("a", "ab"), b"a");
        assert_eq!(shortest(b"abc", None), b"b");
        assert_eq!(shortest(&[255, 255, 7], None), [255, 255, 7]);
        assert_eq!(shortest(&[255, 255, 7, 1], None), [255, 255, 8]);
        assert!(shortest(&[], None).is_empty());
        let same = Separator::between(key(b"k", 9), Some(key(b"k", 8)));
        assert_eq!(
            same,
            Separator { user_key: b"k".to_vec(), versions: Versions::Split(SeqNo(9)) }
        );
    }

    proptest! {
        #[test]
        fn separators_separate(
            a in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), 0..4u8], 0..6),
            b in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), 0..4u8], 0..6),
        ) {
            prop_assume!(a != b);
            let (last, next) = if a < b { (a, b) } else { (b, a) };
            let short = shortest(&last, Some(&next));
            prop_assert!(last <= short && short < next && short.len() <= last.len().max(1));
            let end = shortest(&last, None);
            prop_assert!(last <= end && end.len() <= last.len());
        }
    }
}
