//! `lsmx db PATH drop-keyspace NAME`.

use crate::args::DbArgs;
use crate::failure::Failure;

/// Drops the keyspace durably.
pub(super) fn run(arguments: &DbArgs, name: &str) -> Result<(), Failure> {
    super::whole_database(arguments, "drop-keyspace")?;
    let (db, _keyspace) = super::open(arguments)?;
    db.drop_keyspace(name)?;
    db.close(None)?;
    Ok(())
}
