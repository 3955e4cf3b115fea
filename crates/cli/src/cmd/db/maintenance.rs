//! Implements `checkpoint`, `compact`, `drop-keyspace`, `rename-keyspace`, `clone-keyspace` and `reset-clock` of `lsmx db`.

use std::ffi::OsStr;
use std::path::Path;

use lsmx::{Db, KeyspaceOptions};
use lsmx_bench::report::text;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Creates a durable copy of the database.
pub(super) fn checkpoint(arguments: &DbArgs, target: &Path) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "checkpoint")?;
    let (db, _keyspace) = super::open(arguments)?;
    db.checkpoint(target)?;
    Ok(db.close(None)?)
}

/// Compacts a keyspace, or a range of its keys, and prints the table bytes before and after.
pub(super) fn compact(
    arguments: &DbArgs,
    from: Option<&OsStr>,
    to: Option<&OsStr>,
) -> Result<(), Failure> {
    let bounds = super::parse_bounds(arguments, from, to)?;
    let (db, keyspace) = super::open(arguments)?;
    db.flush()?;
    let before = keyspace.approximate_size::<&[u8]>(..)?;
    keyspace.compact_range(bounds)?;
    db.wait_idle()?;
    let after = keyspace.approximate_size::<&[u8]>(..)?;
    drop(keyspace);
    db.close(None)?;
    let (before, after) = (text::format_bytes(before), text::format_bytes(after));
    output::stdout(format!("{before} in tables before, {after} after\n").as_bytes())
}

pub(super) fn drop_keyspace(arguments: &DbArgs, name: &str) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "drop-keyspace")?;
    let (db, _keyspace) = super::open(arguments)?;
    db.drop_keyspace(name)?;
    Ok(db.close(None)?)
}

pub(super) fn rename_keyspace(arguments: &DbArgs, old: &str, new: &str) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "rename-keyspace")?;
    let (db, _keyspace) = super::open(arguments)?;
    db.rename_keyspace(old, new)?;
    Ok(db.close(None)?)
}

pub(super) fn clone_keyspace(arguments: &DbArgs, source: &str, new: &str) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "clone-keyspace")?;
    let (db, _keyspace) = super::open(arguments)?;
    let policy = db.open_keyspace(source, None)?.options().policy;
    db.clone_keyspace(source, new, KeyspaceOptions::default().policy(policy))?;
    Ok(db.close(None)?)
}

/// Sets the database clock to the clock of this host and prints the new time.
pub(super) fn reset_clock(arguments: &DbArgs) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "reset-clock")?;
    let options = super::options().create_if_missing(false).reset_clock(true);
    let db = Db::open(&arguments.path, options)?;
    let seconds = db.env().database_time_us() / 1_000_000;
    db.close(None)?;
    output::stdout(format!("the database clock is at {seconds} s since 1970\n").as_bytes())
}
