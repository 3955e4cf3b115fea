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
        // Errors of the close were sent to the event listener. Callers that need the result call `close`.
        // The close of a state of a follower joins no thread on which the listener runs.
        if !callback::has_context() || self.0.is_follower() {
            let _ = close::close(&self.0, None);
            return;
        }
        // The close joins the engine threads, and the current thread may be an engine thread.
        let inner = Arc::clone(&self.0);
        let close = move || drop(close::close(&inner, None));
        if self.0.state.env.spawn("lsmx-close", close).is_err() {
            // Without a close, engine threads may still write, so the directory lock must not be released.
            mem::forget(Arc::clone(&self.0));
        }
    }
}
