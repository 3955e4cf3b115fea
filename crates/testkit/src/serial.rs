//! A serializability checker for histories of transactions on lists.
//!
//! 1. The caller passes the writing transactions in commit order. This order is the version order of every key.
//! 2. All reads of a transaction must match its own writes on top of one state between two commits. The checker uses
//!    the latest such state before the commit of the transaction.
//! 3. The dependency graph has an edge from transaction A to transaction B if A must precede B. There are three cases:
//!    both write a key (ww), B reads a write of A (wr), or A reads a value that B replaces later (rw). A range read
//!    reads all keys of the range, including absent keys. The history is serializable if the graph has no cycle.
//!
//! Sources: Adya, Liskov and O'Neil, "Generalized isolation level definitions", ICDE 2000; Kingsbury and Alvaro, "Elle",
//! PVLDB 14 (2020).

use std::collections::BTreeMap;
use std::ops::Range;

/// The lists of all keys. Keys are less than 32, because a set of keys is a bit mask.
pub type Lists = BTreeMap<u8, Vec<u32>>;

/// A step of a transaction, with its result.
#[derive(Clone, Debug)]
pub enum Step {
    Append {
        key: u8,
        id: u32,
    },
    Replace {
        key: u8,
        id: u32,
    },
    Delete {
        key: u8,
    },
    DeleteRange {
        keys: Range<u8>,
    },
    Read {
        key: u8,
        seen: Option<Vec<u32>>,
    },
    Scan {
        keys: Range<u8>,
        backward: bool,
        limit: usize,
        seen: Vec<(u8, Vec<u32>)>,
    },
    Savepoint,
    /// Discards all writes since the last savepoint.
    RollBack,
}

/// The effect of a transaction on a state.
#[derive(Clone, Default)]
struct Effect {
    lists: Lists,
    /// Keys that were read from the state, as a bit mask.
    reads: u32,
    writes: u32,
    /// Keys whose lists do not depend on the initial state, because the transaction replaced or deleted them.
    replaced: u32,
}

fn mask(keys: impl IntoIterator<Item = u8>) -> u32 {
    keys.into_iter().fold(0, |mask, key| mask | 1 << key)
}

/// Executes a transaction. Returns `None` if a read returns a result other than the recorded one.
fn execute(lists: &Lists, steps: &[Step]) -> Option<Effect> {
    let mut now = Effect { lists: lists.clone(), ..Effect::default() };
    let mut saved = now.clone();
    for step in steps {
        match step {
            Step::Append { key, id } => {
                now.lists.entry(*key).or_default().push(*id);
                now.writes |= mask([*key]);
            }
            Step::Replace { key, id } => {
                now.lists.insert(*key, vec![*id]);
                now.writes |= mask([*key]);
                now.replaced |= mask([*key]);
            }
            Step::Delete { key } => {
                now.lists.remove(key);
                now.writes |= mask([*key]);
                now.replaced |= mask([*key]);
            }
            Step::DeleteRange { keys } => {
                now.lists.retain(|key, _| !keys.contains(key));
                now.writes |= mask(keys.clone());
                now.replaced |= mask(keys.clone());
            }
            Step::Read { key, seen } => {
                if now.lists.get(key) != seen.as_ref() {
                    return None;
                }
                now.reads |= mask([*key]) & !now.replaced;
            }
            Step::Scan { keys, backward, limit, seen } => {
                let all = now.lists.range(keys.clone()).map(|(key, list)| (*key, list.clone()));
                let found: Vec<_> = match backward {
                    true => all.rev().take(*limit).collect(),
                    false => all.take(*limit).collect(),
                };
                if found != *seen {
                    return None;
                }
                let read = match seen.last() {
                    _ if seen.len() < *limit => keys.clone(),
                    None => 0..0,
                    Some((last, _)) if *backward => *last..keys.end,
                    Some((last, _)) => keys.start..*last + 1,
                };
                now.reads |= mask(read) & !now.replaced;
            }
            Step::Savepoint => saved = now.clone(),
            Step::RollBack => now = Effect { reads: now.reads, ..saved.clone() },
        }
    }
    Some(now)
}

/// A committed transaction in the dependency graph.
struct Node {
    /// Position in the commit order. `None` if the transaction has no writes.
    position: Option<usize>,
    /// Number of commits whose writes the transaction sees.
    snapshot: usize,
    reads: u32,
    writes: u32,
}

impl Node {
    /// Returns whether this transaction must precede `other` in a serial order.
    fn must_precede(&self, other: &Node) -> bool {
        let write_first = self.position.zip(other.position).is_some_and(|(one, other)| one < other);
        let is_seen = self.position.is_some_and(|position| position < other.snapshot);
        let is_unseen = other.position.is_some_and(|position| position >= self.snapshot);
        write_first && self.writes & other.writes != 0
            || is_seen && self.writes & other.reads != 0
            || is_unseen && self.reads & other.writes != 0
    }
}

/// Checks a history. `writers` are the committed transactions with writes, in the order of their commits. `readers` are
/// the other committed transactions. Returns the state after the last commit.
///
/// # Errors
/// Returns a description of the anomaly if the history is not serializable.
pub fn check_serializable(writers: &[Vec<Step>], readers: &[Vec<Step>]) -> Result<Lists, String> {
    let mut states = vec![Lists::new()];
    let mut nodes = Vec::new();
    let positions = (0..writers.len()).map(Some).chain(readers.iter().map(|_| None));
    for (steps, position) in writers.iter().chain(readers).zip(positions) {
        let latest = position.unwrap_or(writers.len());
        let mut effects =
            (0..=latest).rev().filter_map(|at| Some((at, execute(&states[at], steps)?)));
        let Some((snapshot, Effect { reads, writes, .. })) = effects.next() else {
            return Err(format!(
                "transaction {position:?} reads no state of the database: {steps:?}"
            ));
        };
        nodes.push(Node { position, snapshot, reads, writes });
        if position.is_some() {
            let after = apply(&states[latest], steps);
            states.push(after);
        }
    }
    // A transaction without predecessors or without successors is on no cycle. Such transactions are removed until each
    // remaining transaction has both.
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    loop {
        let precedes =
            |one: usize, other: usize| one != other && nodes[one].must_precede(&nodes[other]);
        let is_between = |at: usize| {
            left.iter().any(|&other| precedes(other, at))
                && left.iter().any(|&other| precedes(at, other))
        };
        let next: Vec<usize> = left.iter().copied().filter(|&at| is_between(at)).collect();
        if next.len() == left.len() {
            break;
        }
        left = next;
    }
    if left.is_empty() {
        return Ok(states.pop().unwrap_or_default());
    }
    let steps = left.iter().filter_map(|&at| writers.iter().chain(readers).nth(at));
    Err(format!("transactions {left:?} depend on each other: {:#?}", steps.collect::<Vec<_>>()))
}

/// Returns the state after the writes of a transaction.
fn apply(lists: &Lists, steps: &[Step]) -> Lists {
    let is_write = |step: &&Step| !matches!(step, Step::Read { .. } | Step::Scan { .. });
    let writes: Vec<Step> = steps.iter().filter(is_write).cloned().collect();
    execute(lists, &writes).map(|effect| effect.lists).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: u8, seen: &[u32]) -> Step {
        Step::Read { key, seen: (!seen.is_empty()).then(|| seen.to_vec()) }
    }

    fn append(key: u8, id: u32) -> Step {
        Step::Append { key, id }
    }

    fn scan(keys: Range<u8>, seen: &[(u8, u32)]) -> Step {
        let seen = seen.iter().map(|&(key, id)| (key, vec![id])).collect();
        Step::Scan { keys, backward: false, limit: 99, seen }
    }

    #[test]
    fn check_serializable_accepts_reads_of_one_state() {
        let writers = [vec![append(1, 1)], vec![read(1, &[1]), append(1, 2), read(1, &[1, 2])]];
        let readers = [vec![read(1, &[]), read(2, &[])], vec![scan(0..9, &[(1, 1)])]];
        let last = check_serializable(&writers, &readers).unwrap();
        assert_eq!(last, Lists::from([(1, vec![1, 2])]));
        // A read that does not see an earlier commit is serializable if nothing else orders the two transactions.
        check_serializable(&[vec![append(1, 1)], vec![read(1, &[]), append(2, 2)]], &[]).unwrap();
        // A rolled back write is not seen later.
        let rolled_back = vec![Step::Savepoint, append(1, 1), Step::RollBack, read(1, &[])];
        check_serializable(&[[rolled_back, vec![append(2, 1)]].concat()], &[]).unwrap();
    }

    #[test]
    fn check_serializable_rejects_anomalies() {
        let rejects = |writers: &[Vec<Step>], readers: &[Vec<Step>]| {
            assert!(check_serializable(writers, readers).is_err(), "{writers:?} {readers:?}");
        };
        // Lost update.
        rejects(&[vec![read(1, &[]), append(1, 1)], vec![read(1, &[]), append(1, 2)]], &[]);
        // Write skew of keys and of ranges.
        rejects(&[vec![read(1, &[]), append(2, 1)], vec![read(2, &[]), append(1, 2)]], &[]);
        let empty = || scan(0..9, &[]);
        rejects(&[vec![empty(), append(2, 1)], vec![empty(), append(3, 2)]], &[]);
        // A read of two states, of an aborted write, and of a state without an own write.
        rejects(&[vec![append(1, 1), append(2, 1)]], &[vec![read(1, &[1]), read(2, &[])]]);
        rejects(&[], &[vec![read(1, &[7])]]);
        rejects(&[vec![append(1, 1), read(1, &[])]], &[]);
        // A range read without an entry of the range.
        rejects(&[vec![append(1, 1), append(2, 1)]], &[vec![scan(0..9, &[(1, 1)])]]);
        // Two readers that see two independent commits in different orders.
        let writers = [vec![append(1, 1)], vec![append(2, 2)]];
        rejects(&writers, &[vec![read(1, &[]), read(2, &[2])]]);
    }
}
