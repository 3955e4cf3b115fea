//! What a simulated file holds: stretches of its key range, each with its entries spread evenly.
//!
//! Keys are places in a domain of 2⁶⁴; a place, big-endian, is the key that policies see. A file
//! that came out of a merge is dense where its inputs were and thin where one of them had been taken
//! away before, so one density for all of it would not do; a few are enough.

use lsmx_compaction::{Key, KeyRange};

use crate::content::Content;
use crate::numbers::{ratio, real};
use crate::seqs::Seqs;

/// One stretch of a file. Its contents, class by class, stand in [`Body::contents`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    /// The last place of the stretch; it begins after the one before.
    pub(super) to: u64,
    /// Range tombstones.
    pub(super) spans: f64,
    /// Numbers of the writes that its entries came from.
    pub(super) seqs: Seqs,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Body {
    /// The first place.
    pub(super) from: u64,
    pub(super) stretches: Vec<Stretch>,
    /// As many per stretch as there are popularity classes.
    pub(super) contents: Vec<Content>,
}

/// The range of keys between two places, in one piece of memory.
pub(super) fn range_of(from: u64, to: u64) -> KeyRange {
    let mut both = [0; 2 * size_of::<u64>()];
    both[..size_of::<u64>()].copy_from_slice(&from.to_be_bytes());
    both[size_of::<u64>()..].copy_from_slice(&to.to_be_bytes());
    let both = Key::from_owner(both);
    let middle = size_of::<u64>();
    KeyRange { smallest: both.slice(..middle), largest: both.slice(middle..) }
}

/// The place of a key that [`range_of`] made, or of what a user's policy made of it.
pub(super) fn place_of(key: &[u8]) -> u64 {
    let mut place = [0; size_of::<u64>()];
    let len = key.len().min(place.len());
    place[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(place)
}

/// Width of a range of places.
pub(super) fn width(from: u64, to: u64) -> f64 {
    real(to.saturating_sub(from)) + 1.0
}

impl Body {
    /// A file that begins at a place and holds nothing yet.
    pub(super) fn starting_at(from: u64) -> Body {
        Body { from, stretches: Vec::new(), contents: Vec::new() }
    }

    /// Popularity classes per stretch.
    fn classes(&self) -> usize {
        self.contents.len() / self.stretches.len().max(1)
    }

    /// Where a stretch begins.
    pub(super) fn start_of(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            Some(before) => self.stretches[before].to.saturating_add(1),
            None => self.from,
        }
    }

    /// The last place.
    pub(super) fn to(&self) -> u64 {
        self.stretches.last().map_or(self.from, |last| last.to)
    }

    /// Contents of a stretch, class by class.
    pub(super) fn contents_of(&self, index: usize) -> &[Content] {
        let classes = self.classes();
        &self.contents[index * classes..(index + 1) * classes]
    }

    /// What share of its entries lies up to a place.
    pub(super) fn share_to(&self, place: u64) -> f64 {
        let (mut before, mut all) = (0.0, 0.0);
        for (index, stretch) in self.stretches.iter().enumerate() {
            let contents = self.contents_of(index).iter().map(Content::entries).sum::<f64>();
            let entries = contents + stretch.spans;
            let from = self.start_of(index);
            if stretch.to <= place {
                before += entries;
            } else if from <= place {
                before += entries * real(place - from) / real(stretch.to - from);
            }
            all += entries;
        }
        ratio(before, all)
    }

    /// Adds a stretch behind the last one.
    pub(super) fn push(&mut self, stretch: Stretch, contents: &[Content]) {
        self.stretches.push(stretch);
        self.contents.extend_from_slice(contents);
    }

    /// Entries of all kinds.
    #[cfg(test)]
    pub(super) fn entries(&self) -> f64 {
        self.contents.iter().map(Content::entries).sum()
    }

    /// Takes everything out, for a file that begins at a place.
    pub(super) fn clear(&mut self, from: u64) {
        self.from = from;
        self.stretches.clear();
        self.contents.clear();
    }

    /// Ends the last stretch there. Those that end no earlier become one.
    pub(super) fn end_at(&mut self, to: u64) {
        while self.stretches.len() > 1 && self.stretches[self.stretches.len() - 2].to >= to {
            self.join(self.stretches.len() - 1);
        }
        if let Some(last) = self.stretches.last_mut() {
            last.to = to;
        }
    }

    /// Makes a stretch and the one before it one.
    fn join(&mut self, right: usize) {
        let classes = self.classes();
        let gone = self.stretches.remove(right);
        let into = &mut self.stretches[right - 1];
        into.to = gone.to;
        into.spans += gone.spans;
        into.seqs.join(&gone.seqs);
        let (before, from) = self.contents.split_at_mut(right * classes);
        for (content, other) in before[(right - 1) * classes..].iter_mut().zip(&*from) {
            content.add(other);
        }
        self.contents.drain(right * classes..(right + 1) * classes);
    }
}

/// Entries of a file, as a share, that may come to stand in the wrong place for one stretch less: what a
/// file owes to chance is no less than that.
const EVEN_ENOUGH: f64 = 0.005;

/// Makes neighbours of like density one. What it needs for that is kept from one file to the next.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    /// Entries and width of each stretch.
    parts: Vec<(f64, f64)>,
    /// How many entries would stand in the wrong place if a stretch and the one before were one.
    costs: Vec<f64>,
}

impl Thinning {
    /// Until at most `most` stretches are left, none of which is like its neighbour.
    pub(super) fn thin_out(&mut self, body: &mut Body, most: usize) {
        self.parts.clear();
        self.parts.extend((0..body.stretches.len()).map(|index| {
            let entries = body.contents_of(index).iter().map(Content::entries).sum::<f64>();
            (entries, width(body.start_of(index), body.stretches[index].to))
        }));
        self.costs.clear();
        self.costs.extend((0..self.parts.len()).map(|index| cost(&self.parts, index)));
        let entries: f64 = self.parts.iter().map(|(entries, _)| entries).sum();
        while self.parts.len() > 1 {
            let mut right = 1;
            for index in 2..self.costs.len() {
                if self.costs[index] < self.costs[right] {
                    right = index;
                }
            }
            if self.parts.len() <= most && self.costs[right] > EVEN_ENOUGH * entries {
                return;
            }
            body.join(right);
            let gone = self.parts.remove(right);
            self.costs.remove(right);
            self.parts[right - 1].0 += gone.0;
            self.parts[right - 1].1 += gone.1;
            for index in [right - 1, right] {
                if index < self.costs.len() {
                    self.costs[index] = cost(&self.parts, index);
                }
            }
        }
    }
}

fn cost(parts: &[(f64, f64)], index: usize) -> f64 {
    let Some(before) = index.checked_sub(1) else { return f64::INFINITY };
    let ((left, left_width), (right, right_width)) = (parts[before], parts[index]);
    let even = (left + right) * left_width / (left_width + right_width);
    (left - even).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(to: u64) -> Stretch {
        Stretch { to, spans: 1.0, seqs: Seqs { smallest: to, largest: to } }
    }

    fn born(born: f64) -> Content {
        Content { born, ..Content::default() }
    }

    #[test]
    fn keys_order_as_places_do() {
        let places = [0, 1, 255, 256, 1 << 40, u64::MAX];
        let keys = places.map(|place| range_of(place, u64::MAX).smallest);
        assert!(keys.is_sorted());
        assert_eq!(keys.map(|key| place_of(&key)), places);
        assert_eq!(place_of(&range_of(7, 9).largest), 9);
        assert_eq!(place_of(b"\x80"), 1 << 63);
        assert_eq!(place_of(&[&7_u64.to_be_bytes()[..], &[0]].concat()), 7);
    }

    #[test]
    fn neighbours_of_like_density_are_joined_first_and_nothing_is_lost() {
        let mut body = Body::starting_at(0);
        for (to, count) in [(99, 10.0), (199, 11.0), (299, 90.0), (399, 88.0), (499, 0.0)] {
            body.push(stretch(to), &[born(count), born(1.0)]);
        }
        let before = body.entries();
        Thinning::default().thin_out(&mut body, 3);
        let ends: Vec<u64> = body.stretches.iter().map(|stretch| stretch.to).collect();
        assert_eq!(ends, [199, 399, 499]);
        assert!((body.entries() - before).abs() < 1e-9);
        assert_eq!(body.contents_of(1), [born(178.0), born(2.0)]);
        assert_eq!(body.stretches[1].seqs, Seqs { smallest: 299, largest: 399 });
        assert!((body.stretches[0].spans - 2.0).abs() < 1e-9);
        Thinning::default().thin_out(&mut body, 0);
        assert_eq!((body.stretches.len(), body.to()), (1, 499));
    }
}
