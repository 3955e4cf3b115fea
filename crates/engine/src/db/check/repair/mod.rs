//! Repair of a damaged database: makes it open again, with everything that is readable.
//!
//! 1. The state is read from the manifest that `CURRENT` names, else from the newest readable manifest, else it is
//!    derived from tables and log (`starting_state`).
//! 2. Every table and blob file is checked (`keyspaces`). The readable entries of a damaged table are written to a new
//!    one, which replaces it in its run (`salvage_table`, `damaged_table`). The readable values of a damaged blob file
//!    are moved to tables (`damaged_blobs`).
//! 3. If manifest edits are lost, the tables of a tree are unknown. All tables that were not removed are merged into one
//!    run by sequence number (`rebuild_keyspaces`, `merge_tables`).
//! 4. Damaged and unusable files are linked into a directory of their own (`install`).
//! 5. The log is replayed up to its damage, and a new manifest makes the result durable, as after any open. An
//!    interrupted repair changes nothing.
//!
//! A lost entry may uncover an older value or a deleted key. The report lists the affected keys.

mod common_prefix;
mod context;
mod damaged_blobs;
mod damaged_table;
mod install;
mod keyspaces;
mod merge_tables;
mod rebuild_keyspaces;
mod repair_log;
mod report;
mod salvage_table;
mod starting_state;
mod table_writer;

use std::io;
use std::path::Path;

use lsmx_base::file_name::CURRENT;

use self::context::RepairContext;
pub use self::report::{Finding, Loss, LossKind, RepairReport};
use self::starting_state::{StartingState, has_lsmx_magic, list_files};
use crate::db::open::lock::{DirectoryClaim, lock_shared};
use crate::db::open::not_a_database;
use crate::env::{Background, Env};
use crate::error::{Error, Result};
use crate::options::db::Options;

/// Options of [`repair`].
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Reports the changes without making them. Default: false.
    pub dry_run: bool,
    /// Repairs a directory in which no file has an lsmx magic number. Otherwise such a directory is refused, because
    /// another program may own it. Default: false.
    pub force: bool,
    /// Reverts all keyspaces to the last commit before the damage of the log, so that all batches are complete. Drops
    /// the tables that were flushed later; they are kept with the damaged files. No effect if the log is undamaged.
    /// Default: false.
    ///
    /// The repair fails with [`Error::NoCommonPrefix`], and changes nothing, if an earlier state of a keyspace is no
    /// longer available: a compaction has removed its files, the log no longer holds the commits in between, the keyspace
    /// has an operand store, or the manifest is damaged or newer than the flush.
    pub common_prefix: bool,
}

/// Repairs a damaged database. Then it opens, [`verify`](crate::verify) finds no fault, and it holds everything that is
/// readable. Damaged files are kept in a new directory inside the database directory. An undamaged database is not
/// changed.
///
/// Content of the repaired database:
///
/// - Damaged log: as after an open in [`RecoveryMode::Tolerant`](crate::RecoveryMode::Tolerant). Each keyspace on its own
///   has the state after a prefix of its operations. The prefix ends at the last commit before the damage, or at the
///   last flush of the keyspace if that is later. Part of a batch that writes to several keyspaces may be missing.
///   [`RepairReport::complete_through`] has the ends. [`RepairOptions::common_prefix`] makes them equal if possible.
/// - Damaged table or blob file: all readable blocks and values. For the keys in [`RepairReport::lost`], reads may return
///   an older value, a deleted value or none.
/// - Lost manifest edits ([`RepairReport::in_doubt`]): all tables that are found, merged by sequence numbers. The ends of
///   the prefixes are unknown.
///
/// Damage after the last sync mark of the newest log segment looks like a torn tail. It is not reported as damage; see
/// [`RepairReport::log_tail_bytes`].
///
/// Copy the database first: with [`Db::checkpoint`](crate::Db::checkpoint) if it opens, otherwise its files.
///
/// # Errors
/// [`Error::NotADatabase`], also if no file has an lsmx magic number and [`RepairOptions::force`] is off;
/// [`Error::Locked`] if the database is open; [`Error::UnsupportedVersion`]; [`Error::NoCommonPrefix`];
/// [`Error::NoOperandStore`] if `database` lacks an [`Options::operand_store`] of a keyspace; a file cannot be listed,
/// opened or written. The database is unchanged after an error.
pub fn repair(
    path: impl AsRef<Path>,
    database: &Options,
    options: &RepairOptions,
) -> Result<RepairReport> {
    let (dir, vfs) = (path.as_ref(), database.file_system());
    // Checked before the lock file is created, so that a directory without a database does not change.
    let files = list_files(&*vfs, dir).map_err(|error| match &error {
        Error::Io { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => not_a_database(&*vfs, dir),
            io::ErrorKind::NotADirectory => {
                Error::NotADatabase { path: dir.to_owned(), why: "it is not a directory" }
            }
            _ => error,
        },
        _ => error,
    })?;
    let refuse = |why| Err(Error::NotADatabase { path: dir.to_owned(), why });
    if files.is_empty() {
        return refuse("it has no database file");
    }
    if !options.force && !has_lsmx_magic(&*vfs, dir, &files)? {
        return refuse(
            "no file has an lsmx magic number, so the directory may belong to another program; \
             the repair can be forced",
        );
    }
    let env = Env::new(Background::Inline, None);
    let stores = (&*database.operand_stores, options.dry_run);
    let run = || {
        let start = StartingState::find(&*vfs, dir, &env)?;
        let mut repair = RepairContext::new(&vfs, dir, &env, stores, &start)?;
        run_steps(&mut repair, options, &start)?;
        Ok(repair.report)
    };
    if options.dry_run {
        let _lock = lock_shared(&*vfs, dir)?;
        return run();
    }
    let claim = DirectoryClaim::lock_existing(&vfs, dir)?;
    let report = run()?;
    drop(claim.into_lock());
    Ok(report)
}

fn run_steps(
    repair: &mut RepairContext<'_>,
    options: &RepairOptions,
    start: &StartingState,
) -> Result<()> {
    let is_doubtful = start.doubt.is_some();
    if let Some(damage) = &start.damage {
        let used = start.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let done = match is_doubtful {
            false => format!("{used} is intact and replaces it"),
            true if start.path.ends_with(CURRENT) => {
                "the database was rebuilt from its tables and its log".to_owned()
            }
            true => format!("{used} was read as far as possible; all tables were merged"),
        };
        repair.add_finding(damage, done)?;
        repair.report.in_doubt = is_doubtful;
        repair.find_tables_by_uid()?;
    }
    if options.common_prefix {
        common_prefix::revert_to_common_prefix(repair, start.damage.is_some())?;
    }
    if is_doubtful {
        rebuild_keyspaces::rebuild_keyspaces(repair, &start.removed)?;
    } else {
        let ids: Vec<u32> = repair.state.keyspaces.keys().copied().collect();
        for id in ids {
            keyspaces::repair_keyspace(repair, id)?;
        }
    }
    keyspaces::repair_operand_stores(repair)?;
    repair_log::repair_log(repair, is_doubtful)?;
    repair.report.damaged = !repair.report.findings.is_empty();
    if repair.report.damaged && !options.dry_run {
        install::install(repair)?;
    }
    Ok(())
}
