//! Reverts all keyspaces to the same commit if the log is damaged.
//!
//! Let D be the last sequence number before the damage. The log restores all keyspaces up to D. A keyspace with a flush
//! after D also has later commits, which the other keyspaces have lost.
//!
//! 1. The manifest still contains the state of such a keyspace before its first flush after D. This earlier state is
//!    usable if all of its files exist and the log has all commits from that state up to D.
//! 2. The keyspace gets its earlier state. The replay of the log then restores it up to D, as after a crash before the
//!    flush.
//! 3. Files that only the later state uses are moved to the directory of damaged files.
//!
//! Dropping the tables with sequence numbers larger than D is not sufficient. Flushes and compactions drop overwritten
//! entries, so entries before D may be missing from all other files.

use std::collections::BTreeSet;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_compaction::TreeShape;

use crate::db::check::repair::context::RepairContext;
use crate::db::check::repair::report::{Loss, LossKind, is_damage_error};
use crate::db::check::repair::starting_state::first_seq;
use crate::db::open::log_source::last_known_seq;
use crate::error::{Error, Result};
use crate::manifest::{EarlierKeyspace, KeyspaceState, Manifest};
use crate::options::db::DEFAULT_KEYSPACE;
use crate::options::stored::StoredOptions;
use crate::wal::RecoveryMode;

/// Reverts every keyspace with a flush after the damaged position of the log to its state before that flush.
pub(crate) fn revert_to_common_prefix(
    repair: &mut RepairContext<'_>,
    is_manifest_damaged: bool,
) -> Result<()> {
    let refuse =
        |keyspace: &str, why| Err(Error::NoCommonPrefix { keyspace: keyspace.to_owned(), why });
    if is_manifest_damaged {
        return refuse(DEFAULT_KEYSPACE, "CURRENT or the manifest is damaged");
    }
    let Err(damage) = repair.check_log(RecoveryMode::Strict) else { return Ok(()) };
    let log = match repair.check_log(RecoveryMode::Tolerant) {
        Ok(log) => log,
        Err(error) if !is_damage_error(&error) => return Err(error),
        Err(_) => return refuse(DEFAULT_KEYSPACE, "nothing in the log is readable"),
    };
    let short = log.complete_through.iter().find(|&(_, end)| *end < log.last_seq);
    if let Some((keyspace, _)) = short {
        return refuse(keyspace, "the log that is kept for its operand store is damaged");
    }
    let earlier =
        Manifest::load_keyspace_states_before_flush(&**repair.vfs, repair.dir, log.last_seq)?;
    let files: BTreeSet<FileName> = repair.list_files()?.into_iter().collect();
    let oldest = repair.state.wal_oldest;
    let log_start = match files.contains(&FileName::Segment(oldest)) {
        true => first_seq(&**repair.vfs, repair.dir, oldest)?,
        false => None,
    };
    let last_seq = last_known_seq(&repair.state);
    let mut is_reverted = false;
    for (id, earlier) in earlier {
        // A dropped keyspace stays dropped.
        let Some(current) = repair.state.keyspaces.get(&id).cloned() else { continue };
        let Some(EarlierKeyspace { state: earlier, wal_oldest }) = earlier else {
            return refuse(&current.name, "the manifest was started after the flush");
        };
        let persisted = StoredOptions::decode(&current.options);
        if persisted.is_none_or(|persisted| persisted.store_name().is_some()) {
            return refuse(&current.name, "its operand store keeps only its newest state");
        }
        if file_names(&earlier).any(|file| !files.contains(&file)) {
            return refuse(&current.name, "a compaction has removed files of its earlier state");
        }
        // A keyspace that was created since the open has no flush. The log then contains all of its commits if no segment
        // has been removed since the earlier state.
        let has_all_segments = wal_oldest == oldest;
        let has_next = |first: SeqNo| has_all_segments || first.0 <= earlier.flushed_through.0 + 1;
        if !log_start.is_some_and(has_next) {
            return refuse(&current.name, "the log no longer holds all commits since its flush");
        }
        revert_keyspace(repair, id, (&current, earlier), &damage);
        is_reverted = true;
    }
    if is_reverted {
        repair.add_finding(&damage, "tables with later commits were dropped")?;
    }
    // The sequence numbers of dropped commits are not used again.
    repair.state.last_seq = last_seq;
    Ok(())
}

fn revert_keyspace(
    repair: &mut RepairContext<'_>,
    id: u32,
    (current, earlier): (&KeyspaceState, KeyspaceState),
    damage: &Error,
) {
    let kept: BTreeSet<FileName> = file_names(&earlier).collect();
    repair.set_aside.extend(file_names(current).filter(|file| !kept.contains(file)));
    for table in current.tree.files() {
        if !kept.contains(&FileName::Table(table.id.0)) {
            let (path, cause) = (repair.table_path(table.id.0), (&**table, damage));
            repair.report.tables_dropped += 1;
            let loss = Loss::for_table(&current.name, path, LossKind::Commits, cause);
            repair.report.lost.push(loss);
        }
    }
    let flushed_through = match failpoint::is_on(Failpoint::DroppedFlushStaysCounted) {
        true => current.flushed_through,
        false => earlier.flushed_through,
    };
    let tree = TreeShape { run_id_next: current.tree.run_id_next, ..earlier.tree };
    let (name, options) = (current.name.clone(), current.options.clone());
    let state = KeyspaceState { name, flushed_through, options, tree, ..earlier };
    repair.state.keyspaces.insert(id, state);
}

/// Returns the tables and blob files of a keyspace.
fn file_names(keyspace: &KeyspaceState) -> impl Iterator<Item = FileName> + '_ {
    let tables = keyspace.tree.files().map(|table| FileName::Table(table.id.0));
    tables.chain(keyspace.value_log.blob_files().map(|blob| FileName::Blob(blob.id.0)))
}
