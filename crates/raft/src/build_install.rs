//! Creation and installation of snapshots.
//!
//! A **build** flushes the memtables and creates a checkpoint, whose tables are hard links. The state of the checkpoint is
//! the one that its record "applied" describes, because each commit of the state machine writes this record. So commands can
//! be applied meanwhile. A synced record then names the directory.
//!
//! An **installation** copies the data of the application from the received database into a new keyspace. One synced batch
//! then writes the records "applied", which names the keyspace, and "snapshot". A crash before this batch leaves the old
//! state, and a crash after it the new one.

use std::iter;

use lsmx::ingest::BulkLoadOptions;
use lsmx::{Db, Keyspace, Options};
use lsmx_base::sync::Arc;
use openraft::SnapshotMeta;

use crate::config::StoreConfig;
use crate::error::Error;
use crate::record::{APPLIED, AppliedState, read_record};
use crate::snapshot::dir::SnapshotDir;
use crate::store::{CurrentSnapshot, META_KEYSPACE, Store, state_keyspace_name};

/// Memory budget for opening a snapshot as a read-only database. The replay of the log may exceed it.
const SNAPSHOT_MEMORY_BYTES: u64 = 16 << 20;

/// Creates a snapshot of the current state.
pub(crate) fn build_snapshot<C: StoreConfig>(
    store: &Store<C>,
) -> Result<CurrentSnapshot<C>, Error> {
    let (db, dir) = (store.db.as_blocking(), Arc::new(store.snapshots.new_dir()?));
    // A checkpoint copies the log segments with unflushed commits.
    db.flush()?;
    db.checkpoint(&dir.path)?;
    store.snapshots.sync()?;
    let (_, applied) = read_applied::<C>(&dir)?;
    let last = applied.last_log_id.as_ref().map_or("none".to_owned(), ToString::to_string);
    let meta = SnapshotMeta {
        snapshot_id: format!("{last}-{}", dir.name),
        last_log_id: applied.last_log_id,
        last_membership: applied.membership,
    };
    let snapshot = CurrentSnapshot { meta, dir };
    store.set_current_snapshot(snapshot.clone())?;
    Ok(snapshot)
}

/// Replaces the state machine by the contents of a snapshot directory. Returns the new state.
pub(crate) fn install_snapshot<C: StoreConfig>(
    store: &Store<C>,
    meta: &SnapshotMeta<C::NodeId, C::Node>,
    dir: Arc<SnapshotDir>,
) -> Result<AppliedState<C>, Error> {
    let (source, mut applied) = read_applied::<C>(&dir)?;
    if applied.last_log_id != meta.last_log_id || applied.membership != meta.last_membership {
        let id = |id: Option<&dyn ToString>| id.map_or("none".to_owned(), ToString::to_string);
        return Err(Error::SnapshotState {
            found: id(applied.last_log_id.as_ref().map(|it| it as &dyn ToString)),
            expected: id(meta.last_log_id.as_ref().map(|it| it as &dyn ToString)),
        });
    }
    let entries = source
        .open_keyspace(&state_keyspace_name(applied.keyspace), Some(store.state_options.clone()))?;
    let (number, keyspace) = create_state_keyspace(store)?;
    let mut loader = keyspace.bulk_loader(BulkLoadOptions::default())?;
    for entry in entries.iter() {
        // Each block that the iterator reads is verified by its checksum.
        let (key, value) = entry?;
        loader.put(key, value)?;
    }
    loader.finish()?;
    applied.keyspace = number;
    store.exchange_state(keyspace, &applied, CurrentSnapshot { meta: meta.clone(), dir })?;
    Ok(applied)
}

/// Opens the database of a snapshot and reads its state.
fn read_applied<C: StoreConfig>(dir: &SnapshotDir) -> Result<(Db, AppliedState<C>), Error> {
    let options = Options::default().read_only(true).memory_budget(SNAPSHOT_MEMORY_BYTES);
    let db = Db::open(&dir.path, options.vfs(Arc::clone(&dir.root.vfs)))?;
    let meta = db.open_keyspace(META_KEYSPACE, None)?;
    let applied = read_record(&meta, APPLIED)?.unwrap_or_default();
    Ok((db, applied))
}

/// Creates an empty keyspace for a state machine, with an unused number.
fn create_state_keyspace<C: StoreConfig>(store: &Store<C>) -> Result<(u64, Keyspace), Error> {
    let db = store.db.as_blocking();
    let names = db.keyspaces();
    // A failed installation may have left a keyspace.
    let is_free = |number: &u64| !names.contains(&state_keyspace_name(*number));
    let number = iter::successors(Some(0), |number| Some(number + 1)).find(is_free);
    let number = number.unwrap_or(u64::MAX);
    let keyspace = db.keyspace(&state_keyspace_name(number), store.state_options.clone())?;
    Ok((number, keyspace))
}
