//! The interface between the storage and the application.

use std::ops::RangeBounds;

use lsmx::{Keyspace, Result, Slice, Transaction, TransactionRange};
use openraft::RaftTypeConfig;

/// The commands of an application.
///
/// All nodes apply the same commands in the same order and must reach the same state. A command must therefore depend only
/// on its content and on the state, not on clocks, random numbers or data outside of the state.
pub trait Application<C: RaftTypeConfig>: Send + Sync + 'static {
    /// Applies a command to the state and returns the response for the client.
    ///
    /// The state shows the effects of all earlier commands, also of those in the same commit. The call may be repeated with the
    /// same state, and must have no other effects than its writes. It may block: it runs on a worker of the runtime in
    /// `tokio::task::block_in_place`, or on the blocking pool if the runtime has no such workers.
    ///
    /// # Errors
    /// An error of the engine, which stops the Raft node. To refuse a command, return a response that says so.
    ///
    /// The engine limits the memory of the reads and writes of all transactions together, see [`lsmx::Transaction`]. If other
    /// transactions of the application leave too little memory for a command, the storage repeats the command for up to 10
    /// seconds, and then stops the node. A command that alone exceeds the limit stops the node after each restart again. The
    /// application should therefore refuse large commands before it writes them to the log.
    fn apply(&self, state: &State<'_>, command: &C::D) -> Result<C::R>;

    /// Returns the response of log entries without a command: those of a new leader and of membership changes.
    fn empty_response(&self) -> C::R;
}

/// The state of the state machine while a command is applied. It shows the writes of this command and of earlier ones.
#[derive(Debug)]
pub struct State<'a> {
    transaction: &'a Transaction,
    keyspace: &'a Keyspace,
}

impl<'a> State<'a> {
    pub(crate) fn new(transaction: &'a Transaction, keyspace: &'a Keyspace) -> State<'a> {
        State { transaction, keyspace }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// See [`Transaction::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.transaction.get(self.keyspace, key)
    }

    /// Returns an iterator over the entries of a range of keys, in key order.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> TransactionRange<'a> {
        self.transaction.range(self.keyspace, range)
    }

    /// Returns an iterator over the entries whose keys start with `prefix`, in key order.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> TransactionRange<'a> {
        self.transaction.prefix(self.keyspace, prefix)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// See [`Transaction::put`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.put(self.keyspace, key, value)
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// See [`Transaction::delete`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.delete(self.keyspace, key)
    }

    /// Deletes all keys of a range.
    ///
    /// # Errors
    /// See [`Transaction::delete_range`].
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.transaction.delete_range(self.keyspace, range)
    }

    /// Adds an operand for the merge operator of [`StoreOptions::state_keyspace`](crate::StoreOptions::state_keyspace).
    ///
    /// # Errors
    /// See [`Transaction::merge`].
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.merge(self.keyspace, key, operand)
    }
}
