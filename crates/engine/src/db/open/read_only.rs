//! Opening without changing a byte.
//!
//! The log is replayed into memtables that stay in memory: no table is written, no log begun, no
//! manifest, so a commit that a later opening for writing loses with a torn tail may be shown. Log and
//! manifest of such a database are scratch files in memory that nothing is ever added to, so that the
//! rest of the engine needs no second shape; every call that would change something is refused first.

use std::io;
use std::path::Path;

use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::db::DbInner;
use crate::db::open;
use crate::db::open::recovery::{Parts, Recovery};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::file_name::{FileName, LOCK};
use crate::manifest::Manifest;
use crate::metrics::WalMetrics;
use crate::options::db::Options;
use crate::vfs::{LockGuard, MemVfs, Vfs};
use crate::wal::{SegmentRegistry, Wal};

/// Opens the database in `dir` for reading only.
pub(crate) fn open(dir: &Path, options: Options) -> Result<DbInner> {
    options.check()?;
    let vfs = options.file_system();
    if !open::is_there(vfs.as_ref(), dir)? {
        return Err(open::missing(vfs.as_ref(), dir));
    }
    let lock = share_lock(vfs.as_ref(), dir)?;
    let loaded = Manifest::load(vfs.as_ref(), dir)?;
    let env = Env::with_clock(options.background, options.seed, options.clock.clone());
    let mut recovery = Recovery::new(vfs, dir, options, env, (loaded.state, &loaded.path), true)?;
    recovery.replay(&loaded.path)?;
    let found = found_log(&recovery)?;
    let (manifest, wal) = scratch(&recovery, loaded.number)?;
    let core = recovery.assemble(Parts { manifest, wal, lock, read_only: Some(found) })?;
    core.begin_warm_up();
    Ok(core)
}

/// What the log takes on the disk.
fn found_log(recovery: &Recovery) -> Result<WalMetrics> {
    let (vfs, dir, oldest) = (recovery.vfs(), recovery.dir(), recovery.state().wal_oldest);
    let mut found = WalMetrics::default();
    for name in vfs.list(dir).map_err(|error| Error::io("list", dir, error))? {
        if matches!(FileName::parse(&name), Some(FileName::Segment(id)) if id >= oldest) {
            let path = dir.join(name);
            let len = vfs.open(&path).and_then(|file| file.len());
            found.segments += 1;
            found.live_bytes += len.map_err(|error| Error::io("read the size of", &path, error))?;
        }
    }
    Ok(found)
}

/// Keeps writers out. Where there is no lock file, as in a copy, none is made.
pub(crate) fn share_lock(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Box<dyn LockGuard>>> {
    let path = dir.join(LOCK);
    match vfs.lock_shared(&path) {
        Ok(guard) => Ok(Some(guard)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::WouldBlock => Err(Error::Locked { path }),
            _ => Err(Error::io_in_database("lock", &path, error)),
        },
    }
}

/// A manifest and a log in memory.
fn scratch(recovery: &Recovery, number: u64) -> Result<(Arc<Manifest>, Arc<Wal>)> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    let (dir, state) = (Path::new(""), recovery.state());
    let ledger = recovery.ledger();
    let manifest = Manifest::create(Arc::clone(&vfs), dir, number, state)?;
    let ledger = ledger as Arc<dyn SegmentRegistry>;
    let wal = Wal::create(vfs, dir, state.db_uid, ledger, recovery.wal_options(), SeqNo(1))?;
    wal.sync_first_segment()?;
    Ok((Arc::new(manifest), Arc::new(wal)))
}
