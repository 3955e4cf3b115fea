//! Repairs keyspaces whose files are known, and operand stores.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lsmx_compaction::{Level, RunId, TableMeta};

use lsmx_base::file_name::{CURRENT, FileName};
use lsmx_base::key::SeqNo;

use crate::db::check::repair::context::RepairContext;
use crate::db::check::repair::damaged_blobs::DamagedBlobFiles;
use crate::db::check::repair::report::{Loss, LossKind, is_damage_error};
use crate::db::check::repair::table_writer::ValueSalvager;
use crate::db::check::verify::{VerifiedBlobs, open_verified_table, verify_blob};
use crate::db::operand_store::{self, StoreCheck};
use crate::error::{Error, Result};
use crate::format::version_edit::Change;
use crate::options::stored::StoredOptions;

/// Checks the tables and blob files of a keyspace, and replaces damaged ones.
pub(crate) fn repair_keyspace(repair: &mut RepairContext<'_>, id: u32) -> Result<()> {
    let keyspace = repair.state.keyspaces[&id].clone();
    let (mut sound, mut removed) = (BTreeMap::new(), Vec::new());
    for record in keyspace.value_log.blob_files() {
        match verify_blob(&repair.descriptors, repair.dir, id, record, &repair.cache) {
            Ok(blob) => drop(sound.insert(record.id, blob)),
            Err(damage) => {
                repair.add_finding(&damage, "readable values are moved to tables")?;
                repair.set_aside.insert(FileName::Blob(record.id.0));
                removed.push(Change::RemoveBlob { keyspace: id, id: record.id });
            }
        }
    }
    let blobs = VerifiedBlobs::new(repair.dir, sound);
    let uids = keyspace.value_log.blob_files().map(|record| (record.id.0, record.uid)).collect();
    let damaged = DamagedBlobFiles::new(repair.tables.vfs, repair.tables.dir, uids);
    let mut values = ValueSalvager::new(blobs.numbers(), damaged);
    for (level, run, file) in keyspace.tree.positioned_files() {
        let references = keyspace.value_log.references_of_table(file.id);
        let checked = open_verified_table(&**repair.vfs, repair.dir, (id, file), &repair.cache)
            .and_then(|table| blobs.verify_pointers(&table, references));
        match checked {
            Ok(_) => repair.report.tables_sound += 1,
            Err(error) if !is_damage_error(&error) => return Err(error),
            Err(damage) => {
                repair.find_tables_by_uid()?;
                let keyspace = (id, &*keyspace.name);
                replace_table(repair, keyspace, (level, run), (file, &damage), &mut values)?;
            }
        }
    }
    repair.apply(removed)
}

/// Replaces a damaged table by one with its readable entries.
fn replace_table(
    repair: &mut RepairContext<'_>,
    (id, name): (u32, &str),
    (level, run): (Level, RunId),
    (file, damage): (&TableMeta, &Error),
    values: &mut ValueSalvager<'_>,
) -> Result<()> {
    let path = repair.table_path(file.id.0);
    repair.set_aside.insert(FileName::Table(file.id.0));
    let source = (&*path, file.uid, SeqNo(file.seq_largest));
    let rewritten = repair.rewrite_table((id, name), source, values, file.oldest_tombstone_us)?;
    // One edit removes the table and adds the new one, so that the run keeps its position even if it has no other
    // table.
    let mut changes = vec![Change::RemoveFile { keyspace: id, id: file.id }];
    let Some(rewritten) = rewritten else {
        add_lost_table(repair, name, path, (file, damage), "nothing in it is readable")?;
        return repair.apply(changes);
    };
    repair.add_finding(damage, "readable entries were written to a new table")?;
    repair.report.tables_rewritten += 1;
    // A loss without key bounds gets the bounds of the table in the manifest.
    for loss in rewritten.lost {
        let from = loss.from.or_else(|| Some(file.range.smallest.to_vec()));
        let to = loss.to.or_else(|| Some(file.range.largest.to_vec()));
        repair.report.lost.push(Loss { from, to, ..loss });
    }
    if let Some(file) = rewritten.written.record {
        let (table, blobs) = (file.id, rewritten.written.references.into());
        changes.push(Change::AddFile { keyspace: id, level, run, file });
        changes.push(Change::References { keyspace: id, table, blobs });
    }
    repair.apply(changes)
}

/// Reports a table that is lost completely.
///
/// # Errors
/// `damage`, if [`is_damage_error`] returns false for it.
pub(crate) fn add_lost_table(
    repair: &mut RepairContext<'_>,
    keyspace: &str,
    path: PathBuf,
    (file, damage): (&TableMeta, &Error),
    done: &str,
) -> Result<()> {
    repair.add_finding(damage, done)?;
    repair.report.tables_lost += 1;
    repair.report.lost.push(Loss::for_table(keyspace, path, LossKind::Entries, (file, damage)));
    Ok(())
}

/// Checks the operand stores. A damaged store that opens is kept: reads of damaged operands fail, and all others
/// succeed. A store that does not open is replaced by an empty one.
pub(crate) fn repair_operand_stores(repair: &mut RepairContext<'_>) -> Result<()> {
    let keyspaces: Vec<_> = repair.state.keyspaces.clone().into_iter().collect();
    let (mut live, mut is_lost) = (Vec::new(), false);
    for (id, keyspace) in keyspaces {
        let mut checked =
            operand_store::verify_store(repair.vfs, repair.dir, &keyspace, repair.stores);
        let stored = StoredOptions::decode(&keyspace.options);
        let name = stored.as_ref().and_then(StoredOptions::store_name).unwrap_or_default();
        // The segments of a kept log can be repaired only by a replay into the store.
        if stored.as_ref().is_some_and(|stored| stored.kept_log().is_some())
            && !repair.stores.iter().any(|factory| factory.name() == name)
        {
            checked = Ok(StoreCheck::Unchecked);
        }
        let damage = match checked {
            Ok(StoreCheck::NoStore) => continue,
            Ok(StoreCheck::Checked(files)) => {
                live.extend(files);
                continue;
            }
            Ok(StoreCheck::Unchecked) => {
                // The files of this store are unknown.
                let (keyspace, store) = (keyspace.name, name.to_owned());
                return Err(Error::NoOperandStore { keyspace, store, cause: None });
            }
            Err(damage) => damage,
        };
        let opened =
            operand_store::live_store_files(repair.vfs, repair.dir, &keyspace, repair.stores);
        match opened {
            Ok(files) => {
                repair
                    .add_finding(&damage, "it is kept; reads of keys with damaged operands fail")?;
                live.extend(files);
                continue;
            }
            Err(error) if !is_damage_error(&error) => return Err(error),
            Err(_) => {}
        }
        repair.add_finding(&damage, "it cannot be opened; the keyspace gets an empty store")?;
        is_lost = true;
        let (name, dir) = (Some(&*keyspace.name), repair.dir.to_owned());
        repair.report.lost.push(Loss::new(name, dir, LossKind::Operands, &damage));
        repair.apply(vec![Change::OperandToken { keyspace: id, token: None }])?;
    }
    if is_lost || repair.manifest.ends_with(CURRENT) {
        let unused = repair.list_files()?.into_iter().filter(|file| {
            matches!(file, FileName::Operands(_) | FileName::Bucket(_)) && !live.contains(file)
        });
        repair.set_aside.extend(unused);
    }
    Ok(())
}
