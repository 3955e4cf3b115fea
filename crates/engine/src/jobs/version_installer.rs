//! The one step in which a job's result becomes durable and visible.

use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;
use lsmx_compaction::TreeShape;

use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::compaction::output::Outputs;
use crate::memtable::Memtable;
use crate::state::{DbState, record_of};
use crate::tree::version::{BesideView, SuperVersion, Version, blob_changes, changes_between};
use crate::tree::{Tree, last_run_filter};
use crate::vfs::Vfs;

/// Appends the manifest edit that turns the tree's shape into `next(shape)`, then swaps the
/// version. Only then are tables that left the tree obsolete.
///
/// The names of the outputs must be on stable storage already. Returns the tables that left.
///
/// # Errors
/// When the shape is refused (nothing has happened, the outputs go away), or the manifest cannot be
/// written: then it is in doubt, nothing is deleted, and the database is read-only.
pub(crate) fn install(
    store: &DbState,
    tree: &Tree,
    outputs: &mut Outputs<'_>,
    flushed: Option<&Arc<Memtable>>,
    extra: Vec<Change>,
    next: impl FnOnce(&TreeShape) -> Result<TreeShape, lsmx_compaction::Error>,
) -> Result<()> {
    install_beside(store, tree, outputs, flushed, None, extra, next)
}

/// As [`install`]; in the same step readers get another view of the operand store, if one is given, or have
/// none any more, if that is none. The changes say so too.
///
/// # Errors
/// As [`install`].
pub(crate) fn install_beside(
    store: &DbState,
    tree: &Tree,
    outputs: &mut Outputs<'_>,
    flushed: Option<&Arc<Memtable>>,
    operands: Option<Option<&BesideView>>,
    extra: Vec<Change>,
    next: impl FnOnce(&TreeShape) -> Result<TreeShape, lsmx_compaction::Error>,
) -> Result<()> {
    let swap = |view: &SuperVersion, after: &Arc<Version>| {
        let view = view.with_version(after, flushed);
        match operands {
            Some(operands) => view.beside(operands.cloned()),
            None => view,
        }
    };
    let installed = install_in_order(store, tree, outputs, swap, extra, next);
    store.tell_pending();
    installed
}

fn install_in_order(
    store: &DbState,
    tree: &Tree,
    outputs: &mut Outputs<'_>,
    swap: impl Fn(&SuperVersion, &Arc<Version>) -> SuperVersion,
    extra: Vec<Change>,
    next: impl FnOnce(&TreeShape) -> Result<TreeShape, lsmx_compaction::Error>,
) -> Result<()> {
    let _order = tree.install.lock();
    // The manifest does not know the keyspace any more.
    tree.check_live()?;
    let before = Arc::clone(&tree.pin().version);
    let shape = next(before.shape())?;
    let opened = outputs.tables();
    let record = |file: &Arc<lsmx_compaction::TableMeta>| {
        let new = opened.iter().find(|table| table.shape().id == file.id);
        let table = new.or_else(|| before.table(file.id));
        let unknown = lsmx_compaction::Error::UnknownFile { file: file.id };
        table.map(|table| record_of(table)).ok_or(unknown)
    };
    let mut changes = changes_between(tree.id, before.shape(), &shape, record)?;
    let after = Arc::new(Version::new(shape, &before, opened)?);
    let known = before.blob_ids();
    changes.extend(blob_changes(tree.id, (before.shape(), &known), &after));
    changes.extend(extra);
    changes.push(Change::FileNumberNext(store.files.next()));
    changes.push(Change::LastSeq(store.sequence.published()));
    changes.push(Change::ClockUs(store.env.database_us()));
    if failpoint::is_on(Failpoint::InputsDeletedEarly) {
        for table in gone(&before, &after) {
            let _ = store.vfs.remove(table.path());
        }
    }
    store.health.check()?;
    // From here on the manifest may name the outputs, even if the call fails or panics.
    if !failpoint::is_on(Failpoint::UncertainTablesDeleted) {
        outputs.release();
    }
    store.manifest.append(&VersionEdit { changes }).map_err(|error| store.fail_locked(error))?;
    tree.change(|view| swap(view, &after));
    if !tree.filter_last_run() {
        last_run_filter::release(&after);
    }
    outputs.release();
    for table in gone(&before, &after) {
        table.set_obsolete();
    }
    let left =
        before.blobs().files().filter(|used| after.blobs().file(used.file.record().id).is_none());
    left.for_each(|used| used.file.set_obsolete());
    if failpoint::is_on(Failpoint::LiveBlobDeleted) {
        for used in gone(&before, &after).flat_map(|table| table.blobs()) {
            let _ = store.vfs.remove(used.file.blob().path());
        }
    }
    Ok(())
}

/// Tables of one version that the other does not have.
fn gone<'a>(
    before: &'a Version,
    after: &'a Version,
) -> impl Iterator<Item = &'a Arc<crate::tree::version::TableFile>> {
    let tables = before.runs().iter().flat_map(|run| run.tables().iter());
    tables.filter(|table| after.table(table.shape().id).is_none())
}

/// Puts the names of new files in the database's directory on stable storage.
///
/// # Errors
/// When the directory cannot be synced.
pub(crate) fn sync_names(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    if failpoint::is_on(Failpoint::DirectoryNotSynced) {
        return Ok(());
    }
    vfs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))
}
