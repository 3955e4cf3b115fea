//! Range of the sequence numbers of a set of entries.
//!
//! Some policies pick files by their oldest or newest entry. When a set is split, one random draw decides which part
//! gets the oldest entry, and another draw decides which part gets the newest entry. The sequence ranges of output
//! files are therefore random and do not depend on the position, as in a real tree.

use crate::math::{round_to_u64, to_f64};
use crate::sampler::Sampler;

/// Smallest and largest sequence number of a set of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeqRange {
    pub(crate) smallest: u64,
    pub(crate) largest: u64,
}

impl SeqRange {
    /// The range of an empty set.
    pub(crate) const EMPTY: SeqRange = SeqRange { smallest: u64::MAX, largest: 0 };

    /// Extends this range to include `other`.
    pub(crate) fn extend(&mut self, other: &SeqRange) {
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
    }

    /// Splits a set of `taken` + `left` entries at random. Returns the range of the `taken` entries. Sets `self` to the
    /// range of the `left` entries.
    pub(crate) fn split_off(&mut self, taken: f64, left: f64, sampler: &mut Sampler) -> SeqRange {
        let mut part = *self;
        let span = to_f64(self.largest.saturating_sub(self.smallest));
        let total = taken + left;
        let newest_is_taken = sampler.uniform() * total <= taken;
        let oldest_is_taken = sampler.uniform() * total <= taken;
        // One part gets the newest entry of the set. The n entries of the other part are scattered uniformly over
        // `span`. The newest of them is thus older by an exponentially distributed distance with mean span ÷ (n + 1).
        // The same applies to the oldest entries.
        let mut distance = |n: f64| round_to_u64(sampler.exponential() * span / (n + 1.0));
        let (other, n) = if newest_is_taken { (&mut *self, left) } else { (&mut part, taken) };
        other.largest = other.largest.saturating_sub(distance(n)).max(other.smallest);
        let (other, n) = if oldest_is_taken { (&mut *self, left) } else { (&mut part, taken) };
        other.smallest = other.smallest.saturating_add(distance(n)).min(other.largest);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the last part of a split memtable always kept its newest and its oldest entry. `cold-write` then
    /// never picked files at the end of the key domain, and `old` always did.
    #[test]
    fn split_off_gives_extreme_entries_to_parts_by_share() {
        let mut sampler = Sampler::new(1);
        let (mut newest, mut oldest, mut gap) = (0_u32, 0_u32, 0.0);
        for _ in 0..10_000 {
            let mut rest = SeqRange { smallest: 1000, largest: 101_000 };
            let part = rest.split_off(25.0, 75.0, &mut sampler);
            assert!(part.smallest <= part.largest && rest.smallest <= rest.largest);
            newest += u32::from(part.largest == 101_000);
            oldest += u32::from(part.smallest == 1000);
            assert!(part.largest == 101_000 || rest.largest == 101_000);
            gap += to_f64(101_000 - rest.largest.min(part.largest));
        }
        for count in [newest, oldest] {
            assert!((2300..2700).contains(&count), "{count}");
        }
        // Of the gaps, a quarter belong to parts of 75 entries, and the others to parts of 25 entries.
        let expected = 100_000.0 * (0.25 / 76.0 + 0.75 / 26.0);
        assert!((gap / 10_000.0 / expected - 1.0).abs() < 0.06, "{gap}");
    }

    #[test]
    fn extend_covers_both_ranges() {
        let mut all = SeqRange::EMPTY;
        all.extend(&SeqRange { smallest: 5, largest: 9 });
        all.extend(&SeqRange { smallest: 2, largest: 7 });
        assert_eq!(all, SeqRange { smallest: 2, largest: 9 });
    }
}
