//! Reads of the state machine.

use std::ops::RangeBounds;

use lsmx::{Keyspace, Range, Result, Slice, Snapshot};
use lsmx_base::sync::Arc;
use openraft::LogId;

use crate::config::StoreConfig;
use crate::error::Error;
use crate::record::{APPLIED, AppliedState, decode};
use crate::store::Store;

/// Reads the replicated state of this node. The reader can be cloned.
///
/// The state may be older than that of the leader. Call `Raft::ensure_linearizable` of openraft before a read that must show
/// all writes that completed before it.
#[derive(Debug)]
pub struct StateReader<C: StoreConfig> {
    store: Arc<Store<C>>,
}

impl<C: StoreConfig> Clone for StateReader<C> {
    fn clone(&self) -> StateReader<C> {
        StateReader::new(Arc::clone(&self.store))
    }
}

impl<C: StoreConfig> StateReader<C> {
    pub(crate) fn new(store: Arc<Store<C>>) -> StateReader<C> {
        StateReader { store }
    }

    /// Returns an unchanging view of the current state. Its reads may block; a task uses [`StateReader::read`].
    #[must_use]
    pub fn view(&self) -> StateView<C> {
        let (snapshot, keyspace) = self.store.state_view();
        StateView { snapshot, keyspace, store: Arc::clone(&self.store) }
    }

    /// Calls `read` with a view of the current state on the blocking pool of the runtime.
    ///
    /// # Errors
    /// The error of `read`, or an error if the runtime is shutting down.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&StateView<C>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let reader = self.clone();
        self.store.db.run_blocking(move |_| read(&reader.view())).await
    }
}

/// The state at one moment: between two commits of applied entries.
#[derive(Debug)]
pub struct StateView<C: StoreConfig> {
    snapshot: Snapshot,
    keyspace: Keyspace,
    store: Arc<Store<C>>,
}

impl<C: StoreConfig> StateView<C> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// See [`lsmx::Snapshot::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.snapshot.get(&self.keyspace, key)
    }

    /// Returns an iterator over the entries of a range of keys, in key order.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.snapshot.range(&self.keyspace, range)
    }

    /// Returns an iterator over the entries whose keys start with `prefix`, in key order.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.snapshot.prefix(&self.keyspace, prefix)
    }

    /// Returns the log id of the last applied entry.
    ///
    /// # Errors
    /// The record cannot be read or decoded.
    pub fn last_applied(&self) -> Result<Option<LogId<C::NodeId>>, Error> {
        let Some(record) = self.snapshot.get(&self.store.meta, APPLIED)? else { return Ok(None) };
        Ok(decode::<AppliedState<C>>(APPLIED, &record)?.last_log_id)
    }
}
