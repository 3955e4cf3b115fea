//! Group commit: who leads, who follows, what is seen when.

use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::thread;
use lsmx_base::sync::loom_model::{explore, spawn};
use lsmx_base::sync::{Arc, AtomicUsize, Ordering, Signal};

use crate::env::WaitCause;
use crate::loom_models::open;
use crate::options::write::WriteOptions;
use crate::write::batch::WriteBatch;
use crate::write::ticket::TaskWorkers;
use crate::{Db, Error};

/// As many bytes as make a group large: the lead goes on before it is inserted.
const LARGE: [u8; 5 << 10] = [7; 5 << 10];

fn put(db: &Db, key: &str, value: &[u8]) {
    db.put(key, value).unwrap();
    // A writer reads what it wrote.
    assert!(db.get(key).unwrap().is_some());
}

/// Asserts that of keys that are written once so many are visible as the published number says.
fn assert_whole(db: &Db, keys: &[&str]) {
    let snapshot = db.snapshot();
    let all = db.default_keyspace();
    let seen = keys.iter().filter(|key| snapshot.get(&all, key).unwrap().is_some()).count();
    assert_eq!(seen as u64, snapshot.seq().0);
}

fn assert_idle(db: &Db) {
    // Without a writer that would notify it, a drain that has to wait is a deadlock.
    assert!(db.inner().committer.drain(None));
}

/// Two writers come at once: the leader leaves without having seen the other one in the queue, or tells
/// it before it sleeps, and it sleeps for ever; or both lead.
#[test]
fn every_writer_is_told() {
    explore(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || put(&other, "a", b"1"));
        put(&db, "b", b"2");
        writer.join().unwrap();
        assert_eq!(db.inner().committer.next_seq().0, 3);
        assert_whole(&db, &["a", "b"]);
        assert_idle(&db);
    });
}

/// The same with three writers, one of which finds a queue that is being handed over.
#[test]
fn every_one_of_three_writers_is_told() {
    explore(Some(0), || {
        let (_, db) = open();
        let writers = ["a", "b"].map(|key| {
            let db = db.clone();
            spawn(move || put(&db, key, b"1"))
        });
        put(&db, "c", b"3");
        for writer in writers {
            writer.join().unwrap();
        }
        assert_whole(&db, &["a", "b", "c"]);
        assert_idle(&db);
    });
}

/// A large group is inserted while the next one is in the log already: the later one is seen first.
#[test]
fn groups_are_published_in_order() {
    explore(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let writer = spawn(move || {
            put(&other, "a", &LARGE);
            assert_whole(&other, &["a", "b"]);
        });
        put(&db, "b", &LARGE);
        assert_whole(&db, &["a", "b"]);
        writer.join().unwrap();
        assert_whole(&db, &["a", "b"]);
        assert_idle(&db);
    });
}

/// A batch is seen in part, or a number is seen before what was written at it.
#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    explore(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let reader = spawn(move || assert_whole(&other, &["a", "b"]));
        let mut batch = WriteBatch::new();
        batch.put(&db.default_keyspace(), "a", "1");
        batch.put(&db.default_keyspace(), "b", "1");
        db.write(batch, WriteOptions::default()).unwrap();
        reader.join().unwrap();
    });
}

/// A writer whose deadline has passed goes while it is being given the lead: the next one waits for a
/// leader that is not there; or it is told that nothing was done, and something was.
#[test]
fn a_writer_that_gives_up_leaves_nothing_behind() {
    explore(Some(1), || {
        let (_, db) = open();
        let other = db.clone();
        let hasty = spawn(move || {
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "a", "1");
            let now = WriteOptions { deadline: Some(Duration::ZERO), ..WriteOptions::default() };
            match other.write(batch, now) {
                Ok(()) => Some(true),
                Err(Error::Deadline { .. }) => Some(false),
                // Another thread had taken it.
                Err(Error::Undecided { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        });
        put(&db, "b", b"2");
        let written = hasty.join().unwrap();
        let there = db.get("a").unwrap().is_some();
        assert_eq!(there, written.unwrap_or(there));
        assert_idle(&db);
    });
}

/// Sends a thread of the model that leads for tasks.
#[derive(Debug, Default)]
struct Sent {
    signal: Signal,
    count: AtomicUsize,
}

impl TaskWorkers for Sent {
    fn start_leader(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.signal.notify();
    }

    fn start_folding(&self) {}
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A task commits while a thread does, and while the thread that leads for tasks comes or goes: nobody
/// leads, or nobody wakes the task.
#[test]
fn a_task_is_told_whoever_leads() {
    explore(Some(1), || {
        let (_, db) = open();
        let sent = Arc::new(Sent::default());
        let (other, leads) = (db.clone(), Arc::clone(&sent));
        let leader = spawn(move || {
            // One is sent for a task at most, or none: the writer may lead for it.
            let is_sent = &mut || leads.count.load(Ordering::Relaxed) > 0;
            let env = &other.inner().state.env;
            env.wait(WaitCause::Work, &leads.signal, None, is_sent);
            while other.inner().committer.lead_for_tasks() {}
        });
        let (other, sends) = (db.clone(), Arc::clone(&sent));
        let task = spawn(move || {
            let mut batch = WriteBatch::new();
            batch.put(&other.default_keyspace(), "a", "1");
            let attendant: Arc<dyn TaskWorkers> = sends;
            let pending = other.inner().committer.commit_for_task(batch, false, 0, &attendant);
            let waker = Waker::from(Arc::new(Unpark(thread::current())));
            loop {
                match pending.poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(done) => return done.unwrap(),
                    Poll::Pending => thread::park(),
                }
            }
        });
        put(&db, "b", b"2");
        task.join().unwrap();
        // Nobody may have been sent.
        sent.start_leader();
        leader.join().unwrap();
        assert_whole(&db, &["a", "b"]);
        assert_idle(&db);
    });
}
