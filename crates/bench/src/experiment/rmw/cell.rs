//! Measures one design of `lsmx rmw`: loads a new database, runs and measures operations, checks a sample of values,
//! and removes the database.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::player::{
    OperationKind, OperationMeasurements, ResourceCounters, ThreadGroup, flush_and_wait_idle,
    remove_directory,
};
use crate::experiment::sweep::SweepPoint;
use crate::numbers::{self, ratio};
use crate::peers::{Engine, EngineSettings};
use crate::process;
use crate::workload::KeyDistribution;
use crate::workload::records::GeneratedRecords;

use super::design::{EngineDesign, ValuePlacement};
use super::model::ValueModel;
use super::result::{RecoveryTime, RmwCell, RmwWorkload};
use super::stream::StreamParameters;

/// Parameters of one measurement of `lsmx rmw`.
#[derive(Clone, Debug)]
pub(super) struct CellPlan {
    pub(super) design: EngineDesign,
    pub(super) recipe: StreamParameters,
    pub(super) threads: u64,
    pub(super) settings: EngineSettings,
    /// Target number of value bytes that a scan reads from a blob file with one read call. `None` means the default of
    /// lsmx.
    pub(super) scan_read_bytes: Option<u64>,
    /// Size at which a bucket of the operand store is full, in bytes. `None` means the default of the store.
    pub(super) bucket_bytes: Option<u64>,
    pub(super) sweep: SweepPoint,
    /// Whether recovery is measured on a copy of the database files.
    pub(super) recovers: bool,
}

/// A database into which all records have been loaded.
pub(super) struct LoadedDatabase<'a> {
    pub(super) engine: Box<dyn Engine>,
    pub(super) records: &'a GeneratedRecords,
    pub(super) path: &'a Path,
    pub(super) memory_bytes_before: Option<u64>,
}

impl LoadedDatabase<'_> {
    /// Returns a group of one thread that runs operations on this database.
    pub(super) fn thread_group(&self) -> ThreadGroup<'_> {
        let single = ThreadGroup::single_thread(self.engine.as_ref(), self.records);
        ThreadGroup { counts_block_reads: true, ..single }
    }

    pub(super) fn read_counters(&self) -> ResourceCounters {
        ResourceCounters::read(self.engine.as_ref(), self.path)
    }

    /// Compares the database with the model, then closes and removes the database.
    pub(super) fn check_and_remove(self, model: &ValueModel) -> Result<()> {
        model.check_database(self.engine.as_ref(), self.records)?;
        self.engine.close()?;
        remove_directory(self.path)
    }
}

impl CellPlan {
    pub(super) fn generated_records(&self) -> Result<GeneratedRecords> {
        let StreamParameters { records, layout, seed, .. } = self.recipe;
        let count = records + self.recipe.inserted_count();
        GeneratedRecords::new(KeyDistribution::Uniform, count, layout.key, layout.value, seed)
    }

    pub(super) fn step_title(&self, step: &str) -> String {
        let sweep = if self.sweep.is_empty() { String::new() } else { format!(" {}", self.sweep) };
        format!("{}{sweep}: {step}", self.design)
    }

    /// Runs the measurement in an empty directory. Removes all created files afterwards.
    pub(super) fn run_cell(
        &self,
        directory: &Path,
        progress: &mut dyn Progress,
    ) -> Result<RmwCell> {
        let (path, records) = (directory.join("db"), self.generated_records()?);
        // The model replays all operations, so it is computed before the resource counters are read.
        let model = ValueModel::after_stream(&self.recipe, &records);
        let database = self.load_database(&path, &records, progress)?;
        let engine = database.engine.as_ref();
        let before = database.read_counters();
        let played = self.run_operations(&database, progress)?;
        let (mut settle_s, mut recovery, mut excluded) = (0.0, None, None);
        if self.recovers {
            let watch = Stopwatch::start();
            engine.wait_until_idle()?;
            settle_s = watch.elapsed_s();
            let idle = database.read_counters();
            recovery = Some(self.measure_recovery(&database, directory, &model)?);
            excluded = Some(database.read_counters().since(&idle));
        }
        settle_s += flush_and_wait_idle(engine, &self.step_title("settle"), progress)?;
        let used = database.read_counters().since(&before);
        // The copy, the open of the copy and the check of its values are not part of the workload.
        let used = excluded.map_or(used, |excluded| used.since(&excluded));
        let operand_store = database.engine.operand_store_metrics();
        let cell = RmwCell {
            settle_s,
            operand_store,
            checked_records: numbers::to_u64(model.len()),
            recovery,
            ..self.result_cell(&database, &played, &used)
        };
        database.check_and_remove(&model)?;
        Ok(cell)
    }

    /// Creates a database, loads the records, waits until compaction is idle, and warms up the caches.
    pub(super) fn load_database<'a>(
        &self,
        path: &'a Path,
        records: &'a GeneratedRecords,
        progress: &mut dyn Progress,
    ) -> Result<LoadedDatabase<'a>> {
        let memory_bytes_before = process::process_resident_bytes();
        let engine = self.design.open_database(path, &self.settings)?;
        let database = LoadedDatabase { engine, records, path, memory_bytes_before };
        let (title, count) = (self.step_title("load"), self.recipe.records);
        database.thread_group().load_records((&title, count), progress)?;
        self.warm_up(&database, progress)?;
        Ok(database)
    }

    pub(super) fn warm_up(
        &self,
        database: &LoadedDatabase<'_>,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let title = self.step_title("warm up");
        database
            .thread_group()
            .run_work((&title, 0), progress, &|player| self.recipe.warm_up(player))?;
        Ok(())
    }

    pub(super) fn run_operations(
        &self,
        database: &LoadedDatabase<'_>,
        progress: &mut dyn Progress,
    ) -> Result<OperationMeasurements> {
        let group = ThreadGroup { threads: self.threads, ..database.thread_group() };
        let title = self.step_title("operate");
        group.run_work((&title, self.recipe.ops), progress, &|player| {
            self.recipe.run_operations(player, self.design.mode)
        })
    }

    /// Copies the files of an idle database while the database is open, which simulates a kill of the process. Opens the
    /// copy and compares its values with the model.
    fn measure_recovery(
        &self,
        database: &LoadedDatabase<'_>,
        directory: &Path,
        model: &ValueModel,
    ) -> Result<RecoveryTime> {
        let copy = directory.join("killed");
        copy_files(database.path, &copy)?;
        let storage_bytes = process::directory_disk_bytes(&copy);
        let watch = Stopwatch::start();
        let reopened = self.design.open_database(&copy, &self.settings)?;
        let open_s = watch.elapsed_s();
        model.check_database(reopened.as_ref(), database.records)?;
        reopened.close()?;
        remove_directory(&copy)?;
        Ok(RecoveryTime { open_s, storage_bytes })
    }

    fn workload_summary(&self, records: &GeneratedRecords) -> RmwWorkload {
        let StreamParameters { layout, .. } = self.recipe;
        RmwWorkload {
            mix: self.recipe.mix.name().to_owned(),
            records: self.recipe.records,
            loaded_bytes: records.total_bytes(self.recipe.records),
            key_len: layout.key.max(),
            value_len: layout.value.max(),
            field_len: layout.field_bytes,
            delta_len: layout.delta_bytes,
            zipf: self.recipe.zipf,
            threads: self.threads,
            memory_budget: self.settings.memory_budget.unwrap_or(0),
            direct_io: self.settings.direct_io,
            scan_read_bytes: self
                .scan_read_bytes
                .filter(|_| self.design.base == ValuePlacement::ValueLog),
            memtable_bytes: self.settings.memtable_bytes,
            bucket_bytes: self.bucket_bytes.filter(|_| self.design.mode.uses_operand_store()),
        }
    }

    /// Returns the result of the measurement. `used` is the resource usage from the first operation until compaction
    /// was idle.
    pub(super) fn result_cell(
        &self,
        database: &LoadedDatabase<'_>,
        played: &OperationMeasurements,
        used: &ResourceCounters,
    ) -> RmwCell {
        let reads = played.count(OperationKind::Get);
        RmwCell {
            engine: self.design.engine.name().to_owned(),
            mode: self.design.mode,
            base: self.design.base,
            read_ratio: self.recipe.mix.read_ratio(self.recipe.read_ratio),
            workload: self.workload_summary(database.records),
            sweep: self.sweep.clone(),
            seed: self.recipe.seed,
            ops: played.ops,
            ops_per_s: played.ops_per_s(0.0),
            elapsed_s: played.elapsed_s(),
            settle_s: 0.0,
            reads,
            read_latency_us: played.latency(OperationKind::Get),
            rmws: played.count(OperationKind::Update),
            rmw_latency_us: played.latency(OperationKind::Update),
            put_latency_us: played.latency(OperationKind::Put),
            scans: played.count(OperationKind::Scan),
            scan_latency_us: played.latency(OperationKind::Scan),
            scanned_entries: played.entries_read,
            cpu: played.cpu,
            process_cpu: used.cpu,
            ios_per_read: (reads > 0).then(|| ratio(played.block_reads, reads)),
            read_bytes: used.io.read,
            written_bytes: used.io.written,
            wal_bytes: used.engine_written.map(|written| written.wal_bytes),
            device: used.device,
            operand_store: None,
            source: None,
            storage_bytes: process::directory_disk_bytes(database.path),
            blob_bytes: database.engine.blob_bytes(),
            memory_bytes: played.memory_bytes_max,
            memory_bytes_before: database.memory_bytes_before,
            checked_records: 0,
            recovery: None,
            repeats: None,
        }
    }
}

/// Copies the directory of an idle database recursively. Files that the database removes during the copy are skipped.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action: "copy", path, source }
    };
    fs::create_dir_all(to).map_err(failed(to))?;
    for entry in fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_files(&source, &target)?;
        } else {
            match fs::copy(&source, &target) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                copied => drop(copied.map_err(failed(&source))?),
            }
        }
    }
    Ok(())
}
