//! Followers: read-only handles of a database that another handle, the owner, has open for writing.
//!
//! A follower has a *view*: a read-only database that shows the state after a prefix of the commits of the owner. A view
//! never changes. A catch-up reads a newer state from the files and replaces the view. Earlier views, and the snapshots
//! and iterators on them, keep their state. Views share the block cache, the descriptor cache and the open tables.
//!
//! The module `followers` describes how a follower prevents the owner from deleting the files of its views.

mod catch_up;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use lsmx_base::sync::{Arc, AtomicBool, Mutex, Ordering, RwLock, Signal};

use crate::callback::{self, CallbackContext};
use crate::db::Db;
use crate::db::follower::catch_up::{
    CatchUp, FollowedState, read_first_state, read_next_state, unpin_closed_files,
};
use crate::db::inner::check_reentry;
use crate::env::{Background, Env, JoinHandle, WaitCause};
use crate::error::{Error, Result};
use crate::metrics::FollowerMetrics;
use crate::options::db::Options;

/// A read-only handle of a database that another handle or process has open for writing.
///
/// [`Follower::view`] returns a [`Db`] with the state after a prefix of the commits. [`Follower::catch_up`], or
/// [`Options::follower_interval`], replaces the view by a newer one. A follower never shows an older state than before,
/// and shows only commits that are on stable storage. It may lag behind the owner: the owner syncs buffered commits
/// after [`WalOptions::sync_every_us`](crate::WalOptions::sync_every_us), in [`Db::sync`] and before a flush.
///
/// A view never shows other commits, so it is consistent across keyspaces. Values with an expiry time disappear from it when
/// they expire, except from a snapshot. Keyspaces, snapshots and iterators of a view remain valid
/// after a catch-up. While they exist, the owner keeps the files of their state. Calls that would change the database
/// fail with [`Error::OpenedReadOnly`].
///
/// A follower never blocks the owner. It creates files in the directory `FOLLOWERS` of the database, and needs the
/// permission to do so. The owner must be allowed to read these files, otherwise it deletes no obsolete files. Clones share the follower; dropping the last clone stops the background catch-up.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use lsmx::{Db, Options};
///
/// let path = dir.path().join("data");
/// let owner = Db::open(&path, Options::default())?;
/// let follower = Db::open_follower(&path, Options::default())?;
/// owner.put("key", "value")?;
/// owner.sync()?;
///
/// let before = follower.view();
/// assert!(follower.catch_up()?);
/// assert_eq!(follower.view().get("key")?.as_deref(), Some(&b"value"[..]));
/// assert_eq!(before.get("key")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Follower(Arc<FollowerHandle>);

/// Shared by the clones of a follower. Stops the background thread when dropped.
#[derive(Debug)]
struct FollowerHandle {
    shared: Arc<FollowerShared>,
    thread: Mutex<Option<JoinHandle>>,
}

/// Shared by a follower and its background thread.
#[derive(Debug)]
struct FollowerShared {
    env: Env,
    view: RwLock<(Db, FollowedState)>,
    history: Mutex<CatchUpHistory>,
    /// True while a catch-up runs.
    is_catching_up: AtomicBool,
    is_closed: AtomicBool,
    /// Notified when a catch-up ends and when the follower is closed.
    changed: Signal,
}

/// Statistics of the catch-ups of a follower. The open sets the times, but is not counted.
#[derive(Debug)]
struct CatchUpHistory {
    catch_ups: u64,
    views: u64,
    extensions: u64,
    failures: u64,
    /// Start of the last successful catch-up, in microseconds of the clock of the environment.
    last_began_us: u64,
    /// Duration of the last successful catch-up, in microseconds.
    last_us: u64,
}

impl CatchUpHistory {
    fn record(&mut self, began_us: u64, now_us: u64, result: &Result<bool>) {
        match result {
            Ok(is_replaced) => {
                self.catch_ups += 1;
                self.views += u64::from(*is_replaced);
                self.last_began_us = began_us;
                self.last_us = now_us.saturating_sub(began_us);
            }
            Err(_) => self.failures += 1,
        }
    }
}

impl Follower {
    pub(super) fn open(path: &Path, options: Options) -> Result<Follower> {
        options.check()?;
        let interval_us = options.follower_interval_us;
        let env = Env::with_clock(options.background, options.seed, options.clock.clone());
        let began_us = env.now_us();
        let (inner, state) =
            catch_unwind(AssertUnwindSafe(|| read_first_state(path, options, env.clone())))
                .unwrap_or_else(|panic| Err(Error::from_panic(&*panic)))?;
        if inner.options.warm_up {
            inner.warm_up.start(&inner.state);
        }
        let history = CatchUpHistory {
            catch_ups: 0,
            views: 0,
            extensions: 0,
            failures: 0,
            last_began_us: began_us,
            last_us: env.now_us().saturating_sub(began_us),
        };
        let shared = Arc::new(FollowerShared {
            env: env.clone(),
            view: RwLock::new((Db::new(inner), state)),
            history: Mutex::new(history),
            is_catching_up: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            changed: Signal::new(),
        });
        let thread = match interval_us {
            Some(interval_us) if env.background() != Background::Inline => {
                let of_thread = Arc::clone(&shared);
                let body = move || of_thread.catch_up_in_interval(interval_us);
                let thread = env.spawn("lsmx-follower", body);
                Some(thread.map_err(|error| Error::io("start a thread for", path, error))?)
            }
            _ => None,
        };
        Ok(Follower(Arc::new(FollowerHandle { shared, thread: Mutex::new(thread) })))
    }

    /// Returns the current view.
    ///
    /// [`Db::close`] on a view closes only this view. A [`Db::keyspace`] call on a view passes options. Later views keep the
    /// merge operator. The other options apply to this view only.
    #[must_use]
    pub fn view(&self) -> Db {
        self.0.shared.view.read().0.clone()
    }

    /// Reads the newest state of the database. Returns true if the view was replaced.
    ///
    /// If nothing has changed, the call makes a few small reads. If there are only new commits, it replays them. After
    /// a flush, a compaction or another change of the files, it replays the whole WAL and opens new tables. Concurrent
    /// calls run one after the other.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Corrupt`], [`Error::Missing`], [`Error::UnsupportedVersion`], [`Error::Io`];
    /// [`Error::FollowerOvertaken`]. After an error, the view is not replaced.
    pub fn catch_up(&self) -> Result<bool> {
        check_reentry("catch_up")?;
        self.0.shared.catch_up()
    }

    /// Returns the metrics of this follower. The metrics of the database are those of [`Follower::view`].
    #[must_use]
    pub fn metrics(&self) -> FollowerMetrics {
        let shared = &self.0.shared;
        let shown_seq = shared.view.read().0.inner().state.sequence.published().0;
        let history = shared.history.lock();
        FollowerMetrics {
            shown_seq,
            catch_ups: history.catch_ups,
            views: history.views,
            extensions: history.extensions,
            failures: history.failures,
            last_catch_up_age_us: shared.env.now_us().saturating_sub(history.last_began_us),
            last_catch_up_us: history.last_us,
        }
    }

    /// Stops the background catch-up. Later calls of [`Follower::catch_up`] return [`Error::Closed`]. Views remain open.
    ///
    /// The owner keeps the files of the views until the last view, snapshot and iterator is dropped.
    pub fn close(&self) {
        self.0.close();
    }
}

impl FollowerHandle {
    fn close(&self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.changed.notify();
        if callback::has_context() {
            // The current thread may be the background thread, in a call of the event listener.
            return;
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread catches panics.
            let _ = self.shared.env.join(thread);
        }
    }
}

impl Drop for FollowerHandle {
    fn drop(&mut self) {
        self.close();
    }
}

impl FollowerShared {
    /// Body of the background thread.
    fn catch_up_in_interval(&self, interval_us: u64) {
        let _context = callback::enter(CallbackContext::EngineThread);
        loop {
            let deadline_us = Some(self.env.now_us().saturating_add(interval_us));
            let closed = &mut || self.is_closed.load(Ordering::Acquire);
            if self.env.wait(WaitCause::Work, &self.changed, deadline_us, closed) {
                return;
            }
            if let Err(error) = self.catch_up() {
                let view = self.view.read().0.clone();
                view.inner().state.report_background_error("catch-up", None, &error);
            }
        }
    }

    fn catch_up(&self) -> Result<bool> {
        self.env.wait(WaitCause::BackgroundWork, &self.changed, None, &mut || {
            let is_running = &self.is_catching_up;
            is_running.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let began_us = self.env.now_us();
        let result = catch_unwind(AssertUnwindSafe(|| self.replace_view()))
            .unwrap_or_else(|panic| Err(Error::from_panic(&*panic)));
        self.history.lock().record(began_us, self.env.now_us(), &result);
        self.is_catching_up.store(false, Ordering::Release);
        self.changed.notify();
        result
    }

    fn replace_view(&self) -> Result<bool> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let (view, state) = self.view.read().clone();
        let is_replaced = match read_next_state(view.inner(), &state)? {
            CatchUp::Unchanged(state) => {
                self.view.write().1 = state;
                false
            }
            CatchUp::Next { view: inner, state, is_extension } => {
                let next = (Db::new(*inner), state);
                let before = std::mem::replace(&mut *self.view.write(), next);
                self.history.lock().extensions += u64::from(is_extension);
                // Closes the view if it has no other handle, which must not happen under the lock.
                drop((view, before));
                true
            }
        };
        let view = self.view.read().0.clone();
        unpin_closed_files(view.inner());
        Ok(is_replaced)
    }
}
