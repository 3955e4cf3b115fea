//! Reports: health of a database, its files, sizes of its files and metadata, steps of a lookup.

pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod metadata_sizes;
pub(crate) mod observe;
