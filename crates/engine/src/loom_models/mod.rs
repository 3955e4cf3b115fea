//! Loom models of concurrent operations on a database. Loom runs all interleavings, see `docs/design/testing.md`.
//!
//! A model runs the engine itself on a file system in memory. The comment of a model states what holds in every
//! interleaving.

mod closing;
mod commits;
mod snapshots;
mod views;

use std::time::Duration;

use lsmx_base::sync::Arc;

use crate::db::Db;
use crate::env::Background;
use crate::options::db::Options;
use crate::vfs::MemVfs;

/// Opens a new database without background threads.
pub(crate) fn open() -> (MemVfs, Db) {
    let disk = MemVfs::new();
    let db = open_on_vfs(&disk);
    (disk, db)
}

/// Opens the database on `disk`.
pub(crate) fn open_on_vfs(disk: &MemVfs) -> Db {
    let options = Options::default()
        .background(Background::Inline)
        .seed(1)
        .flush_idle_after(Duration::from_secs(3600))
        .block_cache_bytes(64 << 10);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}
