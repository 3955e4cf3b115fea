//! Models of writes that wait for room.

use lsmx_base::sync::loom_model::{explore, spawn};

use crate::db::admission::*;
use crate::loom_models::open;
use crate::{Db, Error};

/// A database whose memtables all wait for their flush.
fn full() -> Db {
    let (_, db) = open();
    let core = db.inner();
    for _ in 0..SEALED_COUNT_MAX {
        let mut batch = crate::WriteBatch::new();
        batch.put(&db.default_keyspace(), "key", "value");
        // Past what would do the work at once.
        core.committer.commit(batch, false, 0, None).unwrap();
        core.committer.seal(vec![Arc::clone(&core.default_tree)], None).unwrap();
    }
    assert_eq!(lacks_room(&core.default_tree), Some(WaitCause::MemtablesFull));
    db
}

/// Goes the way of a write of a database with background threads.
fn admit(core: &DbInner) -> Result<()> {
    let mut batch = WriteBatch::new();
    batch.add(&core.default_tree, crate::EntryKind::Put, b"key", b"value");
    let stage = Stage::Room(0);
    let mut admission = Admission { stage, ..core.admission(&batch, WriteOptions::default()) };
    core.go_through(&mut admission)
}

/// The flush ends between the look at the memtables and the sleep: the writer sleeps for ever.
#[test]
fn a_stalled_write_goes_on_when_a_flush_has_made_room() {
    explore(Some(1), || {
        let db = full();
        let other = db.clone();
        let writer = spawn(move || admit(other.inner()).unwrap());
        db.inner().scheduler.run_inline();
        writer.join().unwrap();
    });
}

/// The policy takes its hard stop back.
#[test]
fn a_stopped_write_goes_on_when_runs_were_released() {
    explore(None, || {
        let (_, db) = open();
        let tree = Arc::clone(&db.inner().default_tree);
        tree.set_backpressure(0, true);
        let other = db.clone();
        let writer = spawn(move || admit(other.inner()).unwrap());
        // As a look does that ends.
        tree.set_backpressure(0, false);
        db.inner().state.work.push(crate::state::work_queue::WorkKind::Compaction, tree.id);
        writer.join().unwrap();
    });
}

/// A write stands still when the database is closed, or becomes read-only: nobody makes room any more.
#[test]
fn a_stalled_write_is_told_of_a_close() {
    explore(Some(1), || {
        let db = full();
        let other = db.clone();
        let writer = spawn(move || admit(other.inner()));
        db.close(None).unwrap();
        let told = writer.join().unwrap();
        assert!(matches!(told, Ok(()) | Err(Error::Closed)), "{told:?}");
    });
}

/// The same, of an error that makes the database read-only.
#[test]
fn a_stalled_write_is_told_of_an_error() {
    explore(Some(2), || {
        let db = full();
        let other = db.clone();
        let writer = spawn(move || admit(other.inner()));
        db.inner().state.fail(Error::Closed);
        let told = writer.join().unwrap();
        assert!(matches!(told, Err(Error::ReadOnly { .. })), "{told:?}");
    });
}
