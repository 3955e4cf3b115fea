//! Implements the command `lsmx db`.

mod backup;
mod dump;
mod entries;
mod maintenance;
mod observed_state;
mod records;
mod repair;
mod stats;
mod top;
mod verify;

use std::ffi::OsStr;
use std::ops::Bound;

use lsmx::{Db, Keyspace, KeyspaceOptions, Options};
use lsmx_bench::workload::record::from_hex;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::args::{DbArgs, Verb};
use crate::failure::Failure;
use crate::output;

/// Inclusive lower bound and exclusive upper bound of a key range.
type KeyBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

pub(crate) fn run(arguments: &DbArgs) -> Result<(), Failure> {
    if arguments.follower && !can_use_follower(&arguments.verb) {
        let line =
            "--follower works only with get, scan, export, explain and stats without --watch";
        return Err(Failure::Usage(line.to_owned()));
    }
    if arguments.hex && !has_keys(&arguments.verb) {
        let line = "--hex works only with put, get, delete, scan, import, export, explain, compact, dump and \
                    verify --no-trace-of";
        return Err(Failure::Usage(line.to_owned()));
    }
    match &arguments.verb {
        Verb::Put { key, value } => entries::put(arguments, key, value),
        Verb::Get { key } => entries::get(arguments, key),
        Verb::Delete { key } => entries::delete(arguments, key),
        Verb::Scan(scan) => entries::scan(arguments, scan),
        Verb::Import(import) => records::import(arguments, import),
        Verb::Export(file) => records::export(arguments, file),
        Verb::Stats(stats) => stats::run(arguments, stats),
        Verb::Top(top) => top::run(arguments, top),
        Verb::Verify(flags) => verify::run(arguments, flags),
        Verb::Repair(flags) => repair::run(arguments, flags),
        Verb::Explain { key, json } => entries::explain(arguments, key, *json),
        Verb::Checkpoint { target } => maintenance::checkpoint(arguments, target),
        Verb::Backup(backup) => backup::create(arguments, backup),
        Verb::Backups(backups) => backup::list(arguments, backups),
        Verb::Restore(restore) => backup::restore(arguments, restore),
        Verb::Compact { from, to } => {
            maintenance::compact(arguments, from.as_deref(), to.as_deref())
        }
        Verb::Dump { files, all_entries, limit } => {
            dump::run(arguments, files, *all_entries, *limit)
        }
        Verb::ResetClock => maintenance::reset_clock(arguments),
        Verb::DropKeyspace { name } => maintenance::drop_keyspace(arguments, name),
        Verb::RenameKeyspace { old, new } => maintenance::rename_keyspace(arguments, old, new),
        Verb::CloneKeyspace { source, new } => maintenance::clone_keyspace(arguments, source, new),
    }
}

/// Returns whether a subcommand reads the entries or the metrics of an open database.
fn can_use_follower(verb: &Verb) -> bool {
    match verb {
        Verb::Get { .. } | Verb::Scan(_) | Verb::Export(_) | Verb::Explain { .. } => true,
        Verb::Stats(stats) => stats.watch.is_none(),
        _ => false,
    }
}

/// Returns whether a subcommand reads or prints keys or values.
fn has_keys(verb: &Verb) -> bool {
    match verb {
        Verb::Put { .. }
        | Verb::Get { .. }
        | Verb::Delete { .. }
        | Verb::Scan(_)
        | Verb::Import(_)
        | Verb::Export(_)
        | Verb::Explain { .. }
        | Verb::Compact { .. }
        | Verb::Dump { .. } => true,
        Verb::Verify(flags) => flags.no_trace_of.is_some(),
        _ => false,
    }
}

/// Returns options that include the operand store of `lsmx-delta`, so that databases with operand stores can be opened.
fn options() -> Options {
    Options::default().operand_store(DeltaStoreFactory::new(DeltaOptions::default()))
}

/// Opens an existing database and an existing keyspace for writing.
fn open(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, options().create_if_missing(false))?;
    open_keyspace(arguments, db)
}

/// Opens an existing database and an existing keyspace read-only. With `--follower`, another process may have the database
/// open.
fn open_read_only(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = if arguments.follower {
        Db::open_follower(&arguments.path, options())?.view()
    } else {
        Db::open(&arguments.path, options().read_only(true)).map_err(|error| match error {
            lsmx::Error::Locked { .. } => Failure::DatabaseLocked(error),
            error => error.into(),
        })?
    };
    open_keyspace(arguments, db)
}

fn open_keyspace(arguments: &DbArgs, db: Db) -> Result<(Db, Keyspace), Failure> {
    let keyspace = match &arguments.keyspace {
        None => db.default_keyspace(),
        Some(name) => db.open_keyspace(name, None)?,
    };
    Ok((db, keyspace))
}

/// Opens the database and the keyspace. Creates them if they do not exist.
fn open_or_create(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, options().create_if_missing(true))?;
    let keyspace = match &arguments.keyspace {
        None => db.default_keyspace(),
        Some(name) => db.keyspace(name, KeyspaceOptions::default())?,
    };
    Ok((db, keyspace))
}

/// Returns an error if `--keyspace` is given to a subcommand that works on the whole database.
fn reject_keyspace(arguments: &DbArgs, verb: &str) -> Result<(), Failure> {
    match &arguments.keyspace {
        None => Ok(()),
        Some(_) => {
            let line = format!("--keyspace contradicts {verb}, which works on the whole database");
            Err(Failure::Usage(line))
        }
    }
}

fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::stdout(error.into()))?;
    output::stdout(format!("{text}\n").as_bytes())
}

/// Converts a key or value argument to bytes. With `--hex`, the argument is hexadecimal.
fn parse_bytes(arguments: &DbArgs, what: &str, text: &OsStr) -> Result<Vec<u8>, Failure> {
    if !arguments.hex {
        return Ok(text.as_encoded_bytes().to_vec());
    }
    let digits = text.to_string_lossy();
    from_hex(&digits).map_err(|error| Failure::Usage(format!("invalid {what} with --hex: {error}")))
}

/// Returns the key range between `--from` and `--to`.
fn parse_bounds(
    arguments: &DbArgs,
    from: Option<&OsStr>,
    to: Option<&OsStr>,
) -> Result<KeyBounds, Failure> {
    let key = |flag, text: Option<&OsStr>| {
        text.map(|text| parse_bytes(arguments, flag, text)).transpose()
    };
    let (from, to) = (key("--from", from)?, key("--to", to)?);
    Ok((
        from.map_or(Bound::Unbounded, Bound::Included),
        to.map_or(Bound::Unbounded, Bound::Excluded),
    ))
}
