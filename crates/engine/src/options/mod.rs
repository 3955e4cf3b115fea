//! Options of a database, of keyspaces, and of single reads and writes.

pub(crate) mod db;
pub(crate) mod filter_bits;
pub(crate) mod keyspace;
pub(crate) mod memory_plan;
pub(crate) mod policy;
pub(crate) mod read;
pub(crate) mod stored;
pub(crate) mod value_separation;
pub(crate) mod write;

use crate::error::{Error, Result};

/// Maximum length of a stored name, such as that of a merge operator, in bytes.
const NAME_BYTES_MAX: usize = 255;

fn invalid_option(name: &'static str, value: impl ToString, must: &'static str) -> Error {
    Error::InvalidOption { name, value: value.to_string(), must }
}

/// Checks the length of the name of a user-defined type.
fn check_type_name(option: &'static str, name: Option<&str>) -> Result<()> {
    match name {
        Some(name) if !(1..=NAME_BYTES_MAX).contains(&name.len()) => {
            let value = format!("named with {} bytes", name.len());
            Err(invalid_option(option, value, "named with 1 to 255 bytes"))
        }
        _ => Ok(()),
    }
}
