//! Bounds of key ranges.

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;

/// Returns the key of a bound, or `None` if it is unbounded.
pub(crate) fn key_of_bound<K>(bound: Bound<K>) -> Option<K> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Returns a bound that borrows the key.
pub(crate) fn borrowed_bound(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(Bytes::as_ref)
}

/// Returns the bounds of a range with copies of its keys.
pub(crate) fn owned_bounds<K: AsRef<[u8]>>(
    range: impl RangeBounds<K>,
) -> (Bound<Bytes>, Bound<Bytes>) {
    let owned = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
    (owned(range.start_bound()), owned(range.end_bound()))
}

/// Returns whether a key is before all keys of a range with this lower bound.
#[inline]
pub(crate) fn is_below(key: &[u8], lower: &Bound<Bytes>) -> bool {
    match lower {
        Bound::Included(lower) => *key < **lower,
        Bound::Excluded(lower) => *key <= **lower,
        Bound::Unbounded => false,
    }
}

/// Returns whether a key is after all keys of a range with this upper bound.
#[inline]
pub(crate) fn is_above(key: &[u8], upper: &Bound<Bytes>) -> bool {
    match upper {
        Bound::Included(upper) => *key > **upper,
        Bound::Excluded(upper) => *key >= **upper,
        Bound::Unbounded => false,
    }
}

/// Returns whether there are no keys between the bounds, as for `b..a`.
pub(crate) fn is_empty_range(lower: &Bound<Bytes>, upper: &Bound<Bytes>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
    }
}

/// Returns the upper bound of all keys that start with `prefix`.
pub(crate) fn prefix_upper_bound(prefix: &[u8]) -> Bound<Bytes> {
    let last_index = prefix.iter().rposition(|&byte| byte != u8::MAX);
    last_index.map_or(Bound::Unbounded, |last| {
        let mut after = prefix[..=last].to_vec();
        after[last] += 1;
        Bound::Excluded(Bytes::from(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_upper_bound_is_next_prefix_or_unbounded() {
        assert_eq!(prefix_upper_bound(b"ab"), Bound::Excluded(Bytes::from_static(b"ac")));
        assert_eq!(prefix_upper_bound(b"a\xff\xff"), Bound::Excluded(Bytes::from_static(b"b")));
        assert_eq!(prefix_upper_bound(b"\xff"), Bound::Unbounded);
        assert_eq!(prefix_upper_bound(b""), Bound::Unbounded);
    }
}
