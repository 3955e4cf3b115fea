//! Chunks of the archived log of a backup: the objects `log/ID/N`, where `ID` is the number of the backup and `N` counts from 1.
//!
//! An object is a record with the [`ChunkHeader`], followed by the bytes of an [`lsmx::LogChunk`]. Objects are created only if they do
//! not exist, and in ascending order, so that the last one is found by reads of `N + 1` even if a listing is stale.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::Bytes;
use futures_util::TryStreamExt;
use lsmx_base::checksum::xxh3;
use lsmx_base::coding::len_u64;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::catalog::{ArchivedLog, BackupInfo, read_if_exists};
use crate::error::Error;
use crate::record;

/// Prefix of all chunks.
pub(crate) const LOG: &str = "log";
/// Upper bound of the size of an encoded header in bytes.
const HEADER_BYTES_MAX: u64 = 512;

/// Header of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkHeader {
    /// Number of the backup that the chunk extends.
    pub(crate) backup: u64,
    pub(crate) number: u64,
    /// First sequence number that the chunk covers.
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Time at which the archiver read the commits, in milliseconds since 1970-01-01 UTC. Not before that of the previous chunk.
    pub(crate) time_ms: u64,
    /// Size of the chunk without the header, in bytes.
    pub(crate) bytes: u64,
    /// XXH3-64 of the chunk without the header, in hexadecimal.
    pub(crate) checksum: String,
}

impl ChunkHeader {
    fn archived_log(&self) -> ArchivedLog {
        ArchivedLog { chunks: self.number, last_seq: self.last_seq, time_ms: self.time_ms }
    }
}

/// Damaged chunks in a part of an archived log, or directly after it.
#[derive(Debug)]
pub(crate) struct LogDamage {
    /// Error of one of the chunks.
    pub(crate) error: Error,
    /// Last sequence number of the part and of the damaged chunks directly after it. A lower bound if no later chunk is readable.
    pub(crate) last_seq: u64,
}

/// Encodes the object of a chunk.
pub(crate) fn encode_chunk(
    (backup, number, time_ms): (u64, u64, u64),
    chunk: &lsmx::LogChunk,
) -> Result<(Path, Bytes), Error> {
    let object = chunk_path(backup, number);
    let header = ChunkHeader {
        backup,
        number,
        first_seq: chunk.first_seq.0,
        last_seq: chunk.last_seq.0,
        time_ms,
        bytes: len_u64(chunk.bytes.len()),
        checksum: format!("{:016x}", xxh3(&chunk.bytes)),
    };
    let mut bytes = record::encode(&object, &header)?;
    bytes.extend_from_slice(&chunk.bytes);
    Ok((object, bytes.into()))
}

/// Reads and verifies a chunk. Returns its header and the bytes of the [`lsmx::LogChunk`].
///
/// # Errors
/// [`Error::Damaged`] if the object does not exist or is damaged.
pub(crate) async fn read_chunk(
    store: &dyn ObjectStore,
    backup: u64,
    number: u64,
) -> Result<(ChunkHeader, Bytes), Error> {
    let object = chunk_path(backup, number);
    let bytes = read_if_exists(store, &object).await?;
    let bytes = bytes.ok_or_else(|| Error::damaged(&object, "it does not exist"))?;
    let header = decode_header(&object, &bytes, backup, number)?;
    let chunk = bytes.slice(record::encoded_bytes(&bytes)..);
    if len_u64(chunk.len()) != header.bytes {
        return Err(Error::damaged(&object, format!("it has not {} bytes", header.bytes)));
    }
    if format!("{:016x}", xxh3(&chunk)) != header.checksum {
        return Err(Error::damaged(&object, "the checksum differs"));
    }
    Ok((header, chunk))
}

/// Reads the header of a chunk and checks the size of its object. Returns `None` if the chunk does not exist.
pub(crate) async fn read_header(
    store: &dyn ObjectStore,
    backup: u64,
    number: u64,
) -> Result<Option<ChunkHeader>, Error> {
    let object = chunk_path(backup, number);
    let options = GetOptions { range: Some((0..HEADER_BYTES_MAX).into()), ..GetOptions::default() };
    let read = match store.get_opts(&object, options).await {
        Ok(found) => {
            let object_bytes = found.meta.size;
            found.bytes().await.map(|bytes| (bytes, object_bytes))
        }
        Err(error) => Err(error),
    };
    let (bytes, object_bytes) = match read {
        Ok(read) => read,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(error) => {
            // Stores refuse each range of an empty object.
            let is_empty = store.head(&object).await.is_ok_and(|found| found.size == 0);
            return Err(match is_empty {
                true => Error::damaged(object, "it is empty"),
                false => Error::store("read", object)(error),
            });
        }
    };
    let header = decode_header(&object, &bytes, backup, number)?;
    let expected = len_u64(record::encoded_bytes(&bytes)).saturating_add(header.bytes);
    if object_bytes != expected {
        let reason = format!("it has {object_bytes} of {expected} bytes");
        return Err(Error::damaged(&object, reason));
    }
    Ok(Some(header))
}

fn decode_header(
    object: &Path,
    bytes: &[u8],
    backup: u64,
    number: u64,
) -> Result<ChunkHeader, Error> {
    let header: ChunkHeader = record::decode(object, bytes)?;
    if (header.backup, header.number) != (backup, number) {
        let (backup, number) = (header.backup, header.number);
        return Err(Error::damaged(object, format!("it is chunk {number} of the backup {backup}")));
    }
    if header.first_seq == 0 || header.first_seq > header.last_seq {
        return Err(Error::damaged(object, "its sequence numbers are not ascending"));
    }
    Ok(header)
}

/// Returns the archived log of a backup, or `None` if it has no chunk.
///
/// # Errors
/// [`Error::Damaged`] if the header of the last chunk is damaged, or if a listed chunk does not exist.
pub(crate) async fn archived_log(
    store: &dyn ObjectStore,
    backup: u64,
) -> Result<Option<ArchivedLog>, Error> {
    let mut last = match listed_chunks(store, backup).await?.last() {
        None => None,
        Some(&listed) => Some(read_existing_header(store, backup, listed).await?),
    };
    while let Some(next) =
        read_header(store, backup, last.as_ref().map_or(1, |last| last.number + 1)).await?
    {
        last = Some(next);
    }
    Ok(last.map(|last| last.archived_log()))
}

/// Returns the numbers of the listed chunks of a backup.
async fn listed_chunks(store: &dyn ObjectStore, backup: u64) -> Result<BTreeSet<u64>, Error> {
    let prefix = Path::from(format!("{LOG}/{backup:010}"));
    let listed =
        store.list(Some(&prefix)).try_fold(BTreeSet::new(), |mut listed, meta| async move {
            let number = meta.location.filename().and_then(|name| name.parse::<u64>().ok());
            listed.extend(number.filter(|number| *number > 0));
            Ok(listed)
        });
    listed.await.map_err(Error::store("list", prefix))
}

/// Returns the archived log of a backup. If the last chunk is damaged, returns the log up to the last chunk whose header is readable, and
/// the damage.
pub(crate) async fn readable_log(
    store: &dyn ObjectStore,
    backup: u64,
) -> Result<(Option<ArchivedLog>, Option<Error>), Error> {
    let damage = match archived_log(store, backup).await {
        Ok(archived) => return Ok((archived, None)),
        Err(damage @ Error::Damaged { .. }) => damage,
        Err(error) => return Err(error),
    };
    // If the listing is stale, the damaged chunk may be the next one.
    for number in listed_chunks(store, backup).await?.into_iter().rev() {
        match read_header(store, backup, number).await {
            Ok(Some(header)) => return Ok((Some(header.archived_log()), Some(damage))),
            Ok(None) | Err(Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((None, Some(damage)))
}

/// Reads the header of a chunk that exists, because a later chunk exists, or because it is listed.
pub(crate) async fn read_existing_header(
    store: &dyn ObjectStore,
    backup: u64,
    number: u64,
) -> Result<ChunkHeader, Error> {
    let header = read_header(store, backup, number).await?;
    header.ok_or_else(|| Error::damaged(chunk_path(backup, number), "it does not exist"))
}

/// Returns the part of an archived log up to a time, or `None` if the first chunk is later. Also returns the damage that the search has
/// found in the part or directly after it. The damaged chunks after the part may belong to it.
pub(crate) async fn archived_log_until(
    store: &dyn ObjectStore,
    backup: u64,
    log: ArchivedLog,
    time_ms: u64,
) -> Result<(Option<ArchivedLog>, Option<LogDamage>), Error> {
    let early = last_chunk_where(store, backup, log, |chunk| chunk.time_ms <= time_ms);
    early.await
}

/// Returns the part of an archived log up to a commit, which must be in it.
///
/// # Errors
/// [`Error::Damaged`] if the search has found a chunk whose header is damaged, and the commit may be in this chunk or in a later one.
pub(crate) async fn archived_log_through(
    store: &dyn ObjectStore,
    backup: u64,
    log: ArchivedLog,
    seq: u64,
) -> Result<ArchivedLog, Error> {
    let before = last_chunk_where(store, backup, log, |chunk| chunk.last_seq < seq);
    let (before, damage) = before.await?;
    if let Some(damage) = damage {
        return Err(damage.error);
    }
    let number = before.map_or(1, |before| before.chunks + 1);
    let header = read_existing_header(store, backup, number).await?;
    Ok(ArchivedLog { last_seq: seq, ..header.archived_log() })
}

/// Returns the archived log up to the last readable chunk for which a condition holds. It holds for a number of chunks at the start. Also
/// returns the damage that the search has found in this part or directly after it. The condition may hold for the damaged chunks
/// after the part.
async fn last_chunk_where(
    store: &dyn ObjectStore,
    backup: u64,
    log: ArchivedLog,
    holds: impl Fn(&ArchivedLog) -> bool,
) -> Result<(Option<ArchivedLog>, Option<LogDamage>), Error> {
    if holds(&log) {
        return Ok((Some(log), None));
    }
    // Either the condition does not hold for the chunk `end`, or the chunk is damaged. `last_seq` is then the last sequence number of
    // the damaged chunks that begin with it.
    let (mut found, mut end, mut last_seq) = (None::<ArchivedLog>, log.chunks, log.last_seq);
    let (mut damage_before_found, mut damage_at_end) = (None, None);
    loop {
        let number = found.map_or(0, |found| found.chunks);
        if end - number <= 1 {
            if let (None, Some(found)) = (&damage_at_end, found) {
                last_seq = found.last_seq;
            }
            let damage: Option<Error> = damage_before_found.or(damage_at_end);
            return Ok((found, damage.map(|error| LogDamage { error, last_seq })));
        }
        let middle = number + (end - number) / 2;
        // The chunk after a damaged one shows whether the condition holds for the damaged chunk.
        let (damage, chunk) = first_readable_header(store, backup, middle..=end).await?;
        match chunk.as_ref().map(ChunkHeader::archived_log) {
            Some(log) if holds(&log) => {
                found = Some(log);
                damage_before_found = damage_before_found.or(damage);
            }
            _ => {
                (end, damage_at_end) = (middle, damage);
                last_seq = chunk.map_or(last_seq, |chunk| chunk.first_seq - 1);
            }
        }
    }
}

/// Returns the damage of the first chunk of a range, if its header is damaged, and the header of the first readable chunk.
async fn first_readable_header(
    store: &dyn ObjectStore,
    backup: u64,
    numbers: RangeInclusive<u64>,
) -> Result<(Option<Error>, Option<ChunkHeader>), Error> {
    let mut damage = None;
    for number in numbers {
        match read_existing_header(store, backup, number).await {
            Ok(header) => return Ok((damage, Some(header))),
            Err(error @ Error::Damaged { .. }) => damage = damage.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Ok((damage, None))
}

/// Checks that a chunk follows the log up to `last_seq`, which is the last sequence number of the previous chunk.
pub(crate) fn check_follows(
    header: &ChunkHeader,
    info: &BackupInfo,
    last_seq: Option<u64>,
) -> Result<(), Error> {
    let is_next = match last_seq {
        Some(last_seq) => header.first_seq == last_seq + 1,
        None => info.last_seq.is_some_and(|last_seq| header.first_seq <= last_seq + 1),
    };
    match is_next {
        true => Ok(()),
        false => {
            let object = chunk_path(header.backup, header.number);
            let reason =
                format!("it begins at {}, and commits before it are missing", header.first_seq);
            Err(Error::damaged(object, reason))
        }
    }
}

pub(crate) fn chunk_path(backup: u64, number: u64) -> Path {
    Path::from(format!("{LOG}/{backup:010}/{number:010}"))
}

/// Returns the backup in the path of a chunk, or `None` if the path is not that of a chunk.
pub(crate) fn backup_of_chunk(object: &Path) -> Option<u64> {
    let mut parts = object.as_ref().split('/');
    (parts.next() == Some(LOG)).then(|| parts.next()?.parse().ok())?
}
