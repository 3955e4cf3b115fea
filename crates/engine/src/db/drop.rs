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

use crate::db::{Core, DEFAULT_KEYSPACE};
use crate::error::{Error, Result};
use crate::format::edit::Change;
use crate::job::collect;
use crate::keyspace::Tree;
use crate::sabotage::{self, Bug};
use crate::sync::Arc;

impl Core {
    /// Drops the keyspace of this name.
    pub(super) fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        self.tick();
        if name == DEFAULT_KEYSPACE {
            return Err(Error::DefaultKeyspace);
        }
        self.store.health.check()?;
        {
            let _turn = self.turn(None)?;
            let tree = self.store.trees.read().name(name).cloned();
            let tree = tree.ok_or_else(|| Error::UnknownKeyspace { name: name.to_owned() })?;
            tree.set_dropping(true);
            if let Err(error) = self.drop_tree(&tree) {
                tree.set_dropping(false);
                self.store.tell_pending();
                return Err(error);
            }
        }
        self.runner.run_inline();
        Ok(())
    }

    fn drop_tree(&self, tree: &Arc<Tree>) -> Result<()> {
        let store = &self.store;
        self.committer.sync(None)?;
        let number = {
            let _one_at_a_time = self.creating.lock();
            let _order = tree.install.lock();
            if !sabotage::on(Bug::DropNotLogged) {
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
        store.memtable_bytes_freed(view.memtable_bytes());
        drop(view);
        store.keep_dropped(number, Arc::clone(tree));
        // Its memtables pin no segment any more. If the edit for that fails, the drop is durable all
        // the same, and the next write is told.
        let _ = collect::retire_segments(store);
        store.progress.notify();
        Ok(())
    }
}
