//! `lsmx db`: one file per verb.

mod checkpoint;
mod compact;
mod delete;
mod drop_keyspace;
mod dump;
mod explain;
mod export;
mod get;
mod import;
mod put;
mod repair;
mod reset_clock;
mod scan;
mod stats;
mod verify;

use std::ffi::OsStr;

use lsmx::{Db, Keyspace, KeyspaceOptions, Options};
use lsmx_bench::workload::record::{Format, encode, from_hex, to_hex};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::args::{DbArgs, Verb};
use crate::failure::Failure;
use crate::output;

/// Runs the verb.
pub(crate) fn run(arguments: &DbArgs) -> Result<(), Failure> {
    match &arguments.verb {
        Verb::Put { key, value } => put::run(arguments, key, value),
        Verb::Get { key } => get::run(arguments, key),
        Verb::Delete { key } => delete::run(arguments, key),
        Verb::Scan(scan) => scan::run(arguments, scan),
        Verb::Import(file) => import::run(arguments, file),
        Verb::Export(file) => export::run(arguments, file),
        Verb::Stats(stats) => stats::run(arguments, stats),
        Verb::Verify => verify::run(arguments),
        Verb::Repair(flags) => repair::run(arguments, flags),
        Verb::Explain { key, json } => explain::run(arguments, key, *json),
        Verb::Checkpoint { target } => checkpoint::run(arguments, target),
        Verb::Compact { from, to } => compact::run(arguments, from.as_ref(), to.as_ref()),
        Verb::Dump { files, all_entries, limit } => {
            dump::run(arguments, files, *all_entries, *limit)
        }
        Verb::ResetClock => reset_clock::run(arguments),
        Verb::DropKeyspace { name } => drop_keyspace::run(arguments, name),
    }
}

/// Returns options with all operand stores, so that any database can be opened.
fn options() -> Options {
    Options::default().operand_store(DeltaStoreFactory::new(DeltaOptions::default()))
}

/// Opens an existing database and an existing keyspace for writing.
fn open(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, options().create_if_missing(false))?;
    existing_keyspace(arguments, db)
}

/// Opens an existing database read-only.
fn open_to_read(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, options().read_only(true))?;
    existing_keyspace(arguments, db)
}

fn existing_keyspace(arguments: &DbArgs, db: Db) -> Result<(Db, Keyspace), Failure> {
    let keyspace = match &arguments.keyspace {
        None => db.default_keyspace(),
        Some(name) => db.open_keyspace(name, None)?,
    };
    Ok((db, keyspace))
}

/// Rejects `--keyspace` for a verb that works on the whole database.
fn whole_database(arguments: &DbArgs, verb: &str) -> Result<(), Failure> {
    match &arguments.keyspace {
        None => Ok(()),
        Some(_) => {
            let line = format!("--keyspace contradicts {verb}: it is about the whole database");
            Err(Failure::Usage(line))
        }
    }
}

/// Prints a value as JSON.
fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::file("write to", "standard output", error.into()))?;
    text.push('\n');
    output::stdout(text.as_bytes())
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

/// Returns the bytes of a key or value on the command line. With `--hex` they are in hexadecimal.
fn typed(arguments: &DbArgs, what: &str, text: &OsStr) -> Result<Vec<u8>, Failure> {
    if !arguments.hex {
        return Ok(text.as_encoded_bytes().to_vec());
    }
    let digits = text.to_string_lossy();
    from_hex(&digits).map_err(|error| Failure::Usage(format!("invalid {what} with --hex: {error}")))
}

/// Appends an entry as a line of text.
fn show(arguments: &DbArgs, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if arguments.hex {
        out.extend_from_slice(format!("{}\t{}\n", to_hex(key), to_hex(value)).as_bytes());
    } else {
        encode(Format::Tsv, key, value, out);
    }
}
