//! What takes long to free is freed by background threads.
//!
//! Whoever is the last to let a memtable or a version go would have to free it: thousands of pieces of
//! memory, filters and descriptors of tables. That may be any reader, a task that others of its runtime
//! wait for among them. So what they are made of is handed over to the threads that do background
//! work.
//!
//! Where there are no such threads, whoever lets go frees: before they begin, after they have ended,
//! and where all work is done on the caller's thread. They themselves free what they let go, at once.

use std::cell::Cell;
use std::fmt;

use lsmx_base::sync::{Arc, Mutex, Signal};

use crate::callback::{self, Context};

thread_local! {
    /// Whether this thread frees for others.
    static FREES: Cell<bool> = const { Cell::new(false) };
}

/// Runs what a background thread does.
pub(crate) fn as_background<T>(work: impl FnOnce() -> T) -> T {
    let _inside = callback::enter(Context::EngineThread);
    FREES.set(true);
    let done = work();
    FREES.set(false);
    done
}

/// Takes over what takes long to free. Clones are the same; the default one frees at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disposal(Arc<State>);

#[derive(Debug, Default)]
struct State {
    taken: Mutex<Taken>,
    /// Given when there is something to free.
    signal: Signal,
}

#[derive(Default)]
struct Taken {
    /// Whether there are threads that free.
    open: bool,
    things: Vec<Box<dyn Send>>,
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let things = self.things.len();
        f.debug_struct("Taken").field("open", &self.open).field("things", &things).finish()
    }
}

impl Disposal {
    /// One that gives this signal when it has got something.
    pub(crate) fn new(signal: Signal) -> Disposal {
        Disposal(Arc::new(State { taken: Mutex::default(), signal }))
    }

    /// Says that there are threads that free.
    pub(crate) fn begin(&self) {
        self.0.taken.lock().open = true;
    }

    /// Says that there are none any more, and frees what they have left.
    pub(crate) fn end(&self) {
        self.0.taken.lock().open = false;
        self.free();
    }

    /// Whether whoever lets go does not free.
    #[cfg_attr(not(any(test, feature = "tokio")), expect(dead_code, reason = "for tasks alone"))]
    pub(crate) fn is_open(&self) -> bool {
        self.0.taken.lock().open
    }

    /// Has something freed, by a background thread if there is one.
    pub(crate) fn dispose(&self, thing: impl Send + 'static) {
        // Where the thread's locals are gone it is ending, and was none of those that free.
        if FREES.try_with(Cell::get).unwrap_or(false) {
            return;
        }
        let thing: Box<dyn Send> = Box::new(thing);
        let left = {
            let mut taken = self.0.taken.lock();
            match taken.open {
                true => {
                    taken.things.push(thing);
                    None
                }
                false => Some(thing),
            }
        };
        match left {
            // Not under the lock, which others wait for.
            Some(thing) => drop(thing),
            None => self.0.signal.notify(),
        }
    }

    /// Whether there is something to free.
    pub(crate) fn has_some(&self) -> bool {
        !self.0.taken.lock().things.is_empty()
    }

    /// Frees what was taken over.
    pub(crate) fn free(&self) {
        let things = std::mem::take(&mut self.0.taken.lock().things);
        drop(things);
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

    /// Notes the thread that frees it.
    struct Bulky(Arc<Mutex<Option<ThreadId>>>);

    impl Drop for Bulky {
        fn drop(&mut self) {
            *self.0.lock() = Some(thread::current().id());
        }
    }

    #[test]
    fn what_is_handed_over_is_freed_by_another_thread_while_there_is_one() {
        let signal = Signal::new();
        let disposal = Disposal::new(signal.clone());
        let this = Some(thread::current().id());
        let dispose = || {
            let freed_by = Arc::new(Mutex::default());
            disposal.dispose(Bulky(Arc::clone(&freed_by)));
            freed_by
        };
        assert_eq!(*dispose().lock(), this, "there is no thread yet");

        disposal.begin();
        let before = signal.generation();
        let freed_by = dispose();
        assert_eq!(*freed_by.lock(), None);
        assert!(disposal.has_some() && signal.generation() > before);
        let freeing = thread::scope(|scope| {
            let frees = || {
                disposal.free();
                thread::current().id()
            };
            scope.spawn(frees).join().expect("it does not panic")
        });
        assert_eq!(*freed_by.lock(), Some(freeing));
        assert!(!disposal.has_some());

        // One that frees for others keeps nothing for later.
        assert_eq!(*as_background(dispose).lock(), this);

        let left = dispose();
        assert_eq!(*left.lock(), None);
        disposal.end();
        assert_eq!((*left.lock(), *dispose().lock()), (this, this));
    }

    #[test]
    fn a_reader_that_lets_tables_go_last_does_not_close_them() {
        let inline = Options::default().background(Background::Inline);
        let db = Db::open("db", inline.vfs(Arc::new(MemVfs::new()))).unwrap();
        let (all, tables) = (db.default_keyspace(), &db.core().store.tables);
        let outdated = || {
            db.put("a", "table").unwrap();
            db.put("b", "table").unwrap();
            db.flush().unwrap();
            let mut range = all.iter();
            assert!(range.next().is_some(), "its cursors stand on the table");
            db.put("a", "another").unwrap();
            db.flush().unwrap();
            all.compact_range::<&str>(..).unwrap();
            assert!(tables.janitor.held().0 > 0, "the table is the range's alone");
            range
        };
        // Where nobody else frees, the last reader does.
        drop(outdated());
        assert_eq!((tables.janitor.held().0, tables.disposal.has_some()), (0, false));

        tables.disposal.begin();
        drop(outdated());
        assert!(tables.disposal.has_some() && tables.janitor.held().0 > 0);
        db.wait_idle().unwrap();
        assert_eq!((tables.janitor.held().0, tables.disposal.has_some()), (0, false));
    }

    /// Tells the name of the thread that frees it.
    struct Telling(mpsc::Sender<String>);

    impl Drop for Telling {
        fn drop(&mut self) {
            let name = thread::current().name().unwrap_or_default().to_owned();
            let _ = self.0.send(name);
        }
    }

    #[test]
    fn threads_of_the_database_free_what_its_readers_let_go() {
        let db = Db::open("db", Options::default().vfs(Arc::new(MemVfs::new()))).unwrap();
        let disposal = db.core().store.tables.disposal.clone();
        let (tell, told) = mpsc::channel();
        disposal.dispose(Telling(tell.clone()));
        let freed_by = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(freed_by.starts_with("lsmx-"), "{freed_by}");
        db.close(None).unwrap();
        disposal.dispose(Telling(tell));
        let freed_by = told.try_recv().unwrap();
        assert!(!freed_by.starts_with("lsmx-"), "{freed_by}");
    }
}
