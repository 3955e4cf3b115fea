//! What a tree consists of at one moment: an immutable set of files, and with the memtables a
//! super version. Whoever reads pins one and is not disturbed by flushes and compactions.

use std::collections::HashMap;
use std::ops::Bound;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key_search::KeySearch;
use lsmx_base::range_tombstone::build_index;
use lsmx_base::sync::{Arc, OnceLock};
use lsmx_base::tombstone_index::TombstoneIndex;
use lsmx_compaction::{FileId, SortedRun, TreeShape};

use crate::deferred_drop::DeferredDrop;
use crate::error::Error;
use crate::format::range_tombstones::FragmentedTombstones;
use crate::table::ReadPurpose;

pub(crate) use crate::tree::blob_set::{BlobFile, BlobSet, BlobUse, blob_changes};
pub(crate) use crate::tree::file_numbers::FileNumbers;
pub(crate) use crate::tree::old_super_versions::OldViews;
pub(crate) use crate::tree::operand_files::{
    BesideView, Life, StoreFiles, file_name as operand_file_name,
};
pub(crate) use crate::tree::super_version::SuperVersion;
pub(crate) use crate::tree::table_file::{Janitor, TableFile};
pub(crate) use crate::tree::version_edit::changes_between;

/// A sorted run, open for reading.
#[derive(Debug)]
pub(crate) struct Run {
    shape: Arc<SortedRun>,
    tables: Arc<[Arc<TableFile>]>,
    /// Of their largest keys.
    fences: KeySearch,
}

impl Run {
    fn new(shape: Arc<SortedRun>, tables: Arc<[Arc<TableFile>]>) -> Run {
        let fences = KeySearch::new(tables.iter().map(|table| &*table.shape().range.largest));
        Run { shape, tables, fences }
    }

    /// Its tables in key order.
    pub(crate) fn tables(&self) -> &Arc<[Arc<TableFile>]> {
        &self.tables
    }

    /// The one table that may hold `user_key`.
    pub(crate) fn table_for(&self, user_key: &[u8]) -> Option<&Arc<TableFile>> {
        let is_before = |at: usize| self.tables[at].shape().range.largest < user_key;
        let at = self.fences.partition_point(user_key, is_before);
        let table = self.tables.get(at)?;
        (table.shape().range.smallest <= user_key).then_some(table)
    }
}

/// An immutable set of files: a shape, and the open table behind each file of it.
#[derive(Debug, Default)]
pub(crate) struct Version {
    shape: TreeShape,
    runs: Vec<Arc<Run>>,
    tables: HashMap<FileId, Arc<TableFile>>,
    /// The blob files that its tables point into.
    blobs: Arc<BlobSet>,
    /// Whether a table has range tombstones.
    has_spans: bool,
    /// Those of all tables together, once somebody has asked for them.
    spans: OnceLock<Arc<TombstoneIndex>>,
    /// Takes over what it is made of when it goes.
    deferred_drop: DeferredDrop,
}

impl Drop for Version {
    /// Whoever lets it go last, perhaps a reader, does not close the tables that go with it.
    fn drop(&mut self) {
        if !self.tables.is_empty() {
            let shape = std::mem::take(&mut self.shape);
            let (runs, tables) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.tables));
            let blobs = std::mem::take(&mut self.blobs);
            self.deferred_drop.drop_later((shape, runs, tables, blobs, self.spans.take()));
        }
    }
}

impl Version {
    /// No files; what this version and those made of it hold goes to `deferred_drop`.
    pub(crate) fn empty(deferred_drop: &DeferredDrop) -> Version {
        let (shape, runs, tables, blobs) = Default::default();
        let (spans, deferred_drop) = (OnceLock::new(), deferred_drop.clone());
        Version { shape, runs, tables, blobs, has_spans: false, spans, deferred_drop }
    }

    /// The version with this shape; its tables are those of `before` and `opened`.
    ///
    /// # Errors
    /// When the shape breaks an invariant, or names a file that is in neither.
    pub(crate) fn new(
        shape: TreeShape,
        before: &Version,
        opened: &[Arc<TableFile>],
    ) -> Result<Version, Error> {
        #[cfg(debug_assertions)]
        shape.check()?;
        let mut known: HashMap<FileId, &Arc<TableFile>> =
            opened.iter().map(|table| (table.shape().id, table)).collect();
        known.extend(before.tables.iter().map(|(&id, table)| (id, table)));
        let kept: HashMap<*const SortedRun, &Arc<Run>> =
            before.runs.iter().map(|run| (Arc::as_ptr(&run.shape), run)).collect();

        let mut runs = Vec::new();
        let mut tables = HashMap::new();
        let levels = (0..=u8::MAX).zip(&shape.levels);
        for (level, run) in levels.flat_map(|(at, level)| level.runs.iter().map(move |it| (at, it)))
        {
            let open = match kept.get(&Arc::as_ptr(run)) {
                Some(kept) => Arc::clone(kept),
                None => {
                    let open = run.files.iter().map(|file| {
                        let table = known.get(&file.id).copied();
                        table.cloned().ok_or(lsmx_compaction::Error::UnknownFile { file: file.id })
                    });
                    let tables = open.collect::<Result<_, _>>()?;
                    Arc::new(Run::new(Arc::clone(run), tables))
                }
            };
            for table in open.tables.iter() {
                table.table().set_level(level);
            }
            tables.extend(open.tables.iter().map(|table| (table.shape().id, Arc::clone(table))));
            runs.push(open);
        }
        let has_spans = tables.values().any(|table| table.has_spans());
        let blobs = Arc::new(BlobSet::of(tables.values()));
        let (spans, deferred_drop) = (OnceLock::new(), before.deferred_drop.clone());
        Ok(Version { shape, runs, tables, blobs, has_spans, spans, deferred_drop })
    }

    /// What takes over the memtables and tables that go.
    pub(crate) fn deferred_drop(&self) -> &DeferredDrop {
        &self.deferred_drop
    }

    /// Levels, runs and files as numbers.
    pub(crate) fn shape(&self) -> &TreeShape {
        &self.shape
    }

    /// The blob files that its tables point into.
    pub(crate) fn blobs(&self) -> &Arc<BlobSet> {
        &self.blobs
    }

    /// Bytes of its tables and blob files.
    pub(crate) fn file_bytes(&self) -> u64 {
        let tables = self.tables.values().map(|table| table.shape().bytes);
        tables.chain(self.blobs.files().map(|used| used.file.record().bytes)).sum()
    }

    /// Sorted runs of the whole tree, newest first.
    pub(crate) fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }

    /// Writes into a shape of this version when its tables were last read.
    pub(crate) fn note_reads(&self, shape: &mut TreeShape) {
        for run in shape.levels.iter_mut().flat_map(|level| &mut Arc::make_mut(level).runs) {
            Arc::make_mut(run).files.set_read_times(|file| {
                self.tables.get(&file).map(|table| table.table().last_read_us())
            });
        }
    }

    /// Whether a table has range tombstones.
    pub(crate) fn has_spans(&self) -> bool {
        self.has_spans
    }

    /// As [`Version::spans`], if they were gathered before.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub(crate) fn gathered_spans(&self) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        match self.spans.get() {
            _ if !self.has_spans => Ok(None),
            Some(spans) => Ok(Some(Arc::clone(spans))),
            None => Err(Error::WouldBlock),
        }
    }

    /// The range tombstones of all tables in one index; `None` if there are none. The first call reads them.
    ///
    /// # Errors
    /// When those of a table cannot be read or are damaged.
    pub(crate) fn spans(&self) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        match self.gathered_spans() {
            Err(Error::WouldBlock) => {}
            gathered => return gathered,
        }
        let gathered = self.gather_spans(|_| true)?;
        // Another thread may have gathered the same.
        Ok(Some(Arc::clone(self.spans.get_or_init(|| Arc::new(gathered)))))
    }

    /// The range tombstones of at least those tables that overlap a range of keys; `None` if there are
    /// none. As long as those of another table cannot be read, each call reads them anew.
    ///
    /// # Errors
    /// When those of a table that overlaps the range cannot be read or are damaged.
    pub(crate) fn spans_between(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        let overlaps = |table: &TableFile| {
            let range = &table.shape().range;
            let ends_before = match lower {
                Bound::Included(key) => *range.largest < *key,
                Bound::Excluded(key) => *range.largest <= *key,
                Bound::Unbounded => false,
            };
            let begins_after = match upper {
                Bound::Included(key) => *range.smallest > *key,
                Bound::Excluded(key) => *range.smallest >= *key,
                Bound::Unbounded => false,
            };
            !ends_before && !begins_after
        };
        match self.spans() {
            Err(error) if failpoint::is_on(Failpoint::DamagedSpansFailAllScans) => Err(error),
            Err(_) => Ok(Some(Arc::new(self.gather_spans(overlaps)?))),
            all => all,
        }
    }

    /// Reads the range tombstones of some tables, in the order of the tree: equal trees read equal blocks
    /// in equal order.
    fn gather_spans(&self, wanted: impl Fn(&TableFile) -> bool) -> Result<TombstoneIndex, Error> {
        let mut all = Vec::new();
        let tables = self.runs.iter().flat_map(|run| run.tables.iter());
        for table in tables.filter(|table| table.has_spans() && wanted(table)) {
            all.push(table.table().range_tombstones(ReadPurpose::Lookup)?);
        }
        Ok(build_index(all.iter().flat_map(FragmentedTombstones::as_slice)))
    }

    /// The open table of a file of this version.
    pub(crate) fn table(&self, id: FileId) -> Option<&Arc<TableFile>> {
        self.tables.get(&id)
    }
}
