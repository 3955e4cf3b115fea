//! Workloads: streams of operations. Equal seeds give equal operations on every machine.
//!
//! 1. [`phases`] describes a workload: the number and the kinds of operations, their order and their keys.
//! 2. [`keys`] computes the key of a record from its number, so no list of keys is stored.
//! 3. [`records`] generates keys and values. [`record`] and [`data_file`] read them from a file.
//! 4. [`record_picker`] chooses the records that operations access. [`stream`] generates the operations of a phase.
//! 5. [`operation_mix`] draws operations of YCSB and similar mixes, [`mixgraph`] those of MixGraph.
//! 6. [`trace`] reads recorded operations. [`model`] computes the database content that they produce.

pub mod data_file;
pub mod keys;
pub mod mixgraph;
pub mod model;
pub mod operation_mix;
pub mod phases;
pub mod random;
pub mod record;
pub mod record_picker;
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
