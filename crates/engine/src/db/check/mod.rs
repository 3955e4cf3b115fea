//! Verification and repair of closed databases.

pub(crate) mod repair;
pub(crate) mod verify;
