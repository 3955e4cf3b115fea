//! `lsmx db PATH put KEY VALUE`.

use std::ffi::OsStr;

use lsmx::Durability;

use crate::args::DbArgs;
use crate::failure::Failure;

/// Puts the value durably.
pub(super) fn run(arguments: &DbArgs, key: &OsStr, value: &OsStr) -> Result<(), Failure> {
    let key = super::typed(arguments, "key", key)?;
    let value = super::typed(arguments, "value", value)?;
    let (db, keyspace) = super::open_or_create(arguments)?;
    keyspace.with_write_options(Durability::Sync).put(&key, &value)?;
    db.close(None)?;
    Ok(())
}
