//! Open keyspaces of a database.

use std::collections::BTreeMap;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;

use crate::tree::Tree;

/// Trees of all open keyspaces, by id and by name.
#[derive(Debug, Default)]
pub(crate) struct Keyspaces {
    by_id: BTreeMap<u32, Arc<Tree>>,
    by_name: BTreeMap<String, Arc<Tree>>,
}

impl Keyspaces {
    pub(crate) fn insert(&mut self, tree: Arc<Tree>) {
        self.by_name.insert(tree.name(), Arc::clone(&tree));
        self.by_id.insert(tree.id, tree);
    }

    pub(crate) fn remove(&mut self, tree: &Tree) {
        self.by_name.remove(&tree.name());
        self.by_id.remove(&tree.id);
    }

    /// Replaces the name of a tree. No other tree has the new name.
    pub(crate) fn rename(&mut self, tree: &Arc<Tree>, name: &str) {
        if !failpoint::is_on(Failpoint::RenameKeepsOldName) {
            self.by_name.remove(&tree.name());
        }
        tree.shared_name().set(name.to_owned());
        self.by_name.insert(name.to_owned(), Arc::clone(tree));
    }

    /// Returns the tree with this id, if it is open.
    pub(crate) fn by_id(&self, id: u32) -> Option<&Arc<Tree>> {
        self.by_id.get(&id)
    }

    /// Returns the tree with this name, if it is open.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Tree>> {
        self.by_name.get(name)
    }

    /// Returns the names and trees, ordered by name. The names are consistent, because a rename takes the lock of this
    /// list.
    pub(crate) fn iter_by_name(&self) -> impl Iterator<Item = (&String, &Arc<Tree>)> {
        self.by_name.iter()
    }

    /// Returns all trees in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Tree>> {
        self.by_id.values()
    }
}
