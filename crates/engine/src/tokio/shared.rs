//! The database behind all asynchronous handles.

use ::tokio::runtime::Handle;

use lsmx_base::sync::{Arc, AtomicBool, Ordering};

use crate::db::{Db, DbInner};
use crate::env::Background;
use crate::error::{Error, Result};
use crate::tokio::wait::wait;

/// Kept by each asynchronous handle, after the blocking one that it is made of: so the last of them goes
/// from here.
#[derive(Debug)]
pub(crate) struct Shared {
    /// There until this is dropped.
    db: Option<Db>,
    /// Whether a thread has memtables flushed, or is on its way to: one at a time.
    governing: AtomicBool,
}

impl Shared {
    /// # Errors
    /// [`Error::Contradiction`] for a database whose threads are replayed.
    pub(crate) fn new(db: Db) -> Result<Arc<Shared>> {
        if let Background::Stepped { .. } = db.inner().state.env.background() {
            return Err(Error::Contradiction {
                first: "background = stepped".to_owned(),
                second: "asynchronous handle".to_owned(),
                why: "threads of a runtime are not those of a replayed schedule",
            });
        }
        Ok(Arc::new(Shared { db: Some(db), governing: AtomicBool::new(false) }))
    }

    pub(crate) fn db(&self) -> &Db {
        self.db.as_ref().expect("taken out by drop alone")
    }

    pub(crate) fn inner(&self) -> &DbInner {
        self.db().inner()
    }

    /// Has a thread see to it that something is flushed, if memtables ask for it and nobody does, and
    /// waits until it has; false once the deadline has passed before.
    pub(crate) async fn govern(self: &Arc<Shared>, deadline_us: Option<u64>) -> bool {
        let core = self.inner();
        if !core.flush_trigger.is_flush_due() && !self.governing.load(Ordering::Acquire) {
            return true;
        }
        if !self.governing.swap(true, Ordering::AcqRel) {
            let governing = Governing(Arc::clone(self));
            ::tokio::task::spawn_blocking(move || {
                governing.0.inner().flush_trigger.flush_if_due(deadline_us);
            });
        }
        let store = &core.state;
        // Another thread may be on its way again by the time that this task is asked.
        let ended =
            || !self.governing.load(Ordering::Acquire) || !core.flush_trigger.is_flush_due();
        wait(&store.env, &store.progress, deadline_us, ended).await
    }
}

/// A thread that governs, or was to: over when this is dropped.
struct Governing(Arc<Shared>);

impl Drop for Governing {
    fn drop(&mut self) {
        self.0.governing.store(false, Ordering::Release);
        self.0.inner().state.progress.notify();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let db = self.db.take();
        // Closing waits for I/O, and so may letting go of what is closed. Where the runtime takes no
        // more work, `db` goes here and now.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(db));
        }
    }
}
