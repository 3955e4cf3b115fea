//! One input run of a merge, read from front to back.

use crate::body::{Body, Stretch, width};
use crate::content::Content;
use crate::random::Dice;

/// One input run: its files in key order, and how far they are read.
#[derive(Debug)]
pub(super) struct Source<'a> {
    bodies: Vec<&'a Body>,
    body: usize,
    stretch: usize,
    /// What is left of the stretch at hand; none once all is read.
    at_hand: Option<Stretch>,
    /// Where that begins.
    from: u64,
    /// What it holds, class by class.
    left: Vec<Content>,
    /// First and last place of the file at hand, where keys stand; none for a memtable, whose ends are
    /// those of what was asked for.
    file: Option<(u64, u64)>,
}

impl<'a> Source<'a> {
    pub(super) fn new(bodies: Vec<&'a Body>) -> Source<'a> {
        let (at_hand, left) = (None, Vec::new());
        let mut source = Source { bodies, body: 0, stretch: 0, at_hand, from: 0, left, file: None };
        source.open();
        source
    }

    /// What a memtable took in one go.
    pub(super) fn of_memtable(body: &'a Body) -> Source<'a> {
        Source { file: None, ..Source::new(vec![body]) }
    }

    /// Takes up the stretch at hand.
    fn open(&mut self) {
        let Some(body) = self.bodies.get(self.body) else {
            self.at_hand = None;
            return;
        };
        let stretch = body.stretches[self.stretch];
        self.from = body.start_of(self.stretch);
        self.left.clear();
        self.left.extend_from_slice(body.contents_of(self.stretch));
        self.file = Some((body.from, body.to()));
        self.at_hand = Some(stretch);
    }

    /// The first place that is not read yet.
    pub(super) fn from(&self) -> Option<u64> {
        self.at_hand.as_ref().map(|_| self.from)
    }

    /// The last place up to which nothing changes from `at` on: that before its next stretch, or the
    /// last of the one at hand.
    pub(super) fn until(&self, at: u64) -> Option<u64> {
        let stretch = self.at_hand.as_ref()?;
        Some(if self.from > at { self.from - 1 } else { stretch.to })
    }

    /// Whether a file begins exactly there, so that a key is known to stand there.
    pub(super) fn starts_at(&self, place: u64) -> bool {
        self.at_hand.is_some() && self.file.is_some_and(|(from, _)| from == place)
    }

    /// Whether one that was begun ends exactly there.
    pub(super) fn ends_at(&self, at: u64, place: u64) -> bool {
        self.at_hand.is_some() && self.from <= at && self.file.is_some_and(|(_, to)| to == place)
    }

    /// Takes what lies in `at..=to`, an interval within which nothing changes, into `out`; returns
    /// the stretch it is from, with its spans there, if there is anything.
    pub(super) fn take(
        &mut self,
        at: u64,
        to: u64,
        dice: &mut Dice,
        out: &mut [Content],
    ) -> Option<Stretch> {
        let rest = self.at_hand.as_mut().filter(|_| self.from <= at)?;
        let mut stretch = *rest;
        if stretch.to <= to {
            out.copy_from_slice(&self.left);
            self.stretch += 1;
            if self.stretch == self.bodies[self.body].stretches.len() {
                self.stretch = 0;
                self.body += 1;
            }
            self.open();
            return Some(stretch);
        }
        let share = width(at, to) / width(at, stretch.to);
        let (mut taken, mut staying) = (0.0, 0.0);
        for (part, left) in out.iter_mut().zip(&mut self.left) {
            let entries = left.entries();
            let drawn = if entries > 0.0 { dice.part_of(entries, share) / entries } else { share };
            *part = left.scaled(drawn);
            // The keys that entries may be about are many, and lie evenly.
            part.reach = left.reach * share;
            left.less(part);
            taken += entries * drawn;
            staying += entries * (1.0 - drawn);
        }
        stretch.spans *= share;
        rest.spans -= stretch.spans;
        stretch.seqs = rest.seqs.take(taken, staying, dice);
        self.from = to + 1;
        Some(stretch)
    }
}
