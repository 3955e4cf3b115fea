//! A list of commits. Recovery must return exactly the first commits of the list.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use lsmx::Db;
use lsmx::merge_operator::Append;
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{Bytes, Change, Pairs};

use super::options::has_stores;

/// Keyspaces of each test database. The first keyspace always exists.
pub(crate) const KEYSPACES: [&str; 2] = ["default", "other"];

/// Each commit writes its number to this key in each keyspace.
pub(crate) const COUNTER: &[u8] = b"counter";

/// Number of keys. With so few keys, each key has many versions.
const KEYS: u64 = 40;

/// Half of an hour in microseconds. Values expire at the half of an hour. The clock of a run moves by
/// [`advance_to_next_hour`], and by less than half an hour between these moves. No value therefore expires during a
/// comparison.
const HALF_HOUR_US: u64 = 1_800_000_000;

/// A batch of operations. Each operation is the index of a keyspace and a write.
pub(crate) type Commit = Vec<(usize, Change)>;

/// Contents of a keyspace at any time of the database clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// The values before the first one expires.
    before: Pairs,
    /// The values after the last one has expired.
    after: Pairs,
    /// Times in microseconds at which the newest values of keys expire. Operands above such a value do not expire.
    expiry_us: BTreeMap<Bytes, u64>,
}

impl Contents {
    fn apply(&mut self, change: &Change) {
        let operator = Append::default();
        change.apply(&mut self.before, &operator);
        match change {
            Change::PutUntil(key, _, expiry_us) | Change::PutWithTtl(key, _, _, expiry_us) => {
                self.after.remove(key);
                self.expiry_us.insert(Arc::clone(key), *expiry_us);
                return;
            }
            Change::Put(key, _) | Change::Delete(key) => drop(self.expiry_us.remove(key)),
            Change::DeleteRange(bounds) => self.expiry_us.retain(|key, _| !bounds.contains(key)),
            Change::Merge(..) => {}
        }
        change.apply(&mut self.after, &operator);
    }

    /// Returns the visible values at a time of the database clock.
    pub(crate) fn at(&self, now_us: u64) -> Pairs {
        let mut pairs = self.before.clone();
        for (key, _) in self.expiry_us.iter().filter(|(_, expiry_us)| **expiry_us <= now_us) {
            match self.after.get(key) {
                Some(value) => drop(pairs.insert(Arc::clone(key), Arc::clone(value))),
                None => drop(pairs.remove(key)),
            }
        }
        pairs
    }

    /// Returns the contents of a clone that is made at a time of the database clock. In the clone, operands expire with the
    /// value below them.
    pub(crate) fn clone_at(&self, now_us: u64) -> Contents {
        let mut expiry_us = self.expiry_us.clone();
        expiry_us.retain(|_, expiry_us| *expiry_us > now_us);
        let before = self.at(now_us);
        let mut after = before.clone();
        after.retain(|key, _| !expiry_us.contains_key(key));
        Contents { before, after, expiry_us }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty()
    }
}

/// Advances the clock of a database to the start of the next hour.
pub(crate) fn advance_to_next_hour(db: &Db) {
    let hour_us = 2 * HALF_HOUR_US;
    db.env().advance_us(hour_us - db.env().now_us() % hour_us);
}

/// Contents of each keyspace.
pub(crate) type State = [Arc<Contents>; 2];

/// Element `n` is the contents after the first `n` commits.
#[derive(Clone, Debug)]
pub(crate) struct History(Vec<State>);

impl Default for History {
    fn default() -> History {
        History(vec![State::default()])
    }
}

impl History {
    pub(crate) fn last(&self) -> u64 {
        self.0.len() as u64 - 1
    }

    pub(crate) fn push(&mut self, commit: &Commit) {
        let mut state = self.state(self.last());
        apply(&mut state, commit);
        self.0.push(state);
    }

    /// Returns the first `n` commits.
    pub(crate) fn until(&self, n: u64) -> History {
        History(self.0[..=n as usize].to_vec())
    }

    pub(crate) fn state(&self, n: u64) -> State {
        self.0[n as usize].clone()
    }
}

pub(crate) fn apply(state: &mut State, commit: &Commit) {
    for (keyspace, change) in commit {
        Arc::make_mut(&mut state[*keyspace]).apply(change);
    }
}

/// Returns a key. One of the keys is empty, one is long, and one consists of 0xff bytes.
pub(crate) fn key(number: u64) -> Bytes {
    match number % KEYS {
        0 => Bytes::default(),
        1 => [0xff; 3].into(),
        2 => [b'k'; 150].into(),
        number => format!("key-{:03}", number * 7 % 256).into_bytes().into(),
    }
}

pub(crate) fn keys() -> impl Iterator<Item = Bytes> {
    (0..KEYS).map(key)
}

/// Draws a commit, which puts its number in each keyspace and makes a few random changes. If a key occurs twice, the
/// later change wins. `now_us` is the current time of the database clock.
pub(crate) fn draw_commit(rng: &mut TestRng, number: u64, keyspaces: usize, now_us: u64) -> Commit {
    let mut commit = Commit::new();
    if rng.is_one_in(12) {
        // The range delete precedes the puts of the counters, so the counters remain.
        commit.push((rng.below(keyspaces), draw_range_delete(rng)));
    }
    let counter = Change::Put(COUNTER.into(), number.to_le_bytes().into());
    commit.extend((0..keyspaces).map(|keyspace| (keyspace, counter.clone())));
    for _ in 0..rng.below(4) {
        let (keyspace, key) = (rng.below(keyspaces), key(rng.next_u64()));
        let len = if rng.is_one_in(16) { 700 } else { rng.below(120) };
        let value = [&number.to_le_bytes()[..], &rng.bytes(len)].concat().into();
        let change = match rng.below(8) {
            0..2 => Change::Delete(key),
            2..5 => Change::Merge(key, value),
            5 if !has_stores() && rng.is_one_in(2) => {
                let hours = *rng.choose(&[0, 0, 1, 1 << 24]);
                let (ttl, expiry_us) = (time_to_live(hours), ttl_expiry_us(hours, now_us));
                Change::PutWithTtl(key, value, ttl, expiry_us)
            }
            5 if !has_stores() => Change::PutUntil(key, value, draw_expiry(rng, now_us)),
            _ => Change::Put(key, value),
        };
        commit.push((keyspace, change));
    }
    if rng.is_one_in(24) {
        // The commit has so many operands of one key that the writer merges them in the memtable.
        let (keyspace, key) = (rng.below(keyspaces), key(rng.next_u64()));
        for _ in 0..30 + rng.below(20) {
            commit.push((keyspace, Change::Merge(key.clone(), rng.bytes(2).into())));
        }
    }
    if !has_stores() && rng.is_one_in(8) {
        // So many values expire at once that half of the entries of a table may have expired.
        let (keyspace, expiry_us) = (rng.below(keyspaces), draw_expiry(rng, now_us));
        for _ in 0..4 + rng.below(8) {
            let (key, value) = (key(rng.next_u64()), rng.bytes(40).into());
            commit.push((keyspace, Change::PutUntil(key, value, expiry_us)));
        }
    }
    commit
}

/// Draws an expiry time: a past time, the half of this hour or of one of the next two, or a time that is never reached.
/// Keyspaces with an operand store refuse values that expire.
fn draw_expiry(rng: &mut TestRng, now_us: u64) -> u64 {
    let hour = now_us / (2 * HALF_HOUR_US);
    let hours = hour + *rng.choose(&[0, 1, 1, 2, 3, 1 << 24]);
    (2 * hours).saturating_sub(1) * HALF_HOUR_US
}

/// Returns a time to live of the given number of hours and a half.
pub(crate) fn time_to_live(hours: u64) -> Duration {
    Duration::from_micros((2 * hours + 1) * HALF_HOUR_US)
}

/// Returns the start of the half of an hour in which a value expires that is written at `now_us` with [`time_to_live`].
/// All reads take place before this time or after that half of an hour.
pub(crate) fn ttl_expiry_us(hours: u64, now_us: u64) -> u64 {
    let hour = now_us / (2 * HALF_HOUR_US) + hours;
    (2 * hour + 1) * HALF_HOUR_US
}

/// Draws puts and deletes for an ingest, which puts its number in each keyspace.
pub(crate) fn draw_ingest(rng: &mut TestRng, number: u64, keyspaces: usize) -> Commit {
    let counter = Change::Put(COUNTER.into(), number.to_le_bytes().into());
    let mut commit: Commit = (0..keyspaces).map(|keyspace| (keyspace, counter.clone())).collect();
    for _ in 0..rng.below(12) {
        let (keyspace, key) = (rng.below(keyspaces), key(rng.next_u64()));
        let value = [&number.to_le_bytes()[..], &rng.bytes(60)].concat().into();
        let change = if rng.is_one_in(4) { Change::Delete(key) } else { Change::Put(key, value) };
        commit.push((keyspace, change));
    }
    commit
}

/// Draws puts for a bulk load of the first keyspace.
pub(crate) fn draw_bulk_load(rng: &mut TestRng, number: u64) -> Commit {
    let mut commit = draw_ingest(rng, number, 1);
    commit.retain(|(_, change)| matches!(change, Change::Put(..)));
    commit
}

/// Draws a nonempty range delete. Most ranges contain few keys.
fn draw_range_delete(rng: &mut TestRng) -> Change {
    let (one, other) = (key(rng.next_u64()), key(rng.next_u64()));
    let (from, to) = if one < other { (one, other) } else { (other, one) };
    let bounds = match rng.below(8) {
        0 => (Bound::Included(from), Bound::Unbounded),
        1 => (Bound::Unbounded, Bound::Unbounded),
        _ if from == to => (Bound::Included(from), Bound::Included(to)),
        _ => (Bound::Included(from), Bound::Excluded(to)),
    };
    Change::DeleteRange(bounds)
}
