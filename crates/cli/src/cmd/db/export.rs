//! `lsmx db PATH export FILE`.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use lsmx::Keyspace;
use lsmx_bench::numbers;
use lsmx_bench::workload::record::{Format, encode};

use crate::args::{DbArgs, FileArgs};
use crate::failure::Failure;
use crate::output;

/// Size of the output buffer in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Writes all entries in key order. After an error the file still ends with a whole record.
pub(super) fn run(arguments: &DbArgs, file: &FileArgs) -> Result<(), Failure> {
    let format = file.format.unwrap_or_else(|| Format::of_file(&file.file));
    // The database is opened first, so that a failed open creates no file.
    let (_db, keyspace) = super::open_to_read(arguments)?;
    if file.file == Path::new("-") {
        return export(&keyspace, format, &mut |chunk| output::stdout(chunk)).map(|_| ());
    }
    let records = to_file(&keyspace, format, &file.file)?;
    output::stdout(format!("{records} records exported\n").as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "a file of the user, no part of a database")]
fn to_file(keyspace: &Keyspace, format: Format, path: &Path) -> Result<u64, Failure> {
    let failed = |action| move |error| Failure::file(action, path.display().to_string(), error);
    let mut file = File::create(path).map_err(failed("create"))?;
    let mut whole_bytes = 0;
    let records = export(keyspace, format, &mut |chunk| {
        let written = file.write_all(chunk);
        match written {
            Ok(()) => whole_bytes += numbers::count(chunk.len()),
            // A part of the chunk may be in the file, with a cut record at its end.
            Err(_) => shorten(&file, whole_bytes),
        }
        written.map_err(failed("write"))
    })?;
    file.sync_all().map_err(failed("sync"))?;
    Ok(records)
}

/// Truncates the file. A pipe or a device cannot be truncated.
fn shorten(file: &File, bytes: u64) {
    let _: io::Result<()> = file.set_len(bytes);
}

/// Passes all entries to `write` in chunks of whole records, also the entries before an error.
fn export(
    keyspace: &Keyspace,
    format: Format,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut chunk = Vec::new();
    let mut records = 0;
    for entry in keyspace.iter() {
        match entry {
            Ok((key, value)) => encode(format, &key, &value, &mut chunk),
            Err(error) => {
                write(&chunk)?;
                return Err(error.into());
            }
        }
        records += 1;
        if chunk.len() >= CHUNK_BYTES {
            write(&chunk)?;
            chunk.clear();
        }
    }
    write(&chunk)?;
    Ok(records)
}
