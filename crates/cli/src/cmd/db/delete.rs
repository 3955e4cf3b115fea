//! `lsmx db PATH delete KEY`.

use std::ffi::OsStr;

use lsmx::Durability;

use crate::args::DbArgs;
use crate::failure::Failure;

/// Deletes the key durably.
pub(super) fn run(arguments: &DbArgs, key: &OsStr) -> Result<(), Failure> {
    let key = super::typed(arguments, "key", key)?;
    let (db, keyspace) = super::open(arguments)?;
    keyspace.with_write_options(Durability::Sync).delete(&key)?;
    db.close(None)?;
    Ok(())
}
