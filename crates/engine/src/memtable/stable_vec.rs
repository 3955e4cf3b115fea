//! A growing array whose items never move, so that readers need no lock.
//!
//! The array consists of segments. The first segment is small, because a database may have many keyspaces with few
//! entries. Each further segment is twice as large as the previous segment, up to a limit. The limit bounds the unused
//! memory at the end of the last segment.

use lsmx_base::sync::AppendVec;

/// Base-2 logarithm of the number of items in the first segment.
const FIRST_BITS: u32 = 1;

/// An append-only array. A segment has at most 2^`BITS` items. New items have default values.
#[derive(Debug)]
pub(crate) struct StableVec<T, const BITS: u32> {
    segments: AppendVec<Box<[T]>>,
}

impl<T: Default, const BITS: u32> StableVec<T, BITS> {
    pub(crate) fn new() -> StableVec<T, BITS> {
        StableVec { segments: AppendVec::new() }
    }

    /// Returns the segment of an item, and the index of the item in the segment.
    #[inline]
    fn locate(number: u32) -> (usize, usize) {
        // Adds the size of the first segment to the number. Segment n of the growing segments then starts at
        // 2^(`FIRST_BITS` + n).
        let at = number as usize + (1 << FIRST_BITS);
        if at < 1 << BITS {
            let bits = at.ilog2();
            ((bits - FIRST_BITS) as usize, at - (1 << bits))
        } else {
            ((at >> BITS) - 1 + (BITS - FIRST_BITS) as usize, at & ((1 << BITS) - 1))
        }
    }

    /// Returns the item with this number, if its segment exists.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (segment, at) = Self::locate(number);
        self.segments.get(segment)?.get(at)
    }

    /// Returns the item with this number. Adds a segment if the item is directly after the last segment. Only one
    /// thread may call this method at a time.
    pub(crate) fn get_or_grow(&self, number: u32) -> Option<&T> {
        let (segment, _) = Self::locate(number);
        if segment == self.segments.count() {
            let len = 1 << (FIRST_BITS as usize + segment).min(BITS as usize);
            self.segments.push((0..len).map(|_| T::default()).collect());
        }
        self.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmx_base::sync::{AtomicU32, Ordering};

    #[test]
    fn items_are_distinct_and_have_stable_addresses() {
        let array: StableVec<AtomicU32, 6> = StableVec::new();
        let mut addresses = Vec::new();
        for number in 0..1_000 {
            let item = array.get_or_grow(number).unwrap();
            assert_eq!(item.swap(number + 1, Ordering::Relaxed), 0, "a new item");
            addresses.push(std::ptr::from_ref(item));
        }
        for number in 0..1_000 {
            let item = array.get(number).unwrap();
            assert_eq!(item.load(Ordering::Relaxed), number + 1);
            assert_eq!(std::ptr::from_ref(item), addresses[number as usize]);
        }
        let sizes = [0, 1, 2, 3, 4, 5, 6].map(|segment| array.segments.get(segment).unwrap().len());
        assert_eq!(sizes, [2, 4, 8, 16, 32, 64, 64]);
        assert!(array.get(1_100).is_none());
    }
}
