//! `lsmx db PATH get KEY`.

use std::ffi::OsStr;

use lsmx_bench::workload::record::to_hex;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// The key does not exist.
#[derive(Debug, thiserror::Error)]
#[error("there is no key {0:?}")]
struct NoSuchKey(String);

/// Prints the value, with `--hex` in hexadecimal, and a newline.
pub(super) fn run(arguments: &DbArgs, key: &OsStr) -> Result<(), Failure> {
    let bytes = super::typed(arguments, "key", key)?;
    let (_db, keyspace) = super::open_to_read(arguments)?;
    let Some(value) = keyspace.get(&bytes)? else {
        return Err(Failure::Run(Box::new(NoSuchKey(key.to_string_lossy().into_owned()))));
    };
    let mut line = if arguments.hex { to_hex(&value).into_bytes() } else { value.to_vec() };
    line.push(b'\n');
    output::stdout(&line)
}
