//! What a simulated file holds: stretches of its key range, each with its entries spread evenly.
//!
//! Keys are places in a domain of 2⁶⁴; a place, big-endian, is the key that policies see. A file
//! that came out of a merge is dense where its inputs were and thin where one of them had been taken
//! away before, so one density for all of it would not do; a few are enough.

use crate::Key;

use super::content::Content;
use super::numbers::real;

/// One stretch of a file. Its contents, class by class, stand in [`Body::contents`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    /// The last place of the stretch; it begins after the one before.
    pub(super) to: u64,
    /// Range tombstones.
    pub(super) spans: f64,
    /// Numbers of the writes that its entries came from.
    pub(super) seq_smallest: u64,
    pub(super) seq_largest: u64,
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

/// The key of a place.
pub(super) fn key_at(place: u64) -> Key {
    Key::copy_from_slice(&place.to_be_bytes())
}

/// The place of a key that [`key_at`] made, or of what a user's policy made of it.
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
    fn start_of(&self, index: usize) -> u64 {
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

    /// Makes neighbours of like density one until at most `most` are left.
    pub(super) fn thin_out(&mut self, most: usize) {
        let classes = self.classes();
        while self.stretches.len() > most.max(1) {
            let mut best = (f64::INFINITY, 0);
            for index in 1..self.stretches.len() {
                let cost = self.cost_of_joining(index);
                if cost < best.0 {
                    best = (cost, index);
                }
            }
            let (_, right) = best;
            let right = right.max(1);
            let left = right - 1;
            let gone = self.stretches.remove(right);
            let into = &mut self.stretches[left];
            into.to = gone.to;
            into.spans += gone.spans;
            into.seq_smallest = into.seq_smallest.min(gone.seq_smallest);
            into.seq_largest = into.seq_largest.max(gone.seq_largest);
            let moved: Vec<Content> =
                self.contents.drain(right * classes..(right + 1) * classes).collect();
            for (content, other) in self.contents[left * classes..].iter_mut().zip(&moved) {
                content.add(other);
            }
        }
    }

    /// How many entries would stand in the wrong place if this stretch and the one before were one.
    fn cost_of_joining(&self, index: usize) -> f64 {
        let entries =
            |index: usize| self.contents_of(index).iter().map(Content::entries).sum::<f64>();
        let wide = |index: usize| width(self.start_of(index), self.stretches[index].to);
        let (left, right) = (entries(index - 1), entries(index));
        let (left_width, right_width) = (wide(index - 1), wide(index));
        let even = (left + right) * left_width / (left_width + right_width);
        (left - even).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(to: u64) -> Stretch {
        Stretch { to, spans: 1.0, seq_smallest: to, seq_largest: to }
    }

    fn born(born: f64) -> Content {
        Content { born, ..Content::default() }
    }

    #[test]
    fn keys_order_as_places_do() {
        let places = [0, 1, 255, 256, 1 << 40, u64::MAX];
        assert!(places.map(key_at).is_sorted());
        assert_eq!(places.map(|place| place_of(&key_at(place))), places);
        assert_eq!(place_of(b"\x80"), 1 << 63);
        assert_eq!(place_of(&[key_at(7).to_vec(), vec![0]].concat()), 7);
    }

    #[test]
    fn neighbours_of_like_density_are_joined_first_and_nothing_is_lost() {
        let mut body = Body::starting_at(0);
        for (to, count) in [(99, 10.0), (199, 11.0), (299, 90.0), (399, 88.0), (499, 0.0)] {
            body.push(stretch(to), &[born(count), born(1.0)]);
        }
        let before = body.entries();
        body.thin_out(3);
        let ends: Vec<u64> = body.stretches.iter().map(|stretch| stretch.to).collect();
        assert_eq!(ends, [199, 399, 499]);
        assert!((body.entries() - before).abs() < 1e-9);
        assert_eq!(body.contents_of(1), [born(178.0), born(2.0)]);
        assert_eq!((body.stretches[1].seq_smallest, body.stretches[1].seq_largest), (299, 399));
        assert!((body.stretches[0].spans - 2.0).abs() < 1e-9);
        body.thin_out(0);
        assert_eq!((body.stretches.len(), body.to()), (1, 499));
    }
}
