//! Models of what threads do to one another, played by loom in all interleavings: `docs/design/testing.md`.
//!
//! What is modelled is the engine itself, on a file system in memory. Each model opens a database of
//! its own, alone; the interleavings begin with its threads.

mod closing;
mod commits;
mod snapshots;
mod views;

use std::time::Duration;

use lsmx_base::sync::Arc;

use crate::env::Background;
use crate::vfs::MemVfs;
use crate::{Db, Options};

/// A database without threads of its own, and what it lies on.
pub(crate) fn open() -> (MemVfs, Db) {
    let disk = MemVfs::new();
    let db = open_on(&disk);
    (disk, db)
}

/// The database there.
pub(crate) fn open_on(disk: &MemVfs) -> Db {
    let options = Options::default()
        .background(Background::Inline)
        .seed(1)
        .flush_idle_after(Duration::from_secs(3600))
        .block_cache_bytes(64 << 10);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}
