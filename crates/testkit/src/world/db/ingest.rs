//! Ingests external tables and loads entries in bulk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use lsmx::ingest::{BulkLoadOptions, IngestOptions};
use lsmx::vfs::Vfs;
use lsmx::{Durability, Error, Keyspace};

use super::super::change::{Bytes, Change};
use super::super::operations::{Value, Write};
use super::ModelledDb;

/// Directory of the external tables.
const DIR: &str = "external";

impl ModelledDb {
    /// Ingests puts and deletes as up to `files` tables per keyspace. If a key has several writes, only the last one is
    /// ingested.
    ///
    /// Keyspaces with an operand store refuse ingests. The writes are then committed as a batch.
    pub(super) fn ingest(&mut self, writes: &[Write], files: usize, copy_files: bool) {
        let mut newest: BTreeMap<usize, (Keyspace, BTreeMap<Bytes, Change>)> = BTreeMap::new();
        for write in writes {
            let (index, keyspace, change) = self.change(*write);
            if let Change::Put(key, _) | Change::Delete(key) = &change {
                let of_keyspace =
                    newest.entry(index).or_insert_with(|| (keyspace, BTreeMap::new()));
                of_keyspace.1.insert(Arc::clone(key), change.clone());
            }
        }
        let mut tables = Vec::new();
        let mut changes = Vec::new();
        for (index, (keyspace, of_keyspace)) in newest {
            let sorted: Vec<_> = of_keyspace.into_values().collect();
            let paths = self.write_tables((index, &keyspace), &sorted, files.max(1));
            tables.push((keyspace, paths));
            changes.extend(sorted.into_iter().map(|change| (index, change)));
        }
        let options = IngestOptions::default().copy_files(copy_files);
        let ingested = self.db().ingest(&tables, options);
        for path in tables.iter().flat_map(|(_, paths)| paths) {
            self.disk.remove(path).unwrap();
        }
        match ingested {
            Ok(summary) => {
                assert_eq!(summary.entries, changes.len() as u64);
                assert_eq!(summary.seq, self.db().snapshot().seq());
                self.counts.ingested_files += summary.files;
            }
            Err(Error::IngestRefused { .. }) => {
                assert!(changes.iter().any(|(index, _)| self.has_store[*index]));
                let mut batch = lsmx::WriteBatch::new();
                for (index, change) in &changes {
                    let keyspace = self.keyspaces[*index].clone().expect("it exists");
                    change.add_to(&mut batch, &keyspace);
                }
                self.db().write(batch, Durability::Sync).unwrap();
                return self.apply(&changes, true);
            }
            Err(error) => panic!("an ingest failed: {error}"),
        }
        self.apply_unchanged(&changes, true);
    }

    /// Writes external tables with about equal numbers of entries. Returns their paths.
    fn write_tables(
        &self,
        (index, keyspace): (usize, &Keyspace),
        sorted: &[Change],
        files: usize,
    ) -> Vec<PathBuf> {
        if !self.disk.exists(DIR.as_ref()).unwrap() {
            self.disk.create_dir(DIR.as_ref()).unwrap();
        }
        let of_file = sorted.len().div_ceil(files).max(1);
        let tables = sorted.chunks(of_file).enumerate().map(|(number, entries)| {
            let name = format!("{}-{number}-{index}", self.clock);
            let path = PathBuf::from(DIR).join(name);
            let mut table = keyspace.external_table_writer(&path).unwrap();
            for change in entries {
                match change {
                    Change::Put(key, value) => table.put(key, value).unwrap(),
                    Change::Delete(key) => table.delete(key).unwrap(),
                    _ => unreachable!("external tables contain puts and deletes"),
                }
            }
            assert_eq!(table.finish().unwrap().entries, entries.len() as u64);
            path
        });
        tables.collect()
    }

    /// Loads entries into a keyspace in bulk. If `sorts` is true, the bulk load sorts the entries. Otherwise the
    /// entries are sorted in advance.
    pub(super) fn bulk_load(&mut self, keyspace: usize, entries: &[(usize, Value)], sorts: bool) {
        let (index, handle) = self.keyspace(keyspace);
        let mut entries: Vec<_> =
            entries.iter().map(|(key, value)| (self.key(*key), value.to_bytes())).collect();
        if !sorts {
            let sorted: BTreeMap<_, _> = entries.drain(..).collect();
            entries.extend(sorted);
        }
        let changes = entries
            .iter()
            .map(|(key, value)| (index, Change::Put(Arc::clone(key), Arc::clone(value))));
        let changes: Vec<_> = changes.collect();
        let options = match sorts {
            true => BulkLoadOptions::default().sort_memory_bytes(64 << 10),
            false => BulkLoadOptions::default(),
        };
        match handle.bulk_load(entries.iter().map(|(key, value)| (key, value)), options) {
            Ok(summary) => self.counts.ingested_files += summary.files,
            Err(Error::IngestRefused { .. }) => {
                assert!(self.has_store[index]);
                for (key, value) in &entries {
                    handle.put(key, value).unwrap();
                    let change = Change::Put(Arc::clone(key), Arc::clone(value));
                    self.apply(&[(index, change)], false);
                }
                return;
            }
            Err(error) => panic!("a bulk load failed: {error}"),
        }
        self.apply_unchanged(&changes, true);
    }
}
