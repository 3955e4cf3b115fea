//! Reads beside `get` and `range`: many keys at once, both ends, sizes.

use std::ops::{Bound, RangeBounds};

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::db::{Db, DbInner, Keyspace, Snapshot};
use crate::env::Env;
use crate::error::Result;
use crate::lookup::batch;
use crate::lookup::batch::is_device;
use crate::lookup::point::Reads;
use crate::table::bytes_before;
use crate::tree::Tree;
use crate::tree::version::{SuperVersion, TableFile};

/// An entry of a keyspace: key and value.
pub type Entry = (Slice, Slice);

impl Keyspace {
    /// Whether `key` has a value.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The values of many keys as of one moment, in the order of `keys`. Looks them up in key order,
    /// so that neighbours share blocks and a key that is asked twice is looked up once. As soon as one has
    /// to wait for a device, the blocks that the others lack are read at once, not one after the other.
    ///
    /// # Errors
    /// As [`Db::get`]; one key that cannot be read fails the call.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.inner().multi_get(self.tree(), keys, None)
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn first(&self) -> Result<Option<Entry>> {
        self.iter().next().transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn last(&self) -> Result<Option<Entry>> {
        self.iter().next_back().transpose()
    }

    /// Bytes of table files that a range of keys takes, about: what is in memory, and what is
    /// shadowed or deleted and not compacted yet, is not told apart. Values that are kept apart in blob
    /// files do not count.
    ///
    /// A file that lies in the range counts whole. One that the range cuts counts with the share of
    /// its index blocks that lie inside, read from its top index: at each end of the range, and in
    /// each sorted run, the answer is wrong by at most what one index block covers (some hundred data
    /// blocks), or the file if that is smaller.
    ///
    /// # Errors
    /// As [`Db::get`], if a top index cannot be read.
    pub fn approximate_size<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let bound = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        self.inner().approximate_size(
            self.tree(),
            &bound(range.start_bound()),
            &bound(range.end_bound()),
        )
    }
}

impl Db {
    /// [`Keyspace::contains_key`] of the default keyspace.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// [`Keyspace::multi_get`] of the default keyspace.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.inner().multi_get(&self.inner().default_tree, keys, None)
    }
}

impl Snapshot {
    /// Whether `key` has a value at that number.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    /// [`Keyspace::multi_get`] at that number.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Slice>>> {
        self.check_sees(keyspace)?;
        keyspace.inner().multi_get(keyspace.tree(), keys, Some(self.seq()))
    }

    /// The entry with the smallest key at that number.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        self.iter(keyspace).next().transpose()
    }

    /// The entry with the largest key at that number.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<Entry>> {
        self.iter(keyspace).next_back().transpose()
    }
}

/// Many keys on their way to their values, in key order.
pub(crate) struct MultiGet<K> {
    view: Arc<SuperVersion>,
    seq: SeqNo,
    keys: Vec<K>,
    values: Vec<Option<Slice>>,
    /// Indexes of the keys in key order.
    order: Vec<usize>,
    /// As many of these have their values.
    done: usize,
}

impl<K: AsRef<[u8]>> MultiGet<K> {
    /// Looks up at most so many of those that are left; returns whether none is.
    ///
    /// # Errors
    /// As [`Db::get`]; with [`Error::WouldBlock`](crate::Error::WouldBlock) it can be called again.
    pub(crate) fn look_up(&mut self, tree: &Tree, reads: Reads, count: usize) -> Result<bool> {
        let end = self.done.saturating_add(count).min(self.order.len());
        while self.done < end {
            let at = self.order[self.done];
            let key = self.keys[at].as_ref();
            let before = self.done.checked_sub(1).map(|before| self.order[before]);
            self.values[at] = match before {
                Some(before) if self.keys[before].as_ref() == key => self.values[before].clone(),
                _ => crate::lookup::point::value(tree, &self.view, key, self.seq, reads)?,
            };
            self.done += 1;
        }
        Ok(self.done == self.order.len())
    }

    /// Looks up all that are left, one by one as long as that takes no longer than memory and the
    /// system's cache do, and from the first read of a device on together. Where time is driven nothing
    /// takes any: there it is always together from the second on.
    ///
    /// # Errors
    /// As [`Db::get`].
    pub(crate) fn look_up_all(&mut self, env: &Env, tree: &Tree) -> Result<()> {
        let mut now_ns = env.monotonic_ns();
        while !self.look_up(tree, Reads::Storage, 1)? {
            let before_ns = std::mem::replace(&mut now_ns, env.monotonic_ns());
            if is_device(env, now_ns.saturating_sub(before_ns)) {
                return self.look_up_batch(env, tree);
            }
        }
        Ok(())
    }

    /// Looks up all that are left, with what must be read for them read at once.
    fn look_up_batch(&mut self, env: &Env, tree: &Tree) -> Result<()> {
        // One that is asked twice is looked up once, on either side of the change.
        while self.done > 0
            && let (Some(&before), Some(&at)) =
                (self.order.get(self.done - 1), self.order.get(self.done))
            && self.keys[before].as_ref() == self.keys[at].as_ref()
        {
            self.values[at] = self.values[before].clone();
            self.done += 1;
        }
        let Some(left) = self.order.get(self.done..) else { return Ok(()) };
        let mut keys: Vec<&[u8]> = left.iter().map(|&at| self.keys[at].as_ref()).collect();
        keys.dedup();
        let values = batch::values(env, tree, &self.view, &keys, self.seq)?;
        // Both in key order.
        let mut found = keys.iter().zip(values).peekable();
        for &at in left {
            while found.next_if(|(key, _)| **key < self.keys[at].as_ref()).is_some() {}
            self.values[at] = found.peek().and_then(|(_, value)| value.clone());
        }
        self.done = self.order.len();
        Ok(())
    }

    /// The values, in the order of the keys.
    pub(crate) fn into_values(self, core: &DbInner, tree: &Tree) -> Vec<Option<Slice>> {
        for &at in &self.order {
            core.record_get(tree, self.keys[at].as_ref(), self.values[at].as_ref());
        }
        self.values
    }
}

impl DbInner {
    fn multi_get<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: impl IntoIterator<Item = K>,
        snapshot: Option<SeqNo>,
    ) -> Result<Vec<Option<Slice>>> {
        let mut lookups = self.begin_multi_get(tree, keys.into_iter().collect(), snapshot)?;
        lookups.look_up_all(&self.state.env, tree)?;
        Ok(lookups.into_values(self, tree))
    }

    /// Begins to look many keys up as of one moment.
    pub(crate) fn begin_multi_get<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: Vec<K>,
        snapshot: Option<SeqNo>,
    ) -> Result<MultiGet<K>> {
        self.check_open()?;
        self.begin_operation();
        tree.counters.gets.add(lsmx_base::coding::len_u64(keys.len()));
        // First the view, then the number: whatever the number promises is in the view.
        let view = tree.pin();
        if snapshot.is_none() {
            tree.check_live()?;
        }
        let seq = snapshot.unwrap_or_else(|| self.state.sequence.published());
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| keys[a].as_ref().cmp(keys[b].as_ref()));
        Ok(MultiGet { view, seq, values: vec![None; keys.len()], keys, order, done: 0 })
    }

    fn approximate_size(
        &self,
        tree: &Tree,
        lower: &Bound<Vec<u8>>,
        upper: &Bound<Vec<u8>>,
    ) -> Result<u64> {
        self.check_open()?;
        self.begin_operation();
        let view = tree.pin();
        tree.check_live()?;
        if let (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) = (lower, upper)
            && from > to
        {
            return Ok(0);
        }
        let mut bytes = 0u64;
        for table in view.version.runs().iter().flat_map(|run| run.tables().iter()) {
            bytes += bytes_between(table, lower, upper)?;
        }
        Ok(bytes)
    }
}

/// Bytes of a table between two bounds, about.
fn bytes_between(table: &TableFile, lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> Result<u64> {
    let (range, whole) = (&table.shape().range, table.shape().bytes);
    let from = match lower {
        Bound::Included(key) | Bound::Excluded(key) if **key > *range.smallest => {
            if **key > *range.largest { whole } else { bytes_before(table.table(), key)? }
        }
        _ => 0,
    };
    let to = match upper {
        Bound::Included(key) | Bound::Excluded(key) if **key < *range.largest => {
            if **key < *range.smallest { 0 } else { bytes_before(table.table(), key)? }
        }
        _ => whole,
    };
    Ok(to.saturating_sub(from))
}
