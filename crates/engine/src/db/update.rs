//! Reading a key and writing it back as one atomic step.
//!
//! 1. Read the key as of the published number.
//! 2. Ask the caller what is to become of it.
//! 3. Commit that with a guard. If the guard is refused, or cannot be decided, repeat from 1.
//!
//! What makes it right is the guard alone. Taking *turns* is a courtesy: updates of the same key (and
//! of few others, there are as many turns as fit in an array) go one after the other, so that among
//! themselves none is ever refused and none starves. A turn is held while the caller's closure runs,
//! so nobody waits for one longer than [`TURN_PATIENCE_US`]: a closure that is slow, or that waits for
//! another update of the same key, costs others time or a refusal, never their progress.

use lsmx_base::coding::low_u32;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, Ordering, Signal};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::db::{DbInner, Keyspace};
use crate::env::{Env, WaitCause};
use crate::error::{Error, Result};
use crate::lookup::point::Reads;
use crate::options::write::WriteOptions;
use crate::tree::Tree;
use crate::write::batch::WriteBatch;

/// KeyLocks of one database.
const TURNS: usize = 64;
/// Longest wait for a turn before an update goes on without.
const TURN_PATIENCE_US: u64 = 20_000;

/// What is to become of a key that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// It stays as it is; nothing is written.
    Keep,
    /// It has no value any more.
    Delete,
    /// It has this value.
    Put(Vec<u8>),
}

impl From<Vec<u8>> for Update {
    fn from(value: Vec<u8>) -> Update {
        Update::Put(value)
    }
}

impl From<Option<Vec<u8>>> for Update {
    /// `None` deletes.
    fn from(value: Option<Vec<u8>>) -> Update {
        value.map_or(Update::Delete, Update::Put)
    }
}

/// Who may update which keys now.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    taken: [AtomicBool; TURNS],
    /// Given when a turn is over.
    released: Signal,
}

/// A turn, over when this is dropped.
#[derive(Debug)]
pub(crate) struct KeyLock<'a> {
    turns: &'a KeyLocks,
    taken: &'a AtomicBool,
}

impl KeyLocks {
    pub(crate) fn new() -> KeyLocks {
        KeyLocks { taken: std::array::from_fn(|_| AtomicBool::new(false)), released: Signal::new() }
    }

    /// Waits for the turn of a key; none if that takes too long.
    fn take(&self, env: &Env, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let mut turn = self.try_lock(tree, key);
        if turn.is_none() {
            let until = Some(self.wait_limit_us(env));
            env.wait(WaitCause::Update, &self.released, until, &mut || {
                turn = self.try_lock(tree, key);
                turn.is_some()
            });
        }
        turn
    }

    /// The turn of a key, if it is free.
    pub(crate) fn try_lock(&self, tree: &Tree, key: &[u8]) -> Option<KeyLock<'_>> {
        let hash = xxh3_64_with_seed(key, u64::from(tree.id));
        let taken = &self.taken[low_u32(hash) as usize % TURNS];
        let free = !taken.swap(true, Ordering::Acquire);
        free.then(|| KeyLock { turns: self, taken })
    }

    /// When who waits for a turn from now on goes on without.
    pub(crate) fn wait_limit_us(&self, env: &Env) -> u64 {
        env.now_us().saturating_add(TURN_PATIENCE_US)
    }

    /// Given when a turn is over.
    #[cfg(feature = "tokio")]
    pub(crate) fn released(&self) -> &Signal {
        &self.released
    }
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
        self.turns.released.notify();
    }
}

/// A key before and after an update.
pub(crate) struct UpdateResult {
    pub(crate) before: Option<Slice>,
    pub(crate) after: Option<Slice>,
}

impl Keyspace {
    /// Changes the value of `key` by a function of the value, atomically; returns the value before,
    /// whether or not it was changed. `Buffered`.
    ///
    /// `update` may be called several times, each time with the value as it is then, and the last
    /// call counts; it must have no other effect. Its result is an [`Update`], the new value, or an
    /// `Option` of one, where `None` deletes. It may call the database, this method included: a
    /// commit of its own that writes the same key makes it be called again, without end if it does
    /// so each time. If it panics, nothing is written.
    ///
    /// # Errors
    /// As [`Keyspace::get`] and [`Db::write`](crate::Db::write), except [`Error::GuardRefused`] and
    /// [`Error::GuardUnknown`], after which it retries.
    pub fn fetch_update<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        self.fetch_update_with(key, WriteOptions::default(), update)
    }

    /// [`Keyspace::fetch_update`] with options. The deadline is that of each try.
    ///
    /// # Errors
    /// As [`Keyspace::fetch_update`].
    pub fn fetch_update_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
        mut update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        let update = &mut |old: Option<&[u8]>| update(old).into();
        let updated = self.inner().update(self.tree(), key.as_ref(), options.into(), update);
        updated.map(|updated| updated.before)
    }

    /// [`Keyspace::fetch_update`], but returns the value after.
    ///
    /// # Errors
    /// As [`Keyspace::fetch_update`].
    pub fn update_fetch<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        self.update_fetch_with(key, WriteOptions::default(), update)
    }

    /// [`Keyspace::update_fetch`] with options. The deadline is that of each try.
    ///
    /// # Errors
    /// As [`Keyspace::fetch_update`].
    pub fn update_fetch_with<U: Into<Update>>(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<WriteOptions>,
        mut update: impl FnMut(Option<&[u8]>) -> U,
    ) -> Result<Option<Slice>> {
        let update = &mut |old: Option<&[u8]>| update(old).into();
        let updated = self.inner().update(self.tree(), key.as_ref(), options.into(), update);
        updated.map(|updated| updated.after)
    }
}

impl DbInner {
    fn update(
        &self,
        tree: &Arc<Tree>,
        key: &[u8],
        options: WriteOptions,
        update: &mut dyn FnMut(Option<&[u8]>) -> Update,
    ) -> Result<UpdateResult> {
        self.check_open()?;
        let _turn = self.key_locks.take(&self.state.env, tree, key);
        loop {
            self.begin_operation();
            let (read, before) = self.read_to_update(tree, key, Reads::Storage)?;
            let (updated, batch) = apply_update(tree, key, read, before, update);
            let Some(batch) = batch else { return Ok(updated) };
            match self.write(batch, options) {
                // Another commit wrote the key, or so much was written meanwhile that the history does
                // not reach back to the read. Each retry implies progress of other commits.
                Err(Error::GuardRefused { .. } | Error::GuardUnknown { .. }) => {}
                written => return written.map(|()| updated),
            }
        }
    }

    /// The value of a key that is about to be updated, and the number it was read at.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub(crate) fn read_to_update(
        &self,
        tree: &Tree,
        key: &[u8],
        reads: Reads,
    ) -> Result<(SeqNo, Option<Slice>)> {
        // First the view, then the number: whatever the number promises is in the view. It is
        // let go before the closure runs, which may take its time.
        let (read, before) = {
            let view = tree.pin();
            let read = self.state.sequence.published();
            (read, crate::lookup::point::value(tree, &view, key, read, reads))
        };
        if !matches!(before, Err(Error::WouldBlock)) {
            tree.counters.gets.add(1);
        }
        let before = before?;
        self.record_get(tree, key, before.as_ref());
        Ok((read, before))
    }
}

/// What an update makes of a key, and the batch that does it, unless it stays as it is.
pub(crate) fn apply_update(
    tree: &Arc<Tree>,
    key: &[u8],
    read: SeqNo,
    before: Option<Slice>,
    update: &mut dyn FnMut(Option<&[u8]>) -> Update,
) -> (UpdateResult, Option<WriteBatch>) {
    let after = match update(before.as_deref()) {
        Update::Keep => return (UpdateResult { after: before.clone(), before }, None),
        Update::Delete => None,
        Update::Put(value) => Some(Slice::from(value)),
    };
    let value = after.as_deref().unwrap_or_default();
    let kind = if after.is_some() { EntryKind::Put } else { EntryKind::Delete };
    let mut batch = WriteBatch::for_one(tree.id, key, value);
    batch.add(tree, kind, key, value);
    if !failpoint::is_on(Failpoint::UpdateWithoutGuard) {
        batch.add_guard(tree, key, read);
    }
    (UpdateResult { before, after }, Some(batch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;
    use crate::vfs::MemVfs;
    use crate::{Db, Durability, Options};

    fn open() -> Db {
        let options = Options::default().background(Background::Inline);
        Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
    }

    #[test]
    fn the_value_before_or_after_is_returned() {
        let keyspace = open().default_keyspace();
        let append = |old: Option<&[u8]>| [old.unwrap_or_default(), b"x"].concat();
        assert_eq!(keyspace.fetch_update("k", append).unwrap(), None);
        assert_eq!(keyspace.fetch_update("k", append).unwrap().as_deref(), Some(&b"x"[..]));
        let after = keyspace.update_fetch_with("k", Durability::Sync, append).unwrap();
        assert_eq!(after.as_deref(), Some(&b"xxx"[..]));
        assert!(keyspace.fetch_update("k", |_| Update::Keep).unwrap().is_some());
        assert_eq!(keyspace.update_fetch("k", |_| None::<Vec<u8>>).unwrap(), None);
        assert_eq!(keyspace.get("k").unwrap(), None);
    }

    #[test]
    fn a_closure_that_calls_the_database_gets_on() {
        let keyspace = open().default_keyspace();
        let mut calls = 0;
        let update = |old: Option<&[u8]>| {
            calls += 1;
            if calls == 1 {
                // The same key, whose turn is ours, from within.
                keyspace.fetch_update("k", |_| b"inner".to_vec()).unwrap();
            }
            [old.unwrap_or(b"none"), b"+"].concat()
        };
        let after = keyspace.update_fetch("k", update).unwrap();
        assert_eq!((after.as_deref(), calls), (Some(&b"inner+"[..]), 2));
    }

    #[test]
    fn a_closure_that_panics_leaves_nothing_behind() {
        let keyspace = open().default_keyspace();
        let panic = |_: Option<&[u8]>| -> Update { panic!("not today") };
        let call = || keyspace.fetch_update("k", panic);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert_eq!(keyspace.update_fetch("k", |_| b"v".to_vec()).unwrap().unwrap(), b"v");
    }
}
