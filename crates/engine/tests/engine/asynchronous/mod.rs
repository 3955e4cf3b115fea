//! Tests of the asynchronous handle. It returns the results of the blocking handle on every Tokio runtime. Tasks make
//! no blocking calls. Dropped futures, a runtime shutdown and a close lose no acknowledged commit.

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

fn open_blocking(options: Options) -> lsmx::Db {
    lsmx::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).unwrap()
}

async fn open(options: Options) -> lsmx::tokio::Db {
    lsmx::tokio::Db::open("db", options.vfs(Arc::new(MemVfs::new()))).await.unwrap()
}
