//! Verification and repair of closed databases.

pub(crate) mod key_search;
pub(crate) mod repair;
pub(crate) mod verify;
