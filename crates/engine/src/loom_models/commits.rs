//! Loom models of group commit.

use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::thread;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::loom_model::{explore_interleavings, spawn};
use lsmx_base::sync::{Arc, AtomicUsize, Ordering, Signal};

use crate::db::Db;
use crate::env::WaitCause;
use crate::error::Error;
use crate::loom_models::open;
use crate::options::write::WriteOptions;
use crate::write::batch::WriteBatch;
use crate::write::ticket::TaskWorkerStarter;

/// A value that makes its commit group large. While a large group is inserted into the memtable, the next group can
/// already start.
const LARGE: [u8; 5 << 10] = [7; 5 << 10];

fn put(db: &Db, key: &str, value: &[u8]) {
    db.put(key, value).unwrap();
    // A thread sees its own write as soon as `put` returns.
    assert!(db.get(key).unwrap().is_some());
}

/// Asserts that a snapshot sees as many of `keys` as its sequence number. Each key is written once, so every sequence
/// number up to that of the snapshot must be visible.
fn assert_visible_keys_match_sequence(db: &Db, keys: &[&str]) {
    let snapshot = db.snapshot();
    let all = db.default_keyspace();
    let seen = keys.iter().filter(|key| snapshot.get(&all, key).unwrap().is_some()).count();
    assert_eq!(seen as u64, snapshot.seq().0);
}

fn assert_pipeline_is_idle(db: &Db) {
    // Called after all writers have ended. If the commit pipeline had an unfinished group, the wait would not end.
    assert!(db.inner().committer.wait_until_idle(None));
}

/// Two concurrent writers both complete. The leader of the first group wakes the other writer exactly once, even if the
/// other writer is not yet asleep.
#[test]
fn two_writers_both_complete() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || put(&other, "a", b"1"));
        put(&db, "b", b"2");
        writer.join().unwrap();
        assert_eq!(db.inner().committer.next_seq().0, 3);
        assert_visible_keys_match_sequence(&db, &["a", "b"]);
        assert_pipeline_is_idle(&db);
    });
}

/// Three concurrent writers all complete. The third writer may enter the queue while the first writer makes the second
/// writer the next leader.
#[test]
fn three_writers_all_complete() {
    explore_interleavings(Some(0), || {
        let (_, db) = open();
        let writers = ["a", "b"].map(|key| {
            let db = db.clone();
            spawn(move || put(&db, key, b"1"))
        });
        put(&db, "c", b"3");
        for writer in writers {
            writer.join().unwrap();
        }
        assert_visible_keys_match_sequence(&db, &["a", "b", "c"]);
        assert_pipeline_is_idle(&db);
    });
}

/// Exclusive work runs after all earlier commits are published and before any later commit. After the work, all waiting
/// writers complete.
#[test]
fn exclusive_work_is_between_commits() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || {
            put(&other, "a", &LARGE);
            put(&other, "b", b"2");
        });
        let committer = &db.inner().committer;
        let sequence = &db.inner().state.sequence;
        let work = |seq: SeqNo| {
            assert_eq!(sequence.published().0 + 1, seq.0);
            Ok(Some(seq))
        };
        for _ in 0..2 {
            let seq = committer.run_exclusive(None, work).unwrap().unwrap();
            assert!(sequence.published() >= seq);
        }
        writer.join().unwrap();
        assert_eq!((committer.next_seq().0, sequence.published().0), (5, 4));
        assert_pipeline_is_idle(&db);
    });
}

/// A commit group becomes visible only after all earlier groups are in the memtable.
#[test]
fn groups_are_published_in_order() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || {
            put(&other, "a", &LARGE);
            assert_visible_keys_match_sequence(&other, &["a", "b"]);
        });
        put(&db, "b", &LARGE);
        assert_visible_keys_match_sequence(&db, &["a", "b"]);
        writer.join().unwrap();
        assert_visible_keys_match_sequence(&db, &["a", "b"]);
        assert_pipeline_is_idle(&db);
    });
}

/// A reader sees all writes of a batch or none of them. If a sequence number is visible, its write is in the memtable.
#[test]
fn batch_is_visible_as_a_whole() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let reader = spawn(move || assert_visible_keys_match_sequence(&other, &["a", "b"]));
        let mut batch = WriteBatch::new();
        batch.put(&db.default_keyspace(), "a", "1");
        batch.put(&db.default_keyspace(), "b", "1");
        db.write(batch, WriteOptions::default()).unwrap();
        reader.join().unwrap();
    });
}

/// A writer may reach its deadline at the moment when it becomes the leader. The next writer completes nevertheless. A
/// write that failed because of its deadline is not stored.
#[test]
fn writer_after_deadline_leaves_no_trace() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || {
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "a", "1");
            let now = WriteOptions { deadline: Some(Duration::ZERO), ..WriteOptions::default() };
            match other.write(batch, now) {
                Ok(()) => Some(true),
                Err(Error::Deadline { .. }) => Some(false),
                // A leader has already added the commit to its group, so the outcome is unknown to the writer.
                Err(Error::Undecided { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        });
        put(&db, "b", b"2");
        let written = writer.join().unwrap();
        let is_stored = db.get("a").unwrap().is_some();
        assert_eq!(is_stored, written.unwrap_or(is_stored));
        assert_pipeline_is_idle(&db);
    });
}

/// Counts the requests to start a leader for the commits of asynchronous tasks, and signals the thread of the model
/// that acts as this leader.
#[derive(Debug, Default)]
struct LeaderStartCounter {
    signal: Signal,
    count: AtomicUsize,
}

impl TaskWorkerStarter for LeaderStartCounter {
    fn start_leader(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.signal.notify();
    }

    fn start_folding(&self) {}
}

struct UnparkWaker(thread::Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The commit of an asynchronous task completes and wakes the task. At the same time another thread commits, and the
/// thread that leads the groups of tasks may start or end.
#[test]
fn task_completes_with_any_leader() {
    explore_interleavings(Some(1), || {
        let (_, db) = open();
        let starts = Arc::new(LeaderStartCounter::default());
        let (other, starts_seen) = (db.clone(), Arc::clone(&starts));
        let leader = spawn(move || {
            // At most one leader is started. No leader is started if the other writer commits the batch of the task.
            let is_started = &mut || starts_seen.count.load(Ordering::Relaxed) > 0;
            let env = &other.inner().state.env;
            env.wait(WaitCause::Work, &starts_seen.signal, None, is_started);
            while other.inner().committer.lead_next_commit_group() {}
        });
        let (other, starts_of_task) = (db.clone(), Arc::clone(&starts));
        let task = spawn(move || {
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "a", "1");
            let workers: Arc<dyn TaskWorkerStarter> = starts_of_task;
            let pending = other.inner().committer.commit_for_task(batch, false, 0, &workers);
            let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
            loop {
                match pending.poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(done) => return done.unwrap(),
                    Poll::Pending => thread::park(),
                }
            }
        });
        put(&db, "b", b"2");
        task.join().unwrap();
        // If no leader was requested, the thread still waits for the signal. This call ends the wait.
        starts.start_leader();
        leader.join().unwrap();
        assert_visible_keys_match_sequence(&db, &["a", "b"]);
        assert_pipeline_is_idle(&db);
    });
}
