//! Versions: immutable sets of files. Flushes and compactions do not change a version that a reader holds.

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
use crate::table::{DeviceWaits, ReadContext, ReadDeadline, ReadPurpose};
use crate::tree::blob_set::BlobSet;
use crate::tree::table_file::TableFile;

/// A sorted run with its open tables.
#[derive(Debug)]
pub(crate) struct OpenRun {
    shape: Arc<SortedRun>,
    /// Open tables in key order.
    tables: Arc<[Arc<TableFile>]>,
    /// Search structure over the largest keys of the tables.
    largest_keys: KeySearch,
    /// Total number of entries of all tables.
    entries: u64,
}

impl OpenRun {
    fn new(shape: Arc<SortedRun>, tables: Arc<[Arc<TableFile>]>) -> OpenRun {
        let largest_keys = KeySearch::new(tables.iter().map(|table| &*table.shape().range.largest));
        let entries = tables.iter().map(|table| table.shape().entries).sum();
        OpenRun { shape, tables, largest_keys, entries }
    }

    /// Returns the total number of entries of all tables.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the tables in key order.
    pub(crate) fn tables(&self) -> &Arc<[Arc<TableFile>]> {
        &self.tables
    }

    /// Returns the table whose key range contains `user_key`. There is at most one.
    pub(crate) fn table_for_key(&self, user_key: &[u8]) -> Option<&Arc<TableFile>> {
        let is_before = |index: usize| self.tables[index].shape().range.largest < user_key;
        let index = self.largest_keys.partition_point(user_key, is_before);
        let table = self.tables.get(index)?;
        (table.shape().range.smallest <= user_key).then_some(table)
    }
}

/// An immutable set of files: the shape of a tree, and an open table for each file.
#[derive(Debug, Default)]
pub(crate) struct Version {
    shape: TreeShape,
    /// Sorted runs of all levels, newest first.
    runs: Vec<Arc<OpenRun>>,
    tables: HashMap<FileId, Arc<TableFile>>,
    /// Blob files that the tables reference.
    blobs: Arc<BlobSet>,
    has_range_tombstones: bool,
    /// Range tombstones of all tables. Set by the first read that needs them.
    range_tombstones: OnceLock<Arc<TombstoneIndex>>,
    /// Frees the contents of dropped versions in the background.
    deferred_drop: DeferredDrop,
    /// Records seeks that wait for the device. All versions of a tree share it.
    device_waits: DeviceWaits,
}

impl Drop for Version {
    /// Queues the contents, so that a reader that drops the last reference does not have to close tables.
    fn drop(&mut self) {
        if !self.tables.is_empty() {
            let shape = std::mem::take(&mut self.shape);
            let (runs, tables) = (std::mem::take(&mut self.runs), std::mem::take(&mut self.tables));
            let blobs = std::mem::take(&mut self.blobs);
            let tombstones = self.range_tombstones.take();
            self.deferred_drop.drop_later((shape, runs, tables, blobs, tombstones));
        }
    }
}

impl Version {
    /// Returns a version without files. This version, and all versions that are derived from it, free their contents
    /// through `deferred_drop`.
    pub(crate) fn empty(deferred_drop: &DeferredDrop) -> Version {
        let (shape, runs, tables, blobs) = Default::default();
        let (range_tombstones, deferred_drop) = (OnceLock::new(), deferred_drop.clone());
        let has_range_tombstones = false;
        Version {
            shape,
            runs,
            tables,
            blobs,
            has_range_tombstones,
            range_tombstones,
            deferred_drop,
            device_waits: DeviceWaits::default(),
        }
    }

    /// Returns a version with the given shape. Its tables are taken from `before` and `opened`.
    ///
    /// # Errors
    /// Fails if the shape violates an invariant, or if it contains a file that is neither in `before` nor in `opened`.
    pub(crate) fn new(
        shape: TreeShape,
        before: &Version,
        opened: &[Arc<TableFile>],
    ) -> Result<Version, Error> {
        #[cfg(debug_assertions)]
        shape.check_invariants()?;
        let mut open_tables: HashMap<FileId, &Arc<TableFile>> =
            opened.iter().map(|table| (table.shape().id, table)).collect();
        open_tables.extend(before.tables.iter().map(|(&id, table)| (id, table)));
        let open_runs: HashMap<*const SortedRun, &Arc<OpenRun>> =
            before.runs.iter().map(|run| (Arc::as_ptr(&run.shape), run)).collect();

        let mut runs = Vec::new();
        let mut tables = HashMap::new();
        let levels = (0..=u8::MAX).zip(&shape.levels);
        let level_runs = levels.flat_map(|(at, level)| level.runs.iter().map(move |run| (at, run)));
        for (level, run) in level_runs {
            let open_run = match open_runs.get(&Arc::as_ptr(run)) {
                Some(unchanged) => Arc::clone(unchanged),
                None => {
                    let tables = run.files.iter().map(|file| {
                        let table = open_tables.get(&file.id).copied();
                        table.cloned().ok_or(lsmx_compaction::Error::UnknownFile { file: file.id })
                    });
                    let tables = tables.collect::<Result<_, _>>()?;
                    Arc::new(OpenRun::new(Arc::clone(run), tables))
                }
            };
            for table in open_run.tables.iter() {
                table.table().set_level(level);
                tables.insert(table.shape().id, Arc::clone(table));
            }
            runs.push(open_run);
        }
        let has_range_tombstones = tables.values().any(|table| table.has_range_tombstones());
        let blobs = Arc::new(BlobSet::new(tables.values().flat_map(|table| table.blobs())));
        Ok(Version {
            shape,
            runs,
            tables,
            blobs,
            has_range_tombstones,
            range_tombstones: OnceLock::new(),
            deferred_drop: before.deferred_drop.clone(),
            device_waits: before.device_waits.clone(),
        })
    }

    /// Returns the recorder of seeks that wait for the device.
    pub(crate) fn device_waits(&self) -> &DeviceWaits {
        &self.device_waits
    }

    /// Returns the queue that frees memtables and tables in the background.
    pub(crate) fn deferred_drop(&self) -> &DeferredDrop {
        &self.deferred_drop
    }

    /// Returns the levels, runs and files that compaction policies see.
    pub(crate) fn shape(&self) -> &TreeShape {
        &self.shape
    }

    /// Returns the blob files that the tables reference.
    pub(crate) fn blobs(&self) -> &Arc<BlobSet> {
        &self.blobs
    }

    /// Returns the total size of all tables and blob files in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let tables = self.tables.values().map(|table| table.shape().bytes);
        tables.chain(self.blobs.files().map(|used| used.file.record().bytes)).sum()
    }

    /// Returns the sorted runs of all levels, newest first.
    pub(crate) fn runs(&self) -> &[Arc<OpenRun>] {
        &self.runs
    }

    /// Sets the times of the last reads of all tables in `shape`, which must be a shape of this version.
    pub(crate) fn set_last_read_times(&self, shape: &mut TreeShape) {
        for run in shape.levels.iter_mut().flat_map(|level| &mut Arc::make_mut(level).runs) {
            Arc::make_mut(run).files.set_read_times(|file| {
                self.tables.get(&file).map(|table| table.table().last_read_us())
            });
        }
    }

    /// Returns whether any table contains range tombstones.
    pub(crate) fn has_range_tombstones(&self) -> bool {
        self.has_range_tombstones
    }

    /// Like [`Version::range_tombstones`], but does not read files.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the range tombstones have not been read yet.
    pub(crate) fn cached_range_tombstones(&self) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        match self.range_tombstones.get() {
            _ if !self.has_range_tombstones => Ok(None),
            Some(cached) => Ok(Some(Arc::clone(cached))),
            None => Err(Error::WouldBlock),
        }
    }

    /// Returns the range tombstones of all tables, or `None` if there are none. The first call reads them from the
    /// files.
    pub(crate) fn range_tombstones(&self) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        self.range_tombstones_until(None)
    }

    fn range_tombstones_until(
        &self,
        deadline: Option<&Arc<ReadDeadline>>,
    ) -> Result<Option<Arc<TombstoneIndex>>, Error> {
        match self.cached_range_tombstones() {
            Err(Error::WouldBlock) => {}
            cached => return cached,
        }
        let index = self.read_range_tombstones(deadline, |_| true)?;
        // Another thread may have stored an equal index concurrently.
        Ok(Some(Arc::clone(self.range_tombstones.get_or_init(|| Arc::new(index)))))
    }

    /// Returns range tombstones for a key range. They include the range tombstones of all tables that overlap this
    /// range.
    ///
    /// Returns `None` if there are none. If the range tombstones of another table cannot be read, each call reads the
    /// range tombstones of the overlapping tables again.
    ///
    /// # Errors
    /// [`Error::Deadline`] if the deadline has passed before a read from a file, and the errors of the reads.
    pub(crate) fn range_tombstones_between(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        deadline: Option<&Arc<ReadDeadline>>,
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
        match self.range_tombstones_until(deadline) {
            Err(error @ Error::Deadline { .. }) => Err(error),
            Err(error) if failpoint::is_on(Failpoint::DamagedSpansFailAllScans) => Err(error),
            Err(_) => Ok(Some(Arc::new(self.read_range_tombstones(deadline, overlaps)?))),
            all => all,
        }
    }

    /// Reads the range tombstones of all tables for which `filter` returns true.
    ///
    /// Tables are read in the order of the tree, so that trees with equal contents perform the same reads in the same
    /// order.
    fn read_range_tombstones(
        &self,
        deadline: Option<&Arc<ReadDeadline>>,
        filter: impl Fn(&TableFile) -> bool,
    ) -> Result<TombstoneIndex, Error> {
        let mut all = Vec::new();
        let mut context = ReadContext::new(ReadPurpose::Lookup);
        context.set_deadline(deadline.cloned());
        let tables = self.runs.iter().flat_map(|run| run.tables.iter());
        for table in tables.filter(|table| table.has_range_tombstones() && filter(table)) {
            all.push(table.table().range_tombstones_in_context(&mut context)?);
        }
        Ok(build_index(all.iter().flat_map(FragmentedTombstones::as_slice)))
    }

    /// Returns the open table with this file number.
    pub(crate) fn table(&self, id: FileId) -> Option<&Arc<TableFile>> {
        self.tables.get(&id)
    }
}
