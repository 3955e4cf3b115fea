//! The shared part of all handles of one database.

use std::mem;

use lsmx_base::sync::Arc;

use crate::callback;
use crate::db::close;
use crate::db::inner::DbInner;

/// Shared by all handles of one database. Closes the database when dropped.
#[derive(Debug)]
pub(crate) struct DbHandle(pub(crate) Arc<DbInner>);

impl Drop for DbHandle {
    fn drop(&mut self) {
        // Errors of the close were sent to the event listener. Callers that need the result call `close`. The close of
        // a follower's view joins no thread that calls the event listener, so it may run in a callback.
        if !callback::has_context() || self.0.is_follower() {
            let _ = close::close(&self.0, None);
            return;
        }
        // A close joins the engine threads, and the current thread may be one of them. So another thread closes the
        // database.
        let inner = Arc::clone(&self.0);
        let close = move || drop(close::close(&inner, None));
        if self.0.state.env.spawn("lsmx-close", close).is_err() {
            // Without a close, engine threads may still write, so the directory lock must not be released.
            mem::forget(Arc::clone(&self.0));
        }
    }
}
