//! A linearizability checker for the history of one key.
//!
//! The checker searches an order of the operations in which each one has the recorded result. If an operation ended
//! before another one began, it must be first in this order. An operation without an end has an unknown outcome: it may be
//! at any place after its begin, or absent.
//!
//! Source: Wing and Gong, JPDC 17 (1993), with Lowe's cache of visited states.

use std::collections::HashSet;

use lsmx_testkit::{TestRng, case_seeds};

/// Value of a key, or `None` if the key does not exist.
pub(crate) type KeyValue = Option<String>;

/// An operation, and for a read its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get(KeyValue),
    Put(String),
    Append(String),
    Delete,
}

/// A recorded operation. Times are unique.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) call: Call,
    pub(crate) begin: u64,
    /// `None` if the outcome is unknown.
    pub(crate) end: Option<u64>,
}

/// Maximum number of states that [`is_linearizable`] visits.
const STATES_MAX: usize = 2_000_000;

/// Returns the value after the call, or `None` if the call has another result than recorded.
fn apply(call: &Call, value: &KeyValue) -> Option<KeyValue> {
    match call {
        Call::Get(seen) => (seen == value).then(|| value.clone()),
        Call::Put(new) => Some(Some(new.clone())),
        Call::Append(tail) => Some(Some(value.as_deref().unwrap_or("").to_owned() + tail)),
        Call::Delete => Some(None),
    }
}

/// Set of operations, by index.
type Done = Vec<u64>;

fn is_done(done: &Done, index: usize) -> bool {
    done[index / 64] >> (index % 64) & 1 == 1
}

fn flip(done: &mut Done, index: usize) {
    done[index / 64] ^= 1 << (index % 64);
}

struct Search<'a> {
    /// Sorted by end. Operations with unknown outcome are last, so that they are tried last.
    operations: Vec<&'a Operation>,
    visited: HashSet<(Done, KeyValue)>,
    /// Maximum number of visited states.
    states_max: usize,
}

impl Search<'_> {
    fn is_too_long(&self) -> bool {
        self.visited.len() > self.states_max
    }

    /// Returns whether the remaining operations have an order. Returns false if the search visits too many states.
    fn find_order(&mut self, done: &mut Done, value: &KeyValue) -> bool {
        if self.is_too_long() || !self.visited.insert((done.clone(), value.clone())) {
            return false;
        }
        let first_end = (0..self.operations.len())
            .filter(|index| !is_done(done, *index))
            .find_map(|index| self.operations[index].end);
        let Some(first_end) = first_end else { return true };
        for index in 0..self.operations.len() {
            let operation = self.operations[index];
            if is_done(done, index) || operation.begin > first_end {
                continue;
            }
            if let Some(next) = apply(&operation.call, value) {
                flip(done, index);
                if self.find_order(done, &next) {
                    return true;
                }
                flip(done, index);
            }
        }
        false
    }
}

/// Returns whether the history of a key, which does not exist at first, is linearizable. Returns `None` if this is
/// undecided after the maximum number of states.
pub(crate) fn is_linearizable(operations: &[Operation]) -> Option<bool> {
    search_order(operations, STATES_MAX)
}

fn search_order(operations: &[Operation], states_max: usize) -> Option<bool> {
    let mut operations: Vec<&Operation> = operations.iter().collect();
    operations.sort_by_key(|operation| operation.end.unwrap_or(u64::MAX));
    let mut done = vec![0; operations.len().div_ceil(64)];
    let mut search = Search { operations, visited: HashSet::new(), states_max };
    let is_found = search.find_order(&mut done, &None);
    (is_found || !search.is_too_long()).then_some(is_found)
}

fn at(begin: u64, end: impl Into<Option<u64>>, call: Call) -> Operation {
    Operation { call, begin, end: end.into() }
}

fn put(value: &str) -> Call {
    Call::Put(value.to_owned())
}

fn append(value: &str) -> Call {
    Call::Append(value.to_owned())
}

fn get(value: &str) -> Call {
    Call::Get((!value.is_empty()).then(|| value.to_owned()))
}

#[test]
fn checker_history_with_too_many_states_is_undecided() {
    let mut history: Vec<_> = (0..8).map(|begin| at(begin, 100 + begin, append("a"))).collect();
    assert_eq!(search_order(&history, 20), Some(true));
    history.push(at(200, 201, get("b")));
    assert_eq!(search_order(&history, 20), None);
    assert_eq!(search_order(&history, 1_000), Some(false));
}

#[test]
fn checker_known_histories_are_judged_correctly() {
    let is_linearizable = |history: &[Operation]| search_order(history, STATES_MAX).unwrap();
    // A read during a write may show either value, but the value does not go back.
    let during = |first, second| [at(1, 6, put("a")), at(2, 3, get(first)), at(4, 5, get(second))];
    assert!(is_linearizable(&during("", "a")));
    assert!(!is_linearizable(&during("a", "")));
    // A stale read.
    assert!(!is_linearizable(&[at(1, 2, put("a")), at(3, 4, put("b")), at(5, 6, get("a"))]));
    // A lost write, and a lost append.
    assert!(!is_linearizable(&[at(1, 2, put("a")), at(3, 4, get(""))]));
    assert!(!is_linearizable(&[at(1, 4, append("a")), at(2, 3, append("b")), at(5, 6, get("a"))]));
    // An append that was applied twice, and one that was applied again later.
    assert!(!is_linearizable(&[at(1, 2, append("a")), at(3, 4, get("aa"))]));
    let again = [at(1, 2, append("a")), at(3, 4, put("b")), at(5, 6, get("ba"))];
    assert!(!is_linearizable(&again));
    // A deleted value that returns, and a value that was never written.
    assert!(!is_linearizable(&[at(1, 2, put("a")), at(3, 4, Call::Delete), at(5, 6, get("a"))]));
    assert!(!is_linearizable(&[at(1, 2, put("a")), at(3, 4, get("x"))]));
    // An unknown outcome: absent, late, but not twice and not before its begin.
    let unknown = |reads: &[&str]| {
        let mut history = vec![at(3, None, append("b")), at(1, 2, put("a"))];
        let reads = reads.iter().zip(2..);
        history.extend(reads.map(|(seen, time)| at(2 * time, 2 * time + 1, get(seen))));
        is_linearizable(&history)
    };
    assert!(unknown(&["a", "a", "a"]));
    assert!(unknown(&["a", "a", "ab"]));
    assert!(!unknown(&["a", "ab", "a"]));
    assert!(!unknown(&["ab", "abb"]));
    assert!(!is_linearizable(&[at(1, 2, get("a")), at(3, None, put("a"))]));
}

/// Tries all orders of all subsets that contain the operations with a known outcome.
fn is_linearizable_by_enumeration(rest: &[Operation], order: &mut Vec<Operation>) -> bool {
    let mut value = None;
    for (index, operation) in order.iter().enumerate() {
        let is_too_late = order[index + 1..]
            .iter()
            .any(|later| later.end.is_some_and(|end| end < operation.begin));
        match apply(&operation.call, &value) {
            Some(next) if !is_too_late => value = next,
            _ => return false,
        }
    }
    let is_complete = rest.iter().all(|operation| operation.end.is_none());
    is_complete
        || (0..rest.len()).any(|index| {
            let mut rest = rest.to_vec();
            order.push(rest.remove(index));
            let found = is_linearizable_by_enumeration(&rest, order);
            order.pop();
            found
        })
}

fn random_history(rng: &mut TestRng) -> Vec<Operation> {
    let count = rng.between(2, 6);
    let mut times: Vec<u64> = (0..2 * count as u64).collect();
    let mut draw_time = |rng: &mut TestRng| times.swap_remove(rng.below(times.len()));
    let mut history = Vec::new();
    for _ in 0..count {
        let (one, other) = (draw_time(rng), draw_time(rng));
        let call = match rng.below(7_u64) {
            0 => put("a"),
            1 => append("b"),
            2 => Call::Delete,
            _ => get(["", "a", "b", "ab"][rng.below(4_usize)]),
        };
        let is_unknown = !matches!(call, Call::Get(_)) && rng.is_one_in(3);
        history.push(at(one.min(other), (!is_unknown).then_some(one.max(other)), call));
    }
    history
}

#[test]
fn checker_random_histories_same_result_as_enumeration() {
    let mut accepted = 0;
    let mut count = 0;
    for seed in case_seeds(&[], 2_000) {
        let history = random_history(&mut TestRng::new(seed));
        let expected = is_linearizable_by_enumeration(&history, &mut Vec::new());
        assert_eq!(
            is_linearizable(&history),
            Some(expected),
            "LSMX_TEST_SEED={seed}: {history:#?}"
        );
        accepted += u64::from(expected);
        count += 1;
    }
    assert!(count < 100 || (count / 10..count).contains(&accepted), "{accepted} of {count}");
}
