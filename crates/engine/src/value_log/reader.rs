//! Reader of a blob file: returns the value for a value pointer.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::{BlockBytes, Slice};
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::blob::{
    BLOB_HEADER_BYTES, BLOB_RECORD_BYTES_MIN, BLOB_TRAILER_BYTES, BlobHeader, BlobRecord,
    BlobTrailer, ValuePointer, record_bytes,
};
use crate::format::version_edit::BlobFileRecord;
use crate::table::{
    CachedFile, FdCache, FileIdentity, ReadContext, ReadPurpose, ReadSource, with_read_buffer,
};
use crate::vfs::{File, Vfs};

/// A blob file that is open for reading. Several threads can use one reader concurrently without a lock.
#[derive(Debug)]
pub struct BlobReader {
    file: Arc<CachedFile>,
    path: PathBuf,
    record: BlobFileRecord,
    cache: Arc<BlockCache>,
    /// Id of this reader in the keys of the block cache.
    cache_id: u64,
}

impl BlobReader {
    /// Opens a blob file. The descriptor cache may close the file descriptor and reopen the file later.
    ///
    /// # Errors
    /// - [`Error::Io`] if the file cannot be opened or read, with kind `NotFound` if the file is missing.
    /// - [`Error::Corrupt`] if the file is corrupt or does not match its manifest record.
    pub(crate) fn open_cached(
        fd_cache: &Arc<FdCache>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<BlobReader> {
        let identity = FileIdentity::of_blob_file(record.bytes, record.uid);
        let file = CachedFile::new(fd_cache, path, identity);
        file.open_initially()?;
        BlobReader::from_file(file, path, keyspace, record, cache)
    }

    /// Opens a blob file. The file descriptor stays open as long as the reader exists.
    ///
    /// # Errors
    /// The same errors as [`BlobReader::open_cached`].
    pub fn open(
        vfs: &dyn Vfs,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<BlobReader> {
        BlobReader::open_pinned(vfs.open(path), path, keyspace, record, cache)
    }

    /// Opens a blob file whose reads bypass the page cache, see [`Vfs::open_uncached`].
    pub(crate) fn open_from_device(
        vfs: &dyn Vfs,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
    ) -> Result<BlobReader> {
        let (opened, cache) = (vfs.open_uncached(path), BlockCache::new(0));
        BlobReader::open_pinned(opened, path, keyspace, record, &cache)
    }

    fn open_pinned(
        opened: io::Result<Arc<dyn File>>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<BlobReader> {
        let file = opened.map_err(|error| Error::io("open", path, error))?;
        let identity = FileIdentity::of_blob_file(record.bytes, record.uid);
        let file = Arc::new(CachedFile::new_pinned(file, path, identity));
        BlobReader::from_file(file, path, keyspace, record, cache)
    }

    /// Creates a reader of an open file. Checks the size and the header of the file.
    fn from_file(
        file: Arc<CachedFile>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<BlobReader> {
        let found = file.len()?;
        if found != record.bytes || found < len_u64(BLOB_HEADER_BYTES + BLOB_TRAILER_BYTES) {
            let what = "blob file size";
            let wrong = Malformed::Identity { what, expected: record.bytes, found };
            return Err(Error::malformed(wrong, path, 0));
        }
        let header = file.read_exact(0, len_u64(BLOB_HEADER_BYTES))?;
        cache.counters.add_miss(BlockKind::Open);
        let header = BlobHeader::decode(&header).map_err(|what| Error::malformed(what, path, 0))?;
        for (what, expected, found) in [
            ("blob uid", record.uid, header.uid),
            ("number of a blob file", record.id.0, header.number),
            ("keyspace of a blob file", u64::from(keyspace), u64::from(header.keyspace)),
        ] {
            if expected != found {
                return Err(Error::malformed(
                    Malformed::Identity { what, expected, found },
                    path,
                    0,
                ));
            }
        }
        let (path, cache_id) = (path.to_owned(), cache.next_cache_id());
        Ok(BlobReader { file, path, record: *record, cache: Arc::clone(cache), cache_id })
    }

    pub(crate) fn manifest_record(&self) -> &BlobFileRecord {
        &self.record
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file if the descriptor cache has closed it. The file then stays open as long as this reader exists.
    pub(crate) fn keep_open(&self) -> Result<()> {
        self.file.keep_open()
    }

    /// Returns the value of an entry from the block cache or from the file. `entry` is the user key and the sequence
    /// number of the entry.
    ///
    /// # Errors
    /// - [`Error::Corrupt`] if the record is corrupt or belongs to another entry.
    /// - [`Error::WouldBlock`] if the value is not cached and `context` does not allow reads from the file.
    /// - [`Error::Io`] if the record cannot be read.
    pub fn read_value(
        &self,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        context: &mut ReadContext,
    ) -> Result<Slice> {
        if let Some(value) = self.cache.get_data_block(self.cache_id, pointer.offset) {
            context.record_hit(&self.cache, BlockKind::Blob);
            return self.check_cached_value(pointer, value);
        }
        let purpose = context.admit_blob_read()?;
        let bytes = self.check_pointer(pointer)?;
        let value = with_read_buffer(bytes, |stored| {
            self.file.read_with_retry(purpose, |source| {
                match source {
                    ReadSource::Cached => self.read_into(pointer.offset, stored, purpose)?,
                    ReadSource::Device => {
                        self.file.read_from_source(source, pointer.offset, stored)?
                    }
                }
                self.decode_record(stored, entry, pointer, purpose)
            })
        })?;
        if purpose == ReadPurpose::Lookup {
            self.cache.insert_data_block(self.cache_id, pointer.offset, &value);
        }
        Ok(Slice::from_block(value))
    }

    /// Returns the value if the block cache contains it, or `None`. Does not mark the value as used in the cache.
    /// Before `None` is returned, checks that the record is inside the file.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the pointer is invalid.
    pub(crate) fn peek_value(
        &self,
        pointer: &ValuePointer,
        context: &mut ReadContext,
    ) -> Result<Option<Slice>> {
        let Some(value) = self.cache.peek_data_block(self.cache_id, pointer.offset) else {
            return self.check_pointer(pointer).map(|_| None);
        };
        context.record_hit(&self.cache, BlockKind::Blob);
        self.check_cached_value(pointer, value).map(Some)
    }

    /// Returns whether the block cache contains the value.
    pub(crate) fn is_resident(&self, pointer: &ValuePointer) -> bool {
        self.cache.peek_data_block(self.cache_id, pointer.offset).is_some()
    }

    fn check_cached_value(&self, pointer: &ValuePointer, value: BlockBytes) -> Result<Slice> {
        let found = len_u64(value.len());
        if found != pointer.value_bytes {
            let (what, expected) = ("bytes of a value", "what its pointer says");
            let wrong = Malformed::Field { what, found, expected };
            return Err(Error::malformed(wrong, &self.path, pointer.offset));
        }
        Ok(Slice::from_block(value))
    }

    /// Checks that a record is inside the file. Returns the size of the record in bytes. Without this check, a corrupt
    /// pointer could cause a large allocation.
    pub(super) fn check_pointer(&self, pointer: &ValuePointer) -> Result<usize> {
        let at = |what: Malformed| Error::malformed(what, &self.path, pointer.offset);
        pointer.check_bounds(self.record.bytes).map_err(at)?;
        to_usize("blob record", pointer.bytes).map_err(at)
    }

    /// Fills the buffer with the bytes at `offset`.
    pub(super) fn read_into(
        &self,
        offset: u64,
        buffer: &mut [u8],
        purpose: ReadPurpose,
    ) -> Result<()> {
        self.file.read_for_purpose(purpose, offset, buffer)
    }

    /// Calls `read`. If a background job finds the bytes corrupt, calls `read` once more with [`ReadSource::Device`],
    /// see [`CachedFile::read_with_retry`].
    pub(super) fn read_with_retry<R>(
        &self,
        purpose: ReadPurpose,
        read: impl FnMut(ReadSource) -> Result<R>,
    ) -> Result<R> {
        self.file.read_with_retry(purpose, read)
    }

    /// Reads a record from the device and returns its value.
    pub(super) fn read_value_from_device(
        &self,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        purpose: ReadPurpose,
    ) -> Result<Slice> {
        self.check_pointer(pointer)?;
        let (source, offset) = (ReadSource::Device, pointer.offset);
        let stored = self.file.read_exact_from(source, offset, pointer.bytes)?;
        self.decode_record(&stored, entry, pointer, purpose).map(Slice::from_block)
    }

    /// Hints to the file system that a range will be read. Returns whether the file system prefetches the range or has
    /// it in memory.
    pub(crate) fn will_need(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.will_need(offset, bytes)
    }

    /// Decodes the stored bytes of a record, checks that the record belongs to the entry, and returns a copy of the
    /// value.
    pub(super) fn decode_record(
        &self,
        stored: &[u8],
        (key, seq): (&[u8], SeqNo),
        pointer: &ValuePointer,
        purpose: ReadPurpose,
    ) -> Result<BlockBytes> {
        if purpose.is_counted_in_statistics() {
            self.cache.counters.add_miss(BlockKind::Blob);
        }
        let at = |what: Malformed| Error::malformed(what, &self.path, pointer.offset);
        let record = BlobRecord::decode(stored, self.record.uid, pointer.offset).map_err(at)?;
        record.check_entry(key, seq).map_err(at)?;
        let value = record.value(pointer.value_bytes).map_err(at)?;
        // The cache counts the bytes of values that readers hold. Values of background jobs are not counted, because
        // jobs free their values soon.
        let live = (purpose != ReadPurpose::Job).then(|| self.cache.live_block_counter());
        Ok(BlockBytes::copy_and_count(&value, live))
    }

    pub(super) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Reads all records in file order without the block cache. Calls `visit` with the offset of each record.
    ///
    /// # Errors
    /// Returns the first invalid record or the first error of `visit`, with the offset of the record. Also fails if a
    /// read fails.
    pub(crate) fn for_each_record(
        &self,
        visit: &mut dyn FnMut(u64, &BlobRecord<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<()> {
        let trailer_at = self.record.bytes - len_u64(BLOB_TRAILER_BYTES);
        let mut offset = len_u64(BLOB_HEADER_BYTES);
        while offset < trailer_at {
            let at = |what: Malformed| Error::malformed(what, &self.path, offset);
            let left = trailer_at - offset;
            let head = self.file.read_exact(offset, left.min(len_u64(BLOB_RECORD_BYTES_MIN)))?;
            let bytes = record_bytes(&head).map_err(at)?;
            if bytes > left {
                let (what, needed, found) = ("blob record", bytes, left);
                return Err(at(Malformed::Truncated { what, needed, found }));
            }
            let stored = self.file.read_exact(offset, bytes)?;
            let record = BlobRecord::decode(&stored, self.record.uid, offset).map_err(at)?;
            visit(offset, &record).map_err(at)?;
            offset += bytes;
        }
        Ok(())
    }

    /// Reads the whole file without the block cache. Checks all records, the trailer, the manifest record and the
    /// checksum of the file.
    ///
    /// # Errors
    /// Returns the first inconsistency with its offset, or the error of a read.
    pub fn verify(&self) -> Result<()> {
        let checksum = self.file.compute_checksum(self.record.bytes)?;
        let trailer_at = self.record.bytes - len_u64(BLOB_TRAILER_BYTES);
        let (mut records, mut value_bytes) = (0, 0);
        self.for_each_record(&mut |_, record| {
            records += 1;
            value_bytes += record.value_bytes()?;
            Ok(())
        })?;
        let at = |what: Malformed| Error::malformed(what, &self.path, trailer_at);
        let trailer = self.file.read_exact(trailer_at, len_u64(BLOB_TRAILER_BYTES))?;
        let trailer = BlobTrailer::decode(&trailer, self.record.uid, trailer_at).map_err(at)?;
        let of_manifest = "what the manifest says";
        for (what, found, counted, expected) in [
            ("records of the trailer", trailer.records, records, "the number of records"),
            ("value bytes of the trailer", trailer.value_bytes, value_bytes, "their value bytes"),
            ("records of the file", records, self.record.records, of_manifest),
            ("value bytes", value_bytes, self.record.value_bytes, of_manifest),
        ] {
            if found != counted {
                return Err(at(Malformed::Field { what, found, expected }));
            }
        }
        if checksum != self.record.checksum {
            let (expected, found) = (self.record.checksum, checksum);
            return Err(Error::malformed(Malformed::Checksum { expected, found }, &self.path, 0));
        }
        Ok(())
    }
}
