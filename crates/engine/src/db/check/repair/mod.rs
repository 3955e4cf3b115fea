//! Repair of a damaged database. The repaired database can be opened and holds all readable data.
//!
//! 1. The state is read from the manifest that `CURRENT` names, or from the newest readable manifest. Without a
//!    readable manifest, the state is derived from tables and log (`starting_state`).
//! 2. Every table and blob file is checked (`keyspaces`). The readable entries of a damaged table are written to a new
//!    table, which replaces the damaged table in its run (`salvage_table`, `damaged_table`). The readable values of a
//!    damaged blob file are moved to tables (`damaged_blobs`).
//! 3. If manifest edits are lost, it is unknown which tables belong to a tree. In this case, all tables except removed
//!    ones are merged into one run by sequence number (`rebuild_keyspaces`, `merge_tables`).
//! 4. Damaged and unusable files are set aside: they are moved to a new directory in the database directory
//!    (`install`).
//! 5. The log is replayed up to its damage. A new manifest then makes the result durable, as after any open. An
//!    interrupted repair does not change the database.
//!
//! If an entry is lost, reads may return an older value of the key, even if the key was deleted. The report lists the
//! affected keys.

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
use crate::followers::find_open_follower;
use crate::options::db::Options;

/// Options of [`repair`].
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Reports the repair without changing the database. Default: false.
    pub dry_run: bool,
    /// Repairs a directory even if none of its files has an lsmx magic number. By default, the repair refuses such a
    /// directory, because another program may own it. Default: false.
    pub force: bool,
    /// Reverts all keyspaces to the last commit before the damage of the log, so that no batch is applied in part.
    /// Tables from later flushes are dropped and kept with the damaged files. The option has no effect if the log is
    /// undamaged. Default: false.
    ///
    /// The repair fails with [`Error::NoCommonPrefix`], and changes nothing, if an earlier state of a keyspace is no
    /// longer available. Possible reasons: a compaction has removed files of the earlier state, the log no longer holds
    /// the commits since that state, the keyspace has an operand store, or the manifest is damaged or newer than the
    /// flush.
    pub common_prefix: bool,
}

/// Repairs a damaged database. The repaired database opens without errors, passes [`verify`](crate::verify), and holds
/// all readable data. Damaged files are kept in a new directory inside the database directory. An undamaged database is
/// not changed.
///
/// Content of the repaired database:
///
/// - Damaged log: the content is the same as after an open in
///   [`RecoveryMode::Tolerant`](crate::RecoveryMode::Tolerant). Each keyspace has the state after a prefix of its
///   operations. The prefix ends at the last commit before the damage, or at the last flush of the keyspace if the
///   flush is later. A batch that writes to several keyspaces may be applied in part.
///   [`RepairReport::complete_through`] has the end of each prefix. [`RepairOptions::common_prefix`] makes the ends
///   equal if possible.
/// - Damaged table or blob file: all readable blocks and values are kept. For the keys in [`RepairReport::lost`], reads
///   may return an older value, a deleted value or no value.
/// - Lost manifest edits ([`RepairReport::in_doubt`]): all tables in the directory are merged by sequence number. The
///   ends of the prefixes are unknown. If no manifest contains the time of the database clock, the clock starts at the
///   wall clock, or at [`Options::clock`].
///
/// Damage after the last sync mark of the newest log segment cannot be distinguished from the torn tail of a crash. It
/// is not reported as damage; see [`RepairReport::log_tail_bytes`].
///
/// Make a copy of the database before the repair. Use [`Db::checkpoint`](crate::Db::checkpoint) if the database opens
/// with all of its operand stores, and otherwise copy its files.
///
/// # Errors
/// - [`Error::NotADatabase`], also if no file has an lsmx magic number and [`RepairOptions::force`] is off.
/// - [`Error::Locked`] if the database is open, also by a [`Follower`](crate::Follower).
/// - [`Error::UnsupportedVersion`].
/// - [`Error::NoCommonPrefix`].
/// - [`Error::NoOperandStore`] if `database` lacks an [`Options::operand_store`] of a keyspace.
/// - [`Error::Io`] if a file cannot be listed, opened or written.
///
/// The database is unchanged after an error.
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
        let mut start = StartingState::find(&*vfs, dir, &env)?;
        if start.state.clock_us == 0 {
            start.state.clock_us = read_initial_time_us(database);
        }
        let mut repair = RepairContext::new(&vfs, dir, &env, stores, &start)?;
        run_steps(&mut repair, options, &start)?;
        Ok(repair.report)
    };
    if options.dry_run {
        let _lock = lock_shared(&*vfs, dir)?;
        return run();
    }
    let claim = DirectoryClaim::lock_existing(&vfs, dir)?;
    // A repair moves damaged files, which a follower may use.
    if let Some(path) = find_open_follower(&*vfs, dir)? {
        return Err(Error::Locked { path });
    }
    let report = run()?;
    drop(claim.into_lock());
    Ok(report)
}

/// Returns the database clock at which a database starts without a stored time, in microseconds.
///
/// The clock of the repair itself starts at the time in the manifest and hardly advances. Without a stored time, the files
/// that the repair creates would be older than each age limit.
fn read_initial_time_us(options: &Options) -> u64 {
    let background = match options.background {
        // Both have a virtual clock, which starts at the same time.
        Background::Stepped { .. } => Background::Inline,
        background => background,
    };
    let env = Env::with_clock(background, Some(0), options.clock.clone());
    env.start_database_clock(0, options.clock_rules(false));
    env.database_time_us()
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
