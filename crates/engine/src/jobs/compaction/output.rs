//! The tables that one job writes: begun when needed, and taken back if the job fails.

use std::path::PathBuf;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, OutputSplitter, TreeShape};

use crate::env::rate_limit::IoPriority;
use crate::error::Result;
use crate::jobs::compaction::range_tombstones::SpanQueue;
use crate::jobs::value_log::output_values::{Placed, ValueSource, Values};
use crate::memtable::Memtable;
use crate::options::filter_bits::Coming;
use crate::state::TableSpace;
use crate::table::{FilterWidth, TableWriter};
use crate::tree::Tree;
use crate::tree::counters::add;
use crate::tree::version::{Janitor, TableFile};
use crate::vfs::{PacedVfs, Vfs};

/// Output tables of a job. Dropped before [`Outputs::release`], it hands the files it wrote to the
/// janitor.
#[derive(Debug)]
pub(crate) struct Outputs<'a> {
    space: &'a TableSpace,
    /// Where the files are created.
    vfs: PacedVfs,
    tree: &'a Tree,
    level: u8,
    filter: FilterWidth,
    /// When the oldest tombstone among the inputs was written.
    oldest_tombstone_us: Option<u64>,
    current: Option<(FileId, TableWriter)>,
    /// What becomes of values.
    values: Values,
    /// Range deletes that are kept.
    spans: SpanQueue,
    /// Says where tables end; without one there is but one.
    cutter: Option<OutputSplitter>,
    finished: Vec<Arc<TableFile>>,
    paths: Vec<PathBuf>,
    /// Entries written.
    pub(crate) entries: u64,
}

impl<'a> Outputs<'a> {
    /// No table yet; one run of L0 is to come of a memtable, paced as flushes are, into a tree of this
    /// shape.
    pub(crate) fn of_flush(
        space: &'a TableSpace,
        tree: &'a Tree,
        memtable: &Memtable,
        shape: &TreeShape,
        oldest_tombstone_us: Option<u64>,
    ) -> Outputs<'a> {
        let coming = Coming::Flush { entries: memtable.entries() };
        let filter = tree.filter_width(shape, &coming);
        Outputs::in_lane(IoPriority::Flush, space, tree, (0, filter), oldest_tombstone_us)
    }

    /// No table yet; those to come are for a level, with filters of this width, paced as their lane is.
    pub(crate) fn in_lane(
        lane: IoPriority,
        space: &'a TableSpace,
        tree: &'a Tree,
        (level, filter): (u8, FilterWidth),
        oldest_tombstone_us: Option<u64>,
    ) -> Outputs<'a> {
        let (finished, paths) = (Vec::new(), Vec::new());
        Outputs {
            space,
            vfs: space.paced(lane),
            tree,
            level,
            filter,
            oldest_tombstone_us,
            current: None,
            values: Values::new(tree, level, ValueSource::default()),
            spans: SpanQueue::default(),
            cutter: None,
            finished,
            paths,
            entries: 0,
        }
    }

    /// Width of the tables' filters.
    pub(crate) fn filter(&self) -> FilterWidth {
        self.filter
    }

    /// Lets pointers through that point into the blob files of this source.
    pub(crate) fn read_from(&mut self, source: ValueSource) {
        self.values.read_from(source);
    }

    /// Ends tables where `cutter` says.
    pub(crate) fn cut_by(&mut self, cutter: OutputSplitter) {
        self.cutter = Some(cutter);
    }

    /// Has these range deletes written among the entries to come: fragments in key order.
    pub(crate) fn take_spans(&mut self, spans: Vec<RangeTombstone>) {
        self.spans = SpanQueue::new(spans);
    }

    /// Bytes of finished tables.
    pub(crate) fn finished_bytes(&self) -> u64 {
        self.finished.iter().map(|table| table.shape().bytes).sum()
    }

    /// Begins a user key, of which entries are added next; the table at hand may end before it.
    /// Returns whether a table has ended. Without a cutter it need not be called.
    ///
    /// # Errors
    /// When a table cannot be written.
    pub(crate) fn begin_key(&mut self, user_key: &[u8]) -> Result<bool> {
        let mut ended = self.begin_spans(Some(user_key))?;
        ended |= self.cut_before(user_key)?;
        // One that begins with the key goes where the key goes.
        if self.spans.next_start(None).is_some_and(|start| *start == *user_key) {
            self.spans.advance();
        }
        Ok(ended)
    }

    /// Takes up the range deletes that begin before a key, or all that are left; many of them fill a
    /// table as entries do.
    fn begin_spans(&mut self, before: Option<&[u8]>) -> Result<bool> {
        let mut ended = false;
        while let Some(start) = self.spans.next_start(before) {
            ended |= self.cut_before(&start)?;
            self.spans.advance();
        }
        Ok(ended)
    }

    /// Ends the table at hand before this key if it is to end there.
    fn cut_before(&mut self, next: &[u8]) -> Result<bool> {
        let writing = self.current.as_ref().map_or(0, |(_, writer)| writer.written_bytes());
        let bytes = writing + len_u64(self.spans.current_bytes());
        let cut =
            self.cutter.as_mut().is_some_and(|splitter| splitter.should_split_before(next, bytes));
        if cut {
            self.end_table(Some(next))?;
        }
        Ok(cut)
    }

    /// The table at hand, which is begun if there is none.
    fn writer(&mut self) -> Result<&mut TableWriter> {
        if self.current.is_none() {
            self.current = Some(self.begin_table()?);
        }
        let (_, writer) = self.current.as_mut().expect("a table was begun just now");
        Ok(writer)
    }

    fn begin_table(&mut self) -> Result<(FileId, TableWriter)> {
        let id = FileId(self.space.files.allocate());
        let path = self.space.path(id);
        self.paths.push(path.clone());
        let options = self.tree.settings().options.table_options(self.level, self.filter);
        let uid = self.space.env.random_u64();
        let mut writer = TableWriter::create(&self.vfs, &path, uid, &options)?;
        writer.note_keyspace(self.tree.id, &self.tree.name);
        if let Some(us) = self.oldest_tombstone_us {
            writer.note_tombstone_time(us);
        }
        Ok((id, writer))
    }

    /// Adds an entry to the table at hand, or begins one with it.
    ///
    /// # Errors
    /// When the file cannot be created or written.
    pub(crate) fn add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        // The table first, so that the files' numbers are in the order of their creation.
        self.writer()?;
        let place = (self.space, &self.vfs as &dyn Vfs);
        let placed = self.values.place(place, &mut self.paths, key, value)?;
        let (_, writer) = self.current.as_mut().expect("a table was begun just now");
        match placed {
            Placed::AsIs => writer.add(key, value)?,
            Placed::Pointer => {
                let key = InternalKey { kind: EntryKind::ValuePointer, ..key };
                writer.add(key, self.values.pointer())?;
            }
            Placed::Value(value) => {
                writer.add(InternalKey { kind: EntryKind::Put, ..key }, &value)?
            }
        }
        self.entries += 1;
        Ok(())
    }

    /// Writes what is left of the range deletes, and ends the last table: the tables are on stable
    /// storage but for their names.
    ///
    /// # Errors
    /// When a table cannot be written, synced or read again.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.begin_spans(None)?;
        self.end_table(None)
    }

    /// Ends the table at hand, if there is one; the next begins with the key `next`.
    fn end_table(&mut self, next: Option<&[u8]>) -> Result<()> {
        let last = self.current.as_ref().and_then(|(_, writer)| writer.last_key());
        let spans = self.spans.cut(last, next);
        if !spans.is_empty() {
            let writer = self.writer()?;
            for span in spans {
                writer.add_span(span);
            }
        }
        if let Some((id, writer)) = self.current.take() {
            // Values before what points to them.
            let blobs = self.values.end_table(self.space, self.tree)?;
            let summary = writer.finish()?;
            if summary.filter_failed {
                add(&self.tree.counters.filters_failed, 1);
            }
            self.finished.push(self.space.open_new(id, &summary, blobs)?);
        }
        Ok(())
    }

    /// Takes what a part of the job wrote; the parts come in key order.
    pub(crate) fn adopt(&mut self, mut part: Written) {
        self.finished.append(&mut part.tables);
        self.paths.append(&mut part.paths);
        self.entries += part.entries;
    }

    /// Gives the finished tables to who puts the parts of a job together; they were made of so many
    /// entries.
    pub(crate) fn hand_over(mut self, entries_read: u64) -> Written {
        Written {
            janitor: Arc::clone(&self.space.janitor),
            tables: std::mem::take(&mut self.finished),
            paths: std::mem::take(&mut self.paths),
            entries: self.entries,
            entries_read,
        }
    }

    /// Finished tables, in key order.
    pub(crate) fn tables(&self) -> &[Arc<TableFile>] {
        &self.finished
    }

    /// The files are somebody else's business from here on: they are part of the tree, or a
    /// manifest that may or may not name them is in doubt.
    pub(crate) fn release(&mut self) {
        self.paths.clear();
    }
}

/// Finished tables of one part of a job, on their way to the job's outputs. Dropped before it gets
/// there, it hands its files to the janitor.
#[derive(Debug)]
pub(crate) struct Written {
    janitor: Arc<Janitor>,
    tables: Vec<Arc<TableFile>>,
    paths: Vec<PathBuf>,
    /// Entries written.
    entries: u64,
    /// Entries read.
    pub(crate) entries_read: u64,
}

impl Written {
    /// Bytes of the tables.
    pub(crate) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.shape().bytes).sum()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.tables.clear();
        for path in self.paths.drain(..) {
            self.janitor.discard(path);
        }
    }
}

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        self.current = None;
        self.values.clear();
        self.finished.clear();
        for path in self.paths.drain(..) {
            self.space.janitor.discard(path);
        }
    }
}
