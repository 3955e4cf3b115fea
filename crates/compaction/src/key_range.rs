//! Key ranges: overlap, cover, hull.

use bytes::Bytes;

/// A user key. Cheap to clone: files of a tree share the bytes.
pub type Key = Bytes;

/// A range of user keys, both ends inclusive, in byte-wise order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// Smallest key of the range.
    pub smallest: Key,
    /// Largest key of the range, inclusive.
    pub largest: Key,
}

impl KeyRange {
    /// Returns the range from `smallest` to `largest`, both inclusive.
    pub fn new(smallest: impl Into<Key>, largest: impl Into<Key>) -> Self {
        KeyRange { smallest: smallest.into(), largest: largest.into() }
    }

    /// Returns whether at least one key could be in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        self.smallest <= other.largest && other.smallest <= self.largest
    }

    /// Returns whether `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.smallest.as_ref() <= key && key <= self.largest.as_ref()
    }

    /// Returns whether every key of `other` is in this range.
    #[must_use]
    pub fn covers(&self, other: &KeyRange) -> bool {
        self.smallest <= other.smallest && other.largest <= self.largest
    }

    /// Returns the smallest range that covers both.
    #[must_use]
    pub fn hull(&self, other: &KeyRange) -> KeyRange {
        KeyRange {
            smallest: self.smallest.clone().min(other.smallest.clone()),
            largest: self.largest.clone().max(other.largest.clone()),
        }
    }

    /// Returns the smallest range that covers all, or `None` if there are none.
    pub fn hull_of<'a>(ranges: impl IntoIterator<Item = &'a KeyRange>) -> Option<KeyRange> {
        let mut ranges = ranges.into_iter();
        let first = ranges.next()?;
        let (mut smallest, mut largest) = (&first.smallest, &first.largest);
        for range in ranges {
            smallest = smallest.min(&range.smallest);
            largest = largest.max(&range.largest);
        }
        Some(KeyRange { smallest: smallest.clone(), largest: largest.clone() })
    }

    /// Returns whether no key could be in two of the ranges, which may come in any order.
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
    fn ranges_that_share_an_end_overlap() {
        assert!(range("a", "c").overlaps(&range("c", "d")));
        assert!(range("c", "d").overlaps(&range("a", "c")));
        assert!(!range("a", "b").overlaps(&range("c", "d")));
        assert!(!range("c", "d").overlaps(&range("a", "b")));
    }

    #[test]
    fn both_ends_are_inside() {
        let range = range("b", "d");
        assert!(range.contains(b"b") && range.contains(b"c") && range.contains(b"d"));
        assert!(!range.contains(b"a") && !range.contains(b"da"));
    }

    #[test]
    fn hull_covers_both_and_nothing_shorter_does() {
        let hull = range("a", "c").hull(&range("b", "f"));
        assert_eq!(hull, range("a", "f"));
        assert!(hull.covers(&range("b", "f")) && !range("b", "f").covers(&hull));
        let all = [range("m", "n"), range("a", "b"), range("x", "z")];
        assert_eq!(KeyRange::hull_of(&all), Some(range("a", "z")));
        assert_eq!(KeyRange::hull_of(&[]), None);
    }

    #[test]
    fn disjoint_ranges_share_no_key_in_any_order() {
        assert!(KeyRange::are_disjoint(&[range("x", "z"), range("a", "b"), range("c", "c")]));
        assert!(!KeyRange::are_disjoint(&[range("x", "z"), range("a", "b"), range("b", "c")]));
        assert!(KeyRange::are_disjoint(&[]));
    }
}
