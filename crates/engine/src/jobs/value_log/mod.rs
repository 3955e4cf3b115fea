//! Jobs of the value log: separation, relocation and garbage collection of large values.

pub(crate) mod garbage;
pub(crate) mod output_values;
pub(crate) mod relocate;
