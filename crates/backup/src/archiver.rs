//! Archive of the log of a database, between backups.
//!
//! 1. Create a log archiver, which holds the log, and then a backup. The backup contains all commits before the archiver.
//! 2. Upload each chunk of the log as an object. The next chunk is read after the object exists.
//! 3. Check that the catalog still contains the backup.
//! 4. Begin again with step 1 if the log cannot be continued, or if the backup was removed. If the archived log is large, also begin
//!    again, and archive the commits after the previous backup until the new backup exists.
//!
//! The chunk that is being uploaded is kept in memory. If an upload fails or its future is dropped, the next run repeats it with the
//! same contents. If the commits after the chunk are lost meanwhile, the next failure begins a new backup.
//!
//! A new archive is the *next* one until the commits that are durable then are uploaded. Only then it replaces the archive of the previous
//! backup. If that upload fails, the next run continues both archives.

use std::num::NonZeroU64;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use lsmx::{Db, LogArchiveEnd, LogArchiver, SeqNo};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::{Arc, Mutex};
use object_store::path::Path;
use object_store::{PutMode, PutPayload};

use crate::blocking::run_blocking;
use crate::catalog::{BackupInfo, CatalogStore, read_if_exists};
use crate::create::{self, BackupOptions};
use crate::error::Error;
use crate::log_chunk::encode_chunk;
use crate::repository::BackupRepository;
use crate::transfer::{TransferMeter, TransferOptions};

/// Default of [`ArchiveOptions::chunk_bytes`]: 4 MiB.
const CHUNK_BYTES_DEFAULT: usize = 4 << 20;
/// Default of [`ArchiveOptions::held_bytes_max`]: 1 GiB.
const HELD_BYTES_MAX_DEFAULT: u64 = 1 << 30;
/// Default of [`ArchiveOptions::backup_after_bytes`]: 4 GiB.
const BACKUP_AFTER_BYTES_DEFAULT: u64 = 4 << 30;
/// Interval in which commits are archived while a new backup is created.
const INTERVAL_DURING_BACKUP: Duration = Duration::from_secs(1);
/// Difference in milliseconds by which the clock may move back before a new backup begins. Until then, the times of chunks do not
/// advance.
const CLOCK_TOLERANCE_MS: u64 = 60_000;

/// Options of an [`Archiver`].
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// Options of the backups that the archiver creates.
    pub backup: BackupOptions,
    /// Size in bytes at which a chunk ends. A chunk contains complete commits, so that it may be larger by one commit. An archiver needs
    /// about twice the memory of the largest chunk. Default: 4 MiB.
    pub chunk_bytes: usize,
    /// Maximum size in bytes of the retired log segments that the database keeps until they are uploaded. Beyond it, the archive has a
    /// gap until the next backup. It must be larger than the log that is written during one backup. Default: 1 GiB.
    pub held_bytes_max: u64,
    /// Size in bytes of the archived log after which the archiver creates a new backup, so that a restore replays less. The archive has
    /// no gap. If the log exceeds `held_bytes_max` during the backup, the archive of the previous backup is continued. Default: 4 GiB.
    pub backup_after_bytes: u64,
}

impl ArchiveOptions {
    /// Returns the default options with these options of backups.
    #[must_use]
    pub fn new(backup: BackupOptions) -> ArchiveOptions {
        ArchiveOptions {
            backup,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            held_bytes_max: HELD_BYTES_MAX_DEFAULT,
            backup_after_bytes: BACKUP_AFTER_BYTES_DEFAULT,
        }
    }
}

/// Reason why an [`Archiver`] created a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupReason {
    /// The archiver is new, or an earlier call failed before a needed backup was complete, with [`Error::ChunkExists`], or with
    /// [`Error::UnknownBackup`]. The commits between the last chunk and the backup cannot be restored one by one.
    Started,
    /// The log could not be continued. The commits between the last chunk and the backup cannot be restored one by one.
    LogEnded(LogArchiveEnd),
    /// The previous backup was removed from the repository, and its chunks with it.
    Removed,
    /// The archived log has reached [`ArchiveOptions::backup_after_bytes`]. All commits before the backup were archived.
    LogSize,
    /// The clock is more than one minute behind the time of the last chunk. All commits before the backup were archived.
    ClockMovedBack,
}

impl BackupReason {
    /// Returns whether the previous archive can be continued until the new backup exists.
    fn keeps_previous(&self) -> bool {
        matches!(self, BackupReason::LogSize | BackupReason::ClockMovedBack)
    }
}

/// Result of [`Archiver::run_once`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveSummary {
    /// The backup that was created, and the reason. If a call fails after the backup is complete, the next successful call returns it.
    pub backup: Option<(BackupInfo, BackupReason)>,
    /// Number of uploaded chunks.
    pub chunks: u64,
    /// Total size of these chunks in bytes.
    pub bytes: u64,
    /// Last sequence number that can be restored now: that of the last chunk or of the backup. After a clone of a keyspace it is
    /// smaller than [`Snapshot::seq`](lsmx::Snapshot::seq) until the next commit.
    pub last_seq: u64,
}

/// Archives the commits of one database.
///
/// Each call of [`run_once`](Archiver::run_once) uploads the commits that are on stable storage when it begins. There is no background thread: the
/// program calls it in an interval, for example every second. The first call, and the call after a change of the structure of the
/// database, also create a backup. [`BackupRepository::restore`] with a
/// [`RestorePoint`](crate::RestorePoint) restores a backup and the commits after it.
///
/// The log of the database is kept until it is uploaded, see [`ArchiveOptions::held_bytes_max`]. The archiver is a handle of the
/// database, which stays open while it exists. A new archiver, such as that of the next process, starts with a new backup.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let home = dir.path();
/// # std::fs::create_dir(home.join("backups"))?;
/// use lsmx::{Db, Options};
/// use lsmx_backup::{
///     ArchiveOptions, Archiver, BackupOptions, BackupRepository, RestoreOptions, RestorePoint, Selection,
/// };
///
/// let db = Db::open(home.join("data"), Options::default())?;
/// let repository = BackupRepository::at(home.join("backups").to_str().unwrap())?;
/// let backup = BackupOptions::new(home.join("data.staging")).writer("data");
/// let mut archiver = Archiver::new(&db, ArchiveOptions::new(backup));
/// archiver.run_once(&repository).await?;
///
/// db.put("ada", "1815")?;
/// let before = db.snapshot().seq().0;
/// db.delete("ada")?;
/// db.sync()?;
/// archiver.run_once(&repository).await?;
///
/// let options = RestoreOptions::default().to(RestorePoint::Commit(before));
/// let target = home.join("restored");
/// repository.restore(Selection::NewestOf("data".to_owned()), &target, &options).await?;
/// assert_eq!(Db::open(&target, Options::default())?.get("ada")?.as_deref(), Some(&b"1815"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Archiver {
    db: Db,
    options: ArchiveOptions,
    active: Option<ActiveArchive>,
    /// The archive that replaces the active one after its first upload.
    next: Option<NextArchive>,
}

/// The archive of the commits after a new backup.
#[derive(Debug)]
struct NextArchive {
    archive: ActiveArchive,
    info: BackupInfo,
    reason: BackupReason,
}

/// The archive of the commits after one backup.
#[derive(Debug)]
struct ActiveArchive {
    backup: u64,
    source: Arc<Mutex<ChunkSource>>,
}

impl ActiveArchive {
    /// Returns the last sequence number of the uploaded chunks, or of the backup.
    fn last_seq(&self) -> u64 {
        self.source.lock().last_seq
    }

    /// Returns the reason why the commits after the pending chunk are lost. A change of the structure loses no commit before it.
    fn lost_log(&self) -> Option<LogArchiveEnd> {
        let end = self.source.lock().log.end();
        end.filter(|reason| *reason != LogArchiveEnd::StructureChanged)
    }
}

/// The log of the database, and the chunk that is being uploaded.
#[derive(Debug)]
struct ChunkSource {
    log: LogArchiver,
    pending: Option<PendingChunk>,
    /// Number of the next chunk.
    number: u64,
    /// Time of the last chunk.
    time_ms: u64,
    /// Size in bytes of the chunks that were uploaded since the last attempt to begin a new backup.
    bytes: u64,
    /// Last sequence number of the uploaded chunks, or of the backup.
    last_seq: u64,
}

#[derive(Clone, Debug)]
struct PendingChunk {
    object: Path,
    bytes: Bytes,
    last_seq: SeqNo,
}

/// Reason why an archive cannot be continued, or must not be.
enum UploadEnd {
    /// The commits that were durable at the start of the call are uploaded.
    Complete,
    NeedsBackup(BackupReason),
}

impl Archiver {
    /// Creates an archiver. It does nothing before the first call of [`Archiver::run_once`].
    #[must_use]
    pub fn new(db: &Db, options: ArchiveOptions) -> Archiver {
        Archiver { db: db.clone(), options, active: None, next: None }
    }

    /// Uploads the commits that are on stable storage when the call begins. Creates a backup first if one is needed.
    ///
    /// Buffered commits are on stable storage after at most one second, or after [`Db::sync`]. If the call fails or its future is
    /// dropped, a later call continues. The runtime needs a timer.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Engine`]; the errors of [`BackupRepository::create`]; [`Error::ChunkExists`] if another archiver has
    /// written a chunk of the same backup; [`Error::UnknownBackup`] if the new backup was removed before its first chunks were uploaded.
    /// After the last two errors, the next call creates a new backup.
    pub async fn run_once(
        &mut self,
        repository: &BackupRepository,
    ) -> Result<ArchiveSummary, Error> {
        let mut summary = ArchiveSummary::default();
        let archived = self.archive(&repository.catalog, &mut summary).await;
        if let Err(Error::ChunkExists { .. }) = archived {
            (self.active, self.next) = (None, None);
        }
        summary.last_seq = archived?;
        Ok(summary)
    }

    /// Implements [`Archiver::run_once`]. Returns the last sequence number that can be restored.
    async fn archive(
        &mut self,
        catalog: &CatalogStore,
        summary: &mut ArchiveSummary,
    ) -> Result<u64, Error> {
        let mut reason = BackupReason::Started;
        if let Some(active) = &self.active {
            match self.upload(catalog, active, summary).await? {
                UploadEnd::Complete if self.next.is_none() => return Ok(active.last_seq()),
                UploadEnd::Complete => {}
                UploadEnd::NeedsBackup(needed) => {
                    reason = needed;
                    // A hold that cannot be continued is released before the next one is created.
                    self.end_active(&reason);
                }
            }
        }
        if self.next.is_none() {
            self.begin_next(catalog, reason, summary).await?;
        }
        self.upload_next(catalog, summary).await
    }

    /// Drops the active archive, unless the reason allows to continue it.
    fn end_active(&mut self, reason: &BackupReason) {
        let Some(active) = self.active.take_if(|_| !reason.keeps_previous()) else { return };
        if let Some(next) = &mut self.next {
            let has_gap = Some(active.last_seq()) < next.info.last_seq;
            if has_gap || *reason == BackupReason::Removed {
                next.reason = reason.clone();
            }
        }
    }

    /// Begins the next archive. Meanwhile, the commits after the backup of the active one are archived up to the new backup.
    async fn begin_next(
        &mut self,
        catalog: &CatalogStore,
        reason: BackupReason,
        summary: &mut ArchiveSummary,
    ) -> Result<(), Error> {
        let Some(active) = &self.active else {
            let (archive, info) = self.begin(catalog).await?;
            self.next = Some(NextArchive { archive, info, reason });
            return Ok(());
        };
        let ((archive, info), ended) = {
            let begin = pin!(self.begin(catalog));
            let continued = pin!(self.upload_until_end(catalog, active, summary));
            match select(begin, continued).await {
                Either::Left((begun, _)) => (begun?, None),
                Either::Right((ended, begin)) => (begin.await?, Some(ended)),
            }
        };
        // A failed upload of the active archive must not discard the new backup.
        self.next = Some(NextArchive { archive, info, reason });
        let ended = match ended {
            Some(ended) => ended,
            None => match self.upload(catalog, active, summary).await? {
                UploadEnd::NeedsBackup(reason) => reason,
                UploadEnd::Complete => return Ok(()),
            },
        };
        self.end_active(&ended);
        Ok(())
    }

    /// Uploads the first chunks of the next archive, which then replaces the active one. Returns the last sequence number that can be
    /// restored.
    async fn upload_next(
        &mut self,
        catalog: &CatalogStore,
        summary: &mut ArchiveSummary,
    ) -> Result<u64, Error> {
        let Some(next) = &self.next else { unreachable!("`archive` has begun it") };
        summary.backup = Some((next.info.clone(), next.reason.clone()));
        let end = self.upload(catalog, &next.archive, summary).await?;
        let Some(next) = self.next.take() else { unreachable!("`upload` does not change it") };
        match (end, &self.active) {
            (UploadEnd::NeedsBackup(BackupReason::Removed), _) => {
                Err(Error::UnknownBackup { id: next.info.id })
            }
            (UploadEnd::NeedsBackup(BackupReason::LogEnded(_)), Some(active)) => {
                // During the backup, the new hold exceeded its limit. The active archive has no gap, so it is continued.
                active.source.lock().bytes = 0;
                Ok(active.last_seq())
            }
            _ => Ok(self.active.insert(next.archive).last_seq()),
        }
    }

    /// Uploads chunks in an interval until the archive cannot be continued. Returns the reason.
    async fn upload_until_end(
        &self,
        catalog: &CatalogStore,
        active: &ActiveArchive,
        summary: &mut ArchiveSummary,
    ) -> BackupReason {
        loop {
            match self.upload(catalog, active, summary).await {
                Ok(UploadEnd::NeedsBackup(reason)) if !reason.keeps_previous() => return reason,
                // The upload is repeated after an error. The caller returns the error if it remains after the backup.
                _ => tokio::time::sleep(INTERVAL_DURING_BACKUP).await,
            }
        }
    }

    /// Creates a log archiver, and then a backup.
    async fn begin(&self, catalog: &CatalogStore) -> Result<(ActiveArchive, BackupInfo), Error> {
        let (db, held_bytes_max) = (self.db.clone(), self.options.held_bytes_max);
        let log = run_blocking(move || Ok(db.archive_log(held_bytes_max)?)).await?;
        let info = create::create(catalog, &self.db, &self.options.backup).await?;
        let source = ChunkSource {
            log,
            pending: None,
            number: 1,
            time_ms: info.checkpoint_ms.unwrap_or_default(),
            bytes: 0,
            last_seq: info.last_seq.unwrap_or_default(),
        };
        Ok((ActiveArchive { backup: info.id, source: Arc::new(Mutex::new(source)) }, info))
    }

    /// Uploads the chunks of the durable commits, and checks that the backup still exists.
    async fn upload(
        &self,
        catalog: &CatalogStore,
        active: &ActiveArchive,
        summary: &mut ArchiveSummary,
    ) -> Result<UploadEnd, Error> {
        let rate: Option<NonZeroU64> = self.options.backup.bytes_per_s();
        let rate = TransferOptions { bytes_per_s: rate, ..TransferOptions::default() };
        let meter = TransferMeter::new(&rate, 0, 0);
        // Later commits are left to the next run. Otherwise, a call during a steady load would not end.
        // A snapshot waits while a job removes entries.
        let db = self.db.clone();
        let last_seq = run_blocking(move || Ok(db.snapshot().seq().0)).await?;
        let end = loop {
            let pending = match self.pending_chunk(active).await {
                Ok(Some(pending)) if active.last_seq() < last_seq => pending,
                Ok(_) => break UploadEnd::Complete,
                Err(Error::Engine(lsmx::Error::LogArchiveEnded { reason, .. })) => {
                    break UploadEnd::NeedsBackup(BackupReason::LogEnded(reason));
                }
                Err(error) => return Err(error),
            };
            if let Err(error) = put_chunk(catalog, &pending).await {
                match active.lost_log() {
                    // The store may never accept the chunk, and a new backup is needed in any case.
                    Some(reason) if matches!(error, Error::Store { .. }) => {
                        break UploadEnd::NeedsBackup(BackupReason::LogEnded(reason));
                    }
                    _ => return Err(error),
                }
            }
            let bytes = len_u64(pending.bytes.len());
            summary.chunks += 1;
            summary.bytes += bytes;
            {
                let mut source = active.source.lock();
                source.pending = None;
                source.number += 1;
                source.bytes += bytes;
                source.last_seq = source.last_seq.max(pending.last_seq.0);
            }
            meter.add_bytes(bytes).await;
        };
        // A prune may have removed the backup and its chunks since the last run, or before the chunks were written.
        if catalog.load().await?.backup(active.backup).is_err() {
            return Ok(UploadEnd::NeedsBackup(BackupReason::Removed));
        }
        let UploadEnd::Complete = end else { return Ok(end) };
        let (bytes, time_ms) = {
            let source = active.source.lock();
            (source.bytes, source.time_ms)
        };
        let clock_ms = self.options.backup.clock().now_ms();
        Ok(if clock_ms.saturating_add(CLOCK_TOLERANCE_MS) < time_ms {
            UploadEnd::NeedsBackup(BackupReason::ClockMovedBack)
        } else if bytes >= self.options.backup_after_bytes {
            UploadEnd::NeedsBackup(BackupReason::LogSize)
        } else {
            UploadEnd::Complete
        })
    }

    /// Returns the chunk whose upload has not been completed. Reads the next one if there is none.
    async fn pending_chunk(&self, active: &ActiveArchive) -> Result<Option<PendingChunk>, Error> {
        let (source, backup) = (Arc::clone(&active.source), active.backup);
        let (chunk_bytes, clock) = (self.options.chunk_bytes, self.options.backup.clock());
        run_blocking(move || {
            let mut source = source.lock();
            if source.pending.is_none()
                && let Some(chunk) = source.log.next_chunk(chunk_bytes)?
            {
                // All commits of the chunk are older than this time.
                source.time_ms = source.time_ms.max(clock.now_ms());
                let location = (backup, source.number, source.time_ms);
                let (object, bytes) = encode_chunk(location, &chunk)?;
                source.pending = Some(PendingChunk { object, bytes, last_seq: chunk.last_seq });
            }
            Ok(source.pending.clone())
        })
        .await
    }
}

/// Creates the object of a chunk. An earlier attempt may have created it.
async fn put_chunk(catalog: &CatalogStore, chunk: &PendingChunk) -> Result<(), Error> {
    let (store, object) = (&catalog.store, &chunk.object);
    let payload = PutPayload::from(chunk.bytes.clone());
    match store.put_opts(object, payload, PutMode::Create.into()).await {
        Ok(_) => Ok(()),
        Err(error @ object_store::Error::AlreadyExists { .. }) => {
            match read_if_exists(&**store, object).await? {
                Some(existing) if existing == chunk.bytes => Ok(()),
                Some(_) => Err(Error::ChunkExists { object: object.to_string() }),
                // A store may refuse a conditional write that meets another operation on the object.
                None => Err(Error::store("write", object)(error)),
            }
        }
        Err(error) => Err(Error::store("write", object)(error)),
    }
}
