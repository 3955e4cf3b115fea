//! Values that jobs write: value separation, relocation and garbage collection.

pub(crate) mod garbage_collection;
pub(crate) mod output_values;
pub(crate) mod relocate;
