//! The state of a keyspace that an iterator reads.

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
use crate::tree::merge_resolver::MergeResolver;
use crate::tree::snapshots::{ReadPoint, SnapshotGuard};
use crate::tree::super_version::SuperVersion;
use crate::tree::table_file::TableFile;

/// The state of a keyspace that an iterator reads, and the read options. It keeps memtables, files and snapshot until it
/// is dropped.
pub(crate) struct IterView {
    resolver: Arc<MergeResolver>,
    counters: Arc<TreeCounters>,
    read_point: ReadPoint,
    /// Keeps the snapshot registered.
    _pinned: Option<Arc<SnapshotGuard>>,
    env: Env,
    options: ReadOptions,
    /// Deadline of the current call, if the options have one.
    deadline: Option<Arc<ReadDeadline>>,
    super_version: Arc<SuperVersion>,
    /// Uncommitted writes of a transaction, and the sequence number of the last one that iterators show.
    own_writes: Option<(Arc<Memtable>, SeqNo)>,
}

/// The first seek of an iterator, whose reads are announced in all sorted runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnouncedSeek<'a> {
    pub(crate) key: &'a [u8],
    /// Whether the following steps are those to smaller keys.
    pub(crate) backward: bool,
}

impl IterView {
    /// Returns the state of `super_version` at `read_point`, with default read options.
    pub(crate) fn new(
        super_version: Arc<SuperVersion>,
        tree: &Tree,
        read_point: ReadPoint,
        pinned: Option<Arc<SnapshotGuard>>,
    ) -> IterView {
        IterView {
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

    /// Also shows the uncommitted writes in a memtable up to a sequence number.
    pub(crate) fn with_own_writes(self, memtable: Arc<Memtable>, last_seq: SeqNo) -> IterView {
        IterView { own_writes: Some((memtable, last_seq)), ..self }
    }

    pub(crate) fn super_version(&self) -> &Arc<SuperVersion> {
        &self.super_version
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Returns a counter for the entries that one iterator returns.
    pub(crate) fn scan_counter(&self) -> ScanCounter {
        ScanCounter::new(&self.counters)
    }

    pub(crate) fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Sets the read options. An open iterator keeps the previous options.
    pub(crate) fn set_options(&mut self, options: &ReadOptions) {
        self.options = *options;
        self.deadline = options.deadline.map(|limit| ReadDeadline::new(&self.env, limit));
    }

    /// Begins a call, whose end the deadline limits.
    #[inline]
    pub(crate) fn begin_call(&self) {
        if let Some(deadline) = &self.deadline {
            deadline.begin_call();
        }
    }

    /// Returns a resolver for the values in the blob files of the view.
    pub(crate) fn value_resolver(&self) -> ValueResolver {
        let mut context = ReadContext::new(read_purpose(&self.options));
        context.set_deadline(self.deadline.clone());
        ValueResolver::new(self.super_version.version.blobs(), context)
    }

    /// Returns the range tombstones of the view between two bounds.
    fn tombstone_filter(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Option<RangeTombstoneFilter>> {
        let (memtables, version) = (self.super_version.memtables(), &self.super_version.version);
        let mut sources: Vec<_> = memtables.flat_map(|at| at.tombstone_indexes()).collect();
        sources.extend(match self.options.tier {
            ReadTier::Storage => version.range_tombstones_between(lower, upper)?,
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

    /// Opens the cursors of all sources. Entries outside the bounds are undefined.
    ///
    /// `scan` has the limits of the scan, and the expected number of entries of all sources together. If `announced` is
    /// set, announces the blocks that this seek needs in all sorted runs, so that the device reads them at the same time.
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
        if let Some(operands) = &self.super_version.operand_view {
            let view = Arc::clone(&operands.view);
            sources.push(view.cursor(self.read_point.seq, ReadScope::from(options).into()));
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
        let (inner, values) = (MergingCursor::new(sources), self.value_resolver());
        let resolver = Arc::clone(&self.resolver);
        let last_own_seq = self.own_writes.as_ref().map_or(SeqNo::ZERO, |(_, last_seq)| *last_seq);
        let iter = DbIter::new(inner, self.read_point, deleted, resolver, values)
            .with_own_writes(last_own_seq);
        // One end of a range needs no limit on its other side.
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

    /// Returns whether the filters of a sorted run rule out that it contains an entry between two bounds.
    fn is_run_ruled_out(
        &self,
        tables: &[Arc<TableFile>],
        is_last: bool,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<bool> {
        // Without prefixes in the first table, the search for the tables between the bounds seldom pays.
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
                // The cursor decides whether the read can continue without the device.
                Ok(true) | Err(Error::WouldBlock) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Returns the expected number of entries that a sorted run with `run_entries` of `all_entries` contributes to a scan.
fn share_of_run(scan_entries: u64, run_entries: u64, all_entries: u64) -> u64 {
    let product = u128::from(scan_entries) * u128::from(run_entries);
    // The share of a run is at most the whole scan.
    let share = u64::try_from(product / u128::from(all_entries.max(1))).unwrap_or(scan_entries);
    share.saturating_add(1)
}

impl fmt::Debug for IterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterView").field("read_point", &self.read_point).finish_non_exhaustive()
    }
}
