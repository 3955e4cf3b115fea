//! A linearizability checker for recorded histories of several threads.
//!
//! Source: Wing and Gong, JPDC 17 (1993), with Lowe's cache of states already tried. The store has a few places. The state of
//! a place is the number of its last write.

use std::collections::HashSet;

/// Places of the store, such as one key in each of two keyspaces.
pub const PLACES: usize = 3;

/// Number of a write; 0 is the empty store.
pub type WriteId = u32;

/// A call and its result.
#[derive(Clone, Debug)]
pub enum Call {
    /// An atomic write of places. With `deletes`, they have no value after it.
    Write { id: WriteId, places: Vec<usize>, deletes: bool },
    /// A write of a place that was accepted on condition that its last write was `last`.
    GuardHeld { id: WriteId, place: usize, last: WriteId },
    /// A refused write.
    GuardRefused,
    /// An atomic read of places; `None` for no value.
    Read { seen: Vec<(usize, Option<WriteId>)> },
}

/// A call with its start and end.
#[derive(Clone, Debug)]
pub struct Record {
    pub call: Call,
    pub begin: u64,
    pub end: u64,
}

type Store = [WriteId; PLACES];

struct Search<'a> {
    threads: &'a [Vec<Record>],
    deletes: HashSet<WriteId>,
    tried: HashSet<(Vec<usize>, Store)>,
}

/// Returns whether some order of the calls explains all results. A call that ended before another began must come before
/// it.
pub fn linearizable(threads: &[Vec<Record>]) -> bool {
    let deletes = threads.iter().flatten().filter_map(|record| match record.call {
        Call::Write { id, deletes: true, .. } => Some(id),
        _ => None,
    });
    let mut search = Search { threads, deletes: deletes.collect(), tried: HashSet::new() };
    search.from(&mut vec![0; threads.len()], [0; PLACES])
}

impl Search<'_> {
    fn from(&mut self, done: &mut Vec<usize>, store: Store) -> bool {
        if !self.tried.insert((done.clone(), store)) {
            return false;
        }
        let threads = self.threads;
        let next = |thread: usize, done: &[usize]| threads[thread].get(done[thread]);
        if (0..threads.len()).all(|thread| next(thread, done).is_none()) {
            return true;
        }
        let first_end = (0..threads.len()).filter_map(|t| next(t, done)).map(|at| at.end).min();
        for thread in 0..threads.len() {
            let Some(record) = next(thread, done) else { continue };
            // A call that is not placed yet ended before this one began.
            if first_end.is_some_and(|end| end < record.begin) {
                continue;
            }
            if let Some(after) = self.apply(&record.call, store) {
                done[thread] += 1;
                if self.from(done, after) {
                    return true;
                }
                done[thread] -= 1;
            }
        }
        false
    }

    fn apply(&self, call: &Call, mut store: Store) -> Option<Store> {
        match call {
            Call::Write { id, places, .. } => {
                for &place in places {
                    store[place] = *id;
                }
                Some(store)
            }
            Call::GuardHeld { id, place, last } => (store[*place] == *last).then(|| {
                store[*place] = *id;
                store
            }),
            Call::GuardRefused => Some(store),
            Call::Read { seen } => {
                let value = |id: WriteId| (id != 0 && !self.deletes.contains(&id)).then_some(id);
                seen.iter().all(|&(place, seen)| value(store[place]) == seen).then_some(store)
            }
        }
    }
}

#[test]
fn the_checker_tells_right_from_wrong() {
    let at = |begin, end, call| Record { call, begin, end };
    let write = |id| Call::Write { id, places: vec![0], deletes: false };
    let read = |seen| Call::Read { seen: vec![(0, seen)] };
    // A read during a write may see it or not; what was seen stays seen.
    let history = |first, second| {
        vec![vec![at(1, 9, write(7))], vec![at(2, 3, read(first)), at(4, 5, read(second))]]
    };
    assert!(linearizable(&history(None, None)));
    assert!(linearizable(&history(None, Some(7))));
    assert!(linearizable(&history(Some(7), Some(7))));
    assert!(!linearizable(&history(Some(7), None)));
    assert!(!linearizable(&history(None, Some(8))));
    // An acknowledged write is seen.
    assert!(!linearizable(&[vec![at(1, 2, write(7))], vec![at(3, 4, read(None))]]));
    // Both places of a batch at once.
    let both = Call::Write { id: 7, places: vec![0, 1], deletes: false };
    let torn = Call::Read { seen: vec![(0, Some(7)), (1, None)] };
    assert!(!linearizable(&[vec![at(1, 9, both)], vec![at(2, 3, torn)]]));
    // Two guards on the same write cannot both hold.
    let guard = |id| Call::GuardHeld { id, place: 0, last: 0 };
    assert!(!linearizable(&[vec![at(1, 5, guard(7))], vec![at(1, 5, guard(8))]]));
    assert!(linearizable(&[vec![at(1, 5, guard(7))], vec![at(1, 5, Call::GuardRefused)]]));
}
