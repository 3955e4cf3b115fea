//! `lsmx db PATH compact`.

use std::ffi::OsString;
use std::ops::Bound;

use lsmx_bench::report::text;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Compacts a keyspace, or a range of its keys, and prints the table bytes before and after.
pub(super) fn run(
    arguments: &DbArgs,
    from: Option<&OsString>,
    to: Option<&OsString>,
) -> Result<(), Failure> {
    let key = |flag, text: Option<&OsString>| {
        text.map(|text| super::typed(arguments, flag, text)).transpose()
    };
    let from = key("--from", from)?.map_or(Bound::Unbounded, Bound::Included);
    let to = key("--to", to)?.map_or(Bound::Unbounded, Bound::Excluded);
    let (db, keyspace) = super::open(arguments)?;
    db.flush()?;
    let before = keyspace.approximate_size::<&[u8]>(..)?;
    keyspace.compact_range((from, to))?;
    db.wait_idle()?;
    let after = keyspace.approximate_size::<&[u8]>(..)?;
    drop(keyspace);
    db.close(None)?;
    let (before, after) = (text::bytes(before), text::bytes(after));
    output::stdout(format!("{before} in tables before, {after} after\n").as_bytes())
}
