//! Guarantee 15: a call from an event listener, a merge operator or a compaction filter never deadlocks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::{MergeError, MergeOperator, MergeResult};
use lsmx::vfs::MemVfs;
use lsmx::{CompactionFilter, Db, Error, Event, EventListener, KeyspaceOptions, Options};

use crate::harness::Outcome;
use crate::harness::parallel::watched;
use crate::harness::small_database::{
    keyspace_options, lock, open_kinds, open_with, options, policy,
};

/// The database handle for the callbacks, or `None` while the database opens or closes.
type SharedDb = Arc<Mutex<Option<Db>>>;

/// Makes every call that can wait for background work, and asserts that each call returns [`Error::Reentrant`].
fn check_refused(db: &Db) -> Outcome {
    let main = db.default_keyspace();
    let calls = [
        ("flush", db.flush()),
        ("wait_idle", db.wait_idle()),
        ("resume", db.resume()),
        ("close", db.close(None)),
        ("checkpoint", db.checkpoint("refused")),
        ("drop_keyspace", db.drop_keyspace("values")),
        ("rename_keyspace", db.rename_keyspace("values", "renamed")),
        (
            "clone_keyspace",
            db.clone_keyspace("values", "clone", KeyspaceOptions::default()).map(drop),
        ),
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

/// An event listener that calls [`check_refused`] and reads at each event. The listener sends the results to the test.
struct CallingListener {
    db: SharedDb,
    results: Mutex<Sender<(String, Outcome)>>,
}

impl EventListener for CallingListener {
    fn on_event(&self, event: &Event) {
        let Some(db) = lock(&self.db).clone() else { return };
        let refused = check_refused(&db);
        // Snapshots and reads do not wait for background work, so they succeed in a listener.
        let read = db.snapshot().get(&db.default_keyspace(), "key");
        let result = refused.and(read.map(drop).map_err(|error| error.to_string()));
        let _ = lock(&self.results).send((format!("{event:?}"), result));
    }
}

/// Guarantee 15: if a listener makes a call that would wait for background work, the call returns an error.
#[test]
fn guarantee_15_waiting_call_of_listener_is_refused() {
    let (shared, disk) = (SharedDb::default(), FaultVfs::new(Arc::new(MemVfs::new()), 0));
    let (results, events) = channel();
    let listener = CallingListener { db: Arc::clone(&shared), results: Mutex::new(results) };
    // The policy `fifo` drops old files, but not while a snapshot exists.
    let queue = keyspace_options("queue").policy(policy("fifo(4K)"));
    let options = options(Background::Threads { workers: 2 }).listener(Arc::new(listener));
    watched("calls of a listener", || {
        let db = open_with(&disk, options).unwrap();
        let queue = db.keyspace("queue", queue).unwrap();
        *lock(&shared) = Some(db.clone());
        let keyspaces = open_kinds(&db);
        for n in 0..100u64 {
            for keyspace in keyspaces.iter().chain([&queue]) {
                keyspace.put(n.to_be_bytes(), [7; 100]).unwrap();
            }
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let failing = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
        disk.add_rule(failing.path_contains(".wal"));
        assert!(matches!(db.put("key", "value"), Err(Error::ReadOnly { .. })));
        db.resume().unwrap();
        db.put("key", "value").unwrap();
        lock(&shared).take();
        drop((keyspaces, queue));
        db.close(None).unwrap();
    });
    let seen = events.try_iter().map(|(event, result)| {
        result.unwrap_or_else(|what| panic!("{event}: {what}"));
        event
    });
    let seen: Vec<_> = seen.collect();
    for kind in ["FlushBegin", "Flush(", "CompactionBegin", "Compaction(", "ReadOnly", "Resumed"] {
        assert!(seen.iter().any(|event| event.starts_with(kind)), "no event {kind}");
    }
    assert!(seen.iter().any(|event| event.contains("kind: Drop")), "no file was dropped");
}

/// A listener that receives a database handle from the test at the first flush and then drops the handle.
struct DroppingListener(Mutex<Receiver<Db>>);

impl EventListener for DroppingListener {
    fn on_event(&self, event: &Event) {
        if matches!(event, Event::FlushBegin(_)) {
            drop(lock(&self.0).recv());
        }
    }
}

/// Guarantee 15: if a listener drops the last database handle, another thread closes the database.
#[test]
fn guarantee_15_last_handle_dropped_by_listener_closes() {
    let (disk, (handles, received)) = (MemVfs::new(), channel());
    let options = || options(Background::Threads { workers: 1 });
    watched("the close of a handle that a listener drops", || {
        let listener = Arc::new(DroppingListener(Mutex::new(received)));
        let db = open_with(&disk, options().listener(listener)).unwrap();
        // These writes exceed the memtable size and cause a flush.
        for n in 0..30u64 {
            db.put(n.to_be_bytes(), [7; 100]).unwrap();
        }
        handles.send(db).unwrap();
        drop(handles);
        let db = loop {
            match open_with(&disk, options()) {
                Err(Error::Locked { .. }) => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(db.default_keyspace().iter().count(), 30);
    });
}

/// A merge operator that concatenates operands. Each merge calls [`check_refused`] first. The second field counts these
/// calls.
#[derive(Debug)]
struct CallingOperator(SharedDb, AtomicUsize);

impl MergeOperator for CallingOperator {
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

/// Guarantee 15: if a merge operator makes a call that would wait for background work, the call returns an error. This
/// holds on threads of the engine and of the user.
#[test]
fn guarantee_15_waiting_call_of_merge_operator_is_refused() {
    let shared = SharedDb::default();
    let operator = Arc::new(CallingOperator(Arc::clone(&shared), AtomicUsize::new(0)));
    let keyspace = KeyspaceOptions::default().merge_operator(Arc::clone(&operator));
    watched("calls of a merge operator", || {
        let options = Options::default().keyspace_defaults(keyspace);
        let db = open_with(&MemVfs::new(), options).unwrap();
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

/// A compaction filter that calls [`check_refused`]. The second field counts the calls.
#[derive(Debug)]
struct CallingFilter(SharedDb, AtomicUsize);

impl CompactionFilter for CallingFilter {
    fn name(&self) -> &'static str {
        "calling"
    }

    fn filter(
        &self,
        _: &[u8],
        _: &FilterValue<'_>,
        _: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        let db = lock(&self.0).clone();
        db.map_or(Ok(()), |db| check_refused(&db)).map_err(FilterError::new)?;
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(FilterDecision::Remove)
    }
}

/// Guarantee 15: if a compaction filter makes a call that would wait for background work, the call returns an error.
#[test]
fn guarantee_15_waiting_call_of_compaction_filter_is_refused() {
    let shared = SharedDb::default();
    let filter = Arc::new(CallingFilter(Arc::clone(&shared), AtomicUsize::new(0)));
    let keyspace = KeyspaceOptions::default().compaction_filter(Arc::clone(&filter));
    watched("calls of a compaction filter", || {
        let options = Options::default().keyspace_defaults(keyspace);
        let db = open_with(&MemVfs::new(), options).unwrap();
        *lock(&shared) = Some(db.clone());
        db.put("key", "a").unwrap();
        db.default_keyspace().compact_range::<&[u8]>(..).unwrap();
        assert_eq!(filter.1.load(Ordering::Relaxed), 1);
        assert_eq!(db.get("key").unwrap(), None);
        lock(&shared).take();
        db.close(None).unwrap();
    });
}
