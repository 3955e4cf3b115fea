//! Guarantees 10 and 12: files of one database are never taken for files of another one.

use super::arsenal::identity;
use super::support::seeds;

#[test]
fn segment_of_a_checkpoint_in_the_original_is_an_error() {
    for seed in seeds(51, 4) {
        identity::segment_of_a_checkpoint_is_foreign(seed).unwrap();
    }
}
