//! How many entries a stretch of keys holds, by what they are, and what becomes of them when a newer
//! stretch is merged with an older one: sets of keys, estimated.
//!
//! Keys of one popularity class are alike: every update hits each of them with the same chance. So of
//! a set it is enough to know how many of its keys were *born* in it (inserted by a write that it
//! holds) and how many entries it has for keys born earlier. Two sets share no birth; the others are
//! a random sample of the keys that were there when they were written, their *reach*. With `a` the
//! newer set and `b` the older one:
//!
//! - of the entries of `a` for older keys, the share born(b) ÷ reach(a) meets a birth in `b`,
//! - and the share changed(b) ÷ reach(a) an entry for a key that was older already.
//!
//! All of the older births merged, the reach is used up, and every entry has met its key: counts come
//! out as whole sets of distinct keys without one key ever being listed.

use crate::numbers::ratio;

/// Entries of one popularity class in a stretch of keys. Counts are estimates, so not whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Content {
    /// Puts of keys that were inserted by a write of this set.
    pub(super) born: f64,
    /// Puts of keys that were there before.
    pub(super) changed: f64,
    /// Merge operands for keys that were there before.
    pub(super) operands: f64,
    /// Tombstones of keys that were there before, whose older entries have not been met yet.
    pub(super) tombs: f64,
    /// Tombstones that have met the birth of their key: there is nothing older for them to hide.
    pub(super) spent: f64,
    /// Keys that were there before and are not deleted by this set: of these are the keys that it
    /// has changed a random sample.
    pub(super) reach: f64,
}

impl Content {
    /// Entries of all kinds.
    pub(super) fn entries(&self) -> f64 {
        self.puts() + self.operands + self.tombstones()
    }

    /// Entries with a whole value.
    pub(super) fn puts(&self) -> f64 {
        self.born + self.changed
    }

    /// Tombstones of both kinds.
    pub(super) fn tombstones(&self) -> f64 {
        self.tombs + self.spent
    }

    /// Whether nothing in it is about a key that was there before.
    fn is_new(&self) -> bool {
        self.changed + self.operands + self.tombs <= 0.0
    }

    /// A share of everything.
    pub(super) fn scaled(&self, share: f64) -> Content {
        Content {
            born: self.born * share,
            changed: self.changed * share,
            operands: self.operands * share,
            tombs: self.tombs * share,
            spent: self.spent * share,
            reach: self.reach * share,
        }
    }

    /// Another stretch, next to this one.
    pub(super) fn add(&mut self, other: &Content) {
        self.born += other.born;
        self.changed += other.changed;
        self.operands += other.operands;
        self.tombs += other.tombs;
        self.spent += other.spent;
        self.reach += other.reach;
    }

    /// Takes away what is left after a share of it was taken.
    pub(super) fn less(&mut self, part: &Content) {
        let minus = |from: &mut f64, what: f64| *from = (*from - what).max(0.0);
        minus(&mut self.born, part.born);
        minus(&mut self.changed, part.changed);
        minus(&mut self.operands, part.operands);
        minus(&mut self.tombs, part.tombs);
        minus(&mut self.spent, part.spent);
        minus(&mut self.reach, part.reach);
    }

    /// Merges an older set of the same keys into this one.
    pub(super) fn absorb(&mut self, older: &Content) {
        if self.is_new() && older.is_new() {
            // Then nothing meets: short, for many a workload is of inserts alone.
            self.reach = (self.reach - older.born).max(0.0).max(older.reach);
            self.born += older.born;
            self.spent += older.spent;
            return;
        }
        let mut older = *older;
        let births = older.born;
        let reach = self.reach.max(self.changed + self.operands);
        // Of the older keys this share is dead by now.
        let dead = ratio(self.tombs, reach + self.tombs);
        if reach + self.tombs > 0.0 {
            // Tombstones first: what they hide cannot have been changed afterwards. Of the births some
            // may be dead by others that are not here, so they may be more than there are keys.
            let buried = (older.born * dead).min(self.tombs);
            self.tombs -= buried;
            self.spent += buried;
            older.born -= buried;
            older.changed *= 1.0 - dead;
            older.operands *= 1.0 - dead;
        }
        if reach > 0.0 {
            // Of two entries for one key the newer stays. It is as if the birth had its value.
            let (born, changed) = ((older.born / reach).min(1.0), (older.changed / reach).min(1.0));
            let operands = (older.operands / reach).min(1.0);
            let (puts, folds) = (self.changed, self.operands);
            self.changed = puts * (1.0 - born);
            older.changed -= (puts * changed).min(older.changed);
            older.operands -= (puts * operands).min(older.operands);
            // An operand that meets a put becomes part of it; of two operands there stays one.
            self.operands = folds * (1.0 - born - changed - operands).max(0.0);
        }
        let own = self.changed + self.operands + self.tombs;
        let others = older.changed + older.operands + older.tombs;
        // What has not met a birth of the older set is about the keys that were there before that.
        let left = (reach - births * (1.0 - dead)).max(0.0);
        let others_left = older.reach * (1.0 - dead);
        self.reach = if own + others > 0.0 {
            (own * left + others * others_left) / (own + others)
        } else {
            left.max(others_left)
        };
        self.born += older.born;
        self.changed += older.changed;
        self.operands += older.operands;
        self.tombs += older.tombs;
        self.spent += older.spent;
    }

    /// What is left where no older run can hold the keys: every entry has met the birth of its key
    /// by then, whatever chance said, and tombstones go with what they hide.
    pub(super) fn settle(&mut self) {
        *self = Content { born: (self.born - self.tombs).max(0.0), ..Content::default() };
    }

    /// Hides a share of everything, as a newer range delete does.
    pub(super) fn hide(&mut self, share: f64) {
        let reach = self.reach;
        *self = self.scaled(1.0 - share);
        self.reach = reach;
    }
}
