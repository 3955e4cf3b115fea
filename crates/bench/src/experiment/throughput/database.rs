//! The database of one engine through all workloads of a command.

use std::path::{Path, PathBuf};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers::{self, ratio};
use crate::peers::{Engine, Kind, Settings, Written};
use crate::process;
use crate::workload::random::Random;

use super::player::{Play, Played, Task, play};
use super::records::{Live, Records};
use super::result::{Cell, Writer};
use super::workload::Workload;

/// Records that must be there for an existing database to be taken as one that was filled with the
/// same flags.
const PROBES: u64 = 100;

/// One step of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) workload: Workload,
    /// Its place in the command.
    pub(super) place: u64,
    pub(super) threads: usize,
}

/// What all steps have in common.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) records: Records,
    pub(super) entries: u64,
    pub(super) ops: Option<u64>,
    pub(super) seek_entries: u64,
    pub(super) rate: Option<f64>,
    pub(super) seed: u64,
}

/// A database and what is in it.
pub(super) struct Database {
    kind: Kind,
    path: PathBuf,
    engine: Option<Box<dyn Engine>>,
    live: Live,
    /// Whether it was there before this command, which therefore must not remove it.
    found: bool,
}

/// Counters that are read before and after a play.
struct Reading {
    written: Option<Written>,
    process_written_bytes: Option<u64>,
    cpu_s: Option<f64>,
}

impl Reading {
    fn take(engine: &dyn Engine) -> Reading {
        Reading {
            written: engine.written(),
            process_written_bytes: process::written_bytes(),
            cpu_s: process::cpu().map(|cpu| cpu.user_s + cpu.system_s),
        }
    }
}

impl Database {
    /// The database at this path, made when the first workload needs it; one that is there already
    /// must hold the records of the plan.
    pub(super) fn new(kind: Kind, path: PathBuf, plan: &Plan) -> Result<Database> {
        let found = holds_something(&path);
        let mut database = Database { kind, path, engine: None, live: Live::default(), found };
        if found {
            let engine = kind.open(&database.path, &plan.settings)?;
            let result = database.probe(engine.as_ref(), plan);
            if let Err(error) = result {
                engine.close()?;
                return Err(error);
            }
            database.engine = Some(engine);
            database.live = Live::loaded(plan.entries);
        }
        Ok(database)
    }

    fn probe(&self, engine: &dyn Engine, plan: &Plan) -> Result<()> {
        let mut random = Random::new(plan.seed, 0);
        let mut key = Vec::new();
        for _ in 0..PROBES {
            let record = random.below(plan.entries);
            plan.records.key(record, &mut key);
            let mut right = false;
            engine.get(&key, &mut |value| right = plan.records.is_value(record, value))?;
            if !right {
                return Err(Error::Invalid {
                    name: "--db",
                    value: self.path.display().to_string(),
                    must: "new, or filled with the same --entries, --key-len, --value-len, --seed \
                           and workloads that insert as many records"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Plays a step; a scan gives two cells, every other workload one.
    ///
    /// `fillsync` has a database of its own beside this one, gone afterwards: it puts a part of the
    /// records, and those that come after it shall find all of them.
    pub(super) fn step(
        &mut self,
        step: Step,
        plan: &Plan,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Cell>> {
        let workload = step.workload;
        if workload == Workload::Fillsync {
            let mut path = self.path.clone().into_os_string();
            path.push(".fillsync");
            let mut beside = Database::new(self.kind, path.into(), plan)?;
            beside.renew(workload, plan)?;
            let cell = beside.play(workload.name(), task(workload, plan), step, plan, progress)?;
            beside.close()?;
            beside.remove()?;
            return Ok(vec![cell]);
        }
        let mut loaded_first = false;
        if workload.fills() {
            self.renew(workload, plan)?;
        } else if self.live.count() == 0 {
            self.load(plan, step.place, progress)?;
            loaded_first = true;
        }
        let directions: &[(&str, Task)] = &match workload {
            Workload::Scan => [
                ("scan", Task::Scan { backward: false }),
                ("scan-backward", Task::Scan { backward: true }),
            ],
            // The second is left out below.
            other => [(other.name(), task(other, plan)); 2],
        };
        let plays = if workload == Workload::Scan { 2 } else { 1 };
        directions[..plays]
            .iter()
            .map(|(name, task)| {
                let mut cell = self.play(name, *task, step, plan, progress)?;
                cell.loaded_first = loaded_first;
                Ok(cell)
            })
            .collect()
    }

    /// Closes the database.
    pub(super) fn close(&mut self) -> Result<()> {
        self.engine.take().map_or(Ok(()), |engine| engine.close())
    }

    fn play(
        &mut self,
        name: &str,
        task: Task,
        step: Step,
        plan: &Plan,
        progress: &mut dyn Progress,
    ) -> Result<Cell> {
        let Step { workload, place, threads } = step;
        let mut ops = workload.ops(plan.entries, plan.ops);
        if workload == Workload::Deleterandom {
            self.live.mark_for_deletion(plan.seed);
            ops = ops.min(self.live.deletable());
        }
        let engine = self.engine.as_deref().ok_or_else(|| self.not_open())?;
        let before = Reading::take(engine);
        let game = Play {
            task,
            ops,
            threads,
            rate: plan.rate,
            writer: workload == Workload::Readwhilewriting,
            seed: plan.seed,
            purpose: place,
        };
        progress.begin(&format!("{}: {name}", self.kind), ops);
        let (played, writer) = play(engine, &plan.records, &mut self.live, game, progress)?;
        progress.end();
        let mut settle_s = 0.0;
        if workload.writes() {
            progress.begin(&format!("{}: settle", self.kind), 0);
            let watch = Stopwatch::start();
            let quiet_ns = engine.settle()?;
            settle_s = numbers::float(watch.elapsed_ns().saturating_sub(quiet_ns)) / 1e9;
            progress.end();
        }
        let after = Reading::take(engine);
        let table_bytes = engine.table_bytes()?;
        let disk_bytes = process::disk_bytes(&self.path);
        let mut cell = cell(name, &played, writer.as_ref(), settle_s, workload.counts_settling());
        cell.engine = self.kind.name().to_owned();
        cell.threads = numbers::count(threads);
        cell.put_bytes *= plan.records.bytes();
        cell.cpu_s = before.cpu_s.zip(after.cpu_s).map(|(before, after)| after - before);
        cell.written = before.written.zip(after.written).map(|(before, after)| after.since(before));
        cell.process_written_bytes = before
            .process_written_bytes
            .zip(after.process_written_bytes)
            .map(|(before, after)| after.saturating_sub(before));
        let written = cell.written.map(Written::total).or(cell.process_written_bytes);
        cell.device_write_amplification =
            written.filter(|_| cell.put_bytes > 0).map(|written| ratio(written, cell.put_bytes));
        cell.table_bytes = table_bytes;
        cell.disk_bytes = disk_bytes;
        cell.logical_bytes = self.live.count() * plan.records.bytes();
        cell.space_amplification =
            (cell.logical_bytes > 0).then(|| ratio(table_bytes, cell.logical_bytes));
        Ok(cell)
    }

    /// Puts all records into a new database, as `fillrandom` does, and settles.
    fn load(&mut self, plan: &Plan, place: u64, progress: &mut dyn Progress) -> Result<()> {
        self.renew(Workload::Fillrandom, plan)?;
        let engine = self.engine.as_deref().ok_or_else(|| self.not_open())?;
        let game = Play {
            task: Task::Put { sync: false },
            ops: plan.entries,
            threads: 1,
            rate: None,
            writer: false,
            seed: plan.seed,
            purpose: place,
        };
        progress.begin(&format!("{}: load", self.kind), plan.entries);
        play(engine, &plan.records, &mut self.live, game, progress)?;
        engine.settle()?;
        progress.end();
        Ok(())
    }

    /// A new database in place of the one before.
    fn renew(&mut self, workload: Workload, plan: &Plan) -> Result<()> {
        if self.found {
            return Err(Error::Contradiction {
                first: workload.to_string(),
                second: format!("--db {}", self.path.display()),
                why: "it fills a new database, and there is one already",
            });
        }
        if let Some(engine) = self.engine.take() {
            engine.close()?;
            self.remove()?;
        }
        self.live = Live::default();
        self.engine = Some(self.kind.open(&self.path, &plan.settings)?);
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        let failed = |source| Error::Io { action: "remove", path: self.path.clone(), source };
        std::fs::remove_dir_all(&self.path).map_err(failed)
    }

    /// Every step opens the database first.
    fn not_open(&self) -> Error {
        let source = std::io::ErrorKind::NotConnected.into();
        Error::Io { action: "use the closed database", path: self.path.clone(), source }
    }
}

/// Whether a directory is there and not empty, or something else is there under its name.
pub(in crate::experiment) fn holds_something(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

fn task(workload: Workload, plan: &Plan) -> Task {
    match workload {
        Workload::Fillseq => Task::PutInOrder,
        Workload::Fillrandom => Task::Put { sync: false },
        Workload::Fillsync => Task::Put { sync: true },
        Workload::Overwrite => Task::Overwrite,
        Workload::Readrandom | Workload::Readwhilewriting => Task::Read,
        Workload::Readmissing => Task::ReadAbsent,
        Workload::Seekrandom => Task::Seek { entries: plan.seek_entries },
        Workload::Scan => Task::Scan { backward: false },
        Workload::Deleterandom => Task::Delete,
        Workload::Ycsb(mix) => Task::Ycsb(mix),
    }
}

/// What the play itself says; `put_bytes` still holds the number of puts.
fn cell(
    name: &str,
    played: &Played,
    writer: Option<&Played>,
    settle_s: f64,
    counts_settling: bool,
) -> Cell {
    let elapsed_s = numbers::float(played.elapsed_ns) / 1e9;
    let per_s = |ops: u64, s: f64| if s > 0.0 { numbers::float(ops) / s } else { 0.0 };
    let unsettled = per_s(played.ops, elapsed_s);
    let ops_per_s =
        if counts_settling { per_s(played.ops, elapsed_s + settle_s) } else { unsettled };
    Cell {
        workload: name.to_owned(),
        engine: String::new(),
        threads: 0,
        ops: played.ops,
        ops_per_s,
        ops_per_s_unsettled: unsettled,
        elapsed_s,
        settle_s,
        cpu_s: None,
        latency_us: played.latencies.summary(),
        entries_read: played.entries_read,
        absent: played.absent,
        put_bytes: played.puts + writer.map_or(0, |writer| writer.puts),
        device_write_amplification: None,
        written: None,
        process_written_bytes: None,
        space_amplification: None,
        table_bytes: 0,
        disk_bytes: 0,
        logical_bytes: 0,
        writer: writer.map(|writer| Writer {
            ops: writer.ops,
            ops_per_s: per_s(writer.ops, numbers::float(writer.elapsed_ns) / 1e9),
            latency_us: Latencies::summary(&writer.latencies),
        }),
        loaded_first: false,
        repetition: 1,
        ops_per_s_runs: vec![ops_per_s],
        ops_per_s_interval: [ops_per_s; 2],
    }
}
