//! Ingest of external tables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lsmx_base::sync::{Arc, Ordering};

use crate::db::ingest::install::install_tables;
use crate::db::ingest::prepare::prepare_table;
use crate::db::ingest::prepared::{
    IngestOptions, IngestSummary, NewFiles, TreeTables, check_accepts_ingest,
};
use crate::db::inner::DbInner;
use crate::error::Result;
use crate::tree::Tree;

/// Ingests external tables into keyspaces, all or nothing.
pub(crate) fn ingest_files(
    inner: &DbInner,
    requests: Vec<(Arc<Tree>, Vec<PathBuf>)>,
    options: IngestOptions,
) -> Result<IngestSummary> {
    inner.check_writable()?;
    inner.begin_operation();
    let mut by_tree: BTreeMap<u32, (Arc<Tree>, Vec<PathBuf>)> = BTreeMap::new();
    for (tree, files) in requests {
        check_accepts_ingest(&tree)?;
        by_tree.entry(tree.id).or_insert_with(|| (tree, Vec::new())).1.extend(files);
    }
    let rewrites = inner.rewrites.load(Ordering::Acquire);
    let mut new_files = NewFiles::new(&inner.state);
    let mut prepared = Vec::new();
    {
        let _writes = inner.begin_file_writes()?;
        for (tree, files) in by_tree.into_values() {
            let mut tables = Vec::new();
            for file in &files {
                let source = (file.as_path(), options.copy_files);
                tables.push(prepare_table(inner, &tree, source, &mut new_files)?);
            }
            prepared.push(TreeTables { tree, tables });
        }
    }
    install_tables(inner, prepared, new_files, rewrites)
}
