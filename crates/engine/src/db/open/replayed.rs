//! Memtables that an opening has filled become tables.
//!
//! Nobody can use the database before that is done, and no worker runs yet, so a large memtable is
//! written by two threads: each takes one half of the keys, and both tables form one run. Where there is
//! an operand store it is one thread, for a delivery is in key order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::env::Background;
use crate::error::{Error, Result};
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::compaction::retention::Retention;
use crate::jobs::compaction::version_filter::VersionFilter;
use crate::jobs::flush::{write_memtable, write_memtable_range};
use crate::jobs::operand_store::deliver::OperandDelivery;
use crate::state::table_factory::TableFactory;
use crate::tree::Tree;
use crate::tree::version::{BesideView, SuperVersion, Version};

/// Bytes of a memtable for which a second thread pays.
const HALVED_FROM_BYTES: u64 = 4 << 20;

/// Writes what must be kept of a tree's active memtable, as tables of one run in L0, on stable storage
/// but for their names, and delivers to its operand store what goes there: numbers up to `through`.
/// `edited_us` is the time of the last edit of the manifest.
///
/// # Errors
/// When a table cannot be written.
fn write<'a>(
    tables: &'a TableFactory,
    tree: &'a Tree,
    view: &SuperVersion,
    through: SeqNo,
    edited_us: u64,
) -> Result<(JobOutputs<'a>, Option<BesideView>)> {
    // The log does not say when. Its tombstones are about as old as the last edit of the manifest.
    let shape = view.version.shape();
    let outputs = || JobOutputs::for_flush(tables, tree, &view.active, shape, Some(edited_us));
    if let Some(attached) = tree.beside.attached() {
        let mut outputs = outputs();
        let retention = Retention::for_flush(Vec::new(), shape)
            .with_operand_view(view.operands.as_ref().map(|beside| &beside.view));
        let keeper = VersionFilter::new(retention, &tree.merging);
        let mut delivering = OperandDelivery::new(&attached, through)?;
        let delivered = Some(&mut delivering);
        write_memtable(&tables.env, keeper, &view.active, &mut outputs, delivered, None)?;
        let prepared = delivering.prepare()?.map(|prepared| attached.beside(prepared));
        return Ok((outputs, prepared));
    }
    let write = |from: Option<&[u8]>, to: Option<&[u8]>| {
        let mut outputs = outputs();
        let retention = Retention::for_flush(Vec::new(), view.version.shape());
        let keeper = VersionFilter::new(retention, &tree.merging);
        write_memtable_range(
            &tables.env,
            keeper,
            &view.active,
            (from, to),
            &mut outputs,
            None,
            None,
        )?;
        Ok(outputs)
    };
    let Some(middle) = middle(tables, view) else {
        return write(None, None).map(|outputs| (outputs, None));
    };
    let caught = |from, to| {
        let written = catch_unwind(AssertUnwindSafe(|| write(from, to)));
        written.unwrap_or_else(|panic| Err(Error::from_panic(&*panic)))
    };
    let (lower, upper) = std::thread::scope(|scope| {
        let name = "lsmx-recovery".to_owned();
        let upper =
            || caught(Some(&*middle), None).map(|outputs| outputs.into_subcompaction_output(0));
        match std::thread::Builder::new().name(name).spawn_scoped(scope, upper) {
            Ok(thread) => {
                let lower = caught(None, Some(&*middle));
                // It has caught its own panics.
                let upper = thread.join().unwrap_or_else(|panic| Err(Error::from_panic(&*panic)));
                (lower, upper)
            }
            // The system gives no thread.
            Err(_) => (caught(None, None), Ok(outputs().into_subcompaction_output(0))),
        }
    });
    let mut written = lower?;
    written.append(upper?);
    Ok((written, None))
}

/// Writes a tree's active memtable as [`write`] does, and puts a view with the new run and an empty memtable for
/// all numbers from `seq_next` on in its place. The manifest does not know of it yet.
///
/// # Errors
/// When a table cannot be written.
pub(crate) fn flush<'a>(
    tables: &'a TableFactory,
    tree: &'a Tree,
    seq_next: SeqNo,
    edited_us: u64,
) -> Result<JobOutputs<'a>> {
    let view = tree.pin();
    let (outputs, prepared) = write(tables, tree, &view, SeqNo(seq_next.0 - 1), edited_us)?;
    let operands = prepared.or_else(|| view.operands.clone());
    let shapes = outputs.tables().iter().map(|table| (**table.shape()).clone());
    let (shape, _) = view.version.shape().with_flush(shapes.collect())?;
    let version = Arc::new(Version::new(shape, &view.version, outputs.tables())?);
    tree.change(|_| SuperVersion::fresh(&version, seq_next).beside(operands.clone()));
    Ok(outputs)
}

/// Where to halve the memtable, if that is to be done.
fn middle(tables: &TableFactory, view: &SuperVersion) -> Option<bytes::Bytes> {
    let threads = matches!(tables.env.background(), Background::Threads { .. });
    let memtable = &view.active;
    // A range delete may reach over the middle.
    (threads && memtable.bytes() >= HALVED_FROM_BYTES && !memtable.has_range_tombstones())
        .then(|| memtable.middle_key())
        .flatten()
}
