//! Plays a workload on a tree that holds no data.
//!
//! The simulator does what the engine does when all jobs run on the writer's thread: the write that
//! finds the memtable full has it flushed, then the policy picks jobs until it rests, before the next
//! write. Policy, [`TreeShape::apply`] and [`OutputSplitter`](lsmx_compaction::OutputSplitter) are the engine's own.
//! Only what a file holds is an estimate: stretches of its key range with so many entries each
//! (`body.rs`), of so many distinct keys (`content.rs`), that take so many bytes (`sizes.rs`). What a
//! real tree owes to chance is drawn by seed.
//!
//! `docs/compaction.md` says what the model leaves out.

mod body;
mod caching;
mod coarse;
mod content;
pub mod cost;
mod cut;
mod lookups;
mod merge;
mod numbers;
mod older;
mod parts;
mod random;
mod report;
mod seqs;
mod sizes;
mod source;
#[cfg(test)]
mod tests;
mod traffic;
pub mod workload;
mod writer;

use std::sync::Arc;

use crate::workload::Phase;
use lsmx_compaction::{
    CompactionPolicy, Error, FileId, Job, JobKind, KeyRange, Level, PolicySpec, RunningJobs,
    TableMeta, TreeShape,
};
use std::collections::HashMap;

use body::{Body, place_of};
use coarse::Coarse;
use cut::Cut;
use lookups::{Asking, Mixed, Reading};
pub use lookups::{PointReport, RangeReport};
use numbers::{real, whole};
use older::Older;
use random::Dice;
pub use report::{CompactionReport, LevelReport, Report};
use seqs::Seqs;
use sizes::{MEMTABLE_BYTES_AT_FIRST, Sizes};
use source::Source;
use traffic::{Traffic, Writes};
use writer::{Output, Room, Stamp, Writer};

/// Stretches that a file keeps.
const STRETCHES_MAX: usize = 32;
/// Flushes from which on a tree may be played with larger files.
const FLUSHES_MANY: f64 = 2000.0;
/// Looks at the tree while lookups are mixed into writes.
const READ_SAMPLES: u32 = 32;
/// Jobs in a row after which a policy is taken to be one that never rests.
const JOBS_IN_A_ROW_MAX: u64 = 10_000_000;

/// Parts of a merge by default: the engine's, with as many workers as it has by default.
pub const MERGE_PARTS_DEFAULT: usize = 2;

/// Most bytes that the writes of a simulation may take in memory, 64 PiB: sums of what jobs read and write
/// stay within 64 bits.
pub const BYTES_MAX: u64 = 1 << 56;
/// Most flushes that a simulation may play.
pub const FLUSHES_MAX: u64 = 100_000_000;

/// About how large a simulation is, before it is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Bytes that the writes take in memory.
    pub bytes: f64,
    /// Flushes; each is followed by the jobs that the policy picks.
    pub flushes: f64,
}

/// What to simulate, apart from the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What is done, one phase after the other.
    pub phases: Vec<Phase>,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Bytes in memory at which a memtable is sealed.
    pub memtable_bytes: u64,
    /// Target bytes of a table.
    pub table_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// Into how many parts a merge is divided at most, see [`MERGE_PARTS_DEFAULT`].
    pub merge_parts: usize,
    /// Seed of what is left to chance.
    pub seed: u64,
}

/// Why a simulation ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The policy picked a job that the tree refuses.
    #[error("{policy} picked a job that cannot be: {job}: {source}")]
    Job {
        /// The policy.
        policy: String,
        /// The job, in words.
        job: String,
        /// Why it cannot be.
        source: Box<Error>,
    },
    /// The policy goes on and on.
    #[error("{policy} does not come to rest")]
    Restless {
        /// The policy.
        policy: String,
    },
    /// The simulation would not end in any reasonable time, or its sums would overflow.
    #[error(
        "about {:.0} flushes of {:.3e} bytes in all are too many: at most {FLUSHES_MAX} flushes of \
         {BYTES_MAX} bytes in all can be simulated; write fewer entries, or set a larger memtable",
        .0.flushes, .0.bytes
    )]
    TooLarge(Extent),
    /// Whoever asked for it wants it no more.
    #[error("given up")]
    GivenUp,
}

impl Config {
    /// Estimates how large the simulation is.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let writes: f64 = self.phases.iter().map(|phase| Writes::of(phase).all()).sum();
        let sizes = Sizes::new(self.key_bytes, self.value_bytes, whole(writes));
        let bytes = writes * sizes.memtable_put(false);
        Extent { bytes, flushes: bytes / real(self.memtable_bytes.max(1)) }
    }

    /// Plays the phases under a policy. `go_on` is asked after each flush with the writes played so
    /// far; where it says no, the simulation is given up.
    ///
    /// # Errors
    /// [`Failure`]: too large, a policy with a mistake, or given up.
    pub fn run(
        &self,
        spec: &PolicySpec,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Report, Failure> {
        self.check_extent()?;
        // An operation takes a microsecond of the tree's clock, as in the engine's deterministic mode.
        // A share of the run is one of the time to the last write.
        let last = self.phases.iter().rposition(|phase| phase.writes() > 0);
        let written = &self.phases[..last.map_or(0, |last| last + 1)];
        let run_us = written.iter().map(Phase::ops).sum();
        self.run_policy(&*spec.clone().with_duration(run_us).build(), go_on)
    }

    fn check_extent(&self) -> Result<(), Failure> {
        let extent = self.extent();
        let fits = extent.bytes <= real(BYTES_MAX) && extent.flushes <= real(FLUSHES_MAX);
        if fits { Ok(()) } else { Err(Failure::TooLarge(extent)) }
    }

    /// [`Config::run`] of any policy.
    ///
    /// # Errors
    /// As [`Config::run`].
    pub fn run_policy(
        &self,
        policy: &dyn CompactionPolicy,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Report, Failure> {
        self.check_extent()?;
        let mut simulator = Simulator::new(self, policy);
        let mut unsettled = false;
        for phase in &self.phases {
            simulator.play(phase, go_on)?;
            unsettled |= phase.writes() > 0;
            if phase.writes() == 0 {
                simulator.read(phase);
            }
            if phase.settle {
                simulator.settle()?;
                unsettled = false;
            }
        }
        if unsettled {
            simulator.settle()?;
        }
        Ok(simulator.report())
    }
}

/// A tree at work.
struct Simulator<'a> {
    config: &'a Config,
    policy: &'a dyn CompactionPolicy,
    sizes: Sizes,
    shape: TreeShape,
    /// What files hold.
    bodies: HashMap<FileId, Body>,
    room: Room,
    /// Number of the next file.
    file_next: u64,
    traffic: Traffic,
    dice: Dice,
    coarse: Coarse,
    /// What the memtable holds: stretches of several phases, and writes of the phase at hand.
    memtable: Vec<Body>,
    memtable_bytes: f64,
    /// When the first tombstone in the memtable was written, and how long it may stay there.
    tombstone_us: Option<u64>,
    tombstone_wait_us: Option<u64>,
    /// When time alone makes a compaction due.
    compaction_due_us: Option<u64>,
    /// Writes so far, and operations of all kinds so far.
    seq: u64,
    now_us: u64,
    totals: report::Totals,
    lookups_since_write: f64,
    point_lookups: Vec<PointReport>,
    range_lookups: RangeReport,
}

impl<'a> Simulator<'a> {
    fn new(config: &'a Config, policy: &'a dyn CompactionPolicy) -> Simulator<'a> {
        let writes: u64 = config.phases.iter().map(Phase::writes).sum();
        let sizes = Sizes::new(config.key_bytes, config.value_bytes, writes);
        let flushes = real(writes) * sizes.memtable_put(false) / real(config.memtable_bytes.max(1));
        let data_bytes = writes.saturating_mul(config.key_bytes.saturating_add(config.value_bytes));
        let flush_bytes = whole(real(data_bytes) / flushes.max(1.0));
        let table_bytes = config.table_bytes;
        let coarse = match flushes > FLUSHES_MANY {
            true => Coarse::of(policy, data_bytes, table_bytes, flush_bytes),
            false => Coarse::none(),
        };
        Simulator {
            config,
            policy,
            shape: TreeShape {
                memtable_bytes: config.memtable_bytes,
                table_bytes: table_bytes.saturating_mul(coarse.tables_per_file),
                ..TreeShape::default()
            },
            bodies: HashMap::new(),
            room: Room::default(),
            file_next: 0,
            traffic: Traffic::new(&config.phases),
            dice: Dice::new(config.seed),
            coarse,
            memtable: Vec::new(),
            memtable_bytes: MEMTABLE_BYTES_AT_FIRST,
            tombstone_us: None,
            tombstone_wait_us: policy.memtable_tombstone_age_max_us(&TreeShape::default()),
            compaction_due_us: None,
            seq: 0,
            now_us: 0,
            totals: report::Totals::default(),
            lookups_since_write: 0.0,
            point_lookups: Vec::new(),
            range_lookups: RangeReport::default(),
            sizes,
        }
    }

    /// Plays the writes of a phase. Memtables are filled to the last write that still finds room.
    fn play(&mut self, phase: &Phase, go_on: &mut dyn FnMut(u64) -> bool) -> Result<(), Failure> {
        let all = Writes::of(phase);
        if all.all() > 0.0 {
            self.lookups_since_write = 0.0;
        }
        let ascending = phase.distribution == crate::workload::Distribution::Sequential
            && phase.inserts > phase.updates;
        let mean = self.bytes_of(&all, ascending) / all.all().max(1.0);
        let mut done = 0.0;
        let reads = !phase.lookups.is_empty() || phase.ranges > 0;
        let (mut looks, mut mixed) = (0, Mixed::default());
        let ops_per_write = real(phase.ops()) / all.all().max(1.0);
        while done < all.all() {
            let room = real(self.config.memtable_bytes) - self.memtable_bytes;
            let due_us = self.due_us();
            if due_us <= self.now_us {
                // A tombstone is too old, in memory or in the tree.
                let in_memory = self.memtable_due_us() <= self.now_us;
                if in_memory {
                    self.flush(false)?
                } else {
                    self.compact()?
                }
                continue;
            }
            if room <= 0.0 {
                // The next write finds it full.
                self.flush(false)?;
                if !go_on(self.seq) {
                    return Err(Failure::GivenUp);
                }
                continue;
            }
            let until_due = real(due_us - self.now_us) / ops_per_write;
            let fitting = libm::ceil((room / mean).min(until_due)).max(1.0);
            let taken = fitting.min(all.all() - done);
            let writes = all.scaled(taken / all.all());
            let seqs = Seqs { smallest: self.seq + 1, largest: self.seq + whole(taken).max(1) };
            let body = self.traffic.write(phase, &writes, done / all.all(), seqs);
            if self.traffic.mixes() {
                let kept = self.bodies.values_mut();
                kept.chain(&mut self.memtable).for_each(|body| self.traffic.mix(body));
            }
            self.seq = seqs.largest;
            if writes.deletes + writes.range_deletes > 0.0 {
                self.tombstone_us.get_or_insert(self.now_us);
            }
            self.now_us += whole(taken * ops_per_write);
            self.memtable_bytes += self.bytes_of(&writes, ascending);
            self.totals.note(&writes, &self.sizes);
            self.memtable.push(body);
            done += taken;
            // Lookups that are mixed in meet the tree as it is over time, not as it is at the end.
            let due = |looks: u32| (f64::from(looks) + 0.5) / f64::from(READ_SAMPLES);
            while reads && looks < READ_SAMPLES && done / all.all() >= due(looks) {
                looks += 1;
                let (points, ranges) = self.estimate(phase);
                mixed.add(points, &ranges);
            }
        }
        self.point_lookups.extend(mixed.points);
        self.range_lookups.add(&mixed.ranges);
        if all.all() <= 0.0 {
            self.now_us += phase.ops();
        }
        Ok(())
    }

    /// Estimates the lookups of a phase that only reads.
    fn read(&mut self, phase: &Phase) {
        let (points, ranges) = self.estimate(phase);
        self.lookups_since_write += points.iter().map(|it| real(it.ops)).sum::<f64>();
        self.point_lookups.extend(points);
        self.range_lookups.add(&ranges);
    }

    /// What the lookups of a phase cost in the tree as it is.
    fn estimate(&self, phase: &Phase) -> (Vec<PointReport>, RangeReport) {
        if phase.lookups.is_empty() && phase.ranges == 0 {
            return Default::default();
        }
        let cache_bytes = self.config.block_cache_bytes;
        let live = self.traffic.live();
        let reading = Reading::of(&self.shape, &self.coarse, &self.sizes, live, cache_bytes);
        // Where lookups are mixed into writes, the cache has long been warm.
        let warm = if phase.writes() > 0 { real(u64::MAX) } else { 0.0 };
        let mut before = self.lookups_since_write.max(warm);
        let mut points = Vec::new();
        for lookups in phase.lookups.iter().filter(|lookups| lookups.ops > 0) {
            let asking = Asking { distribution: phase.distribution, before };
            points.push(reading.point(lookups, &asking));
            before += real(lookups.ops);
        }
        let ranges = if phase.ranges > 0 { reading.range(phase) } else { RangeReport::default() };
        (points, ranges)
    }

    /// When time alone makes something due.
    fn due_us(&self) -> u64 {
        self.memtable_due_us().min(self.compaction_due_us.unwrap_or(u64::MAX))
    }

    /// When the memtable is to be flushed for the age of its first tombstone.
    fn memtable_due_us(&self) -> u64 {
        let wait_us = self.tombstone_wait_us;
        let written_us = self.tombstone_us.zip(wait_us);
        written_us.map_or(u64::MAX, |(written_us, wait_us)| written_us.saturating_add(wait_us))
    }

    fn bytes_of(&self, writes: &Writes, ascending: bool) -> f64 {
        (writes.inserts + writes.updates) * self.sizes.memtable_put(ascending)
            + writes.deletes * self.sizes.memtable_delete(ascending)
            + writes.merges * self.sizes.memtable_merge(ascending)
            + writes.range_deletes * self.sizes.memtable_span()
    }

    /// Writes what is in memory and compacts until the policy rests, with nothing more to come.
    fn settle(&mut self) -> Result<(), Failure> {
        self.flush(true)
    }

    /// Writes the memtable as one table, and compacts until the policy rests.
    fn flush(&mut self, resting: bool) -> Result<(), Failure> {
        let bodies = std::mem::take(&mut self.memtable);
        self.memtable_bytes = MEMTABLE_BYTES_AT_FIRST;
        // What was written later is newer.
        let mut sources: Vec<Source<'_>> = bodies.iter().rev().map(Source::of_memtable).collect();
        let mut older = Older::default();
        for (_, run) in self.shape.runs() {
            // Between the files of a run are gaps, but next to nothing falls into them.
            let range = run.range();
            older.add(range.iter().map(places).collect());
        }
        let oldest_tombstone_us = self.tombstone_us.take();
        let stamp = Stamp { now_us: self.now_us, oldest_tombstone_us };
        let mut writer = Writer::new(&self.sizes, stamp, usize::MAX, &mut self.room);
        let mut cut = Cut::never();
        merge::merge(
            &mut sources,
            &mut older,
            &mut cut,
            &mut writer,
            self.traffic.classes(),
            self.traffic.records(),
            &mut self.dice,
        );
        let outputs = writer.finish(&mut self.dice);
        if !outputs.is_empty() {
            self.totals.flushes += 1;
            self.totals.flushed_bytes += outputs.iter().map(|o| o.shape.bytes).sum::<u64>();
            let files = self.keep(outputs);
            // Outputs of one walk are disjoint and in key order.
            if let Ok((shape, _)) = self.shape.with_flush(files) {
                self.shape = shape;
            }
        }
        self.shape.memtables_empty = resting;
        self.compact()
    }

    /// Gives outputs their names and keeps what they hold.
    fn keep(&mut self, outputs: Vec<Output>) -> Vec<TableMeta> {
        outputs
            .into_iter()
            .map(|output| {
                let mut shape = output.shape;
                shape.id = FileId(self.file_next);
                shape.creation = self.file_next;
                self.file_next += 1;
                self.bodies.insert(shape.id, output.body);
                shape
            })
            .collect()
    }

    /// Plays jobs until the policy rests.
    fn compact(&mut self) -> Result<(), Failure> {
        let busy = RunningJobs::default();
        for _ in 0..JOBS_IN_A_ROW_MAX {
            self.shape.now_us = self.now_us;
            let Some(job) = self.policy.pick(&self.shape, &busy) else {
                self.compaction_due_us = self.policy.next_due_us(&self.shape);
                self.tombstone_wait_us = self.policy.memtable_tombstone_age_max_us(&self.shape);
                return Ok(());
            };
            self.play_job(&job).map_err(|source| Failure::Job {
                policy: self.policy.name().to_owned(),
                job: job.to_string(),
                source: Box::new(source),
            })?;
        }
        Err(Failure::Restless { policy: self.policy.name().to_owned() })
    }

    fn play_job(&mut self, job: &Job) -> Result<(), Error> {
        let merges = matches!(job.kind, JobKind::Merge | JobKind::Rewrite);
        let outputs = if merges { self.merge(job)? } else { Vec::new() };
        match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                self.totals.jobs += 1;
                self.totals.read_bytes += job.input_bytes(&self.shape)?;
                self.totals.written_bytes += outputs.iter().map(|o| o.shape.bytes).sum::<u64>();
            }
            JobKind::Move => self.totals.moves += 1,
            JobKind::Drop => self.totals.drops += 1,
        }
        let files = self.keep(outputs);
        let applied = std::mem::take(&mut self.shape).apply_in_place(job, files)?;
        self.shape = applied.shape;
        let gone = applied.removed.iter().filter_map(|file| self.bodies.remove(file));
        self.room.reuse(gone);
        Ok(())
    }

    /// The outputs of a job that merges or rewrites.
    fn merge(&mut self, job: &Job) -> Result<Vec<Output>, Error> {
        let mut inputs: Vec<Vec<&Arc<TableMeta>>> = Vec::with_capacity(job.inputs.len());
        for input in &job.inputs {
            inputs.push(input.resolve(&self.shape)?);
        }
        let files = || inputs.iter().flatten();
        let stamp = Stamp {
            now_us: self.now_us,
            oldest_tombstone_us: files().filter_map(|file| file.oldest_tombstone_us).min(),
        };
        let mut older = Older::default();
        let tombstones: u64 = files().map(|file| file.tombstones).sum();
        if tombstones > 0 || self.totals.changes() > 0.0 {
            let range = job.range(&self.shape)?;
            let newest = |(level, run): &(Level, &Arc<lsmx_compaction::SortedRun>)| {
                job.inputs.iter().any(|input| input.level == *level && input.run == run.id)
            };
            for (level, run) in self.shape.runs().skip_while(|at| !newest(at)) {
                let taken =
                    job.inputs.iter().position(|input| input.level == level && input.run == run.id);
                let mut taken = taken.map_or(&[][..], |at| &inputs[at]).iter().peekable();
                let overlapping = run.overlapping(&range).iter();
                let staying = overlapping
                    .filter(|file| taken.next_if(|input| input.id == file.id).is_none())
                    .map(|file| places(&file.range));
                older.add(staying.collect());
            }
        }
        let body = |file: &Arc<TableMeta>| self.bodies.get(&file.id);
        let mut sources: Vec<Source<'_>> = inputs
            .iter()
            .map(|files| Source::new(files.iter().filter_map(|file| body(file)).collect()))
            .collect();
        let extents = inputs.iter().map(|files| {
            let bodies = files.iter().filter_map(|file| Some((file, body(file)?)));
            bodies.map(|(file, body)| (body, self.sizes.weight(file)))
        });
        let read_bytes: f64 = files().map(|file| self.sizes.weight(file)).sum();
        let table_bytes = self.coarse.table_bytes_of(job.split.file_bytes);
        let ends = parts::ends(extents, read_bytes, self.config.merge_parts, table_bytes);
        let mut cut = Cut::by(&job.split, &self.shape, ends);
        let mut writer = Writer::new(&self.sizes, stamp, STRETCHES_MAX, &mut self.room);
        writer.outputs.reserve(files().count() + 2);
        merge::merge(
            &mut sources,
            &mut older,
            &mut cut,
            &mut writer,
            self.traffic.classes(),
            self.traffic.records(),
            &mut self.dice,
        );
        Ok(writer.finish(&mut self.dice))
    }

    fn report(self) -> Report {
        Report {
            point_lookups: self.point_lookups,
            range_lookups: self.range_lookups,
            ..Report::new(&self.shape, &self.coarse, &self.totals, &self.sizes, &self.traffic)
        }
    }
}

/// A range in places.
fn places(range: &KeyRange) -> (u64, u64) {
    (place_of(&range.smallest), place_of(&range.largest))
}
