//! Keyspaces of which nobody knows what they consist of, because edits of the manifest are lost.

use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, RunId};

use crate::db::check::repair::make::Values;
use crate::db::check::repair::values::BlobRemains;
use crate::db::check::repair::{Lost, LostKind, Remains, Repair, basis, rebuild};
use crate::error::{Error, Result};
use crate::format::file_name::FileName;
use crate::manifest::{KeyspaceState, RunRecord, ValueLogState};
use crate::table::Table;

/// A table that may belong to a keyspace.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    number: u64,
    /// What the manifest says, or its footer.
    uid: u64,
}

impl Repair<'_> {
    /// Makes each keyspace's tree anew, of all tables that name it or that the manifest gave it, and that
    /// were not let go (`removed`).
    pub(crate) fn doubtful_keyspaces(&mut self, removed: &BTreeSet<u64>) -> Result<()> {
        let mut tables = self.candidates(removed)?;
        // What the tables that are set aside point to.
        let files = basis::files(&**self.vfs, self.dir)?.into_iter();
        self.aside.extend(files.filter(|file| matches!(file, FileName::Blob(_))));
        let ids: Vec<u32> = self.state.keyspaces.keys().copied().collect();
        for id in ids {
            self.rebuild(id, tables.remove(&id).unwrap_or_default())?;
        }
        Ok(())
    }

    /// The tables of each keyspace.
    fn candidates(&mut self, removed: &BTreeSet<u64>) -> Result<BTreeMap<u32, Vec<Candidate>>> {
        let mut all = BTreeMap::<u32, Vec<Candidate>>::new();
        let mut named = BTreeSet::new();
        let files = basis::files(&**self.vfs, self.dir)?;
        let mut missing = Vec::new();
        for (&id, keyspace) in &self.state.keyspaces {
            for (_, _, file) in keyspace.files() {
                named.insert(file.id.0);
                let (number, uid) = (file.id.0, file.uid);
                match files.contains(&FileName::Table(number)) {
                    true => all.entry(id).or_default().push(Candidate { number, uid }),
                    false => missing.push((keyspace.name.clone(), Arc::clone(file))),
                }
            }
        }
        for (name, file) in missing {
            let path = FileName::Table(file.id.0).in_dir(self.dir);
            let error = Error::Missing { path: path.clone(), named_by: self.manifest.clone() };
            self.found(&error, "perhaps a later edit let it go")?;
            self.report.tables_lost += 1;
            self.report.lost.push(Lost {
                keyspace: Some(name),
                path,
                what: LostKind::Entries,
                from: Some(file.range.smallest.to_vec()),
                to: Some(file.range.largest.to_vec()),
                bytes: file.bytes,
                why: error.to_string(),
            });
        }
        for file in files {
            let FileName::Table(number) = file else { continue };
            if named.contains(&number) || removed.contains(&number) {
                continue;
            }
            let path = file.in_dir(self.dir);
            let found = Remains::open(&**self.vfs, &path, None).and_then(|remains| {
                let keyspace = remains.properties().and_then(|found| found.keyspace.clone());
                let only = || match self.state.keyspaces.len() {
                    1 => self.state.keyspaces.keys().next().copied(),
                    _ => None,
                };
                let keyspace = keyspace.map(|(id, _)| id).or_else(only);
                let known = keyspace.filter(|id| self.state.keyspaces.contains_key(id));
                let unknown = || {
                    let (what, expected) = ("keyspace of a table", "one that there is");
                    let found = keyspace.map_or(0, u64::from);
                    Error::malformed(Malformed::Field { what, found, expected }, &path, 0)
                };
                Ok((known.ok_or_else(unknown)?, remains.uid()))
            });
            match found {
                Ok((id, uid)) => all.entry(id).or_default().push(Candidate { number, uid }),
                Err(error) => {
                    self.found(&error, "no manifest names it, so nobody knows where it belongs")?;
                    self.aside.insert(file);
                    let (what, bytes, why) = (LostKind::Entries, 0, error.to_string());
                    let lost =
                        Lost { keyspace: None, path, what, from: None, to: None, bytes, why };
                    self.report.lost.push(lost);
                }
            }
        }
        Ok(all)
    }

    fn rebuild(&mut self, id: u32, candidates: Vec<Candidate>) -> Result<()> {
        let keyspace = self.state.keyspaces[&id].clone();
        let name = keyspace.name.clone();
        let uids = keyspace.value_log.blobs().map(|blob| (blob.id.0, blob.uid)).collect();
        // No blob file stays: which of them there should be nobody knows either.
        let remains = BlobRemains::new(self.maker.vfs, self.maker.dir, uids);
        let mut values = Values::new(BTreeSet::new(), remains);
        let (mut tables, mut last) = (Vec::new(), SeqNo::ZERO);
        for candidate in candidates {
            tables.extend(self.sound_table((id, &name), candidate, &mut values, &mut last)?);
        }
        let files = rebuild::merge(&mut self.maker, (id, &name), &tables, &mut values)?;
        self.report.lost.append(&mut values.take_lost());
        let run = RunId(keyspace.run_id_next);
        let levels = match files.is_empty() {
            true => Vec::new(),
            false => vec![vec![RunRecord { id: run, files }]],
        };
        let keyspace = KeyspaceState {
            levels,
            cursors: BTreeMap::new(),
            run_id_next: run.0 + 1,
            // What a table holds was flushed, and all before it.
            flushed_through: keyspace.flushed_through.max(last),
            value_log: ValueLogState::default(),
            ..keyspace
        };
        self.state.last_seq = self.state.last_seq.max(keyspace.flushed_through);
        self.state.keyspaces.insert(id, keyspace);
        Ok(())
    }

    /// The table if it is sound, or a new one of what can be read of it; none if nothing can, or if nothing is
    /// written. `last` becomes at least its largest sequence number.
    fn sound_table(
        &mut self,
        (id, name): (u32, &str),
        candidate: Candidate,
        values: &mut Values<'_>,
        last: &mut SeqNo,
    ) -> Result<Option<Arc<Table>>> {
        let file = FileName::Table(candidate.number);
        let path = file.in_dir(self.dir);
        self.aside.insert(file);
        let identity = (FileId(candidate.number), candidate.uid);
        let wrong = match rebuild::open_sound(&**self.vfs, &path, identity, &self.cache) {
            Ok(table) => {
                self.report.tables_sound += 1;
                *last = (*last).max(table.properties().seq_largest);
                return Ok(Some(table));
            }
            Err(wrong) => wrong,
        };
        let salvaged = self.salvage((id, name), (&path, candidate.uid), values, None)?;
        let Some(salvaged) = salvaged else {
            self.found(&wrong, "nothing of it can be read")?;
            self.report.tables_lost += 1;
            let (keyspace, what) = (Some(name.to_owned()), LostKind::Entries);
            let why = wrong.to_string();
            let lost = Lost { keyspace, path, what, from: None, to: None, bytes: 0, why };
            self.report.lost.push(lost);
            return Ok(None);
        };
        self.found(&wrong, "what can be read was merged with all else")?;
        self.report.tables_rewritten += 1;
        self.report.lost.extend(salvaged.lost);
        *last = (*last).max(salvaged.made.seq_largest);
        let Some(record) = salvaged.made.record else { return Ok(None) };
        let path = FileName::Table(record.id.0).in_dir(self.dir);
        rebuild::open_sound(&**self.vfs, &path, (record.id, record.uid), &self.cache).map(Some)
    }
}
