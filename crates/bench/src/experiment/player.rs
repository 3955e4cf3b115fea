//! Threads that run operations on an engine and measure each of them.
//!
//! A thread prepares key and value, reads the clock, calls the engine and reads the clock again. With a rate each
//! operation has a due time. Its latency counts from then, so it includes the wait for a slow predecessor.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use lsmx_base::sync::{AtomicBool, AtomicU64, Ordering};

use crate::clock::{Stopwatch, wait_until};
use crate::error::{Error, Result};
use crate::latency::{Latencies, LatencyUs};
use crate::numbers::{self, float};
use crate::peers::{Engine, IoBytes, Written};
use crate::process::{self, Cpu, DeviceIo};
use crate::workload::random::{Random, mix};
use crate::workload::records::GeneratedRecords;

use super::Progress;

/// Number of operations of a thread between two reports of progress.
const PROGRESS_OPS: u64 = 256;
/// Number of entries of a scan for each one whose time is measured.
const ENTRIES_PER_MEASUREMENT: u64 = 64;
/// Time between two checks of progress and memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Kind of an operation whose latency is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// Point lookup.
    Get,
    /// Put of a whole value.
    Put,
    /// Update of a part of a value, or a read-modify-write.
    Update,
    /// Delete of a key.
    Delete,
    /// A scan. In a scan of the whole database each step to the next entry counts as one operation.
    Scan,
}

/// Operations that ended in one slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TimeSlice {
    pub(super) ops: u64,
    pub(super) total_ns: u64,
    pub(super) max_ns: u64,
}

impl TimeSlice {
    pub(super) fn add(&mut self, other: &TimeSlice) {
        self.ops += other.ops;
        self.total_ns += other.total_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Measurements of operations.
#[derive(Clone, Debug, Default)]
pub(super) struct PlayedOperations {
    /// Number of operations. A scan of everything counts entries.
    pub(super) ops: u64,
    /// Time until the last operation ended.
    pub(super) elapsed_ns: u64,
    /// By kind. A kind that did not occur has no histogram.
    latencies: [Option<Latencies>; 5],
    /// Number of blocks that lookups read from files, if the group counts them.
    pub(super) block_reads: u64,
    /// Number of lookups without result.
    pub(super) absent: u64,
    /// Number of entries that scans read.
    pub(super) entries_read: u64,
    /// Processor time of the threads.
    pub(super) cpu: Option<Cpu>,
    /// Maximum of the resident memory.
    pub(super) memory_bytes_max: Option<u64>,
    /// Operations by time, if the group has a slice length.
    pub(super) slices: Vec<TimeSlice>,
}

impl PlayedOperations {
    fn record(&mut self, kind: OperationKind, ns: u64) {
        self.latencies[kind as usize].get_or_insert_default().record_ns(ns);
    }

    fn slice(&mut self, place: u64) -> &mut TimeSlice {
        let place = numbers::length(place);
        if place >= self.slices.len() {
            self.slices.resize(place + 1, TimeSlice::default());
        }
        &mut self.slices[place]
    }

    fn merge(&mut self, other: &PlayedOperations) {
        self.ops += other.ops;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        for (all, one) in self.latencies.iter_mut().zip(&other.latencies) {
            if let Some(one) = one {
                all.get_or_insert_default().merge(one);
            }
        }
        self.block_reads += other.block_reads;
        self.absent += other.absent;
        self.entries_read += other.entries_read;
        self.cpu = match (self.cpu, other.cpu) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        for (place, slice) in (0..).zip(&other.slices) {
            self.slice(place).add(slice);
        }
    }

    /// Returns the number of operations of a kind.
    pub(super) fn count(&self, kind: OperationKind) -> u64 {
        self.latencies[kind as usize].as_ref().map_or(0, Latencies::count)
    }

    /// Returns the latency of the operations of a kind; all 0 if there are none.
    pub(super) fn latency(&self, kind: OperationKind) -> LatencyUs {
        self.latencies[kind as usize].as_ref().map(Latencies::summary).unwrap_or_default()
    }

    /// Returns the latency of the operations of all kinds.
    pub(super) fn latency_of_all(&self) -> LatencyUs {
        let mut all = Latencies::new();
        self.latencies.iter().flatten().for_each(|one| all.merge(one));
        all.summary()
    }

    /// Returns the seconds until the last operation ended.
    pub(super) fn elapsed_s(&self) -> f64 {
        float(self.elapsed_ns) / 1e9
    }

    /// Returns the operations per second, with `more_s` seconds added to the elapsed time.
    pub(super) fn ops_per_s(&self, more_s: f64) -> f64 {
        let seconds = self.elapsed_s() + more_s;
        if seconds > 0.0 { float(self.ops) / seconds } else { 0.0 }
    }
}

/// Clock and counters that the threads of a group share.
#[derive(Debug)]
pub(super) struct GroupState {
    start: Stopwatch,
    done: AtomicU64,
    /// All threads stop: one has failed, or only the writer is left.
    stop: AtomicBool,
}

impl GroupState {
    /// Starts the clock.
    pub(super) fn start() -> GroupState {
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        GroupState { start: Stopwatch::start(), done, stop }
    }
}

/// Threads that run operations on one engine.
#[derive(Clone, Copy)]
pub(super) struct ThreadGroup<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) records: &'a GeneratedRecords,
    pub(super) threads: u64,
    /// Operations per second of all threads; without a rate each operation starts when its predecessor ends.
    pub(super) rate: Option<f64>,
    /// Length of a slice of [`PlayedOperations::slices`].
    pub(super) slice_ns: Option<u64>,
    /// Whether block reads are counted. RocksDB slows down if they are.
    pub(super) counts_block_reads: bool,
    /// Seed and purpose of the random numbers. Each thread has its own.
    pub(super) seed: u64,
    pub(super) purpose: u64,
}

/// Work of one thread.
pub(super) type Work<'w> = dyn Fn(&mut Player<'_>) -> Result<()> + Sync + 'w;

impl<'a> ThreadGroup<'a> {
    /// Creates a group of one thread.
    pub(super) fn single(engine: &'a dyn Engine, records: &'a GeneratedRecords) -> ThreadGroup<'a> {
        ThreadGroup {
            engine,
            records,
            threads: 1,
            rate: None,
            slice_ns: None,
            counts_block_reads: false,
            seed: 0,
            purpose: 0,
        }
    }

    /// Runs `work` on each thread. Progress reports have the title and the expected number of operations.
    pub(super) fn play(
        &self,
        (title, ops): (&str, u64),
        progress: &mut dyn Progress,
        work: &Work<'_>,
    ) -> Result<PlayedOperations> {
        let (played, _) = self.play_with_writer((title, ops), progress, work, None, &mut |_| {})?;
        Ok(played)
    }

    /// Puts the first `count` records and settles.
    pub(super) fn load(
        &self,
        (title, count): (&str, u64),
        progress: &mut dyn Progress,
    ) -> Result<()> {
        self.play((title, count), progress, &|player| {
            player.repeat(count, |player, record| player.put(record, 0))
        })?;
        settle(self.engine, title, progress).map(drop)
    }

    /// As [`ThreadGroup::play`]. One more thread runs `writer`, without a rate, until the others end. Its measurements
    /// are the second result. The calling thread calls `check` regularly with the time since the start in nanoseconds.
    pub(super) fn play_with_writer(
        &self,
        (title, ops): (&str, u64),
        progress: &mut dyn Progress,
        work: &Work<'_>,
        writer: Option<&Work<'_>>,
        check: &mut dyn FnMut(u64),
    ) -> Result<(PlayedOperations, Option<PlayedOperations>)> {
        progress.begin(title, ops);
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
            let (mut reported, mut memory) = (0, process::resident_bytes());
            while !workers.iter().all(|worker| worker.is_finished()) {
                std::thread::park_timeout(CHECK_INTERVAL);
                let done = state.done.load(Ordering::Relaxed);
                progress.advance(done - reported);
                reported = done;
                memory = memory.max(process::resident_bytes());
                check(state.start.elapsed_ns());
            }
            state.stop.store(true, Ordering::Relaxed);
            let mut played = PlayedOperations::default();
            for worker in workers {
                played.merge(&join(worker)?);
            }
            played.memory_bytes_max = memory;
            Ok((played, writer.map(join).transpose()?))
        });
        progress.end();
        played
    }
}

/// Returns the result of a thread. A panic continues in the caller.
fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Flushes the memtables and waits for compactions. Returns the seconds that this took.
pub(super) fn settle(engine: &dyn Engine, title: &str, progress: &mut dyn Progress) -> Result<f64> {
    progress.begin(title, 0);
    let watch = Stopwatch::start();
    let idle_ns = engine.settle()?;
    let elapsed_ns = watch.elapsed_ns().saturating_sub(idle_ns);
    progress.end();
    Ok(float(elapsed_ns) / 1e9)
}

/// One thread of a group.
pub(super) struct Player<'a> {
    pub(super) group: ThreadGroup<'a>,
    state: &'a GroupState,
    thread: u64,
    pub(super) random: Random,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    /// Time between the due times of two operations of this thread.
    interval_ns: Option<f64>,
    pub(super) played: PlayedOperations,
}

impl<'a> Player<'a> {
    /// Creates the thread with this number, counted from 0.
    pub(super) fn new(group: ThreadGroup<'a>, state: &'a GroupState, thread: u64) -> Player<'a> {
        Player {
            group,
            state,
            thread,
            random: Random::new(group.seed, mix(group.purpose).wrapping_add(thread)),
            key: Vec::new(),
            value: Vec::new(),
            interval_ns: group.rate.map(|rate| 1e9 * float(group.threads) / rate),
            played: PlayedOperations::default(),
        }
    }

    fn run(mut self, work: &Work<'_>) -> Result<PlayedOperations> {
        let before = process::cpu_of_this_thread();
        work(&mut self)?;
        self.played.elapsed_ns = self.state.start.elapsed_ns();
        let after = process::cpu_of_this_thread();
        self.played.cpu = after.zip(before).map(|(after, before)| after.since(before));
        Ok(self.played)
    }

    /// Returns whether the thread must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.stop.load(Ordering::Relaxed)
    }

    /// Returns whether a number belongs to this thread.
    pub(super) fn owns(&self, number: u64) -> bool {
        number % self.group.threads == self.thread
    }

    /// Calls `operate` with the numbers below `n` that belong to this thread, until the thread must stop.
    pub(super) fn repeat(
        &mut self,
        n: u64,
        mut operate: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        let numbers: Range<u64> = self.thread..n;
        for number in numbers.step_by(numbers::length(self.group.threads)) {
            if self.is_stopped() {
                break;
            }
            operate(self, number)?;
        }
        Ok(())
    }

    /// Measures an operation that uses the prepared key and value.
    pub(super) fn measure<T>(
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
        if let Some(slice_ns) = self.group.slice_ns {
            let slice = TimeSlice { ops: 1, total_ns: ns, max_ns: ns };
            self.played.slice(ended_ns / slice_ns).add(&slice);
        }
        if self.played.ops.is_multiple_of(PROGRESS_OPS) {
            self.state.done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
        }
        Ok(result)
    }

    /// Returns the time from which the latency of the next operation counts.
    fn wait_until_due(&self) -> u64 {
        let start = self.state.start;
        let Some(interval_ns) = self.interval_ns else { return start.elapsed_ns() };
        // The due times of the threads alternate.
        let turn = float(self.played.ops) + float(self.thread) / float(self.group.threads);
        let due_ns = numbers::floor(interval_ns * turn);
        wait_until(start, due_ns);
        due_ns
    }

    /// Prepares the key of a record.
    pub(super) fn prepare_key(&mut self, record: u64) {
        self.group.records.key(record, &mut self.key);
    }

    /// Prepares the key of a record and a version of its value.
    pub(super) fn prepare(&mut self, record: u64, version: u64) {
        self.prepare_key(record);
        self.group.records.value(record, version, &mut self.value);
    }

    /// Puts a version of a record.
    pub(super) fn put(&mut self, record: u64, version: u64) -> Result<()> {
        self.prepare(record, version);
        self.measure(OperationKind::Put, |engine, key, value| engine.put(key, value))
    }

    /// Looks up a record and checks its value. Returns whether it is present.
    pub(super) fn get(&mut self, record: u64) -> Result<bool> {
        self.prepare_key(record);
        let (records, counts) = (self.group.records, self.group.counts_block_reads);
        let mut block_reads = 0;
        let found = self.measure(OperationKind::Get, |engine, key, _| {
            let before = if counts { engine.thread_block_reads() } else { 0 };
            let found = get_checked(engine, records, record, key)?;
            let after = if counts { engine.thread_block_reads() } else { 0 };
            block_reads = after.saturating_sub(before);
            Ok(found)
        })?;
        self.played.block_reads += block_reads;
        self.played.absent += u64::from(!found);
        Ok(found)
    }

    /// Looks up a present record and checks its value.
    pub(super) fn get_present(&mut self, record: u64) -> Result<()> {
        if self.get(record)? {
            return Ok(());
        }
        Err(Error::wrong_answer(&self.key, "absent", "present"))
    }

    /// Looks up a key next to a record that no record has.
    pub(super) fn get_absent(&mut self, record: u64) -> Result<()> {
        let salt = self.random.next_u64();
        self.group.records.absent_key(record, salt, &mut self.key);
        if self.measure(OperationKind::Get, |engine, key, _| engine.get(key, &mut |_| {}))? {
            return Err(Error::wrong_answer(&self.key, "present", "absent"));
        }
        self.played.absent += 1;
        Ok(())
    }

    /// Reads entries from a present record on.
    pub(super) fn seek(&mut self, record: u64, entries: u64) -> Result<()> {
        self.prepare_key(record);
        let mut first = None;
        let found = self.measure(OperationKind::Scan, |engine, key, _| {
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

    /// Reads the first `entries` entries, or the last ones backward. Their keys and values must have `bytes` bytes.
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
        if found != entries || numbers::count(bytes_read) != bytes {
            return Err(Error::wrong_answer(b"", "a scan of other records", "one of all"));
        }
        self.played.ops += found;
        self.played.entries_read += found;
        Ok(())
    }
}

/// Looks up a record and checks its value. Returns whether it is present.
pub(super) fn get_checked(
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

/// Counters of resources, to be read before and after operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceCounters {
    /// Calls on files.
    pub(super) io: IoBytes,
    /// Bytes that the engine wrote, by its own count.
    pub(super) engine_written: Option<Written>,
    /// Bytes that the process wrote.
    pub(super) process_written_bytes: Option<u64>,
    /// I/O of the block device, of all processes.
    pub(super) device: Option<DeviceIo>,
    /// Processor time of the process.
    pub(super) cpu: Option<Cpu>,
}

impl ResourceCounters {
    /// Reads the counters. The path selects the block device.
    pub(super) fn read(engine: &dyn Engine, path: &Path) -> ResourceCounters {
        ResourceCounters {
            io: engine.io_bytes(),
            engine_written: engine.written(),
            process_written_bytes: process::written_bytes(),
            device: process::device_io(path),
            cpu: process::cpu(),
        }
    }

    /// Returns the growth of the counters after `before`.
    pub(super) fn since(&self, before: &ResourceCounters) -> ResourceCounters {
        let written = self.process_written_bytes.zip(before.process_written_bytes);
        ResourceCounters {
            io: IoBytes {
                read: self.io.read.saturating_sub(before.io.read),
                written: self.io.written.saturating_sub(before.io.written),
            },
            engine_written: self.engine_written.zip(before.engine_written).map(|(a, b)| a.since(b)),
            process_written_bytes: written.map(|(after, before)| after.saturating_sub(before)),
            device: self.device.zip(before.device).map(|(after, before)| after.since(before)),
            cpu: self.cpu.zip(before.cpu).map(|(after, before)| after.since(before)),
        }
    }
}

/// Removes a database.
pub(super) fn remove_directory(path: &Path) -> Result<()> {
    let failed = |source| Error::Io { action: "remove", path: path.to_owned(), source };
    std::fs::remove_dir_all(path).map_err(failed)
}
