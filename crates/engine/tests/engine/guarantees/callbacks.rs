//! Guarantee 15: a call from a listener or another callback never waits for its own thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::{MergeError, MergeOperator, MergeResult};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Event, EventListener, KeyspaceOptions, Options};

use super::support::{all_kinds, lock, options, tuning};
use crate::harness::Outcome;
use crate::harness::parallel::watched;

/// A handle that callbacks can reach.
type Shared = Arc<Mutex<Option<Db>>>;

/// Makes every call that may wait for background work; each must be refused.
fn check_refused(db: &Db) -> Outcome {
    let main = db.default_keyspace();
    let calls = [
        ("flush", db.flush()),
        ("wait_idle", db.wait_idle()),
        ("resume", db.resume()),
        ("close", db.close(None)),
        ("checkpoint", db.checkpoint("refused")),
        ("drop_keyspace", db.drop_keyspace("values")),
        ("compact_range", main.compact_range::<&[u8]>(..)),
        ("operands_to_tree", main.operands_to_tree()),
    ];
    for (name, result) in calls {
        match result {
            Err(Error::Reentrant { call, .. }) if call == name => {}
            other => return Err(format!("{name} returns {other:?}")),
        }
    }
    Ok(())
}

/// Makes such calls at each event, and reports each event with the result.
struct Calling {
    db: Shared,
    results: Mutex<Sender<(String, Outcome)>>,
}

impl EventListener for Calling {
    fn on_event(&self, event: &Event) {
        // While the database is being opened there is no handle.
        let Some(db) = lock(&self.db).clone() else { return };
        let refused = check_refused(&db);
        // A snapshot, and reads, never wait for this thread.
        let read = db.snapshot().get(&db.default_keyspace(), "key");
        let result = refused.and(read.map(drop).map_err(|error| error.to_string()));
        let _ = lock(&self.results).send((format!("{event:?}"), result));
    }
}

/// 15. At every event a call that would wait for background work returns an error at once.
#[test]
fn listener_waiting_call_is_refused() {
    let (db, disk) = (Shared::default(), FaultVfs::new(Arc::new(MemVfs::new()), 0));
    let (results, events) = channel();
    let listener = Calling { db: Arc::clone(&db), results: Mutex::new(results) };
    // A queue that drops its oldest files: no snapshot is registered while it does.
    let queue = tuning("queue").policy("fifo(4K)".parse::<lsmx::PolicySpec>().unwrap());
    let options = options(Background::Threads { workers: 2 }).listener(Arc::new(listener));
    watched("calls of a listener", || {
        let opened = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let queue = opened.keyspace("queue", queue).unwrap();
        *lock(&db) = Some(opened.clone());
        let keyspaces = all_kinds(&opened);
        for n in 0..100u64 {
            for keyspace in keyspaces.iter().chain([&queue]) {
                keyspace.put(n.to_be_bytes(), [7; 100]).unwrap();
            }
        }
        opened.flush().unwrap();
        opened.wait_idle().unwrap();
        disk.add_rule(
            FaultRule::new(Fault::Error(Errno::Io))
                .for_calls(&[VfsCall::Append])
                .path_contains(".wal"),
        );
        assert!(matches!(opened.put("key", "value"), Err(Error::ReadOnly { .. })));
        opened.resume().unwrap();
        opened.put("key", "value").unwrap();
        lock(&db).take();
        drop((keyspaces, queue));
        opened.close(None).unwrap();
    });
    let seen = events.try_iter().map(|(event, result)| {
        result.unwrap_or_else(|what| panic!("{event}: {what}"));
        event
    });
    let seen: Vec<_> = seen.collect();
    for kind in ["FlushBegin", "Flush(", "CompactionBegin", "Compaction(", "ReadOnly", "Resumed"] {
        assert!(seen.iter().any(|event| event.starts_with(kind)), "no event {kind}");
    }
    assert!(seen.iter().any(|event| event.contains("kind: Drop")), "the queue dropped nothing");
}

/// Waits for a handle at the first flush, and drops it.
struct Dropping(Mutex<Receiver<Db>>);

impl EventListener for Dropping {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::FlushBegin(_)) {
            drop(lock(&self.0).recv());
        }
    }
}

/// 15. The last handle may be dropped in a listener: another thread closes the database.
#[test]
fn listener_drops_last_handle_closes_elsewhere() {
    let (disk, (handles, received)) = (Arc::new(MemVfs::new()), channel());
    let options = || options(Background::Threads { workers: 1 });
    watched("the close of a handle that a listener drops", || {
        let listener = Arc::new(Dropping(Mutex::new(received)));
        let db = Db::open("db", options().listener(listener).vfs(disk.clone())).unwrap();
        // More than a memtable holds.
        for n in 0..30u64 {
            db.put(n.to_be_bytes(), [7; 100]).unwrap();
        }
        handles.send(db).unwrap();
        drop(handles);
        let db = loop {
            match Db::open("db", options().vfs(disk.clone())) {
                Ok(db) => break db,
                Err(Error::Locked { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(db.default_keyspace().iter().count(), 30);
    });
}

/// Appends, and makes calls that wait for background work.
#[derive(Debug)]
struct Operator(Shared, AtomicUsize);

impl MergeOperator for Operator {
    fn name(&self) -> &'static str {
        "calling"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        if let Some(db) = lock(&self.0).clone() {
            check_refused(&db).map_err(MergeError::new)?;
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Some([base.unwrap_or_default(), &operands.concat()].concat()))
    }
}

/// 15. A merge operator that calls the database gets an error, on threads of the engine and of the user.
#[test]
fn merge_operator_waiting_call_is_refused() {
    let shared = Shared::default();
    let operator = Arc::new(Operator(Arc::clone(&shared), AtomicUsize::new(0)));
    let tuning = KeyspaceOptions::default().merge_operator(Arc::clone(&operator));
    let options = Options::default().keyspace_defaults(tuning);
    watched("calls of a merge operator", || {
        let db = Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap();
        *lock(&shared) = Some(db.clone());
        db.put("key", "a").unwrap();
        db.default_keyspace().merge("key", "b").unwrap();
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"ab"[..]));
        assert_eq!(operator.1.load(Ordering::Relaxed), 1);
        db.flush().unwrap();
        db.default_keyspace().merge("key", "c").unwrap();
        db.flush().unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        assert!(operator.1.load(Ordering::Relaxed) > 1);
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"abc"[..]));
        lock(&shared).take();
        db.close(None).unwrap();
    });
}
