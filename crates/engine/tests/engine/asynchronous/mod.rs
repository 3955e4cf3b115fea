//! The asynchronous handle: the results of the blocking handle on every runtime, no blocking call in a task, no loss
//! when futures, runtimes or the database are dropped.

mod commits;
mod ends;
mod memory;
mod model;
mod stalls;
mod support;
mod verbs;

use std::sync::Arc;

use lsmx::Options;
use lsmx::vfs::MemVfs;

/// Opens a database in memory.
fn open_blocking(options: Options) -> lsmx::Db {
    lsmx::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
}

/// Opens a database in memory by the asynchronous handle.
async fn open(options: Options) -> lsmx::tokio::Db {
    lsmx::tokio::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).await.unwrap()
}
