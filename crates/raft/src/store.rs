//! The database of a Raft node, shared by the log, the state machine and their readers.
//!
//! ```text
//! DIR/db                   the database
//!   raft.meta              records, see `record`
//!   raft.log               log entries by index
//!   raft.state.N           data of the application; the record "applied" contains N
//! DIR/snapshots/NAME       files of a snapshot: a checkpoint, or a received copy of one
//! DIR/snapshots/NAME.frames  journal of a partially received snapshot
//! ```
//!
//! An open removes all keyspaces `raft.state.N` and all snapshot directories that the records "applied" and "snapshot" do not
//! name. They are leftovers of builds and installations that did not complete. One partially received snapshot remains, so that
//! its transfer can continue.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use lsmx::vfs::Vfs;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Snapshot, WriteBatch};
use lsmx_base::sync::Arc;
use openraft::{LogId, SnapshotMeta};
use tokio::runtime::{Handle, RuntimeFlavor, worker_index};
use tokio::sync::watch;
use tokio::task::block_in_place;

use crate::config::StoreConfig;
use crate::error::Error;
use crate::options::StoreOptions;
use crate::record::{
    APPLIED, AppliedState, FORMAT, FORMAT_VERSION, PURGED, SNAPSHOT, StoredSnapshot, encode,
    log_key, read_record,
};
use crate::snapshot::dir::{SnapshotDir, SnapshotRoot};
use crate::snapshot::partial_slot::PartialSlot;
use crate::snapshot::stream::SnapshotStream;

pub(crate) const META_KEYSPACE: &str = "raft.meta";
const LOG_KEYSPACE: &str = "raft.log";
const STATE_PREFIX: &str = "raft.state.";

/// Returns the name of a keyspace of the state machine.
pub(crate) fn state_keyspace_name(number: u64) -> String {
    format!("{STATE_PREFIX}{number}")
}

/// The parts of an open store.
///
/// The locks are held during calls of the engine, which forbids that for the locks of `lsmx_base::sync`. No code panics while
/// it holds one of them and has changed its data, so a poisoned lock is used like others.
#[derive(Debug)]
pub(crate) struct Store<C: StoreConfig> {
    pub(crate) db: lsmx::tokio::Db,
    pub(crate) log: lsmx::tokio::Keyspace,
    pub(crate) meta: Keyspace,
    pub(crate) snapshots: SnapshotRoot,
    pub(crate) partial: Arc<PartialSlot>,
    /// The stream of each received snapshot holds a clone, until the installation has ended.
    receipts: Arc<()>,
    pub(crate) state_options: KeyspaceOptions,
    /// The current keyspace of the state machine.
    state: RwLock<Keyspace>,
    current_snapshot: Mutex<Option<CurrentSnapshot<C>>>,
    deferred_purge: DeferredPurge<C>,
}

/// Metadata and files of the current snapshot.
#[derive(Debug)]
pub(crate) struct CurrentSnapshot<C: StoreConfig> {
    pub(crate) meta: SnapshotMeta<C::NodeId, C::Node>,
    pub(crate) dir: Arc<SnapshotDir>,
}

impl<C: StoreConfig> Clone for CurrentSnapshot<C> {
    fn clone(&self) -> CurrentSnapshot<C> {
        CurrentSnapshot { meta: self.meta.clone(), dir: Arc::clone(&self.dir) }
    }
}

impl<C: StoreConfig> Store<C> {
    /// Opens the database and removes leftovers. Returns the last state of the state machine too.
    pub(crate) async fn open(
        dir: PathBuf,
        options: StoreOptions,
    ) -> Result<(Arc<Store<C>>, AppliedState<C>), Error> {
        let StoreOptions { db, vfs, log_keyspace, state_keyspace: state_options } = options;
        let db = lsmx::tokio::Db::open(dir.join("db"), db.vfs(Arc::clone(&vfs))).await?;
        let log = db.keyspace(LOG_KEYSPACE, log_keyspace).await?;
        let recovered = {
            let state_options = state_options.clone();
            db.run_blocking(move |db| Ok(Recovered::read(db, &dir, vfs, state_options)))
        };
        let Recovered { meta, state, applied, snapshots, partial, current_snapshot } =
            recovered.await??;
        let partial = Arc::new(PartialSlot::new(snapshots.clone(), partial));
        let (state, current_snapshot) = (RwLock::new(state), Mutex::new(current_snapshot));
        let deferred_purge = DeferredPurge::default();
        let store = Store {
            db,
            log,
            meta,
            snapshots,
            partial,
            receipts: Arc::new(()),
            state_options,
            state,
            current_snapshot,
            deferred_purge,
        };
        Ok((Arc::new(store), applied))
    }

    /// Calls `call` on the blocking pool of the runtime.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&Store<C>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = Arc::clone(self);
        self.db.run_blocking(move |_| Ok(call(&store))).await?
    }

    /// Calls `call` on this thread if it is a worker of a multi-thread runtime, which runs other tasks on another thread
    /// meanwhile. Otherwise, calls it on the blocking pool.
    pub(crate) async fn run_in_place<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&Store<C>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let flavor = Handle::current().runtime_flavor();
        // `block_in_place` panics in a `LocalSet`, which no worker runs.
        if flavor == RuntimeFlavor::MultiThread && worker_index().is_some() {
            return block_in_place(|| call(self));
        }
        self.run_blocking(call).await
    }

    /// Returns the current keyspace of the state machine.
    pub(crate) fn state_keyspace(&self) -> Keyspace {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a snapshot of the database and the keyspace of the state machine in it.
    pub(crate) fn state_view(&self) -> (Snapshot, Keyspace) {
        // An installation commits and replaces the keyspace under this lock, and drops the old one afterwards. So the snapshot
        // shows the keyspace that its record "applied" names, and can read it.
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        (self.db.as_blocking().snapshot(), state.clone())
    }

    /// Commits the result of an installation durably, and makes it the current state.
    pub(crate) fn exchange_state(
        &self,
        keyspace: Keyspace,
        applied: &AppliedState<C>,
        snapshot: CurrentSnapshot<C>,
    ) -> Result<(), Error> {
        let mut current = self.current_snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = self.snapshot_record(&snapshot)?;
        batch.put(&self.meta, APPLIED, encode(APPLIED, applied)?);
        let mut deferred = self.deferred_purge.lock();
        // Another received snapshot may wait for its installation already. Its purge waits, too.
        let covered = |log_id: &LogId<C::NodeId>| Some(log_id) <= applied.last_log_id.as_ref();
        let purge = deferred.take_if(|log_id| covered(log_id));
        if let Some(log_id) = &purge {
            self.add_purge(&mut batch, log_id)?;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        self.db.as_blocking().write(batch, Durability::Sync)?;
        let old = std::mem::replace(&mut *state, keyspace);
        drop(state);
        if deferred.is_none() {
            self.deferred_purge.publish(PurgeState::Idle);
        }
        drop(deferred);
        snapshot.dir.remove_journal();
        self.partial.remove_kept();
        replace_snapshot(&mut current, snapshot);
        drop(current);
        // The new state is durable. If the old keyspace cannot be dropped now, the next open drops it.
        let _ = self.db.as_blocking().drop_keyspace(&old.name());
        Ok(())
    }

    /// Returns a stream that receives a snapshot.
    pub(crate) fn new_receiving_stream(&self) -> SnapshotStream {
        SnapshotStream::new_receiver(&self.partial, Arc::clone(&self.receipts))
    }

    pub(crate) fn current_snapshot(&self) -> Option<CurrentSnapshot<C>> {
        self.current_snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a snapshot the current one durably, unless the current one is newer.
    pub(crate) fn set_current_snapshot(&self, snapshot: CurrentSnapshot<C>) -> Result<(), Error> {
        let mut current = self.current_snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        // An installation may have completed while this snapshot was built.
        if current.as_ref().is_some_and(|it| it.meta.last_log_id > snapshot.meta.last_log_id) {
            return Ok(());
        }
        let batch = self.snapshot_record(&snapshot)?;
        self.db.as_blocking().write(batch, Durability::Sync)?;
        // The node has applied entries since the last snapshot, so it probably does not wait for one.
        self.partial.remove_kept();
        replace_snapshot(&mut current, snapshot);
        Ok(())
    }

    /// Deletes the log entries up to `log_id`.
    ///
    /// openraft purges the log when it requests the installation of a snapshot, and does not wait for its end. A crash between
    /// both would leave a state without the log entries that follow it. So the purge of entries that are not applied becomes a
    /// part of the commit of the installation.
    pub(crate) fn purge(&self, log_id: &LogId<C::NodeId>) -> Result<(), Error> {
        let mut deferred = self.deferred_purge.lock();
        let applied: AppliedState<C> = read_record(&self.meta, APPLIED)?.unwrap_or_default();
        let is_applied = Some(log_id) <= applied.last_log_id.as_ref();
        let state = *self.deferred_purge.state.borrow();
        if !is_applied && matches!(state, PurgeState::Failed | PurgeState::Ended) {
            return Err(Error::InstallationFailed);
        }
        if !is_applied && Arc::strong_count(&self.receipts) > 1 {
            *deferred = Some(log_id.clone());
            self.deferred_purge.publish(PurgeState::Deferred);
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        self.add_purge(&mut batch, log_id)?;
        Ok(self.db.as_blocking().write(batch, Durability::Buffered)?)
    }

    fn add_purge(&self, batch: &mut WriteBatch, log_id: &LogId<C::NodeId>) -> Result<(), Error> {
        batch.delete_range(self.log.as_blocking(), ..=log_key(log_id.index));
        batch.put(&self.meta, PURGED, encode(PURGED, log_id)?);
        Ok(())
    }

    /// Waits until no purge is deferred, because new log entries must follow the purged ones.
    pub(crate) async fn wait_for_deferred_purge(&self) -> Result<(), Error> {
        let mut states = self.deferred_purge.state.subscribe();
        let state = states.wait_for(|state| *state != PurgeState::Deferred).await;
        match state {
            Ok(state) if *state != PurgeState::Failed => Ok(()),
            _ => Err(Error::InstallationFailed),
        }
    }

    /// Fails the calls that need the installation that has failed.
    pub(crate) fn fail_installation(&self) {
        let _deferred = self.deferred_purge.lock();
        self.deferred_purge.publish(PurgeState::Failed);
    }

    /// Fails the calls that need an installation, because none can follow. Other calls still succeed.
    pub(crate) fn end_installations(&self) {
        let _deferred = self.deferred_purge.lock();
        self.deferred_purge.state.send_modify(|state| {
            *state = match *state {
                PurgeState::Deferred | PurgeState::Failed => PurgeState::Failed,
                PurgeState::Idle | PurgeState::Ended => PurgeState::Ended,
            };
        });
    }

    fn snapshot_record(&self, snapshot: &CurrentSnapshot<C>) -> Result<WriteBatch, Error> {
        let (meta, dir) = (snapshot.meta.clone(), snapshot.dir.name.clone());
        // From the write of the record on, a drop must not remove the directory, even if the write reports an error.
        snapshot.dir.set_kept(true);
        let mut batch = WriteBatch::new();
        let record = encode(SNAPSHOT, &StoredSnapshot::<C> { meta, dir })?;
        batch.put(&self.meta, SNAPSHOT, record);
        Ok(batch)
    }
}

/// A purge of the log that will be committed together with the installation of a snapshot.
#[derive(Debug)]
struct DeferredPurge<C: StoreConfig> {
    /// Last log entry to purge.
    log_id: Mutex<Option<LogId<C::NodeId>>>,
    state: watch::Sender<PurgeState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PurgeState {
    Idle,
    /// The installation has not completed.
    Deferred,
    /// The installation has failed.
    Failed,
    /// The state machine was dropped, and no installation was necessary.
    Ended,
}

impl<C: StoreConfig> Default for DeferredPurge<C> {
    fn default() -> Self {
        DeferredPurge { log_id: Mutex::new(None), state: watch::Sender::new(PurgeState::Idle) }
    }
}

impl<C: StoreConfig> DeferredPurge<C> {
    fn lock(&self) -> MutexGuard<'_, Option<LogId<C::NodeId>>> {
        self.log_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: PurgeState) {
        self.state.send_replace(state);
    }
}

/// Replaces the current snapshot. The directory of the old one is removed when its last reader ends.
fn replace_snapshot<C: StoreConfig>(
    current: &mut Option<CurrentSnapshot<C>>,
    new: CurrentSnapshot<C>,
) {
    if let Some(old) = current.replace(new) {
        old.dir.set_kept(false);
    }
}

/// The stored state, after the removal of leftovers.
struct Recovered<C: StoreConfig> {
    meta: Keyspace,
    state: Keyspace,
    applied: AppliedState<C>,
    snapshots: SnapshotRoot,
    /// A partially received snapshot.
    partial: Option<Arc<SnapshotDir>>,
    current_snapshot: Option<CurrentSnapshot<C>>,
}

impl<C: StoreConfig> Recovered<C> {
    fn read(
        db: &Db,
        dir: &Path,
        vfs: Arc<dyn Vfs>,
        state_options: KeyspaceOptions,
    ) -> Result<Recovered<C>, Error> {
        let meta = db.keyspace(META_KEYSPACE, KeyspaceOptions::default())?;
        match read_record(&meta, FORMAT)? {
            Some(FORMAT_VERSION) => {}
            Some(found) => {
                return Err(Error::UnsupportedFormat { found, supported: FORMAT_VERSION });
            }
            None => {
                let mut batch = WriteBatch::new();
                batch.put(&meta, FORMAT, encode(FORMAT, &FORMAT_VERSION)?);
                db.write(batch, Durability::Sync)?;
            }
        }
        let applied: AppliedState<C> = read_record(&meta, APPLIED)?.unwrap_or_default();
        let state_name = state_keyspace_name(applied.keyspace);
        let state = db.keyspace(&state_name, state_options)?;
        for name in db.keyspaces() {
            if name.starts_with(STATE_PREFIX) && name != state_name {
                db.drop_keyspace(&name)?;
            }
        }
        let snapshots = SnapshotRoot::open(vfs, dir.join("snapshots"))?;
        let stored: Option<StoredSnapshot<C>> = read_record(&meta, SNAPSHOT)?;
        let current = stored.as_ref().map(|stored| stored.dir.as_str());
        let partial = snapshots.remove_others(current)?;
        let current_snapshot = stored.and_then(|stored| {
            let dir = Arc::new(snapshots.existing_dir(&stored.dir)?);
            Some(CurrentSnapshot { meta: stored.meta, dir })
        });
        Ok(Recovered { meta, state, applied, snapshots, partial, current_snapshot })
    }
}
