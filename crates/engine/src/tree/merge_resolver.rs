//! Merge resolver: applies the merge operator of a keyspace and counts merges.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};

use crate::error::{Error, Result};
use crate::format::VALUE_BYTES_MAX;
use crate::merge_operator::{self, MergeError, MergeOperator};
use crate::tree::counters::add;
use crate::tree::keyspace_name::KeyspaceName;

/// Counters of merges.
#[derive(Debug, Default)]
pub(crate) struct FoldCounter {
    /// Number of merges.
    pub(crate) folds: AtomicU64,
    /// Total number of operands that were merged.
    pub(crate) operands: AtomicU64,
    /// Maximum number of operands in one merge.
    pub(crate) longest: AtomicU64,
}

impl FoldCounter {
    fn record(&self, operands: usize) {
        let operands = operands as u64;
        add(&self.folds, 1);
        add(&self.operands, operands);
        self.longest.fetch_max(operands, Ordering::Relaxed);
    }
}

/// Merge operator of a keyspace. The states of a follower share it.
#[derive(Debug, Default)]
struct OperatorSlot {
    /// Name of the merge operator in the manifest. Set before `operator`.
    name: OnceLock<String>,
    /// Merge operator. Set at most once, because operators with the same name are interchangeable.
    operator: OnceLock<Arc<dyn MergeOperator>>,
}

/// Merges the operands of a keyspace.
#[derive(Debug)]
pub(crate) struct MergeResolver {
    keyspace: Arc<KeyspaceName>,
    slot: Arc<OperatorSlot>,
    /// Merges by reads, and merges by writers in memtables.
    pub(crate) reads: FoldCounter,
    /// Merges by flushes and compactions.
    pub(crate) jobs: FoldCounter,
    /// Number of merges that failed.
    pub(crate) failures: AtomicU64,
    /// Number of combined values that point lookups stored.
    pub(crate) write_backs: AtomicU64,
    /// Whether a job had to keep operands because they could not be merged partially.
    has_unmergeable_operands: AtomicBool,
}

impl MergeResolver {
    /// Creates a resolver for a keyspace for which the manifest contains no merge operator yet.
    pub(crate) fn new(
        keyspace: Arc<KeyspaceName>,
        operator: Option<Arc<dyn MergeOperator>>,
    ) -> MergeResolver {
        let resolver = MergeResolver {
            keyspace,
            slot: Arc::default(),
            reads: FoldCounter::default(),
            jobs: FoldCounter::default(),
            failures: AtomicU64::new(0),
            write_backs: AtomicU64::new(0),
            has_unmergeable_operands: AtomicBool::new(false),
        };
        if let Some(operator) = operator {
            resolver.set_operator(operator);
        }
        resolver
    }

    /// Checks whether the keyspace may use a merge operator. Returns whether the manifest must record the name of the
    /// operator.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has a merge operator with another name.
    pub(crate) fn check_operator(&self, given: Option<&Arc<dyn MergeOperator>>) -> Result<bool> {
        let Some(given) = given else { return Ok(false) };
        self.name().map_or(Ok(true), |stored| {
            self.check_operator_name(stored, given.name()).map(|()| false)
        })
    }

    /// Sets the name that the manifest has recorded.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has a merge operator with another name.
    pub(crate) fn set_stored_name(&self, stored: String) -> Result<()> {
        let name = self.slot.name.get_or_init(|| stored.clone());
        self.check_operator_name(&stored, name)
    }

    fn check_operator_name(&self, stored: &str, given: &str) -> Result<()> {
        if stored == given {
            return Ok(());
        }
        Err(Error::Contradiction {
            first: format!("merge_operator = {given}"),
            second: format!("merge_operator = {stored} of keyspace {:?}", self.keyspace.get()),
            why: "a keyspace cannot change its merge operator",
        })
    }

    /// Sets the merge operator, which must have passed [`MergeResolver::check_operator`]. Does nothing if an operator
    /// is already set, or if another state of a follower has meanwhile read another name from the manifest.
    pub(crate) fn set_operator(&self, operator: Arc<dyn MergeOperator>) {
        let name = self.slot.name.get_or_init(|| operator.name().to_owned());
        if name == operator.name() {
            self.slot.operator.get_or_init(|| operator);
        }
    }

    /// Shares the merge operator with an earlier state of the keyspace in a follower, also if it is set later. Does nothing
    /// if the names of their operators differ.
    pub(crate) fn share_operator(&mut self, before: &MergeResolver) {
        if let Some(name) = self.name()
            && before.slot.name.get_or_init(|| name.to_owned()) != name
        {
            return;
        }
        if let Some(operator) = self.shared_operator() {
            before.set_operator(operator);
        }
        self.slot = Arc::clone(&before.slot);
    }

    /// Returns the name of the merge operator. The name is known even if the options contain no operator, because the
    /// manifest records it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.slot.name.get().map(String::as_str)
    }

    /// Returns the operator, if it is set.
    pub(crate) fn shared_operator(&self) -> Option<Arc<dyn MergeOperator>> {
        self.slot.operator.get().cloned()
    }

    /// Returns the merge operator.
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`] if the options contain no merge operator.
    pub(crate) fn operator(&self) -> Result<&dyn MergeOperator> {
        let operator = self.slot.operator.get().map(|operator| &**operator);
        operator.ok_or_else(|| Error::NoMergeOperator {
            keyspace: self.keyspace.get(),
            operator: self.name().map(str::to_owned),
        })
    }

    /// Merges operands for a read. `operands` is ordered from newest to oldest.
    ///
    /// # Errors
    /// - [`Error::NoMergeOperator`] if the options contain no merge operator.
    /// - [`Error::MergeFailed`] if the operator fails or panics.
    pub(crate) fn merge_for_read(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Result<Option<Slice>> {
        let value = self.merge_full(self.operator()?, key, base, operands);
        let value = value.map_err(|why| {
            let (keyspace, key) = (self.keyspace.get(), key.to_vec());
            Error::MergeFailed { keyspace, key, why }
        })?;
        self.reads.record(operands.len());
        Ok(value.map(Slice::from))
    }

    /// Merges operands for a job. `operands` is ordered from newest to oldest. Returns `None` if the merge fails, so
    /// that the job must keep the operands.
    pub(crate) fn merge_for_job(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Option<Option<Vec<u8>>> {
        let reversed: Vec<Slice>;
        let operands = match failpoint::is_on(Failpoint::OperandsReordered) {
            true => {
                reversed = operands.iter().rev().cloned().collect();
                &reversed
            }
            false => operands,
        };
        let value = self.merge_full(operator, key, base, operands).ok()?;
        self.jobs.record(operands.len());
        Some(value)
    }

    fn merge_full(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let oldest_first: Vec<&[u8]> = operands.iter().rev().map(|operand| &**operand).collect();
        let value =
            merge_operator::full_merge(operator, key, base, &oldest_first, value_bytes_max());
        if value.is_err() {
            add(&self.failures, 1);
        }
        value
    }

    /// Merges two operands for a job. Returns `None` if they cannot be merged partially, so that the job must keep
    /// both.
    pub(crate) fn merge_partial_for_job(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        older: &[u8],
        newer: &[u8],
    ) -> Option<Vec<u8>> {
        let merged = merge_operator::partial_merge(operator, key, older, newer, value_bytes_max());
        match merged {
            Some(_) => self.jobs.record(2),
            None => self.has_unmergeable_operands.store(true, Ordering::Relaxed),
        }
        merged
    }

    /// Merges two operands for an operand store. Returns `None` if the store must keep both.
    pub(crate) fn merge_partial_for_store(
        &self,
        key: &[u8],
        older: &[u8],
        newer: &[u8],
    ) -> Option<Vec<u8>> {
        let operator = self.slot.operator.get()?;
        let merged =
            merge_operator::partial_merge(&**operator, key, older, newer, value_bytes_max())?;
        self.jobs.record(2);
        Some(merged)
    }

    /// Returns whether jobs have kept operands that could not be merged partially.
    pub(crate) fn has_unmergeable_operands(&self) -> bool {
        self.has_unmergeable_operands.load(Ordering::Relaxed)
    }
}

/// Returns the maximum size in bytes of a value that a merge operator or a compaction filter may return.
pub(crate) fn value_bytes_max() -> usize {
    usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge_operator::Append;

    fn resolver(stored: Option<&str>) -> MergeResolver {
        let resolver = MergeResolver::new(KeyspaceName::new("keyspace"), None);
        if let Some(stored) = stored {
            resolver.set_stored_name(stored.to_owned()).unwrap();
        }
        resolver
    }

    #[test]
    fn operator_is_shared_unless_the_names_differ() {
        let operator: Arc<dyn MergeOperator> = Arc::new(Append::default());
        for (before, after, is_shared) in [
            (None, None, true),
            (None, Some("lsmx.append"), true),
            (Some("lsmx.append"), Some("lsmx.append"), true),
            (None, Some("other"), false),
            (Some("lsmx.append"), Some("other"), false),
        ] {
            let (before, mut after) = (resolver(before), resolver(after));
            after.share_operator(&before);
            before.set_operator(Arc::clone(&operator));
            assert_eq!(after.operator().is_ok(), is_shared);
        }
    }

    #[test]
    fn operator_of_options_is_shared_with_the_state_before() {
        let operator: Arc<dyn MergeOperator> = Arc::new(Append::default());
        let (before, mut after) = (resolver(None), resolver(None));
        after.set_operator(operator);
        after.share_operator(&before);
        assert!(before.operator().is_ok() && after.operator().is_ok());
    }
}
