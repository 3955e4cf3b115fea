//! Renaming a keyspace.
//!
//! 1. The WAL is synced, so that the rename is ordered after all earlier commits.
//! 2. One manifest edit replaces the name. The WAL, the tables and the blob files refer to the keyspace by its id, so
//!    no data changes. A table keeps the name that the keyspace had when the table was written. Only a repair without a
//!    manifest reads this name.
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
        // `drop_keyspace` looks up the name and drops the tree under this lock, so that no rename happens in between.
        let _lock = inner.lock_admin(None)?;
        rename_locked(inner, old, new)
    };
    inner.state.emit_pending_events();
    renamed
}

fn rename_locked(inner: &DbInner, old: &str, new: &str) -> Result<()> {
    let state = &inner.state;
    let _changes = inner.keyspace_changes.lock();
    // `close` sets `closed`, and then acquires this lock once. After that, no keyspace changes.
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
