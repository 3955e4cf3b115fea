//! Guarantees 10 and 12: files of one database are never taken for files of another one.

use super::support::seeds;
use crate::harness::identity;
use lsmx_testkit::seed;

#[test]
fn segment_of_a_checkpoint_in_the_original_is_an_error() {
    for seed in seeds(51, 4) {
        identity::segment_of_a_checkpoint_is_foreign(seed).unwrap();
    }
}

#[test]
fn output_named_as_an_engine_file_in_a_database_is_refused() {
    identity::output_over_an_engine_file_is_refused(seed()).unwrap();
}

#[test]
fn stray_file_with_an_impossible_number_is_reported_and_ignored() {
    identity::stray_file_with_an_impossible_number_is_ignored(seed()).unwrap();
}
