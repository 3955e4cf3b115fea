//! The history: a list of commits, of which recovery must yield exactly a prefix.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Chance;

/// Keyspaces of every test database. The first is there from the start.
pub(crate) const KEYSPACES: [&str; 2] = ["default", "other"];

/// The key under which every commit writes its number, in each keyspace.
pub(crate) const COUNTER: &[u8] = b"counter";

/// Keys that workloads write; a small set, so that keys have many versions.
const KEYS: u64 = 40;

/// What one key of one keyspace becomes: a value, nothing, or its value with this appended.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) keyspace: usize,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) appended: bool,
}

impl Change {
    /// What becomes of the value before.
    fn of(&self, before: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        let value = self.value.as_ref()?;
        let before = before.filter(|_| self.appended);
        Some(before.map_or_else(|| value.clone(), |before| [&before[..], value].concat()))
    }
}

/// One batch.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) changes: Vec<Change>,
}

/// Contents of both keyspaces.
pub(crate) type State = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

/// All commits; number n is at index n − 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    commits: Vec<Arc<Commit>>,
    /// Of each key, the numbers of the commits that changed it, and to what.
    versions: [BTreeMap<Vec<u8>, Vec<Version>>; 2],
}

/// Number of a commit, and what it made of a key.
type Version = (u64, Option<Vec<u8>>);

impl History {
    /// The number of the last commit.
    pub(crate) fn last(&self) -> u64 {
        self.commits.len() as u64
    }

    pub(crate) fn push(&mut self, commit: Arc<Commit>) {
        let number = self.last() + 1;
        for change in &commit.changes {
            let versions = self.versions[change.keyspace].entry(change.key.clone()).or_default();
            let before = versions.last().and_then(|(_, value)| value.as_ref());
            let value = change.of(before);
            versions.push((number, value));
        }
        self.commits.push(commit);
    }

    /// The same history, ended after `n` commits.
    pub(crate) fn until(&self, n: u64) -> History {
        let mut history = History::default();
        for commit in self.commits.iter().take(usize::try_from(n).unwrap_or(0)) {
            history.push(Arc::clone(commit));
        }
        history
    }

    /// What is there after `n` commits.
    pub(crate) fn state(&self, n: u64) -> State {
        let mut state = State::default();
        for (state, versions) in state.iter_mut().zip(&self.versions) {
            for (key, versions) in versions {
                let seen = versions.partition_point(|(number, _)| *number <= n);
                if let Some((_, Some(value))) = versions[..seen].last() {
                    state.insert(key.clone(), value.clone());
                }
            }
        }
        state
    }
}

/// Applies a commit to contents.
pub(crate) fn apply(state: &mut State, commit: &Commit) {
    for change in &commit.changes {
        let state = &mut state[change.keyspace];
        match change.of(state.get(&change.key)) {
            Some(value) => state.insert(change.key.clone(), value),
            None => state.remove(&change.key),
        };
    }
}

/// The keys of all workloads: ordinary ones, the empty one, a long one, one of 0xff.
pub(crate) fn key(at: u64) -> Vec<u8> {
    match at % KEYS {
        0 => Vec::new(),
        1 => vec![0xff; 3],
        2 => vec![b'k'; 150],
        at => format!("key-{:03}", at * 7 % 256).into_bytes(),
    }
}

/// Every key that a workload may write.
pub(crate) fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..KEYS).map(key)
}

/// The commit with this number: its number in each keyspace, and a few changes at random.
pub(crate) fn draw_commit(chance: &mut Chance, number: u64, keyspaces: usize) -> Commit {
    let mut changes: Vec<Change> = (0..keyspaces)
        .map(|keyspace| Change {
            keyspace,
            key: COUNTER.to_vec(),
            value: Some(number.to_le_bytes().to_vec()),
            appended: false,
        })
        .collect();
    for _ in 0..chance.below(4) {
        let keyspace = usize::try_from(chance.below(keyspaces as u64)).unwrap_or(0);
        let key = key(chance.draw());
        let value = (!chance.one_in(4)).then(|| {
            let mut value = number.to_le_bytes().to_vec();
            let len = if chance.one_in(16) { 700 } else { chance.below(120) };
            value.extend(chance.bytes(len));
            value
        });
        let appended = value.is_some() && chance.one_in(2);
        changes.push(Change { keyspace, key, value, appended });
    }
    if chance.one_in(24) {
        // So many operands of one key that the writer folds them in the memtable.
        let keyspace = usize::try_from(chance.below(keyspaces as u64)).unwrap_or(0);
        let key = key(chance.draw());
        for _ in 0..30 + chance.below(20) {
            let (key, value) = (key.clone(), Some(chance.bytes(2)));
            changes.push(Change { keyspace, key, value, appended: true });
        }
    }
    // A key may come twice: the later change counts. The order of the counters does not matter.
    Commit { changes }
}
