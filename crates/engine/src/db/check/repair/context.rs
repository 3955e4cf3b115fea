//! The context of a repair, and the operations that several steps use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lsmx_base::file_name::FileName;
use lsmx_base::key::{InternalKey, SeqNo};
use lsmx_base::sync::Arc;

use crate::cache::BlockCache;
use crate::db::check::repair::damaged_table::DamagedTable;
use crate::db::check::repair::report::{Finding, Loss, RepairReport, is_damage_error};
use crate::db::check::repair::salvage_table::salvage_table;
use crate::db::check::repair::starting_state::{StartingState, list_files};
use crate::db::check::repair::table_writer::{RepairTables, ValueSalvager, WrittenTable};
use crate::db::check::verify::check_descriptors;
use crate::db::open::file_numbers::{FILE_NUMBER_GAP, largest_number, next_creation_number};
use crate::db::open::log_source::LogSource;
use crate::env::{CLOCK_CONFIRMATION_DEFAULT, ClockRules, Env, duration_us};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, VersionEdit};
use crate::manifest::ManifestState;
use crate::operand_store::OperandStoreFactory;
use crate::table::FdCache;
use crate::vfs::Vfs;
use crate::wal::{RecoveryMode, RecoveryReport};

/// State of a repair that its steps share.
pub(crate) struct RepairContext<'a> {
    pub(crate) vfs: &'a Arc<dyn Vfs>,
    pub(crate) dir: &'a Path,
    pub(crate) stores: &'a [Arc<dyn OperandStoreFactory>],
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) descriptors: Arc<FdCache>,
    pub(crate) tables: RepairTables<'a>,
    /// State of the repaired database.
    pub(crate) state: ManifestState,
    /// Path of the manifest from which `state` was read, for error messages.
    pub(crate) manifest: PathBuf,
    /// Files that are not part of the repaired database.
    pub(crate) set_aside: BTreeSet<FileName>,
    pub(crate) report: RepairReport,
    /// Table files by the uid in their footers. Empty until they are needed.
    tables_by_uid: BTreeMap<u64, PathBuf>,
}

/// The readable part of a damaged table.
pub(crate) struct RewrittenTable {
    pub(crate) written: WrittenTable,
    /// Largest sequence number in the damaged table. 0 if the table was ingested, because only the manifest contains its
    /// number.
    pub(crate) stored_seq: SeqNo,
    pub(crate) lost: Vec<Loss>,
}

impl<'a> RepairContext<'a> {
    pub(crate) fn new(
        vfs: &'a Arc<dyn Vfs>,
        dir: &'a Path,
        env: &'a Env,
        (stores, dry_run): (&'a [Arc<dyn OperandStoreFactory>], bool),
        start: &StartingState,
    ) -> Result<RepairContext<'a>> {
        let state = start.state.clone();
        let number = largest_number(&**vfs, dir, None)?.max(state.file_number_next);
        let rules = ClockRules {
            jump_us_max: u64::MAX,
            confirmation_us: duration_us(CLOCK_CONFIRMATION_DEFAULT),
            follows_all_readings: false,
        };
        env.start_database_clock(state.clock_us, rules);
        let tables = RepairTables {
            vfs: &**vfs,
            dir,
            env,
            number_next: number + FILE_NUMBER_GAP,
            creation_next: next_creation_number(&state),
            dry_run,
        };
        Ok(RepairContext {
            vfs,
            dir,
            stores,
            cache: BlockCache::new(0),
            descriptors: check_descriptors(vfs),
            tables,
            state,
            manifest: start.path.clone(),
            set_aside: BTreeSet::new(),
            report: RepairReport::default(),
            tables_by_uid: BTreeMap::new(),
        })
    }

    /// Adds a finding to the report.
    ///
    /// # Errors
    /// `error`, if [`is_damage_error`] returns false for it.
    pub(crate) fn add_finding(&mut self, error: &Error, done: impl Into<String>) -> Result<()> {
        if !is_damage_error(error) {
            return Err(error.clone());
        }
        let path = error.path().unwrap_or(self.dir).to_owned();
        self.report.findings.push(Finding { path, what: error.to_string(), done: done.into() });
        Ok(())
    }

    pub(crate) fn list_files(&self) -> Result<Vec<FileName>> {
        list_files(&**self.vfs, self.dir)
    }

    pub(crate) fn table_path(&self, number: u64) -> PathBuf {
        FileName::Table(number).in_dir(self.dir)
    }

    /// Applies changes to the manifest state. Does nothing in a dry run, because a dry run writes no tables.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) -> Result<()> {
        if self.tables.dry_run || changes.is_empty() {
            return Ok(());
        }
        self.state
            .apply_edit(&VersionEdit { changes })
            .map_err(|what| Error::malformed(what, &self.manifest, 0))
    }

    /// Reads the log of the state and all kept logs.
    pub(crate) fn check_log(&self, mode: RecoveryMode) -> Result<RecoveryReport> {
        let (vfs, state, manifest) = (&**self.vfs, &self.state, &*self.manifest);
        LogSource { vfs, dir: self.dir, state, manifest, mode }.check()
    }

    /// Reads the uids of all table files, because a file may have the name of another table.
    pub(crate) fn find_tables_by_uid(&mut self) -> Result<()> {
        if !self.tables_by_uid.is_empty() {
            return Ok(());
        }
        for file in self.list_files()? {
            let path = file.in_dir(self.dir);
            if !matches!(file, FileName::Table(_)) {
                continue;
            }
            match DamagedTable::open(&**self.vfs, &path, None) {
                Ok(table) => drop(self.tables_by_uid.insert(table.uid(), path)),
                Err(error @ Error::Io { .. }) if !is_damage_error(&error) => return Err(error),
                // The file may be one that no manifest lists, for example of a newer version.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Writes the readable entries of a damaged table to a new one. Returns `None` if nothing is readable.
    ///
    /// `path` and `uid` identify the damaged table. Entries of an external table get the sequence number `ingest_seq`.
    pub(crate) fn rewrite_table(
        &mut self,
        (id, name): (u32, &str),
        (path, uid, ingest_seq): (&Path, u64, SeqNo),
        values: &mut ValueSalvager<'_>,
        oldest_tombstone_us: Option<u64>,
    ) -> Result<Option<RewrittenTable>> {
        let vfs = self.tables.vfs;
        let opened = DamagedTable::open(vfs, path, Some(uid)).or_else(|error| {
            let other_path = self.tables_by_uid.get(&uid).ok_or(error)?;
            DamagedTable::open(vfs, other_path, Some(uid))
        });
        let damaged = match opened {
            Ok(damaged) => damaged,
            Err(error) if !is_damage_error(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let (tables, mut rewritten, mut stored_seq) = (&mut self.tables, None, SeqNo::ZERO);
        let found = salvage_table(&damaged, (name, path), &mut |key: InternalKey<'_>, value| {
            stored_seq = stored_seq.max(key.seq);
            // Only entries of external tables have the sequence number 0.
            let seq = if key.seq == SeqNo::ZERO { ingest_seq } else { key.seq };
            let key = InternalKey { seq, ..key };
            let Some(entry) = values.salvage(name, key, value)? else { return Ok(()) };
            let table = match rewritten.take() {
                Some(table) => table,
                None => tables.start((id, name))?,
            };
            rewritten.insert(table).add(entry)
        })?;
        if rewritten.is_none() && !found.range_tombstones.is_empty() {
            rewritten = Some(tables.start((id, name))?);
        }
        let mut lost = values.take_lost_values();
        lost.extend(found.lost);
        let Some(rewritten) = rewritten else { return Ok(None) };
        self.report.entries_salvaged += rewritten.entries;
        let tombstone_seqs = found.range_tombstones.iter().flat_map(|tombstone| &tombstone.seqs);
        let stored_seq = tombstone_seqs.copied().fold(stored_seq, SeqNo::max);
        let written = self.tables.finish(rewritten, found.range_tombstones, oldest_tombstone_us)?;
        Ok(Some(RewrittenTable { written, stored_seq, lost }))
    }
}
