//! The blob files of one keyspace, and what its tables reference of them.

use std::collections::{BTreeMap, BTreeSet};

use lsmx_compaction::FileId;

use crate::Malformed;
use crate::format::edit::{BlobFileRecord, BlobReference};
use crate::sync::Arc;

/// The value log of one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueLogState {
    blobs: BTreeMap<FileId, BlobFileRecord>,
    references: BTreeMap<FileId, Arc<[BlobReference]>>,
}

impl ValueLogState {
    /// Its blob files, by number.
    pub fn blobs(&self) -> impl Iterator<Item = &BlobFileRecord> {
        self.blobs.values()
    }

    /// The blob file of this number.
    #[must_use]
    pub fn blob(&self, id: FileId) -> Option<&BlobFileRecord> {
        self.blobs.get(&id)
    }

    /// What a table references, by blob file.
    #[must_use]
    pub fn references_of(&self, table: FileId) -> &[BlobReference] {
        self.references.get(&table).map_or(&[], |references| references)
    }

    /// What all tables together reference of each blob file: bytes and records.
    #[must_use]
    pub fn referenced(&self) -> BTreeMap<FileId, (u64, u64)> {
        let mut sums = BTreeMap::<FileId, (u64, u64)>::new();
        for reference in self.references.values().flat_map(|references| references.iter()) {
            let (bytes, records) = sums.entry(reference.blob).or_default();
            *bytes = bytes.saturating_add(reference.bytes);
            *records = records.saturating_add(reference.records);
        }
        sums
    }

    pub(super) fn add(&mut self, blob: BlobFileRecord) -> Result<(), Malformed> {
        match self.blobs.insert(blob.id, blob) {
            None => Ok(()),
            Some(known) => Err(refused("blob file that joins", known.id, "not there already")),
        }
    }

    pub(super) fn remove(&mut self, id: FileId) -> Result<(), Malformed> {
        let unknown = || refused("blob file that leaves", id, "a blob file of the keyspace");
        self.blobs.remove(&id).map(drop).ok_or_else(unknown)
    }

    pub(super) fn refer(&mut self, table: FileId, references: &Arc<[BlobReference]>) {
        self.references.insert(table, Arc::clone(references));
    }

    /// What holds at the end of an edit: the references of a table leave with it, and no blob file is
    /// referenced that is not there, or by more than it holds.
    pub(super) fn settle(
        &mut self,
        tables: &BTreeSet<FileId>,
        referred: impl Iterator<Item = FileId>,
    ) -> Result<(), Malformed> {
        for table in referred {
            if !tables.contains(&table) {
                return Err(refused("table of references", table, "a table of the keyspace"));
            }
        }
        self.references
            .retain(|table, references| tables.contains(table) && !references.is_empty());
        for (blob, (bytes, records)) in self.referenced() {
            let Some(file) = self.blobs.get(&blob) else {
                return Err(refused("blob file of a reference", blob, "one of the keyspace"));
            };
            if bytes > file.record_bytes() || records > file.records {
                let expected = "one that holds as much as is referenced";
                return Err(refused("blob file of references", blob, expected));
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.references.is_empty()
    }

    /// What makes this state out of nothing, once the tables are there: blob files, then references.
    pub(super) fn contents(&self) -> (Vec<BlobFileRecord>, Vec<(FileId, Arc<[BlobReference]>)>) {
        let references = self.references.iter().map(|(&id, all)| (id, Arc::clone(all)));
        (self.blobs.values().copied().collect(), references.collect())
    }
}

fn refused(what: &'static str, found: FileId, expected: &'static str) -> Malformed {
    Malformed::Field { what, found: found.0, expected }
}
