//! Loom models of super versions. Writers and jobs replace the current super version. Readers pin the super version
//! that they read.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;
use lsmx_base::sync::loom_model::{explore_interleavings, spawn};

use crate::loom_models::open;
use crate::memtable::MemtableKind;
use crate::write::batch::WriteBatch;

/// A reader finds an entry during a flush, either in the memtable or in the new table.
#[test]
fn reader_during_flush_finds_the_key() {
    explore_interleavings(Some(1), || {
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

/// A commit is inserted while its memtable is sealed. The commit is visible to readers, and the flush writes it to a
/// table.
#[test]
fn commit_during_seal_is_found() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        db.put("a", "1").unwrap();
        let other = db.clone();
        let writer = spawn(move || {
            let mut batch = WriteBatch::new();
            // The group is large, so that the next group can start while this group is inserted.
            batch.put(&other.default_keyspace(), "b", [7; 5 << 10]);
            other.inner().committer.commit(batch, false, 0, None).unwrap();
            assert!(other.get("b").unwrap().is_some());
        });
        let core = db.inner();
        core.committer.seal_memtables(vec![Arc::clone(&core.default_tree)], None).unwrap();
        assert!(db.get("a").unwrap().is_some());
        writer.join().unwrap();
        db.flush().unwrap();
        assert!(
            core.default_tree.pin_super_version().memtables().all(|memtable| memtable.is_empty())
        );
        assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_some());
    });
}

/// If two threads change the super version concurrently, both changes are applied.
#[test]
fn concurrent_changes_of_the_super_version_are_kept() {
    explore_interleavings(Some(3), || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        let other = Arc::clone(&tree);
        let change = spawn(move || {
            other.update_super_version(|view| {
                view.with_sealed_memtable(MemtableKind::default(), SeqNo(2))
            })
        });
        tree.update_super_version(|view| {
            view.with_sealed_memtable(MemtableKind::default(), SeqNo(2))
        });
        change.join().unwrap();
        assert_eq!(tree.pin_super_version().sealed.len(), 2);
    });
}

/// A super version that a reader pins stays in the list of pinned super versions, even if the super version is replaced
/// concurrently. Otherwise its files could be deleted.
#[test]
fn pinned_super_version_is_listed() {
    explore_interleavings(Some(3), || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        let other = Arc::clone(&tree);
        let reader = spawn(move || other.pin_super_version());
        tree.update_super_version(|view| {
            view.with_sealed_memtable(MemtableKind::default(), SeqNo(1))
        });
        tree.update_super_version(|view| {
            view.with_sealed_memtable(MemtableKind::default(), SeqNo(1))
        });
        let pinned = reader.join().unwrap();
        let held = tree.pinned_super_versions();
        assert!(held.iter().any(|view| Arc::ptr_eq(view, &pinned)));
        drop((held, pinned));
        assert_eq!(
            (tree.old_super_versions.count_in_use(), tree.count_super_version_pins()),
            ((0, 0), 0)
        );
    });
}
