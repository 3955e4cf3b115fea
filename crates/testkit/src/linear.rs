//! A linearizability checker for recorded calls of several threads.
//!
//! The store under test consists of a few places, such as keys. The state of a place is the number of the last write to
//! it.
//!
//! Source: Wing and Gong, JPDC 17 (1993), with Lowe's cache of tried states.

use std::collections::HashSet;

/// Number of places in the store. A place is, for example, one key in one of two keyspaces.
pub const PLACES: usize = 3;

/// Number of a write. 0 stands for the state before the first write.
pub type WriteId = u32;

/// A call and its result.
#[derive(Clone, Debug)]
pub enum Call {
    /// An atomic write to several places. If `deletes` is true, the places have no value after the write.
    Write { id: WriteId, places: Vec<usize>, deletes: bool },
    /// A conditional write that succeeded. Its condition is that the last write of the place was `last`.
    GuardHeld { id: WriteId, place: usize, last: WriteId },
    /// A conditional write that failed.
    GuardFailed,
    /// An atomic read of several places. `seen` has `None` for a place without a value.
    Read { seen: Vec<(usize, Option<WriteId>)> },
}

/// A recorded call, with its start and end.
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

/// Returns true if some sequential order of the calls explains all results.
///
/// A call that ended before another call began must precede the other call in this order.
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
            // A call that is not ordered yet ended before this call began, so that call must come first.
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
            Call::GuardFailed => Some(store),
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
    // A read during a write may return the old or the new value. If a read has returned the new value, later reads must
    // return it too.
    let history = |first, second| {
        vec![vec![at(1, 9, write(7))], vec![at(2, 3, read(first)), at(4, 5, read(second))]]
    };
    assert!(linearizable(&history(None, None)));
    assert!(linearizable(&history(None, Some(7))));
    assert!(linearizable(&history(Some(7), Some(7))));
    assert!(!linearizable(&history(Some(7), None)));
    assert!(!linearizable(&history(None, Some(8))));
    // A read after an acknowledged write must return it.
    assert!(!linearizable(&[vec![at(1, 2, write(7))], vec![at(3, 4, read(None))]]));
    // A read returns either both writes of a batch or neither.
    let both = Call::Write { id: 7, places: vec![0, 1], deletes: false };
    let torn = Call::Read { seen: vec![(0, Some(7)), (1, None)] };
    assert!(!linearizable(&[vec![at(1, 9, both)], vec![at(2, 3, torn)]]));
    // Two conditional writes that depend on the same last write cannot both succeed.
    let guard = |id| Call::GuardHeld { id, place: 0, last: 0 };
    assert!(!linearizable(&[vec![at(1, 5, guard(7))], vec![at(1, 5, guard(8))]]));
    assert!(linearizable(&[vec![at(1, 5, guard(7))], vec![at(1, 5, Call::GuardFailed)]]));
}
