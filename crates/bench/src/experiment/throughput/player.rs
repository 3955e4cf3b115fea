//! Plays one workload on one engine with threads, and measures every operation.
//!
//! 1. Each thread has a stream of random numbers of its own, which follows from the seed, the place
//!    of the workload in the command, and the thread's number.
//! 2. Key and value are made first, then the clock is read, the engine called, the clock read again.
//! 3. Under a rate every operation has a moment at which it is due, and its latency counts from
//!    then: an operation that waits behind a slow one is as late as a user would find it.

use std::ops::Range;

use lsmx_base::sync::{AtomicBool, AtomicU64, Ordering};

use crate::clock::{Stopwatch, wait_until};
use crate::error::Result;
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers;
use crate::peers::Engine;
use crate::workload::keys::Permutation;
use crate::workload::random::{Random, Zipf, mix};

use super::records::{Live, Records, wrong};
use super::workload::{YCSB_OPS_PER_INSERT, YCSB_SCAN_ENTRIES_MAX, YCSB_ZIPF_EXPONENT, Ycsb};

/// Operations of a thread between two reports of progress; a power of two.
const PROGRESS_OPS: u64 = 1024;
/// Steps of a scan for each one that is measured; a power of two.
const STEPS_PER_MEASUREMENT: u64 = 64;
/// Time between two looks at the progress.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

/// What every thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// Puts the records in key order.
    PutInOrder,
    /// Puts the records in the order of their numbers.
    Put {
        /// Each on stable storage before the next.
        sync: bool,
    },
    /// Puts new values for records that are there.
    Overwrite,
    /// Deletes records in the order drawn up.
    Delete,
    /// Looks records up that are there.
    Read,
    /// Looks absent keys up.
    ReadAbsent,
    /// Reads entries from a record on.
    Seek {
        /// How many.
        entries: u64,
    },
    /// Reads entries from one end.
    Scan {
        /// From the last to the first.
        backward: bool,
    },
    /// A mix.
    Ycsb(Ycsb),
}

/// What is to be played.
#[derive(Clone, Copy, Debug)]
pub(super) struct Play {
    pub(super) task: Task,
    /// Operations of all threads; entries of each thread for a scan.
    pub(super) ops: u64,
    pub(super) threads: usize,
    /// Operations per second of all threads.
    pub(super) rate: Option<f64>,
    /// Whether one more thread overwrites meanwhile.
    pub(super) writer: bool,
    pub(super) seed: u64,
    /// Tells the random numbers of this play from those of others.
    pub(super) purpose: u64,
}

/// What was played.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    pub(super) ops: u64,
    /// When the last operation was done.
    pub(super) elapsed_ns: u64,
    pub(super) latencies: Latencies,
    pub(super) puts: u64,
    pub(super) absent: u64,
    pub(super) entries_read: u64,
}

impl Played {
    fn merge(&mut self, other: &Played) {
        self.ops += other.ops;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.latencies.merge(&other.latencies);
        self.puts += other.puts;
        self.absent += other.absent;
        self.entries_read += other.entries_read;
    }
}

/// What the threads share.
struct Shared<'a> {
    engine: &'a dyn Engine,
    records: &'a Records,
    live: &'a Live,
    play: Play,
    start: Stopwatch,
    /// The next record to be inserted.
    next_record: AtomicU64,
    done: AtomicU64,
    /// Ends all threads: one has failed, or only the writer is left.
    stop: AtomicBool,
}

/// Plays it, and notes in `live` what is there afterwards. The second result is the writer's.
pub(super) fn play(
    engine: &dyn Engine,
    records: &Records,
    live: &mut Live,
    play: Play,
    progress: &mut dyn Progress,
) -> Result<(Played, Option<Played>)> {
    let shared = Shared {
        engine,
        records,
        live,
        play,
        start: Stopwatch::start(),
        next_record: AtomicU64::new(live.end()),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let (played, writer) = run_threads(&shared, progress)?;
    let inserted_to = shared.next_record.into_inner();
    match play.task {
        Task::PutInOrder | Task::Put { .. } => *live = Live::loaded(play.ops),
        Task::Delete => live.delete(played.ops),
        _ => live.extend(inserted_to),
    }
    Ok((played, writer))
}

fn run_threads(
    shared: &Shared<'_>,
    progress: &mut dyn Progress,
) -> Result<(Played, Option<Played>)> {
    let threads = numbers::count(shared.play.threads);
    std::thread::scope(|scope| {
        let spawn = |thread: u64, writes: bool| {
            let waiting = std::thread::current();
            scope.spawn(move || {
                let result = Player::new(shared, thread).run(writes);
                if result.is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
                waiting.unpark();
                result
            })
        };
        let workers: Vec<_> = (0..threads).map(|thread| spawn(thread, false)).collect();
        let writer = shared.play.writer.then(|| spawn(threads, true));
        let mut told = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::park_timeout(LOOK);
            let done = shared.done.load(Ordering::Relaxed);
            progress.advance(done - told);
            told = done;
        }
        shared.stop.store(true, Ordering::Relaxed);
        let mut played = Played::default();
        for worker in workers {
            played.merge(&join(worker)?);
        }
        let writer = writer.map(join).transpose()?;
        Ok((played, writer))
    })
}

/// The result of a thread; a panic goes on in this one.
fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// One thread.
struct Player<'a> {
    shared: &'a Shared<'a>,
    thread: u64,
    random: Random,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Nanoseconds between two operations of this thread that are due.
    interval_ns: Option<f64>,
    played: Played,
}

impl<'a> Player<'a> {
    fn new(shared: &'a Shared<'a>, thread: u64) -> Player<'a> {
        let play = &shared.play;
        let threads = numbers::float(numbers::count(play.threads));
        Player {
            shared,
            thread,
            random: Random::new(play.seed, mix(play.purpose).wrapping_add(thread)),
            key: Vec::new(),
            value: Vec::new(),
            interval_ns: play.rate.map(|rate| 1e9 * threads / rate),
            played: Played::default(),
        }
    }

    fn run(mut self, writes: bool) -> Result<Played> {
        if writes {
            self.interval_ns = None;
            while !self.stopped() {
                self.overwrite()?;
            }
        } else {
            self.work()?;
        }
        self.played.elapsed_ns = self.shared.start.elapsed_ns();
        Ok(self.played)
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// The numbers below `n` that fall to this thread, and every how many it takes one.
    fn share(&self, n: u64) -> std::iter::StepBy<Range<u64>> {
        (self.thread..n).step_by(self.shared.play.threads)
    }

    fn work(&mut self) -> Result<()> {
        let Play { task, ops, .. } = self.shared.play;
        match task {
            Task::PutInOrder => {
                for rank in self.share(self.shared.records.capacity()) {
                    let record = self.shared.records.at_rank(rank);
                    // Past the end are the records that later workloads insert.
                    if record < ops {
                        self.put(record, false)?;
                    }
                }
                Ok(())
            }
            Task::Put { sync } => self.share(ops).try_for_each(|record| self.put(record, sync)),
            Task::Overwrite => self.share(ops).try_for_each(|_| self.overwrite()),
            Task::Delete => self.share(ops).try_for_each(|n| self.delete(n)),
            Task::Read => self.share(ops).try_for_each(|_| {
                let record = self.any_record();
                self.read(record)
            }),
            Task::ReadAbsent => self.share(ops).try_for_each(|_| self.read_absent()),
            Task::Seek { entries } => self.share(ops).try_for_each(|_| {
                let record = self.any_record();
                self.seek(record, entries)
            }),
            Task::Scan { backward } => self.scan(backward, ops),
            Task::Ycsb(mix) => self.ycsb(mix, ops),
        }
    }

    /// A record that is there, every one alike.
    fn any_record(&mut self) -> u64 {
        let n = self.random.below(self.shared.live.count());
        self.shared.live.nth(n)
    }

    /// Makes a put ready for the clock.
    fn prepare(&mut self, record: u64) {
        self.shared.records.key(record, &mut self.key);
        self.shared.records.value(record, &mut self.random, &mut self.value);
    }

    /// The moment from which the next operation's latency counts; waits for it under a rate.
    fn begin(&mut self) -> u64 {
        let start = self.shared.start;
        let Some(interval_ns) = self.interval_ns else { return start.elapsed_ns() };
        let threads = numbers::float(numbers::count(self.shared.play.threads));
        // Threads take turns.
        let turn = numbers::float(self.played.ops) + numbers::float(self.thread) / threads;
        let due = numbers::floor(interval_ns * turn);
        wait_until(start, due);
        due
    }

    fn end(&mut self, begun: u64) {
        let ns = self.shared.start.elapsed_ns().saturating_sub(begun);
        self.played.latencies.record_ns(ns);
        self.played.ops += 1;
        if self.played.ops.is_multiple_of(PROGRESS_OPS) {
            self.shared.done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
        }
    }

    fn put(&mut self, record: u64, sync: bool) -> Result<()> {
        if self.stopped() {
            return Ok(());
        }
        self.prepare(record);
        let engine = self.shared.engine;
        let begun = self.begin();
        if sync {
            engine.put_sync(&self.key, &self.value)?;
        } else {
            engine.put(&self.key, &self.value)?;
        }
        self.end(begun);
        self.played.puts += 1;
        Ok(())
    }

    fn overwrite(&mut self) -> Result<()> {
        let record = self.any_record();
        self.put(record, false)
    }

    fn delete(&mut self, n: u64) -> Result<()> {
        if self.stopped() {
            return Ok(());
        }
        // The deletions of a play are noted at its end, so those still to come have fixed places.
        self.shared.records.key(self.shared.live.nth_deletable(n), &mut self.key);
        let begun = self.begin();
        self.shared.engine.delete(&self.key)?;
        self.end(begun);
        Ok(())
    }

    fn read(&mut self, record: u64) -> Result<()> {
        if self.stopped() {
            return Ok(());
        }
        self.shared.records.key(record, &mut self.key);
        let begun = self.begin();
        self.get(record)?;
        self.end(begun);
        Ok(())
    }

    /// Looks the key of this record up and checks what comes back.
    fn get(&mut self, record: u64) -> Result<()> {
        let mut right = true;
        let records = self.shared.records;
        let found = self.shared.engine.get(&self.key, &mut |value| {
            right = records.is_value(record, value);
        })?;
        if !right {
            return Err(wrong(&self.key, "another record's value", "its own"));
        }
        if !found {
            // Another thread has this record's number but may not have put it yet.
            if record < self.shared.live.end() || self.shared.play.threads == 1 {
                return Err(wrong(&self.key, "absent", "present"));
            }
            self.played.absent += 1;
        }
        Ok(())
    }

    fn read_absent(&mut self) -> Result<()> {
        if self.stopped() {
            return Ok(());
        }
        let record = self.random.below(self.shared.records.capacity());
        self.shared.records.absent_key(record, self.random.next_u64(), &mut self.key);
        let begun = self.begin();
        if self.shared.engine.get(&self.key, &mut |_| {})? {
            return Err(wrong(&self.key, "present", "absent"));
        }
        self.end(begun);
        self.played.absent += 1;
        Ok(())
    }

    fn seek(&mut self, record: u64, entries: u64) -> Result<()> {
        if self.stopped() {
            return Ok(());
        }
        self.shared.records.key(record, &mut self.key);
        let begun = self.begin();
        let (key, mut first, mut at_key) = (&self.key, true, false);
        let found = self.shared.engine.seek(key, entries, &mut |found, value| {
            if first {
                at_key = found == key;
                first = false;
            }
            std::hint::black_box(value);
        })?;
        self.end(begun);
        if !at_key {
            return Err(wrong(&self.key, "absent from a range", "its first"));
        }
        self.played.entries_read += found;
        Ok(())
    }

    fn scan(&mut self, backward: bool, entries: u64) -> Result<()> {
        let entries = entries.min(self.shared.live.count());
        let start = self.shared.start;
        let (mut steps, mut begun, mut bytes) = (0u64, start.elapsed_ns(), 0);
        let (latencies, done) = (&mut self.played.latencies, &self.shared.done);
        let found = self.shared.engine.scan(backward, entries, &mut |key, value| {
            bytes += key.len() + value.len();
            match steps % STEPS_PER_MEASUREMENT {
                0 => latencies.record_ns(start.elapsed_ns().saturating_sub(begun)),
                last if last == STEPS_PER_MEASUREMENT - 1 => begun = start.elapsed_ns(),
                _ => {}
            }
            steps += 1;
            if steps.is_multiple_of(PROGRESS_OPS) {
                done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
            }
        })?;
        if found != entries || numbers::count(bytes) != entries * self.shared.records.bytes() {
            return Err(wrong(b"", "a scan of other records", "one of all"));
        }
        self.played.ops = found;
        self.played.entries_read = found;
        Ok(())
    }

    fn ycsb(&mut self, mix: Ycsb, ops: u64) -> Result<()> {
        let zipf = Zipf::new(YCSB_ZIPF_EXPONENT);
        let count = self.shared.live.count();
        // Popular records lie anywhere, in key order and in age.
        let scattered = Permutation::new(count, self.shared.play.seed);
        for (done, _) in self.share(ops).enumerate() {
            if self.stopped() {
                return Ok(());
            }
            let inserts = matches!(mix, Ycsb::D | Ycsb::E)
                && (numbers::count(done) + 1).is_multiple_of(YCSB_OPS_PER_INSERT);
            if inserts {
                let record = self.shared.next_record.fetch_add(1, Ordering::Relaxed);
                self.put(record, false)?;
                continue;
            }
            let record = if mix == Ycsb::D {
                let inserted = self.shared.next_record.load(Ordering::Relaxed);
                let count = count + (inserted - self.shared.live.end());
                let age = zipf.draw(&mut self.random, count);
                self.shared.live.nth(count - 1 - age)
            } else {
                let rank = zipf.draw(&mut self.random, count);
                self.shared.live.nth(scattered.forward(rank))
            };
            match mix {
                Ycsb::A if self.random.below(2) == 0 => self.put(record, false)?,
                Ycsb::B if self.random.below(20) == 0 => self.put(record, false)?,
                Ycsb::E => {
                    let entries = 1 + self.random.below(YCSB_SCAN_ENTRIES_MAX);
                    self.seek(record, entries)?;
                }
                Ycsb::F if self.random.below(2) == 0 => self.read_modify_write(record)?,
                Ycsb::A | Ycsb::B | Ycsb::C | Ycsb::D | Ycsb::F => self.read(record)?,
            }
        }
        Ok(())
    }

    fn read_modify_write(&mut self, record: u64) -> Result<()> {
        self.prepare(record);
        let begun = self.begin();
        self.get(record)?;
        self.shared.engine.put(&self.key, &self.value)?;
        self.end(begun);
        self.played.puts += 1;
        Ok(())
    }
}
