//! Loom models of concurrent operations on a database. Loom explores the possible interleavings of the threads, see
//! `docs/design/testing.md`.
//!
//! A model is a test that runs the engine itself on an in-memory file system. The comment of a model states the
//! property that must hold in every interleaving.

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

/// Creates a database without background threads on a new in-memory file system.
pub(crate) fn open() -> (MemVfs, Db) {
    let disk = MemVfs::new();
    let db = open_on_vfs(&disk);
    (disk, db)
}

/// Opens the database on `disk`. Creates the database if it does not exist.
pub(crate) fn open_on_vfs(disk: &MemVfs) -> Db {
    let options = Options::default()
        .background(Background::Inline)
        .seed(1)
        .flush_idle_after(Duration::from_secs(3600))
        .block_cache_bytes(64 << 10);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}
