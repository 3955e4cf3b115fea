//! Tests of the asynchronous handle. On every Tokio runtime, the handle must return the same results as the blocking
//! handle. Tasks must make no blocking calls. Dropped futures, a shutdown of the runtime and a close must lose no
//! acknowledged commit.

mod commits;
mod ends;
mod follower;
mod keyspaces;
mod locks;
mod memory;
mod model;
mod ranges;
mod stalls;
mod support;
mod transactions;
mod verbs;

use std::sync::Arc;

use lsmx::Options;
use lsmx::vfs::MemVfs;

fn open_blocking(options: Options) -> lsmx::Db {
    lsmx::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
}

async fn open(options: Options) -> lsmx::tokio::Db {
    lsmx::tokio::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).await.unwrap()
}
