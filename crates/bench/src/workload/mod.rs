//! Workloads: seeded streams of operations that are equal on every machine.
//!
//! 1. [`phases`] describes a workload: how many operations of which kind, in which order and with which keys.
//! 2. [`keys`] computes the key of a record from its number, so no list of keys is stored.
//! 3. [`records`] generates records; [`record`] and [`data_file`] read them from a file.
//! 4. [`choice`] picks present records, [`stream`] iterates over the operations of phases.
//! 5. [`operation_mix`] draws operations of YCSB and similar mixes.
//! 6. [`trace`] reads recorded operations, and [`model`] predicts the database after them.

pub mod choice;
pub mod data_file;
pub mod keys;
pub mod model;
pub mod operation_mix;
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
