//! Verification and repair of databases that are not open.

pub(crate) mod repair;
pub(crate) mod verify;
pub(crate) mod verify_values;
