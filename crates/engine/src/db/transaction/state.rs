//! State of a running transaction.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::{Arc, Ordering, std_atomic};

use crate::db::transaction::memory::TransactionMemory;
use crate::db::transaction::own_writes::{OwnVersions, OwnWrites};
use crate::db::transaction::read_set::{KeySpan, ReadSet, SpanNumber};
use crate::error::{Error, Result};
use crate::iter::range::Range;
use crate::tree::Tree;
use crate::write::batch::{BatchPosition, WriteBatch};

/// Assumed memory of a lock without its key bytes.
const LOCK_BYTES: u64 = 160;

/// A point in a transaction to which [`Transaction::rollback_to`](crate::Transaction::rollback_to) returns.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let db = lsmx::Db::open(dir.path().join("data"), lsmx::Options::default())?;
/// let keyspace = db.default_keyspace();
/// let tx = db.transaction();
/// let empty: lsmx::Savepoint = tx.savepoint();
/// tx.put(&keyspace, "key", "value")?;
/// tx.rollback_to(empty)?;
/// assert_eq!(tx.get(&keyspace, "key")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(u64);

impl Savepoint {
    /// Returns a savepoint that is different from all others of this process, and greater than earlier ones.
    fn new() -> Savepoint {
        static NEXT: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(0);
        Savepoint(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Writes and reads of a transaction.
#[derive(Debug)]
pub(super) struct TransactionState {
    batch: WriteBatch,
    /// The operations of the batch, for reads.
    own: OwnWrites,
    /// Time of the snapshot, in microseconds. It decides which values have expired for reads of keys that are not locked.
    time_us: u64,
    /// Savepoints in ascending order, with the end of the batch.
    savepoints: Vec<(Savepoint, BatchPosition)>,
    reads: ReadSet,
    memory: TransactionMemory,
}

impl TransactionState {
    /// Creates the state of a transaction. `time_us` is the time of its snapshot.
    pub(super) fn new(memory: TransactionMemory, time_us: u64) -> TransactionState {
        TransactionState {
            batch: WriteBatch::new(),
            own: OwnWrites::default(),
            time_us,
            savepoints: Vec::new(),
            reads: ReadSet::default(),
            memory,
        }
    }

    /// Adds an operation to the batch.
    ///
    /// # Errors
    /// The error of an invalid operation, and the errors of [`TransactionMemory::add`]. The batch does not change then.
    pub(super) fn add_write(&mut self, add: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        let before = self.batch.position();
        add(&mut self.batch);
        self.batch.take_error()?;
        let bytes = self.batch.position().memory_bytes() - before.memory_bytes();
        self.memory.add(bytes).inspect_err(|_| self.batch.truncate(before))
    }

    /// Returns a savepoint at the end of the batch.
    pub(super) fn savepoint(&mut self) -> Savepoint {
        let position = self.batch.position();
        match self.savepoints.last() {
            Some((last, at)) if *at == position => *last,
            _ => {
                let savepoint = Savepoint::new();
                self.savepoints.push((savepoint, position));
                savepoint
            }
        }
    }

    /// Discards all writes after a savepoint.
    ///
    /// # Errors
    /// [`Error::UnknownSavepoint`].
    pub(super) fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let found = self.savepoints.binary_search_by_key(&savepoint, |(known, _)| *known);
        let index = found.map_err(|_| Error::UnknownSavepoint)?;
        let position = self.savepoints[index].1;
        self.savepoints.truncate(index + 1);
        self.memory.subtract(self.batch.position().memory_bytes() - position.memory_bytes());
        self.own.truncate(position);
        self.batch.truncate(position);
        Ok(())
    }

    /// Returns the versions of a key that the transaction has written. Adds the key to the read set if the value also
    /// depends on older versions, or if `is_always_checked`.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn begin_read(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        is_always_checked: bool,
    ) -> Result<OwnVersions> {
        let own = self.own.versions_of_key(&self.batch, tree, key, self.time_us);
        if is_always_checked || !own.is_complete {
            self.reads.add_key(&mut self.memory, tree, key, None)?;
        }
        Ok(own)
    }

    /// Returns the versions of a locked key that the transaction has written. The current time decides which values have
    /// expired.
    pub(super) fn own_versions(&mut self, tree: &Tree, key: &[u8]) -> OwnVersions {
        self.own.versions_of_key(&self.batch, tree, key, tree.env().database_time_us())
    }

    /// Adds a locked key to the read set, which was read at the sequence number `read`. Returns the versions of the key
    /// that the transaction has written.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn add_locked_read(
        &mut self,
        tree: &Arc<Tree>,
        key: &[u8],
        read: SeqNo,
    ) -> Result<OwnVersions> {
        self.reads.add_key(&mut self.memory, tree, key, Some(read))?;
        Ok(self.own_versions(tree, key))
    }

    /// Reserves memory for the lock of a key.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn add_lock(&mut self, key: &[u8]) -> Result<()> {
        self.memory.add(lock_bytes(key))
    }

    /// Subtracts the memory for the lock of a key that the transaction did not get.
    pub(super) fn subtract_lock(&mut self, key: &[u8]) {
        self.memory.subtract(lock_bytes(key));
    }

    /// Adds a range to the read set, and the transaction's own writes to its iterator. Returns the number of the range
    /// in the read set.
    ///
    /// # Errors
    /// As [`TransactionMemory::add`].
    pub(super) fn begin_range(
        &mut self,
        tree: &Arc<Tree>,
        range: Range,
    ) -> Result<(SpanNumber, Range)> {
        let number = self.reads.add_span(&mut self.memory, tree, range.key_span())?;
        let range = match self.own.of_tree(&self.batch, tree) {
            Some((memtable, last_seq)) => range.with_own_writes(Arc::clone(memtable), last_seq),
            None => range,
        };
        Ok((number, range))
    }

    /// Replaces a range of the read set by the parts of it that were read.
    pub(super) fn narrow_range(&mut self, number: SpanNumber, front: KeySpan, back: KeySpan) {
        self.reads.narrow_span(&mut self.memory, number, front, back);
    }

    /// Removes and returns all writes and reads. Their memory stays reserved.
    pub(super) fn take_writes_and_reads(&mut self) -> (WriteBatch, ReadSet) {
        self.own.clear();
        (std::mem::take(&mut self.batch), std::mem::take(&mut self.reads))
    }
}

/// Returns the assumed memory of the lock of a key.
fn lock_bytes(key: &[u8]) -> u64 {
    LOCK_BYTES + 2 * len_u64(key.len())
}
