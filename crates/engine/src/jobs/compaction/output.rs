//! Output tables of a job. Their files are deleted if the job fails.

use std::path::PathBuf;

use lsmx_base::coding::len_u64;
use lsmx_base::key::InternalKey;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, OutputSplitter, TableMeta, TreeShape};

use crate::env::rate_limit::IoPriority;
use crate::error::Result;
use crate::jobs::compaction::entry_filter::FilterOutcome;
use crate::jobs::compaction::range_tombstone_queue::RangeTombstoneQueue;
use crate::jobs::compaction::version_filter::ExpiredEntries;
use crate::jobs::value_log::output_values::{OutputValueWriter, ValuePlacement, ValueSource};
use crate::memtable::Memtable;
use crate::options::filter_bits::IncomingRun;
use crate::state::table_factory::TableFactory;
use crate::table::{FilterWidth, TableWriter};
use crate::tree::Tree;
use crate::tree::obsolete_files::ObsoleteFiles;
use crate::tree::table_file::TableFile;
use crate::vfs::Vfs;
use crate::vfs::paced::PacedVfs;

/// Write time of the oldest tombstone in the tables of a job, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TombstoneTime {
    /// The time of the oldest tombstone among the inputs, or `None` if it is unknown.
    OfInputs(Option<u64>),
    /// The inputs have no tombstones. The job replaces entries with tombstones at this time.
    OfJob(u64),
}

impl TombstoneTime {
    /// Returns the time of the tombstones of a flush at the time `now_us`. `first_us` is the time of the first tombstone in
    /// the memtable. Without one, only tombstones that replace operands or expired entries are written.
    pub(crate) fn of_flush(first_us: Option<u64>, now_us: u64) -> TombstoneTime {
        match first_us {
            Some(_) => TombstoneTime::OfInputs(first_us),
            None => TombstoneTime::OfJob(now_us),
        }
    }
}

impl From<Option<u64>> for TombstoneTime {
    fn from(oldest_us: Option<u64>) -> TombstoneTime {
        TombstoneTime::OfInputs(oldest_us)
    }
}

/// Output tables of a job.
///
/// Dropping the outputs deletes all files that the job has written, unless [`JobOutputs::keep_files`] was called.
#[derive(Debug)]
pub(crate) struct JobOutputs<'a> {
    table_factory: &'a TableFactory,
    /// Creates the output files with the rate limit for the I/O priority of the job.
    vfs: PacedVfs,
    priority: IoPriority,
    tree: &'a Tree,
    level: u8,
    filter: FilterWidth,
    tombstone_time: TombstoneTime,
    current: Option<(FileId, TableWriter)>,
    values: OutputValueWriter,
    /// Range tombstones that are not written yet.
    range_tombstones: RangeTombstoneQueue,
    /// Determines where tables end. `None` if all entries are written to one table.
    splitter: Option<OutputSplitter>,
    finished: Vec<Arc<TableFile>>,
    paths: Vec<PathBuf>,
    /// Number of entries that were written.
    pub(crate) entries: u64,
    /// Entries that were dropped or replaced because they have expired.
    pub(crate) expired: ExpiredEntries,
}

impl<'a> JobOutputs<'a> {
    /// Creates the outputs of a flush: a new run in L0, written with the rate limit of flushes.
    pub(crate) fn for_flush(
        table_factory: &'a TableFactory,
        tree: &'a Tree,
        memtable: &Memtable,
        shape: &TreeShape,
        tombstone_time: impl Into<TombstoneTime>,
    ) -> JobOutputs<'a> {
        let incoming = IncomingRun::Flush { entries: memtable.entry_count() };
        let filter = tree.choose_filter_width(shape, &incoming);
        JobOutputs::new(IoPriority::Flush, table_factory, tree, (0, filter), tombstone_time)
    }

    /// Creates the outputs of a job that writes to `level`. `filter` is the filter width of the tables.
    pub(crate) fn new(
        priority: IoPriority,
        table_factory: &'a TableFactory,
        tree: &'a Tree,
        (level, filter): (u8, FilterWidth),
        tombstone_time: impl Into<TombstoneTime>,
    ) -> JobOutputs<'a> {
        let (finished, paths) = (Vec::new(), Vec::new());
        JobOutputs {
            table_factory,
            vfs: table_factory.with_rate_limit(priority),
            priority,
            tree,
            level,
            filter,
            tombstone_time: tombstone_time.into(),
            current: None,
            values: OutputValueWriter::new(tree, level, ValueSource::default()),
            range_tombstones: RangeTombstoneQueue::default(),
            splitter: None,
            finished,
            paths,
            entries: 0,
            expired: ExpiredEntries::default(),
        }
    }

    /// Returns the filter width of the tables.
    pub(crate) fn filter_width(&self) -> FilterWidth {
        self.filter
    }

    /// Sets the blob files to which the value pointers of the inputs may point.
    pub(crate) fn set_value_source(&mut self, source: ValueSource) {
        self.values.set_source(source);
    }

    /// Sets the rule that determines where tables end.
    pub(crate) fn set_splitter(&mut self, splitter: OutputSplitter) {
        self.splitter = Some(splitter);
    }

    /// Sets the range tombstones to be written. They must be fragments in key order.
    pub(crate) fn set_range_tombstones(&mut self, range_tombstones: Vec<RangeTombstone>) {
        self.range_tombstones = RangeTombstoneQueue::new(range_tombstones);
    }

    /// Returns the metadata of all finished tables, in key order.
    pub(crate) fn table_metas(&self) -> Vec<Arc<TableMeta>> {
        self.finished.iter().map(|table| Arc::clone(table.shape())).collect()
    }

    /// Returns the total size of all finished tables in bytes.
    pub(crate) fn finished_bytes(&self) -> u64 {
        self.finished.iter().map(|table| table.shape().bytes).sum()
    }

    /// Prepares the outputs for the first entry of a user key. May finish the current table before this key. Returns
    /// true if it has finished a table.
    ///
    /// The caller must call this function before it adds the first entry of each user key. Without a splitter, the call
    /// is not necessary.
    pub(crate) fn begin_key(&mut self, user_key: &[u8]) -> Result<bool> {
        let mut has_finished = self.begin_range_tombstones(Some(user_key))?;
        has_finished |= self.split_before(user_key)?;
        // A range tombstone that starts at this key is written to the same table as the key.
        if self.range_tombstones.next_start(None).is_some_and(|start| *start == *user_key) {
            self.range_tombstones.take_next();
        }
        Ok(has_finished)
    }

    /// Adds the range tombstones that start before `before`, or all remaining ones if `before` is `None`. Their size
    /// counts towards the size of the table.
    fn begin_range_tombstones(&mut self, before: Option<&[u8]>) -> Result<bool> {
        let mut has_finished = false;
        while let Some(start) = self.range_tombstones.next_start(before) {
            has_finished |= self.split_before(&start)?;
            self.range_tombstones.take_next();
        }
        Ok(has_finished)
    }

    /// Finishes the current table if the splitter ends it before this key.
    fn split_before(&mut self, next: &[u8]) -> Result<bool> {
        let table_bytes = self.current.as_ref().map_or(0, |(_, writer)| writer.estimated_bytes());
        let bytes = table_bytes + len_u64(self.range_tombstones.current_table_bytes());
        let is_split = self
            .splitter
            .as_mut()
            .is_some_and(|splitter| splitter.should_split_before(next, bytes));
        if is_split {
            self.finish_table(Some(next))?;
        }
        Ok(is_split)
    }

    /// Returns the writer of the current table. Creates the table if there is none.
    fn writer(&mut self) -> Result<&mut TableWriter> {
        if self.current.is_none() {
            self.current = Some(self.create_table()?);
        }
        let (_, writer) = self.current.as_mut().expect("the writer exists");
        Ok(writer)
    }

    fn create_table(&mut self) -> Result<(FileId, TableWriter)> {
        let id = FileId(self.table_factory.files.allocate());
        let path = self.table_factory.path(id);
        self.paths.push(path.clone());
        let options = self.tree.settings().options.table_options(self.level, self.filter);
        let uid = self.table_factory.env.random_u64();
        let mut writer = TableWriter::create(&self.vfs, &path, uid, &options)?;
        writer.set_keyspace(self.tree.id, &self.tree.name());
        match self.tombstone_time {
            TombstoneTime::OfInputs(Some(us)) => writer.record_tombstone_time(us),
            TombstoneTime::OfInputs(None) => {}
            TombstoneTime::OfJob(us) => writer.set_time_of_new_tombstones(us),
        }
        Ok((id, writer))
    }

    /// Adds an entry to the current table.
    pub(crate) fn add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        // The table is created before its blob file, so that file numbers follow the order of creation.
        self.writer()?;
        let target = (self.table_factory, &self.vfs as &dyn Vfs);
        let placement = self.values.place_value(target, &mut self.paths, key, value)?;
        let (_, writer) = self.current.as_mut().expect("the writer exists");
        match placement {
            ValuePlacement::AsIs => writer.add(key, value)?,
            ValuePlacement::Pointer(kind) => {
                writer.add(InternalKey { kind, ..key }, self.values.last_pointer())?;
            }
            ValuePlacement::Value(kind, value) => {
                writer.add(InternalKey { kind, ..key }, &value)?
            }
        }
        self.entries += 1;
        Ok(())
    }

    /// Writes the remaining range tombstones and finishes the last table. All tables are synced. Their directory
    /// entries are not synced.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.begin_range_tombstones(None)?;
        self.finish_table(None)
    }

    /// Finishes the current table if there is one. `next` is the first key of the next table.
    fn finish_table(&mut self, next: Option<&[u8]>) -> Result<()> {
        let last = self.current.as_ref().and_then(|(_, writer)| writer.last_key());
        let range_tombstones = self.range_tombstones.finish_table(last, next);
        if !range_tombstones.is_empty() {
            let writer = self.writer()?;
            for tombstone in range_tombstones {
                writer.add_range_tombstone(tombstone);
            }
        }
        if let Some((id, writer)) = self.current.take() {
            // Values must be durable before the table that points to them.
            let blobs = self.values.finish_table(self.table_factory, self.tree)?;
            let summary = writer.finish()?;
            if summary.filter_failed {
                self.tree.counters.update(|counts| counts.filters_failed += 1);
            }
            let table = self.table_factory.open_written_table(id, &summary, blobs)?;
            if self.priority == IoPriority::Flush {
                table.table().mark_written_cached();
            }
            self.finished.push(table);
        }
        Ok(())
    }

    /// Appends the outputs of a subcompaction. Subcompactions must be appended in key order.
    pub(crate) fn append(&mut self, mut output: SubcompactionOutput) {
        self.finished.append(&mut output.tables);
        self.paths.append(&mut output.paths);
        self.entries += output.entries;
        self.expired.add(output.expired);
    }

    /// Converts the finished tables to the output of a subcompaction.
    pub(crate) fn into_subcompaction_output(mut self, entries_read: u64) -> SubcompactionOutput {
        SubcompactionOutput {
            obsolete_files: Arc::clone(&self.table_factory.obsolete_files),
            tables: std::mem::take(&mut self.finished),
            paths: std::mem::take(&mut self.paths),
            entries: self.entries,
            expired: self.expired,
            entries_read,
            filter_outcome: FilterOutcome::default(),
        }
    }

    /// Returns the finished tables in key order.
    pub(crate) fn tables(&self) -> &[Arc<TableFile>] {
        &self.finished
    }

    /// Keeps the files when the outputs are dropped. The caller calls this function when the manifest may contain the
    /// tables.
    pub(crate) fn keep_files(&mut self) {
        self.paths.clear();
    }
}

/// Finished tables of a subcompaction. Dropping this value deletes the files, unless [`JobOutputs::append`] has taken
/// them.
#[derive(Debug)]
pub(crate) struct SubcompactionOutput {
    obsolete_files: Arc<ObsoleteFiles>,
    tables: Vec<Arc<TableFile>>,
    paths: Vec<PathBuf>,
    /// Number of entries that were written.
    entries: u64,
    expired: ExpiredEntries,
    pub(crate) entries_read: u64,
    /// Results of the compaction filter.
    pub(crate) filter_outcome: FilterOutcome,
}

impl SubcompactionOutput {
    /// Returns the total size of the tables in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.shape().bytes).sum()
    }
}

impl Drop for SubcompactionOutput {
    fn drop(&mut self) {
        self.tables.clear();
        for path in self.paths.drain(..) {
            self.obsolete_files.discard(path);
        }
    }
}

impl Drop for JobOutputs<'_> {
    fn drop(&mut self) {
        self.current = None;
        self.values.close_files();
        self.finished.clear();
        for path in self.paths.drain(..) {
            self.table_factory.obsolete_files.discard(path);
        }
    }
}
