//! Example application: a lending library that stores loans in lsmx. The application uses only public items of lsmx, so
//! it compiles only if every item that an application needs is public. `tests/` checks its behaviour.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::compaction::{PolicyParameter, Preset};
use lsmx::env::Background;
use lsmx::merge_operator::Counter;
use lsmx::{
    Compression, Db, Durability, Event, EventListener, FilterLastRun, Keyspace, KeyspaceOptions,
    MergeError, MergeOperator, MergeResult, Options, PolicySpec, Range, SeqNo, Slice, Snapshot,
    Update, WriteBatch, WriteOptions,
};

/// Error of the lending library.
#[derive(Debug)]
pub enum Error {
    /// The database failed.
    Store(lsmx::Error),
    /// A member already has the book.
    Lent {
        /// Name of the member who has the book.
        to: Slice,
    },
    /// The write would block. The caller may retry it later.
    Busy,
    /// A disk error occurred, or the database is read-only because of a disk error.
    Broken(String),
}

impl From<lsmx::Error> for Error {
    fn from(error: lsmx::Error) -> Error {
        match error {
            lsmx::Error::WouldWait { .. } | lsmx::Error::Deadline { .. } => Error::Busy,
            lsmx::Error::ReadOnly { cause } => Error::Broken(cause.to_string()),
            lsmx::Error::Io { action, path, source } => {
                Error::Broken(format!("{action} {}: {source}", path.display()))
            }
            other => Error::Store(other),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => write!(f, "the database failed: {error}"),
            Error::Lent { to } => write!(f, "{} has it", to.escape_ascii()),
            Error::Busy => f.write_str("later"),
            Error::Broken(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// Merge operator that keeps the last [`NOTES`] lines.
#[derive(Debug)]
pub struct LastNotes;

const NOTES: usize = 3;

impl MergeOperator for LastNotes {
    fn name(&self) -> &str {
        "outside.last-notes"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let is_newline = |byte: &u8| *byte == b'\n';
        let mut lines: Vec<&[u8]> =
            base.map_or(Vec::new(), |base| base.split(is_newline).collect());
        for operand in operands {
            if operand.is_empty() {
                return Err(MergeError::new("a note is empty"));
            }
            lines.extend(operand.split(is_newline));
        }
        let from = lines.len().saturating_sub(NOTES);
        Ok(Some(lines.split_off(from).join(&b'\n')))
    }
}

/// Event listener that stores one line of text for each event.
#[derive(Debug, Default)]
pub struct EventLines(Mutex<Vec<String>>);

impl EventLines {
    /// Returns all lines.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl EventListener for EventLines {
    fn on_event(&self, event: &Event) {
        let line = match event {
            Event::Flush(end) => format!("flush of {} entries in {}", end.entries, end.keyspace),
            Event::Compaction(end) => format!("compaction because of {}", end.job.reason),
            other => other.to_string(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

/// The lending library. Clones share the database.
#[derive(Clone, Debug)]
pub struct Library {
    db: Db,
    loans: Keyspace,
    notes: Keyspace,
    counts: Keyspace,
}

/// Iterator over the loans of a member in a snapshot. The type has no lifetime parameter.
pub struct Loans {
    seq: SeqNo,
    range: Range,
}

impl Loans {
    /// Returns the sequence number of the snapshot.
    pub fn seq(&self) -> SeqNo {
        self.seq
    }
}

impl Iterator for Loans {
    type Item = Result<Slice, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.range.next()?.map(|(key, _)| key).map_err(Error::from))
    }
}

/// Returns the options of a keyspace. The options of `loans` are also the keyspace defaults of the database.
fn keyspace_options(name: &str) -> Result<KeyspaceOptions, lsmx::Error> {
    let small = KeyspaceOptions::default()
        .memtable_bytes(64 << 10)
        .table_bytes(64 << 10)
        .block_bytes(1024)
        .restart_interval(8)
        .compression(vec![Compression::None, Compression::Lz4])
        .filter_last_run(FilterLastRun::On);
    let lazily = PolicySpec::new(Preset::Tiering).with_parameter(PolicyParameter::SizeRatio, 4)?;
    Ok(match name {
        "notes" => small.merge_operator(LastNotes).policy(lazily),
        "counts" => small.merge_operator(Counter),
        _ => small,
    })
}

/// Returns database options. Sets each option that an application may need.
pub fn options(events: Arc<EventLines>) -> Result<Options, lsmx::Error> {
    Ok(Options::default()
        .create_if_missing(true)
        .background(Background::Threads { workers: 2 })
        .memory_budget(16 << 20)
        .open_files_max(100)
        .background_io_rate(256 << 20)
        .wal(WalOptions { sync_every_us: 200_000, ..WalOptions::default() })
        .flush_idle_after(Duration::from_secs(60))
        .listener(events)
        .keyspace_defaults(keyspace_options("loans")?))
}

impl Library {
    /// Opens the library, or creates it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Library, Error> {
        let db = Db::open(path, options)?;
        let keyspace = |name: &str| db.keyspace(name, keyspace_options(name)?);
        let (loans, notes, counts) = (keyspace("loans")?, keyspace("notes")?, keyspace("counts")?);
        Ok(Library { db, loans, notes, counts })
    }

    /// Returns the database.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Lends a book to a member and syncs the WAL. Fails if a member already has the book.
    pub fn lend(&self, book: &str, member: &str) -> Result<(), Error> {
        loop {
            let now: Snapshot = self.db.snapshot();
            let held = now.get(&self.db.default_keyspace(), book)?;
            if let Some(to) = held {
                return Err(Error::Lent { to });
            }
            let mut batch = WriteBatch::new();
            batch.guard(&self.db.default_keyspace(), book, now.seq());
            batch.put(&self.db.default_keyspace(), book, member);
            batch.put(&self.loans, loan_key(member, book), "");
            batch.merge(&self.counts, book, 1u64.to_le_bytes());
            let options = WriteOptions {
                durability: Durability::Sync,
                deadline: Some(Duration::from_secs(10)),
                ..WriteOptions::default()
            };
            match self.db.write(batch, options) {
                Err(lsmx::Error::Conflict { .. } | lsmx::Error::ConflictUnknown { .. }) => {
                    continue;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Takes back all books of a member and returns their number.
    pub fn return_all(&self, member: &str) -> Result<usize, Error> {
        let mut batch = WriteBatch::new();
        for book in self.loans_of(member) {
            let key = book?;
            batch.delete(&self.db.default_keyspace(), &key[member.len() + 1..]);
        }
        let count = batch.len();
        batch.delete_range(&self.loans, loan_key(member, "")..loan_key(member, "\u{10ffff}"));
        self.db.write(batch, Durability::Buffered)?;
        Ok(count)
    }

    /// Returns the loans of a member.
    pub fn loans_of(&self, member: &str) -> Loans {
        let now = self.db.snapshot();
        Loans { seq: now.seq(), range: now.prefix(&self.loans, loan_key(member, "")) }
    }

    /// Adds a note to a book.
    pub fn note(&self, book: &str, note: &str) -> Result<(), Error> {
        Ok(self.notes.merge(book, note)?)
    }

    /// Returns the last notes of a book.
    pub fn notes(&self, book: &str) -> Result<Vec<String>, Error> {
        let notes = self.notes.get(book)?;
        let notes = notes.as_deref().map(String::from_utf8_lossy);
        Ok(notes.map_or(Vec::new(), |notes| notes.lines().map(str::to_owned).collect()))
    }

    /// Returns the number of times that a book was lent.
    pub fn lent(&self, book: &str) -> Result<u64, Error> {
        let count = self.counts.get(book)?;
        Ok(count.and_then(|count| count.first_chunk().copied()).map_or(0, u64::from_le_bytes))
    }

    /// Returns the membership number of a member. Assigns `free` to a member without a number.
    pub fn number_of(&self, member: &str, free: u64) -> Result<u64, Error> {
        let key = format!("\0member {member}");
        let numbered = self.db.default_keyspace().update_fetch(key, |number| match number {
            Some(_) => Update::Keep,
            None => free.to_le_bytes().to_vec().into(),
        })?;
        let number = numbered.as_deref().and_then(<[u8]>::first_chunk);
        Ok(number.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
}

fn loan_key(member: &str, book: &str) -> String {
    format!("{member}/{book}")
}
