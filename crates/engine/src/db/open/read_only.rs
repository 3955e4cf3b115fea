//! Opens a database without writing to it.
//!
//! The log is replayed into memtables, which are never flushed. Reads see the complete commits of a torn tail, although
//! a later open for writing may lose these commits. The database gets an empty manifest and an empty log in memory, so
//! that the rest of the engine needs no special case for read-only databases.

use std::io;
use std::path::Path;

use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::db::open::assemble::{OpenFiles, assemble};
use crate::db::open::lock::lock_shared;
use crate::db::open::new_manifest::ManifestSegments;
use crate::db::open::recovery::Recovery;
use crate::db::open::{database_exists, not_a_database};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, ManifestState};
use crate::metrics::WalMetrics;
use crate::options::db::Options;
use crate::vfs::{LockGuard, MemVfs, Vfs};
use crate::wal::Wal;

/// Opens the database in `dir` read-only.
pub(crate) fn open(dir: &Path, options: Options) -> Result<DbInner> {
    options.check()?;
    let vfs = options.file_system();
    if !database_exists(vfs.as_ref(), dir)? {
        return Err(not_a_database(vfs.as_ref(), dir));
    }
    let lock = lock_shared(vfs.as_ref(), dir)?;
    let loaded = Manifest::load(vfs.as_ref(), dir)?;
    let env = Env::with_clock(options.background, options.seed, options.clock.clone());
    let mut recovery = Recovery::new(vfs, dir, options, env, (loaded.state, &loaded.path), true)?;
    recovery.replay_log()?;
    let db = assemble_read_only(recovery, loaded.number, lock)?;
    if db.options.warm_up {
        db.warm_up.start(&db.state);
    }
    Ok(db)
}

/// Builds a read-only database from its recovered state. `number` is the number of its manifest.
pub(crate) fn assemble_read_only(
    recovery: Recovery,
    number: u64,
    lock: Option<Box<dyn LockGuard>>,
) -> Result<DbInner> {
    let tables = &recovery.tables;
    let oldest = recovery.state.wal_oldest;
    let log_metrics = measure_log_bytes(tables.vfs.as_ref(), &tables.dir, oldest)?;
    let segments = Arc::new(ManifestSegments::new(&tables.files));
    let (manifest, wal) = create_in_memory(&recovery.state, number, segments, &recovery.options)?;
    assemble(recovery, OpenFiles { manifest, wal, lock, read_only: Some(log_metrics) })
}

/// Returns the number and the total size of the live WAL segments.
fn measure_log_bytes(vfs: &dyn Vfs, dir: &Path, oldest: u64) -> Result<WalMetrics> {
    let mut metrics = WalMetrics::default();
    for name in vfs.list(dir).map_err(|error| Error::io("list", dir, error))? {
        if matches!(FileName::parse(&name), Some(FileName::Segment(id)) if id >= oldest) {
            let path = dir.join(name);
            let len = match vfs.open(&path).and_then(|file| file.len()) {
                // This is a view of a follower, and the owner of the database has deleted the segment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                len => len.map_err(|error| Error::io("read the size of", &path, error))?,
            };
            metrics.segments += 1;
            metrics.live_bytes += len;
        }
    }
    Ok(metrics)
}

/// Creates a manifest and a log in memory.
fn create_in_memory(
    state: &ManifestState,
    number: u64,
    segments: Arc<ManifestSegments>,
    options: &Options,
) -> Result<(Arc<Manifest>, Arc<Wal>)> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemVfs::new());
    let dir = Path::new("");
    let manifest = Manifest::create(Arc::clone(&vfs), dir, number, state)?;
    let wal = Wal::create(vfs, dir, state.db_uid, segments, options.wal_options(), SeqNo(1))?;
    wal.sync_first_segment()?;
    Ok((Arc::new(manifest), Arc::new(wal)))
}
