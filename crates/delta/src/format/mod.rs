//! Bytes of both kinds of files. Nothing here does I/O.
//!
//! A file is a [`header`] and [`frame`]s; a frame holds [`record`]s, an [`index`], a filter, or an entry of
//! the [`log`].

pub(crate) mod frame;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod record;
