//! Point reads. They read from memory on the task. If this is not possible, they read from files on the blocking pool.

use ::tokio::task::{consume_budget, yield_now};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::keyspace::Keyspace;
use crate::db::multi_get::MultiGet;
use crate::db::snapshot::Snapshot;
use crate::error::{Error, Result};
use crate::lookup::point::ReadScope;
use crate::metrics::TimedOperation;
use crate::options::read::{ReadOptions, ReadTier};
use crate::tokio::inner::AsyncDbInner;
use crate::tokio::runtime::run_on_pool;

/// Options of a read on a task. The read fails with [`Error::WouldBlock`] if a block is not in memory.
pub(crate) const MEMORY_ONLY: ReadOptions = ReadOptions {
    tier: ReadTier::Memory,
    fill_cache: None,
    read_ahead_bytes_max: None,
    deadline: None,
};

/// Number of keys that are looked up before the task yields.
const KEYS_PER_YIELD: usize = 32;

/// Maximum number of keys that are looked up on a task. Sorting more keys would block the task for too long.
const KEYS_ON_TASK_MAX: usize = 1024;

/// Returns the value of `key` in `snapshot`. If there is no snapshot, returns the newest value.
pub(crate) async fn get(
    db: &Arc<AsyncDbInner>,
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    key: &[u8],
    options: &ReadOptions,
) -> Result<Option<Slice>> {
    read_key(db, keyspace, snapshot, (key, options), |keyspace, snapshot, key, options| {
        match snapshot {
            Some(snapshot) => snapshot.get_with(keyspace, key, options),
            None => keyspace.get_with(key, options),
        }
    })
    .await
}

/// Returns whether `key` has a value in `snapshot`. If there is no snapshot, returns whether it has one now.
pub(crate) async fn contains_key(
    db: &Arc<AsyncDbInner>,
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    key: &[u8],
) -> Result<bool> {
    let options = ReadOptions::default();
    read_key(db, keyspace, snapshot, (key, &options), |keyspace, snapshot, key, options| {
        match snapshot {
            Some(snapshot) => snapshot.contains_key_with(keyspace, key, options),
            None => keyspace.contains_key_with(key, options),
        }
    })
    .await
}

/// Reads a key with `read`: from memory on the task, or else on the blocking pool.
async fn read_key<T: Send + 'static>(
    db: &Arc<AsyncDbInner>,
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    (key, options): (&[u8], &ReadOptions),
    read: impl Fn(&Keyspace, Option<&Snapshot>, &[u8], &ReadOptions) -> Result<T> + Send + 'static,
) -> Result<T> {
    consume_budget().await;
    match read(keyspace, snapshot, key, &MEMORY_ONLY) {
        Err(Error::WouldBlock) if options.tier == ReadTier::Storage => {}
        result => return result,
    }
    let (key, options) = (key.to_vec(), *options);
    read_on_pool(db, keyspace, snapshot, move |keyspace, snapshot| {
        read(keyspace, snapshot, &key, &options)
    })
    .await
}

/// Returns the values of `keys` in `snapshot`. If there is no snapshot, all values belong to the newest state.
pub(crate) async fn multi_get<K: AsRef<[u8]> + Send + 'static>(
    db: &Arc<AsyncDbInner>,
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    keys: Vec<K>,
) -> Result<Vec<Option<Slice>>> {
    if keys.len() > KEYS_ON_TASK_MAX {
        return read_on_pool(db, keyspace, snapshot, |keyspace, snapshot| match snapshot {
            Some(snapshot) => snapshot.multi_get(keyspace, keys),
            None => keyspace.multi_get(keys),
        })
        .await;
    }
    if let Some(snapshot) = snapshot {
        snapshot.check_keyspace_visible(keyspace)?;
    }
    let (inner, tree) = (db.db_inner(), keyspace.tree());
    let (env, latencies) = (&inner.state.env, &inner.state.latencies);
    let start = latencies.start(env);
    let mut lookups = MultiGet::begin(inner, tree, keys, snapshot.map(Snapshot::read_point))?;
    loop {
        match lookups.look_up(tree, ReadScope::Memory, KEYS_PER_YIELD) {
            Ok(true) => {
                latencies.finish(env, TimedOperation::MultiGet, start);
                return Ok(lookups.into_values(inner, tree));
            }
            Ok(false) => yield_now().await,
            Err(Error::WouldBlock) => break,
            Err(error) => return Err(error),
        }
    }
    read_on_pool(db, keyspace, snapshot, move |keyspace, _| {
        let state = &keyspace.inner().state;
        lookups.look_up_all(&state.env, keyspace.tree())?;
        state.latencies.finish(&state.env, TimedOperation::MultiGet, start);
        Ok(lookups.into_values(keyspace.inner(), keyspace.tree()))
    })
    .await
}

/// Performs a read on the blocking pool. The snapshot stays open until the read ends.
async fn read_on_pool<T: Send + 'static>(
    db: &Arc<AsyncDbInner>,
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    read: impl FnOnce(&Keyspace, Option<&Snapshot>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (db, keyspace, snapshot) = (Arc::clone(db), keyspace.clone(), snapshot.cloned());
    run_on_pool(move || {
        let result = read(&keyspace, snapshot.as_ref());
        drop((keyspace, snapshot, db));
        result
    })
    .await
}
