//! The list of snapshots, against the jobs that ask it what may go.

use lsmx_base::key::SeqNo;
use lsmx_base::sync::loom_model::{explore, spawn};
use lsmx_base::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

use crate::loom_models::open;
use crate::tree::snapshots::SnapshotTracker;

/// A snapshot takes its number and then registers it: a job that looks in between drops what the
/// snapshot is to read.
#[test]
fn a_job_finds_every_snapshot_that_reads_at_a_number() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let job = Arc::clone(&sequence);
        let job = spawn(move || {
            // Number 2 overwrites what number 1 wrote, and is in a table as soon as it is seen.
            job.publish(SeqNo(2));
            !job.snapshot_seqs().contains(&SeqNo(1))
        });
        let pinned = sequence.register(0).unwrap();
        let dropped = job.join().unwrap();
        assert!(!(dropped && pinned.seq() == SeqNo(1)), "number 1 is gone");
        drop(pinned);
        assert_eq!((sequence.snapshot_bounds(), sequence.snapshot_count()), (None, 0));
    });
}

/// The same through a handle of the database.
#[test]
fn a_handle_takes_a_snapshot_in_one_step() {
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
        assert!(!(dropped && snapshot.seq() == SeqNo(1)), "number 1 is gone");
    });
}

/// Files of a queue leave, which nobody deleted: a snapshot that comes meanwhile sees them at first and
/// then no more.
#[test]
fn what_leaves_is_seen_by_no_snapshot() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let gone = Arc::new(AtomicBool::new(false));
        let (job, leaves) = (Arc::clone(&sequence), Arc::clone(&gone));
        let job = spawn(move || {
            if job.begin_entry_removal(SeqNo(1)) {
                leaves.store(true, Ordering::Relaxed);
                job.end_entry_removal();
            }
        });
        if let Some(pinned) = sequence.register(0) {
            let first = gone.load(Ordering::Relaxed);
            let then = gone.load(Ordering::Relaxed);
            assert_eq!(first, then, "the snapshot moved");
            drop(pinned);
        }
        job.join().unwrap();
        assert!(sequence.register(0).is_some());
    });
}

/// A snapshot lets go while another one takes the same number: the number is forgotten though it is held,
/// or held for ever.
#[test]
fn a_number_is_held_while_anybody_holds_it() {
    explore(None, || {
        let sequence = Arc::new(SnapshotTracker::default());
        sequence.publish(SeqNo(1));
        let first = sequence.register(0).unwrap();
        let going = spawn(move || drop(first));
        let second = sequence.register(1).unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        going.join().unwrap();
        assert_eq!(sequence.snapshot_seqs(), [SeqNo(1)]);
        drop(second);
        assert_eq!((sequence.snapshot_seqs(), sequence.snapshot_count()), (Vec::new(), 0));
    });
}

/// A keyspace is dropped while a snapshot is taken: the drop lets go of what the snapshot is from before.
#[test]
fn a_drop_knows_the_snapshots_from_before() {
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
