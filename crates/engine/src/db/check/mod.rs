//! Verification and repair of closed databases.

pub(crate) mod repair;
pub(crate) mod verify;
pub(crate) mod verify_blobs;
