//! Opening: make a database, or bring one back to the state after its last durable commits.
//!
//! 1. Look for `CURRENT`. Only "not found" means that there is no database.
//! 2. Take the lock; load the manifest; open every table it names.
//! 3. Replay the log into memtables; one that gets full becomes a table on the way.
//! 4. Write all memtables to tables, begin a new chain of log segments, and make both real by one
//!    new manifest. Until `CURRENT` points to it, the old state stands untouched, so a crash in
//!    here changes nothing; after it, what recovery has shown is durable.
//! 5. Remove every file that nothing names.

pub(crate) mod fd_limit;
pub(crate) mod kept_log;
pub(crate) mod lock;
pub(crate) mod read_only;
pub(crate) mod recovery;
pub(crate) mod replay;
pub(crate) mod replayed;
pub(crate) mod resume;
pub(crate) mod warm_up;

use std::io;
use std::path::Path;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::{Arc, Ordering};

use crate::db::open::lock::Claim;
use crate::db::open::recovery::{Durable, Parts, Recovery};
use crate::db::{DEFAULT_KEYSPACE, DbInner};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::file_name::{CURRENT, FileName};
use crate::job_tracing::{JobSpan, JobSpanFields};
use crate::manifest::{KeyspaceState, Manifest, ManifestState};
use crate::options::db::Options;
use crate::options::keyspace::Persisted;
use crate::vfs::{Vfs, missing_dir_reason};
use crate::wal::{is_disk_full, remove_reserve};

/// Opens the database in `dir`, or makes one.
pub(crate) fn open(dir: &Path, options: Options) -> Result<DbInner> {
    options.check()?;
    let vfs = options.file_system();
    let claim = if is_there(vfs.as_ref(), dir)? {
        Claim::take(&vfs, dir)?
    } else {
        if !options.create_if_missing {
            return Err(missing(vfs.as_ref(), dir));
        }
        check_free(vfs.as_ref(), dir)?;
        Claim::create(&vfs, dir)?
    };
    fd_limit::check_available(vfs.as_ref(), dir, options.background, 0)?;
    // Somebody else may have made a database, and let it go, before the lock was ours.
    let exists = is_there(vfs.as_ref(), dir)?;
    if !exists {
        check_free(vfs.as_ref(), dir)?;
    }
    let env = Env::with_clock(options.background, options.seed, options.clock.clone());
    let recovery = if exists {
        let reason = &"the database is opened";
        let job = JobSpanFields { kind: "recovery", keyspace: "", inputs: 0, reason };
        let _span = JobSpan::start(job);
        match recover(&vfs, dir, &options, &env) {
            // A process that was killed has kept room for the tables that this has to write.
            Err(error) if is_disk_full(&error) && remove_reserve(vfs.as_ref(), dir)? => {
                recover(&vfs, dir, &options, &env)?
            }
            recovery => recovery?,
        }
    } else {
        let state = new_state(&options, &env);
        Recovery::new(vfs, dir, options, env, (state, &dir.join(CURRENT)), false)?
    };
    finish(recovery, claim)
}

/// Steps 2 and 3. When it fails, nothing has changed.
fn recover(vfs: &Arc<dyn Vfs>, dir: &Path, options: &Options, env: &Env) -> Result<Recovery> {
    let loaded = Manifest::load(vfs.as_ref(), dir)?;
    let (vfs, manifest) = (Arc::clone(vfs), (loaded.state, &*loaded.path));
    let mut recovery = Recovery::new(vfs, dir, options.clone(), env.clone(), manifest, false)?;
    recovery.check_policy()?;
    recovery.replay(&loaded.path).map_err(|error| recovery.take_back(error))?;
    Ok(recovery)
}

/// Whether the directory holds a database. Only "not found" means that it does not.
pub(crate) fn is_there(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    let current = dir.join(CURRENT);
    match vfs.exists(&current) {
        Err(_) if failpoint::is_on(Failpoint::OpenErrorCreatesDatabase) => Ok(false),
        exists => exists.map_err(|error| Error::io_in_database("look for", &current, error)),
    }
}

/// Steps 4 and 5, and the parts of a running database around the result.
fn finish(recovery: Recovery, claim: Claim) -> Result<DbInner> {
    // From here on something is written in any case.
    let ready = remove_reserve(recovery.vfs(), recovery.dir());
    ready.map_err(|error| recovery.take_back(error))?;
    let durable = recovery.make_durable()?;
    let Durable { manifest, wal, state } = durable;
    let (operand_files, are_all_known) = recovery.operand_files();
    let lock = Some(claim.keep());
    let core = recovery.assemble(Parts { manifest, wal, lock, read_only: None })?;
    if are_all_known {
        core.state.remove_orphans(&state, Some(&operand_files));
    } else {
        core.state.remove_orphans(&state, None);
        core.state.note_unclaimed_files(&operand_files);
    }
    core.schedule_all_trees();
    if let Err(error) = core.scheduler.start() {
        // Those that were started must not outlive the lock.
        core.state.closing.store(true, Ordering::Release);
        core.scheduler.join(None);
        return Err(Error::io("start threads for", &core.state.dir, error));
    }
    core.scheduler.run_inline();
    core.begin_warm_up();
    Ok(core)
}

/// What to say of a directory without `CURRENT`.
pub(crate) fn missing(vfs: &dyn Vfs, dir: &Path) -> Error {
    let why = match vfs.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing_dir_reason(vfs, dir),
        Err(error) => return Error::io("list", dir, error),
        Ok(names) if names.iter().any(|name| FileName::parse(name).is_some()) => {
            "CURRENT is missing; its creation was cut short, or files were removed"
        }
        Ok(_) => "CURRENT is missing",
    };
    Error::NotADatabase { path: dir.to_owned(), why }
}

/// Refuses to make a database where something else is, or where one has lost its `CURRENT`.
fn check_free(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
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
            ) => {
                return refuse(
                    "CURRENT is missing, but there are tables or operands: it was removed",
                );
            }
            Some(FileName::Segment(_)) => {
                let file = vfs.open(&path).map_err(|error| Error::io("open", &path, error))?;
                let bytes =
                    file.len().map_err(|error| Error::io("read the size of", &path, error))?;
                if bytes > crate::format::segment_header::SEGMENT_HEADER_BYTES as u64 {
                    return refuse("CURRENT is missing, but the log holds writes: it was removed");
                }
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A state that holds nothing but the default keyspace.
fn new_state(options: &Options, env: &Env) -> ManifestState {
    let keyspace = KeyspaceState {
        name: DEFAULT_KEYSPACE.to_owned(),
        options: Persisted::of_new(options.of_default()).encode(),
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
