//! `lsmx rmw`: read-modify-writes, by how fields are updated and where values and operands lie.
//!
//! Records have fields; a read-modify-write gives one field new bytes. The modes do so by reading, changing
//! and putting the value, by merging an operand into the tree, or by keeping operands apart from it. All of them
//! end with equal values, which every cell proves for a sample of records.
//!
//! Each cell has a database of its own: loaded, settled, warmed up, operated on, settled, checked, removed.

mod cell;
mod design;
mod mix;
mod model;
mod operands;
mod play;
pub mod published;
mod records;
pub mod result;
mod scans;
mod stream;
mod study;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use lsmx_delta::DeltaOptions;

use crate::error::{Error, Result};
use crate::experiment::resume::Finished;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::{self, float, round};
use crate::peers::Kind;
use crate::report::provenance::Provenance;
use crate::temporary;

use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use super::{Progress, repeat};
use cell::Plan;
use records::{Length, Shape};
use result::{Cell, Rmw};
use stream::Recipe;

pub use design::{Base, Design, Mode};
pub use mix::Mix;
pub use study::{KNOWN, Known, Study};

/// Most threads that can be asked for.
pub const THREADS_MAX: u64 = 64;
/// Of the loaded bytes the part that is allowed as memory by default.
const BUDGET_FRACTION: f64 = 0.04;
/// Least memory that the engine accepts as a budget.
const BUDGET_BYTES_MIN: u64 = 4 << 20;
/// Keys and values of the UP2X-like mix where no lengths are asked for.
const UP2X_KEY: Length = Length::Normal { mean: 10.45, deviation: 1.4, min: 8, max: 16 };
const UP2X_VALUE: Length = Length::Normal { mean: 46.8, deviation: 11.6, min: 10, max: 200 };
const UP2X_FIELD_BYTES: u64 = 10;
/// Lengths of the other mixes where none are asked for.
const KEY_BYTES: u64 = 24;
const VALUE_BYTES: u64 = 1000;
const FIELD_BYTES: u64 = 100;
/// Share of reads where none is asked for.
const READ_RATIO: f64 = 0.1;
/// Exponent of the popularity where none is asked for.
const ZIPF: f64 = 0.99;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Config {
    /// How fields are updated.
    pub modes: Vec<Mode>,
    /// Where values lie.
    pub bases: Vec<Base>,
    /// Engines to run next to lsmx.
    pub peers: Vec<Kind>,
    /// Shares of reads; by default one of a tenth.
    pub read_ratios: Option<Vec<f64>>,
    /// The mix.
    pub mix: Mix,
    /// An experiment, which varies one of the parameters.
    pub study: Option<Study>,
    /// Records to load.
    pub records: u64,
    /// Bytes of a key; by default 24, and as UP2X has them in that mix.
    pub key_bytes: Option<u64>,
    /// Bytes of a value; by default 1000, and as UP2X has them in that mix.
    pub value_bytes: Option<u64>,
    /// Bytes of a field; by default 100, and 10 in the UP2X-like mix.
    pub field_bytes: Option<u64>,
    /// Bytes that an update writes; by default a whole field.
    pub delta_bytes: Option<u64>,
    /// Operations of a cell.
    pub ops: u64,
    /// Exponent of the popularity of records; by default 0.99.
    pub zipf: Option<f64>,
    /// Bytes of memory; by default 4 % of the loaded bytes, but no less than the engine needs.
    pub memory_budget: Option<u64>,
    /// Whether tables are read past the page cache.
    pub direct_io: bool,
    /// Bytes of values that a scan is to get by one read of a blob file; by default as in the engine.
    pub scan_read_bytes: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// How often each cell runs.
    pub repeat: u64,
    /// The seed.
    pub seed: u64,
    /// Where temporary databases are made.
    pub directory: PathBuf,
    /// The command line, for the provenance.
    pub command: String,
}

/// What a cell will load and do, for those who want to know beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Engine, mode, base.
    pub design: String,
    /// What the experiment varies.
    pub sweep: SweepPoint,
    /// Share of reads.
    pub read_ratio: f64,
    /// Records to load.
    pub records: u64,
    /// Key and value bytes of these.
    pub loaded_bytes: u64,
    /// Bytes of memory.
    pub memory_budget: u64,
    /// Operations, all repetitions together.
    pub ops: u64,
    /// Whether all its repetitions have finished in an earlier run.
    pub finished: bool,
}

impl Config {
    /// Checks what can be checked without running anything.
    ///
    /// # Errors
    /// When a parameter is out of range, contradicts another, or asks for what this build does not have.
    pub fn check(&self) -> Result<()> {
        self.plans().map(drop)
    }

    /// Cells in all, repetitions included.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub fn cell_count(&self) -> Result<u64> {
        Ok(numbers::count(self.plans()?.len()) * self.repeat)
    }

    /// What will be run.
    ///
    /// # Errors
    /// As [`Config::check`], and when finished cells cannot be read.
    pub fn estimates(&self, finished: Option<&Finished>) -> Result<Vec<Estimate>> {
        let plans = (0..).step_by(numbers::length(self.repeat)).zip(self.plans()?);
        let estimates = plans.map(|(place, plan): (u64, Plan)| {
            let mut done = finished.is_some();
            for place in place..place + self.repeat {
                done &= match finished {
                    Some(finished) => finished.cell::<Vec<Cell>>(place)?.is_some(),
                    None => false,
                };
            }
            Ok(Estimate {
                design: plan.design.to_string(),
                sweep: plan.sweep.clone(),
                read_ratio: plan.recipe.mix.read_ratio(plan.recipe.read_ratio),
                records: plan.recipe.records,
                loaded_bytes: plan.records()?.bytes(plan.recipe.records),
                memory_budget: plan.memory_budget,
                ops: plan.recipe.ops * self.repeat,
                finished: done,
            })
        });
        estimates.collect()
    }

    /// Runs all cells.
    ///
    /// # Errors
    /// As [`Config::check`], and when an engine fails or gives a wrong answer.
    pub fn run(&self, finished: Option<&Finished>, progress: &mut dyn Progress) -> Result<Rmw> {
        let plans = self.plans()?;
        let provenance = Provenance::new(self.command.clone(), None, self.seed, &self.directory);
        let mut cells = Vec::new();
        let mut place = 0;
        for plan in &plans {
            let mut repetitions = Vec::new();
            for repetition in 0..self.repeat {
                let mut plan = plan.clone();
                plan.recipe.seed = self.seed.wrapping_add(repetition);
                let known = finished.map(|finished| finished.cell(place)).transpose()?.flatten();
                let done: Vec<Cell> = match known {
                    Some(known) => known,
                    None => self.run_one(&plan, progress)?,
                };
                if let Some(finished) = finished {
                    finished.keep(place, &done)?;
                }
                repetitions.push(done);
                place += 1;
            }
            cells.extend(medians(repetitions)?);
        }
        Ok(Rmw { provenance, experiment: self.study.map(|study| study.name().to_owned()), cells })
    }

    fn run_one(&self, plan: &Plan, progress: &mut dyn Progress) -> Result<Vec<Cell>> {
        let directory = temporary::directory("lsmx-rmw-", &self.directory)?;
        let values = |study: Study| study.known().values.iter().copied().map(round).collect();
        match self.study {
            Some(study @ Study::Operands) => {
                let counts: Vec<u64> = values(study);
                operands::run(plan, &counts, directory.path(), progress)
            }
            Some(study @ Study::Scans) => {
                let lengths: Vec<u64> = values(study);
                scans::run(plan, &lengths, directory.path(), progress)
            }
            _ => plan.run(directory.path(), progress).map(|cell| vec![cell]),
        }
    }

    /// The cells to run, each checked.
    fn plans(&self) -> Result<Vec<Plan>> {
        self.check_numbers()?;
        let engines: Vec<Kind> =
            std::iter::once(Kind::Lsmx).chain(self.peers.iter().copied()).collect();
        let designs = Design::all(&engines, &self.modes, &self.bases);
        let mut plans = Vec::new();
        for point in self.points()? {
            for &design in &designs {
                plans.push(self.plan(design, &point)?);
            }
        }
        Ok(plans)
    }

    fn check_numbers(&self) -> Result<()> {
        between("--records", self.records, 1, 1 << 40)?;
        between("--ops", self.ops, 1, 1 << 40)?;
        between("--threads", self.threads, 1, THREADS_MAX)?;
        between("--repeat", self.repeat, 1, 1000)?;
        if let Some(bytes) = self.key_bytes {
            between("--key-len", bytes, 1, KEY_BYTES_MAX)?;
        }
        if let Some(bytes) = self.value_bytes {
            between("--value-len", bytes, 1, VALUE_BYTES_MAX)?;
        }
        if let Some(zipf) = self.zipf.filter(|&zipf| !(zipf > 0.0 && zipf <= 10.0)) {
            return Err(invalid("--zipf", zipf, "above 0, at most 10"));
        }
        for &ratio in self.read_ratios.iter().flatten() {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(invalid("--read-ratio", ratio, "from 0 to 1"));
            }
        }
        if self.scan_read_bytes.is_some() && !self.bases.contains(&Base::ValueLog) {
            let why = "only values in the value log are brought together";
            return Err(contradiction("--scan-read-bytes", "--base tree".to_owned(), why));
        }
        if self.read_ratios.is_some() && self.mix != Mix::Default {
            let second = format!("--mix {}", self.mix);
            return Err(contradiction(
                "--read-ratio",
                second,
                "the mix decides the share of reads",
            ));
        }
        Ok(())
    }

    /// What differs from cell to cell beside the design, and whether flags contradict the experiment.
    fn points(&self) -> Result<Vec<Point>> {
        let asked = Point::default();
        let Some(study) = self.study else {
            let ratios = self.read_ratios.clone().unwrap_or_else(|| vec![READ_RATIO]);
            let point = |ratio| Point { read_ratio: Some(ratio), ..asked.clone() };
            return Ok(ratios.into_iter().map(point).collect());
        };
        let known = study.known();
        if known.kd_alone && self.modes != [Mode::Kd] {
            let modes: Vec<_> = self.modes.iter().map(|mode| mode.name()).collect();
            let second = format!("--experiment {study}");
            let why = "it varies what --mode kd alone has";
            return Err(contradiction(&format!("--mode {}", modes.join(",")), second, why));
        }
        if known.kd_alone && !self.peers.is_empty() {
            let second = format!("--experiment {study}");
            return Err(contradiction("--peers", second, "no peer keeps operands apart"));
        }
        let varied = |flag: &str, given: bool| {
            let why = "the experiment varies it";
            if given {
                Err(contradiction(flag, format!("--experiment {study}"), why))
            } else {
                Ok(())
            }
        };
        let one_ratio = self.read_ratios.as_ref().is_some_and(|all| all.len() > 1);
        varied(
            "--read-ratio",
            one_ratio || (study == Study::ReadRatio && self.read_ratios.is_some()),
        )?;
        varied("--zipf", study == Study::Zipf && self.zipf.is_some())?;
        let sizes = [Study::ValueSize, Study::DeltaSize].contains(&study);
        varied("--value-len", sizes && self.value_bytes.is_some())?;
        varied("--field-len", sizes && self.field_bytes.is_some())?;
        varied("--delta-len", sizes && self.delta_bytes.is_some())?;
        if study == Study::ReadRatio || sizes {
            varied("--mix", self.mix != Mix::Default)?;
        }
        Ok(known
            .values
            .iter()
            .map(|&value| self.point(study, value))
            .take(self.runs_of(study))
            .collect())
    }

    /// How many of an experiment's values need a run of their own.
    fn runs_of(&self, study: Study) -> usize {
        if study.has_one_run() { 1 } else { study.known().values.len() }
    }

    fn point(&self, study: Study, value: f64) -> Point {
        let one = self.read_ratios.as_ref().and_then(|all| all.first().copied());
        let mut point = Point { read_ratio: one, ..Point::default() };
        let mut shown = SweepValue::Real(value);
        let bytes = self.records.saturating_mul(KEY_BYTES + VALUE_BYTES);
        let records = |value: u64| (bytes / (KEY_BYTES + value)).max(1);
        match study {
            Study::ReadRatio => point.read_ratio = Some(value),
            Study::Zipf => point.zipf = Some(value),
            Study::ValueSize => {
                let value = round(value);
                let field = value / study::VALUE_SIZE_FIELDS;
                point.sizes = Some((value, field, field));
                point.records = Some(records(value));
                shown = SweepValue::Whole(value);
            }
            Study::DeltaSize => {
                let (delta, value) = (round(value), study::DELTA_SIZE_VALUE_BYTES);
                point.sizes = Some((value, delta, delta));
                point.records = Some(records(value));
                shown = SweepValue::Whole(delta);
            }
            Study::Recovery => {
                let ops = round(float(self.ops) * value).max(1);
                point.ops = Some(ops);
                point.recovers = true;
                shown = SweepValue::Whole(ops);
            }
            Study::Operands | Study::Scans => {}
            Study::KdCache => point.kd_cache_share = Some(value / study::PUBLISHED_MEMORY_MIB),
            Study::BucketSize => {
                point.delta = point.delta.bucket_bytes(round(value * 1024.0));
                shown = SweepValue::Whole(round(value));
            }
            Study::SplitThreshold => point.delta = point.delta.split_threshold(value),
        }
        point.sweep = SweepPoint(vec![(study.known().varies.to_owned(), shown)]);
        point
    }

    fn plan(&self, design: Design, point: &Point) -> Result<Plan> {
        let up2x = self.mix == Mix::Up2x;
        let key = self
            .key_bytes
            .map_or(if up2x { UP2X_KEY } else { Length::Fixed(KEY_BYTES) }, Length::Fixed);
        let value = if up2x { UP2X_VALUE } else { Length::Fixed(VALUE_BYTES) };
        let mut value = self.value_bytes.map_or(value, Length::Fixed);
        let mut field =
            self.field_bytes.unwrap_or(if up2x { UP2X_FIELD_BYTES } else { FIELD_BYTES });
        let mut delta = self.delta_bytes.unwrap_or(field);
        if let Some((of_value, of_field, of_delta)) = point.sizes {
            (value, field, delta) = (Length::Fixed(of_value), of_field, of_delta);
        }
        between("--field-len", field, 1, value.min())?;
        between("--delta-len", delta, 1, field)?;
        let records = point.records.unwrap_or(self.records);
        if self.study == Some(Study::Operands) {
            let groups = numbers::count(Study::Operands.known().values.len());
            between("--records", records, groups * 10, 1 << 40)?;
        }
        let shape = Shape { key, value, field_bytes: field, delta_bytes: delta };
        let mut plan = Plan {
            design,
            recipe: Recipe {
                mix: self.mix,
                read_ratio: point.read_ratio.unwrap_or(READ_RATIO),
                records,
                ops: point.ops.unwrap_or(self.ops),
                zipf: point.zipf.or(self.zipf).unwrap_or(ZIPF),
                seed: self.seed,
            },
            shape,
            threads: self.threads,
            memory_budget: 0,
            direct_io: self.direct_io,
            scan_read_bytes: self.scan_read_bytes,
            delta: point.delta,
            sweep: point.sweep.clone(),
            recovers: point.recovers,
        };
        let loaded_bytes = plan.records()?.bytes(records);
        plan.memory_budget = self
            .memory_budget
            .unwrap_or_else(|| round(float(loaded_bytes) * BUDGET_FRACTION).max(BUDGET_BYTES_MIN));
        if let Some(share) = point.kd_cache_share {
            let bytes = round(float(plan.memory_budget) * share);
            plan.delta = plan.delta.cache_bytes(bytes);
        }
        design::check(design)?;
        Ok(plan)
    }
}

/// What differs from cell to cell beside the design.
#[derive(Clone, Debug, Default)]
struct Point {
    read_ratio: Option<f64>,
    zipf: Option<f64>,
    records: Option<u64>,
    ops: Option<u64>,
    /// Bytes of value, field and delta.
    sizes: Option<(u64, u64, u64)>,
    recovers: bool,
    /// How operands that are kept apart are kept.
    delta: DeltaOptions,
    /// Of the memory the part that is for folded operands.
    kd_cache_share: Option<f64>,
    sweep: SweepPoint,
}

/// One cell for all repetitions of each.
fn medians(repetitions: Vec<Vec<Cell>>) -> Result<Vec<Cell>> {
    let count = repetitions.first().map_or(0, Vec::len);
    let mut cells = Vec::new();
    for place in 0..count {
        let all = repetitions.iter().filter_map(|cells| cells.get(place).cloned()).collect();
        // A cell reads what it writes.
        let failed = |error: serde_json::Error| Error::Io {
            action: "summarize",
            path: PathBuf::from("repetitions"),
            source: error.into(),
        };
        cells.extend(repeat::summarize(all).map_err(failed)?);
    }
    Ok(cells)
}

fn between(name: &'static str, n: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    Err(invalid(name, n, &format!("from {min} to {max}")))
}

fn invalid(name: &'static str, value: impl ToString, must: &str) -> Error {
    Error::Invalid { name, value: value.to_string(), must: must.to_owned() }
}

fn contradiction(first: &str, second: String, why: &'static str) -> Error {
    Error::Contradiction { first: first.to_owned(), second, why }
}
