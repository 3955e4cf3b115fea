//! Writes memtables to tables without the job scheduler, during recovery and resume.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::env::{Background, YieldKind};
use crate::error::{Error, Result};
use crate::format::version_edit::Change;
use crate::jobs::compaction::output::{JobOutputs, TombstoneTime};
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::flush::{write_memtable, write_memtable_range};
use crate::jobs::operand_store::deliver::OperandDeliveryWriter;
use crate::memtable::Memtable;
use crate::state::table_factory::TableFactory;
use crate::tree::Tree;
use crate::tree::operand_files::PinnedOperandView;
use crate::tree::operand_store_slot::AttachedStore;
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;
use crate::tree::version_edit::NextVersion;

/// Minimum size of a memtable that recovery writes with two threads, in bytes.
const TWO_THREADS_BYTES_MIN: u64 = 4 << 20;

/// Inputs of a memtable flush.
pub(crate) struct MemtableFlush<'a, 'v> {
    pub(crate) tables: &'a TableFactory,
    pub(crate) tree: &'a Tree,
    pub(crate) memtable: &'v Arc<Memtable>,
    pub(crate) version: &'v Version,
    pub(crate) operands: Option<&'v PinnedOperandView>,
    /// Snapshots whose visible versions must be kept.
    pub(crate) snapshots: Vec<SeqNo>,
    pub(crate) tombstone_time: TombstoneTime,
}

impl<'a> MemtableFlush<'a, '_> {
    /// Writes the memtable to tables, and its operands to the operand store. The store then holds all operands up to
    /// `last_seq`. Returns the tables, and the new view of the store if the store has changed.
    ///
    /// The tables are synced, but not their directory entries.
    pub(crate) fn write(
        self,
        store: Option<&Arc<AttachedStore>>,
        last_seq: SeqNo,
    ) -> Result<(JobOutputs<'a>, Option<PinnedOperandView>)> {
        let mut outputs = self.new_outputs();
        let mut delivery =
            store.map(|store| OperandDeliveryWriter::new(store, last_seq)).transpose()?;
        let (on_block, filter) = (&mut || self.yield_after_block(), self.filter());
        write_memtable(on_block, filter, self.memtable, &mut outputs, delivery.as_mut(), None)?;
        let prepared = delivery.map(OperandDeliveryWriter::prepare_version).transpose()?.flatten();
        let view = store.zip(prepared).map(|(store, prepared)| store.prepared_view(prepared));
        Ok((outputs, view))
    }

    /// Writes the memtable to two tables of one run on two threads. Each table gets half of the keys.
    fn write_on_two_threads(self, middle: &[u8]) -> Result<JobOutputs<'a>> {
        let write_range = |from: Option<&[u8]>, to: Option<&[u8]>| {
            let write = || {
                let (mut outputs, filter) = (self.new_outputs(), self.filter());
                let (on_block, range) = (&mut || self.yield_after_block(), (from, to));
                let memtable = self.memtable;
                write_memtable_range(on_block, filter, memtable, range, &mut outputs, None, None)?;
                Ok(outputs)
            };
            let written = catch_unwind(AssertUnwindSafe(write));
            written.unwrap_or_else(|panic| Err(Error::from_panic(&*panic)))
        };
        let (lower, upper) = std::thread::scope(|scope| {
            let upper = || {
                let outputs = write_range(Some(middle), None);
                outputs.map(|outputs| outputs.into_subcompaction_output(0))
            };
            let name = "lsmx-recovery".to_owned();
            match std::thread::Builder::new().name(name).spawn_scoped(scope, upper) {
                Ok(thread) => {
                    let lower = write_range(None, Some(middle));
                    let joined = thread.join();
                    (lower, joined.unwrap_or_else(|panic| Err(Error::from_panic(&*panic))))
                }
                // The thread cannot be spawned, so the current thread writes all keys.
                Err(_) => {
                    (write_range(None, None), Ok(self.new_outputs().into_subcompaction_output(0)))
                }
            }
        });
        let mut outputs = lower?;
        outputs.append(upper?);
        Ok(outputs)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the callback of `write_memtable` may fail")]
    fn yield_after_block(&self) -> Result<()> {
        self.tables.env.yield_point(YieldKind::FlushBlock);
        Ok(())
    }

    fn new_outputs(&self) -> JobOutputs<'a> {
        let shape = self.version.shape();
        JobOutputs::for_flush(self.tables, self.tree, self.memtable, shape, self.tombstone_time)
    }

    fn filter(&self) -> VersionFilter<'a> {
        let retention = Retention::for_flush(self.snapshots.clone(), self.version.shape())
            .with_operand_view(self.operands.map(|operands| &operands.view))
            .keep_covered_tombstones(self.tree.keeps_covered_tombstones());
        VersionFilter::new(retention, &self.tree.merge_resolver)
    }

    /// Returns the key at which to split the memtable for two threads, or `None` to use one thread.
    fn split_key(&self) -> Option<Bytes> {
        let has_threads = matches!(self.tables.env.background(), Background::Threads { .. });
        let is_large = self.memtable.bytes() >= TWO_THREADS_BYTES_MIN;
        // A range tombstone may span both halves, so a memtable with range tombstones is not split.
        (has_threads && is_large && !self.memtable.has_range_tombstones())
            .then(|| self.memtable.middle_key())
            .flatten()
    }
}

/// Returns the next version of a keyspace, with the new tables as the newest run of L0.
pub(crate) fn next_version_with_flushed_run(
    keyspace: u32,
    version: &Version,
    outputs: &JobOutputs<'_>,
) -> Result<NextVersion> {
    let update = version.shape().with_flushed_run(outputs.table_metas())?;
    NextVersion::new(keyspace, version, update, outputs.tables())
}

/// Flushes the active memtable of a tree during recovery. The tree then has a new run and an empty memtable that starts
/// at `seq_next`. The manifest is not changed. Returns the outputs and the manifest changes that add them.
///
/// A large memtable is written by two threads, because no other work runs during recovery. With an operand store, one
/// thread writes, because the store receives operands in key order.
///
/// The log does not hold the times of writes. Tombstones therefore get the time `tombstone_us`, or no time if it is `None`.
pub(crate) fn flush_active<'a>(
    tables: &'a TableFactory,
    tree: &'a Tree,
    seq_next: SeqNo,
    tombstone_us: Option<u64>,
) -> Result<(JobOutputs<'a>, Vec<Change>)> {
    let view = tree.pin_super_version();
    let store = tree.operand_store.attached();
    let flush = MemtableFlush {
        tables,
        tree,
        memtable: &view.active,
        version: &view.version,
        operands: view.operand_view.as_ref(),
        snapshots: Vec::new(),
        tombstone_time: tombstone_us.into(),
    };
    let split_key = if store.is_none() { flush.split_key() } else { None };
    let (outputs, prepared) = match split_key {
        Some(middle) => (flush.write_on_two_threads(&middle)?, None),
        None => flush.write(store.as_ref(), SeqNo(seq_next.0 - 1))?,
    };
    let operands = prepared.or_else(|| view.operand_view.clone());
    let NextVersion { version, changes } =
        next_version_with_flushed_run(tree.id, &view.version, &outputs)?;
    tree.update_super_version(|view| {
        SuperVersion::new(view.active.kind(), &version, seq_next)
            .with_operand_view(operands.clone())
    });
    Ok((outputs, changes))
}
