//! Uploads of the files of a backup.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{StreamExt, TryFutureExt, TryStreamExt, stream};
use lsmx::vfs::Vfs;
use lsmx_base::sync::{Arc, AtomicBool, Ordering};
use object_store::ObjectMeta;
use object_store::buffered::BufWriter;
use object_store::path::Path as ObjectPath;
use tokio::io::AsyncWriteExt;
use xxhash_rust::xxh3::Xxh3;

use crate::blocking::run_blocking;
use crate::catalog::{CatalogStore, Run};
use crate::error::Error;
use crate::manifest::{BackupFile, BackupManifest, run_of_object, run_prefix};
use crate::source_file::{SourceFile, read_part};
use crate::transfer::{TransferMeter, TransferOptions};

/// Maximum number of parts of one file that are uploaded at the same time.
const PARTS_IN_FLIGHT: usize = 2;

/// The uploads of one run.
pub(crate) struct RunUpload<'a> {
    catalog: &'a CatalogStore,
    run: &'a Run,
    vfs: Arc<dyn Vfs>,
    checkpoint: PathBuf,
    transfer: &'a TransferOptions,
    part_bytes: usize,
    /// Whether an upload has failed. The other uploads then end at their next part.
    has_failed: AtomicBool,
}

impl<'a> RunUpload<'a> {
    pub(crate) fn new(
        catalog: &'a CatalogStore,
        run: &'a Run,
        vfs: Arc<dyn Vfs>,
        checkpoint: PathBuf,
        transfer: &'a TransferOptions,
        part_bytes: usize,
    ) -> RunUpload<'a> {
        let has_failed = AtomicBool::new(false);
        RunUpload { catalog, run, vfs, checkpoint, transfer, part_bytes, has_failed }
    }

    /// Uploads the files whose contents the run does not find in the repository. Returns all files with their objects, and
    /// the number of uploaded bytes.
    pub(crate) async fn upload_missing(
        &self,
        files: Vec<SourceFile>,
    ) -> Result<(Vec<BackupFile>, u64), Error> {
        let existing = self.existing_objects().await?;
        let find = |file: &SourceFile| existing.get(&(file.content.clone(), file.bytes));
        let missing: Vec<_> = files.iter().filter(|file| find(file).is_none()).collect();
        let bytes = missing.iter().map(|file| file.bytes).sum();
        let concurrency = self.transfer.files_at_once();
        let meter = TransferMeter::new(self.transfer, missing.len() as u64, bytes);
        // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
        let uploads: Vec<_> = missing.iter().map(|file| self.upload(file, &meter)).collect();
        let uploads = stream::iter(uploads).buffer_unordered(concurrency);
        // After an error, the other uploads are not dropped, because they have to be aborted.
        let results: Vec<Result<(), Error>> = uploads.collect().await;
        results.into_iter().collect::<Result<(), Error>>()?;
        let with_object = |file: &SourceFile| BackupFile {
            name: file.name.clone(),
            bytes: file.bytes,
            checksum: format!("{:016x}", file.checksum),
            object: find(file).cloned().unwrap_or_else(|| self.object_path(file).to_string()),
        };
        Ok((files.iter().map(with_object).collect(), bytes))
    }

    /// Returns the existing objects of the base backup and of interrupted runs, by content and size. An object of the base that is missing or
    /// truncated is not found, so that this run uploads its contents again.
    async fn existing_objects(&self) -> Result<HashMap<(String, u64), String>, Error> {
        let (store, resumed) = (&self.catalog.store, &self.run.resumed);
        let mut of_base = HashSet::new();
        if let Some(base) = self.run.base {
            match BackupManifest::read(&**store, base).await {
                Ok(base) => of_base.extend(base.files.iter().map(BackupFile::object_path)),
                // A damaged backup must not prevent later ones. They upload all files again.
                Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let runs: BTreeSet<u64> =
            of_base.iter().filter_map(run_of_object).chain(resumed.iter().copied()).collect();
        let list = |run| {
            let prefix = run_prefix(run);
            let listed = store.list(Some(&prefix)).try_collect::<Vec<_>>();
            listed.map_err(Error::store("list", prefix))
        };
        // Collected, because a stream with a closure that borrows would make the future of the caller not `Send`.
        let listings: Vec<_> = runs.into_iter().map(list).collect();
        let listings = stream::iter(listings).buffer_unordered(self.transfer.files_at_once());
        let listed: Vec<ObjectMeta> = listings.try_concat().await?;
        // Other objects of the runs may be unused, so that a prune deletes them.
        let is_kept = |object: &ObjectPath| {
            of_base.contains(object)
                || run_of_object(object).is_some_and(|run| resumed.contains(&run))
        };
        let by_content = |meta: ObjectMeta| {
            let content = meta.location.filename().unwrap_or_default().to_owned();
            ((content, meta.size), meta.location.to_string())
        };
        Ok(listed.into_iter().filter(|meta| is_kept(&meta.location)).map(by_content).collect())
    }

    fn object_path(&self, file: &SourceFile) -> ObjectPath {
        run_prefix(self.run.id).join(file.content.as_str())
    }

    /// Uploads a file and compares its checksum. The object exists only if both succeed. If another upload has failed, the
    /// upload is aborted without an error.
    async fn upload(&self, file: &SourceFile, meter: &TransferMeter) -> Result<(), Error> {
        let object = self.object_path(file);
        let store = Arc::clone(&self.catalog.store);
        let mut writer = BufWriter::with_capacity(store, object.clone(), self.part_bytes)
            .with_max_concurrency(PARTS_IN_FLIGHT);
        let uploaded = match self.copy_parts(file, &object, &mut writer, meter).await {
            Ok(true) => {
                let finished = writer.shutdown().await.map(|()| meter.add_file());
                finished.map_err(|error| Error::store("write", &object)(from_io(error)))
            }
            stopped => {
                // Stores remove uploads that cannot be aborted by their own rules.
                let _ = writer.abort().await;
                stopped.map(|_| ())
            }
        };
        if uploaded.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        uploaded
    }

    /// Copies a file to the writer. Returns false if it stopped because another upload has failed.
    async fn copy_parts(
        &self,
        file: &SourceFile,
        object: &ObjectPath,
        writer: &mut BufWriter,
        meter: &TransferMeter,
    ) -> Result<bool, Error> {
        let (path, end) = (self.checkpoint.join(&file.name), file.bytes);
        let (vfs, part_bytes) = (Arc::clone(&self.vfs), self.part_bytes);
        let source = {
            let path = path.clone();
            run_blocking(move || vfs.open(&path).map_err(Error::io("open", &path))).await?
        };
        let mut hash = Xxh3::new();
        let mut offset = 0;
        while offset < end {
            if self.has_failed.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let (source, path) = (Arc::clone(&source), path.clone());
            let read = move || read_part(&*source, &path, offset, end, part_bytes);
            let part = run_blocking(read).await?;
            hash.update(&part);
            offset += part.len() as u64;
            let bytes = part.len() as u64;
            writer.put(Bytes::from(part)).await.map_err(Error::store("write", object))?;
            meter.add_bytes(bytes).await;
        }
        if hash.digest() != file.checksum {
            let reason = "its contents do not match its checksum".to_owned();
            return Err(Error::DamagedFile { path, reason });
        }
        Ok(true)
    }
}

/// Returns the error of a store that a writer has converted to an I/O error.
fn from_io(error: std::io::Error) -> object_store::Error {
    let source = error.into_inner().unwrap_or_else(|| "the write failed".into());
    match source.downcast::<object_store::Error>() {
        Ok(error) => *error,
        Err(source) => object_store::Error::Generic { store: "backup", source },
    }
}
