//! The state machine and its snapshots.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use lsmx::Durability;
use lsmx_base::sync::Arc;
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder,
    Snapshot, SnapshotMeta, StorageError, StoredMembership,
};
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use crate::application::{Application, State};
use crate::build_install::{build_snapshot, install_snapshot};
use crate::config::StoreConfig;
use crate::error::Error;
use crate::record::{APPLIED, AppliedState, encode};
use crate::snapshot::dir::SnapshotDir;
use crate::snapshot::resume::SnapshotReceipt;
use crate::snapshot::source::SnapshotSource;
use crate::snapshot::stream::SnapshotStream;
use crate::state_reader::StateReader;
use crate::store::{CurrentSnapshot, Store};

/// Number of log entries that one commit applies at most. A commit applies fewer if its transaction would need too much
/// memory.
const ENTRIES_PER_COMMIT: usize = 128;

/// Pause until an entry is applied again, while other transactions of the application use the memory of transactions.
const MEMORY_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of pauses in one call of `apply`.
const MEMORY_PAUSES_MAX: u32 = 1_000;

/// The state machine of a Raft node.
///
/// A commit contains the writes of a number of log entries, the log id of the last one, and the membership. It is not synced:
/// after a power loss, the state is that of an earlier commit, and openraft applies the following entries again. The log still
/// contains them, because a purge is a later commit of the same write-ahead log.
#[derive(Debug)]
pub struct StateMachine<C: StoreConfig, A> {
    store: Arc<Store<C>>,
    application: Arc<A>,
    applied: AppliedState<C>,
}

impl<C: StoreConfig, A: Application<C>> StateMachine<C, A> {
    pub(crate) fn new(store: Arc<Store<C>>, application: A, applied: AppliedState<C>) -> Self {
        StateMachine { store, application: Arc::new(application), applied }
    }

    /// Returns a handle that reads the state.
    #[must_use]
    pub fn reader(&self) -> StateReader<C> {
        StateReader::new(Arc::clone(&self.store))
    }

    /// Returns a handle that shows how much of a snapshot this node has received.
    #[must_use]
    pub fn snapshot_receipt(&self) -> SnapshotReceipt {
        SnapshotReceipt::new(self.store.partial.subscribe())
    }
}

impl<C: StoreConfig, A> Drop for StateMachine<C, A> {
    fn drop(&mut self) {
        self.store.end_installations();
    }
}

/// Fails the calls that wait for an installation, unless the installation completes.
struct RunningInstallation<'a, C: StoreConfig> {
    store: &'a Store<C>,
    is_complete: bool,
}

impl<C: StoreConfig> Drop for RunningInstallation<'_, C> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.store.fail_installation();
        }
    }
}

/// The responses of applied entries, and the state after them.
struct AppliedEntries<C: StoreConfig> {
    responses: Vec<C::R>,
    state: AppliedState<C>,
    /// Error of the next entry, if the memory of transactions did not suffice for it alone.
    too_large: Option<Box<StorageError<C::NodeId>>>,
}

/// Applies entries in commits of limited size.
fn apply_entries<C: StoreConfig, A: Application<C>>(
    store: &Store<C>,
    application: &A,
    mut entries: &[Entry<C>],
    mut applied: AppliedState<C>,
) -> Result<AppliedEntries<C>, Box<StorageError<C::NodeId>>> {
    let keyspace = store.state_keyspace();
    let mut responses = Vec::with_capacity(entries.len());
    let (mut count_max, mut too_large) = (ENTRIES_PER_COMMIT, None);
    while too_large.is_none() && !entries.is_empty() {
        let (head, tail) = entries.split_at(entries.len().min(count_max));
        let mut current = None;
        let committed = store.db.as_blocking().transact(Durability::Buffered, |transaction| {
            let state = State::new(transaction, &keyspace);
            let (mut head_responses, mut next) = (Vec::with_capacity(head.len()), applied.clone());
            for entry in head {
                current = Some(&entry.log_id);
                head_responses.push(apply_entry(application, &state, entry, &mut next)?);
            }
            transaction.put(&store.meta, APPLIED, encode(APPLIED, &next)?)?;
            Ok::<_, Error>((head_responses, next))
        });
        match committed {
            Ok((head_responses, next)) => {
                responses.extend(head_responses);
                (entries, applied) = (tail, next);
            }
            // The limit of the memory of transactions follows the memory budget of the database.
            Err(Error::Engine(lsmx::Error::TooLarge { .. })) if head.len() > 1 => {
                count_max = head.len() / 2;
            }
            Err(error) => {
                let is_too_large = matches!(error, Error::Engine(lsmx::Error::TooLarge { .. }));
                let log_id = current.cloned();
                let subject = log_id.map_or(ErrorSubject::StateMachine, ErrorSubject::Apply);
                let error = Box::new(error.into_storage(subject, ErrorVerb::Write));
                if !is_too_large {
                    return Err(error);
                }
                too_large = Some(error);
            }
        }
    }
    Ok(AppliedEntries { responses, state: applied, too_large })
}

fn apply_entry<C: StoreConfig, A: Application<C>>(
    application: &A,
    state: &State<'_>,
    entry: &Entry<C>,
    applied: &mut AppliedState<C>,
) -> Result<C::R, Error> {
    applied.last_log_id = Some(entry.log_id.clone());
    match &entry.payload {
        EntryPayload::Blank => Ok(application.empty_response()),
        EntryPayload::Normal(command) => {
            // The transaction is dropped after a panic, so a half applied command has no effect.
            let applied = catch_unwind(AssertUnwindSafe(|| application.apply(state, command)));
            Ok(applied.map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Error::ApplicationPanicked { message: text.unwrap_or("no message").to_owned() }
            })??)
        }
        EntryPayload::Membership(membership) => {
            applied.membership =
                StoredMembership::new(Some(entry.log_id.clone()), membership.clone());
            Ok(application.empty_response())
        }
    }
}

/// Completes a received snapshot and returns its directory. Replaces a snapshot of another store in the same process by a copy.
async fn complete_receipt<C: StoreConfig>(
    store: &Store<C>,
    stream: &mut SnapshotStream,
) -> Result<Arc<SnapshotDir>, Error> {
    let path = || store.snapshots.path().to_owned();
    if !stream.is_receiver() {
        let mut copy = store.new_receiving_stream();
        tokio::io::copy(stream, &mut copy)
            .await
            .map_err(Error::io("copy a snapshot to", path()))?;
        *stream = copy;
    }
    stream.shutdown().await.map_err(Error::io("complete a snapshot in", path()))?;
    let received = stream.received().map(Arc::clone);
    received.ok_or_else(|| Error::io("find", path())(std::io::ErrorKind::NotFound.into()))
}

impl<C: StoreConfig, A: Application<C>> RaftStateMachine<C> for StateMachine<C, A> {
    type SnapshotBuilder = SnapshotBuilder<C>;

    async fn applied_state(
        &mut self,
    ) -> Result<
        (Option<LogId<C::NodeId>>, StoredMembership<C::NodeId, C::Node>),
        StorageError<C::NodeId>,
    > {
        Ok((self.applied.last_log_id.clone(), self.applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Arc<Vec<Entry<C>>> = Arc::new(entries.into_iter().collect());
        let (mut responses, mut pauses) = (Vec::with_capacity(entries.len()), 0);
        loop {
            let (application, applied) = (Arc::clone(&self.application), self.applied.clone());
            let (entries, from) = (Arc::clone(&entries), responses.len());
            let apply = move |store: &Store<C>| {
                Ok(apply_entries(store, &*application, &entries[from..], applied))
            };
            let done = self.store.run_in_place(apply).await.map_err(|error| {
                error.into_storage(ErrorSubject::StateMachine, ErrorVerb::Write)
            })?;
            let done = done.map_err(|error| *error)?;
            self.applied = done.state;
            responses.extend(done.responses);
            match done.too_large {
                None => return Ok(responses),
                Some(error) if pauses == MEMORY_PAUSES_MAX => return Err(*error),
                Some(_) => {
                    pauses += 1;
                    sleep(MEMORY_PAUSE).await;
                }
            }
        }
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        SnapshotBuilder { store: Arc::clone(&self.store) }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<SnapshotStream>, StorageError<C::NodeId>> {
        Ok(Box::new(self.store.new_receiving_stream()))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        mut snapshot: Box<SnapshotStream>,
    ) -> Result<(), StorageError<C::NodeId>> {
        // It is dropped before the stream: until then, the store knows that an installation may follow.
        let mut running = RunningInstallation { store: &self.store, is_complete: false };
        let subject = |error: Error| {
            let signature = Some(meta.signature());
            error.into_storage(ErrorSubject::Snapshot(signature), ErrorVerb::Write)
        };
        let dir = complete_receipt(&self.store, &mut snapshot).await.map_err(subject)?;
        let new_meta = meta.clone();
        let install = move |store: &Store<C>| install_snapshot(store, &new_meta, dir);
        self.applied = self.store.run_blocking(install).await.map_err(subject)?;
        running.is_complete = true;
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        let open = |store: &Store<C>| store.current_snapshot().map(open_snapshot).transpose();
        self.store
            .run_blocking(open)
            .await
            .map_err(|error| error.into_storage(ErrorSubject::Snapshot(None), ErrorVerb::Read))
    }
}

/// Returns a snapshot whose stream is ready to be sent.
fn open_snapshot<C: StoreConfig>(snapshot: CurrentSnapshot<C>) -> Result<Snapshot<C>, Error> {
    let CurrentSnapshot { meta, dir } = snapshot;
    let stream = SnapshotStream::from_source(SnapshotSource::open(dir)?);
    Ok(Snapshot { meta, snapshot: Box::new(stream) })
}

/// Creates snapshots of the state machine while commands are applied.
#[derive(Debug)]
pub struct SnapshotBuilder<C: StoreConfig> {
    store: Arc<Store<C>>,
}

impl<C: StoreConfig> RaftSnapshotBuilder<C> for SnapshotBuilder<C> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, StorageError<C::NodeId>> {
        let build = |store: &Store<C>| open_snapshot(build_snapshot(store)?);
        self.store
            .run_blocking(build)
            .await
            .map_err(|error| error.into_storage(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }
}
