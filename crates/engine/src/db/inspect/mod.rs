//! Reports: health of a database, sizes of its files and metadata, steps of a lookup.

pub(crate) mod explain;
pub(crate) mod health;
pub(crate) mod metadata_sizes;
pub(crate) mod observe;
