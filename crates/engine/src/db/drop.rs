//! Dropping a keyspace.
//!
//! 1. The leader of commits refuses what touches it from here on. A sync of the log behind that
//!    waits for those that it had let through, and makes the drop no older than any of them.
//! 2. One manifest edit. Jobs that meant to install something find the keyspace gone.
//! 3. Handles answer [`Error::KeyspaceDropped`]. Iterators go on over what they hold, snapshots from
//!    before over what is kept for them. Files go when nobody holds them.
//!
//! Replay skips operations on a keyspace that the manifest does not know; its id is never given
//! again.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::db::{DEFAULT_KEYSPACE, DbInner};
use crate::error::{Error, Result};
use crate::format::file_name::FileName;
use crate::format::version_edit::Change;
use crate::jobs::obsolete_files;
use crate::memtable::Memtable;
use crate::tree::Tree;

impl DbInner {
    /// Drops the keyspace of this name.
    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        self.begin_operation();
        if name == DEFAULT_KEYSPACE {
            return Err(Error::DefaultKeyspace);
        }
        self.state.error_state.check_writable()?;
        {
            let _turn = self.lock_admin(None)?;
            let tree = self.state.trees.read().by_name(name).cloned();
            let tree = tree.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })?;
            tree.set_dropping(true);
            if let Err(error) = self.drop_tree(&tree) {
                tree.set_dropping(false);
                self.state.emit_pending_events();
                return Err(error);
            }
        }
        self.scheduler.run_inline();
        Ok(())
    }

    fn drop_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        let store = &self.state;
        self.committer.sync(None)?;
        let number = {
            let _one_at_a_time = self.keyspace_changes.lock();
            let _order = tree.install.lock();
            if !failpoint::is_on(Failpoint::DropNotLogged) {
                self.append_edit(vec![Change::DropKeyspace { id: tree.id }])?;
            }
            let number = store.sequence.count_drop();
            tree.set_dropped(number);
            store.trees.write().remove(tree);
            store.set_failing(tree.id, false);
            store.guard_history.forget(tree.id);
            number
        };
        let view = tree.pin();
        for table in view.version.runs().iter().flat_map(|run| run.tables().iter()) {
            table.set_obsolete();
        }
        if let Some(attached) = tree.beside.attached() {
            attached.life.set_over();
        }
        view.version.blobs().files().for_each(|used| used.file.set_obsolete());
        // Once: a fold that is under way, or comes while a snapshot still sees the memtable, counts nothing.
        let freed =
            |memtable: &Arc<Memtable>| match failpoint::is_on(Failpoint::DroppedMemtableCounted) {
                true => memtable.bytes(),
                false => memtable.release_bytes(),
            };
        store.memtables.subtract(view.memtables().map(freed).sum());
        drop(view);
        store.add_dropped_keyspace(number, Arc::clone(tree));
        for segment in tree.beside.kept_log().iter().flat_map(|kept| kept.segments()) {
            store.janitor.discard(FileName::Segment(segment.id).in_dir(&store.dir));
        }
        tree.beside.set_kept_log(None);
        store.discard_unclaimed_files();
        // Its memtables pin no segment any more. If the edit for that fails, the drop is durable all
        // the same, and the next write is told.
        let _ = obsolete_files::retire_segments(store);
        store.progress.notify();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Background;
    use crate::merge_operator::{Append, CHAIN_OPERANDS_MAX};
    use crate::vfs::MemVfs;
    use crate::{Db, KeyspaceOptions, Options, WriteBatch};

    /// A snapshot keeps the memtable of a dropped keyspace, and a long chain in it is folded after the drop.
    #[test]
    fn drop_keyspace_fold_after_the_drop_counts_no_bytes() {
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        let core = db.inner();
        for round in 0..10_000 {
            let options = KeyspaceOptions::default().merge_operator(Append::new());
            let keyspace = db.keyspace("k", options).unwrap();
            let mut batch = WriteBatch::new();
            for _ in 0..=CHAIN_OPERANDS_MAX {
                batch.merge(&keyspace, "key", "operand");
            }
            let long = core.committer.commit(batch, false, 0, None).unwrap();
            assert!(!long.is_empty(), "no chain is long");
            let snapshot = db.snapshot();
            db.drop_keyspace("k").unwrap();
            core.fold_chains(long, crate::lookup::point::Reads::Storage);
            assert_eq!(core.state.memtables.used_bytes(), 0, "after round {round}");
            drop(snapshot);
        }
    }
}
