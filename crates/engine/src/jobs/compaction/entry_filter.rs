//! Applies the compaction filter of a keyspace to the values that a compaction merges.
//!
//! A value is passed to the filter if all of these conditions hold:
//!
//! - The value belongs to the newest version of its key among the inputs, and newer operands were combined with it.
//! - No registered snapshot sees the value, because it is in the newest stripe. The job checks this again before it
//!   installs its outputs, see `run.rs`.
//! - If the keyspace has a merge operator, no newer entry of the key exists outside the job. Otherwise, if the filter
//!   removed the value, newer operands outside the job would lose their base value.
//!
//! If a value is removed, the operand store needs no delete marker. The flush that wrote the value or a newer version
//! has already delivered a delete marker for all older operands of the key. The store keeps this delete marker as long
//! as these operands.

use std::cell::RefCell;
use std::collections::HashSet;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_compaction::FileId;

use crate::compaction_filter::{
    CompactionFilter, FilterContext, FilterDecision, FilterError, FilterValue, call_filter,
};
use crate::error::Result;
use crate::format::expiry::{EXPIRY_BYTES, expiry_of, without_expiry};
use crate::jobs::value_log::output_values::ValueSource;
use crate::table::{ReadContext, ReadPurpose};
use crate::tree::Tree;
use crate::tree::merge_resolver::value_bytes_max;
use crate::value_log::BlobScan;

/// Results of the calls of a compaction filter.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterOutcome {
    /// Number of values that were passed to the filter.
    pub(crate) passed: u64,
    pub(crate) removed: u64,
    pub(crate) changed: u64,
    /// Number of calls that failed.
    pub(crate) errors: u64,
    /// Smallest sequence number of a value that was removed or changed.
    pub(crate) seq_smallest: Option<SeqNo>,
    /// Key and error of the first call that failed.
    pub(crate) first_error: Option<(Vec<u8>, FilterError)>,
}

impl FilterOutcome {
    /// Adds the results of another subcompaction. The keys of that subcompaction must be larger.
    pub(crate) fn add(&mut self, other: FilterOutcome) {
        self.passed += other.passed;
        self.removed += other.removed;
        self.changed += other.changed;
        self.errors += other.errors;
        self.seq_smallest = [self.seq_smallest, other.seq_smallest].into_iter().flatten().min();
        self.first_error = self.first_error.take().or(other.first_error);
    }

    fn record_effect(&mut self, seq: SeqNo) {
        self.seq_smallest = Some(self.seq_smallest.map_or(seq, |smallest| smallest.min(seq)));
    }
}

/// Searches a tree for entries that are newer than the inputs of a job.
#[derive(Debug)]
pub(crate) struct NewerEntries<'a> {
    tree: &'a Tree,
    inputs: &'a HashSet<FileId>,
}

impl<'a> NewerEntries<'a> {
    /// Creates the search for a job with these inputs. Returns `None` if the keyspace has no merge operator.
    pub(crate) fn new(tree: &'a Tree, inputs: &'a HashSet<FileId>) -> Option<NewerEntries<'a>> {
        tree.merge_resolver.name().map(|_| NewerEntries { tree, inputs })
    }

    /// Returns true if memtables, tables outside the job or the operand store may contain an entry of the key that is
    /// newer than `seq`. Reads only the filters of tables.
    fn may_contain(&self, user_key: &[u8], seq: SeqNo) -> bool {
        let view = self.tree.super_version();
        let in_memtable = |(newest, _, _): (SeqNo, EntryKind, Slice)| newest > seq;
        view.memtables().any(|memtable| memtable.get(user_key, SeqNo::MAX).is_some_and(in_memtable))
            || view.version.runs().iter().any(|run| {
                run.table_for_key(user_key).is_some_and(|file| {
                    file.shape().seq_largest > seq.0
                        && !self.inputs.contains(&file.shape().id)
                        // If a filter cannot be read, the table may contain the key.
                        && file.table().may_contain_for_job(user_key).unwrap_or(true)
                })
            })
            || view.operand_view.as_ref().is_some_and(|pinned| pinned.view.may_contain(user_key))
    }
}

/// Compaction filter for one subcompaction.
#[derive(Debug)]
pub(crate) struct EntryFilter<'a> {
    filter: &'a dyn CompactionFilter,
    /// Context of the filter calls. [`EntryFilter::decide`] adds the sequence number and the expiry time of the entry.
    context: FilterContext,
    newer: Option<NewerEntries<'a>>,
    scan: RefCell<BlobScan>,
    outcome: FilterOutcome,
}

impl<'a> EntryFilter<'a> {
    /// Creates the filter for a job that writes to `level`.
    pub(crate) fn new(
        filter: &'a dyn CompactionFilter,
        level: u8,
        is_last_run: bool,
        newer: Option<NewerEntries<'a>>,
    ) -> EntryFilter<'a> {
        EntryFilter {
            filter,
            context: FilterContext { level, is_last_run, ..FilterContext::default() },
            newer,
            scan: RefCell::default(),
            outcome: FilterOutcome::default(),
        }
    }

    /// Returns the results of all calls.
    pub(crate) fn into_outcome(self) -> FilterOutcome {
        self.outcome
    }

    /// Calls the filter for the value of an entry, and returns its decision. `value` is the stored value or value
    /// pointer of the entry. `values` contains the blob files of the inputs.
    pub(crate) fn decide(
        &mut self,
        key: InternalKey<'_>,
        value: &[u8],
        values: &ValueSource,
    ) -> FilterDecision {
        let newer = self.newer.as_ref();
        if newer.is_some_and(|newer| newer.may_contain(key.user_key, key.seq)) {
            return FilterDecision::Keep;
        }
        let (scan, entry) = (&self.scan, (key.user_key, key.seq));
        let expiry_us = expiry_of(key.kind, value);
        let value = without_expiry(key.kind, value);
        let read = || -> Result<Slice> {
            let mut access = ReadContext::new(ReadPurpose::Job);
            values.blobs.read_value_in_scan(&mut scan.borrow_mut(), entry, value, &mut access)
        };
        let passed = match key.kind.without_expiry() {
            EntryKind::ValuePointer => FilterValue::in_blob_file(&read),
            _ => FilterValue::from(value),
        };
        let context = FilterContext { seq: key.seq, expiry_us, ..self.context };
        // The stored value contains the expiry time.
        let expiry_bytes = expiry_us.map_or(0, |_| EXPIRY_BYTES);
        let bytes_max = value_bytes_max() - expiry_bytes;
        let decision = call_filter(self.filter, key.user_key, &passed, &context, bytes_max);
        self.outcome.passed += 1;
        match decision {
            Ok(FilterDecision::Keep) => FilterDecision::Keep,
            Ok(decision) => {
                self.outcome.record_effect(key.seq);
                match &decision {
                    FilterDecision::Remove => self.outcome.removed += 1,
                    _ => self.outcome.changed += 1,
                }
                decision
            }
            Err(error) => {
                self.outcome.errors += 1;
                self.outcome.first_error.get_or_insert_with(|| (key.user_key.to_vec(), error));
                match failpoint::is_on(Failpoint::FilterErrorRemovesValue) {
                    true => FilterDecision::Remove,
                    false => FilterDecision::Keep,
                }
            }
        }
    }
}
