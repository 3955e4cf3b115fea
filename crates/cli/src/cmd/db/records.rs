//! Implements `import` and `export` of `lsmx db`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use lsmx::ingest::{BulkLoadOptions, BulkLoadPhase, BulkLoadProgress};
use lsmx::{Db, Durability, Keyspace, WriteBatch};
use lsmx_bench::experiment::Progress;
use lsmx_bench::numbers::to_u64;
use lsmx_bench::report::file::OutputFile;
use lsmx_bench::workload::record::{ReadError, RecordFormat, RecordReader, encode_record};

use crate::args::{DbArgs, FileArgs, ImportArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

/// Maximum number of records in one write batch of an import.
const BATCH_RECORDS: usize = 1000;
/// An import writes a batch as soon as its keys and values have this total size in bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Size of the output buffer of an export in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Memory for sorting the records of a bulk load in bytes, if no flag sets it.
const SORT_MEMORY_BYTES_DEFAULT: u64 = 64 << 20;

/// Imports the records of a file.
pub(super) fn import(arguments: &DbArgs, import: &ImportArgs) -> Result<(), Failure> {
    if import.bulk {
        import_bulk(arguments, import)
    } else {
        import_batches(arguments, &import.file)
    }
}

/// Returns the format of the file.
fn file_format(arguments: &DbArgs, file: &FileArgs) -> Result<RecordFormat, Failure> {
    match file.format.unwrap_or_else(|| RecordFormat::of_file(&file.file)) {
        RecordFormat::Jsonl if arguments.hex => {
            let why = "its fields key_hex and value_hex are hexadecimal without the flag";
            Err(Failure::Usage(format!("--hex contradicts the format jsonl: {why}")))
        }
        RecordFormat::Tsv if arguments.hex => Ok(RecordFormat::HexTsv),
        format => Ok(format),
    }
}

/// Loads the records as tables. If a line is malformed, no record is loaded.
fn import_bulk(arguments: &DbArgs, import: &ImportArgs) -> Result<(), Failure> {
    let path = &import.file.file;
    let format = file_format(arguments, &import.file)?;
    // Opens the file before the database, so that an unreadable file creates no database.
    let source = open(path)?;
    let (db, keyspace) = super::open_or_create(arguments)?;
    let mut bar = LoadBar::new();
    let mut options = BulkLoadOptions::default().progress(|progress| bar.show(progress));
    if !import.sorted {
        let bytes = import.sort_memory.unwrap_or(SORT_MEMORY_BYTES_DEFAULT);
        options = options.sort_memory_bytes(bytes);
    }
    let mut loader = keyspace.bulk_loader(options)?;
    let mut reader = RecordReader::new(source, format);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut records = 0;
    while reader.read(&mut key, &mut value).map_err(|error| read_failure(error, path))? {
        loader.put(&key, &value)?;
        records += 1;
    }
    let loaded = loader.finish()?;
    bar.end();
    db.close(None)?;
    let (entries, tables) = (loaded.entries, loaded.files);
    output::stdout(
        format!("{records} records imported: {entries} keys in {tables} tables\n").as_bytes(),
    )
}

/// Progress bar of a bulk load.
struct LoadBar {
    bar: Bar,
    phase: Option<BulkLoadPhase>,
    /// Number of entries that the bar shows.
    shown: u64,
}

impl LoadBar {
    fn new() -> LoadBar {
        LoadBar { bar: Bar::new(), phase: None, shown: 0 }
    }

    fn show(&mut self, progress: &BulkLoadProgress) {
        let (what, done, total) = match progress.phase {
            // The number of records is unknown.
            BulkLoadPhase::Input => ("read records", progress.entries, 0),
            BulkLoadPhase::Merge => ("merge", progress.written_entries, progress.entries),
            _ => ("add tables", 0, 0),
        };
        if self.phase != Some(progress.phase) {
            self.end();
            self.bar.begin_phase(what, total);
            (self.phase, self.shown) = (Some(progress.phase), 0);
        }
        self.bar.advance(done.saturating_sub(self.shown));
        self.shown = done;
    }

    fn end(&mut self) {
        if self.phase.take().is_some() {
            self.bar.end_phase();
        }
    }
}

/// Returns the failure of reading a record.
fn read_failure(error: ReadError, path: &Path) -> Failure {
    match error {
        ReadError::Io(error) => Failure::file("read", path.display().to_string(), error),
        ReadError::Malformed(line, source) => {
            let path = path.to_owned();
            lsmx_bench::Error::Record { path, line, source }.into()
        }
    }
}

/// Puts the records in batches, in file order, and syncs the WAL. If a line is malformed, the records before this line
/// stay in the database.
fn import_batches(arguments: &DbArgs, file: &FileArgs) -> Result<(), Failure> {
    let format = file_format(arguments, file)?;
    // Opens the file before the database, so that an unreadable file creates no database.
    let source = open(&file.file)?;
    let (db, keyspace) = super::open_or_create(arguments)?;
    let imported = put_records(&db, &keyspace, &mut RecordReader::new(source, format), &file.file);
    // Syncs the imported records even if the import failed.
    let synced = db.sync();
    let records = imported?;
    synced?;
    db.close(None)?;
    output::stdout(format!("{records} records imported\n").as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "the file of the user is not part of a database")]
fn open(path: &Path) -> Result<Box<dyn BufRead>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let failed = |error| Failure::file("open", path.display().to_string(), error);
    Ok(Box::new(BufReader::new(File::open(path).map_err(failed)?)))
}

fn put_records(
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
            records += to_u64(batch_records);
        }
        match end {
            Ok(true) => {}
            Ok(false) => return Ok(records),
            Err(error) => return Err(read_failure(error, path)),
        }
    }
}

/// Writes all entries in key order. After an error, a file that is replaced keeps its old content, and a regular file
/// that is written in place ends with a complete record; see [`OutputFile`]. Standard output and pipes end with a
/// complete record if the database cannot be read.
pub(super) fn export(arguments: &DbArgs, file: &FileArgs) -> Result<(), Failure> {
    let format = file_format(arguments, file)?;
    // Opens the database before the file, so that a failed open creates no file.
    let (_db, keyspace) = super::open_read_only(arguments)?;
    if file.file == Path::new("-") {
        return encode_entries(&keyspace, format, &mut |chunk| output::stream(chunk)).map(|_| ());
    }
    let records = export_to_file(&keyspace, format, &file.file)?;
    output::stdout(format!("{records} records exported\n").as_bytes())
}

fn export_to_file(keyspace: &Keyspace, format: RecordFormat, path: &Path) -> Result<u64, Failure> {
    let mut output = OutputFile::create(path)?;
    if let Some(temporary) = output.temporary_path().map(Path::to_owned) {
        interrupt::on_interrupt(move || remove_temporary_file(&temporary))?;
    }
    let records = encode_entries(keyspace, format, &mut |chunk| Ok(output.append(chunk)?))?;
    output.finish()?;
    Ok(records)
}

#[expect(clippy::disallowed_methods, reason = "the file of the user is not part of a database")]
fn remove_temporary_file(path: &Path) {
    // The process ends, so an error is ignored.
    let _ = fs::remove_file(path);
}

/// Passes all entries to `write` in chunks of complete records and returns the number of entries. If the iterator
/// fails, first passes the entries before the error.
fn encode_entries(
    keyspace: &Keyspace,
    format: RecordFormat,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut chunk = Vec::new();
    let mut records = 0;
    for entry in keyspace.iter() {
        match entry {
            Ok((key, value)) => encode_record(format, &key, &value, &mut chunk),
            Err(error) => {
                // The error of the iterator is returned even if the output is closed.
                let _ = write(&chunk);
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
