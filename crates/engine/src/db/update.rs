//! Atomic read-modify-write of one key.
//!
//! 1. Load the published sequence number for the guard, and then read the key.
//! 2. Call the closure of the caller with the value.
//! 3. Commit the result with a guard on the key. If the guard fails or cannot be checked, repeat from step 1.
//!
//! The guard alone makes the update atomic. Key locks only avoid conflicts between concurrent updates of a key, so that
//! no update starves. The closure runs under the lock, and may itself wait for another update of the same key.
//! Therefore an update waits at most [`LOCK_WAIT_US_MAX`](crate::db::key_locks::LOCK_WAIT_US_MAX) for the lock and then
//! continues without it.

use std::time::{Duration, SystemTime};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::EntryKind;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::db::point_read::{ReadToUpdate, read_to_update};
use crate::db::write::write;
use crate::env::{duration_us, unix_time_us};
use crate::error::{Error, Result};
use crate::lookup::point::ReadScope;
use crate::metrics::TimedOperation;
use crate::options::write::WriteOptions;
use crate::tree::Tree;
use crate::write::batch::WriteBatch;

/// The result of an update function.
///
/// The variants that set or keep an expiry time correspond to [`Keyspace::put_with_ttl`](crate::Keyspace::put_with_ttl)
/// and [`Keyspace::put_until`](crate::Keyspace::put_until). In a keyspace with an operand store, an update fails with
/// [`Error::ExpiryRefused`] if its value would expire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Update {
    /// Leaves the key unchanged, without a write. The value keeps its expiry time.
    Keep,
    /// Deletes the key.
    Delete,
    /// Replaces the value. The new value expires only if the keyspace has a
    /// [default time to live](crate::KeyspaceOptions::default_ttl), counted from the update.
    Put(Vec<u8>),
    /// Replaces the value. The new value expires after the duration, counted from the update.
    PutWithTtl(Vec<u8>, Duration),
    /// Replaces the value. The new value expires at the time.
    PutUntil(Vec<u8>, SystemTime),
    /// Replaces the value and keeps its expiry time. If the previous value does not expire, the new value does not
    /// expire either. A key without a value is written as by [`Update::Put`].
    ///
    /// A value that was combined from merge operands has the expiry time of the value below the operands.
    PutKeepExpiry(Vec<u8>),
}

impl From<Vec<u8>> for Update {
    fn from(value: Vec<u8>) -> Update {
        Update::Put(value)
    }
}

impl From<Option<Vec<u8>>> for Update {
    /// Returns [`Update::Delete`] for `None`.
    fn from(value: Option<Vec<u8>>) -> Update {
        value.map_or(Update::Delete, Update::Put)
    }
}

/// Values of a key before and after an update.
pub(crate) struct UpdateResult {
    pub(crate) before: Option<Slice>,
    pub(crate) after: Option<Slice>,
}

/// Updates a key by a function of its value.
pub(crate) fn update(
    inner: &DbInner,
    tree: &Arc<Tree>,
    key: &[u8],
    options: WriteOptions,
    update: &mut dyn FnMut(Option<&[u8]>) -> Update,
) -> Result<UpdateResult> {
    let (env, latencies) = (&inner.state.env, &inner.state.latencies);
    let start = latencies.start(env);
    let result = update_unmeasured(inner, tree, key, options, update)?;
    latencies.finish(env, TimedOperation::Update, start);
    Ok(result)
}

fn update_unmeasured(
    inner: &DbInner,
    tree: &Arc<Tree>,
    key: &[u8],
    options: WriteOptions,
    update: &mut dyn FnMut(Option<&[u8]>) -> Update,
) -> Result<UpdateResult> {
    inner.check_open()?;
    let _lock = inner.key_locks.lock(&inner.state.env, tree, key);
    loop {
        inner.begin_operation();
        let read = read_to_update(inner, tree, key, None, ReadScope::Storage)?;
        let (result, batch) = apply_update(tree, key, read, update);
        let Some(batch) = batch else { return Ok(result) };
        match write(inner, batch, options) {
            // Another commit wrote the key, or the history does not reach back to the guard. Each retry implies that
            // other commits succeeded.
            Err(Error::Conflict { .. } | Error::ConflictUnknown { .. }) => {}
            written => return written.map(|()| result),
        }
    }
}

/// Calls the update function. Returns the batch to commit, or `None` if the key stays the same.
pub(crate) fn apply_update(
    tree: &Arc<Tree>,
    key: &[u8],
    read: ReadToUpdate,
    update: &mut dyn FnMut(Option<&[u8]>) -> Update,
) -> (UpdateResult, Option<WriteBatch>) {
    let ReadToUpdate { guard_seq, value: before, expiry_us } = read;
    let default_expiry_us = || tree.default_ttl_us().map(|ttl_us| tree.expiry_us_after(ttl_us));
    let (after, expiry_us) = match update(before.as_deref()) {
        Update::Keep => return (UpdateResult { after: before.clone(), before }, None),
        Update::Delete => (None, None),
        Update::Put(value) => (Some(value), default_expiry_us()),
        Update::PutWithTtl(value, ttl) => {
            (Some(value), Some(tree.expiry_us_after(duration_us(ttl))))
        }
        Update::PutUntil(value, expires) => (Some(value), Some(unix_time_us(expires))),
        Update::PutKeepExpiry(value) if before.is_some() => (Some(value), expiry_us),
        Update::PutKeepExpiry(value) => (Some(value), default_expiry_us()),
    };
    let after = after.map(Slice::from);
    let mut batch = WriteBatch::with_one_put(tree.id, key, after.as_deref().unwrap_or_default());
    match (&after, expiry_us) {
        (None, _) => batch.add(tree, EntryKind::Delete, key, &[]),
        (Some(value), None) => batch.add(tree, EntryKind::Put, key, value),
        (Some(value), Some(expiry_us)) => batch.add_put_until(tree, key, value, expiry_us),
    }
    if !failpoint::is_on(Failpoint::UpdateWithoutGuard) {
        batch.add_guard(tree, key, guard_seq);
    }
    (UpdateResult { before, after }, Some(batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::options::write::Durability;
    use crate::vfs::MemVfs;

    fn open() -> Db {
        let options = Options::default().background(Background::Inline);
        Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
    }

    #[test]
    fn fetch_update_and_update_fetch_return_old_and_new_value() {
        let keyspace = open().default_keyspace();
        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"x"].concat();
        assert_eq!(keyspace.fetch_update("k", append).unwrap(), None);
        assert_eq!(keyspace.fetch_update("k", append).unwrap().as_deref(), Some(&b"x"[..]));
        let after =
            keyspace.with_write_options(Durability::Sync).update_fetch("k", append).unwrap();
        assert_eq!(after.as_deref(), Some(&b"xxx"[..]));
        assert!(keyspace.fetch_update("k", |_| Update::Keep).unwrap().is_some());
        assert_eq!(keyspace.update_fetch("k", |_| None::<Vec<u8>>).unwrap(), None);
        assert_eq!(keyspace.get("k").unwrap(), None);
    }

    #[test]
    fn update_closure_updates_same_key_is_retried() {
        let keyspace = open().default_keyspace();
        let mut calls = 0;
        let update = |old: Option<&[u8]>| {
            calls += 1;
            if calls == 1 {
                // The outer update holds the lock of this key.
                keyspace.fetch_update("k", |_| b"inner".to_vec()).unwrap();
            }
            [old.unwrap_or(b"none"), b"+"].concat()
        };
        let after = keyspace.update_fetch("k", update).unwrap();
        assert_eq!((after.as_deref(), calls), (Some(&b"inner+"[..]), 2));
    }

    #[test]
    fn update_memtable_sealed_and_key_put_during_read_is_atomic() {
        for seed in 0..2_000 {
            let options = Options::default().background(Background::Stepped { seed, workers: 1 });
            let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
            let (keyspace, writer) = (db.default_keyspace(), db.default_keyspace());
            keyspace.put("other", "v").unwrap();
            let put = move || {
                let tree = Arc::clone(writer.tree());
                writer.inner().committer.seal_memtables(vec![tree], None).unwrap();
                writer.put("k", "put").unwrap();
            };
            let thread = db.inner().state.env.spawn("writer", put).unwrap();
            let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"+"].concat();
            let before = keyspace.fetch_update("k", append).unwrap();
            db.inner().state.env.join(thread).unwrap();
            let expected: &[u8] = if before.is_some() { b"put+" } else { b"put" };
            assert_eq!(&*db.get("k").unwrap().unwrap(), expected, "seed {seed}");
        }
    }

    #[test]
    fn update_closure_panics_releases_lock() {
        let keyspace = open().default_keyspace();
        let panic = |_: Option<&[u8]>| -> Update { panic!("update closure") };
        let call = || keyspace.fetch_update("k", panic);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert_eq!(keyspace.update_fetch("k", |_| b"v".to_vec()).unwrap().unwrap(), b"v");
    }
}
