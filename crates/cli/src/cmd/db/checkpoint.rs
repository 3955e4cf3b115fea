//! `lsmx db PATH checkpoint TARGET`.

use std::path::Path;

use crate::args::DbArgs;
use crate::failure::Failure;

/// Creates a durable copy of the database.
pub(super) fn run(arguments: &DbArgs, target: &Path) -> Result<(), Failure> {
    super::whole_database(arguments, "checkpoint")?;
    let (db, _keyspace) = super::open(arguments)?;
    db.checkpoint(target)?;
    db.close(None)?;
    Ok(())
}
