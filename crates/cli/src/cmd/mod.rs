//! One file per command.

pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod db;
pub(crate) mod explore;
pub(crate) mod iocost;
pub(crate) mod simulate;
