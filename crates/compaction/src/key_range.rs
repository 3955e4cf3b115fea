//! Ranges of user keys.

use bytes::Bytes;

/// A user key. Clones share the bytes.
pub type Key = Bytes;

/// A range of user keys in bytewise order. Both bounds are inclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// Smallest key, inclusive.
    pub smallest: Key,
    /// Largest key, inclusive.
    pub largest: Key,
}

impl KeyRange {
    /// Returns the range from `smallest` to `largest`, both inclusive.
    pub fn new(smallest: impl Into<Key>, largest: impl Into<Key>) -> Self {
        KeyRange { smallest: smallest.into(), largest: largest.into() }
    }

    /// Returns whether the ranges overlap.
    #[must_use]
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        self.smallest <= other.largest && other.smallest <= self.largest
    }

    /// Returns whether the range contains `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.smallest.as_ref() <= key && key <= self.largest.as_ref()
    }

    /// Returns whether the range contains all keys of `other`.
    #[must_use]
    pub fn covers(&self, other: &KeyRange) -> bool {
        self.smallest <= other.smallest && other.largest <= self.largest
    }

    /// Returns the smallest range that covers both ranges.
    #[must_use]
    pub fn enclosing_both(&self, other: &KeyRange) -> KeyRange {
        KeyRange {
            smallest: self.smallest.clone().min(other.smallest.clone()),
            largest: self.largest.clone().max(other.largest.clone()),
        }
    }

    /// Returns the smallest range that covers all `ranges`, or `None` if there are no ranges.
    pub fn enclosing_range<'a>(ranges: impl IntoIterator<Item = &'a KeyRange>) -> Option<KeyRange> {
        let mut ranges = ranges.into_iter();
        let first = ranges.next()?;
        let (mut smallest, mut largest) = (&first.smallest, &first.largest);
        for range in ranges {
            smallest = smallest.min(&range.smallest);
            largest = largest.max(&range.largest);
        }
        Some(KeyRange { smallest: smallest.clone(), largest: largest.clone() })
    }

    /// Returns whether no two ranges overlap. The ranges may be in any order.
    pub fn are_disjoint<'a>(ranges: impl IntoIterator<Item = &'a KeyRange>) -> bool {
        let mut ranges: Vec<&KeyRange> = ranges.into_iter().collect();
        ranges.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        ranges.windows(2).all(|pair| pair[0].largest < pair[1].smallest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(smallest: &'static str, largest: &'static str) -> KeyRange {
        KeyRange::new(smallest, largest)
    }

    #[test]
    fn overlaps_shared_bound_is_true() {
        assert!(range("a", "c").overlaps(&range("c", "d")));
        assert!(range("c", "d").overlaps(&range("a", "c")));
        assert!(!range("a", "b").overlaps(&range("c", "d")));
        assert!(!range("c", "d").overlaps(&range("a", "b")));
    }

    #[test]
    fn contains_both_bounds_is_true() {
        let range = range("b", "d");
        assert!(range.contains(b"b") && range.contains(b"c") && range.contains(b"d"));
        assert!(!range.contains(b"a") && !range.contains(b"da"));
    }

    #[test]
    fn hull_is_smallest_range_that_covers_both() {
        let hull = range("a", "c").enclosing_both(&range("b", "f"));
        assert_eq!(hull, range("a", "f"));
        assert!(hull.covers(&range("b", "f")) && !range("b", "f").covers(&hull));
        let all = [range("m", "n"), range("a", "b"), range("x", "z")];
        assert_eq!(KeyRange::enclosing_range(&all), Some(range("a", "z")));
        assert_eq!(KeyRange::enclosing_range(&[]), None);
    }

    #[test]
    fn are_disjoint_accepts_any_order() {
        assert!(KeyRange::are_disjoint(&[range("x", "z"), range("a", "b"), range("c", "c")]));
        assert!(!KeyRange::are_disjoint(&[range("x", "z"), range("a", "b"), range("b", "c")]));
        assert!(KeyRange::are_disjoint(&[]));
    }
}
