//! View of an iterator: the state of a keyspace that the iterator reads.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::iter::db_iter::{DbIter, ValueResolver};
use crate::iter::key_bounds::{borrowed_bound, key_of_bound};
use crate::iter::merging_iter::MergingCursor;
use crate::iter::range_tombstone_filter::RangeTombstoneFilter;
use crate::iter::read_purpose;
use crate::iter::run_iter::RunCursor;
use crate::lookup::point::ReadScope;
use crate::memtable::Memtable;
use crate::options::read::{ReadOptions, ReadTier};
use crate::table::{ReadContext, ReadDeadline, ScanHints};
use crate::tree::Tree;
use crate::tree::counters::{ScanCounter, TreeCounters};
use crate::tree::delete_persistence::IteratorRegistration;
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::snapshots::{ReadPoint, SnapshotGuard};
use crate::tree::super_version::SuperVersion;
use crate::tree::table_file::TableFile;

/// State of a keyspace that an iterator reads, and its read options. The view keeps the memtables, the files and the
/// snapshot until it is dropped.
pub(crate) struct IterView {
    resolver: Arc<MergeResolver>,
    counters: Arc<TreeCounters>,
    read_point: ReadPoint,
    /// Keeps the snapshot registered.
    _pinned: Option<Arc<SnapshotGuard>>,
    /// Set if the keyspace has the option `delete_persistence`. Dropped before `super_version`.
    _registration: Option<IteratorRegistration>,
    env: Env,
    options: ReadOptions,
    /// Deadline of the current call. `None` if the read options have no deadline.
    deadline: Option<Arc<ReadDeadline>>,
    super_version: Arc<SuperVersion>,
    /// Uncommitted writes of a transaction, and the largest of their sequence numbers that is visible.
    own_writes: Option<(Arc<Memtable>, SeqNo)>,
}

/// First seek of an iterator. Its blocks are prefetched in all sorted runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnouncedSeek<'a> {
    pub(crate) key: &'a [u8],
    /// Whether the moves after the seek go to smaller keys.
    pub(crate) backward: bool,
}

impl IterView {
    /// Creates a view of `super_version` at `read_point`, with default read options.
    pub(crate) fn new(
        super_version: Arc<SuperVersion>,
        tree: &Tree,
        read_point: ReadPoint,
        pinned: Option<Arc<SnapshotGuard>>,
    ) -> IterView {
        let clock = || tree.env().database_time_us();
        IterView {
            _registration: tree.iterators.register(&super_version, read_point.seq, clock),
            resolver: Arc::clone(&tree.merge_resolver),
            counters: Arc::clone(&tree.counters),
            read_point,
            _pinned: pinned,
            env: tree.env().clone(),
            options: ReadOptions::default(),
            deadline: None,
            super_version,
            own_writes: None,
        }
    }

    /// Makes the view also contain uncommitted writes. `memtable` contains these writes, and they are visible up to the
    /// sequence number `last_seq`.
    pub(crate) fn with_own_writes(self, memtable: Arc<Memtable>, last_seq: SeqNo) -> IterView {
        IterView { own_writes: Some((memtable, last_seq)), ..self }
    }

    pub(crate) fn super_version(&self) -> &Arc<SuperVersion> {
        &self.super_version
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns a counter for the entries that an iterator returns.
    pub(crate) fn scan_counter(&self) -> ScanCounter {
        ScanCounter::new(&self.counters)
    }

    pub(crate) fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Sets the read options. An iterator that is already open keeps its options.
    pub(crate) fn set_options(&mut self, options: &ReadOptions) {
        self.options = *options;
        self.deadline = options.deadline.map(|limit| ReadDeadline::new(&self.env, limit));
    }

    /// Starts a call. The deadline limits each call separately.
    #[inline]
    pub(crate) fn begin_call(&self) {
        if let Some(deadline) = &self.deadline {
            deadline.begin_call();
        }
    }

    /// Returns a resolver for values in the blob files of the view.
    pub(crate) fn value_resolver(&self) -> ValueResolver {
        let mut context = ReadContext::new(read_purpose(&self.options));
        context.set_deadline(self.deadline.clone());
        ValueResolver::new(self.super_version.version.blobs(), context)
    }

    /// Returns a filter with the range tombstones between two bounds, or `None` if there are none.
    fn tombstone_filter(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Option<RangeTombstoneFilter>> {
        let (memtables, version) = (self.super_version.memtables(), &self.super_version.version);
        let mut sources: Vec<_> = memtables.flat_map(|at| at.tombstone_indexes()).collect();
        sources.extend(match self.options.tier {
            ReadTier::Storage => {
                version.range_tombstones_between(lower, upper, self.deadline.as_ref())?
            }
            ReadTier::Memory => version.cached_range_tombstones()?,
        });
        let mut sources: Vec<_> = sources.into_iter().map(|at| (at, self.read_point.seq)).collect();
        if let Some((own, last_seq)) = &self.own_writes {
            sources.extend(own.tombstone_indexes().into_iter().map(|at| (at, *last_seq)));
        }
        if sources.is_empty() {
            return Ok(None);
        }
        Ok(RangeTombstoneFilter::for_reader(sources.into()))
    }

    /// Opens the cursors of all sources. Entries that the iterator returns outside of the bounds are unspecified.
    ///
    /// `scan` contains the limits of the scan, and the expected number of entries of all sources together. If
    /// `announced` is given, prefetches the blocks that this seek needs in all sorted runs, so that the device reads
    /// them in parallel.
    pub(crate) fn open_iter(
        &self,
        (lower, upper): (&Bound<Bytes>, &Bound<Bytes>),
        scan: ScanHints,
        announced: Option<AnnouncedSeek<'_>>,
    ) -> Result<DbIter<MergingCursor>> {
        let options = &self.options;
        let bounds = (borrowed_bound(lower), borrowed_bound(upper));
        let deleted = self.tombstone_filter(bounds.0, bounds.1)?;
        let mut sources: Vec<Box<dyn Cursor>> = Vec::new();
        let own = self.own_writes.as_ref().map(|(memtable, _)| memtable);
        for memtable in self.super_version.memtables().chain(own) {
            if !memtable.is_empty() {
                sources.push(Box::new(memtable.cursor()));
            }
        }
        let operand_view = self.super_version.operand_view.as_ref().map(|it| &it.view);
        if let (Some(view), Some(seek), ReadTier::Storage) = (operand_view, announced, options.tier)
        {
            view.prefetch_seek(seek.key);
        }
        let runs = self.super_version.version.runs();
        let last_run = runs.len().saturating_sub(1);
        let all_entries: u64 = runs.iter().map(|run| run.entries()).sum();
        for (index, run) in runs.iter().enumerate() {
            if self.is_run_ruled_out(run.tables(), index == last_run, bounds)? {
                self.counters.count_skipped_run();
                continue;
            }
            let share = |entries| share_of_run(entries, run.entries(), all_entries);
            let hints = ScanHints {
                entries: scan.entries.map(share),
                read_ahead_bytes_max: options.read_ahead_bytes_max,
                bypasses_cache: options.fill_cache == Some(false),
                deadline: self.deadline.clone(),
                ..scan.clone()
            };
            let (tables, purpose) = (Arc::clone(run.tables()), read_purpose(options));
            let mut cursor = RunCursor::new(tables, purpose, deleted.clone()).with_hints(hints);
            if let Some(seek) = announced {
                cursor.announce_seek(seek.key, SeqNo::MAX, seek.backward)?;
            }
            sources.push(Box::new(cursor));
        }
        // The operand store is the last source, so that the device reads its prefetched pages while the other cursors
        // seek.
        if let Some(view) = operand_view.map(Arc::clone) {
            sources.push(view.cursor(self.read_point.seq, ReadScope::from(options).into()));
        }
        let (inner, values) = (MergingCursor::new(sources), self.value_resolver());
        let resolver = Arc::clone(&self.resolver);
        let last_own_seq = self.own_writes.as_ref().map_or(SeqNo::ZERO, |(_, last_seq)| *last_seq);
        let iter = DbIter::new(inner, self.read_point, deleted, resolver, values)
            .with_own_writes(last_own_seq);
        // A limit is needed only in the directions in which the iterator moves.
        let limit = |bound: &Bound<Bytes>, key: Option<Bytes>| {
            key.map_or(Bound::Unbounded, |_| bound.clone())
        };
        let iter = iter.with_limits((limit(lower, scan.lower), limit(upper, scan.upper)));
        Ok(match (options.tier, &self.deadline) {
            (ReadTier::Memory, _) => iter.with_step_limit(),
            (ReadTier::Storage, Some(deadline)) => iter.with_deadline(Arc::clone(deadline)),
            (ReadTier::Storage, None) => iter,
        })
    }

    /// Returns whether the filters of a sorted run exclude all keys between two bounds.
    fn is_run_ruled_out(
        &self,
        tables: &[Arc<TableFile>],
        is_last: bool,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<bool> {
        // If the first table has no prefixes in its filter, searching for the tables between the bounds is rarely
        // worthwhile.
        let has_prefixes = |table: &Arc<TableFile>| table.table().properties().prefixes.is_some();
        let start = key_of_bound(lower).filter(|_| tables.first().is_some_and(has_prefixes));
        let Some(start) = start else { return Ok(false) };
        let first = tables.partition_point(|table| *table.shape().range.largest < *start);
        let between = tables[first..].iter().take_while(|table| {
            let smallest: &[u8] = &table.shape().range.smallest;
            key_of_bound(upper).is_none_or(|upper| smallest <= upper)
        });
        for table in between {
            let may_use_filter = !is_last || table.table().is_filter_resident();
            if !(may_use_filter && has_prefixes(table)) {
                return Ok(false);
            }
            let table = table.table();
            let mut context = ReadContext::new(read_purpose(&self.options));
            context.set_deadline(self.deadline.clone());
            let may_contain = table.may_contain_between((lower, upper), &mut context);
            context.publish_counts(table.cache());
            match may_contain {
                Ok(false) => {}
                // If the filter is not in memory, the cursor decides whether the read can continue without reading
                // files.
                Ok(true) | Err(Error::WouldBlock) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Returns the expected number of entries that a sorted run contributes to a scan. The run contains `run_entries` of
/// `all_entries` entries.
fn share_of_run(scan_entries: u64, run_entries: u64, all_entries: u64) -> u64 {
    let product = u128::from(scan_entries) * u128::from(run_entries);
    // A run contributes at most all entries of the scan.
    let share = u64::try_from(product / u128::from(all_entries.max(1))).unwrap_or(scan_entries);
    share.saturating_add(1)
}

impl fmt::Debug for IterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterView").field("read_point", &self.read_point).finish_non_exhaustive()
    }
}
