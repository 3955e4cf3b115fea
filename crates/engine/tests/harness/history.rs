//! A list of commits. Recovery must return exactly the first commits of the list.

use std::ops::Bound;
use std::sync::Arc;

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

/// Expiry time of some values in microseconds, which no clock of a test reaches. Keyspaces with an operand store refuse
/// such values.
const EXPIRY_US: u64 = 1 << 60;

/// A batch of operations. Each operation is the index of a keyspace and a write.
pub(crate) type Commit = Vec<(usize, Change)>;

pub(crate) type State = [Arc<Pairs>; 2];

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
        change.apply(Arc::make_mut(&mut state[*keyspace]), &Append::default());
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
/// later change wins.
pub(crate) fn draw_commit(rng: &mut TestRng, number: u64, keyspaces: usize) -> Commit {
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
            5 if !has_stores() => Change::PutUntil(key, value, EXPIRY_US),
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
    commit
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
