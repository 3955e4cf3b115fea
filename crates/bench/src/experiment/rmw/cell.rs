//! One cell: a new database is loaded, operated on, measured, checked and removed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use lsmx_delta::DeltaOptions;

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::sweep::SweepPoint;
use crate::latency::Latencies;
use crate::numbers::{self, ratio};
use crate::peers::{Fields, IoBytes};
use crate::process::{self, Cpu, DeviceIo};

use super::design::{Base, Design, Resources};
use super::model::Model;
use super::play::{Played, Table, play};
use super::records::{Records, Shape};
use super::result::{Cell, Recovery, Workload};
use super::stream::Recipe;

/// What one cell is to do.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) design: Design,
    pub(super) recipe: Recipe,
    pub(super) shape: Shape,
    pub(super) threads: u64,
    pub(super) memory_budget: u64,
    pub(super) direct_io: bool,
    pub(super) scan_read_bytes: Option<u64>,
    pub(super) delta: DeltaOptions,
    pub(super) sweep: SweepPoint,
    /// Whether a copy as of a kill is opened at the end.
    pub(super) recovers: bool,
}

/// Counters that are read before and after the operations.
pub(super) struct Reading {
    io: IoBytes,
    device: Option<DeviceIo>,
    cpu: Option<Cpu>,
}

impl Reading {
    pub(super) fn take(engine: &dyn Fields, path: &Path) -> Reading {
        Reading { io: engine.io_bytes(), device: process::device_io(path), cpu: process::cpu() }
    }

    /// Tells a cell what came between `before` and this.
    pub(super) fn tell_since(&self, before: &Reading, cell: &mut Cell) {
        cell.read_bytes = self.io.read.saturating_sub(before.io.read);
        cell.written_bytes = self.io.written.saturating_sub(before.io.written);
        cell.device = self.device.zip(before.device).map(|(after, before)| after.since(before));
        cell.process_cpu = self.cpu.zip(before.cpu).map(|(after, before)| after.since(before));
    }
}

impl Plan {
    pub(super) fn resources(&self) -> Resources {
        Resources {
            memory_budget: self.memory_budget,
            value_bytes_max: u32::try_from(self.shape.value.max()).unwrap_or(u32::MAX),
            direct_io: self.direct_io,
            scan_read_bytes: self.scan_read_bytes,
            delta: self.delta,
        }
    }

    pub(super) fn records(&self) -> Result<Records> {
        let capacity = self.recipe.records + self.recipe.inserts();
        Records::new(capacity, self.shape, self.recipe.seed)
    }

    /// What is said while it runs.
    pub(super) fn title(&self, what: &str) -> String {
        let sweep = if self.sweep.is_empty() { String::new() } else { format!(" {}", self.sweep) };
        format!("{}{sweep}: {what}", self.design)
    }

    /// Runs it in this directory, of which nothing is left.
    pub(super) fn run(&self, directory: &Path, progress: &mut dyn Progress) -> Result<Cell> {
        let path = directory.join("db");
        let memory_bytes_before = process::resident_bytes();
        let records = self.records()?;
        let engine = self.design.open(&path, self.resources())?;
        let table = Table { engine: engine.as_ref(), records: &records, mode: self.design.mode };
        self.load(table, progress)?;
        let before = Reading::take(table.engine, &path);
        progress.begin(&self.title("operate"), self.recipe.ops);
        let played = play(table, &self.recipe, self.threads, progress)?;
        progress.end();
        let model = Model::after(&self.recipe, &records);
        let recovery =
            self.recovers.then(|| self.recover(table.engine, &path, directory, &model, &records));
        progress.begin(&self.title("settle"), 0);
        let watch = Stopwatch::start();
        engine.settle()?;
        let settle_s = watch.elapsed_s();
        progress.end();
        let after = Reading::take(engine.as_ref(), &path);
        let storage_bytes = process::disk_bytes(&path);
        let (operand_store, blob_bytes) = (engine.operand_store(), engine.blob_bytes());
        model.check(engine.as_ref(), &records)?;
        engine.close()?;
        remove(&path)?;
        let mut cell = self.cell(&records, &played);
        cell.settle_s = settle_s;
        after.tell_since(&before, &mut cell);
        cell.operand_store = operand_store;
        cell.storage_bytes = storage_bytes;
        cell.blob_bytes = blob_bytes;
        cell.memory_bytes_before = memory_bytes_before;
        cell.checked_records = numbers::count(model.len());
        cell.recovery = recovery.transpose()?;
        Ok(cell)
    }

    /// Loads the records, settles, and warms up.
    pub(super) fn load(&self, table: Table<'_>, progress: &mut dyn Progress) -> Result<()> {
        progress.begin(&self.title("load"), self.recipe.records);
        table.load(self.recipe.records, progress)?;
        table.engine.settle()?;
        progress.end();
        progress.begin(&self.title("warm up"), 0);
        table.warm_up(&self.recipe)?;
        progress.end();
        Ok(())
    }

    /// Copies the files as a kill would leave them, opens the copy, and compares it with the model.
    fn recover(
        &self,
        engine: &dyn Fields,
        path: &Path,
        directory: &Path,
        model: &Model,
        records: &Records,
    ) -> Result<Recovery> {
        let copy = directory.join("killed");
        engine.rest()?;
        copy_files(path, &copy)?;
        let storage_bytes = process::disk_bytes(&copy);
        let watch = Stopwatch::start();
        let reopened = self.design.open(&copy, self.resources())?;
        let open_s = watch.elapsed_s();
        model.check(reopened.as_ref(), records)?;
        reopened.close()?;
        remove(&copy)?;
        Ok(Recovery { open_s, storage_bytes })
    }

    pub(super) fn workload(&self, records: &Records) -> Workload {
        Workload {
            mix: self.recipe.mix.name().to_owned(),
            records: self.recipe.records,
            loaded_bytes: records.bytes(self.recipe.records),
            key_len: self.shape.key.max(),
            value_len: self.shape.value.max(),
            field_len: self.shape.field_bytes,
            delta_len: self.shape.delta_bytes,
            zipf: self.recipe.zipf,
            threads: self.threads,
            memory_budget: self.memory_budget,
            direct_io: self.direct_io,
            scan_read_bytes: self.scan_read_bytes.filter(|_| self.design.base == Base::ValueLog),
        }
    }

    /// What the operations say; the rest is still empty.
    pub(super) fn cell(&self, records: &Records, played: &Played) -> Cell {
        let elapsed_s = numbers::float(played.elapsed_ns) / 1e9;
        let reads = played.reads.count();
        Cell {
            engine: self.design.engine.name().to_owned(),
            mode: self.design.mode,
            base: self.design.base,
            read_ratio: self.recipe.mix.read_ratio(self.recipe.read_ratio),
            workload: self.workload(records),
            sweep: self.sweep.clone(),
            seed: self.recipe.seed,
            ops: played.ops,
            ops_per_s: if elapsed_s > 0.0 { numbers::float(played.ops) / elapsed_s } else { 0.0 },
            elapsed_s,
            settle_s: 0.0,
            reads,
            read_latency_us: played.reads.summary(),
            rmws: played.updates.count(),
            rmw_latency_us: Latencies::summary(&played.updates),
            put_latency_us: played.puts.summary(),
            scans: played.scans.count(),
            scan_latency_us: played.scans.summary(),
            scanned_entries: played.scanned_entries,
            cpu: played.cpu,
            process_cpu: None,
            ios_per_read: (reads > 0).then(|| ratio(played.read_ios, reads)),
            read_bytes: 0,
            written_bytes: 0,
            device: None,
            operand_store: None,
            storage_bytes: 0,
            blob_bytes: None,
            memory_bytes: played.memory_bytes,
            memory_bytes_before: None,
            checked_records: 0,
            recovery: None,
            repeats: None,
        }
    }
}

pub(super) fn remove(path: &Path) -> Result<()> {
    let failed = |source| Error::Io { action: "remove", path: path.to_owned(), source };
    fs::remove_dir_all(path).map_err(failed)
}

/// Copies a directory in which nobody writes, with all that is below it. What goes meanwhile is what nobody
/// needs any more: the database takes such files away when it likes.
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
