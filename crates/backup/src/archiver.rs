//! Archive of the log of a database, between backups.
//!
//! 1. Create a log archiver, which holds the log, and then a backup. The backup contains all commits before the archiver.
//! 2. Upload each chunk of the log as an object. The next chunk is read after the object exists.
//! 3. Begin again with step 1 if the log cannot be continued, or if the backup was removed.
//!
//! The chunk that is being uploaded is kept in memory. If an upload fails or its future is dropped, the next run repeats it with the
//! same contents.

use std::num::NonZeroU64;

use bytes::Bytes;
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

/// Options of an [`Archiver`].
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// Options of the backups that the archiver creates.
    pub backup: BackupOptions,
    /// Size in bytes at which a chunk ends. An archiver needs about twice this memory. Default: 4 MiB.
    pub chunk_bytes: usize,
    /// Maximum size in bytes of the retired log segments that the database keeps until they are uploaded. Beyond it, the archive has a
    /// gap until the next backup. Default: 1 GiB.
    pub held_bytes_max: u64,
    /// Size in bytes of the archived log after which the archiver creates a new backup, so that a restore replays less. The archive has
    /// no gap. Default: 4 GiB.
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
    /// The archiver is new, or it could not create a backup before.
    Started,
    /// The log could not be continued. The commits between the last chunk and the backup cannot be restored one by one.
    LogEnded(LogArchiveEnd),
    /// The previous backup was removed from the repository, and its chunks with it.
    Removed,
    /// The archived log has reached [`ArchiveOptions::backup_after_bytes`].
    LogSize,
}

/// Result of [`Archiver::run_once`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveSummary {
    /// The backup that was created, and the reason.
    pub backup: Option<(BackupInfo, BackupReason)>,
    /// Number of uploaded chunks.
    pub chunks: u64,
    /// Total size of these chunks in bytes.
    pub bytes: u64,
    /// Last sequence number that can be restored now: that of the last chunk or of the backup.
    pub last_seq: u64,
}

/// Archives the commits of one database.
///
/// Each call of [`run_once`](Archiver::run_once) uploads the commits that are on stable storage. There is no background thread: the
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
}

/// The archive of the commits after one backup.
#[derive(Debug)]
struct ActiveArchive {
    backup: u64,
    source: Arc<Mutex<ChunkSource>>,
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
    /// Size of all uploaded chunks in bytes.
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
    /// All durable commits are uploaded.
    Complete,
    NeedsBackup(BackupReason),
}

impl Archiver {
    /// Creates an archiver. It does nothing before the first call of [`Archiver::run_once`].
    #[must_use]
    pub fn new(db: &Db, options: ArchiveOptions) -> Archiver {
        Archiver { db: db.clone(), options, active: None }
    }

    /// Uploads the commits that are on stable storage. Creates a backup first if one is needed.
    ///
    /// Buffered commits are on stable storage after at most one second, or after [`Db::sync`]. If the call fails or its future is
    /// dropped, a later call continues.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Engine`]; the errors of [`BackupRepository::create`]; [`Error::ChunkExists`] if another archiver has
    /// written a chunk of the same backup. After [`Error::ChunkExists`], the next call creates a new backup.
    pub async fn run_once(
        &mut self,
        repository: &BackupRepository,
    ) -> Result<ArchiveSummary, Error> {
        let catalog = &repository.catalog;
        let mut summary = ArchiveSummary::default();
        loop {
            let reason = match &self.active {
                None => BackupReason::Started,
                Some(active) => match self.upload(catalog, active, &mut summary).await {
                    Ok(UploadEnd::NeedsBackup(reason)) if summary.backup.is_none() => reason,
                    Ok(_) => return Ok(summary),
                    Err(error) => {
                        if matches!(error, Error::ChunkExists { .. }) {
                            self.active = None;
                        }
                        return Err(error);
                    }
                },
            };
            // Without a gap, the previous archive is continued up to the new backup.
            let previous = self.active.take_if(|_| reason != BackupReason::LogSize);
            drop(previous);
            let (active, info) = self.begin(catalog).await?;
            if let Some(previous) = &self.active {
                // Its commits are also in the new backup, so the result does not matter.
                self.upload(catalog, previous, &mut summary).await?;
            }
            summary.last_seq = info.last_seq.unwrap_or_default();
            summary.backup = Some((info, reason));
            self.active = Some(active);
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

    /// Uploads all chunks of the log.
    async fn upload(
        &self,
        catalog: &CatalogStore,
        active: &ActiveArchive,
        summary: &mut ArchiveSummary,
    ) -> Result<UploadEnd, Error> {
        let rate: Option<NonZeroU64> = self.options.backup.bytes_per_s();
        let rate = TransferOptions { bytes_per_s: rate, ..TransferOptions::default() };
        let meter = TransferMeter::new(&rate, 0, 0);
        let chunks_before = summary.chunks;
        let end = loop {
            let pending = match self.pending_chunk(active).await {
                Ok(Some(pending)) => pending,
                Ok(None) => break UploadEnd::Complete,
                Err(Error::Engine(lsmx::Error::LogArchiveEnded { reason, .. })) => {
                    break UploadEnd::NeedsBackup(BackupReason::LogEnded(reason));
                }
                Err(error) => return Err(error),
            };
            put_chunk(catalog, &pending).await?;
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
        let (bytes, last_seq) = {
            let source = active.source.lock();
            (source.bytes, source.last_seq)
        };
        summary.last_seq = last_seq;
        // A prune may have removed the backup before the chunks were written.
        if summary.chunks > chunks_before && catalog.load().await?.backup(active.backup).is_err() {
            return Ok(UploadEnd::NeedsBackup(BackupReason::Removed));
        }
        match end {
            UploadEnd::Complete if bytes >= self.options.backup_after_bytes => {
                Ok(UploadEnd::NeedsBackup(BackupReason::LogSize))
            }
            end => Ok(end),
        }
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
        Err(object_store::Error::AlreadyExists { .. }) => {
            match read_if_exists(&**store, object).await? {
                Some(existing) if existing == chunk.bytes => Ok(()),
                _ => Err(Error::ChunkExists { object: object.to_string() }),
            }
        }
        Err(error) => Err(Error::store("write", object)(error)),
    }
}
