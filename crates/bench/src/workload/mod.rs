//! Workloads: seeded streams of operations that are equal on every machine.
//!
//! 1. [`phases`] says how many operations of which kind, in which order, chosen how.
//! 2. [`keys`] gives every record a key: a place in a key domain, made from the record's number, so
//!    that no list of keys is ever held.
//! 3. [`choice`] picks among the records that are there.
//! 4. [`stream`] is the iterator of operations.
//! 5. [`record`] and [`data_file`] are the records of a file in place of generated ones.
//! 6. [`trace`] is operations of somebody else, [`model`] what a database must hold after them.

pub mod choice;
pub mod data_file;
pub mod keys;
pub mod model;
pub mod phases;
pub mod random;
pub mod record;
pub mod records;
pub mod stream;
pub mod trace;

pub use lsmx_simulator::workload::{
    KeyDistribution, NORMAL_DEVIATION, PREFIXES, UnknownDistribution, WINDOW_SHARE, WINDOWS,
    ZIPF_EXPONENT,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_serialized_by_their_names() {
        for distribution in KeyDistribution::ALL {
            assert_eq!(
                serde_json::to_string(&distribution).unwrap(),
                format!("\"{}\"", distribution.name())
            );
        }
    }
}
