//! An open blob file: pointer → value.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::checksum::StreamingChecksum;
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
    Access, Descriptor, DescriptorPool, FileIdentity, FillCache, Source, with_scratch,
};
use crate::vfs::{File, Vfs, open_uncached};

/// Bytes of one read while the whole file is summed.
const CHUNK_BYTES: u64 = 256 << 10;

/// A blob file, open for reading. Shared by all readers; holds no lock.
#[derive(Debug)]
pub(crate) struct Blob {
    file: Arc<Descriptor>,
    path: PathBuf,
    record: BlobFileRecord,
    cache: Arc<BlockCache>,
    /// This opening's number in the cache.
    cache_id: u64,
}

impl Blob {
    /// Opens the blob file of a keyspace that the manifest names, with a descriptor that the pool may
    /// close and open again.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened or read (`NotFound` if it is missing),
    /// [`Error::Corrupt`] when it is damaged or another file than the manifest says.
    pub(crate) fn open_in(
        pool: &Arc<DescriptorPool>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<Blob> {
        let file = Descriptor::pooled(pool, path, FileIdentity::blob(record));
        file.open_first()?;
        Blob::checked(file, path, keyspace, record, cache)
    }

    /// As [`Blob::open_in`], with a descriptor of its own.
    ///
    /// # Errors
    /// As [`Blob::open_in`].
    pub(crate) fn open(
        vfs: &dyn Vfs,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<Blob> {
        Blob::open_staying(vfs.open(path), path, keyspace, record, cache)
    }

    /// As [`Blob::open`]; reads come from the device, see [`open_uncached`].
    ///
    /// # Errors
    /// As [`Blob::open_in`].
    pub(crate) fn open_from_device(
        vfs: &dyn Vfs,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
    ) -> Result<Blob> {
        Blob::open_staying(open_uncached(vfs, path), path, keyspace, record, &BlockCache::new(0))
    }

    fn open_staying(
        opened: io::Result<Arc<dyn File>>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<Blob> {
        let file = opened.map_err(|error| Error::io("open", path, error))?;
        let file = Arc::new(Descriptor::staying(file, path, FileIdentity::blob(record)));
        Blob::checked(file, path, keyspace, record, cache)
    }

    fn checked(
        file: Arc<Descriptor>,
        path: &Path,
        keyspace: u32,
        record: &BlobFileRecord,
        cache: &Arc<BlockCache>,
    ) -> Result<Blob> {
        let found = file.len()?;
        if found != record.bytes || found < len_u64(BLOB_HEADER_BYTES + BLOB_TRAILER_BYTES) {
            let what = "blob file size";
            let wrong = Malformed::Identity { what, expected: record.bytes, found };
            return Err(Error::malformed(wrong, path, 0));
        }
        let header = file.read_exact(0, len_u64(BLOB_HEADER_BYTES))?;
        cache.count_miss(BlockKind::Open);
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
        let (path, cache_id) = (path.to_owned(), cache.next_table_number());
        Ok(Blob { file, path, record: *record, cache: Arc::clone(cache), cache_id })
    }

    /// What the manifest says of it.
    pub(crate) fn record(&self) -> &BlobFileRecord {
        &self.record
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, if it is not open, and keeps it open until this goes.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn keep_open(&self) -> Result<()> {
        self.file.keep_open()
    }

    /// The value of an entry: from the cache, or from the file.
    ///
    /// # Errors
    /// When the record cannot be read, is damaged or another entry's; [`Error::WouldBlock`].
    pub(crate) fn value(
        &self,
        (key, seq): (&[u8], SeqNo),
        pointer: &ValuePointer,
        access: &mut Access,
    ) -> Result<Slice> {
        if let Some(value) = self.cache.get_data_block(self.cache_id, pointer.offset) {
            access.hit(&self.cache, BlockKind::Blob);
            return self.cached(pointer, value);
        }
        let fill = access.may_read_blob()?;
        let bytes = self.checked_bytes(pointer)?;
        let value = with_scratch(bytes, |stored| {
            self.file.reading(fill, |source| {
                match source {
                    Source::Usual => self.fill(pointer.offset, stored, fill)?,
                    Source::Device => self.file.fill_from_device(pointer.offset, stored)?,
                }
                self.open_record(stored, (key, seq), pointer, fill)
            })
        })?;
        if fill == FillCache::Yes {
            self.cache.insert_data_block(self.cache_id, pointer.offset, &value);
        }
        Ok(Slice::from_block(value))
    }

    /// The value if it is in memory; does not count as a use.
    ///
    /// # Errors
    /// As [`Blob::value`].
    pub(crate) fn peek(
        &self,
        pointer: &ValuePointer,
        access: &mut Access,
    ) -> Result<Option<Slice>> {
        let Some(value) = self.cache.peek_data_block(self.cache_id, pointer.offset) else {
            return Ok(None);
        };
        access.hit(&self.cache, BlockKind::Blob);
        self.cached(pointer, value).map(Some)
    }

    /// The value if it is in memory; if it is not, its record lies within the file.
    ///
    /// # Errors
    /// As [`Blob::value`], of what reads nothing.
    pub(crate) fn look(
        &self,
        pointer: &ValuePointer,
        access: &mut Access,
    ) -> Result<Option<Slice>> {
        let value = self.peek(pointer, access)?;
        if value.is_none() {
            self.checked_bytes(pointer)?;
        }
        Ok(value)
    }

    /// Whether the value is in memory.
    pub(crate) fn is_resident(&self, pointer: &ValuePointer) -> bool {
        self.cache.peek_data_block(self.cache_id, pointer.offset).is_some()
    }

    fn cached(&self, pointer: &ValuePointer, value: BlockBytes) -> Result<Slice> {
        let found = len_u64(value.len());
        if found != pointer.value_bytes {
            let (what, expected) = ("bytes of a value", "what its pointer says");
            let wrong = Malformed::Field { what, found, expected };
            return Err(Error::malformed(wrong, &self.path, pointer.offset));
        }
        Ok(Slice::from_block(value))
    }

    /// The bytes of a record, once it is sure that there may be so many, before memory is taken for it.
    pub(crate) fn checked_bytes(&self, pointer: &ValuePointer) -> Result<usize> {
        let at = |what: Malformed| Error::malformed(what, &self.path, pointer.offset);
        pointer.check(self.record.bytes).map_err(at)?;
        to_usize("blob record", pointer.bytes).map_err(at)
    }

    /// Reads bytes of the file.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8], fill: FillCache) -> Result<()> {
        match fill {
            FillCache::Job => self.file.fill_for_job(offset, buffer),
            _ => self.file.fill(offset, buffer),
        }
    }

    /// Runs `read` as [`Descriptor::reading`] does.
    ///
    /// # Errors
    /// Those of the last run.
    pub(crate) fn reading<R>(
        &self,
        fill: FillCache,
        read: impl FnMut(Source) -> Result<R>,
    ) -> Result<R> {
        self.file.reading(fill, read)
    }

    /// Reads a record from the device and checks it.
    ///
    /// # Errors
    /// As [`Blob::value`].
    pub(crate) fn record_from_device(
        &self,
        entry: (&[u8], SeqNo),
        pointer: &ValuePointer,
        fill: FillCache,
    ) -> Result<BlockBytes> {
        let stored = self.file.read_exact_from(Source::Device, pointer.offset, pointer.bytes)?;
        self.open_record(&stored, entry, pointer, fill)
    }

    /// Says that a record is about to be read; returns whether the file system reads it ahead.
    ///
    /// # Errors
    /// When the file cannot be opened again.
    pub(crate) fn will_need(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.file.will_need(offset, bytes)
    }

    /// Checks the bytes of a record that was read, and copies its value.
    pub(crate) fn open_record(
        &self,
        stored: &[u8],
        (key, seq): (&[u8], SeqNo),
        pointer: &ValuePointer,
        fill: FillCache,
    ) -> Result<BlockBytes> {
        if fill.counts() {
            self.cache.count_miss(BlockKind::Blob);
        }
        let at = |what: Malformed| Error::malformed(what, &self.path, pointer.offset);
        let record = BlobRecord::decode(stored, self.record.uid, pointer.offset).map_err(at)?;
        record.check(key, seq).map_err(at)?;
        let value = record.value(pointer.value_bytes).map_err(at)?;
        // Jobs let their values go again.
        let live = (fill != FillCache::Job).then(|| self.cache.live_blocks());
        Ok(BlockBytes::copy_counted(&value, live))
    }

    pub(crate) fn cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// Reads the whole file past the cache and checks its checksum, every record, the counts.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place; or when the file cannot be read.
    pub(crate) fn verify(&self) -> Result<()> {
        let mut sum = StreamingChecksum::new(0);
        let mut offset = 0;
        while offset < self.record.bytes {
            let bytes = CHUNK_BYTES.min(self.record.bytes - offset);
            sum.update(&self.file.read_exact(offset, bytes)?);
            offset += bytes;
        }
        let trailer_at = self.record.bytes - len_u64(BLOB_TRAILER_BYTES);
        let (mut records, mut value_bytes) = (0, 0);
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
            records += 1;
            value_bytes += record.value_bytes().map_err(at)?;
            offset += bytes;
        }
        let at = |what: Malformed| Error::malformed(what, &self.path, trailer_at);
        let trailer = self.file.read_exact(trailer_at, len_u64(BLOB_TRAILER_BYTES))?;
        let trailer = BlobTrailer::decode(&trailer, self.record.uid, trailer_at).map_err(at)?;
        for (what, found, said, named) in [
            ("records of the trailer", trailer.records, records, "as many as there are"),
            ("value bytes of the trailer", trailer.value_bytes, value_bytes, "those of all values"),
            ("records of the file", records, self.record.records, "what the manifest says"),
            ("value bytes", value_bytes, self.record.value_bytes, "what the manifest says"),
        ] {
            if found != said {
                return Err(at(Malformed::Field { what, found, expected: named }));
            }
        }
        let (expected, found) = (self.record.checksum, sum.digest());
        if expected != found {
            return Err(Error::malformed(Malformed::Checksum { expected, found }, &self.path, 0));
        }
        Ok(())
    }
}
