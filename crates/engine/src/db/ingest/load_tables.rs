//! Tables that a bulk load writes into the database directory.

use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::db::ingest::external_table::DEEPEST_LEVEL;
use crate::db::ingest::prepared::{NewFiles, PreparedTable};
use crate::db::inner::DbInner;
use crate::env::rate_limit::IoPriority;
use crate::error::{Error, Result};
use crate::state::table_factory::{build_table_meta, table_identity};
use crate::table::{FilterWidth, Table, TableWriter};
use crate::tree::Tree;

/// Writes sorted entries to external tables of the target size of a keyspace.
#[derive(Debug)]
pub(super) struct LoadTables {
    tree: Arc<Tree>,
    current: Option<(FileId, TableWriter)>,
    finished: Vec<PreparedTable>,
}

impl LoadTables {
    pub(super) fn new(tree: Arc<Tree>) -> LoadTables {
        LoadTables { tree, current: None, finished: Vec::new() }
    }

    /// Adds an entry. Keys are added in ascending order, each once.
    pub(super) fn add(
        &mut self,
        inner: &DbInner,
        new_files: &mut NewFiles,
        user_key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        if self.last_key().is_some_and(|last| last >= user_key) {
            let (keyspace, key) = (self.tree.name(), user_key.to_vec());
            return Err(Error::UnsortedInput { keyspace, key });
        }
        let target_bytes = self.tree.settings().options.table_target_bytes();
        if self.current.as_ref().is_some_and(|(_, table)| table.estimated_bytes() >= target_bytes) {
            self.finish_table(inner)?;
        }
        if self.current.is_none() {
            self.current = Some(self.create_table(inner, new_files)?);
        }
        let (_, writer) = self.current.as_mut().expect("the writer exists");
        writer.add(InternalKey { user_key, seq: SeqNo::ZERO, kind: EntryKind::Put }, value)
    }

    fn last_key(&self) -> Option<&[u8]> {
        let current = self.current.as_ref().and_then(|(_, writer)| writer.last_key());
        current.or_else(|| self.finished.last().map(|table| &table.meta.range.largest[..]))
    }

    fn create_table(
        &self,
        inner: &DbInner,
        new_files: &mut NewFiles,
    ) -> Result<(FileId, TableWriter)> {
        let tables = &inner.state.tables;
        let id = FileId(tables.files.allocate());
        let path = tables.path(id);
        new_files.add(path.clone());
        let options = &self.tree.settings().options;
        let options = options.table_options(DEEPEST_LEVEL, FilterWidth::default());
        let vfs = tables.with_rate_limit(IoPriority::Compaction);
        let mut writer = TableWriter::create(&vfs, &path, tables.env.random_u64(), &options)?;
        writer.set_external();
        writer.set_creation_time(tables.env.creation_time_us());
        writer.set_keyspace(self.tree.id, &self.tree.name());
        Ok((id, writer))
    }

    fn finish_table(&mut self, inner: &DbInner) -> Result<()> {
        let Some((id, writer)) = self.current.take() else { return Ok(()) };
        let tables = &inner.state.tables;
        let summary = writer.finish()?;
        if summary.filter_failed {
            self.tree.counters.update(|counts| counts.filters_failed += 1);
        }
        let meta = build_table_meta(id, &summary, tables.env.creation_time_us(), 0);
        let (path, identity) = (tables.path(id), table_identity(&meta));
        let table = Table::open_cached(&tables.descriptors, &path, &identity, &tables.cache)?;
        self.finished.push(PreparedTable { table, meta, is_written: true });
        Ok(())
    }

    /// Finishes the last table. Returns all tables in key order.
    pub(super) fn finish(&mut self, inner: &DbInner) -> Result<Vec<PreparedTable>> {
        self.finish_table(inner)?;
        Ok(std::mem::take(&mut self.finished))
    }
}
