//! Memory bounds that hold whatever is under way.

use super::support::seeds;
use crate::harness::memory;

#[test]
fn memtables_batches_in_flight_exceed_their_share_by_one_batch() {
    for seed in seeds(103, 10) {
        memory::batches_in_flight(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn memtables_dropped_during_a_fold_do_not_count() {
    memory::drops_among_folds(0).unwrap_or_else(|why| panic!("{why}"));
}
