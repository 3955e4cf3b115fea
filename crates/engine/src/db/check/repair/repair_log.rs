//! Repairs the log: keeps the commits before the damage.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::SeqNo;

use crate::db::check::repair::context::RepairContext;
use crate::db::check::repair::report::{Loss, LossKind};
use crate::db::check::repair::starting_state::{find_log_chains, find_log_start};
use crate::db::open::log_source::last_known_seq;
use crate::error::{Error, Result};
use crate::options::stored::kept_logs;
use crate::wal::{RecoveryMode, RecoveryReport};

/// Checks the log and reports the commits that an open in tolerant mode loses. If `is_doubtful`, the segment list of
/// the manifest is not used.
pub(crate) fn repair_log(repair: &mut RepairContext<'_>, is_doubtful: bool) -> Result<()> {
    if repair.manifest.ends_with(CURRENT) {
        set_kept_logs_aside(repair)?;
    }
    if is_doubtful {
        find_oldest_segment(repair)?;
    }
    let damage = match repair.check_log(RecoveryMode::Strict) {
        Ok(log) => {
            (repair.report.commits, repair.report.log_tail_bytes) = (log.records, log.bytes_cut);
            report_completeness(repair, &log, is_doubtful);
            return Ok(());
        }
        Err(damage) => damage,
    };
    let log = match repair.check_log(RecoveryMode::Tolerant) {
        Ok(log) => {
            repair.add_finding(&damage, "commits before the damage were kept")?;
            log
        }
        // The first segment of the log is missing or unreadable.
        Err(error @ (Error::Corrupt { .. } | Error::Missing { .. })) => {
            repair.add_finding(&error, "the log was discarded")?;
            start_new_log(repair);
            let complete_through = repair.state.last_complete_seqs(SeqNo::ZERO);
            RecoveryReport { damage: Some(error), complete_through, ..RecoveryReport::default() }
        }
        Err(error) => return Err(error),
    };
    let segments = repair.list_files()?.into_iter();
    repair.set_aside.extend(segments.filter(|file| matches!(file, FileName::Segment(_))));
    repair.report.commits = log.records;
    report_completeness(repair, &log, is_doubtful);
    let is_hidden = repair.tables.dry_run && failpoint::is_on(Failpoint::DryRunMissesCommits);
    if let Some(damage) = log.damage.filter(|_| !is_hidden) {
        let path = damage.path().unwrap_or(repair.dir).to_owned();
        let loss = Loss::new(None, path, LossKind::Commits, damage);
        repair.report.lost.push(Loss { bytes: log.bytes_cut, ..loss });
    }
    Ok(())
}

/// Sets aside kept logs that no manifest lists. A kept log holds the commits of a keyspace whose operand store was
/// missing at an open. The keyspaces of these logs are unknown, so the commits are lost.
fn set_kept_logs_aside(repair: &mut RepairContext<'_>) -> Result<()> {
    let files = repair.list_files()?;
    let listed = kept_logs(&repair.state);
    let oldest = repair.state.wal_oldest;
    for (header, commits) in find_log_chains(&**repair.vfs, repair.dir, &files)? {
        let is_listed = listed.values().any(|log| log.contains(header.id));
        if commits == 0 || header.id >= oldest || is_listed {
            continue;
        }
        let path = FileName::Segment(header.id).in_dir(repair.dir);
        let why = format!(
            "the {commits} commits kept for a keyspace without its operand store cannot be assigned, \
             because no manifest names the keyspace"
        );
        repair.report.lost.push(Loss::new(None, path, LossKind::Commits, why));
        let is_older = |file: &&FileName| matches!(file, FileName::Segment(id) if *id < oldest);
        repair.set_aside.extend(files.iter().filter(is_older).copied());
    }
    Ok(())
}

/// Sets the start of the log to the oldest segment on disk if the oldest segment of the manifest is missing.
fn find_oldest_segment(repair: &mut RepairContext<'_>) -> Result<()> {
    repair.state.wal_named = Vec::new();
    repair.state.wal_mark = None;
    let (files, oldest) = (repair.list_files()?, repair.state.wal_oldest);
    if !files.contains(&FileName::Segment(oldest)) {
        let is_newer = |file: &FileName| matches!(file, FileName::Segment(id) if *id >= oldest);
        let newer: Vec<_> = files.into_iter().filter(is_newer).collect();
        let start = find_log_start(&**repair.vfs, repair.dir, &newer)?;
        repair.state.wal_oldest = start.map_or(0, |(id, _)| id);
    }
    Ok(())
}

fn report_completeness(repair: &mut RepairContext<'_>, log: &RecoveryReport, is_doubtful: bool) {
    let keyspaces = log.complete_through.iter();
    let ends = keyspaces.map(|(name, seq)| (name.clone(), (!is_doubtful).then_some(seq.0)));
    repair.report.complete_through = ends.collect();
}

/// Discards the log. The new log starts after the last sequence number in the tables.
fn start_new_log(repair: &mut RepairContext<'_>) {
    repair.state.last_seq = last_known_seq(&repair.state);
    repair.state.wal_oldest = repair.tables.allocate();
    repair.state.wal_named = Vec::new();
    repair.state.wal_mark = None;
}
