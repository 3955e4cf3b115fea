//! A list of commits. Recovery must yield exactly a prefix of it.

use lsmx_testkit::TestRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keyspaces of each test database. The first always exists.
pub(crate) const KEYSPACES: [&str; 2] = ["default", "other"];

/// Key to which each commit writes its number, in each keyspace.
pub(crate) const COUNTER: &[u8] = b"counter";

/// Number of keys. Few keys have many versions each.
const KEYS: u64 = 40;

/// A write in one keyspace.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) keyspace: usize,
    /// The key, or the start of a range.
    pub(crate) key: Vec<u8>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Put(Vec<u8>),
    Delete,
    /// Appends to the value.
    Merge(Vec<u8>),
    /// Up to this key exclusive, or up to the end of the keyspace. Never empty.
    DeleteRange(Option<Vec<u8>>),
}

impl Change {
    fn deletes(&self, at: &[u8]) -> bool {
        match &self.action {
            Action::Put(_) | Action::Merge(_) => false,
            Action::Delete => *at == *self.key,
            Action::DeleteRange(end) => {
                *at >= *self.key && end.as_ref().is_none_or(|end| *at < **end)
            }
        }
    }

    /// What becomes of the value that its key has had; `None` if that is not how it changes one.
    fn written(&self, before: Option<&Vec<u8>>) -> Option<Vec<u8>> {
        match &self.action {
            Action::Put(value) => Some(value.clone()),
            Action::Merge(operand) => {
                Some([before.map_or(&[][..], |before| before), operand].concat())
            }
            Action::Delete | Action::DeleteRange(_) => None,
        }
    }
}

/// A batch.
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
    /// For each key the commits that changed it, with the new values.
    versions: [BTreeMap<Vec<u8>, Vec<Version>>; 2],
}

/// Number of a commit, and the value of a key after it.
type Version = (u64, Option<Vec<u8>>);

impl History {
    /// Returns the number of the last commit.
    pub(crate) fn last(&self) -> u64 {
        self.commits.len() as u64
    }

    pub(crate) fn push(&mut self, commit: Arc<Commit>) {
        let number = self.last() + 1;
        for change in &commit.changes {
            let keys = &mut self.versions[change.keyspace];
            let before = keys.get(&change.key).and_then(|versions| versions.last());
            if let Some(value) = change.written(before.and_then(|(_, value)| value.as_ref())) {
                keys.entry(change.key.clone()).or_default().push((number, Some(value)));
            }
            for (_, versions) in keys.iter_mut().filter(|(key, _)| change.deletes(key)) {
                versions.push((number, None));
            }
        }
        self.commits.push(commit);
    }

    /// Returns the first `n` commits.
    pub(crate) fn until(&self, n: u64) -> History {
        let mut history = History::default();
        for commit in self.commits.iter().take(usize::try_from(n).unwrap_or(0)) {
            history.push(Arc::clone(commit));
        }
        history
    }

    /// Returns the contents after `n` commits.
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
        match change.written(state.get(&change.key)) {
            Some(value) => drop(state.insert(change.key.clone(), value)),
            None => state.retain(|key, _| !change.deletes(key)),
        }
    }
}

/// Returns a key: an ordinary one, the empty one, a long one, or one of 0xff bytes.
pub(crate) fn key(at: u64) -> Vec<u8> {
    match at % KEYS {
        0 => Vec::new(),
        1 => vec![0xff; 3],
        2 => vec![b'k'; 150],
        at => format!("key-{:03}", at * 7 % 256).into_bytes(),
    }
}

/// Returns all keys of workloads.
pub(crate) fn keys() -> impl Iterator<Item = Vec<u8>> {
    (0..KEYS).map(key)
}

/// Draws the commit with a number: a put of the number in each keyspace, and a few random changes.
pub(crate) fn draw_commit(rng: &mut TestRng, number: u64, keyspaces: usize) -> Commit {
    let any = |rng: &mut TestRng| rng.below(keyspaces);
    // Before the counters, which must stay.
    let mut changes = Vec::new();
    if rng.is_one_in(12) {
        let keyspace = any(rng);
        changes.push(draw_range_delete(rng, keyspace));
    }
    changes.extend((0..keyspaces).map(|keyspace| Change {
        keyspace,
        key: COUNTER.to_vec(),
        action: Action::Put(number.to_le_bytes().to_vec()),
    }));
    for _ in 0..rng.below(4) {
        let keyspace = any(rng);
        let key = key(rng.next_u64());
        let action = if rng.is_one_in(4) {
            Action::Delete
        } else {
            let mut value = number.to_le_bytes().to_vec();
            let len = if rng.is_one_in(16) { 700 } else { rng.below(120) };
            value.extend(rng.bytes(len));
            if rng.is_one_in(2) { Action::Merge(value) } else { Action::Put(value) }
        };
        changes.push(Change { keyspace, key, action });
    }
    if rng.is_one_in(24) {
        // So many operands of one key that the writer folds them in the memtable.
        let (keyspace, key) = (any(rng), key(rng.next_u64()));
        for _ in 0..30 + rng.below(20) {
            let (key, action) = (key.clone(), Action::Merge(rng.bytes(2)));
            changes.push(Change { keyspace, key, action });
        }
    }
    // A key may come twice: the later change counts. The order of the counters does not matter.
    Commit { changes }
}

/// Draws a range delete, mostly of a few keys.
fn draw_range_delete(rng: &mut TestRng, keyspace: usize) -> Change {
    let (mut from, mut to) = (key(rng.next_u64()), key(rng.next_u64()));
    let end = match rng.below(8) {
        0 => None,
        1 => {
            from.clear();
            None
        }
        _ => {
            if from > to {
                std::mem::swap(&mut from, &mut to);
            }
            if from == to {
                to.push(0);
            }
            Some(to)
        }
    };
    Change { keyspace, key: from, action: Action::DeleteRange(end) }
}
