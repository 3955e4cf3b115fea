//! Writes that tests apply both to a database and to its model.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lsmx::{Keyspace, MergeOperator, Result, Transaction, WriteBatch};

/// A key or a value.
pub type Bytes = Arc<[u8]>;
/// Contents of a keyspace.
pub type Pairs = BTreeMap<Bytes, Bytes>;
/// Bounds of a key range. The end may be before the start, in which case the range is empty.
pub type Bounds = (Bound<Bytes>, Bound<Bytes>);

#[derive(Clone, Debug)]
pub enum Change {
    /// Key and value.
    Put(Bytes, Bytes),
    /// Key, value, and expiry time in microseconds of the database clock.
    PutUntil(Bytes, Bytes, u64),
    /// Key, value and time to live, and an expiry time for the model in microseconds. All reads take place either before
    /// the value expires, or after the expiry time for the model.
    PutWithTtl(Bytes, Bytes, Duration, u64),
    Delete(Bytes),
    /// Key and operand.
    Merge(Bytes, Bytes),
    DeleteRange(Bounds),
}

pub(super) fn is_within(bounds: &Bounds, key: &Bytes) -> bool {
    bounds.contains(key)
}

pub(super) fn system_time(us: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(us)
}

impl Change {
    /// Returns the key. Panics if the write is a range delete.
    pub(super) fn key(&self) -> &Bytes {
        match self {
            Change::Put(key, _)
            | Change::PutUntil(key, ..)
            | Change::PutWithTtl(key, ..)
            | Change::Delete(key)
            | Change::Merge(key, _) => key,
            Change::DeleteRange(_) => panic!("a range delete has no key"),
        }
    }

    /// Returns the value if the write is a put.
    pub(super) fn value_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            Change::Put(_, value)
            | Change::PutUntil(_, value, _)
            | Change::PutWithTtl(_, value, ..) => Some(value),
            Change::Delete(_) | Change::Merge(..) | Change::DeleteRange(_) => None,
        }
    }

    pub fn add_to(&self, batch: &mut WriteBatch, keyspace: &Keyspace) {
        match self {
            Change::Put(key, value) => batch.put(keyspace, key, value),
            Change::PutUntil(key, value, us) => {
                batch.put_until(keyspace, key, value, system_time(*us));
            }
            Change::PutWithTtl(key, value, ttl, _) => {
                batch.put_with_ttl(keyspace, key, value, *ttl);
            }
            Change::Delete(key) => batch.delete(keyspace, key),
            Change::Merge(key, operand) => batch.merge(keyspace, key, operand),
            Change::DeleteRange(bounds) => batch.delete_range::<Bytes>(keyspace, bounds.clone()),
        }
    }

    /// Adds the write to a transaction.
    ///
    /// # Errors
    /// Returns the error of the [`Transaction`] method.
    pub fn add_to_transaction(&self, tx: &Transaction, keyspace: &Keyspace) -> Result<()> {
        match self {
            Change::Put(key, value) => tx.put(keyspace, key, value),
            Change::PutUntil(key, value, us) => {
                tx.put_until(keyspace, key, value, system_time(*us))
            }
            Change::PutWithTtl(key, value, ttl, _) => tx.put_with_ttl(keyspace, key, value, *ttl),
            Change::Delete(key) => tx.delete(keyspace, key),
            Change::Merge(key, operand) => tx.merge(keyspace, key, operand),
            Change::DeleteRange(bounds) => tx.delete_range::<Bytes>(keyspace, bounds.clone()),
        }
    }

    /// Commits the write alone.
    ///
    /// # Errors
    /// Returns the error of the [`Keyspace`] method.
    pub fn commit(&self, keyspace: &Keyspace) -> Result<()> {
        match self {
            Change::Put(key, value) => keyspace.put(key, value),
            Change::PutUntil(key, value, us) => keyspace.put_until(key, value, system_time(*us)),
            Change::PutWithTtl(key, value, ttl, _) => keyspace.put_with_ttl(key, value, *ttl),
            Change::Delete(key) => keyspace.delete(key),
            Change::Merge(key, operand) => keyspace.merge(key, operand),
            Change::DeleteRange(bounds) => keyspace.delete_range::<Bytes>(bounds.clone()),
        }
    }

    /// Applies the write to a model of the keyspace. The caller removes values that have expired.
    pub fn apply(&self, pairs: &mut Pairs, operator: &dyn MergeOperator) {
        match self {
            Change::Put(key, value)
            | Change::PutUntil(key, value, _)
            | Change::PutWithTtl(key, value, ..) => {
                drop(pairs.insert(Arc::clone(key), Arc::clone(value)));
            }
            Change::Delete(key) => drop(pairs.remove(key)),
            Change::Merge(key, operand) => {
                let base = pairs.remove(key);
                let merged = operator.full_merge(key, base.as_deref(), &[operand]);
                let merged = merged.expect("the operators of tests return no errors");
                pairs.extend(merged.map(|value| (Arc::clone(key), Bytes::from(value))));
            }
            Change::DeleteRange(bounds) => pairs.retain(|key, _| !is_within(bounds, key)),
        }
    }
}
