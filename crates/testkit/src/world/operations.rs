//! Operations as data. Each index is taken modulo the number of existing items, so any sublist is valid too.

use lsmx::vfs::CrashImage;

use super::change::Bytes;
use super::settings::{DbSettings, KeyspaceSettings};

/// Names of the keyspaces. The first is the default keyspace, which always exists.
pub(super) const KEYSPACES: [&str; 4] = ["default", "second", "Ümläut / ../ \u{0}", "4"];

/// A value. Its bytes follow from both numbers.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    pub tag: u64,
    pub bytes: usize,
}

impl Value {
    /// Returns the bytes. Values with odd tags are incompressible.
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

/// Indexes of a keyspace and of a key.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub keyspace: usize,
    pub key: usize,
}

/// A bound of a range, with the index of a key.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Open,
    At(usize),
    Past(usize),
}

/// Index of a keyspace, and bounds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub keyspace: usize,
    pub from: Limit,
    pub to: Limit,
}

/// A write to one keyspace.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    Put(Place, Value),
    Delete(Place),
    Merge(Place, Value),
    DeleteRange(Span),
}

/// End of an open database.
#[derive(Clone, Copy, Debug)]
pub enum RestartKind {
    /// A call of `close`.
    Close,
    /// Drops of all handles.
    Drop,
    /// A killed process, which loses nothing.
    Kill,
    /// A power loss, with the kind and the seed of the disk image.
    PowerLoss(CrashImage, u64),
}

/// An operation of a history. A snapshot is an index; reads without one see the current contents.
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
    /// A batch that is refused if a key was written after the snapshot. `None` takes a new snapshot.
    GuardedBatch(Option<usize>, Place, Vec<Write>),
    /// An update that appends to the value, or deletes it for `None`. The flag selects `fetch_update`, which returns the old
    /// value, in place of `update_fetch`.
    Update(Place, Option<Value>, bool),
    Clear(usize),
    DeleteAll(usize),
    Get(Option<usize>, Place),
    /// Snapshot, keyspace and keys.
    MultiGet(Option<usize>, usize, Vec<usize>),
    /// The first and the last pair of a keyspace.
    Ends(usize),
    /// Iterates over a range, or over its first pairs if there is a limit. Positive steps go forward, negative ones back;
    /// then to the end.
    Scan(Option<usize>, Span, Option<u64>, Vec<i8>),
    /// A scan of the keys that start with so many bytes of the key.
    Prefix(Place, usize),
    Snapshot,
    DropSnapshot(usize),
    OpenIterator(Option<usize>, Span),
    StepIterator(usize, Vec<i8>),
    DropIterator(usize),
    Flush,
    WaitIdle,
    Sync,
    CompactRange(Span),
    OperandsToTree(usize),
    CreateKeyspace(usize, KeyspaceSettings),
    DropKeyspace(usize),
    /// Changes the options of an open keyspace.
    ChangeOptions(usize, KeyspaceSettings),
    SetPolicy(usize, String),
    /// Makes a checkpoint, opens it and compares it with the model.
    Checkpoint,
    /// Opens the files of a killed process read-only and compares them with the model.
    OpenReadOnly,
    /// Compares all contents with the model.
    CheckAll,
    /// Ends the database and opens it with other options.
    Restart(RestartKind, DbSettings),
    /// Closes, opens without merge operators, which keeps operands unmerged, deletes keys, closes, and opens with operators.
    /// The first settings are those without operators.
    RestartWithoutOperators(DbSettings, Vec<Place>, DbSettings),
}
