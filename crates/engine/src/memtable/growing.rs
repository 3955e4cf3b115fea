//! An array that grows and never moves what it holds, so that readers need no lock.
//!
//! It lies in segments: the first is small, for most of thousands of keyspaces may hold next to
//! nothing, each later one twice as large up to a bound, so that what is not used yet stays small.

use lsmx_base::sync::AppendVec;

/// Places of the first segment, as a power of two.
const FIRST_BITS: u32 = 1;

/// Places whose items are made with their segment; segments have at most 2^`BITS` of them.
#[derive(Debug)]
pub(crate) struct Growing<T, const BITS: u32> {
    segments: AppendVec<Box<[T]>>,
}

impl<T: Default, const BITS: u32> Growing<T, BITS> {
    pub(crate) fn new() -> Growing<T, BITS> {
        Growing { segments: AppendVec::new() }
    }

    /// Segment of a place, and where in it the place is.
    #[inline]
    fn find(number: u32) -> (usize, usize) {
        // Counted so that the first segments begin at powers of two.
        let at = number as usize + (1 << FIRST_BITS);
        if at < 1 << BITS {
            let bits = at.ilog2();
            ((bits - FIRST_BITS) as usize, at - (1 << bits))
        } else {
            ((at >> BITS) - 1 + (BITS - FIRST_BITS) as usize, at & ((1 << BITS) - 1))
        }
    }

    /// The item with this number, if it was reached.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (segment, at) = Self::find(number);
        self.segments.get(segment)?.get(at)
    }

    /// Makes the item with the number after the last one that was reached. One thread at a time.
    pub(crate) fn reach(&self, number: u32) -> Option<&T> {
        let (segment, _) = Self::find(number);
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
    fn each_number_has_a_place_of_its_own_and_keeps_it() {
        let array: Growing<AtomicU32, 6> = Growing::new();
        let mut places = Vec::new();
        for number in 0..1_000 {
            let place = array.reach(number).unwrap();
            assert_eq!(place.swap(number + 1, Ordering::Relaxed), 0, "a new one");
            places.push(std::ptr::from_ref(place));
        }
        for number in 0..1_000 {
            let place = array.get(number).unwrap();
            assert_eq!(place.load(Ordering::Relaxed), number + 1);
            assert_eq!(std::ptr::from_ref(place), places[number as usize]);
        }
        let sizes: Vec<_> = array.segments.iter().map(|(_, segment)| segment.len()).collect();
        assert_eq!(sizes[..7], [2, 4, 8, 16, 32, 64, 64]);
        assert!(array.get(1_100).is_none());
    }
}
