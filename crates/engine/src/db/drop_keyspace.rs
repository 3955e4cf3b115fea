//! Dropping a keyspace.
//!
//! 1. The commit leader rejects new commits to the keyspace. A sync of the WAL then waits for all earlier commits, so
//!    that the drop is ordered after them.
//! 2. One manifest edit removes the keyspace. Running jobs find the tree dropped and install no files.
//! 3. Handles return [`Error::KeyspaceDropped`]. Existing iterators and snapshots still read the keyspace. Its files
//!    are removed when no reader uses them.
//!
//! Replay skips operations on a keyspace that the manifest does not list. Its id is never reused.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::error::{Error, Result};
use crate::format::version_edit::Change;
use crate::jobs::obsolete_files;
use crate::memtable::Memtable;
use crate::options::db::DEFAULT_KEYSPACE;
use crate::tree::Tree;

/// Drops a keyspace.
pub(crate) fn drop_keyspace(inner: &DbInner, name: &str) -> Result<()> {
    inner.check_writable()?;
    inner.begin_operation();
    if name == DEFAULT_KEYSPACE {
        return Err(Error::DefaultKeyspace);
    }
    inner.state.error_state.check_writable()?;
    {
        let _lock = inner.lock_admin(None)?;
        let tree = inner.existing_tree(name)?;
        tree.set_dropping(true);
        if let Err(error) = drop_tree(inner, &tree) {
            tree.set_dropping(false);
            inner.state.emit_pending_events();
            return Err(error);
        }
    }
    inner.scheduler.run_inline();
    Ok(())
}

fn drop_tree(inner: &DbInner, tree: &Arc<Tree>) -> Result<()> {
    let state = &inner.state;
    inner.committer.sync(None)?;
    let number = {
        let _changes = inner.keyspace_changes.lock();
        let _install = tree.install.lock();
        if !failpoint::is_on(Failpoint::DropNotLogged) {
            inner.append_edit(vec![Change::DropKeyspace { id: tree.id }])?;
        }
        let number = state.sequence.record_keyspace_drop();
        tree.set_dropped(number);
        state.trees.write().remove(tree);
        state.set_compaction_failing(tree.id, false);
        state.guard_history.remove_tree(tree.id);
        number
    };
    let view = tree.pin_super_version();
    for table in view.version.runs().iter().flat_map(|run| run.tables().iter()) {
        table.set_obsolete();
    }
    if let Some(attached) = tree.operand_store.attached() {
        attached.lifetime.set_obsolete();
    }
    view.version.blobs().files().for_each(|used| used.file.set_obsolete());
    // Releases the bytes of each memtable only once. Folded values that are added to a memtable afterwards are not
    // counted.
    let released =
        |memtable: &Arc<Memtable>| match failpoint::is_on(Failpoint::DroppedMemtableCounted) {
            true => memtable.bytes(),
            false => memtable.release_bytes(),
        };
    state.memtables.subtract(view.memtables().map(released).sum());
    drop(view);
    state.add_dropped_keyspace(number, Arc::clone(tree));
    for segment in tree.operand_store.kept_log().iter().flat_map(|kept| kept.segments()) {
        state.obsolete_files.discard(FileName::Segment(segment.id).in_dir(&state.dir));
    }
    tree.operand_store.set_kept_log(None);
    state.discard_unclaimed_files();
    // The memtables of the dropped tree no longer need WAL segments. If this edit fails, the drop is still durable, and
    // the next write returns the error.
    let _ = obsolete_files::retire_segments(state);
    state.progress.notify();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::lookup::point::ReadScope;
    use crate::merge_operator::{Append, CHAIN_OPERANDS_MAX};
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;
    use crate::write::batch::WriteBatch;

    /// A snapshot keeps the memtable of a dropped keyspace. Combining its operands after the drop adds no bytes to the
    /// budget.
    #[test]
    fn drop_keyspace_later_fold_adds_no_bytes() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let inner = db.inner();
        for round in 0..10_000 {
            let options = KeyspaceOptions::default().merge_operator(Append::default());
            let keyspace = db.keyspace("k", options).unwrap();
            let mut batch = WriteBatch::new();
            for _ in 0..=CHAIN_OPERANDS_MAX {
                batch.merge(&keyspace, "key", "operand");
            }
            let long_chains = inner.committer.commit(batch, false, 0, None).unwrap();
            assert!(!long_chains.is_empty(), "the chain is too short");
            let snapshot = db.snapshot();
            db.drop_keyspace("k").unwrap();
            inner.fold_operand_chains(long_chains, ReadScope::Storage);
            assert_eq!(inner.state.memtables.used_bytes(), 0, "after round {round}");
            drop(snapshot);
        }
    }
}
