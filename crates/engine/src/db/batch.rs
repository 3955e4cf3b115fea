//! The methods of [`WriteBatch`] that take a [`Keyspace`], which the module of [`WriteBatch`] must not import.

use std::ops::RangeBounds;
use std::time::{Duration, SystemTime};

use lsmx_base::key::{EntryKind, SeqNo};

use crate::db::keyspace::Keyspace;
use crate::env::{duration_us, unix_time_us};
use crate::write::batch::WriteBatch;

impl WriteBatch {
    /// Adds a write of a value.
    pub fn put(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) {
        self.add_put(keyspace.as_ref().tree(), key.as_ref(), value.as_ref());
    }

    /// Adds a write of a value that expires after `ttl`, counted from this call; see [`Keyspace::put_with_ttl`]. The
    /// value and its expiry time together have at most 1 GiB.
    pub fn put_with_ttl(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) {
        let (tree, ttl_us) = (keyspace.as_ref().tree(), duration_us(ttl));
        self.add_put_with_ttl(tree, key.as_ref(), value.as_ref(), ttl_us);
    }

    /// Adds a write of a value that expires at a time; see [`Keyspace::put_until`].
    pub fn put_until(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires: SystemTime,
    ) {
        let (tree, expiry_us) = (keyspace.as_ref().tree(), unix_time_us(expires));
        self.add_put_until(tree, key.as_ref(), value.as_ref(), expiry_us);
    }

    /// Adds a deletion of a key.
    pub fn delete(&mut self, keyspace: &impl AsRef<Keyspace>, key: impl AsRef<[u8]>) {
        self.add(keyspace.as_ref().tree(), EntryKind::Delete, key.as_ref(), &[]);
    }

    /// Adds a deletion of all keys of a range, including earlier writes of this batch. An empty range, such as
    /// `b..a`, adds nothing.
    pub fn delete_range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        range: impl RangeBounds<K>,
    ) {
        let start = range.start_bound().map(AsRef::as_ref);
        let end = range.end_bound().map(AsRef::as_ref);
        self.add_range_delete(keyspace.as_ref().tree(), start, end);
    }

    /// Adds a merge operand; see [`Keyspace::merge`]. The write of the batch fails with
    /// [`Error::NoMergeOperator`](crate::Error::NoMergeOperator) if the keyspace has no merge operator.
    pub fn merge(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) {
        self.add(keyspace.as_ref().tree(), EntryKind::Merge, key.as_ref(), operand.as_ref());
    }

    /// Adds the condition that a key was not written after the sequence number `read_seq`, such as that of
    /// [`Snapshot::seq`](crate::Snapshot::seq).
    ///
    /// The write fails with [`Error::Conflict`](crate::Error::Conflict) if the key was written or deleted after `read_seq`. It fails with
    /// [`Error::ConflictUnknown`](crate::Error::ConflictUnknown) if `read_seq` is older than the recent history, or than an ingest whose key range
    /// contains the key. In both cases the caller reads the key again and retries.
    ///
    /// The history consists of the memtables and of hashes of flushed keys. All keyspaces share the memory for hashes:
    /// 16 MiB, or 1/16 of a memory budget below 256 MiB. A flushed key needs 12 bytes, so 16 MiB are enough for the last
    /// 1.4 million. After the first range read of a transaction, a key needs 24 bytes. At most 1,024 flushes are kept,
    /// and a flush that alone exceeds the memory is not recorded. Under ordinary load, the history covers the last second.
    pub fn guard(
        &mut self,
        keyspace: &impl AsRef<Keyspace>,
        key: impl AsRef<[u8]>,
        read_seq: SeqNo,
    ) {
        self.add_guard(keyspace.as_ref().tree(), key.as_ref(), read_seq);
    }
}
