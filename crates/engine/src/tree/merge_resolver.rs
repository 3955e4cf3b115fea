//! The merge operator of one keyspace and its counters.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};

use crate::error::{Error, Result};
use crate::format::VALUE_BYTES_MAX;
use crate::merge_operator::{self, MergeError, MergeOperator};
use crate::tree::counters::add;

/// Counters of merges.
#[derive(Debug, Default)]
pub(crate) struct FoldCounter {
    /// Number of merges.
    pub(crate) folds: AtomicU64,
    /// Number of merged operands.
    pub(crate) operands: AtomicU64,
    /// Maximum number of operands of one merge.
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

/// Merges the operands of one keyspace.
#[derive(Debug)]
pub(crate) struct MergeResolver {
    keyspace: String,
    /// Name of the operator in the manifest. Set before the operator.
    name: OnceLock<String>,
    /// Set at most once. Operators of the same name are interchangeable.
    operator: OnceLock<Arc<dyn MergeOperator>>,
    /// Merges by readers, and by writers in memtables.
    pub(crate) reads: FoldCounter,
    /// Merges by flushes and compactions.
    pub(crate) jobs: FoldCounter,
    /// Number of failed merges.
    pub(crate) failures: AtomicU64,
    /// Number of folded values that point lookups stored.
    pub(crate) write_backs: AtomicU64,
    /// Whether a job had to keep operands that do not merge partially.
    has_unmergeable_operands: AtomicBool,
}

impl MergeResolver {
    /// Returns the resolver of a keyspace whose operator has no stored name.
    pub(crate) fn new(keyspace: String, operator: Option<Arc<dyn MergeOperator>>) -> MergeResolver {
        let resolver = MergeResolver {
            keyspace,
            name: OnceLock::new(),
            operator: OnceLock::new(),
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

    /// Checks whether the keyspace may use this operator. Returns whether its name must be stored in the manifest.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has an operator of another name.
    pub(crate) fn check_operator(&self, given: Option<&Arc<dyn MergeOperator>>) -> Result<bool> {
        let Some(given) = given else { return Ok(false) };
        self.name().map_or(Ok(true), |stored| {
            self.check_operator_name(stored, given.name()).map(|()| false)
        })
    }

    /// Sets the name that is stored in the manifest.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has an operator of another name.
    pub(crate) fn set_stored_name(&self, stored: String) -> Result<()> {
        let name = self.name.get_or_init(|| stored.clone());
        self.check_operator_name(&stored, name)
    }

    fn check_operator_name(&self, stored: &str, given: &str) -> Result<()> {
        if stored == given {
            return Ok(());
        }
        Err(Error::Contradiction {
            first: format!("merge_operator = {given}"),
            second: format!("merge_operator = {stored} of keyspace {:?}", self.keyspace),
            why: "a keyspace cannot change its merge operator",
        })
    }

    /// Sets an operator that passed [`MergeResolver::check_operator`]. Has no effect if an operator is already set.
    pub(crate) fn set_operator(&self, operator: Arc<dyn MergeOperator>) {
        self.name.get_or_init(|| operator.name().to_owned());
        self.operator.get_or_init(|| operator);
    }

    /// Returns the name of the merge operator. The manifest stores it, so it is known even if the options do not have the
    /// operator.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Returns the operator.
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`].
    pub(crate) fn operator(&self) -> Result<&dyn MergeOperator> {
        self.operator.get().map(|operator| &**operator).ok_or_else(|| Error::NoMergeOperator {
            keyspace: self.keyspace.clone(),
            operator: self.name.get().cloned(),
        })
    }

    /// Merges operands, newest first, for a reader.
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`], [`Error::MergeFailed`].
    pub(crate) fn merge_for_read(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Result<Option<Slice>> {
        let value = self.merge_full(self.operator()?, key, base, operands);
        let value = value.map_err(|why| {
            let (keyspace, key) = (self.keyspace.clone(), key.to_vec());
            Error::MergeFailed { keyspace, key, why }
        })?;
        self.reads.record(operands.len());
        Ok(value.map(Slice::from))
    }

    /// Merges operands, newest first, for a job. Returns `None` if the operands must be kept.
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

    /// Merges two operands for a job. Returns `None` if the operands must be kept.
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

    /// Merges two operands for the operand store, which can also store them separately.
    pub(crate) fn merge_partial_for_store(
        &self,
        key: &[u8],
        older: &[u8],
        newer: &[u8],
    ) -> Option<Vec<u8>> {
        let operator = self.operator.get()?;
        let merged =
            merge_operator::partial_merge(&**operator, key, older, newer, value_bytes_max())?;
        self.jobs.record(2);
        Some(merged)
    }

    /// Returns whether tables contain operands that do not merge partially.
    pub(crate) fn has_unmergeable_operands(&self) -> bool {
        self.has_unmergeable_operands.load(Ordering::Relaxed)
    }
}

/// Returns the maximum length of a value that user code returns, in bytes.
pub(crate) fn value_bytes_max() -> usize {
    usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX)
}
