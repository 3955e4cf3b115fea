//! Implements `put`, `get`, `delete`, `explain` and `scan` of `lsmx db`.

use std::ffi::OsStr;

use lsmx::Durability;
use lsmx_bench::workload::record::{RecordFormat, encode_record, to_hex};

use crate::args::{DbArgs, ScanArgs};
use crate::failure::Failure;
use crate::output;

/// Size of the output buffer of a scan in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Puts the value and syncs the WAL.
pub(super) fn put(arguments: &DbArgs, key: &OsStr, value: &OsStr) -> Result<(), Failure> {
    let key = super::parse_bytes(arguments, "key", key)?;
    let value = super::parse_bytes(arguments, "value", value)?;
    let (db, keyspace) = super::open_or_create(arguments)?;
    keyspace.with_write_options(Durability::Sync).put(&key, &value)?;
    Ok(db.close(None)?)
}

/// Prints the value and a newline. With `--hex`, prints the value in hexadecimal.
pub(super) fn get(arguments: &DbArgs, key: &OsStr) -> Result<(), Failure> {
    let bytes = super::parse_bytes(arguments, "key", key)?;
    let (_db, keyspace) = super::open_read_only(arguments)?;
    let Some(value) = keyspace.get(&bytes)? else {
        return Err(Failure::Run(format!("there is no key {:?}", key.to_string_lossy()).into()));
    };
    let mut line = if arguments.hex { to_hex(&value).into_bytes() } else { value.to_vec() };
    line.push(b'\n');
    output::stdout(&line)
}

/// Deletes the key and syncs the WAL.
pub(super) fn delete(arguments: &DbArgs, key: &OsStr) -> Result<(), Failure> {
    let key = super::parse_bytes(arguments, "key", key)?;
    let (db, keyspace) = super::open(arguments)?;
    keyspace.with_write_options(Durability::Sync).delete(&key)?;
    Ok(db.close(None)?)
}

/// Looks up the key and prints each step of the lookup.
pub(super) fn explain(arguments: &DbArgs, key: &OsStr, json: bool) -> Result<(), Failure> {
    let key = super::parse_bytes(arguments, "key", key)?;
    let (_db, keyspace) = super::open_read_only(arguments)?;
    let explanation = keyspace.explain(&key)?;
    if json {
        return super::print_json(&explanation);
    }
    output::stdout(format!("{explanation}\n").as_bytes())
}

/// Prints one line per entry, in ascending or descending key order.
pub(super) fn scan(arguments: &DbArgs, scan: &ScanArgs) -> Result<(), Failure> {
    let bounds = super::parse_bounds(arguments, scan.from.as_deref(), scan.to.as_deref())?;
    let prefix = scan.prefix.as_deref();
    let prefix = prefix.map(|text| super::parse_bytes(arguments, "--prefix", text)).transpose()?;
    let (_db, keyspace) = super::open_read_only(arguments)?;
    let mut entries = match prefix {
        Some(prefix) => keyspace.prefix(&prefix),
        None => keyspace.range(bounds),
    };
    if let Some(limit) = scan.limit {
        entries = entries.limit(limit);
    }
    if scan.reverse { print(arguments, entries.rev()) } else { print(arguments, entries) }
}

/// Prints entries. If the iterator fails, first prints the entries before the error.
fn print(
    arguments: &DbArgs,
    entries: impl Iterator<Item = lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
) -> Result<(), Failure> {
    let format = if arguments.hex { RecordFormat::HexTsv } else { RecordFormat::Tsv };
    let mut chunk = Vec::new();
    for entry in entries {
        match entry {
            Ok((key, value)) => encode_record(format, &key, &value, &mut chunk),
            Err(error) => {
                // The error of the iterator is returned even if the output is closed.
                let _ = output::stdout(&chunk);
                return Err(error.into());
            }
        }
        if chunk.len() >= CHUNK_BYTES {
            output::stream(&chunk)?;
            chunk.clear();
        }
    }
    output::stdout(&chunk)
}
