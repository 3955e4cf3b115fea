//! Choice of the backup and of the part of its archived log for a restore.
//!
//! If the search in a log finds damaged chunks, the readable part of the log remains a candidate. The comparison of candidates then
//! assumes that the damaged chunks belong to the wanted state. The choice fails if it selects such a candidate.

use object_store::ObjectStore;

use crate::catalog::BackupInfo;
use crate::error::Error;
use crate::log_chunk::{
    LogDamage, archived_log_through, archived_log_until, chunk_path, read_chunk, readable_log,
};

/// The state that [`BackupRepository::restore`](crate::BackupRepository::restore) restores.
///
/// All points except [`RestorePoint::Backup`] need the log that an [`Archiver`](crate::Archiver) has uploaded. They choose the backup among those
/// of one database: of the selected writer, or of the writer of the newest backup. With
/// [`Selection::Id`](crate::Selection::Id) they use this backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestorePoint {
    /// The state of the selected backup.
    #[default]
    Backup,
    /// The state after the commit with this sequence number, and after all earlier commits. A commit with later numbers is not
    /// contained, also if some of its numbers are not later. [`Snapshot::seq`](lsmx::Snapshot::seq) returns such a number, but after a
    /// clone of a keyspace it returns the number of the clone, which is not a commit.
    Commit(u64),
    /// The newest archived state that contains only commits before this time, in milliseconds since 1970-01-01 UTC, by the clock of the
    /// archiver. The archive has one state per chunk, and one per backup.
    Time(u64),
    /// The newest archived state.
    Newest,
}

/// A backup, and the commits that are added to it.
#[derive(Clone, Debug)]
pub(crate) struct RestorePlan {
    /// The backup. Its archived log is the part to restore, or `None` if no commit is added.
    pub(crate) info: BackupInfo,
    /// Last sequence number of the restored state. `None`: that of the backup.
    pub(crate) through: Option<u64>,
}

/// Chooses among `candidates`, which are the backups of one database in ascending order.
pub(crate) async fn plan_restore(
    store: &dyn ObjectStore,
    candidates: Vec<BackupInfo>,
    point: RestorePoint,
) -> Result<RestorePlan, Error> {
    match point {
        RestorePoint::Backup => {
            let info = candidates.into_iter().next_back().ok_or(Error::NoBackups)?;
            Ok(RestorePlan { info, through: None })
        }
        RestorePoint::Commit(seq) => plan_commit(store, candidates, seq).await,
        RestorePoint::Time(time_ms) => plan_time(store, candidates, time_ms).await,
        RestorePoint::Newest => plan_time(store, candidates, u64::MAX).await,
    }
}

/// Chooses the newest backup whose archived log extends it to the commit, or an older one if chunks of the newest one are damaged.
async fn plan_commit(
    store: &dyn ObjectStore,
    candidates: Vec<BackupInfo>,
    seq: u64,
) -> Result<RestorePlan, Error> {
    check_extensible(&candidates)?;
    let (mut ranges, mut plans, mut newest_damage) = (Vec::new(), Vec::new(), None);
    // Start of the newest backup that contains the commit with its log, or may contain it.
    let mut newest_start_ms = None;
    for mut info in candidates.into_iter().rev() {
        let Some(backup_seq) = info.last_seq else { continue };
        let (archived, damage) = match backup_seq == seq {
            true => (None, None),
            false => readable_log(store, info.id).await?,
        };
        info.archived = archived;
        let created_ms = info.created_ms;
        let last = info.last_restorable_seq().unwrap_or(backup_seq);
        let plan = match (backup_seq..=last).contains(&seq) {
            true => RestorePlan::through(store, info, seq).await.map(Some),
            false => {
                ranges.push((backup_seq, last));
                // The damaged chunk may contain the commit.
                damage.filter(|_| last < seq).map_or(Ok(None), Err)
            }
        };
        match plan {
            Ok(None) => continue,
            // The newer backup does not contain the commit without its log. If the older archive had the commit before the start of
            // the newer backup, the newer backup is that of a restored database, and its commit with this number is another one.
            Ok(Some(plan)) if newest_start_ms.is_some_and(|ms| state_ms(&plan.info) < Some(ms)) => {
            }
            Ok(Some(plan)) => {
                let has_log = plan.info.archived.is_some();
                plans.push(plan);
                if !has_log {
                    break;
                }
            }
            Err(error @ Error::Damaged { .. }) => newest_damage = newest_damage.or(Some(error)),
            Err(error) => return Err(error),
        }
        newest_start_ms = newest_start_ms.or(Some(created_ms));
    }
    // The searches have not read all chunks. Archives overlap in the commits during a backup, so few chunks are read here.
    while plans.len() > 1 {
        match check_chunks(store, &plans[0].info).await {
            Ok(()) => break,
            Err(error @ Error::Damaged { .. }) => {
                newest_damage = newest_damage.or(Some(error));
                plans.remove(0);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(plan) = plans.into_iter().next() {
        return Ok(plan);
    }
    if let Some(damage) = newest_damage {
        return Err(damage);
    }
    let before = ranges.iter().filter(|(_, last)| *last < seq).max_by_key(|(_, last)| *last);
    let after = ranges.iter().filter(|(first, _)| *first > seq).min_by_key(|(first, _)| *first);
    let ranges = before.into_iter().chain(after).copied().collect();
    Err(Error::CommitNotArchived { seq, ranges })
}

/// Reads the chunks of the archived log of a backup.
///
/// # Errors
/// [`Error::Damaged`] if a chunk does not exist or is damaged.
async fn check_chunks(store: &dyn ObjectStore, info: &BackupInfo) -> Result<(), Error> {
    for number in 1..=info.archived.map_or(0, |log| log.chunks) {
        read_chunk(store, info.id, number).await?;
    }
    Ok(())
}

/// A backup and the part of its archived log for a restore to a time.
struct TimeCandidate {
    info: BackupInfo,
    damage: Option<LogDamage>,
}

/// Chooses the backup whose archived log reaches the latest state that is not later than the time.
async fn plan_time(
    store: &dyn ObjectStore,
    candidates: Vec<BackupInfo>,
    time_ms: u64,
) -> Result<RestorePlan, Error> {
    check_extensible(&candidates)?;
    let mut best: Option<TimeCandidate> = None;
    for mut info in candidates {
        if info.checkpoint_ms.is_none_or(|checkpoint_ms| checkpoint_ms > time_ms) {
            continue;
        }
        let (log, last_damage) = readable_log(store, info.id).await?;
        let (archived, mut damage) = match log {
            Some(log) => archived_log_until(store, info.id, log, time_ms).await?,
            None => (None, None),
        };
        info.archived = archived;
        // The damaged chunk after the readable log may be the last one that is not later than the time.
        if let Some(error) = last_damage.filter(|_| archived == log) {
            let last_seq = info.last_restorable_seq().map_or(0, |last_seq| last_seq + 1);
            damage = Some(LogDamage { error, last_seq });
        }
        let candidate = TimeCandidate { info, damage };
        if best.as_ref().is_none_or(|best| candidate.is_newer_state(best)) {
            best = Some(candidate);
        }
    }
    let TimeCandidate { info, damage } = best.ok_or(Error::NoBackupBefore { time_ms })?;
    if let Some(damage) = damage {
        return Err(damage.error);
    }
    let through = info.last_restorable_seq().unwrap_or_default();
    RestorePlan::through(store, info, through).await
}

impl TimeCandidate {
    /// Returns whether the state of this candidate is newer than that of an earlier backup. The times decide only if its last
    /// sequence number is smaller: a database that was restored and continued may repeat numbers of later commits of the original.
    /// After an error of the clock, times of the earlier backup may be too late.
    ///
    /// The time of this candidate is the start of its run. If it is later than the state of the earlier backup, this candidate contains all
    /// commits of this state, or belongs to a restored database. The times of its checkpoint and of its chunks do not count: before them,
    /// an archiver may have archived later commits with the earlier backup.
    ///
    /// The times of damaged chunks are unknown. They may be later than the start, so only sequence numbers show that this candidate
    /// contains the commits of damaged chunks of the earlier backup.
    fn is_newer_state(&self, earlier: &TimeCandidate) -> bool {
        let rank = |candidate: &TimeCandidate| {
            let damaged_seq = candidate.damage.as_ref().map(|damage| damage.last_seq);
            (candidate.info.last_restorable_seq().max(damaged_seq), candidate.damage.is_none())
        };
        let (info, earlier_info) = (&self.info, &earlier.info);
        rank(self) >= rank(earlier)
            || info.last_restorable_seq() < earlier_info.last_restorable_seq()
                && Some(info.created_ms) > state_ms(earlier_info)
    }
}

/// Returns the time of the state of a backup and its archived log.
fn state_ms(info: &BackupInfo) -> Option<u64> {
    info.archived.map(|archived| archived.time_ms).max(info.checkpoint_ms)
}

/// Fails if no backup can be extended by the archived log.
fn check_extensible(candidates: &[BackupInfo]) -> Result<(), Error> {
    match candidates.iter().all(|info| info.last_seq.is_none()) {
        true => Err(candidates
            .last()
            .map_or(Error::NoBackups, |last| Error::NotExtensible { id: last.id })),
        false => Ok(()),
    }
}

impl RestorePlan {
    /// Returns the plan that restores the state after the commit `seq`. The backup or its archived log must contain the
    /// commit.
    pub(crate) async fn through(
        store: &dyn ObjectStore,
        mut info: BackupInfo,
        seq: u64,
    ) -> Result<RestorePlan, Error> {
        let added = info.archived.filter(|_| info.last_seq.is_some_and(|last_seq| seq > last_seq));
        info.archived = match added {
            Some(log) => Some(archived_log_through(store, info.id, log, seq).await?),
            None if info.last_seq.is_some_and(|last_seq| seq <= last_seq) => None,
            None => return Err(Error::damaged(chunk_path(info.id, 1), "it does not exist")),
        };
        Ok(RestorePlan { info, through: Some(seq) })
    }
}
