//! Blob files of a keyspace, and the references of tables to blob files.

use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::format::version_edit::{BlobFileRecord, BlobReference, Change};

/// State of the value log of a keyspace according to the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueLogState {
    blobs: BTreeMap<FileId, BlobFileRecord>,
    references: BTreeMap<FileId, Arc<[BlobReference]>>,
}

impl ValueLogState {
    /// Returns the blob files, ordered by number.
    pub fn blob_files(&self) -> impl Iterator<Item = &BlobFileRecord> {
        self.blobs.values()
    }

    /// Returns the references of a table to blob files, ordered by blob file number.
    #[must_use]
    pub fn references_of_table(&self, table: FileId) -> &[BlobReference] {
        self.references.get(&table).map_or(&[], |references| references)
    }

    /// Returns, for each blob file, the bytes and the number of the records that tables reference. Blob files without
    /// references are omitted.
    #[must_use]
    pub fn referenced_bytes_by_file(&self) -> BTreeMap<FileId, (u64, u64)> {
        let mut sums = BTreeMap::<FileId, (u64, u64)>::new();
        for reference in self.references.values().flat_map(|references| references.iter()) {
            let (bytes, records) = sums.entry(reference.blob).or_default();
            *bytes = bytes.saturating_add(reference.bytes);
            *records = records.saturating_add(reference.records);
        }
        sums
    }

    pub(crate) fn add(&mut self, blob: BlobFileRecord) -> Result<(), Malformed> {
        match self.blobs.insert(blob.id, blob) {
            None => Ok(()),
            Some(known) => {
                Err(invalid_change("added blob file", known.id, "not yet in the keyspace"))
            }
        }
    }

    pub(crate) fn remove(&mut self, id: FileId) -> Result<(), Malformed> {
        let unknown = || invalid_change("removed blob file", id, "a blob file of the keyspace");
        self.blobs.remove(&id).map(drop).ok_or_else(unknown)
    }

    pub(crate) fn set_references(&mut self, table: FileId, references: &Arc<[BlobReference]>) {
        self.references.insert(table, Arc::clone(references));
    }

    /// Removes the references of tables that are not in `tables`. Then checks the invariants after an edit.
    ///
    /// # Errors
    /// Fails when a table of `changed_tables` does not exist, when a referenced blob file does not exist, or when the
    /// references to a blob file exceed its records.
    pub(crate) fn finish_edit(
        &mut self,
        tables: &BTreeSet<FileId>,
        changed_tables: impl Iterator<Item = FileId>,
    ) -> Result<(), Malformed> {
        for table in changed_tables {
            if !tables.contains(&table) {
                return Err(invalid_change(
                    "table of references",
                    table,
                    "a table of the keyspace",
                ));
            }
        }
        self.references
            .retain(|table, references| tables.contains(table) && !references.is_empty());
        for (blob, (bytes, records)) in self.referenced_bytes_by_file() {
            let Some(file) = self.blobs.get(&blob) else {
                return Err(invalid_change(
                    "blob file of a reference",
                    blob,
                    "a blob file of the keyspace",
                ));
            };
            if bytes > file.record_bytes() || records > file.records {
                let expected = "at least as much data as referenced";
                return Err(invalid_change("blob file of references", blob, expected));
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.references.is_empty()
    }

    /// Returns the changes that create this state from an empty state. The tables must be added before these changes.
    pub(crate) fn changes_from_empty_state(&self, keyspace: u32) -> impl Iterator<Item = Change> {
        let blobs = self.blobs.values().map(move |&blob| Change::AddBlob { keyspace, blob });
        let references = self.references.iter();
        blobs.chain(references.map(move |(&table, blobs)| {
            let blobs = Arc::clone(blobs);
            Change::References { keyspace, table, blobs }
        }))
    }
}

fn invalid_change(what: &'static str, found: FileId, expected: &'static str) -> Malformed {
    Malformed::invalid_field(what, found.0, expected)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lsmx_compaction::{KeyRange, Level, RunId};

    use super::*;
    use crate::format::version_edit::{VersionEdit, example_table};
    use crate::manifest::ManifestState;

    fn table(id: u64, level: u8) -> Change {
        let key = Bytes::from(id.to_string());
        let range = KeyRange { smallest: key.clone(), largest: key };
        let file = Arc::new(example_table(id, range));
        Change::AddFile { keyspace: 0, level: Level(level), run: RunId(id), file }
    }

    fn remove(id: u64) -> Change {
        Change::RemoveFile { keyspace: 0, id: FileId(id) }
    }

    fn add(id: u64) -> Change {
        let (bytes, records, value_bytes, uid, checksum) = (1_080, 10, 900, id, id);
        let id = FileId(id);
        let blob = BlobFileRecord { id, bytes, records, value_bytes, uid, checksum };
        Change::AddBlob { keyspace: 0, blob }
    }

    fn leave(id: u64) -> Change {
        Change::RemoveBlob { keyspace: 0, id: FileId(id) }
    }

    fn refer(table: u64, blobs: &[(u64, u64)]) -> Change {
        let blobs = blobs.iter().map(|&(id, bytes)| BlobReference {
            blob: FileId(id),
            bytes,
            records: bytes / 100,
        });
        Change::References { keyspace: 0, table: FileId(table), blobs: blobs.collect() }
    }

    fn state() -> ManifestState {
        let mut state = ManifestState::default();
        let create =
            Change::CreateKeyspace { id: 0, name: "default".to_owned(), options: String::new() };
        let edit = vec![
            create,
            add(20),
            add(21),
            table(1, 0),
            table(2, 1),
            refer(1, &[(20, 400)]),
            refer(2, &[(20, 500), (21, 1_000)]),
        ];
        state.apply_edit(&edit.into()).unwrap();
        state
    }

    fn referenced(state: &ManifestState) -> Vec<(u64, u64)> {
        let sums = state.keyspaces[&0].value_log.referenced_bytes_by_file();
        sums.into_iter().map(|(id, (bytes, _))| (id.0, bytes)).collect()
    }

    #[test]
    fn value_log_state_references_follow_table() {
        let mut state = state();
        assert_eq!(referenced(&state), [(20, 900), (21, 1_000)]);
        assert_eq!(state.file_numbers().into_iter().collect::<Vec<_>>(), [1, 2, 20, 21]);
        state.apply_edit(&vec![remove(1), table(1, 2)].into()).unwrap();
        assert_eq!(referenced(&state), [(20, 900), (21, 1_000)]);
        state.apply_edit(&vec![remove(2), leave(21)].into()).unwrap();
        assert_eq!(referenced(&state), [(20, 400)]);
        assert_eq!(state.keyspaces[&0].value_log.references_of_table(FileId(2)), []);
        let mut again = ManifestState::default();
        again.apply_edit(&VersionEdit::decode(&state.to_edit().encode()).unwrap()).unwrap();
        assert_eq!(again, state);
        state.apply_edit(&vec![Change::DropKeyspace { id: 0 }].into()).unwrap();
        assert_eq!(state.file_numbers().len(), 0);
    }

    #[test]
    fn value_log_state_invalid_edit_has_no_effect() {
        let before = state();
        for (what, edit) in [
            ("a blob file twice", vec![add(20)]),
            ("no such blob file", vec![leave(22)]),
            ("a blob file that is referenced", vec![leave(20)]),
            ("a reference to none", vec![refer(1, &[(22, 100)])]),
            ("references of no table", vec![refer(3, &[(20, 100)])]),
            ("references of a table that leaves", vec![remove(1), refer(1, &[(20, 100)])]),
            ("more than there is", vec![refer(1, &[(20, 600)])]),
        ] {
            let mut state = before.clone();
            assert!(state.apply_edit(&edit.into()).is_err(), "{what}");
            assert_eq!(state, before, "{what}");
        }
    }
}
