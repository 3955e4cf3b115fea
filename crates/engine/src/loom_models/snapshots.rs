//! Loom models of the snapshot list and of jobs that read the list.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::loom_model::{explore_interleavings, spawn};
use lsmx_base::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

use crate::loom_models::open;
use crate::tree::snapshots::SnapshotTracker;

/// A new snapshot first reads its sequence number and then registers it. If a job lists the snapshots between these two
/// steps, the job still keeps every entry that the snapshot sees.
#[test]
fn job_sees_every_registered_snapshot() {
    explore_interleavings(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let job = Arc::clone(&sequence);
        let job = spawn(move || {
            // Write 2 overwrites write 1. The job drops write 1 if no snapshot is registered at sequence number 1.
            job.publish(SeqNo(2));
            !job.snapshot_seqs().contains(&SeqNo(1))
        });
        let pinned = sequence.register(0, || 0).unwrap();
        let dropped = job.join().unwrap();
        assert!(!(dropped && pinned.seq() == SeqNo(1)), "write 1 was dropped");
        drop(pinned);
        assert_eq!((sequence.oldest_and_newest_snapshot(), sequence.snapshot_count()), (None, 0));
    });
}

/// Like [`job_sees_every_registered_snapshot`], but with a snapshot that is created by the database handle.
#[test]
fn job_sees_every_snapshot_of_a_handle() {
    explore_interleavings(Some(2), || {
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

/// A FIFO compaction drops files with live entries. This does not change the view of a snapshot: two reads of one
/// snapshot return the same entries.
#[test]
fn snapshot_never_sees_dropped_files_disappear() {
    explore_interleavings(None, || {
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
        if let Some(pinned) = sequence.register(0, || 0) {
            let first = dropped.load(Ordering::Relaxed);
            let then = dropped.load(Ordering::Relaxed);
            assert_eq!(first, then, "the snapshot changed");
            drop(pinned);
        }
        job.join().unwrap();
        assert!(sequence.register(0, || 0).is_some());
    });
}

/// Two snapshots have the same sequence number. The number stays in the snapshot list as long as one of them exists,
/// even if one is dropped while the other is registered.
#[test]
fn number_is_listed_while_any_snapshot_has_it() {
    explore_interleavings(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let first = sequence.register(0, || 0).unwrap();
        let dropping = spawn(move || drop(first));
        let second = sequence.register(1, || 1).unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        dropping.join().unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        drop(second);
        assert_eq!((sequence.snapshot_seqs(), sequence.snapshot_count()), (Vec::new(), 0));
    });
}

/// A snapshot is created while a keyspace is dropped. If the snapshot precedes the drop, the data of the keyspace is
/// kept for the snapshot.
#[test]
fn keyspace_drop_keeps_data_of_earlier_snapshots() {
    explore_interleavings(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        let freed = Arc::new(AtomicUsize::new(0));
        let (dropping, frees) = (Arc::clone(&sequence), Arc::clone(&freed));
        let job = spawn(move || {
            let number = dropping.record_keyspace_drop();
            if !dropping.has_snapshot_before_drop(number) {
                frees.store(1, Ordering::Relaxed);
            }
        });
        let pinned = sequence.register(0, || 0).unwrap();
        job.join().unwrap();
        let before = pinned.keyspace_drops_before() < 1;
        assert_eq!(freed.load(Ordering::Relaxed), usize::from(!before));
    });
}
