//! Threads that run operations on an engine and measure the latency of each operation.
//!
//! A thread prepares a key and a value, reads the clock, calls the engine, and reads the clock again. If a rate is set,
//! each operation has a due time from which its latency is measured. The latency then includes the time that the
//! operation waits for the preceding operation.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use lsmx_base::sync::{AtomicBool, AtomicU64, Ordering};

use crate::clock::{Stopwatch, shorten_timer_slack, wait_until_elapsed};
use crate::error::{Error, Result};
use crate::latency::{Latencies, LatencyUs};
use crate::numbers::{self, to_f64};
use crate::peers::{Engine, IoBytes, WrittenBytes};
use crate::process::{self, CpuTimes, DeviceIo};
use crate::workload::random::{Random, hash_u64};
use crate::workload::records::GeneratedRecords;

use super::Progress;

/// Number of operations per thread between two progress reports.
const PROGRESS_OPS: u64 = 256;
/// Number of entries that a full scan reads per latency measurement.
const ENTRIES_PER_MEASUREMENT: u64 = 64;
/// Interval at which progress and memory are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Kind of operation. Latencies are recorded separately for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Point lookup.
    Get,
    /// Put of a complete value.
    Put,
    /// Read-modify-write, or update of a part of a value.
    Update,
    /// Delete of a key.
    Delete,
    /// Scan. A full scan records the latency of single steps to the next entry.
    Scan,
}

/// Latencies by kind of operation. `None` if there was no operation of the kind.
#[derive(Clone, Debug, Default)]
pub(super) struct LatenciesByKind([Option<Latencies>; 5]);

impl LatenciesByKind {
    fn merge(&mut self, other: &LatenciesByKind) {
        for (all, one) in self.0.iter_mut().zip(&other.0) {
            match (all, one) {
                (Some(all), Some(one)) => all.merge(one),
                (all, one) => *all = all.take().or_else(|| one.clone()),
            }
        }
    }

    pub(super) fn count(&self, kind: OperationKind) -> u64 {
        self.0[kind as usize].as_ref().map_or(0, Latencies::count)
    }

    /// Returns the latency of operations of this kind, or zeros if no operation of this kind was measured.
    pub(super) fn summary(&self, kind: OperationKind) -> LatencyUs {
        self.0[kind as usize].as_ref().map(Latencies::summary).unwrap_or_default()
    }
}

/// Measurements of the operations that ended within a time slice.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeSlice {
    pub(super) ops: u64,
    pub(super) total_ns: u64,
    pub(super) max_ns: u64,
    /// Latencies with a relative error of up to 1 %. `None` if [`SliceSettings::latencies`] is not set.
    pub(super) latencies: Option<Box<LatenciesByKind>>,
}

impl TimeSlice {
    fn record(&mut self, kind: OperationKind, ns: u64, has_latencies: bool) {
        self.ops += 1;
        self.total_ns += ns;
        self.max_ns = self.max_ns.max(ns);
        if has_latencies {
            let latencies = self.latencies.get_or_insert_default();
            latencies.0[kind as usize].get_or_insert_with(Latencies::coarse).record_ns(ns);
        }
    }

    pub(super) fn add(&mut self, other: &TimeSlice) {
        self.ops += other.ops;
        self.total_ns += other.total_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        if let Some(other) = &other.latencies {
            self.latencies.get_or_insert_default().merge(other);
        }
    }
}

/// Measurements of the operations of one or more threads.
#[derive(Clone, Debug, Default)]
pub(super) struct OperationMeasurements {
    /// Number of operations. In a full scan each entry counts as an operation.
    pub(super) ops: u64,
    /// Time from the start of the thread group until the last operation ended, in nanoseconds.
    pub(super) elapsed_ns: u64,
    pub(super) latencies: LatenciesByKind,
    /// Number of blocks that lookups read from files. 0 if block reads are not counted.
    pub(super) block_reads: u64,
    /// Number of lookups that found no entry.
    pub(super) absent: u64,
    pub(super) entries_read: u64,
    /// Processor time of the threads that ran operations.
    pub(super) cpu: Option<CpuTimes>,
    /// Maximum resident memory of the process in bytes.
    pub(super) memory_bytes_max: Option<u64>,
    /// Measurements by time slice. Empty if no slice length is set.
    pub(super) slices: Vec<TimeSlice>,
}

impl OperationMeasurements {
    fn record(&mut self, kind: OperationKind, ns: u64) {
        self.latencies.0[kind as usize].get_or_insert_default().record_ns(ns);
    }

    fn time_slice_mut(&mut self, place: u64) -> &mut TimeSlice {
        let place = numbers::to_usize(place);
        if place >= self.slices.len() {
            self.slices.resize(place + 1, TimeSlice::default());
        }
        &mut self.slices[place]
    }

    fn merge(&mut self, other: &OperationMeasurements) {
        self.ops += other.ops;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.latencies.merge(&other.latencies);
        self.block_reads += other.block_reads;
        self.absent += other.absent;
        self.entries_read += other.entries_read;
        self.cpu = match (self.cpu, other.cpu) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        };
        for (place, slice) in (0..).zip(&other.slices) {
            self.time_slice_mut(place).add(slice);
        }
    }

    pub(super) fn count(&self, kind: OperationKind) -> u64 {
        self.latencies.count(kind)
    }

    /// Returns the latency of operations of this kind, or zeros if no operation of this kind was measured.
    pub(super) fn latency(&self, kind: OperationKind) -> LatencyUs {
        self.latencies.summary(kind)
    }

    pub(super) fn total_latency(&self) -> LatencyUs {
        let mut all = Latencies::new();
        self.latencies.0.iter().flatten().for_each(|one| all.merge(one));
        all.summary()
    }

    pub(super) fn elapsed_s(&self) -> f64 {
        to_f64(self.elapsed_ns) / 1e9
    }

    /// Returns the operations per second. `more_s` seconds are added to the elapsed time.
    pub(super) fn ops_per_s(&self, more_s: f64) -> f64 {
        let seconds = self.elapsed_s() + more_s;
        if seconds > 0.0 { to_f64(self.ops) / seconds } else { 0.0 }
    }
}

/// Clock and counters that all threads of a group share.
#[derive(Debug)]
pub(super) struct GroupState {
    start: Stopwatch,
    done: AtomicU64,
    /// Whether all threads must stop. The flag is set when a thread fails, or when all threads except the writer are
    /// finished.
    stop: AtomicBool,
}

impl GroupState {
    pub(super) fn start() -> GroupState {
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        GroupState { start: Stopwatch::start(), done, stop }
    }
}

/// Time slices into which a run is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceSettings {
    /// Length of a time slice, in nanoseconds.
    pub(super) ns: u64,
    /// Whether each slice has latency histograms. A histogram takes 36 KiB per thread, slice and kind of operation.
    pub(super) latencies: bool,
}

/// A group of threads that run operations on one engine.
#[derive(Clone, Copy)]
pub(super) struct ThreadGroup<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) records: &'a GeneratedRecords,
    pub(super) threads: u64,
    /// Target rate of all threads together, in operations per second. If `None`, each operation starts when the
    /// preceding operation ends.
    pub(super) rate: Option<f64>,
    /// Time slices of [`OperationMeasurements::slices`].
    pub(super) slices: Option<SliceSettings>,
    /// Whether block reads of lookups are counted. Counting slows RocksDB down.
    pub(super) counts_block_reads: bool,
    /// `seed` and `purpose` initialize the random number generator of each thread. Different purposes give different
    /// random numbers.
    pub(super) seed: u64,
    pub(super) purpose: u64,
}

pub(super) type ThreadWork<'w> = dyn Fn(&mut Player<'_>) -> Result<()> + Sync + 'w;

impl<'a> ThreadGroup<'a> {
    pub(super) fn single_thread(
        engine: &'a dyn Engine,
        records: &'a GeneratedRecords,
    ) -> ThreadGroup<'a> {
        ThreadGroup {
            engine,
            records,
            threads: 1,
            rate: None,
            slices: None,
            counts_block_reads: false,
            seed: 0,
            purpose: 0,
        }
    }

    /// Runs `work` on each thread and returns the measurements. `title` and the expected number of operations are used
    /// for progress reports.
    pub(super) fn run_work(
        &self,
        (title, ops): (&str, u64),
        progress: &mut dyn Progress,
        work: &ThreadWork<'_>,
    ) -> Result<OperationMeasurements> {
        let (played, _) =
            self.run_work_with_writer((title, ops), progress, work, None, &mut |_| {})?;
        Ok(played)
    }

    /// Puts the first `count` records, flushes, and waits until compaction is idle. Returns the measurements of the
    /// puts, and the seconds from the last put until compaction was idle.
    pub(super) fn load_records(
        &self,
        (title, count): (&str, u64),
        progress: &mut dyn Progress,
    ) -> Result<(OperationMeasurements, f64)> {
        let played = self.run_work((title, count), progress, &|player| {
            player.for_each_own_number(count, |player, record| player.put(record, 0))
        })?;
        Ok((played, flush_and_wait_idle(self.engine, title, progress)?))
    }

    /// Like [`ThreadGroup::run_work`], but an additional thread runs `writer` without a target rate until the other
    /// threads end. The result also contains the measurements of this thread. The calling thread calls `check` about
    /// every 25 ms with the nanoseconds since the start.
    pub(super) fn run_work_with_writer(
        &self,
        (title, ops): (&str, u64),
        progress: &mut dyn Progress,
        work: &ThreadWork<'_>,
        writer: Option<&ThreadWork<'_>>,
        check: &mut dyn FnMut(u64),
    ) -> Result<(OperationMeasurements, Option<OperationMeasurements>)> {
        progress.begin_phase(title, ops);
        let state = &GroupState::start();
        let played = std::thread::scope(|scope| {
            let spawn = |thread: u64, work| {
                let waiting = std::thread::current();
                let group =
                    if thread < self.threads { *self } else { Self { rate: None, ..*self } };
                scope.spawn(move || {
                    let result = Player::new(group, state, thread).run(work);
                    if result.is_err() {
                        state.stop.store(true, Ordering::Relaxed);
                    }
                    waiting.unpark();
                    result
                })
            };
            let workers: Vec<_> = (0..self.threads).map(|thread| spawn(thread, work)).collect();
            let writer = writer.map(|writer| spawn(self.threads, writer));
            let (mut reported, mut memory) = (0, process::process_resident_bytes());
            while !workers.iter().all(|worker| worker.is_finished()) {
                std::thread::park_timeout(CHECK_INTERVAL);
                let done = state.done.load(Ordering::Relaxed);
                progress.advance(done - reported);
                reported = done;
                memory = memory.max(process::process_resident_bytes());
                check(state.start.elapsed_ns());
            }
            state.stop.store(true, Ordering::Relaxed);
            let mut played = OperationMeasurements::default();
            for worker in workers {
                played.merge(&join_thread(worker)?);
            }
            played.memory_bytes_max = memory;
            Ok((played, writer.map(join_thread).transpose()?))
        });
        progress.end_phase();
        played
    }
}

/// Returns the result of a thread. If the thread panicked, the panic is resumed in the caller.
pub(super) fn join_thread<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Flushes the memtables and waits until compaction is idle. Returns the elapsed time in seconds.
pub(super) fn flush_and_wait_idle(
    engine: &dyn Engine,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<f64> {
    progress.begin_phase(title, 0);
    let watch = Stopwatch::start();
    let idle_ns = engine.flush_and_wait_idle()?;
    let elapsed_ns = watch.elapsed_ns().saturating_sub(idle_ns);
    progress.end_phase();
    Ok(to_f64(elapsed_ns) / 1e9)
}

pub(super) struct Player<'a> {
    pub(super) group: ThreadGroup<'a>,
    state: &'a GroupState,
    thread: u64,
    pub(super) random: Random,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Time between the due times of two operations of this thread, in nanoseconds.
    interval_ns: Option<f64>,
    pub(super) played: OperationMeasurements,
}

impl<'a> Player<'a> {
    /// Creates the state of the thread with this index, counted from 0.
    pub(super) fn new(group: ThreadGroup<'a>, state: &'a GroupState, thread: u64) -> Player<'a> {
        Player {
            group,
            state,
            thread,
            random: Random::new(group.seed, hash_u64(group.purpose).wrapping_add(thread)),
            key: Vec::new(),
            value: Vec::new(),
            interval_ns: group.rate.map(|rate| 1e9 * to_f64(group.threads) / rate),
            played: OperationMeasurements::default(),
        }
    }

    fn run(mut self, work: &ThreadWork<'_>) -> Result<OperationMeasurements> {
        if self.interval_ns.is_some() {
            shorten_timer_slack();
        }
        let before = process::thread_cpu_times();
        work(&mut self)?;
        // With a rate, the schedule ends one interval after the due time of the last operation.
        let scheduled_ns = self.interval_ns.map_or(0.0, |ns| ns * to_f64(self.played.ops));
        let elapsed_ns = self.state.start.elapsed_ns();
        self.played.elapsed_ns = elapsed_ns.max(numbers::floor_to_u64(scheduled_ns));
        let after = process::thread_cpu_times();
        self.played.cpu = after.zip(before).map(|(after, before)| after.since(before));
        Ok(self.played)
    }

    /// Returns whether the threads of the group must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.stop.load(Ordering::Relaxed)
    }

    /// Returns whether this thread processes the item with this number. Items are assigned to the threads round-robin.
    pub(super) fn is_own_number(&self, number: u64) -> bool {
        number % self.group.threads == self.thread
    }

    /// Calls `operate` with each number below `n` that is assigned to this thread. Stops early if all threads must
    /// stop.
    pub(super) fn for_each_own_number(
        &mut self,
        n: u64,
        mut operate: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        let numbers: Range<u64> = self.thread..n;
        for number in numbers.step_by(numbers::to_usize(self.group.threads)) {
            if self.is_stopped() {
                break;
            }
            operate(self, number)?;
        }
        Ok(())
    }

    /// Runs an operation with the prepared key and value, and records its latency.
    pub(super) fn measure_operation<T>(
        &mut self,
        kind: OperationKind,
        operate: impl FnOnce(&dyn Engine, &[u8], &[u8]) -> Result<T>,
    ) -> Result<T> {
        let begun_ns = self.wait_until_due();
        let result = operate(self.group.engine, &self.key, &self.value)?;
        let ended_ns = self.state.start.elapsed_ns();
        let ns = ended_ns.saturating_sub(begun_ns);
        self.played.record(kind, ns);
        self.played.ops += 1;
        if let Some(slices) = self.group.slices {
            self.played.time_slice_mut(ended_ns / slices.ns).record(kind, ns, slices.latencies);
        }
        if self.played.ops.is_multiple_of(PROGRESS_OPS) {
            self.state.done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
        }
        Ok(result)
    }

    /// Runs operations until `end_ns` nanoseconds after the start of the group. Stops early if all threads must stop.
    pub(super) fn run_until(
        &mut self,
        end_ns: u64,
        mut operate: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        while !self.is_stopped() && self.state.start.elapsed_ns() < end_ns {
            if self.next_due_ns().is_some_and(|due_ns| due_ns >= end_ns) {
                break;
            }
            operate(self)?;
        }
        Ok(())
    }

    /// Returns the due time of the next operation, or `None` if no rate is set.
    fn next_due_ns(&self) -> Option<u64> {
        // The due times of the threads are evenly spaced within an interval.
        let turn = to_f64(self.played.ops) + to_f64(self.thread) / to_f64(self.group.threads);
        self.interval_ns.map(|interval_ns| numbers::floor_to_u64(interval_ns * turn))
    }

    /// Waits until the next operation is due and returns its due time. Without a rate, returns the current time. The
    /// latency of the operation is measured from the returned time, which is in nanoseconds since the start of the
    /// group.
    fn wait_until_due(&self) -> u64 {
        let start = self.state.start;
        let Some(due_ns) = self.next_due_ns() else { return start.elapsed_ns() };
        wait_until_elapsed(start, due_ns);
        due_ns
    }

    pub(super) fn prepare_key(&mut self, record: u64) {
        self.group.records.write_key(record, &mut self.key);
    }

    /// Stores the key of a record in `key`, and a version of its value in `value`.
    pub(super) fn prepare_record(&mut self, record: u64, version: u64) {
        self.prepare_key(record);
        self.group.records.write_value(record, version, &mut self.value);
    }

    pub(super) fn put(&mut self, record: u64, version: u64) -> Result<()> {
        self.prepare_record(record, version);
        self.measure_operation(OperationKind::Put, |engine, key, value| engine.put(key, value))
    }

    /// Looks up a record and checks its value. Returns whether the record is present.
    pub(super) fn get(&mut self, record: u64) -> Result<bool> {
        self.prepare_key(record);
        let (records, counts) = (self.group.records, self.group.counts_block_reads);
        let mut block_reads = 0;
        let found = self.measure_operation(OperationKind::Get, |engine, key, _| {
            let before = if counts { engine.thread_block_reads() } else { 0 };
            let found = get_and_check(engine, records, record, key)?;
            let after = if counts { engine.thread_block_reads() } else { 0 };
            block_reads = after.saturating_sub(before);
            Ok(found)
        })?;
        self.played.block_reads += block_reads;
        self.played.absent += u64::from(!found);
        Ok(found)
    }

    /// Looks up a record that must be present and checks its value.
    pub(super) fn get_present(&mut self, record: u64) -> Result<()> {
        if self.get(record)? {
            return Ok(());
        }
        Err(Error::wrong_answer(&self.key, "absent", "present"))
    }

    /// Looks up an absent key that is close to the key of a record in key order.
    pub(super) fn get_absent(&mut self, record: u64) -> Result<()> {
        let salt = self.random.next_u64();
        self.group.records.write_absent_key(record, salt, &mut self.key);
        if self
            .measure_operation(OperationKind::Get, |engine, key, _| engine.get(key, &mut |_| {}))?
        {
            return Err(Error::wrong_answer(&self.key, "present", "absent"));
        }
        self.played.absent += 1;
        Ok(())
    }

    /// Seeks to a record that must be present and reads up to `entries` entries.
    pub(super) fn seek(&mut self, record: u64, entries: u64) -> Result<()> {
        self.prepare_key(record);
        let mut first = None;
        let found = self.measure_operation(OperationKind::Scan, |engine, key, _| {
            engine.seek(key, entries, &mut |found, value| {
                first.get_or_insert(found == key);
                std::hint::black_box(value);
            })
        })?;
        if first != Some(true) {
            return Err(Error::wrong_answer(&self.key, "absent from a range", "its first"));
        }
        self.played.entries_read += found;
        Ok(())
    }

    /// Scans `entries` entries from the first key, or from the last key if `backward` is set. The total length of keys
    /// and values must be `bytes`.
    pub(super) fn scan(&mut self, backward: bool, entries: u64, bytes: u64) -> Result<()> {
        let (start, done) = (self.state.start, &self.state.done);
        let (mut steps, mut begun_ns, mut bytes_read) = (0u64, start.elapsed_ns(), 0);
        let played = &mut self.played;
        let found = self.group.engine.scan(backward, entries, &mut |key, value| {
            bytes_read += key.len() + value.len();
            match steps % ENTRIES_PER_MEASUREMENT {
                0 => {
                    let ns = start.elapsed_ns().saturating_sub(begun_ns);
                    played.record(OperationKind::Scan, ns);
                }
                step if step == ENTRIES_PER_MEASUREMENT - 1 => begun_ns = start.elapsed_ns(),
                _ => {}
            }
            steps += 1;
            if steps.is_multiple_of(PROGRESS_OPS) {
                done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
            }
        })?;
        if found != entries || numbers::to_u64(bytes_read) != bytes {
            return Err(Error::wrong_answer(b"", "a scan of other records", "one of all"));
        }
        self.played.ops += found;
        self.played.entries_read += found;
        Ok(())
    }
}

/// Looks up a record and checks its value. Returns whether the record is present.
pub(super) fn get_and_check(
    engine: &dyn Engine,
    records: &GeneratedRecords,
    record: u64,
    key: &[u8],
) -> Result<bool> {
    let mut is_right = true;
    let found = engine.get(key, &mut |value| is_right = records.is_value_of(record, value))?;
    if is_right {
        Ok(found)
    } else {
        Err(Error::wrong_answer(key, "another record's value", "its own"))
    }
}

/// Resource counters. The difference between two readings gives the usage.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceCounters {
    /// Bytes that read and write calls on files have transferred.
    pub(super) io: IoBytes,
    /// Bytes written according to the engine's own counters.
    pub(super) engine_written: Option<WrittenBytes>,
    /// Bytes that the process has written, according to the operating system.
    pub(super) process_written_bytes: Option<u64>,
    /// Bytes that the process has read from storage, without reads from the page cache.
    pub(super) storage_read_bytes: Option<u64>,
    /// I/O of the block device, caused by all processes.
    pub(super) device: Option<DeviceIo>,
    pub(super) cpu: Option<CpuTimes>,
}

impl ResourceCounters {
    /// Reads all counters. `path` selects the block device.
    pub(super) fn read(engine: &dyn Engine, path: &Path) -> ResourceCounters {
        ResourceCounters {
            io: engine.io_bytes(),
            engine_written: engine.written_bytes(),
            process_written_bytes: process::process_written_bytes(),
            storage_read_bytes: process::process_storage_read_bytes(),
            device: process::device_io(path),
            cpu: process::process_cpu_times(),
        }
    }

    /// Returns the difference between these counters and the earlier counters `before`.
    pub(super) fn since(&self, before: &ResourceCounters) -> ResourceCounters {
        let written = self.process_written_bytes.zip(before.process_written_bytes);
        let read = self.storage_read_bytes.zip(before.storage_read_bytes);
        ResourceCounters {
            io: IoBytes {
                read: self.io.read.saturating_sub(before.io.read),
                written: self.io.written.saturating_sub(before.io.written),
            },
            engine_written: self.engine_written.zip(before.engine_written).map(|(a, b)| a.since(b)),
            process_written_bytes: written.map(|(after, before)| after.saturating_sub(before)),
            storage_read_bytes: read.map(|(after, before)| after.saturating_sub(before)),
            device: self.device.zip(before.device).map(|(after, before)| after.since(before)),
            cpu: self.cpu.zip(before.cpu).map(|(after, before)| after.since(before)),
        }
    }
}

pub(super) fn remove_directory(path: &Path) -> Result<()> {
    let failed = |source| Error::Io { action: "remove", path: path.to_owned(), source };
    std::fs::remove_dir_all(path).map_err(failed)
}
