//! Makes a repair durable: moves damaged files to a new directory and writes the new manifest.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::coding::len_u64;
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::db::check::repair::context::RepairContext;
use crate::db::open::recovery::Recovery;
use crate::error::{Error, Result};
use crate::options::db::Options;
use crate::options::stored::{KeptLog, kept_logs};
use crate::vfs::Vfs;
use crate::wal::RecoveryMode;

/// Bytes per read of a file copy.
const COPY_BYTES: usize = 1 << 20;

/// Links damaged files into a new directory, writes the new manifest, and removes the damaged files.
///
/// # Errors
/// An error if a file cannot be written. The database is then unchanged, unless `CURRENT` may already name the new
/// manifest.
pub(crate) fn install(repair: &mut RepairContext<'_>) -> Result<()> {
    let dir = link_files_aside(repair)?;
    repair.state.clean_close = false;
    repair.state.file_number_next = repair.state.file_number_next.max(repair.tables.number_next);
    let kept;
    (repair.report.commits, kept) = recover(repair)?;
    // If a store could not be opened, the new manifest still lists the kept log of its keyspace.
    let is_kept = |id: u64| kept.values().any(|log| log.contains(id));
    repair.set_aside.retain(|file| !matches!(file, FileName::Segment(id) if is_kept(*id)));
    for file in repair.set_aside.iter().filter(|file| !matches!(file, FileName::Current)) {
        // If the removal fails, the next open removes the file, because no manifest lists it.
        let _ = repair.vfs.remove(&file.in_dir(repair.dir));
    }
    repair.report.files_set_aside = repair.set_aside.iter().map(FileName::to_string).collect();
    repair.report.set_aside = Some(dir);
    Ok(())
}

/// Recovers the database from the repaired state as after a crash, and writes its new manifest. Returns the number of
/// commits in the log, and the kept logs of the new manifest.
fn recover(repair: &RepairContext<'_>) -> Result<(u64, BTreeMap<u32, KeptLog>)> {
    let mut options = Options::default().recovery(RecoveryMode::Tolerant);
    options.operand_stores.extend(repair.stores.iter().cloned());
    let (vfs, env) = (Arc::clone(repair.vfs), repair.tables.env.clone());
    let state = (repair.state.clone(), &*repair.manifest);
    let mut recovery = Recovery::new(vfs, repair.dir, options, env, state, false)?;
    recovery.replay_log().map_err(|error| recovery.remove_written_files(error))?;
    let durable = recovery.make_durable()?;
    Ok((recovery.report.records, kept_logs(&durable.state)))
}

/// Creates a directory that did not exist before. Directories of interrupted repairs are not reused.
fn create_dir(repair: &mut RepairContext<'_>) -> Result<PathBuf> {
    loop {
        let dir = repair.dir.join(format!("damaged-{:06}", repair.tables.allocate()));
        match repair.vfs.create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &dir, error)),
        }
    }
}

/// Links or copies the files that are set aside, the manifests and `CURRENT` into a new directory, and syncs it.
fn link_files_aside(repair: &mut RepairContext<'_>) -> Result<PathBuf> {
    let manifests = repair.list_files()?.into_iter();
    repair
        .set_aside
        .extend(manifests.filter(|file| matches!(file, FileName::Current | FileName::Manifest(_))));
    let dir = create_dir(repair)?;
    for file in repair.set_aside.clone() {
        let (from, to) = (file.in_dir(repair.dir), file.in_dir(&dir));
        match link_or_copy(&**repair.vfs, &from, &to) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                repair.set_aside.remove(&file);
            }
            linked => linked?,
        }
    }
    for dir in [&dir, repair.dir] {
        repair.vfs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
    }
    Ok(dir)
}

/// Links a file, or copies it if the file system does not support links.
fn link_or_copy(vfs: &dyn Vfs, from: &Path, to: &Path) -> Result<()> {
    match vfs.hard_link(from, to) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::io("link", from, error));
        }
        Err(_) => {}
    }
    let source = vfs.open(from).map_err(|error| Error::io("open", from, error))?;
    let target = vfs.create(to).map_err(|error| Error::io("create", to, error))?;
    let (mut offset, mut buffer) = (0, vec![0; COPY_BYTES]);
    loop {
        let read = source.read_at(&mut buffer, offset);
        let read = read.map_err(|error| Error::io("read", from, error))?;
        if read == 0 {
            break;
        }
        let written = target.append(&buffer[..read]);
        written.map_err(|error| Error::io("append to", to, error))?;
        offset += len_u64(read);
    }
    target.sync().map_err(|error| Error::io("sync", to, error))
}
