//! Estimated numbers of entries by kind, and the merge of a newer set of entries with an older set.
//!
//! Keys of equal popularity form a popularity class. An update hits each key of a class with the same probability.
//! Therefore three numbers per class describe a set of entries without a list of keys:
//!
//! - the number of keys that a write of this set *inserted*,
//! - the number of entries for keys that are older than the set,
//! - the *population*: the number of older keys from which these entries are a random sample.
//!
//! Each key is inserted in one set only. When a newer set `a` merges with an older set `b`, a part of the entries of
//! `a` for older keys meets an older entry of the same key:
//!
//! - the share inserted(b) ÷ population(a) meets an insert in `b`,
//! - the share updated(b) ÷ population(a) meets an update in `b`.
//!
//! After the merge with the oldest set, the population is empty, and every entry has met the insert of its key. The
//! number of inserts is then the number of distinct keys.

use crate::math::ratio;

/// Estimated numbers of entries in a range of keys, for one popularity class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EntryCounts {
    /// Puts of keys that are inserted by a write of this set.
    pub(crate) inserted: f64,
    /// Puts of keys that are older than this set.
    pub(crate) updated: f64,
    /// Merge operands for keys that are older than this set.
    pub(crate) operands: f64,
    /// Tombstones that have not met all older entries of their key.
    pub(crate) pending_tombstones: f64,
    /// Tombstones that have met the insert of their key, so no older entry is left.
    pub(crate) matched_tombstones: f64,
    /// Number of keys that are older than this set and that the set does not delete.
    pub(crate) population: f64,
}

impl EntryCounts {
    pub(crate) fn entries(&self) -> f64 {
        self.puts() + self.operands + self.tombstones()
    }

    /// Returns the number of puts, which have a complete value.
    pub(crate) fn puts(&self) -> f64 {
        self.inserted + self.updated
    }

    /// Returns the number of tombstones, pending and matched.
    pub(crate) fn tombstones(&self) -> f64 {
        self.pending_tombstones + self.matched_tombstones
    }

    /// Returns whether no entry belongs to a key that is older than this set.
    fn has_only_new_keys(&self) -> bool {
        self.updated + self.operands + self.pending_tombstones <= 0.0
    }

    pub(crate) fn scaled(&self, share: f64) -> EntryCounts {
        self.zip_with(self, |count, _| count * share)
    }

    /// Adds the counts of another range of keys.
    pub(crate) fn add(&mut self, other: &EntryCounts) {
        *self = self.zip_with(other, |count, other| count + other);
    }

    /// Subtracts the counts of a part of this range. Counts do not become negative.
    pub(crate) fn subtract(&mut self, part: &EntryCounts) {
        *self = self.zip_with(part, |count, part| (count - part).max(0.0));
    }

    fn zip_with(&self, other: &EntryCounts, f: impl Fn(f64, f64) -> f64) -> EntryCounts {
        EntryCounts {
            inserted: f(self.inserted, other.inserted),
            updated: f(self.updated, other.updated),
            operands: f(self.operands, other.operands),
            pending_tombstones: f(self.pending_tombstones, other.pending_tombstones),
            matched_tombstones: f(self.matched_tombstones, other.matched_tombstones),
            population: f(self.population, other.population),
        }
    }

    /// Merges an older set of entries into this set. Both sets cover the same range of keys.
    pub(crate) fn merge_older(&mut self, older: &EntryCounts) {
        if self.has_only_new_keys() && older.has_only_new_keys() {
            // Fast path for workloads that only insert. The two sets have no key in common.
            self.population = (self.population - older.inserted).max(0.0).max(older.population);
            self.inserted += older.inserted;
            self.matched_tombstones += older.matched_tombstones;
            return;
        }
        let mut older = *older;
        let inserted_before = older.inserted;
        let population = self.population.max(self.updated + self.operands);
        let deleted = ratio(self.pending_tombstones, population + self.pending_tombstones);
        if population + self.pending_tombstones > 0.0 {
            // Tombstones are matched before updates, because no update follows the delete of a key. A tombstone matches
            // at most one insert.
            let matched = (older.inserted * deleted).min(self.pending_tombstones);
            self.pending_tombstones -= matched;
            self.matched_tombstones += matched;
            older.inserted -= matched;
            older.updated *= 1.0 - deleted;
            older.operands *= 1.0 - deleted;
        }
        if population > 0.0 {
            // Of two puts of a key, one put remains. If the older put inserted the key, the remaining put counts as
            // inserted, otherwise as updated.
            let inserted = (older.inserted / population).min(1.0);
            let updated = (older.updated / population).min(1.0);
            let operands = (older.operands / population).min(1.0);
            let (puts, merges) = (self.updated, self.operands);
            self.updated = puts * (1.0 - inserted);
            older.updated -= (puts * updated).min(older.updated);
            older.operands -= (puts * operands).min(older.operands);
            // An operand that meets a put is merged into it. Two operands become one operand.
            self.operands = merges * (1.0 - inserted - updated - operands).max(0.0);
        }
        let own = self.updated + self.operands + self.pending_tombstones;
        let others = older.updated + older.operands + older.pending_tombstones;
        // Entries that met no insert belong to keys that are older than both sets.
        let own_population = (population - inserted_before * (1.0 - deleted)).max(0.0);
        let other_population = older.population * (1.0 - deleted);
        self.population = if own + others > 0.0 {
            (own * own_population + others * other_population) / (own + others)
        } else {
            own_population.max(other_population)
        };
        older.population = 0.0;
        self.add(&older);
    }

    /// Removes tombstones and the entries that they hide. The caller must ensure that no older run can contain the
    /// keys.
    ///
    /// Without older runs, every entry has met the insert of its key. Other counts are estimation errors and are
    /// discarded.
    pub(crate) fn compact_last_run(&mut self) {
        let inserted = (self.inserted - self.pending_tombstones).max(0.0);
        *self = EntryCounts { inserted, ..EntryCounts::default() };
    }

    /// Removes a share of the entries, as a newer range delete does. The population does not change.
    pub(crate) fn remove_hidden_share(&mut self, share: f64) {
        *self = EntryCounts { population: self.population, ..self.scaled(1.0 - share) };
    }
}
