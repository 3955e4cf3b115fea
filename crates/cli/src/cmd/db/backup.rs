//! Implements `backup`, `backups` and `restore` of `lsmx db`.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lsmx_backup::{
    BackupInfo, BackupOptions, BackupRepository, Progress, ProgressCallback, PruneSummary,
    RestoreOptions, RestorePoint, Retention, Selection, TransferOptions, VerifyDepth,
};
use lsmx_bench::experiment::Progress as _;
use lsmx_bench::report::text::format_bytes;

use crate::args::{BackupArgs, BackupsArgs, DbArgs, RepositoryArgs, RestoreArgs, TransferArgs};
use crate::failure::Failure;
use crate::output::{self, Bar};

/// Backs up the database and prints the number of the backup.
pub(super) fn create(arguments: &DbArgs, backup: &BackupArgs) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "backup")?;
    let path = named_path(&arguments.path)?;
    let writer = writer(&path, &backup.repository)?;
    let (db, _keyspace) = super::open(arguments)?;
    let location = &backup.repository.repository;
    if !location.contains("://") && !Path::new(location).exists() {
        fs::create_dir(location).map_err(|error| Failure::file("create", location, error))?;
    }
    let repository = BackupRepository::at(location)?;
    let staging = backup.staging.clone().unwrap_or_else(|| default_staging(&path));
    let options = BackupOptions::new(staging)
        .writer(writer)
        .transfer(transfer_options(&backup.transfer, "uploading")?);
    let info = block_on(repository.create(&db, &options))?;
    db.close(None)?;
    let BackupInfo { id, files, .. } = info;
    let (bytes, uploaded) = (format_bytes(info.bytes), format_bytes(info.uploaded_bytes));
    output::stdout(format!("backup {id}: {files} files, {bytes}, {uploaded} uploaded\n").as_bytes())
}

/// Prints the backups. Removes old backups first if `--keep` is given, and then verifies the remaining backups if
/// `--verify` is given.
pub(super) fn list(arguments: &DbArgs, flags: &BackupsArgs) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "backups")?;
    let repository = BackupRepository::at(&flags.repository.repository)?;
    let writer = match flags.all {
        true => None,
        false => Some(writer(&named_path(&arguments.path)?, &flags.repository)?),
    };
    let depth = if flags.contents { VerifyDepth::Contents } else { VerifyDepth::Sizes };
    let (backups, pruned) = block_on(async {
        let mut pruned = None;
        if let Some(keep) = flags.keep {
            let keep_last = NonZeroUsize::new(usize::try_from(keep).unwrap_or(usize::MAX));
            let keep_last = keep_last
                .ok_or_else(|| Failure::Usage("invalid value '0' for '--keep <N>'".to_owned()))?;
            let retention = Retention { keep_last, keep_since_ms: None, writer: writer.clone() };
            pruned = Some(repository.prune(retention).await?);
        }
        let mut backups = repository.backups().await?;
        backups.retain(|backup| writer.as_ref().is_none_or(|only| *only == backup.writer));
        if flags.verify {
            for backup in &backups {
                repository.verify(Selection::Id(backup.id), depth).await?;
            }
        }
        Ok::<_, Failure>((backups, pruned))
    })?;
    if flags.json {
        return super::print_json(&backups);
    }
    output::stdout(text(&backups, pruned.as_ref(), flags.verify).as_bytes())
}

/// Restores a backup and prints its number.
pub(super) fn restore(arguments: &DbArgs, flags: &RestoreArgs) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "restore")?;
    let repository = BackupRepository::at(&flags.repository)?;
    let transfer = transfer_options(&flags.transfer, "downloading")?;
    let point = match (flags.to_commit, flags.to_time, flags.newest_log) {
        (Some(seq), _, _) => RestorePoint::Commit(seq),
        (_, Some(time_ms), _) => RestorePoint::Time(time_ms),
        (_, _, true) => RestorePoint::Newest,
        _ => RestorePoint::Backup,
    };
    let options = RestoreOptions::default().transfer(transfer).to(point);
    let info = block_on(async {
        let selection = match (flags.id, &flags.writer) {
            (Some(id), _) => Selection::Id(id),
            (None, Some(writer)) => Selection::NewestOf(writer.clone()),
            (None, None) => newest_of_only_writer(&repository).await?,
        };
        let restored = repository.restore(selection, &arguments.path, &options).await;
        restored.map_err(|error| match error {
            lsmx_backup::Error::NoBackupBefore { time_ms } => no_backup_before(time_ms),
            error => error.into(),
        })
    })?;
    let (id, bytes) = (info.id, format_bytes(info.bytes));
    let (time, path) = (utc_time(info.created_ms), arguments.path.display());
    let mut text =
        format!("restored backup {id} of {time} to {path}: {} files, {bytes}\n", info.files);
    if let Some(log) = info.archived {
        let time = utc_time_ms(log.time_ms);
        text += &format!("restored the log through commit {}, archived by {time}\n", log.last_seq);
    }
    output::stdout(text.as_bytes())
}

/// Returns the error of a restore to a time that is before all backups.
fn no_backup_before(time_ms: u64) -> Failure {
    let time = utc_time_ms(time_ms);
    let text = format!("the repository has no backup that contains only commits before {time}");
    Failure::Run(text.into())
}

/// Returns the newest backup if all backups have the same writer.
async fn newest_of_only_writer(repository: &BackupRepository) -> Result<Selection, Failure> {
    let backups = repository.backups().await?;
    let writers: BTreeSet<_> = backups.iter().map(|backup| backup.writer.as_str()).collect();
    if writers.len() > 1 {
        let names: Vec<_> = writers.into_iter().collect();
        let names = names.join(", ");
        let line = format!("--id or --writer is required: the repository contains {names}");
        return Err(Failure::Usage(line));
    }
    Ok(Selection::Newest)
}

fn text(backups: &[BackupInfo], pruned: Option<&PruneSummary>, verified: bool) -> String {
    let mut text = format!(
        "{:>6}  {:<20}  {:>6}  {:>10}  {:>10}  {:>12}  {:>12}  {:<24}  database\n",
        "id", "time", "files", "size", "uploaded", "commit", "log to", "log time"
    );
    for backup in backups {
        text += &format!(
            "{:>6}  {:<20}  {:>6}  {:>10}  {:>10}  {:>12}  {:>12}  {:<24}  {}\n",
            backup.id,
            utc_time(backup.created_ms),
            backup.files,
            format_bytes(backup.bytes),
            format_bytes(backup.uploaded_bytes),
            backup.last_seq.map_or_else(String::new, |seq| seq.to_string()),
            backup.archived.map_or_else(String::new, |log| log.last_seq.to_string()),
            backup.archived.map_or_else(String::new, |log| utc_time_ms(log.time_ms)),
            backup.writer,
        );
    }
    for backup in backups {
        if let Some(damage) = &backup.log_damage {
            text += &format!("the log of backup {} is damaged: {damage}\n", backup.id);
        }
    }
    if let Some(pruned) = pruned {
        let bytes = format_bytes(pruned.deleted_bytes);
        let (removed, deleted) = (pruned.removed.len(), pruned.deleted_objects);
        text += &format!("{removed} backups removed, {deleted} objects deleted, {bytes}\n");
    }
    if verified {
        text += &format!("{} backups verified\n", backups.len());
    }
    text
}

/// Formats a time as `2026-11-27 23:05:00Z`.
fn utc_time(unix_ms: u64) -> String {
    humantime::format_rfc3339_seconds(system_time(unix_ms)).to_string().replace('T', " ")
}

/// Formats a time as `2026-11-27 23:05:00.123Z`.
fn utc_time_ms(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(system_time(unix_ms)).to_string().replace('T', " ")
}

/// Returns the time, or the end of the year 9999 if it is later, because RFC 3339 has no later years.
fn system_time(unix_ms: u64) -> SystemTime {
    const LAST_MS: u64 = 253_402_300_799_999;
    UNIX_EPOCH + Duration::from_millis(unix_ms.min(LAST_MS))
}

/// Returns a path whose last component is the name of the directory. The last component of `.` or `..` is no name, so the
/// result is the canonical path.
fn named_path(path: &Path) -> Result<PathBuf, Failure> {
    match path.file_name() {
        Some(_) => Ok(path.to_owned()),
        None => fs::canonicalize(path)
            .map_err(|error| Failure::file("find", path.display().to_string(), error)),
    }
}

/// Returns the name of the database in the repository.
fn writer(path: &Path, repository: &RepositoryArgs) -> Result<String, Failure> {
    let name = || path.file_name()?.to_str().map(str::to_owned);
    repository.writer.clone().or_else(name).ok_or_else(|| {
        let path = path.display();
        Failure::Usage(format!("--writer is required: the directory {path} has no name in UTF-8"))
    })
}

fn default_staging(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".backup");
    path.with_file_name(name)
}

/// Returns the options of a transfer that shows a progress bar with the text `what`.
fn transfer_options(
    transfer: &TransferArgs,
    what: &'static str,
) -> Result<TransferOptions, Failure> {
    let concurrency = usize::try_from(transfer.files).unwrap_or(usize::MAX);
    let bytes_per_s = transfer.rate.map(|rate| {
        let rate = NonZeroU64::new(rate);
        rate.ok_or_else(|| Failure::Usage("invalid value '0' for '--rate <BYTES>'".to_owned()))
    });
    let progress = Some(progress_bar(what));
    Ok(TransferOptions { concurrency, bytes_per_s: bytes_per_s.transpose()?, progress })
}

/// Returns a callback that shows a progress bar.
fn progress_bar(what: &'static str) -> ProgressCallback {
    let bar = Mutex::new((Bar::new(), 0));
    Arc::new(move |progress: Progress| {
        let mut guard = bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (bar, shown) = &mut *guard;
        if *shown == 0 {
            bar.begin_phase(what, progress.bytes_total);
        }
        bar.advance(progress.bytes - *shown);
        *shown = progress.bytes;
        if progress.files == progress.files_total {
            bar.end_phase();
        }
    })
}

/// Runs a future on a runtime of its own.
fn block_on<T, E>(future: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
where
    Failure: From<E>,
{
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::file("start", "the runtime", error))?;
    Ok(runtime.block_on(future)?)
}
