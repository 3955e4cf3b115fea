//! One file per command.

pub(crate) mod db;
pub(crate) mod explore;
