//! Rebuilds keyspaces whose files are unknown because manifest edits are lost.

use std::collections::{BTreeMap, BTreeSet};

use lsmx_base::file_name::FileName;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;
use lsmx_compaction::{FileId, TreeShape};

use crate::db::check::repair::context::RepairContext;
use crate::db::check::repair::damaged_blobs::DamagedBlobFiles;
use crate::db::check::repair::damaged_table::DamagedTable;
use crate::db::check::repair::keyspaces::add_lost_table;
use crate::db::check::repair::merge_tables::{merge_tables, open_undamaged_table};
use crate::db::check::repair::report::{Loss, LossKind};
use crate::db::check::repair::table_writer::ValueSalvager;
use crate::error::{Error, Result};
use crate::manifest::{KeyspaceState, ValueLogState};
use crate::table::Table;

/// A table file whose readable entries the repair adds to the rebuilt tree of a keyspace.
#[derive(Clone, Copy, Debug)]
struct CandidateTable {
    number: u64,
    /// Uid in the manifest or in the footer.
    uid: u64,
    /// Largest sequence number in the manifest; `None` if the manifest does not list the table.
    seq_largest: Option<SeqNo>,
}

/// Largest sequence numbers in the tables of a keyspace.
#[derive(Clone, Copy, Debug, Default)]
struct LastSeqs {
    /// Of all tables.
    all: SeqNo,
    /// Of all tables except ingested ones. All writes up to this number were flushed. Writes before an ingest may be
    /// unflushed, because an ingest flushes only memtables that overlap its tables.
    flushed: SeqNo,
}

impl LastSeqs {
    /// Adds a table. `stored` is the largest number in the table, which is 0 if the table was ingested, and `ingested` is
    /// the number of the ingest.
    fn add_table(&mut self, stored: SeqNo, ingested: SeqNo) {
        self.flushed = self.flushed.max(stored);
        self.all = self.all.max(stored).max(ingested);
    }
}

/// Sequence number of the entries of an ingested table if the manifest edit with its number is lost. It is the number
/// of the first write, so these entries count as the oldest of their keys.
const UNKNOWN_INGEST_SEQ: SeqNo = SeqNo(1);

/// Rebuilds the tree of each keyspace as one run. The inputs are all tables that belong to the keyspace according to
/// the manifest or their properties, except those in `removed`.
pub(crate) fn rebuild_keyspaces(
    repair: &mut RepairContext<'_>,
    removed: &BTreeSet<u64>,
) -> Result<()> {
    let mut tables = find_candidates(repair, removed)?;
    // The old tables and the blob files that they point to are set aside together.
    let files = repair.list_files()?.into_iter();
    repair.set_aside.extend(files.filter(|file| matches!(file, FileName::Blob(_))));
    let ids: Vec<u32> = repair.state.keyspaces.keys().copied().collect();
    for id in ids {
        rebuild_keyspace(repair, id, tables.remove(&id).unwrap_or_default())?;
    }
    Ok(())
}

/// Returns the tables of each keyspace.
fn find_candidates(
    repair: &mut RepairContext<'_>,
    removed: &BTreeSet<u64>,
) -> Result<BTreeMap<u32, Vec<CandidateTable>>> {
    let mut candidates = BTreeMap::<u32, Vec<CandidateTable>>::new();
    let mut listed = BTreeSet::new();
    let files = repair.list_files()?;
    let mut missing = Vec::new();
    for (&id, keyspace) in &repair.state.keyspaces {
        for file in keyspace.tree.files() {
            let (number, uid) = (file.id.0, file.uid);
            listed.insert(number);
            match files.contains(&FileName::Table(number)) {
                true => {
                    let seq_largest = Some(SeqNo(file.seq_largest));
                    let candidate = CandidateTable { number, uid, seq_largest };
                    candidates.entry(id).or_default().push(candidate);
                }
                false => missing.push((keyspace.name.clone(), Arc::clone(file))),
            }
        }
    }
    for (name, file) in missing {
        let path = repair.table_path(file.id.0);
        let error = Error::Missing { path: path.clone(), named_by: repair.manifest.clone() };
        let done = "a lost manifest edit may have removed it";
        add_lost_table(repair, &name, path, (&file, &error), done)?;
    }
    for file in files {
        let FileName::Table(number) = file else { continue };
        if listed.contains(&number) || removed.contains(&number) {
            continue;
        }
        match identify_table(repair, number) {
            Ok((id, uid)) => {
                let candidate = CandidateTable { number, uid, seq_largest: None };
                candidates.entry(id).or_default().push(candidate);
            }
            Err(error) => {
                repair.add_finding(&error, "no manifest lists it, and its keyspace is unknown")?;
                repair.set_aside.insert(file);
                let path = repair.table_path(number);
                repair.report.lost.push(Loss::new(None, path, LossKind::Entries, &error));
            }
        }
    }
    Ok(candidates)
}

/// Returns the keyspace and the uid of a table that no manifest lists.
fn identify_table(repair: &RepairContext<'_>, number: u64) -> Result<(u32, u64)> {
    let path = repair.table_path(number);
    let table = DamagedTable::open(&**repair.vfs, &path, None)?;
    let keyspaces = &repair.state.keyspaces;
    let stored = table.properties().and_then(|found| found.keyspace.as_ref()).map(|(id, _)| *id);
    let only = if keyspaces.len() == 1 { keyspaces.keys().next().copied() } else { None };
    let id = stored.or(only);
    let known = id.filter(|id| keyspaces.contains_key(id)).ok_or_else(|| {
        let (found, expected) = (id.map_or(0, u64::from), "the id of a keyspace");
        Error::malformed(Malformed::invalid_field("keyspace of a table", found, expected), &path, 0)
    })?;
    Ok((known, table.uid()))
}

fn rebuild_keyspace(
    repair: &mut RepairContext<'_>,
    id: u32,
    candidates: Vec<CandidateTable>,
) -> Result<()> {
    let keyspace = repair.state.keyspaces[&id].clone();
    let name = &*keyspace.name;
    let uids = keyspace.value_log.blob_files().map(|blob| (blob.id.0, blob.uid)).collect();
    // No blob file is kept, because the set of blob files is unknown as well.
    let damaged = DamagedBlobFiles::new(repair.tables.vfs, repair.tables.dir, uids);
    let mut values = ValueSalvager::new(BTreeSet::new(), damaged);
    let (mut tables, mut last_seqs) = (Vec::new(), LastSeqs::default());
    for candidate in candidates {
        let table = open_or_rewrite(repair, (id, name), candidate, &mut values, &mut last_seqs)?;
        tables.extend(table);
    }
    let files = merge_tables(&mut repair.tables, (id, name), &tables, &mut values)?;
    repair.report.lost.append(&mut values.take_lost_values());
    let empty = TreeShape { run_id_next: keyspace.tree.run_id_next, ..TreeShape::default() };
    let keyspace = KeyspaceState {
        tree: empty.with_flushed_run(files)?.shape,
        flushed_through: keyspace.flushed_through.max(last_seqs.flushed),
        value_log: ValueLogState::default(),
        ..keyspace
    };
    let last_seq = keyspace.flushed_through.max(last_seqs.all);
    repair.state.last_seq = repair.state.last_seq.max(last_seq);
    repair.state.keyspaces.insert(id, keyspace);
    Ok(())
}

/// Opens a table. If it is damaged, writes its readable entries to a new table and opens the new table. Returns `None`
/// if nothing is readable. A dry run returns `None` for every damaged table. Adds the table to `last_seqs`.
fn open_or_rewrite(
    repair: &mut RepairContext<'_>,
    (id, name): (u32, &str),
    candidate: CandidateTable,
    values: &mut ValueSalvager<'_>,
    last_seqs: &mut LastSeqs,
) -> Result<Option<Arc<Table>>> {
    let path = repair.table_path(candidate.number);
    repair.set_aside.insert(FileName::Table(candidate.number));
    let ingest_seq = candidate.seq_largest.unwrap_or(UNKNOWN_INGEST_SEQ);
    let identity = (FileId(candidate.number), candidate.uid, ingest_seq);
    let damage = match open_undamaged_table(
        &**repair.vfs,
        &repair.descriptors,
        &path,
        identity,
        &repair.cache,
    ) {
        Ok(table) => {
            repair.report.tables_sound += 1;
            let ingested = table.ingest_seq().unwrap_or_default();
            last_seqs.add_table(table.properties().seq_largest, ingested);
            if table.properties().is_external && candidate.seq_largest.is_none() {
                let why =
                    "the sequence number of its ingest is lost, so its entries count as the oldest";
                let loss = Loss::new(Some(name), path, LossKind::Entries, why);
                let properties = table.properties();
                let from = Some(properties.smallest.to_vec());
                repair.report.lost.push(Loss {
                    from,
                    to: Some(properties.largest.to_vec()),
                    ..loss
                });
            }
            return Ok(Some(table));
        }
        Err(damage) => damage,
    };
    let rewritten =
        repair.rewrite_table((id, name), (&path, candidate.uid, ingest_seq), values, None)?;
    let Some(rewritten) = rewritten else {
        repair.add_finding(&damage, "nothing in it is readable")?;
        repair.report.tables_lost += 1;
        repair.report.lost.push(Loss::new(Some(name), path, LossKind::Entries, &damage));
        return Ok(None);
    };
    repair.add_finding(&damage, "readable entries were merged with the other tables")?;
    repair.report.tables_rewritten += 1;
    repair.report.lost.extend(rewritten.lost);
    last_seqs.add_table(rewritten.stored_seq, rewritten.written.seq_largest);
    let Some(record) = rewritten.written.record else { return Ok(None) };
    let identity = (record.id, record.uid, SeqNo(record.seq_largest));
    let path = repair.table_path(record.id.0);
    open_undamaged_table(&**repair.vfs, &repair.descriptors, &path, identity, &repair.cache)
        .map(Some)
}
