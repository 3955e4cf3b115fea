//! Operations of a history. Each index is reduced modulo the number of existing items. Every subset of a list of
//! operations is therefore a valid list.

use std::time::Duration;

use lsmx::ReadOptions;
use lsmx::metrics::LatencySampling;
use lsmx::vfs::CrashImage;

use super::change::Bytes;
use super::checked_cursor::CursorMove;
use super::settings::{DbSettings, KeyspaceSettings};

/// Names of the keyspaces. The first keyspace is the default keyspace, which always exists.
pub(super) const KEYSPACES: [&str; 5] =
    ["default", "second", "Ümläut / ../ \u{0}", "4", "without operands"];

/// Index of the keyspace that is created without a merge operator and without an operand store. Only such a keyspace can
/// have a default time to live.
pub(super) const WITHOUT_OPERANDS: usize = 4;

/// Names that keyspaces get by a rename, in addition to [`KEYSPACES`].
pub(super) const OTHER_NAMES: [&str; 2] = ["renamed", "5"];

/// Unit of expiry times, in microseconds. The operations other than [`Operation::AdvanceClock`] together advance the
/// clock by less than half of this.
pub(super) const HOUR_US: u64 = 3_600_000_000;

/// Returns a time to live of the given number of hours and a half. All reads therefore take place either before the
/// value expires, or after the end of the hour in which it expires.
pub(super) fn time_to_live(hours: u64) -> Duration {
    Duration::from_micros(hours * HOUR_US + HOUR_US / 2)
}

/// A value, whose bytes are determined by its tag and its length.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    pub tag: u64,
    pub bytes: usize,
}

impl Value {
    /// Returns the bytes of the value. Values with odd tags are incompressible.
    pub(super) fn to_bytes(self) -> Bytes {
        let low_byte = self.tag.to_le_bytes()[0];
        let text = [&[low_byte], format!("{:x}.", self.tag).as_bytes()].concat();
        let mut state = self.tag;
        let fill = (0..).map(|index: usize| {
            if self.tag.is_multiple_of(2) || index == 0 {
                return text[index % text.len()];
            }
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_be_bytes()[0]
        });
        fill.take(self.bytes).collect()
    }
}

/// A key in a keyspace. Both are given by their indexes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub keyspace: usize,
    pub key: usize,
}

/// A bound of a key range. The key is given by its index in the list of keys.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Open,
    At(usize),
    Past(usize),
}

/// A key range of a keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub keyspace: usize,
    pub from: Limit,
    pub to: Limit,
}

#[derive(Clone, Copy, Debug)]
pub enum Write {
    Put(Place, Value),
    /// Puts a value that expires at the end of an hour. The number selects the hour, and 0 is the current hour. In a
    /// keyspace with an operand store, the value does not expire.
    PutUntil(Place, Value, u64),
    /// Puts a value with a `time_to_live` of the given hours. In a keyspace with an operand store, the value does not
    /// expire.
    PutWithTtl(Place, Value, u64),
    Delete(Place),
    Merge(Place, Value),
    DeleteRange(Span),
}

/// The write of an update.
#[derive(Clone, Copy, Debug)]
pub enum UpdateWrite {
    /// A put or a delete.
    Write(Write),
    /// Puts a value that keeps the expiry time of the old value.
    PutKeepExpiry(Place, Value),
}

/// How a transaction finds conflicts.
#[derive(Clone, Copy, Debug)]
pub enum TransactionKind {
    Optimistic,
    /// The transaction locks the keys that it writes.
    Locking,
}

/// How a history ends the use of an open database.
#[derive(Clone, Copy, Debug)]
pub enum RestartKind {
    /// The database is closed with `close`.
    Close,
    /// All handles are dropped.
    Drop,
    /// The process is killed. No commit is lost.
    Kill,
    /// The power fails. The kind and the seed determine the disk image.
    PowerLoss(CrashImage, u64),
}

/// An operation of a history. An `Option<usize>` is the index of a snapshot. `None` means the current contents.
#[expect(
    clippy::large_enum_variant,
    reason = "few operations have options, and histories are short"
)]
#[derive(Clone, Debug)]
pub enum Operation {
    /// Commits each write alone, with a sync if the flag is set.
    Write(Vec<Write>, bool),
    /// Commits the writes as one batch, with a sync if the flag is set.
    Batch(Vec<Write>, bool),
    /// Commits the writes as one transaction, with a sync if the flag is set. Reads of the transaction are compared with the
    /// model after each write.
    Transaction(TransactionKind, Vec<Write>, bool),
    /// A batch that fails if the key was written after the snapshot. For `None`, the operation first takes a new
    /// snapshot.
    GuardedBatch(Option<usize>, Place, Vec<Write>),
    /// An update that appends the value of the write to the old value, or deletes the key. If the flag is true, calls
    /// `fetch_update`, which returns the old value. Otherwise calls `update_fetch`, which returns the new value.
    Update(UpdateWrite, bool),
    /// Ingests puts and deletes as external tables, atomically over all keyspaces. The number is the maximum number of
    /// tables per keyspace. If the flag is set, the files are copied.
    Ingest(Vec<Write>, usize, bool),
    /// Loads entries, which are keys and values, into a keyspace in bulk. If the flag is set, the load sorts the entries.
    BulkLoad(usize, Vec<(usize, Value)>, bool),
    Clear(usize),
    DeleteAll(usize),
    Get(Option<usize>, Place),
    ContainsKey(Option<usize>, Place),
    GetWith(Place, ReadOptions),
    /// Snapshot, keyspace and keys.
    MultiGet(Option<usize>, usize, Vec<usize>),
    /// Reads the first and the last pair of a keyspace.
    Ends(usize),
    /// Iterates over a range, with an optional maximum number of pairs. Positive steps move forward, and negative steps
    /// move backward. After the last step, moves forward to the end.
    Scan(Option<usize>, Span, Option<u64>, Vec<i8>),
    /// Moves a cursor over a range, with the given read options.
    Cursor(Option<usize>, Span, ReadOptions, Vec<CursorMove<usize>>),
    /// Moves a cursor over all keys that share a prefix of the given length with the key.
    PrefixCursor(Place, usize, Vec<CursorMove<usize>>),
    /// Compares the estimates of a range with those of the whole keyspace.
    Estimate(Span),
    /// Scans all keys whose prefix of the given length equals that of the key.
    Prefix(Place, usize),
    Snapshot,
    DropSnapshot(usize),
    OpenIterator(Option<usize>, Span),
    /// Moves an open iterator, after a change of its read options if any are given.
    StepIterator(usize, Option<ReadOptions>, Vec<i8>),
    DropIterator(usize),
    /// Advances the clock to the next hour.
    AdvanceClock,
    Flush,
    WaitIdle,
    Sync,
    CompactRange(Span),
    OperandsToTree(usize),
    CreateKeyspace(usize, KeyspaceSettings),
    DropKeyspace(usize),
    /// Clones a keyspace. The indexes are those of the source and of the clone.
    CloneKeyspace(usize, usize, KeyspaceSettings),
    /// Renames a keyspace. The second number is the index of the new name in `KEYSPACES` and `OTHER_NAMES`.
    RenameKeyspace(usize, usize),
    ChangeOptions(usize, KeyspaceSettings),
    /// Changes options with `Keyspace::set_options`, which keeps the merge operator and the operand store.
    SetOptions(usize, KeyspaceSettings),
    SetPolicy(usize, String),
    /// Changes which operations are measured.
    SetLatencySampling(LatencySampling),
    /// Makes a checkpoint, opens it and compares it with the model.
    Checkpoint,
    /// Opens the files read-only, as after a kill of the process, and compares them with the model.
    OpenReadOnly,
    /// Compares all contents with the model.
    CheckAll,
    /// Ends the open database and reopens it with other options.
    Restart(RestartKind, DbSettings),
    /// Reopens the database without merge operators, so that operands stay unmerged. Deletes keys. Then reopens the
    /// database with merge operators. The first settings are for the open without merge operators.
    RestartWithoutOperators(DbSettings, Vec<Place>, DbSettings),
}
