//! Reports about databases: lookups, health, sizes.

pub(crate) mod explain;
pub(crate) mod health;
pub(crate) mod metadata_sizes;
pub(crate) mod observe;
