//! Lookup of many keys at one sequence number.

use std::mem;

use lsmx_base::coding::len_u64;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::db::point_read;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::lookup::batch::{self, is_device_read};
use crate::lookup::point::{self, ReadScope};
use crate::metrics::TimedOperation;
use crate::tree::Tree;
use crate::tree::snapshots::ReadPoint;
use crate::tree::super_version::SuperVersion;

/// Returns the value of each key, as of `snapshot` if given.
pub(super) fn multi_get<K: AsRef<[u8]>>(
    inner: &DbInner,
    tree: &Tree,
    keys: impl IntoIterator<Item = K>,
    snapshot: Option<ReadPoint>,
) -> Result<Vec<Option<Slice>>> {
    let (env, latencies) = (&inner.state.env, &inner.state.latencies);
    let start = latencies.start(env);
    let mut multi_get = MultiGet::begin(inner, tree, keys.into_iter().collect(), snapshot)?;
    multi_get.look_up_all(env, tree)?;
    latencies.finish(env, TimedOperation::MultiGet, start);
    Ok(multi_get.into_values(inner, tree))
}

/// A lookup of many keys in key order.
pub(crate) struct MultiGet<K> {
    view: Arc<SuperVersion>,
    read_point: ReadPoint,
    keys: Vec<K>,
    values: Vec<Option<Slice>>,
    /// Indexes into `keys` in key order.
    order: Vec<usize>,
    /// Number of completed lookups, in key order.
    done: usize,
}

impl<K: AsRef<[u8]>> MultiGet<K> {
    /// Pins a view for the lookup of many keys.
    pub(crate) fn begin(
        inner: &DbInner,
        tree: &Tree,
        keys: Vec<K>,
        snapshot: Option<ReadPoint>,
    ) -> Result<MultiGet<K>> {
        inner.check_open()?;
        inner.begin_operation();
        let (view, read_point) = match snapshot {
            Some(snapshot) => (tree.pin_super_version(), snapshot),
            None => inner.state.pin_newest(tree, Tree::pin_super_version),
        };
        if snapshot.is_none() {
            tree.check_live()?;
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| keys[a].as_ref().cmp(keys[b].as_ref()));
        Ok(MultiGet { view, read_point, values: vec![None; keys.len()], keys, order, done: 0 })
    }

    /// Looks up at most `count` of the remaining keys. Returns true if no key remains.
    ///
    /// # Errors
    /// The errors of [`Db::get`](crate::Db::get). After [`Error::WouldBlock`](crate::Error::WouldBlock), the caller may
    /// call this method again.
    pub(crate) fn look_up(&mut self, tree: &Tree, reads: ReadScope, count: usize) -> Result<bool> {
        let end = self.done.saturating_add(count).min(self.order.len());
        while self.done < end {
            if self.copy_duplicate() {
                continue;
            }
            let index = self.order[self.done];
            let key = self.keys[index].as_ref();
            let read = point::get(tree, &self.view, key, self.read_point, reads);
            self.values[index] = read.map_err(|error| self.count_failure(tree, error))?;
            self.done += 1;
        }
        Ok(self.done == self.order.len())
    }

    /// If the next key equals the previous key, copies its value and returns true.
    fn copy_duplicate(&mut self) -> bool {
        let Some(&index) = self.order.get(self.done) else { return false };
        let Some(&previous) = self.done.checked_sub(1).and_then(|at| self.order.get(at)) else {
            return false;
        };
        let is_duplicate = self.keys[previous].as_ref() == self.keys[index].as_ref();
        if is_duplicate {
            self.values[index] = self.values[previous].clone();
            self.done += 1;
        }
        is_duplicate
    }

    /// Looks up all remaining keys.
    ///
    /// Looks up one key at a time until a lookup reads from the device. The blocks of all remaining keys are then read
    /// concurrently. With a simulated clock, device reads cannot be detected, so the concurrent reads start at the
    /// second key.
    ///
    /// # Errors
    /// Errors of [`Db::get`](crate::Db::get).
    pub(crate) fn look_up_all(&mut self, env: &Env, tree: &Tree) -> Result<()> {
        let mut now_ns = env.monotonic_ns();
        while !self.look_up(tree, ReadScope::Storage, 1)? {
            let before_ns = mem::replace(&mut now_ns, env.monotonic_ns());
            if is_device_read(env, now_ns.saturating_sub(before_ns)) {
                return self.look_up_batch(env, tree);
            }
        }
        Ok(())
    }

    /// Looks up all remaining keys with concurrent reads.
    fn look_up_batch(&mut self, env: &Env, tree: &Tree) -> Result<()> {
        while self.copy_duplicate() {}
        let Some(remaining) = self.order.get(self.done..) else { return Ok(()) };
        let mut keys: Vec<&[u8]> = remaining.iter().map(|&at| self.keys[at].as_ref()).collect();
        keys.dedup();
        let values = batch::multi_get(env, tree, &self.view, &keys, self.read_point)
            .map_err(|error| self.count_failure(tree, error))?;
        // `keys` and `remaining` are both in key order.
        let mut found = keys.iter().zip(values).peekable();
        for &index in remaining {
            while found.next_if(|(key, _)| **key < self.keys[index].as_ref()).is_some() {}
            self.values[index] = found.peek().and_then(|(_, value)| value.clone());
        }
        self.done = self.order.len();
        Ok(())
    }

    /// Counts all keys as failed gets, unless the caller repeats the lookup.
    fn count_failure(&self, tree: &Tree, error: Error) -> Error {
        if !matches!(error, Error::WouldBlock) {
            tree.counters.count_failed_gets(len_u64(self.keys.len()));
        }
        error
    }

    /// Returns the values in the order of the keys, counts the lookups, and records them in the active trace.
    pub(crate) fn into_values(self, inner: &DbInner, tree: &Tree) -> Vec<Option<Slice>> {
        let values = self.values.iter().map(Option::as_ref);
        tree.counters.count_multi_get(self.keys.iter().map(AsRef::as_ref).zip(values));
        for &index in &self.order {
            let value_bytes = self.values[index].as_ref().map(|value| len_u64(value.len()));
            point_read::record_get(inner, tree, self.keys[index].as_ref(), value_bytes);
        }
        self.values
    }
}
