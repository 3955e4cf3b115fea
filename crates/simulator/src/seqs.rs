//! Between which numbers the writes lie that entries came from.
//!
//! Policies ask for the oldest and the newest entry of a file. Of entries that are divided, one part
//! keeps the newest, and the other has the next one that it holds itself. RunFiles of one merge so differ
//! by chance, as real ones do, and not by where they lie.

use crate::numbers::{real, whole};
use crate::random::Dice;

/// Numbers of the oldest and the newest of some writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seqs {
    pub(super) smallest: u64,
    pub(super) largest: u64,
}

impl Seqs {
    /// Those of no write at all.
    pub(super) const NONE: Seqs = Seqs { smallest: u64::MAX, largest: 0 };

    /// Takes others in.
    pub(super) fn join(&mut self, other: &Seqs) {
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
    }

    /// Those of `taken` entries, which leave; what is left behind are those of `left` entries.
    pub(super) fn take(&mut self, taken: f64, left: f64, dice: &mut Dice) -> Seqs {
        let mut part = *self;
        let span = real(self.largest.saturating_sub(self.smallest));
        let (newest_is_taken, oldest_is_taken) =
            (dice.unit() * (taken + left) <= taken, dice.unit() * (taken + left) <= taken);
        // Where the extreme one is not among n entries, theirs is the first of n scattered evenly.
        let mut inside = |n: f64| whole(dice.gap() * span / (n + 1.0));
        let (other, n) = if newest_is_taken { (&mut *self, left) } else { (&mut part, taken) };
        other.largest = other.largest.saturating_sub(inside(n)).max(other.smallest);
        let (other, n) = if oldest_is_taken { (&mut *self, left) } else { (&mut part, taken) };
        other.smallest = other.smallest.saturating_add(inside(n)).min(other.largest);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last part of a divided memtable once had its newest and its oldest write, always, so that
    /// `cold-write` never came to the end of the key domain, and `old` always did.
    #[test]
    fn the_newest_and_the_oldest_go_with_either_part_by_its_share() {
        let mut dice = Dice::new(1);
        let (mut newest, mut oldest, mut gap) = (0_u32, 0_u32, 0.0);
        for _ in 0..10_000 {
            let mut rest = Seqs { smallest: 1000, largest: 101_000 };
            let part = rest.take(25.0, 75.0, &mut dice);
            assert!(part.smallest <= part.largest && rest.smallest <= rest.largest);
            newest += u32::from(part.largest == 101_000);
            oldest += u32::from(part.smallest == 1000);
            assert!(part.largest == 101_000 || rest.largest == 101_000);
            gap += real(101_000 - rest.largest.min(part.largest));
        }
        for times in [newest, oldest] {
            assert!((2300..2700).contains(&times), "{times}");
        }
        // A quarter of the gaps are those of 75 entries, the others of 25.
        let expected = 100_000.0 * (0.25 / 76.0 + 0.75 / 26.0);
        assert!((gap / 10_000.0 / expected - 1.0).abs() < 0.06, "{gap}");
    }

    #[test]
    fn what_is_joined_reaches_from_end_to_end() {
        let mut all = Seqs::NONE;
        all.join(&Seqs { smallest: 5, largest: 9 });
        all.join(&Seqs { smallest: 2, largest: 7 });
        assert_eq!(all, Seqs { smallest: 2, largest: 9 });
    }
}
