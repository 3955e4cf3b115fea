//! Determines for each output entry of a job whether its value is stored in the table or in a blob file.
//!
//! - If the size of a value is at least the threshold, the value is appended to the current blob file, and the table
//!   contains a value pointer.
//! - Usually, value pointers of the inputs are copied. The output table then also references the blob file.
//! - A value pointer is replaced by its value in three cases: the job moves all values of the blob file (garbage
//!   collection), the value is relocated to make scans faster (`relocate.rs`), or value separation was disabled. The
//!   value is then written like a new value.
//! - Until the application has passed the options of the keyspace after an open, all value pointers are copied.
//!
//! The expiry time of an entry is always stored in the table, before the value or the value pointer.
//!
//! A blob file is finished together with the table that references it. Both therefore become visible at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lsmx_base::coding::{len_u64, put_u64};
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::error::Result;
use crate::format::blob::{BlobHeader, ValuePointer};
use crate::format::expiry::{expiry_of, put_expiring_value, without_expiry};
use crate::jobs::value_log::relocate::ValueRelocation;
use crate::options::value_separation::ValueSeparation;
use crate::state::table_factory::TableFactory;
use crate::table::{Compression, ReadContext, ReadPurpose};
use crate::tree::Tree;
use crate::tree::blob_set::{BlobFile, BlobSet, BlobUsage};
use crate::value_log::{BlobScan, BlobWriter};
use crate::vfs::Vfs;

/// Blob files that a job may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueSource {
    /// Blob files that the inputs reference.
    pub(crate) blobs: Arc<BlobSet>,
    /// Blob files whose values the job moves to other files.
    pub(crate) victims: Arc<BTreeSet<FileId>>,
    /// Blob files whose values the job may relocate.
    pub(crate) relocatable: Arc<BTreeSet<FileId>>,
    /// Blob files that cannot be read. Pointers to these files are copied.
    pub(crate) quarantined: Arc<BTreeSet<FileId>>,
}

/// Form in which an entry is written to a table.
pub(crate) enum ValuePlacement {
    /// The entry is written without changes.
    AsIs,
    /// The entry is written with this kind and a value pointer. [`OutputValueWriter::last_pointer`] returns the stored
    /// value.
    Pointer(EntryKind),
    /// The entry is written with this kind and this value, instead of the value pointer of the input.
    Value(EntryKind, Slice),
}

/// Writes the values of a job or a subcompaction.
#[derive(Debug)]
pub(crate) struct OutputValueWriter {
    separation: Option<ValueSeparation>,
    /// Whether value pointers are copied even though `separation` is `None`.
    awaits_separation: bool,
    compression: Compression,
    keyspace: u32,
    source: ValueSource,
    /// Determines which values are relocated.
    relocation: Option<ValueRelocation>,
    scan: BlobScan,
    writer: Option<BlobWriter>,
    /// Finished blob files of the current table.
    finished: Vec<Arc<BlobFile>>,
    /// Number of bytes and records that the current table references, by blob file.
    references: BTreeMap<FileId, (u64, u64)>,
    pointer: Vec<u8>,
    /// Total size in bytes of values that were moved by garbage collection, or because value separation was disabled.
    moved_bytes: u64,
    /// Total size in bytes of values that were moved only to make scans faster.
    relocated_bytes: u64,
}

impl OutputValueWriter {
    /// Creates a writer for the values of a job that writes tables to `level`.
    pub(crate) fn new(tree: &Tree, level: u8, source: ValueSource) -> OutputValueWriter {
        let awaits_separation = tree.awaits_value_separation();
        let options = &tree.settings().options;
        OutputValueWriter {
            separation: options.value_separation,
            awaits_separation,
            compression: options.compression_of(level),
            keyspace: tree.id,
            source,
            relocation: None,
            scan: BlobScan::default(),
            writer: None,
            finished: Vec::new(),
            references: BTreeMap::new(),
            pointer: Vec::new(),
            moved_bytes: 0,
            relocated_bytes: 0,
        }
    }

    /// Sets the blob files to which value pointers of the inputs may point.
    pub(crate) fn set_source(&mut self, source: ValueSource) {
        let relocation = self.separation.filter(|_| !source.relocatable.is_empty());
        self.relocation = relocation.map(|separation| {
            ValueRelocation::new(separation.scan_read_bytes, Arc::clone(&source.relocatable))
        });
        self.source = source;
    }

    /// Returns the last value pointer that was written. If the entry expires, the expiry time precedes the pointer.
    pub(crate) fn last_pointer(&self) -> &[u8] {
        &self.pointer
    }

    /// Returns the form in which an entry is written to the table. If necessary, writes the value to a blob file. If a
    /// blob file is created, its path is added to `paths` before the creation.
    pub(crate) fn place_value(
        &mut self,
        (table_factory, vfs): (&TableFactory, &dyn Vfs),
        paths: &mut Vec<PathBuf>,
        key: InternalKey<'_>,
        stored: &[u8],
    ) -> Result<ValuePlacement> {
        let expiry_us = expiry_of(key.kind, stored);
        let value = without_expiry(key.kind, stored);
        let pointer_kind = match expiry_us {
            None => EntryKind::ValuePointer,
            Some(_) => EntryKind::ValuePointerExpiring,
        };
        match key.kind.without_expiry() {
            EntryKind::Put => {
                if !self.is_separated(value) {
                    return Ok(ValuePlacement::AsIs);
                }
                if failpoint::is_on(Failpoint::ExpiryLostAtSeparation) {
                    self.write_value((table_factory, vfs), paths, key, (None, value))?;
                    return Ok(ValuePlacement::Pointer(EntryKind::ValuePointer));
                }
                self.write_value((table_factory, vfs), paths, key, (expiry_us, value))?;
                Ok(ValuePlacement::Pointer(pointer_kind))
            }
            EntryKind::ValuePointer => {
                let (file, pointer) = self.source.blobs.locate(value)?;
                let id = file.record().id;
                if self.source.quarantined.contains(&id) {
                    self.add_reference(id, &pointer);
                    return Ok(ValuePlacement::AsIs);
                }
                let is_kept = self.separation.is_some() || self.awaits_separation;
                let may_stay = is_kept && !self.source.victims.contains(&id);
                let relocation = self.relocation.as_mut();
                let is_relocated = relocation.is_some_and(|it| it.add_value(id, pointer.bytes));
                if may_stay && !is_relocated {
                    self.add_reference(id, &pointer);
                    return Ok(ValuePlacement::AsIs);
                }
                let entry = (key.user_key, key.seq);
                let mut access = ReadContext::new(ReadPurpose::Job);
                let value = match self.scan.read_value(file.blob(), entry, &pointer, &mut access) {
                    // The relocation is optional. If the value cannot be read, the pointer is kept, and reads of the
                    // value return the error.
                    Err(_) if may_stay => {
                        self.add_reference(id, &pointer);
                        return Ok(ValuePlacement::AsIs);
                    }
                    read => read?,
                };
                let bytes =
                    if may_stay { &mut self.relocated_bytes } else { &mut self.moved_bytes };
                *bytes += len_u64(value.len());
                if self.is_separated(&value) {
                    self.write_value((table_factory, vfs), paths, key, (expiry_us, &value))?;
                    return Ok(ValuePlacement::Pointer(pointer_kind));
                }
                Ok(match expiry_us {
                    None => ValuePlacement::Value(EntryKind::Put, value),
                    Some(expiry_us) => {
                        let mut stored = Vec::new();
                        put_expiring_value(&mut stored, expiry_us, &value);
                        ValuePlacement::Value(EntryKind::PutExpiring, Slice::from(stored))
                    }
                })
            }
            _ => Ok(ValuePlacement::AsIs),
        }
    }

    fn is_separated(&self, value: &[u8]) -> bool {
        self.separation.is_some_and(|separation| len_u64(value.len()) >= separation.threshold_bytes)
    }

    fn add_reference(&mut self, id: FileId, pointer: &ValuePointer) {
        let (bytes, records) = self.references.entry(id).or_default();
        *bytes += pointer.bytes;
        *records += 1;
    }

    fn write_value(
        &mut self,
        (table_factory, vfs): (&TableFactory, &dyn Vfs),
        paths: &mut Vec<PathBuf>,
        key: InternalKey<'_>,
        (expiry_us, value): (Option<u64>, &[u8]),
    ) -> Result<()> {
        let file_bytes_max =
            self.separation.map_or(u64::MAX, |separation| separation.blob_file_bytes);
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= file_bytes_max) {
            self.finish_file(table_factory)?;
        }
        if self.writer.is_none() {
            let (number, uid) = (table_factory.files.allocate(), table_factory.env.random_u64());
            let path = table_factory.blob_path(FileId(number));
            paths.push(path.clone());
            let header = BlobHeader { keyspace: self.keyspace, uid, number };
            self.writer = Some(BlobWriter::create(vfs, &path, &header, self.compression)?);
        }
        let writer = self.writer.as_mut().expect("the writer exists");
        let pointer = writer.add(key.user_key, key.seq, value)?;
        self.pointer.clear();
        if let Some(expiry_us) = expiry_us {
            put_u64(&mut self.pointer, expiry_us);
        }
        pointer.put(&mut self.pointer);
        self.add_reference(FileId(pointer.file), &pointer);
        Ok(())
    }

    fn finish_file(&mut self, table_factory: &TableFactory) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            let record = writer.finish()?;
            self.finished.push(table_factory.open_blob(self.keyspace, &record)?);
        }
        Ok(())
    }

    /// Finishes the current blob file. Returns the references of the table to blob files. The blob files are synced.
    /// Their directory entries are not synced.
    pub(crate) fn finish_table(
        &mut self,
        table_factory: &TableFactory,
        tree: &Tree,
    ) -> Result<Vec<BlobUsage>> {
        self.finish_file(table_factory)?;
        let new_files = std::mem::take(&mut self.finished);
        let written: u64 = new_files.iter().map(|file| file.record().bytes).sum();
        tree.counters.update(|counts| {
            counts.value_log.written_bytes += written;
            counts.value_log.rewritten_bytes += std::mem::take(&mut self.moved_bytes);
            counts.value_log.relocated_bytes += std::mem::take(&mut self.relocated_bytes);
        });
        let file_of = |id: FileId| {
            let found = new_files.iter().find(|file| file.record().id == id);
            found.or_else(|| self.source.blobs.file(id)).cloned()
        };
        // Each referenced file was written by this job or is in `source`.
        let references = self.references.iter().filter_map(|(&id, &(bytes, records))| {
            Some(BlobUsage { file: file_of(id)?, bytes, records })
        });
        let references: Vec<BlobUsage> = references.collect();
        debug_assert_eq!(references.len(), self.references.len(), "unknown blob file");
        self.references.clear();
        Ok(references)
    }

    pub(crate) fn close_files(&mut self) {
        self.writer = None;
        self.finished.clear();
    }
}
