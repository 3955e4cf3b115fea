//! The log and the vote.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use lsmx::{Durability, WriteBatch};
use lsmx_base::sync::Arc;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    Entry, ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogReader, StorageError,
    Vote,
};

use crate::config::StoreConfig;
use crate::error::Error;
use crate::record::{
    APPLIED, AppliedState, LOG_ENTRY, PURGED, VOTE, decode, encode, log_key, read_record,
};
use crate::store::Store;

/// Bytes of encoded entries after which [`RaftLogReader::limited_get_log_entries`] stops.
const LIMITED_READ_BYTES: usize = 1 << 20;

/// The log and the vote of a Raft node. Clones share them.
///
/// The vote and log entries are synced. The engine groups the syncs of concurrent appends, also with other synced commits of the
/// database. A truncation or a purge is one range delete, and need not be synced: all keyspaces share one write-ahead log, so
/// the next synced commit makes it durable, and a crash never keeps a later commit without an earlier one.
///
/// `save_committed` stores nothing. After a restart, openraft continues from the last applied entry and applies the later ones
/// when the leader has confirmed them.
#[derive(Debug)]
pub struct LogStore<C: StoreConfig> {
    store: Arc<Store<C>>,
}

impl<C: StoreConfig> Clone for LogStore<C> {
    fn clone(&self) -> LogStore<C> {
        LogStore { store: Arc::clone(&self.store) }
    }
}

fn decode_entry<C: StoreConfig>(key: &[u8], value: &[u8]) -> Result<Entry<C>, Error> {
    let entry: Entry<C> = decode(LOG_ENTRY, value)?;
    let index = entry.log_id.index;
    if key == log_key(index) {
        Ok(entry)
    } else {
        Err(Error::LogIndex { index, key: key.to_vec() })
    }
}

/// Returns the id of the last entry of the log.
fn last_log_id<C: StoreConfig>(store: &Store<C>) -> Result<Option<LogId<C::NodeId>>, Error> {
    let last = store.log.as_blocking().last()?;
    let last = last.map(|(key, value)| decode_entry::<C>(&key, &value)).transpose()?;
    Ok(last.map(|entry| entry.log_id))
}

impl<C: StoreConfig> LogStore<C> {
    pub(crate) fn new(store: Arc<Store<C>>) -> LogStore<C> {
        LogStore { store }
    }

    /// Returns the database, for example for its metrics and to close it after the shutdown of the node.
    ///
    /// The application may create further keyspaces in it. They are not replicated.
    #[must_use]
    pub fn db(&self) -> &lsmx::tokio::Db {
        &self.store.db
    }

    async fn read_entries(
        &self,
        range: impl RangeBounds<u64>,
        bytes_max: usize,
    ) -> Result<Vec<Entry<C>>, Error> {
        let bounds: (Bound<[u8; 8]>, Bound<[u8; 8]>) = (
            range.start_bound().map(|&index| log_key(index)),
            range.end_bound().map(|&index| log_key(index)),
        );
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut range = self.store.log.range(bounds);
        while bytes < bytes_max
            && let Some(entry) = range.next().await
        {
            let (key, value) = entry?;
            bytes += value.len();
            entries.push(decode_entry(&key, &value)?);
        }
        Ok(entries)
    }

    async fn append_entries(&self, entries: impl Iterator<Item = Entry<C>>) -> Result<(), Error> {
        self.store.wait_for_deferred_purge().await?;
        let mut batch = WriteBatch::new();
        for entry in entries {
            let value = encode(LOG_ENTRY, &entry)?;
            batch.put(&self.store.log, log_key(entry.log_id.index), value);
        }
        Ok(self.store.db.write(batch, Durability::Sync).await?)
    }
}

impl<C: StoreConfig> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let entries = self.read_entries(range, usize::MAX).await;
        entries.map_err(|error| error.into_storage(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let entries = self.read_entries(start..end, LIMITED_READ_BYTES).await;
        entries.map_err(|error| error.into_storage(ErrorSubject::Logs, ErrorVerb::Read))
    }
}

impl<C: StoreConfig> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogStore<C>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let read = |store: &Store<C>| Ok((last_log_id(store)?, read_record(&store.meta, PURGED)?));
        let state = self.store.run_blocking(read).await;
        let (last_log_id, last_purged_log_id) =
            state.map_err(|error| error.into_storage(ErrorSubject::Logs, ErrorVerb::Read))?;
        let last_purged_log_id: Option<LogId<C::NodeId>> = last_purged_log_id;
        let last_log_id = last_log_id.or_else(|| last_purged_log_id.clone());
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let subject = |error: Error| error.into_storage(ErrorSubject::Vote, ErrorVerb::Write);
        let mut batch = WriteBatch::new();
        batch.put(&self.store.meta, VOTE, encode(VOTE, vote).map_err(subject)?);
        let written = self.store.db.write(batch, Durability::Sync).await;
        written.map_err(|error| subject(error.into()))
    }

    /// Returns the vote. It is not committed if the log contains entries that are not applied.
    ///
    /// openraft reads the vote when a node starts. With a committed vote for itself, the node is the leader at once, and serves
    /// linearizable reads as soon as the entries are applied that it knows to be committed. These may be fewer than it had
    /// acknowledged before a power loss. A new election lets it first commit and apply an entry that follows all of them.
    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        let vote = self.store.run_blocking(|store| {
            let vote: Option<Vote<C::NodeId>> = read_record(&store.meta, VOTE)?;
            let applied: AppliedState<C> = read_record(&store.meta, APPLIED)?.unwrap_or_default();
            let is_applied = last_log_id(store)? <= applied.last_log_id;
            Ok(vote.map(|vote| Vote { committed: vote.committed && is_applied, ..vote }))
        });
        vote.await.map_err(|error| error.into_storage(ErrorSubject::Vote, ErrorVerb::Read))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // The future waits for the sync and occupies no thread meanwhile. An earlier return would gain nothing: openraft 0.9
        // waits for the callback before it continues.
        let appended = self.append_entries(entries.into_iter()).await;
        let appended =
            appended.map_err(|error| error.into_storage(ErrorSubject::Logs, ErrorVerb::Write));
        callback.log_io_completed(appended.clone().map_err(io::Error::other));
        appended
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let mut batch = WriteBatch::new();
        batch.delete_range(&self.store.log, log_key(log_id.index)..);
        let written = self.store.db.write(batch, Durability::Buffered).await;
        written.map_err(|error| {
            Error::from(error).into_storage(ErrorSubject::Log(log_id), ErrorVerb::Delete)
        })
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let purge = {
            let log_id = log_id.clone();
            move |store: &Store<C>| store.purge(&log_id)
        };
        let purged = self.store.run_blocking(purge).await;
        purged.map_err(|error| error.into_storage(ErrorSubject::Log(log_id), ErrorVerb::Delete))
    }
}
