//! What becomes of the values that a job writes: into the table, or into blob files beside it.
//!
//! - A value from the threshold on goes to the blob file at hand, and the table gets a pointer.
//! - A pointer goes through untouched, and the table counts it among its references.
//! - Unless the job is to empty that blob file, or brings its values together with their neighbours
//!   (`gather.rs`), or values are no longer kept apart: then the value is read, and written as if it had come as one.
//!
//! A blob file ends at the latest with the table that it began with, so that both come to be together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::error::Result;
use crate::format::blob::{BlobHeader, ValuePointer};
use crate::jobs::value_log::relocate::Gathering;
use crate::options::value_separation::ValueSeparation;
use crate::state::TableSpace;
use crate::table::{Access, Compression, FillCache};
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::tree::version::{BlobFile, BlobSet, BlobUse};
use crate::value_log::{BlobScan, BlobWriter};
use crate::vfs::Vfs;

/// The blob files that a job may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueSource {
    /// Those that its inputs point into.
    pub(crate) blobs: Arc<BlobSet>,
    /// Of these the ones that it is to empty.
    pub(crate) victims: Arc<BTreeSet<FileId>>,
    /// Those whose values it may copy to have them beside their neighbours.
    pub(crate) gatherable: Arc<BTreeSet<FileId>>,
    /// Those that cannot be read: pointers into them are copied as they are.
    pub(crate) quarantined: Arc<BTreeSet<FileId>>,
}

/// An entry as it goes into the table.
pub(crate) enum Placed {
    /// As it came.
    AsIs,
    /// With a pointer, which stands in [`Values::pointer`].
    Pointer,
    /// With this value, though it came as a pointer.
    Value(Slice),
}

/// The values of one job, or of one part of it.
#[derive(Debug)]
pub(crate) struct Values {
    separation: Option<ValueSeparation>,
    compression: Compression,
    keyspace: u32,
    source: ValueSource,
    /// Which values of other files are copied.
    gathering: Option<Gathering>,
    scan: BlobScan,
    writer: Option<BlobWriter>,
    /// Finished blob files of the table at hand.
    finished: Vec<Arc<BlobFile>>,
    /// What the table at hand references: bytes and records.
    uses: BTreeMap<FileId, (u64, u64)>,
    pointer: Vec<u8>,
    /// Values that were read to be written elsewhere.
    moved_bytes: u64,
    /// The same, of those that were brought together.
    gathered_bytes: u64,
}

impl Values {
    /// None yet, for tables of this level.
    pub(crate) fn new(tree: &Tree, level: u8, source: ValueSource) -> Values {
        let options = &tree.settings().options;
        Values {
            separation: options.value_separation,
            compression: options.compression_of(level),
            keyspace: tree.id,
            source,
            gathering: None,
            scan: BlobScan::default(),
            writer: None,
            finished: Vec::new(),
            uses: BTreeMap::new(),
            pointer: Vec::new(),
            moved_bytes: 0,
            gathered_bytes: 0,
        }
    }

    /// Lets pointers through that point into these.
    pub(crate) fn read_from(&mut self, source: ValueSource) {
        let gathering = self.separation.filter(|_| !source.gatherable.is_empty());
        self.gathering = gathering.map(|separation| {
            Gathering::new(separation.scan_read_bytes, Arc::clone(&source.gatherable))
        });
        self.source = source;
    }

    /// The pointer that was placed last.
    pub(crate) fn pointer(&self) -> &[u8] {
        &self.pointer
    }

    /// Finds the place of an entry's value. New files are noted in `paths` before they are made.
    ///
    /// # Errors
    /// When a value cannot be read, or a blob file not be written.
    pub(crate) fn place(
        &mut self,
        (space, vfs): (&TableSpace, &dyn Vfs),
        paths: &mut Vec<PathBuf>,
        key: InternalKey<'_>,
        value: &[u8],
    ) -> Result<Placed> {
        match key.kind {
            EntryKind::Put => {
                if !self.goes_apart(value) {
                    return Ok(Placed::AsIs);
                }
                self.write((space, vfs), paths, key, value)?;
                Ok(Placed::Pointer)
            }
            EntryKind::ValuePointer => {
                let (file, pointer) = self.source.blobs.locate(value)?;
                let id = file.record().id;
                if self.source.quarantined.contains(&id) {
                    self.count(id, &pointer);
                    return Ok(Placed::AsIs);
                }
                let stays = self.separation.is_some() && !self.source.victims.contains(&id);
                let gathering = self.gathering.as_mut();
                let gathered = gathering.is_some_and(|it| it.takes(id, pointer.bytes));
                if stays && !gathered {
                    self.count(id, &pointer);
                    return Ok(Placed::AsIs);
                }
                let entry = (key.user_key, key.seq);
                let mut access = Access::of(FillCache::Job);
                let value = match self.scan.value(file.blob(), entry, &pointer, &mut access) {
                    // It is nobody's need that it is copied: who asks for it gets the error.
                    Err(_) if stays => {
                        self.count(id, &pointer);
                        return Ok(Placed::AsIs);
                    }
                    read => read?,
                };
                let bytes = if stays { &mut self.gathered_bytes } else { &mut self.moved_bytes };
                *bytes += len_u64(value.len());
                if self.goes_apart(&value) {
                    self.write((space, vfs), paths, key, &value)?;
                    return Ok(Placed::Pointer);
                }
                Ok(Placed::Value(value))
            }
            EntryKind::Delete | EntryKind::Merge => Ok(Placed::AsIs),
        }
    }

    fn goes_apart(&self, value: &[u8]) -> bool {
        self.separation.is_some_and(|separation| len_u64(value.len()) >= separation.threshold_bytes)
    }

    fn count(&mut self, id: FileId, pointer: &ValuePointer) {
        let (bytes, records) = self.uses.entry(id).or_default();
        *bytes += pointer.bytes;
        *records += 1;
    }

    fn write(
        &mut self,
        (space, vfs): (&TableSpace, &dyn Vfs),
        paths: &mut Vec<PathBuf>,
        key: InternalKey<'_>,
        value: &[u8],
    ) -> Result<()> {
        let full = self.separation.map_or(u64::MAX, |separation| separation.blob_file_bytes);
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= full) {
            self.end_file(space)?;
        }
        if self.writer.is_none() {
            let (number, uid) = (space.files.allocate(), space.env.random_u64());
            let path = space.blob_path(FileId(number));
            paths.push(path.clone());
            let header = BlobHeader { keyspace: self.keyspace, uid, number };
            self.writer = Some(BlobWriter::create(vfs, &path, &header, self.compression)?);
        }
        let writer = self.writer.as_mut().expect("a blob file was begun just now");
        let pointer = writer.add(key.user_key, key.seq, value)?;
        self.pointer.clear();
        pointer.put(&mut self.pointer);
        self.count(FileId(pointer.file), &pointer);
        Ok(())
    }

    fn end_file(&mut self, space: &TableSpace) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let record = writer.finish()?;
            self.finished.push(space.open_blob(self.keyspace, &record)?);
        }
        Ok(())
    }

    /// Ends the blob file at hand, for the table at hand ends; returns what that references. Values are
    /// on stable storage then, but for the names of their files.
    ///
    /// # Errors
    /// When a blob file cannot be written, synced or read again.
    pub(crate) fn end_table(&mut self, space: &TableSpace, tree: &Tree) -> Result<Vec<BlobUse>> {
        self.end_file(space)?;
        let fresh = std::mem::take(&mut self.finished);
        let written = fresh.iter().map(|file| file.record().bytes).sum();
        add(&tree.counters.blob_written_bytes, written);
        add(&tree.counters.blob_moved_bytes, std::mem::take(&mut self.moved_bytes));
        add(&tree.counters.blob_gathered_bytes, std::mem::take(&mut self.gathered_bytes));
        let file_of = |id: FileId| {
            let new = fresh.iter().find(|file| file.record().id == id);
            new.or_else(|| self.source.blobs.file(id)).cloned()
        };
        // Each was written here or found among those that may be read.
        let uses = self.uses.iter().filter_map(|(&id, &(bytes, records))| {
            Some(BlobUse { file: file_of(id)?, bytes, records })
        });
        let uses: Vec<BlobUse> = uses.collect();
        debug_assert_eq!(uses.len(), self.uses.len(), "a blob file that nobody holds");
        self.uses.clear();
        Ok(uses)
    }

    /// Lets go of all files.
    pub(crate) fn clear(&mut self) {
        self.writer = None;
        self.finished.clear();
    }
}
