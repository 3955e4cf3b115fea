//! `lsmx db`: one file per verb.

mod delete;
mod export;
mod get;
mod import;
mod put;
mod scan;
mod stats;
mod verify;

use std::ffi::OsStr;

use lsmx::{Db, Keyspace, KeyspaceOptions, Options};
use lsmx_bench::workload::record::{Format, encode, from_hex, to_hex};

use crate::args::{DbArgs, Verb};
use crate::failure::Failure;

/// Runs the verb.
pub(crate) fn run(arguments: &DbArgs) -> Result<(), Failure> {
    match &arguments.verb {
        Verb::Put { key, value } => put::run(arguments, key, value),
        Verb::Get { key } => get::run(arguments, key),
        Verb::Delete { key } => delete::run(arguments, key),
        Verb::Scan(scan) => scan::run(arguments, scan),
        Verb::Import(file) => import::run(arguments, file),
        Verb::Export(file) => export::run(arguments, file),
        Verb::Stats { json } => stats::run(arguments, *json),
        Verb::Verify => verify::run(arguments),
    }
}

/// Opens the database for a verb that only works on one that is there, keyspace included.
fn open(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, Options::default().create_if_missing(false))?;
    let keyspace = match &arguments.keyspace {
        None => db.default_keyspace(),
        Some(name) => db.existing_keyspace(name)?,
    };
    Ok((db, keyspace))
}

/// Opens the database for a verb that makes what is not there.
fn open_or_create(arguments: &DbArgs) -> Result<(Db, Keyspace), Failure> {
    let db = Db::open(&arguments.path, Options::default().create_if_missing(true))?;
    let keyspace = match &arguments.keyspace {
        None => db.default_keyspace(),
        Some(name) => db.keyspace(name, KeyspaceOptions::default())?,
    };
    Ok((db, keyspace))
}

/// The bytes of a key or value as typed.
fn typed(arguments: &DbArgs, what: &str, text: &OsStr) -> Result<Vec<u8>, Failure> {
    if !arguments.hex {
        return Ok(text.as_encoded_bytes().to_vec());
    }
    let digits = text.to_string_lossy();
    from_hex(&digits).map_err(|error| Failure::Usage(format!("invalid {what} with --hex: {error}")))
}

/// Appends an entry as a line that shows it.
fn show(arguments: &DbArgs, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if arguments.hex {
        out.extend_from_slice(format!("{}\t{}\n", to_hex(key), to_hex(value)).as_bytes());
    } else {
        encode(Format::Tsv, key, value, out);
    }
}
