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
        // The listener has received the errors. Callers that need the result call `close`.
        if !callback::has_context() {
            let _ = close::close(&self.0, None);
            return;
        }
        // Close joins the threads of the engine, and the current thread may be one of them.
        let inner = Arc::clone(&self.0);
        let close = move || drop(close::close(&inner, None));
        if self.0.state.env.spawn("lsmx-close", close).is_err() {
            // Engine threads can still write, so the lock must never be released.
            mem::forget(Arc::clone(&self.0));
        }
    }
}
