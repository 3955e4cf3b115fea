//! A file system that contains the files of one backup, for read-only databases.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bytes::Bytes;
use lsmx::vfs::{File, LockGuard, Vfs};
use lsmx::{Db, Options};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use moka::sync::Cache;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;

use crate::blocking::run_blocking;
use crate::error::Error;
use crate::manifest::{BackupFile, BackupManifest};

/// Size in bytes of the parts of tables and blob files, which are read at random offsets.
const RANDOM_PART_BYTES: u64 = 64 << 10;
/// Size in bytes of the parts of the log and the manifest, which an open reads from start to end.
const SEQUENTIAL_PART_BYTES: u64 = 1 << 20;

/// Opens a backup read-only.
pub(crate) async fn open(
    store: Arc<dyn ObjectStore>,
    id: u64,
    cache_bytes: u64,
    options: Options,
) -> Result<Db, Error> {
    let manifest = BackupManifest::read(&*store, id).await?;
    run_blocking(move || {
        // The name appears in errors.
        let dir = PathBuf::from(format!("backup-{id}"));
        let parts = PartCache::new(store, cache_bytes).map_err(Error::io("start", &dir))?;
        let vfs = BackupVfs { files: manifest.files, parts: Arc::new(parts) };
        Ok(Db::open(&dir, options.read_only(true).vfs(Arc::new(vfs)))?)
    })
    .await
}

/// Reads parts of objects and keeps them in memory.
struct PartCache {
    store: Arc<dyn ObjectStore>,
    parts: Cache<(ObjectPath, u64), Bytes>,
    /// Runtime for the requests to the object store. It is separate from the runtime of the application, because a read blocks
    /// its thread until the request ends. The destructor takes it.
    runtime: Option<Runtime>,
}

impl PartCache {
    fn new(store: Arc<dyn ObjectStore>, cache_bytes: u64) -> io::Result<PartCache> {
        let parts = Cache::builder()
            .max_capacity(cache_bytes)
            .weigher(|_, part: &Bytes| u32::try_from(part.len()).unwrap_or(u32::MAX))
            .build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lsmx-backup")
            .enable_all()
            .build()?;
        Ok(PartCache { store, parts, runtime: Some(runtime) })
    }

    /// Returns the part of an object that starts at `range.start`. Concurrent calls for one part make one request.
    fn part(&self, object: &ObjectPath, range: Range<u64>) -> io::Result<Bytes> {
        let key = (object.clone(), range.start);
        let entry = self.parts.entry(key).or_try_insert_with(|| self.read(object, range));
        let entry = entry.map_err(|error| io::Error::new(error.kind(), error))?;
        if entry.is_fresh() {
            // The cache would evict only after 64 insertions, and exceed its size until then.
            self.parts.run_pending_tasks();
        }
        Ok(entry.into_value())
    }

    fn read(&self, object: &ObjectPath, range: Range<u64>) -> io::Result<Bytes> {
        let Some(runtime) = &self.runtime else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let (store, object) = (Arc::clone(&self.store), object.clone());
        let (sender, receiver) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            let bytes = range.end - range.start;
            let read = match store.get_range(&object, range).await {
                Ok(part) if part.len() as u64 == bytes => Ok(part),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(object_store::Error::NotFound { source, .. }) => {
                    Err(io::Error::new(io::ErrorKind::NotFound, source))
                }
                Err(error) => Err(io::Error::other(error)),
            };
            // The receiver waits for the result.
            let _ = sender.send(read);
        });
        receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

impl Drop for PartCache {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A task may drop the last handle of the database. A wait for the runtime would panic there.
            runtime.shutdown_background();
        }
    }
}

/// A read-only file system whose files are those of a backup. It ignores the directories in paths.
struct BackupVfs {
    files: Vec<BackupFile>,
    parts: Arc<PartCache>,
}

impl fmt::Debug for BackupVfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupVfs").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl BackupVfs {
    fn find(&self, path: &Path) -> Option<&BackupFile> {
        let name = path.file_name()?.to_str()?;
        self.files.iter().find(|file| file.name == name)
    }
}

fn read_only_error<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Vfs for BackupVfs {
    fn create(&self, _path: &Path) -> io::Result<Arc<dyn File>> {
        read_only_error()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = self.find(path).ok_or(io::ErrorKind::NotFound)?;
        let part_bytes = match FileName::parse(&file.name) {
            Some(FileName::Table(_) | FileName::Blob(_)) => RANDOM_PART_BYTES,
            _ => SEQUENTIAL_PART_BYTES,
        };
        let (object, bytes) = (file.object_path(), file.bytes);
        Ok(Arc::new(ObjectFile { object, bytes, part_bytes, parts: Arc::clone(&self.parts) }))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only_error()
    }

    fn hard_link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only_error()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        read_only_error()
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        read_only_error()
    }

    fn list(&self, _path: &Path) -> io::Result<Vec<String>> {
        let mut names: Vec<_> = self.files.iter().map(|file| file.name.clone()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.find(path).is_some())
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        read_only_error()
    }

    fn lock(&self, _path: &Path) -> io::Result<Box<dyn LockGuard>> {
        read_only_error()
    }

    fn lock_shared(&self, _path: &Path) -> io::Result<Box<dyn LockGuard>> {
        // The directory has no lock file, as in a copy of a database.
        Err(io::ErrorKind::NotFound.into())
    }
}

/// A file in an object.
struct ObjectFile {
    object: ObjectPath,
    bytes: u64,
    part_bytes: u64,
    parts: Arc<PartCache>,
}

impl fmt::Debug for ObjectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFile").field("object", &self.object).finish_non_exhaustive()
    }
}

impl File for ObjectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            if at >= self.bytes {
                break;
            }
            let start = at - at % self.part_bytes;
            let part =
                self.parts.part(&self.object, start..self.bytes.min(start + self.part_bytes))?;
            // Both differences are smaller than a part.
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let source = part.get(from..).unwrap_or_default();
            let copied = source.len().min(buffer.len() - filled);
            buffer[filled..filled + copied].copy_from_slice(&source[..copied]);
            filled += copied;
        }
        Ok(filled)
    }

    fn append(&self, _bytes: &[u8]) -> io::Result<()> {
        read_only_error()
    }

    fn sync(&self) -> io::Result<()> {
        read_only_error()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    /// The cache of 1 MiB contained up to 64 parts.
    #[test]
    fn cache_never_exceeds_its_size() {
        const PARTS: u64 = 100;
        let store = Arc::new(InMemory::new());
        let object = ObjectPath::from("object");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = Bytes::from(vec![1; usize::try_from(PARTS * RANDOM_PART_BYTES).unwrap()]);
        runtime.block_on(store.put(&object, bytes.into())).unwrap();
        for cache_bytes in [1, RANDOM_PART_BYTES, 1 << 20] {
            let cache = PartCache::new(store.clone(), cache_bytes).unwrap();
            let mut largest = 0;
            for start in (0..PARTS).chain(0..PARTS).map(|number| number * RANDOM_PART_BYTES) {
                let part = cache.part(&object, start..start + RANDOM_PART_BYTES).unwrap();
                assert_eq!(part.len() as u64, RANDOM_PART_BYTES);
                let cached: u64 = cache.parts.iter().map(|(_, part)| part.len() as u64).sum();
                assert!(cached <= cache_bytes, "{cached} of {cache_bytes} bytes");
                largest = largest.max(cached);
            }
            assert_eq!(largest, cache_bytes / RANDOM_PART_BYTES * RANDOM_PART_BYTES);
        }
    }
}
