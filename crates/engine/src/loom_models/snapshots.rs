//! Models of the snapshot list and the jobs that read it.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::loom_model::{explore, spawn};
use lsmx_base::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

use crate::loom_models::open;
use crate::tree::snapshots::SnapshotTracker;

/// A job reads the list after a snapshot has read its number and before it registers the number. The job then drops
/// an entry that the snapshot sees.
#[test]
fn job_sees_every_registered_snapshot() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let job = Arc::clone(&sequence);
        let job = spawn(move || {
            // Write 2 overwrites write 1, and is in a table as soon as it is visible.
            job.publish(SeqNo(2));
            !job.snapshot_seqs().contains(&SeqNo(1))
        });
        let pinned = sequence.register(0).unwrap();
        let dropped = job.join().unwrap();
        assert!(!(dropped && pinned.seq() == SeqNo(1)), "write 1 was dropped");
        drop(pinned);
        assert_eq!((sequence.snapshot_bounds(), sequence.snapshot_count()), (None, 0));
    });
}

/// Like [`job_sees_every_registered_snapshot`], through the handle of a database.
#[test]
fn job_sees_every_snapshot_of_a_handle() {
    explore(Some(2), || {
        let (_, db) = open();
        db.put("a", "1").unwrap();
        let other = db.clone();
        let job = spawn(move || {
            other.put("a", "2").unwrap();
            !other.inner().state.sequence.snapshot_seqs().contains(&SeqNo(1))
        });
        let snapshot = db.snapshot();
        let dropped = job.join().unwrap();
        assert!(!(dropped && snapshot.seq() == SeqNo(1)), "write 1 was dropped");
    });
}

/// A job drops live files, as FIFO does, and a snapshot sees the files before and not after.
#[test]
fn snapshot_never_sees_dropped_files_disappear() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let dropped = Arc::new(AtomicBool::new(false));
        let (job, job_dropped) = (Arc::clone(&sequence), Arc::clone(&dropped));
        let job = spawn(move || {
            if job.begin_entry_removal(SeqNo(1)) {
                job_dropped.store(true, Ordering::Relaxed);
                job.end_entry_removal();
            }
        });
        if let Some(pinned) = sequence.register(0) {
            let first = dropped.load(Ordering::Relaxed);
            let then = dropped.load(Ordering::Relaxed);
            assert_eq!(first, then, "the snapshot changed");
            drop(pinned);
        }
        job.join().unwrap();
        assert!(sequence.register(0).is_some());
    });
}

/// A snapshot is dropped while another one registers the same number. The number is then missing from the list, or
/// stays there forever.
#[test]
fn number_is_listed_while_any_snapshot_has_it() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let first = sequence.register(0).unwrap();
        let dropping = spawn(move || drop(first));
        let second = sequence.register(1).unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        dropping.join().unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        drop(second);
        assert_eq!((sequence.snapshot_seqs(), sequence.snapshot_count()), (Vec::new(), 0));
    });
}

/// A keyspace is dropped during the creation of an earlier snapshot, and data that the snapshot sees is freed.
#[test]
fn keyspace_drop_keeps_data_of_earlier_snapshots() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        let freed = Arc::new(AtomicUsize::new(0));
        let (dropping, frees) = (Arc::clone(&sequence), Arc::clone(&freed));
        let job = spawn(move || {
            let number = dropping.record_keyspace_drop();
            if !dropping.has_snapshot_before_drop(number) {
                frees.store(1, Ordering::Relaxed);
            }
        });
        let pinned = sequence.register(0).unwrap();
        job.join().unwrap();
        let before = pinned.drops_before() < 1;
        assert_eq!(freed.load(Ordering::Relaxed), usize::from(!before));
    });
}
