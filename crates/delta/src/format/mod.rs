//! Byte layouts of bucket files and logs. The modules do no I/O.
//!
//! A file consists of a [`header`] and [`frame`]s. A frame contains [`record`]s, a page [`index`], a filter or an entry
//! of the [`log`].

pub mod frame;
pub mod header;
pub mod index;
pub mod log;
pub mod record;

use lsmx_base::malformed::Malformed;

/// Returns the error for a field with an invalid value.
pub fn invalid_field(what: &'static str, found: u64, expected: &'static str) -> Malformed {
    Malformed::Field { what, found, expected }
}
