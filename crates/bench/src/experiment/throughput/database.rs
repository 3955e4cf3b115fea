//! Runs the workloads of a command on the database of one engine.

use std::path::{Path, PathBuf};

use lsmx_base::sync::{AtomicU64, Ordering};

use crate::clock::{Stopwatch, sleep_ns};
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::experiment::player::{
    OperationKind, OperationMeasurements, Player, ResourceCounters, ThreadGroup, ThreadWork,
    flush_and_wait_idle, get_and_check, remove_directory,
};
use crate::numbers::{ratio, to_f64};
use crate::peers::{Engine, EngineKind, EngineSettings, WrittenBytes};
use crate::process;
use crate::report::file;
use crate::temporary::create_temporary_directory;
use crate::workload::mixgraph::MixGraph;
use crate::workload::operation_mix::{MixedOperation, OperationMix, Popularity};
use crate::workload::random::Random;
use crate::workload::records::GeneratedRecords;

use super::present_records::PresentRecords;
use super::result::{ThroughputCell, WriterRates};
use super::workload::{Workload, YCSB_ZIPF_EXPONENT};
use super::workload_argument::WorkloadArgument;

/// Number of records that are looked up to check that an existing database contains the expected records.
const PROBES: u64 = 100;

/// Sleep time of a concurrent writer that is ahead of its target rate, in nanoseconds.
const WRITER_SLEEP_NS: u64 = 1_000_000;

/// A workload to run with given settings.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct WorkloadStep {
    /// The workload as given on the command line.
    pub(super) argument: WorkloadArgument,
    /// Position in the list of workloads to run. The random numbers of a workload depend on its position.
    pub(super) place: u64,
    pub(super) threads: u64,
    /// Number of operations of all threads.
    pub(super) ops: u64,
    pub(super) seek_entries: u64,
    pub(super) rate: Option<f64>,
}

/// Parameters that are the same for all workloads.
#[derive(Debug)]
pub(in crate::experiment) struct BenchPlan {
    pub(in crate::experiment) settings: EngineSettings,
    pub(in crate::experiment) records: GeneratedRecords,
    pub(in crate::experiment) entries: u64,
    pub(in crate::experiment) seed: u64,
}

/// The database of an engine, and the set of records that it contains.
pub(super) struct BenchDatabase {
    kind: EngineKind,
    path: PathBuf,
    engine: Option<Box<dyn Engine>>,
    present: PresentRecords,
    /// Whether the database existed before the command. An existing database is never replaced or removed.
    existed: bool,
}

impl BenchDatabase {
    /// Opens an existing database and checks that the expected records are present. If no database exists, the first
    /// workload creates the database.
    pub(super) fn new(kind: EngineKind, path: PathBuf, plan: &BenchPlan) -> Result<BenchDatabase> {
        let existed = has_entries(&path);
        let present = PresentRecords::default();
        let mut database = BenchDatabase { kind, path, engine: None, present, existed };
        if existed {
            let engine = kind.open(&database.path, &plan.settings)?;
            if let Err(error) = check_records(engine.as_ref(), &database.path, plan) {
                engine.close()?;
                return Err(error);
            }
            database.engine = Some(engine);
            database.present = PresentRecords::with_records_below(plan.entries);
        }
        Ok(database)
    }

    /// Runs a workload. Returns one result, or two results (forward and backward) for the workload `scan`.
    ///
    /// The workload `fillsync` puts only some of the records, but later workloads need all records. Therefore
    /// `fillsync` runs in a separate database, which is removed afterwards.
    pub(super) fn run_step(
        &mut self,
        step: WorkloadStep,
        plan: &BenchPlan,
        progress: &mut dyn Progress,
    ) -> Result<Vec<ThroughputCell>> {
        let workload = step.argument.workload;
        if workload == Workload::Fillsync {
            let temporary = create_temporary_directory("lsmx-fillsync-", file::parent(&self.path))?;
            let path = temporary.path().join("db");
            let mut separate = BenchDatabase::new(self.kind, path, plan)?;
            separate.replace_database(workload, plan)?;
            let cell = separate.measure_operations(step, false, plan, progress)?;
            separate.close()?;
            return Ok(vec![cell]);
        }
        let loaded_first = !workload.needs_new_database() && self.present.count() == 0;
        if loaded_first {
            self.load_records(plan, progress)?;
        } else if workload.needs_new_database() {
            self.replace_database(workload, plan)?;
        }
        let mut cells = Vec::new();
        for backward in [false, true] {
            if !backward || workload == Workload::Scan {
                let cell = self.measure_operations(step, backward, plan, progress)?;
                cells.push(ThroughputCell { loaded_first, ..cell });
            }
        }
        Ok(cells)
    }

    pub(super) fn close(&mut self) -> Result<()> {
        self.engine.take().map_or(Ok(()), |engine| engine.close())
    }

    fn measure_operations(
        &mut self,
        step: WorkloadStep,
        backward: bool,
        plan: &BenchPlan,
        progress: &mut dyn Progress,
    ) -> Result<ThroughputCell> {
        let WorkloadStep { argument, threads, mut ops, .. } = step;
        let workload = argument.workload;
        if workload == Workload::Deleterandom {
            self.present.draw_deletion_order(plan.seed);
            ops = ops.min(self.present.deletable_count());
        }
        let engine = open_engine(self.engine.as_deref(), &self.path)?;
        let before = ResourceCounters::read(engine, &self.path);
        let next_record = AtomicU64::new(self.present.end());
        let operations = WorkloadOperations {
            workload,
            backward,
            ops,
            seek_entries: step.seek_entries,
            writer_rate: argument.writer_rate,
            plan,
            present: &self.present,
            next_record,
        };
        let group = ThreadGroup {
            threads,
            rate: step.rate,
            seed: plan.seed,
            purpose: step.place,
            ..ThreadGroup::single_thread(engine, &plan.records)
        };
        let writer: &ThreadWork<'_> = &|player| operations.overwrite_until_stopped(player);
        let name = if backward { "scan-backward".to_owned() } else { argument.result_name() };
        let (played, writer) = group.run_work_with_writer(
            (&format!("{}: {name}", self.kind), ops),
            progress,
            &|player| operations.run(player),
            (workload == Workload::Readwhilewriting).then_some(writer),
            &mut |_| {},
        )?;
        let until_last = ResourceCounters::read(engine, &self.path).since(&before);
        let per_op = |count: u64| ratio(count, played.ops);
        let inserted_to = operations.next_record.into_inner();
        match workload {
            _ if workload.needs_new_database() => {
                self.present = PresentRecords::with_records_below(ops)
            }
            Workload::Deleterandom => self.present.delete_next(played.ops),
            _ => self.present.extend_to(inserted_to),
        }
        let mut settle_s = 0.0;
        if workload.has_writes() {
            settle_s = flush_and_wait_idle(engine, &format!("{}: settle", self.kind), progress)?;
        }
        let used = ResourceCounters::read(engine, &self.path).since(&before);
        let table_bytes = engine.table_bytes()?;
        let puts = |played: &OperationMeasurements| {
            played.count(OperationKind::Put) + played.count(OperationKind::Update)
        };
        let put_bytes = plan.records.total_bytes(puts(&played) + writer.as_ref().map_or(0, puts));
        let written = used.engine_written.map(WrittenBytes::total).or(used.process_written_bytes);
        let logical_bytes = plan.records.total_bytes(self.present.count());
        let counted_s = if workload.includes_idle_wait() { settle_s } else { 0.0 };
        let ops_per_s = played.ops_per_s(counted_s);
        Ok(ThroughputCell {
            workload: name,
            engine: self.kind.name().to_owned(),
            threads,
            ops: played.ops,
            ops_per_s,
            ops_per_s_unsettled: played.ops_per_s(0.0),
            elapsed_s: played.elapsed_s(),
            settle_s,
            cpu_s: used.cpu.map(|cpu| cpu.user_s + cpu.system_s),
            latency_us: played.total_latency(),
            entries_read: played.entries_read,
            absent: played.absent,
            device_read_bytes_per_op: until_last.storage_read_bytes.map(per_op),
            device_reads_per_op: until_last.device.map(|device| per_op(device.reads)),
            put_bytes,
            device_write_amplification: written
                .filter(|_| put_bytes > 0)
                .map(|written| ratio(written, put_bytes)),
            written: used.engine_written,
            process_written_bytes: used.process_written_bytes,
            space_amplification: (logical_bytes > 0).then(|| ratio(table_bytes, logical_bytes)),
            table_bytes,
            disk_bytes: process::directory_disk_bytes(&self.path),
            logical_bytes,
            writer: writer.map(|writer| WriterRates {
                ops: writer.ops,
                ops_per_s: writer.ops_per_s(0.0),
                latency_us: writer.total_latency(),
            }),
            loaded_first: false,
            repetition: 1,
            ops_per_s_runs: vec![ops_per_s],
            ops_per_s_interval: [ops_per_s; 2],
            best_peer_ratio: None,
        })
    }

    /// Puts all records into a new database in random order, and waits until compaction is idle.
    fn load_records(&mut self, plan: &BenchPlan, progress: &mut dyn Progress) -> Result<()> {
        self.replace_database(Workload::Fillrandom, plan)?;
        let engine = open_engine(self.engine.as_deref(), &self.path)?;
        let title = format!("{}: load", self.kind);
        ThreadGroup::single_thread(engine, &plan.records)
            .load_records((&title, plan.entries), progress)?;
        self.present = PresentRecords::with_records_below(plan.entries);
        Ok(())
    }

    /// Closes and removes the database of an earlier workload, and creates an empty database.
    fn replace_database(&mut self, workload: Workload, plan: &BenchPlan) -> Result<()> {
        if self.existed {
            let second = format!("--db {}", self.path.display());
            let why = "it fills a new database, and there is one already";
            return Err(Error::contradictory_arguments(workload.name(), second, why));
        }
        if let Some(engine) = self.engine.take() {
            engine.close()?;
            remove_directory(&self.path)?;
        }
        self.present = PresentRecords::default();
        self.engine = Some(self.kind.open(&self.path, &plan.settings)?);
        Ok(())
    }
}

fn open_engine<'a>(engine: Option<&'a dyn Engine>, path: &Path) -> Result<&'a dyn Engine> {
    engine.ok_or_else(|| Error::Io {
        action: "use the closed database",
        path: path.to_owned(),
        source: std::io::ErrorKind::NotConnected.into(),
    })
}

/// Returns whether the directory has entries. Also returns true if the path exists but is not a readable directory.
pub(in crate::experiment) fn has_entries(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

/// Looks up a few records to check that an existing database contains the records of the plan.
pub(in crate::experiment) fn check_records(
    engine: &dyn Engine,
    path: &Path,
    plan: &BenchPlan,
) -> Result<()> {
    let mut random = Random::new(plan.seed, 0);
    let mut key = Vec::new();
    for _ in 0..PROBES {
        let record = random.next_below(plan.entries);
        plan.records.write_key(record, &mut key);
        match get_and_check(engine, &plan.records, record, &key) {
            Ok(true) => {}
            Ok(false) | Err(Error::WrongAnswer { .. }) => {
                let must = "new, or filled with the same --entries, --key-len, --value-len, \
                            --seed and workloads that insert as many records";
                return Err(Error::invalid_argument("--db", path.display(), must));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct WorkloadOperations<'a> {
    workload: Workload,
    backward: bool,
    /// Number of operations of all threads. For `scan`, the number of entries that each thread reads.
    ops: u64,
    seek_entries: u64,
    /// Puts per second of the concurrent writer. If `None`, the writer puts as fast as the engine accepts.
    writer_rate: Option<f64>,
    plan: &'a BenchPlan,
    /// Set of records that are present when the workload starts.
    present: &'a PresentRecords,
    /// Number of the next record to insert.
    next_record: AtomicU64,
}

impl WorkloadOperations<'_> {
    /// Runs the operations that are assigned to one thread.
    fn run(&self, player: &mut Player<'_>) -> Result<()> {
        let (ops, records) = (self.ops, &self.plan.records);
        match self.workload {
            // Records with numbers of at least `ops` are skipped. They are reserved for workloads that insert.
            Workload::Fillseq => {
                player.for_each_own_number(records.keys().len(), |player, rank| {
                    let record = records.keys().record_at(rank);
                    if record < ops { player.put(record, 0) } else { Ok(()) }
                })
            }
            Workload::Fillrandom => {
                player.for_each_own_number(ops, |player, record| player.put(record, 0))
            }
            Workload::Fillsync => player.for_each_own_number(ops, |player, record| {
                player.prepare_record(record, 0);
                player.measure_operation(OperationKind::Put, |engine, key, value| {
                    engine.put_sync(key, value)
                })
            }),
            Workload::Overwrite => {
                player.for_each_own_number(ops, |player, _| self.overwrite_records(player))
            }
            Workload::Deleterandom => player.for_each_own_number(ops, |player, n| {
                player.prepare_key(self.present.nth_deletable_record(n));
                player.measure_operation(OperationKind::Delete, |engine, key, _| engine.delete(key))
            }),
            Workload::Readrandom | Workload::Readwhilewriting => {
                player.for_each_own_number(ops, |player, _| {
                    let record = self.draw_present(player);
                    player.get_present(record)
                })
            }
            Workload::Readmissing => player.for_each_own_number(ops, |player, _| {
                let record = player.random.next_below(records.keys().len());
                player.get_absent(record)
            }),
            Workload::Seekrandom => player.for_each_own_number(ops, |player, _| {
                let record = self.draw_present(player);
                player.seek(record, self.seek_entries)
            }),
            Workload::Scan => {
                let entries = ops.min(self.present.count());
                player.scan(self.backward, entries, records.total_bytes(entries))
            }
            Workload::Ycsb(mix) => self.run_mix(mix, player),
            Workload::Mixgraph => self.run_mixgraph(player),
        }
    }

    fn draw_present(&self, player: &mut Player<'_>) -> u64 {
        self.present.nth_record(player.random.next_below(self.present.count()))
    }

    fn overwrite_records(&self, player: &mut Player<'_>) -> Result<()> {
        let record = self.draw_present(player);
        put_new_value(player, record)
    }

    /// Puts new values until the other threads end. With a target rate, the thread sleeps while it is ahead of the
    /// rate. A spin loop would take processor time from the threads of the engine.
    fn overwrite_until_stopped(&self, player: &mut Player<'_>) -> Result<()> {
        let watch = Stopwatch::start();
        let mut puts: u64 = 0;
        while !player.is_stopped() {
            let is_ahead = |rate| to_f64(puts) > rate * watch.elapsed_s();
            if self.writer_rate.is_some_and(is_ahead) {
                sleep_ns(WRITER_SLEEP_NS);
                continue;
            }
            self.overwrite_records(player)?;
            puts += 1;
        }
        Ok(())
    }

    fn run_mix(&self, mix: OperationMix, player: &mut Player<'_>) -> Result<()> {
        let loaded = self.present.count();
        let popularity = Popularity::new(YCSB_ZIPF_EXPONENT, loaded, self.plan.seed);
        let mut number = 0;
        player.for_each_own_number(self.ops, |player, _| {
            let operation = mix.draw(number, 0.0, &mut player.random);
            number += 1;
            if operation == MixedOperation::Insert {
                return player.put(self.next_record.fetch_add(1, Ordering::Relaxed), 0);
            }
            let inserted = self.next_record.load(Ordering::Relaxed) - self.present.end();
            let drawn = mix.draw_record(&popularity, loaded + inserted, &mut player.random);
            let record = self.present.nth_record(drawn);
            self.run_mixed_operation(operation, record, player)
        })
    }

    fn run_mixgraph(&self, player: &mut Player<'_>) -> Result<()> {
        let keys = self.plan.records.keys();
        let mix = MixGraph::new(keys.len(), self.plan.seed);
        player.for_each_own_number(self.ops, |player, _| {
            let operation = mix.draw_operation(&mut player.random);
            let rank = mix.draw_key_rank(&mut player.random);
            match self.present.next_in_key_order(rank, keys) {
                Some(record) => self.run_mixed_operation(operation, record, player),
                None => Ok(()),
            }
        })
    }

    /// Runs an operation of an operation mix on a record. The caller handles inserts.
    fn run_mixed_operation(
        &self,
        operation: MixedOperation,
        record: u64,
        player: &mut Player<'_>,
    ) -> Result<()> {
        match operation {
            MixedOperation::Read if record < self.present.end() => player.get_present(record),
            // Another thread may have reserved this record number but not yet put the record, so the record may be
            // absent.
            MixedOperation::Read if player.group.threads > 1 => player.get(record).map(drop),
            MixedOperation::Read => player.get_present(record),
            MixedOperation::Scan(entries) => player.seek(record, entries),
            MixedOperation::Put | MixedOperation::Insert => put_new_value(player, record),
            MixedOperation::Update | MixedOperation::Rewrite => {
                let version = player.random.next_u64();
                player.prepare_record(record, version);
                let records = player.group.records;
                player.measure_operation(OperationKind::Update, |engine, key, value| {
                    if get_and_check(engine, records, record, key)? {
                        return engine.put(key, value);
                    }
                    Err(Error::wrong_answer(key, "absent", "present"))
                })
            }
        }
    }
}

fn put_new_value(player: &mut Player<'_>, record: u64) -> Result<()> {
    let version = player.random.next_u64();
    player.put(record, version)
}
