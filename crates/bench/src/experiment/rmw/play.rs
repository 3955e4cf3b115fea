//! Plays a stream on one engine with threads, and measures every operation.
//!
//! Each thread goes through the whole stream and plays the operations on its own records. Keys and values are
//! made first, then the clock is read, the engine called, the clock read again.

use lsmx_base::sync::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::peers::Fields;
use crate::process::{self, Cpu};
use crate::workload::random::Random;
use crate::workload::record::to_hex;

use super::design::Mode;
use super::mix::Act;
use super::records::Records;
use super::stream::{Op, Recipe};

/// Operations of a thread between two reports of progress; a power of two.
const PROGRESS_OPS: u64 = 256;
/// Time between two looks at progress and memory.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);
/// Operations for each read that warms up.
const OPS_PER_WARM_UP_READ: u64 = 10;
const PURPOSE_WARM_UP: u64 = 0x7761_726d;

/// What is measured of the operations of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Played {
    pub(super) ops: u64,
    pub(super) reads: Latencies,
    /// Blocks that the reads took from files.
    pub(super) read_ios: u64,
    pub(super) updates: Latencies,
    pub(super) puts: Latencies,
    pub(super) scans: Latencies,
    /// Entries that the scans saw.
    pub(super) scanned_entries: u64,
    pub(super) elapsed_ns: u64,
    /// Processor time of the threads.
    pub(super) cpu: Option<Cpu>,
    /// The most memory that was seen.
    pub(super) memory_bytes: Option<u64>,
}

impl Played {
    fn merge(&mut self, other: &Played) {
        self.ops += other.ops;
        self.reads.merge(&other.reads);
        self.read_ios += other.read_ios;
        self.updates.merge(&other.updates);
        self.puts.merge(&other.puts);
        self.scans.merge(&other.scans);
        self.scanned_entries += other.scanned_entries;
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.cpu = match (self.cpu, other.cpu) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
    }
}

/// What the threads share.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) engine: &'a dyn Fields,
    pub(super) records: &'a Records,
    pub(super) mode: Mode,
}

impl Table<'_> {
    /// Loads the first `count` records.
    pub(super) fn load(&self, count: u64, progress: &mut dyn Progress) -> Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for record in 0..count {
            self.records.key(record, &mut key);
            self.records.value(record, 0, &mut value);
            self.engine.put(&key, &value)?;
            if (record + 1).is_multiple_of(PROGRESS_OPS) {
                progress.advance(PROGRESS_OPS);
            }
        }
        Ok(())
    }

    /// Reads as the operations will, so that what belongs into memory is there.
    pub(super) fn warm_up(&self, recipe: &Recipe) -> Result<()> {
        let popular = recipe.popular();
        let mut random = Random::new(recipe.seed, PURPOSE_WARM_UP);
        let mut key = Vec::new();
        for _ in 0..recipe.ops / OPS_PER_WARM_UP_READ {
            self.read(popular.draw(&mut random), &mut key)?;
        }
        Ok(())
    }

    /// Looks a record up that is there; returns how many blocks that took from files.
    pub(super) fn read(&self, record: u64, key: &mut Vec<u8>) -> Result<u64> {
        self.records.key(record, key);
        let length = self.records.value_len(record);
        let before = self.engine.reads_of_this_thread();
        let mut right = false;
        let found = self.engine.get(key, &mut |value| right = value.len() == length)?;
        if !right {
            let found = if found { "of another length" } else { "absent" };
            return Err(wrong(key, found, "there, as long as it was put"));
        }
        Ok(self.engine.reads_of_this_thread().saturating_sub(before))
    }

    /// Reads entries from this key on, which must be there; returns how many there were.
    pub(super) fn scan(&self, key: &[u8], entries: u64) -> Result<u64> {
        let mut first = None;
        let count = self.engine.seek(key, entries, &mut |found, value| {
            first.get_or_insert(found == key);
            std::hint::black_box(value);
        })?;
        if first != Some(true) {
            return Err(wrong(key, "absent from a range", "its first"));
        }
        Ok(count)
    }

    /// Updates a field as the mode says.
    pub(super) fn update(&self, key: &[u8], offset: u32, delta: &[u8]) -> Result<()> {
        match self.mode {
            Mode::GetPut => self.engine.rewrite(key, offset, delta),
            Mode::Merge | Mode::Kd => self.engine.merge(key, offset, delta),
        }
    }
}

fn wrong(key: &[u8], found: &'static str, must: &'static str) -> Error {
    Error::WrongAnswer { key: to_hex(key), found, must }
}

/// Plays all operations.
pub(super) fn play(
    table: Table<'_>,
    recipe: &Recipe,
    threads: u64,
    progress: &mut dyn Progress,
) -> Result<Played> {
    let start = Stopwatch::start();
    let (done, stop) = (&AtomicU64::new(0), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            let waiting = std::thread::current();
            scope.spawn(move || {
                let player = Player { table, start, done, stop, played: Played::default() };
                let result = player.run(recipe, thread, threads);
                if result.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                waiting.unpark();
                result
            })
        };
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        let (mut told, mut memory) = (0, process::resident_bytes());
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::park_timeout(LOOK);
            let now = done.load(Ordering::Relaxed);
            progress.advance(now - told);
            told = now;
            memory = memory.max(process::resident_bytes());
        }
        let mut played = Played { memory_bytes: memory, ..Played::default() };
        for worker in workers {
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            played.merge(&result?);
        }
        Ok(played)
    })
}

/// One thread.
struct Player<'a> {
    table: Table<'a>,
    start: Stopwatch,
    done: &'a AtomicU64,
    /// Another thread has failed.
    stop: &'a AtomicBool,
    played: Played,
}

impl Player<'_> {
    fn run(mut self, recipe: &Recipe, thread: u64, threads: u64) -> Result<Played> {
        let (mut key, mut bytes) = (Vec::new(), Vec::new());
        let before = process::cpu_of_this_thread();
        for op in recipe.stream().filter(|op| op.record % threads == thread) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.play(op, &mut key, &mut bytes)?;
            self.played.ops += 1;
            if self.played.ops.is_multiple_of(PROGRESS_OPS) {
                self.done.fetch_add(PROGRESS_OPS, Ordering::Relaxed);
            }
        }
        self.played.elapsed_ns = self.start.elapsed_ns();
        let after = process::cpu_of_this_thread();
        self.played.cpu = after.zip(before).map(|(after, before)| after.since(before));
        Ok(self.played)
    }

    fn play(&mut self, op: Op, key: &mut Vec<u8>, bytes: &mut Vec<u8>) -> Result<()> {
        let Op { act, record, version, dice } = op;
        let Table { engine, records, .. } = self.table;
        records.key(record, key);
        match act {
            Act::Read => {
                let begun = self.start.elapsed_ns();
                self.played.read_ios += self.table.read(record, key)?;
                self.played.reads.record_ns(self.start.elapsed_ns() - begun);
            }
            Act::Update | Act::Rewrite => {
                let offset = records.delta(record, version, dice, bytes);
                let begun = self.start.elapsed_ns();
                if act == Act::Update {
                    self.table.update(key, offset, bytes)?;
                } else {
                    engine.rewrite(key, offset, bytes)?;
                }
                self.played.updates.record_ns(self.start.elapsed_ns() - begun);
            }
            Act::Put | Act::Insert => {
                records.value(record, version, bytes);
                let begun = self.start.elapsed_ns();
                engine.put(key, bytes)?;
                self.played.puts.record_ns(self.start.elapsed_ns() - begun);
            }
            Act::Scan(entries) => {
                let begun = self.start.elapsed_ns();
                self.played.scanned_entries += self.table.scan(key, entries)?;
                self.played.scans.record_ns(self.start.elapsed_ns() - begun);
            }
        }
        Ok(())
    }
}
