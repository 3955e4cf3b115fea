//! The tables that one job writes: begun when needed, and taken back if the job fails.

use std::path::PathBuf;

use lsmx_compaction::FileId;

use crate::env::rate::Lane;
use crate::error::Result;
use crate::key::InternalKey;
use crate::keyspace::Tree;
use crate::keyspace::counters::add;
use crate::store::TableSpace;
use crate::sync::Arc;
use crate::table::TableWriter;
use crate::version::TableFile;
use crate::vfs::PacedVfs;

/// Output tables of a job. Dropped before [`Outputs::release`], it hands the files it wrote to the
/// janitor.
#[derive(Debug)]
pub(crate) struct Outputs<'a> {
    space: &'a TableSpace,
    /// Where the files are created.
    vfs: PacedVfs,
    tree: &'a Tree,
    level: u8,
    /// When the oldest tombstone among the inputs was written.
    oldest_tombstone_us: Option<u64>,
    current: Option<(FileId, TableWriter)>,
    finished: Vec<Arc<TableFile>>,
    paths: Vec<PathBuf>,
    /// Entries written.
    pub(crate) entries: u64,
}

impl<'a> Outputs<'a> {
    /// No table yet; those to come are for `level`, paced as flushes are.
    pub(crate) fn new(
        space: &'a TableSpace,
        tree: &'a Tree,
        level: u8,
        oldest_tombstone_us: Option<u64>,
    ) -> Outputs<'a> {
        Outputs::in_lane(Lane::Flush, space, tree, level, oldest_tombstone_us)
    }

    /// No table yet; those to come are for `level`, paced as their lane is.
    pub(crate) fn in_lane(
        lane: Lane,
        space: &'a TableSpace,
        tree: &'a Tree,
        level: u8,
        oldest_tombstone_us: Option<u64>,
    ) -> Outputs<'a> {
        let (finished, paths) = (Vec::new(), Vec::new());
        Outputs {
            space,
            vfs: space.paced(lane),
            tree,
            level,
            oldest_tombstone_us,
            current: None,
            finished,
            paths,
            entries: 0,
        }
    }

    /// Bytes of the table at hand so far.
    pub(crate) fn current_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |(_, writer)| writer.written_bytes())
    }

    /// Bytes of finished tables.
    pub(crate) fn finished_bytes(&self) -> u64 {
        self.finished.iter().map(|table| table.shape().bytes).sum()
    }

    /// Adds an entry to the table at hand, or begins one with it.
    ///
    /// # Errors
    /// When the file cannot be created or written.
    pub(crate) fn add(&mut self, key: InternalKey<'_>, value: &[u8]) -> Result<()> {
        let writer = match &mut self.current {
            Some((_, writer)) => writer,
            None => {
                let id = FileId(self.space.files.allocate());
                let path = self.space.path(id);
                self.paths.push(path.clone());
                let options = self.tree.settings().options.table_options(self.level);
                let uid = self.space.env.random_u64();
                let mut writer = TableWriter::create(&self.vfs, &path, uid, &options)?;
                if let Some(us) = self.oldest_tombstone_us {
                    writer.note_tombstone_time(us);
                }
                &mut self.current.insert((id, writer)).1
            }
        };
        writer.add(key, value)?;
        self.entries += 1;
        Ok(())
    }

    /// Ends the table at hand, if there is one: it is on stable storage but for its name.
    ///
    /// # Errors
    /// When it cannot be written, synced or read again.
    pub(crate) fn end_table(&mut self) -> Result<()> {
        if let Some((id, writer)) = self.current.take() {
            let summary = writer.finish()?;
            if summary.filter_failed {
                add(&self.tree.counters.filters_failed, 1);
            }
            self.finished.push(self.space.open_new(id, &summary)?);
        }
        Ok(())
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

impl Drop for Outputs<'_> {
    fn drop(&mut self) {
        self.current = None;
        self.finished.clear();
        for path in self.paths.drain(..) {
            self.space.janitor.discard(path);
        }
    }
}
