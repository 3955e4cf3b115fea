//! Puts per slice of time, while compactions run.

use lsmx_base::sync::{AtomicBool, AtomicU64, Ordering};

use crate::clock::Stopwatch;
use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::throughput::database::holds_something;
use crate::latency::Latencies;
use crate::numbers::{self, float, length};
use crate::peers::{Engine, Kind, Written};
use crate::workload::random::{Random, mix};

use super::result::{Cell, Slice};
use super::{Bench, STEP};

/// Time that puts are first gathered by.
const SLICE_NS: u64 = 50_000_000;
/// Most slices of a result; where there would be more, neighbours become one.
const SLICES_MAX: usize = 400;
/// Time between two looks at progress and compactions.
const LOOK: std::time::Duration = std::time::Duration::from_millis(25);
const PURPOSE: u64 = 0x7075_7473;

/// Puts that ended in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gathered {
    ops: u64,
    total_ns: u64,
    max_ns: u64,
    compaction_bytes: u64,
}

impl Gathered {
    fn add(&mut self, other: &Gathered) {
        self.ops += other.ops;
        self.total_ns += other.total_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.compaction_bytes += other.compaction_bytes;
    }
}

/// What one thread, or all of them, have put.
#[derive(Debug, Default)]
struct Played {
    slices: Vec<Gathered>,
    latencies: Latencies,
    elapsed_ns: u64,
}

impl Played {
    fn slice(&mut self, ns: u64) -> &mut Gathered {
        let at = length(ns / SLICE_NS);
        if at >= self.slices.len() {
            self.slices.resize(at + 1, Gathered::default());
        }
        &mut self.slices[at]
    }

    fn merge(&mut self, other: &Played) {
        for (at, slice) in (0..).zip(&other.slices) {
            self.slice(at * SLICE_NS).add(slice);
        }
        self.latencies.merge(&other.latencies);
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
    }
}

pub(super) fn run(bench: &Bench<'_>, progress: &mut dyn Progress) -> Result<Vec<Cell>> {
    let engines = std::iter::once(Kind::Lsmx).chain(bench.config.peers.iter().copied());
    engines.map(|kind| of_engine(bench, kind, progress)).collect()
}

fn of_engine(bench: &Bench<'_>, kind: Kind, progress: &mut dyn Progress) -> Result<Cell> {
    let path = match &bench.config.database {
        Some(path) if kind == Kind::Lsmx => path.clone(),
        Some(path) => {
            let mut path = path.clone().into_os_string();
            path.push(format!(".{kind}"));
            path.into()
        }
        None => bench.temporary.join(kind.name()),
    };
    // New values for the records of a database that there is; all records, if there is none.
    let overwrites = holds_something(&path);
    let engine = kind.open(&path, &bench.config.settings)?;
    let workload = if overwrites { "overwrite" } else { "fillrandom" };
    let ops = if overwrites { bench.ops() } else { bench.config.entries };
    progress.begin(&format!("{kind}: {workload}"), ops);
    let played = play(bench, engine.as_ref(), overwrites, ops, progress)?;
    progress.end();
    let counts = engine.written().is_some();
    engine.close()?;
    let elapsed_s = float(played.elapsed_ns) / 1e9;
    Ok(Cell {
        workload,
        engine: kind.name().to_owned(),
        setting: kind.name().to_owned(),
        threads: numbers::count(bench.threads()),
        ops: played.latencies.count(),
        ops_per_s: if elapsed_s > 0.0 { float(played.latencies.count()) / elapsed_s } else { 0.0 },
        latency_us: played.latencies.summary(),
        reads: None,
        slices: slices(played.slices, played.elapsed_ns, counts),
    })
}

fn play(
    bench: &Bench<'_>,
    engine: &dyn Engine,
    overwrites: bool,
    ops: u64,
    progress: &mut dyn Progress,
) -> Result<Played> {
    let start = Stopwatch::start();
    let (done, stop) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let threads = bench.threads();
    let compacted = || engine.written().map_or(0, |it: Written| it.compaction_bytes);
    std::thread::scope(|scope| {
        let spawn = |thread: u64| {
            let waiting = std::thread::current();
            scope.spawn(move || {
                let mut random = Random::new(bench.config.seed, mix(PURPOSE).wrapping_add(thread));
                let (mut key, mut value) = (Vec::new(), Vec::new());
                let mut played = Played::default();
                let mut put = |op: u64| -> Result<()> {
                    let record = if overwrites { random.below(bench.config.entries) } else { op };
                    bench.records.key(record, &mut key);
                    bench.records.value(record, &mut random, &mut value);
                    let begun = start.elapsed_ns();
                    engine.put(&key, &value)?;
                    let ended = start.elapsed_ns();
                    let ns = ended - begun;
                    played.latencies.record_ns(ns);
                    let one = Gathered { ops: 1, total_ns: ns, max_ns: ns, compaction_bytes: 0 };
                    played.slice(ended).add(&one);
                    if played.latencies.count().is_multiple_of(STEP) {
                        done.fetch_add(STEP, Ordering::Relaxed);
                    }
                    Ok(())
                };
                let mut turns = (thread..ops).step_by(threads);
                let result = turns
                    .by_ref()
                    .take_while(|_| !stop.load(Ordering::Relaxed))
                    .try_for_each(&mut put);
                if result.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                played.elapsed_ns = start.elapsed_ns();
                waiting.unpark();
                result.map(|()| played)
            })
        };
        let mut all = Played::default();
        let mut before = compacted();
        let workers: Vec<_> = (0..numbers::count(threads)).map(spawn).collect();
        let mut told = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::park_timeout(LOOK);
            let now = done.load(Ordering::Relaxed);
            progress.advance(now - told);
            told = now;
            let bytes = compacted();
            all.slice(start.elapsed_ns()).compaction_bytes += bytes.saturating_sub(before);
            before = bytes;
        }
        for worker in workers {
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.merge(&result?);
        }
        Ok(all)
    })
}

/// Slices as they are reported: no more than [`SLICES_MAX`], the last one as long as it was.
fn slices(gathered: Vec<Gathered>, elapsed_ns: u64, counts: bool) -> Vec<Slice> {
    let joined = gathered.len().div_ceil(SLICES_MAX).max(1);
    let slice_ns = SLICE_NS * numbers::count(joined);
    let slices = (0..).step_by(length(slice_ns)).zip(gathered.chunks(joined));
    slices
        .map(|(begin_ns, parts): (u64, &[Gathered])| {
            let mut all = Gathered::default();
            parts.iter().for_each(|part| all.add(part));
            let end_ns = (begin_ns + slice_ns).min(elapsed_ns.max(begin_ns + 1));
            Slice {
                end_s: float(end_ns) / 1e9,
                ops: all.ops,
                ops_per_s: float(all.ops) * 1e9 / float(end_ns - begin_ns),
                mean_us: if all.ops > 0 { float(all.total_ns) / float(all.ops) / 1e3 } else { 0.0 },
                max_us: float(all.max_ns) / 1e3,
                compaction_bytes: counts.then_some(all.compaction_bytes),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_few_and_hold_every_put() {
        let one = Gathered { ops: 2, total_ns: 4000, max_ns: 3000, compaction_bytes: 5 };
        for count in [1, 399, 400, 401, 1999] {
            let elapsed = SLICE_NS * count - SLICE_NS / 2;
            let slices = slices(vec![one; length(count)], elapsed, true);
            assert!(slices.len() <= SLICES_MAX);
            assert_eq!(slices.iter().map(|slice| slice.ops).sum::<u64>(), 2 * count);
            let compacted: u64 = slices.iter().filter_map(|slice| slice.compaction_bytes).sum();
            assert_eq!(compacted, 5 * count);
            assert!((slices[slices.len() - 1].end_s - float(elapsed) / 1e9).abs() < 1e-9);
            assert!(slices.is_sorted_by(|a, b| a.end_s < b.end_s));
            assert!(slices.iter().all(|slice| (slice.mean_us - 2.0).abs() < 1e-9));
        }
    }
}
