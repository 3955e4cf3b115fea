//! Renaming a keyspace.
//!
//! 1. The WAL is synced, so that the rename is ordered after all earlier commits.
//! 2. One manifest edit replaces the name. The WAL, the tables and the blob files refer to the keyspace by its id, so no
//!    data changes. Tables contain the name of the time at which they were written, which only a repair without a manifest
//!    reads.
//! 3. The new name becomes visible to all handles at once.

use lsmx_base::failpoint::{self, Failpoint};

use crate::db::inner::DbInner;
use crate::db::open_keyspace::check_keyspace_name;
use crate::error::{Error, Result};
use crate::format::version_edit::Change;
use crate::options::db::DEFAULT_KEYSPACE;

/// Renames a keyspace.
pub(crate) fn rename_keyspace(inner: &DbInner, old: &str, new: &str) -> Result<()> {
    inner.check_writable()?;
    inner.begin_operation();
    check_keyspace_name(new)?;
    inner.state.error_state.check_writable()?;
    let renamed = {
        // A drop of the old name selects its tree and drops it under this lock.
        let _lock = inner.lock_admin(None)?;
        rename_locked(inner, old, new)
    };
    inner.state.emit_pending_events();
    renamed
}

fn rename_locked(inner: &DbInner, old: &str, new: &str) -> Result<()> {
    let state = &inner.state;
    let _changes = inner.keyspace_changes.lock();
    // Close sets the flag, then acquires the lock once. No keyspace changes after that.
    inner.check_open()?;
    let tree = inner.existing_tree(old)?;
    if old == new {
        return Ok(());
    }
    if old == DEFAULT_KEYSPACE {
        return Err(Error::DefaultKeyspace);
    }
    if state.trees.read().by_name(new).is_some() {
        return Err(Error::KeyspaceExists { name: new.to_owned() });
    }
    tree.check_accepts_writes()?;
    if !failpoint::is_on(Failpoint::RenameNotLogged) {
        inner.append_edit(vec![Change::RenameKeyspace {
            keyspace: tree.id,
            name: new.to_owned(),
        }])?;
    }
    state.trees.write().rename(&tree, new);
    Ok(())
}
