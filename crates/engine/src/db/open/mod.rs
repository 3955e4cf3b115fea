//! Opens or creates a database. An existing database is recovered to its last durable commit.
//!
//! 1. `CURRENT` is looked up. A database is created only if the file system reports "not found", not after another
//!    error.
//! 2. The directory is locked, the manifest is loaded, and the tables in the manifest are opened.
//! 3. The log is replayed into memtables. Full memtables are flushed.
//! 4. All memtables are flushed, and a new log and a new manifest are written. A crash before `CURRENT` names the new
//!    manifest changes nothing. From then on, the recovered state is durable.
//! 5. Files that the manifest does not list are removed.
//!
//! If the disk is full, the open removes the tables and blob files of earlier killed opens, and recovers the database
//! again.

pub(crate) mod assemble;
pub(crate) mod fd_limit;
pub(crate) mod file_numbers;
pub(crate) mod kept_log;
pub(crate) mod lock;
pub(crate) mod log_source;
pub(crate) mod memtable_flush;
pub(crate) mod new_manifest;
pub(crate) mod open_trees;
pub(crate) mod read_only;
pub(crate) mod recovery;
pub(crate) mod replay;
pub(crate) mod resume;
pub(crate) mod warm_up;

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::sync::{Arc, Ordering};

use crate::db::inner::DbInner;
use crate::db::metrics_file::remove_metrics_file;
use crate::db::open::assemble::{OpenFiles, assemble};
use crate::db::open::fd_limit::{check_descriptors_available, needed_descriptors};
use crate::db::open::lock::DirectoryClaim;
use crate::db::open::recovery::{DurableState, Recovery};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::segment_header::SEGMENT_HEADER_BYTES;
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::jobs::version_installer::sync_directory;
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::{DEFAULT_KEYSPACE, Options};
use crate::options::stored::StoredOptions;
use crate::vfs::{Vfs, missing_dir_reason};
use crate::wal::{is_disk_full, remove_reserve};

/// Opens the database in `dir`, or creates it.
pub(crate) fn open(dir: &Path, options: Options) -> Result<DbInner> {
    options.check()?;
    let vfs = options.file_system();
    let claim = if database_exists(vfs.as_ref(), dir)? {
        DirectoryClaim::lock_existing(&vfs, dir)?
    } else {
        if options.must_exist {
            return Err(not_a_database(vfs.as_ref(), dir));
        }
        check_can_create(vfs.as_ref(), dir)?;
        DirectoryClaim::create_and_lock(&vfs, dir)?
    };
    check_descriptors_available(vfs.as_ref(), dir, needed_descriptors(options.background, 0))?;
    // Another process may have created and closed a database before this process got the lock.
    let exists = database_exists(vfs.as_ref(), dir)?;
    if !exists {
        check_can_create(vfs.as_ref(), dir)?;
    }
    let env = Env::with_clock(options.background, options.seed, options.clock.clone());
    let recover_durably = || {
        let recovery = if exists {
            let reason = &"the database is opened";
            let fields = JobSpanFields { kind: "recovery", keyspace: "", inputs: 0, reason };
            let _span = JobSpan::start(fields);
            recover(&vfs, dir, &options, &env)?
        } else {
            let (vfs, options, env) = (Arc::clone(&vfs), options.clone(), env.clone());
            let state = create_initial_state(&options, &env);
            Recovery::new(vfs, dir, options, env, (state, &dir.join(CURRENT)), false)?
        };
        // The next files may need the disk space of the reserve.
        let removed = remove_reserve(recovery.tables.vfs.as_ref(), dir);
        removed.map_err(|error| recovery.remove_written_files(error))?;
        let durable = recovery.make_durable()?;
        Ok((recovery, durable))
    };
    let (recovery, durable) = match recover_durably() {
        Err(error) if exists && is_disk_full(&error) && free_disk_space(&*vfs, dir)? => {
            recover_durably()?
        }
        recovered => recovered?,
    };
    finish_open(recovery, durable, claim)
}

/// Loads the manifest, opens its tables and replays the log. An error leaves the database unchanged.
fn recover(vfs: &Arc<dyn Vfs>, dir: &Path, options: &Options, env: &Env) -> Result<Recovery> {
    let loaded = Manifest::load(vfs.as_ref(), dir)?;
    let (vfs, manifest) = (Arc::clone(vfs), (loaded.state, &*loaded.path));
    let mut recovery = Recovery::new(vfs, dir, options.clone(), env.clone(), manifest, false)?;
    recovery.check_policy()?;
    recovery.replay_log().map_err(|error| recovery.remove_written_files(error))?;
    Ok(recovery)
}

/// Returns whether the directory holds a database.
pub(crate) fn database_exists(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    let current = dir.join(CURRENT);
    match vfs.exists(&current) {
        Err(_) if failpoint::is_on(Failpoint::OpenErrorCreatesDatabase) => Ok(false),
        exists => exists.map_err(|error| Error::io_in_database("look for", &current, error)),
    }
}

/// Frees disk space for an open that has found the disk full: removes the reserve of a killed process, and the tables and
/// blob files that killed opens have flushed. Returns whether a file was removed.
fn free_disk_space(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    let mut is_freed = remove_reserve(vfs, dir)?;
    // After the sync, a power loss cannot change which manifest `CURRENT` names. Neither this manifest nor an older one
    // lists a file with a number that the manifest has not allocated.
    sync_directory(vfs, dir)?;
    let next = Manifest::load(vfs, dir)?.state.file_number_next;
    for name in vfs.list(dir).map_err(|error| Error::io("list", dir, error))? {
        let Some(file @ (FileName::Table(number) | FileName::Blob(number))) =
            FileName::parse(&name)
        else {
            continue;
        };
        if number >= next && !file.has_unallocated_number(Some(next)) {
            let path = dir.join(&name);
            vfs.remove(&path).map_err(|error| Error::io("remove", &path, error))?;
            is_freed = true;
        }
    }
    Ok(is_freed)
}

/// Removes files that the manifest does not list, and starts the threads.
fn finish_open(
    recovery: Recovery,
    durable: DurableState,
    claim: DirectoryClaim,
) -> Result<DbInner> {
    let DurableState { manifest, wal, state } = durable;
    let (operand_files, are_all_open) = recovery.operand_files();
    let lock = Some(claim.into_lock());
    let db = assemble(recovery, OpenFiles { manifest, wal, lock, read_only: None })?;
    if are_all_open {
        db.state.remove_orphans(&state, Some(&operand_files));
    } else {
        db.state.remove_orphans(&state, None);
        db.state.record_unclaimed_files(&operand_files);
    }
    remove_metrics_file(&*db.state.vfs, &db.state.dir);
    db.schedule_all_trees();
    if let Err(error) = db.scheduler.start() {
        // The started threads must end before the lock is released.
        db.state.closing.store(true, Ordering::Release);
        db.scheduler.join(None);
        return Err(Error::io("start threads for", &db.state.dir, error));
    }
    db.scheduler.run_inline();
    if db.options.warm_up {
        db.warm_up.start(&db.state);
    }
    Ok(db)
}

/// Returns the error for a directory without `CURRENT`.
pub(crate) fn not_a_database(vfs: &dyn Vfs, dir: &Path) -> Error {
    let why = match vfs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing_dir_reason(vfs, dir),
        Err(error) => return Error::io("list", dir, error),
        Ok(names) if names.iter().any(|name| FileName::parse(name).is_some()) => {
            "CURRENT is missing; the creation was interrupted, or files were removed"
        }
        Ok(_) => "CURRENT is missing",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

/// Checks that a new database can be created in a directory. The directory must not contain foreign files or the data
/// of a database without `CURRENT`.
fn check_can_create(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let names = match vfs.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", dir, error)),
    };
    let refuse = |why| Err(Error::NotADatabase { path: dir.to_owned(), why });
    for name in names {
        let path = dir.join(&name);
        match FileName::parse(&name) {
            None => return refuse("CURRENT is missing, and the directory holds other files"),
            Some(
                FileName::Table(_)
                | FileName::Blob(_)
                | FileName::Operands(_)
                | FileName::Bucket(_),
            ) => return refuse("CURRENT was removed: there are tables, blob files or operands"),
            Some(FileName::Segment(_)) => {
                let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
                let len = file.len();
                let bytes = len.map_err(|error| Error::io("read the size of", &path, error))?;
                if bytes > SEGMENT_HEADER_BYTES as u64 {
                    return refuse("CURRENT was removed: the log holds writes");
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Creates the state of a new database: an empty default keyspace.
fn create_initial_state(options: &Options, env: &Env) -> ManifestState {
    let keyspace = KeyspaceState {
        name: DEFAULT_KEYSPACE.to_owned(),
        options: StoredOptions::new(&options.keyspace_defaults).encode(),
        ..KeyspaceState::default()
    };
    ManifestState {
        db_uid: env.random_u64(),
        keyspaces: [(0, keyspace)].into(),
        keyspace_id_next: 1,
        clean_close: true,
        ..ManifestState::default()
    }
}
