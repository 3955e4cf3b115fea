//! Loom models of writes that wait for space in the memtables or for the end of a hard stop.

use lsmx_base::sync::loom_model::{explore_interleavings, spawn};

use crate::db::Db;
use crate::db::admission::*;
use crate::error::Error;
use crate::loom_models::open;
use lsmx_base::key::EntryKind;

/// Returns a database whose default tree has the maximum number of sealed memtables.
fn full_db() -> Db {
    let (_, db) = open();
    let inner = db.inner();
    for _ in 0..SEALED_COUNT_MAX {
        let mut batch = WriteBatch::new();
        batch.put(&db.default_keyspace(), "key", "value");
        // Commits without the inline flush of `DbInner::write`.
        inner.committer.commit(batch, false, 0, None).unwrap();
        inner.committer.seal_memtables(vec![Arc::clone(&inner.default_tree)], None).unwrap();
    }
    assert_eq!(lacks_room(&inner.default_tree), Some(WaitCause::MemtablesFull));
    db
}

/// Waits for the admission of a write, as in a database with background threads.
fn admit_threaded(inner: &DbInner) -> Result<()> {
    let mut batch = WriteBatch::new();
    batch.add(&inner.default_tree, EntryKind::Put, b"key", b"value");
    let admission = Admission::new(inner, &batch, WriteOptions::default());
    Admission { stage: AdmissionStage::Room(0), ..admission }.wait()
}

/// A writer checks for space and then sleeps. A flush that ends between check and sleep must still wake the writer.
#[test]
fn stalled_write_after_flush_continues() {
    explore_interleavings(Some(1), || {
        let db = full_db();
        let other = db.clone();
        let writer = spawn(move || admit_threaded(other.inner()).unwrap());
        db.inner().scheduler.run_inline();
        writer.join().unwrap();
    });
}

/// The writer continues after the policy has ended its hard stop.
#[test]
fn stopped_write_after_end_of_hard_stop_continues() {
    explore_interleavings(None, || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        tree.set_backpressure(0, true);
        let other = db.clone();
        let writer = spawn(move || admit_threaded(other.inner()).unwrap());
        // Same as the refresh of the backpressure after a job.
        tree.set_backpressure(0, false);
        db.inner().state.work.push(WorkKind::Compaction, tree.id);
        writer.join().unwrap();
    });
}

/// After the close, no job frees a memtable, so the waiting writer must return.
#[test]
fn stalled_write_during_close_ends() {
    explore_interleavings(Some(1), || {
        let db = full_db();
        let other = db.clone();
        let writer = spawn(move || admit_threaded(other.inner()));
        db.close(None).unwrap();
        let result = writer.join().unwrap();
        assert!(matches!(result, Ok(()) | Err(Error::Closed)), "{result:?}");
    });
}

/// A write waits for a free memtable when the database becomes read-only. No flush frees a memtable then, so the write
/// must fail.
#[test]
fn stalled_write_after_background_error_fails() {
    explore_interleavings(Some(2), || {
        let db = full_db();
        let other = db.clone();
        let writer = spawn(move || admit_threaded(other.inner()));
        db.inner().state.make_read_only(Error::Closed);
        let result = writer.join().unwrap();
        assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
    });
}
