//! `lsmx db PATH explain KEY`.

use std::ffi::OsStr;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Looks up the key and prints each step.
pub(super) fn run(arguments: &DbArgs, key: &OsStr, json: bool) -> Result<(), Failure> {
    let key = super::typed(arguments, "key", key)?;
    let (_db, keyspace) = super::open_to_read(arguments)?;
    let explanation = keyspace.explain(&key)?;
    if json {
        return super::json(&explanation);
    }
    output::stdout(format!("{explanation}\n").as_bytes())
}
