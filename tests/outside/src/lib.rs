//! A library's loans over lsmx: members, books and who has which, as a service would write it. It
//! compiles as long as everything that a user needs is exported, and `tests/` says whether it works.

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

/// The service's own error, with the engine's as a cause.
#[derive(Debug)]
pub enum Error {
    /// The store failed.
    Store(lsmx::Error),
    /// Somebody else has the book.
    Lent {
        /// Who has it.
        to: Slice,
    },
    /// Try again later: the store is behind.
    Busy,
    /// Nothing is written any more until somebody has looked after the disk.
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
            Error::Store(error) => write!(f, "the store failed: {error}"),
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

/// Keeps the last few notes of a book: an operator of our own.
#[derive(Debug)]
pub struct LastNotes;

const NOTES: usize = 3;

impl MergeOperator for LastNotes {
    fn name(&self) -> &str {
        "outside.last-notes"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let mut lines: Vec<&[u8]> = base.map_or(Vec::new(), |base| base.split(is_end).collect());
        for operand in operands {
            if operand.is_empty() {
                return Err(MergeError::new("a note says something"));
            }
            lines.extend(operand.split(is_end));
        }
        let from = lines.len().saturating_sub(NOTES);
        Ok(Some(lines.split_off(from).join(&b'\n')))
    }
}

fn is_end(byte: &u8) -> bool {
    *byte == b'\n'
}

/// Collects what the engine tells.
#[derive(Debug, Default)]
pub struct Diary(Mutex<Vec<String>>);

impl Diary {
    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl EventListener for Diary {
    fn on_event(&self, event: &Event) {
        let line = match event {
            Event::Flush(end) => format!("flush of {} entries in {}", end.entries, end.keyspace),
            Event::Compaction(end) => format!("compaction because of {}", end.job.reason),
            other => other.to_string(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

/// The service. Cheap to clone, shared by its threads.
#[derive(Clone, Debug)]
pub struct Library {
    db: Db,
    loans: Keyspace,
    notes: Keyspace,
    counts: Keyspace,
}

/// All books that a member has, as of one moment; owns what it needs, so it can be kept.
pub struct Loans {
    at: SeqNo,
    range: Range,
}

impl Loans {
    /// The number of the moment.
    pub fn at(&self) -> SeqNo {
        self.at
    }
}

impl Iterator for Loans {
    type Item = Result<Slice, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.range.next()?.map(|(key, _)| key).map_err(Error::from))
    }
}

/// The options of a keyspace, for `Db::keyspace`. Those of `loans` are the defaults of the database, too.
fn of_keyspace(name: &str) -> Result<KeyspaceOptions, lsmx::Error> {
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

/// Every option that a service may want to set.
pub fn options(diary: Arc<Diary>) -> Result<Options, lsmx::Error> {
    Ok(Options::default()
        .create_if_missing(true)
        .background(Background::Threads { workers: 2 })
        .memory_budget(16 << 20)
        .open_files_max(100)
        .background_io_rate(256 << 20)
        .wal(WalOptions { sync_every_us: 200_000, ..WalOptions::default() })
        .flush_idle_after(Duration::from_secs(60))
        .listener(diary)
        .keyspace_defaults(of_keyspace("loans")?))
}

impl Library {
    /// Opens the library, or founds it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Library, Error> {
        let db = Db::open(path, options)?;
        let keyspace = |name: &str| db.keyspace(name, of_keyspace(name)?);
        let (loans, notes, counts) = (keyspace("loans")?, keyspace("notes")?, keyspace("counts")?);
        Ok(Library { db, loans, notes, counts })
    }

    /// The database, for what is not the library's business.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Lends a book, unless somebody has it. On stable storage when it returns.
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
                Err(lsmx::Error::GuardRefused { .. } | lsmx::Error::GuardUnknown { .. }) => {
                    continue;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Takes everything back that a member has; returns how much that was.
    pub fn take_back(&self, member: &str) -> Result<usize, Error> {
        let mut batch = WriteBatch::new();
        for book in self.of_member(member) {
            let key = book?;
            batch.delete(&self.db.default_keyspace(), &key[member.len() + 1..]);
        }
        let count = batch.len();
        batch.delete_range(&self.loans, loan_key(member, "")..loan_key(member, "\u{10ffff}"));
        self.db.write(batch, Durability::Buffered)?;
        Ok(count)
    }

    /// The keys of a member's loans.
    pub fn of_member(&self, member: &str) -> Loans {
        let now = self.db.snapshot();
        Loans { at: now.seq(), range: now.prefix(&self.loans, loan_key(member, "")) }
    }

    /// Adds a note to a book.
    pub fn note(&self, book: &str, note: &str) -> Result<(), Error> {
        Ok(self.notes.merge(book, note)?)
    }

    /// The last notes of a book.
    pub fn notes(&self, book: &str) -> Result<Vec<String>, Error> {
        let notes = self.notes.get(book)?;
        let notes = notes.as_deref().map(String::from_utf8_lossy);
        Ok(notes.map_or(Vec::new(), |notes| notes.lines().map(str::to_owned).collect()))
    }

    /// How often a book was lent.
    pub fn lent(&self, book: &str) -> Result<u64, Error> {
        let count = self.counts.get(book)?;
        Ok(count.and_then(|count| count.first_chunk().copied()).map_or(0, u64::from_le_bytes))
    }

    /// Gives a member a number if it has none yet; returns the number.
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
