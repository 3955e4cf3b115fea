//! `lsmx db PATH import FILE`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use lsmx::{Db, Durability, Keyspace, WriteBatch};
use lsmx_bench::workload::record::{Format, ReadError, RecordReader};

use crate::args::{DbArgs, FileArgs};
use crate::failure::Failure;
use crate::output;

/// Maximum number of records of a batch.
const BATCH_RECORDS: usize = 1000;
/// Key and value bytes at which a batch with fewer records is written.
const BATCH_BYTES: usize = 1 << 20;

/// Puts the records in file order, in batches. Records before a malformed line stay in the database. All imported
/// records are durable.
pub(super) fn run(arguments: &DbArgs, file: &FileArgs) -> Result<(), Failure> {
    let format = file.format.unwrap_or_else(|| Format::of_file(&file.file));
    // The file is opened first, so that an unreadable file creates no database.
    let source = open(&file.file)?;
    let (db, keyspace) = super::open_or_create(arguments)?;
    let mut reader = RecordReader::new(source, format);
    let imported = import(&db, &keyspace, &mut reader, &file.file);
    // Imported records are synced also after an error.
    let synced = db.sync();
    let records = imported?;
    synced?;
    db.close(None)?;
    output::stdout(format!("{records} records imported\n").as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "a file of the user, no part of a database")]
fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let failed = |error| Failure::file("open", path.display().to_string(), error);
    Ok(Box::new(BufReader::new(File::open(path).map_err(failed)?)))
}

fn import(
    db: &Db,
    keyspace: &Keyspace,
    reader: &mut RecordReader<impl BufRead>,
    path: &Path,
) -> Result<u64, Failure> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut records = 0;
    loop {
        let mut batch = WriteBatch::new();
        let (mut batch_records, mut batch_bytes) = (0, 0);
        let mut end = Ok(false);
        while batch_records < BATCH_RECORDS && batch_bytes < BATCH_BYTES {
            end = reader.read(&mut key, &mut value);
            if !matches!(end, Ok(true)) {
                break;
            }
            batch.put(keyspace, &key, &value);
            batch_records += 1;
            batch_bytes += key.len() + value.len();
        }
        if batch_records > 0 {
            db.write(batch, Durability::Buffered)?;
            records += lsmx_bench::numbers::count(batch_records);
        }
        match end {
            Ok(true) => {}
            Ok(false) => return Ok(records),
            Err(ReadError::Io(error)) => {
                return Err(Failure::file("read", path.display().to_string(), error));
            }
            Err(ReadError::Malformed(line, source)) => {
                let path = path.to_owned();
                return Err(lsmx_bench::Error::Record { path, line, source }.into());
            }
        }
    }
}
