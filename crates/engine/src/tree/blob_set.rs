//! Open blob files as members of versions.
//!
//! A table holds the blob files that its entries point into, so whoever holds the table can read the
//! values, however old his view. A blob file that no table of the current version names is obsolete;
//! its file goes with the last table that holds it.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::slice::Slice;
use lsmx_base::sync::{Arc, AtomicBool, Ordering};
use lsmx_compaction::{FileId, TreeShape};

use crate::error::{Error, Result};
use crate::format::BlockKind;
use crate::format::blob::ValuePointer;
use crate::format::file_name::FileName;
use crate::format::version_edit::{BlobFileRecord, BlobReference, Change};
use crate::table::ReadContext;
use crate::table::explain::{BlockRead, BlockSource};
use crate::tree::version::{Janitor, TableFile, Version};
use crate::value_log::{BlobReader, BlobScan};

/// An open blob file that tables share.
#[derive(Debug)]
pub(crate) struct BlobFile {
    blob: BlobReader,
    obsolete: AtomicBool,
    janitor: Arc<Janitor>,
}

impl AsRef<BlobReader> for BlobFile {
    fn as_ref(&self) -> &BlobReader {
        &self.blob
    }
}

impl BlobFile {
    /// An open blob file.
    pub(crate) fn new(blob: BlobReader, janitor: Arc<Janitor>) -> BlobFile {
        janitor.opened(blob.record().id);
        BlobFile { blob, obsolete: AtomicBool::new(false), janitor }
    }

    /// The open file.
    pub(crate) fn blob(&self) -> &BlobReader {
        &self.blob
    }

    /// What the manifest says of it.
    pub(crate) fn record(&self) -> &BlobFileRecord {
        self.blob.record()
    }

    /// Says that the durable state of the database names the file no more.
    pub(crate) fn set_obsolete(&self) {
        if !self.obsolete.swap(true, Ordering::AcqRel) {
            self.janitor.held_grown(self.record().bytes);
        }
    }
}

impl Drop for BlobFile {
    fn drop(&mut self) {
        let obsolete = self.obsolete.load(Ordering::Acquire);
        if obsolete {
            self.janitor.held_freed(self.record().bytes);
        }
        self.janitor.closed(self.record().id, self.blob.path().to_owned(), obsolete);
    }
}

/// What a table references of one blob file, which it holds.
#[derive(Clone, Debug)]
pub(crate) struct BlobUse {
    pub(crate) file: Arc<BlobFile>,
    /// Bytes of the records that entries point to.
    pub(crate) bytes: u64,
    /// How many these are.
    pub(crate) records: u64,
}

impl BlobUse {
    fn reference(&self) -> BlobReference {
        let blob = self.file.record().id;
        BlobReference { blob, bytes: self.bytes, records: self.records }
    }
}

/// The blob files that the tables of one version name, with what these reference together.
#[derive(Debug, Default)]
pub(crate) struct BlobSet {
    files: BTreeMap<FileId, BlobUse>,
    dir: PathBuf,
}

impl BlobSet {
    /// Those of these tables.
    pub(crate) fn of<'a>(tables: impl Iterator<Item = &'a Arc<TableFile>>) -> BlobSet {
        let mut set = BlobSet::default();
        for table in tables {
            for used in table.blobs() {
                if set.files.is_empty() {
                    set.dir = table.path().parent().map(PathBuf::from).unwrap_or_default();
                }
                match set.files.entry(used.file.record().id) {
                    std::collections::btree_map::Entry::Vacant(place) => {
                        place.insert(used.clone());
                    }
                    std::collections::btree_map::Entry::Occupied(mut place) => {
                        let sum = place.get_mut();
                        sum.bytes = sum.bytes.saturating_add(used.bytes);
                        sum.records = sum.records.saturating_add(used.records);
                    }
                }
            }
        }
        set
    }

    /// All of them, by number.
    pub(crate) fn files(&self) -> impl Iterator<Item = &BlobUse> {
        self.files.values()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The file of this number.
    pub(crate) fn file(&self, id: FileId) -> Option<&Arc<BlobFile>> {
        self.files.get(&id).map(|used| &used.file)
    }

    /// The file that a value pointer names, and the pointer.
    ///
    /// # Errors
    /// When it names none of these.
    pub(crate) fn locate(&self, pointer: &[u8]) -> Result<(&Arc<BlobFile>, ValuePointer)> {
        let pointer =
            ValuePointer::decode(pointer).map_err(|what| Error::malformed(what, &self.dir, 0))?;
        let file = self.file(FileId(pointer.file)).ok_or_else(|| {
            let (what, found) = ("blob file of a value pointer", pointer.file);
            let expected = "one that the manifest lists for its table";
            let unknown = Malformed::Field { what, found, expected };
            Error::malformed(
                unknown,
                &FileName::Blob(pointer.file).in_dir(&self.dir),
                pointer.offset,
            )
        })?;
        Ok((file, pointer))
    }

    /// The value that an entry points to.
    ///
    /// # Errors
    /// When it cannot be read, is damaged or another entry's; [`Error::WouldBlock`](crate::Error::WouldBlock).
    pub(crate) fn value(
        &self,
        entry: (&[u8], SeqNo),
        pointer: &[u8],
        access: &mut ReadContext,
    ) -> Result<Slice> {
        let (file, pointer) = self.locate(pointer)?;
        file.blob().value(entry, &pointer, access)
    }

    /// As [`BlobSet::value`], for who walks over keys.
    ///
    /// # Errors
    /// As [`BlobSet::value`].
    pub(crate) fn next_value(
        &self,
        scan: &mut BlobScan,
        entry: (&[u8], SeqNo),
        pointer: &[u8],
        access: &mut ReadContext,
    ) -> Result<Slice> {
        let (file, pointer) = self.locate(pointer)?;
        scan.value(file.blob(), entry, &pointer, access)
    }
}

impl BlobSet {
    /// Where the value comes from that an entry points to, just before it is read.
    ///
    /// # Errors
    /// As [`BlobSet::locate`].
    pub(crate) fn explain(&self, pointer: &[u8]) -> Result<BlockRead> {
        let (file, pointer) = self.locate(pointer)?;
        let resident = file.blob().is_resident(&pointer);
        let source = if resident { BlockSource::Cache } else { BlockSource::Storage };
        let (offset, bytes) = (pointer.offset, pointer.bytes);
        Ok(BlockRead { kind: BlockKind::Blob, offset, bytes, source })
    }
}

/// What an edit must say of blob files so that a replay of the manifest turns a state with these tables
/// and blob files into `after`: files that come and leave, what new tables reference.
pub(crate) fn blob_changes(
    keyspace: u32,
    (shape, blobs): (&TreeShape, &[FileId]),
    after: &Version,
) -> Vec<Change> {
    if blobs.is_empty() && after.blobs().is_empty() {
        return Vec::new();
    }
    let known: HashSet<FileId> = blobs.iter().copied().collect();
    let tables: HashSet<FileId> = shape.files().map(|file| file.id).collect();
    let come = after.blobs().files().filter(|used| !known.contains(&used.file.record().id));
    let mut changes: Vec<Change> =
        come.map(|used| Change::AddBlob { keyspace, blob: *used.file.record() }).collect();
    let gone = blobs.iter().filter(|id| after.blobs().file(**id).is_none());
    changes.extend(gone.map(|&id| Change::RemoveBlob { keyspace, id }));
    let all = after.runs().iter().flat_map(|run| run.tables().iter());
    let fresh =
        all.filter(|table| !table.blobs().is_empty() && !tables.contains(&table.shape().id));
    changes.extend(fresh.map(|table| Change::References {
        keyspace,
        table: table.shape().id,
        blobs: table.blobs().iter().map(BlobUse::reference).collect(),
    }));
    changes
}

impl Version {
    /// Numbers of the blob files that its tables name.
    pub(crate) fn blob_ids(&self) -> Vec<FileId> {
        self.blobs().files().map(|used| used.file.record().id).collect()
    }
}
