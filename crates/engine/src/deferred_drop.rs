//! Drops large values on background threads.
//!
//! Dropping the last reference to a memtable or a version frees thousands of allocations, filters and file descriptors.
//! The last reference may belong to a reader on a thread of an asynchronous runtime, which must not block other tasks.
//! The value is therefore moved to a background thread, which drops it.
//!
//! A value is dropped on the caller's thread if no background threads run, if all work runs on the caller's thread, or
//! if the caller is a background thread.

use std::cell::Cell;
use std::fmt;

use lsmx_base::sync::{Arc, Mutex, Signal};

use crate::callback::{self, CallbackContext};

thread_local! {
    /// True if the current thread is a background thread. Background threads drop values immediately.
    static DROPS_AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the current thread marked as a background thread.
pub(crate) fn run_in_background<T>(work: impl FnOnce() -> T) -> T {
    let _context = callback::enter(CallbackContext::EngineThread);
    DROPS_AT_ONCE.set(true);
    let result = work();
    DROPS_AT_ONCE.set(false);
    result
}

/// Queue of values that background threads drop. Clones share the queue. A queue created by `default` has no background
/// threads, so values are dropped immediately.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeferredDrop(Arc<DeferredDropState>);

#[derive(Debug, Default)]
struct DeferredDropState {
    queue: Mutex<DropQueue>,
    /// Notified after a value was added.
    signal: Signal,
}

#[derive(Default)]
struct DropQueue {
    /// Whether background threads run.
    is_running: bool,
    values: Vec<Box<dyn Send>>,
}

impl fmt::Debug for DropQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DropQueue");
        debug.field("is_running", &self.is_running).field("values", &self.values.len()).finish()
    }
}

impl DeferredDrop {
    /// Creates a queue that notifies `signal` when a value is added.
    pub(crate) fn new(signal: Signal) -> DeferredDrop {
        DeferredDrop(Arc::new(DeferredDropState { queue: Mutex::default(), signal }))
    }

    /// Starts queueing values. The caller must have started the background threads.
    pub(crate) fn start(&self) {
        self.0.queue.lock().is_running = true;
    }

    /// Stops queueing values, and drops the queued values. The background threads must have ended.
    pub(crate) fn stop(&self) {
        self.0.queue.lock().is_running = false;
        self.drop_queued();
    }

    /// Returns true if background threads run. Only then are values queued.
    #[cfg_attr(
        not(any(test, feature = "tokio")),
        expect(dead_code, reason = "only the asynchronous handle needs it")
    )]
    pub(crate) fn is_running(&self) -> bool {
        self.0.queue.lock().is_running
    }

    /// Drops a value on a background thread. Without background threads, drops the value immediately.
    pub(crate) fn drop_later(&self, value: impl Send + 'static) {
        // `try_with` fails only while the thread exits. Such a thread is not a background thread.
        if DROPS_AT_ONCE.try_with(Cell::get).unwrap_or(false) {
            return;
        }
        let value: Box<dyn Send> = Box::new(value);
        let rejected = {
            let mut queue = self.0.queue.lock();
            match queue.is_running {
                true => {
                    queue.values.push(value);
                    None
                }
                false => Some(value),
            }
        };
        match rejected {
            // The destructor may be slow, so the value is dropped after the lock is released.
            Some(value) => drop(value),
            None => self.0.signal.notify(),
        }
    }

    /// Returns whether the queue has values.
    pub(crate) fn has_queued(&self) -> bool {
        !self.0.queue.lock().values.is_empty()
    }

    /// Drops all queued values.
    pub(crate) fn drop_queued(&self) {
        let values = std::mem::take(&mut self.0.queue.lock().values);
        drop(values);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use super::*;
    use crate::db::Db;
    use crate::env::Background;
    use crate::options::db::Options;
    use crate::vfs::MemVfs;

    /// Records the thread that drops it.
    struct RecordsDrop(Arc<Mutex<Option<ThreadId>>>);

    impl Drop for RecordsDrop {
        fn drop(&mut self) {
            *self.0.lock() = Some(thread::current().id());
        }
    }

    #[test]
    fn drop_later_queues_values_while_background_threads_run() {
        let signal = Signal::new();
        let deferred_drop = DeferredDrop::new(signal.clone());
        let this = Some(thread::current().id());
        let drop_value = || {
            let dropped_by = Arc::new(Mutex::default());
            deferred_drop.drop_later(RecordsDrop(Arc::clone(&dropped_by)));
            dropped_by
        };
        assert_eq!(*drop_value().lock(), this, "no background thread runs yet");

        deferred_drop.start();
        let generation = signal.generation();
        let dropped_by = drop_value();
        assert_eq!(*dropped_by.lock(), None);
        assert!(deferred_drop.has_queued() && signal.generation() > generation);
        let background = thread::scope(|scope| {
            let drop_queued = || {
                deferred_drop.drop_queued();
                thread::current().id()
            };
            scope.spawn(drop_queued).join().expect("no panic")
        });
        assert_eq!(*dropped_by.lock(), Some(background));
        assert!(!deferred_drop.has_queued());

        // A background thread drops values immediately.
        assert_eq!(*run_in_background(drop_value).lock(), this);

        let queued = drop_value();
        assert_eq!(*queued.lock(), None);
        deferred_drop.stop();
        assert_eq!((*queued.lock(), *drop_value().lock()), (this, this));
    }

    #[test]
    fn last_reader_of_a_table_does_not_close_it() {
        let inline = Options::default().background(Background::Inline);
        let db = Db::open("db", inline.vfs(Arc::new(MemVfs::new()))).unwrap();
        let (all, tables) = (db.default_keyspace(), &db.inner().state.tables);
        let iter_over_obsolete_table = || {
            db.put("a", "table").unwrap();
            db.put("b", "table").unwrap();
            db.flush().unwrap();
            let mut range = all.iter();
            assert!(range.next().is_some(), "the iterator holds the table");
            db.put("a", "another").unwrap();
            db.flush().unwrap();
            all.compact_range::<&str>(..).unwrap();
            assert!(tables.obsolete_files.held_files().0 > 0, "only the iterator holds the table");
            range
        };
        // Without background threads the last reader closes the table.
        drop(iter_over_obsolete_table());
        assert_eq!(
            (tables.obsolete_files.held_files().0, tables.deferred_drop.has_queued()),
            (0, false)
        );

        tables.deferred_drop.start();
        drop(iter_over_obsolete_table());
        assert!(tables.deferred_drop.has_queued() && tables.obsolete_files.held_files().0 > 0);
        db.wait_idle().unwrap();
        assert_eq!(
            (tables.obsolete_files.held_files().0, tables.deferred_drop.has_queued()),
            (0, false)
        );
    }

    /// Sends the name of the thread that drops it.
    struct SendsThreadName(mpsc::Sender<String>);

    impl Drop for SendsThreadName {
        fn drop(&mut self) {
            let name = thread::current().name().unwrap_or_default().to_owned();
            let _ = self.0.send(name);
        }
    }

    #[test]
    fn background_threads_of_a_database_drop_queued_values() {
        let db = Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let deferred_drop = db.inner().state.tables.deferred_drop.clone();
        let (sender, receiver) = mpsc::channel();
        deferred_drop.drop_later(SendsThreadName(sender.clone()));
        let thread = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(thread.starts_with("lsmx-"), "{thread}");
        db.close(None).unwrap();
        deferred_drop.drop_later(SendsThreadName(sender));
        let thread = receiver.try_recv().unwrap();
        assert!(!thread.starts_with("lsmx-"), "{thread}");
    }
}
