//! How the operands of one keyspace fold: its operator, who may give it one, what was counted.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};

use crate::error::{Error, Result};
use crate::format::VALUE_BYTES_MAX;
use crate::merge_operator::{self, MergeError, MergeOperator};
use crate::tree::counters::add;

/// Foldings of one place, counted.
#[derive(Debug, Default)]
pub(crate) struct FoldCounter {
    /// How often operands were folded.
    pub(crate) folds: AtomicU64,
    /// How many operands.
    pub(crate) operands: AtomicU64,
    /// The most at once.
    pub(crate) longest: AtomicU64,
}

impl FoldCounter {
    fn folded(&self, operands: usize) {
        let operands = operands as u64;
        add(&self.folds, 1);
        add(&self.operands, operands);
        self.longest.fetch_max(operands, Ordering::Relaxed);
    }
}

/// What folds the operands of one keyspace.
#[derive(Debug)]
pub(crate) struct Merging {
    keyspace: String,
    /// The operator's name, as the manifest has it. Set before the operator.
    name: OnceLock<String>,
    /// Given once in the life of an open database; another of the same name would do the same.
    operator: OnceLock<Arc<dyn MergeOperator>>,
    /// Folded by readers, and by writers in memtables.
    pub(crate) reads: FoldCounter,
    /// Folded by flushes and compactions.
    pub(crate) jobs: FoldCounter,
    /// Times that operands did not fold, for whomever.
    pub(crate) failures: AtomicU64,
    /// Whether a job met operands that do not merge partially, and had to keep them.
    keeps_operands: AtomicBool,
}

impl Merging {
    /// Of a keyspace that has this operator, and remembers no other.
    pub(crate) fn new(keyspace: String, operator: Option<Arc<dyn MergeOperator>>) -> Merging {
        let merging = Merging {
            keyspace,
            name: OnceLock::new(),
            operator: OnceLock::new(),
            reads: FoldCounter::default(),
            jobs: FoldCounter::default(),
            failures: AtomicU64::new(0),
            keeps_operands: AtomicBool::new(false),
        };
        if let Some(operator) = operator {
            merging.supply(operator);
        }
        merging
    }

    /// Whether an operator may be given, and is news to the manifest.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the keyspace has another one.
    pub(crate) fn admit(&self, given: Option<&Arc<dyn MergeOperator>>) -> Result<bool> {
        let Some(given) = given else { return Ok(false) };
        self.name().map_or(Ok(true), |known| self.agree(known, given.name()).map(|()| false))
    }

    /// Notes the name that the manifest has, before anybody else may give one.
    ///
    /// # Errors
    /// [`Error::Contradiction`] if the operator has another one.
    pub(crate) fn remember(&self, known: String) -> Result<()> {
        let name = self.name.get_or_init(|| known.clone());
        self.agree(&known, name)
    }

    fn agree(&self, known: &str, given: &str) -> Result<()> {
        if known == given {
            return Ok(());
        }
        Err(Error::Contradiction {
            first: format!("merge_operator = {given}"),
            second: format!("merge_operator = {known} of keyspace {:?}", self.keyspace),
            why: "what is stored folds by one operator for good",
        })
    }

    /// Gives it the operator, which [`Merging::admit`] let pass; the first one stays.
    pub(crate) fn supply(&self, operator: Arc<dyn MergeOperator>) {
        self.name.get_or_init(|| operator.name().to_owned());
        self.operator.get_or_init(|| operator);
    }

    /// The operator's name, given now or before.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// The operator.
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`].
    pub(crate) fn operator(&self) -> Result<&dyn MergeOperator> {
        self.operator.get().map(|operator| &**operator).ok_or_else(|| Error::NoMergeOperator {
            keyspace: self.keyspace.clone(),
            operator: self.name.get().cloned(),
        })
    }

    /// The value of a key for a reader. Operands newest first, as they are met.
    ///
    /// # Errors
    /// [`Error::NoMergeOperator`], [`Error::MergeFailed`].
    pub(crate) fn read(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Result<Option<Slice>> {
        let value = self.full(self.operator()?, key, base, operands);
        let value = value.map_err(|why| {
            let (keyspace, key) = (self.keyspace.clone(), key.to_vec());
            Error::MergeFailed { keyspace, key, why }
        })?;
        self.reads.folded(operands.len());
        Ok(value.map(Slice::from))
    }

    /// A full merge for a job; if it fails, the operands are to stay.
    pub(crate) fn job(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Option<Option<Vec<u8>>> {
        let turned: Vec<Slice>;
        let operands = match failpoint::is_on(Failpoint::OperandsReordered) {
            true => {
                turned = operands.iter().rev().cloned().collect();
                &turned
            }
            false => operands,
        };
        let value = self.full(operator, key, base, operands).ok()?;
        self.jobs.folded(operands.len());
        Some(value)
    }

    fn full(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[Slice],
    ) -> Result<Option<Vec<u8>>, MergeError> {
        let oldest_first: Vec<&[u8]> = operands.iter().rev().map(|operand| &**operand).collect();
        let limit = usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX);
        let value = merge_operator::full_merge(operator, key, base, &oldest_first, limit);
        if value.is_err() {
            add(&self.failures, 1);
        }
        value
    }

    /// A partial merge for a job.
    pub(crate) fn partial(
        &self,
        operator: &dyn MergeOperator,
        key: &[u8],
        older: &[u8],
        newer: &[u8],
    ) -> Option<Vec<u8>> {
        let limit = usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX);
        let merged = merge_operator::partial_merge(operator, key, older, newer, limit);
        match merged {
            Some(_) => self.jobs.folded(2),
            None => self.keeps_operands.store(true, Ordering::Relaxed),
        }
        merged
    }

    /// A partial merge for the operand store, which knows what to do with operands that do not merge.
    pub(crate) fn partial_beside(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        let limit = usize::try_from(VALUE_BYTES_MAX).unwrap_or(usize::MAX);
        let operator = self.operator.get()?;
        let merged = merge_operator::partial_merge(&**operator, key, older, newer, limit)?;
        self.jobs.folded(2);
        Some(merged)
    }

    /// Whether operands gather in tables, because they do not merge partially.
    pub(crate) fn keeps_operands(&self) -> bool {
        self.keeps_operands.load(Ordering::Relaxed)
    }
}
