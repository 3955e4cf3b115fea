//! Super versions: published by writers and jobs, pinned by readers.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_base::sync::loom_model::{explore, spawn};

use crate::loom_models::open;
use crate::write::batch::WriteBatch;

/// A flush takes the memtable away before the table is there, or the other way round shows neither.
#[test]
fn a_key_is_found_while_its_memtable_becomes_a_table() {
    explore(Some(1), || {
        let (_, db) = open();
        db.put("a", "1").unwrap();
        let other = db.clone();
        let reader = spawn(move || {
            assert_eq!(other.get("a").unwrap().as_deref(), Some(&b"1"[..]));
        });
        db.flush().unwrap();
        reader.join().unwrap();
        assert_eq!(db.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    });
}

/// A memtable is sealed while a commit is on its way to it: the commit goes to one that nobody reads or
/// flushes.
#[test]
fn a_commit_is_found_while_its_memtable_is_sealed() {
    explore(Some(1), || {
        let (_, db) = open();
        db.put("a", "1").unwrap();
        let other = db.clone();
        let writer = spawn(move || {
            let mut batch = WriteBatch::new();
            // Large, so that the next group is led while this one is inserted.
            batch.put(&other.default_keyspace(), "b", [7; 5 << 10]);
            other.inner().committer.commit(batch, false, 0, None).unwrap();
            assert!(other.get("b").unwrap().is_some());
        });
        let core = db.inner();
        core.committer.seal(vec![Arc::clone(&core.default_tree)], None).unwrap();
        assert!(db.get("a").unwrap().is_some());
        writer.join().unwrap();
        db.flush().unwrap();
        assert!(core.default_tree.pin().memtables().all(|memtable| memtable.is_empty()));
        assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_some());
    });
}

/// Two change the view at once: what one of them did is lost.
#[test]
fn no_change_of_a_view_is_lost() {
    explore(Some(3), || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        let other = Arc::clone(&tree);
        let change = spawn(move || other.change(|view| view.with_active_sealed(SeqNo(2))));
        tree.update_super_version(|view| view.with_active_sealed(SeqNo(2)));
        change.join().unwrap();
        assert_eq!(tree.pin_super_version().sealed.len(), 2);
    });
}

/// A view is replaced while a reader pins it: nobody knows that its files are still held.
#[test]
fn a_view_that_is_held_is_known() {
    explore(Some(3), || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        let other = Arc::clone(&tree);
        let reader = spawn(move || other.pin_super_version());
        tree.update_super_version(|view| view.with_active_sealed(SeqNo(1)));
        tree.update_super_version(|view| view.with_active_sealed(SeqNo(1)));
        let pinned = reader.join().unwrap();
        let held = tree.held_super_versions();
        assert!(held.iter().any(|view| Arc::ptr_eq(view, &pinned)));
        drop((held, pinned));
        assert_eq!(
            (tree.old_super_versions.count_in_use(), tree.count_current_pins()),
            ((0, 0), 0)
        );
    });
}
