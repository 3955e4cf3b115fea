//! `lsmx db PATH scan`.

use std::ops::Bound;

use crate::args::{DbArgs, ScanArgs};
use crate::failure::Failure;
use crate::output;

/// Size of the output buffer in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Prints entries as lines in ascending or descending key order.
pub(super) fn run(arguments: &DbArgs, scan: &ScanArgs) -> Result<(), Failure> {
    let key = |flag, text: &Option<std::ffi::OsString>| {
        text.as_ref().map(|text| super::typed(arguments, flag, text)).transpose()
    };
    let (from, to, prefix) =
        (key("--from", &scan.from)?, key("--to", &scan.to)?, key("--prefix", &scan.prefix)?);
    let (_db, keyspace) = super::open_to_read(arguments)?;
    let entries = match prefix {
        Some(prefix) => keyspace.prefix(&prefix),
        None => keyspace.range((
            from.map_or(Bound::Unbounded, Bound::Included),
            to.map_or(Bound::Unbounded, Bound::Excluded),
        )),
    };
    let entries = match scan.limit {
        Some(limit) => entries.limit(limit),
        None => entries,
    };
    if scan.reverse { print(arguments, entries.rev()) } else { print(arguments, entries) }
}

fn print(
    arguments: &DbArgs,
    entries: impl Iterator<Item = lsmx::Result<(lsmx::Slice, lsmx::Slice)>>,
) -> Result<(), Failure> {
    let mut chunk = Vec::new();
    for entry in entries {
        match entry {
            Ok((key, value)) => super::show(arguments, &key, &value, &mut chunk),
            Err(error) => {
                // Entries before the error are printed.
                output::stdout(&chunk)?;
                return Err(error.into());
            }
        }
        if chunk.len() >= CHUNK_BYTES {
            output::stdout(&chunk)?;
            chunk.clear();
        }
    }
    output::stdout(&chunk)
}
