//! `lsmx rmw`: compares ways to update a field of a value, and storage locations for values and merge operands.
//!
//! A record consists of fields. A read-modify-write replaces the bytes of one field. All update modes must produce
//! equal values.
//!
//! Each measurement creates a database, loads all records, waits until compaction is idle, and warms up the caches. It
//! runs the operations and waits until compaction is idle again. Finally it checks the values of a sample of records,
//! and removes the database.

mod cell;
mod cells;
pub mod columns;
mod design;
mod model;
mod operands;
mod page;
pub mod result;
mod scans;
mod stream;
mod study;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use lsmx::merge_operator::FieldUpdate;
use lsmx_delta::DeltaOptions;

use crate::error::{Error, Result};
use crate::experiment::resume::RunDirectory;
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::{self, round_to_u64, to_f64};
use crate::peers::{EngineKind, EngineSettings};
use crate::report::provenance::Provenance;
use crate::temporary;
use crate::workload::operation_mix::OperationMix;
use crate::workload::records::LengthDistribution;

use super::explore::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use super::{Progress, repeat};
use cell::CellPlan;
use result::{RmwCell, RmwResult};
use stream::{RecordLayout, StreamParameters};

pub use design::{EngineDesign, UpdateMode, ValuePlacement};
pub use study::RmwStudy;

/// Maximum number of threads that run operations.
pub const THREADS_MAX: u64 = 64;
/// Default memory budget divided by the loaded bytes.
const BUDGET_FRACTION: f64 = 0.04;
/// Minimum default memory budget of the engine in bytes.
const BUDGET_BYTES_MIN: u64 = 4 << 20;
/// Default key, value and field lengths of the UP2X mix, in bytes.
const UP2X_KEY: LengthDistribution =
    LengthDistribution::Normal { mean: 10.45, deviation: 1.4, min: 8, max: 16 };
const UP2X_VALUE: LengthDistribution =
    LengthDistribution::Normal { mean: 46.8, deviation: 11.6, min: 10, max: 200 };
const UP2X_FIELD_BYTES: u64 = 10;
/// Default key, value and field lengths of all mixes except UP2X, in bytes.
const KEY_BYTES: u64 = 24;
const VALUE_BYTES: u64 = 1000;
const FIELD_BYTES: u64 = 100;
/// Default share of reads among the operations.
const READ_RATIO: f64 = 0.1;
/// Default Zipf exponent of the access frequencies.
const ZIPF: f64 = 0.99;

/// Configuration of `lsmx rmw`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the `--help` text of each flag documents its field")]
pub struct Config {
    pub modes: Vec<UpdateMode>,
    pub bases: Vec<ValuePlacement>,
    pub peers: Vec<EngineKind>,
    /// Shares of reads among the operations. Each share is measured separately. `None` means 0.1.
    pub read_ratios: Option<Vec<f64>>,
    pub mix: OperationMix,
    pub study: Option<RmwStudy>,
    pub records: u64,
    /// Length of a key in bytes. `None` means 24, or a variable length in the UP2X mix.
    pub key_bytes: Option<u64>,
    /// Length of a value in bytes. `None` means 1000, or a variable length in the UP2X mix.
    pub value_bytes: Option<u64>,
    /// Length of a field in bytes. `None` means 100, or 10 in the UP2X mix.
    pub field_bytes: Option<u64>,
    /// Number of bytes that an update writes. `None` means a complete field.
    pub delta_bytes: Option<u64>,
    pub ops: u64,
    /// Zipf exponent of the access frequencies. `None` means 0.99.
    pub zipf: Option<f64>,
    /// Memory budget in bytes. `None` means 4 % of the loaded bytes, but at least 4 MiB.
    pub memory_budget: Option<u64>,
    pub direct_io: bool,
    /// Target number of value bytes that a scan reads from a blob file with one read call.
    pub scan_read_bytes: Option<u64>,
    pub threads: u64,
    pub repeat: u64,
    pub seed: u64,
    pub directory: PathBuf,
    pub command: String,
}

/// Preview of a measurement, shown by `--dry-run`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the table of `--dry-run` has columns of the same names")]
pub struct RmwEstimate {
    pub design: String,
    /// Value of the parameter that the experiment varies.
    pub sweep: SweepPoint,
    pub read_ratio: f64,
    pub records: u64,
    pub loaded_bytes: u64,
    pub memory_budget: u64,
    /// Total number of operations of all repetitions.
    pub ops: u64,
    /// Whether an earlier command has finished all repetitions of the measurement.
    pub finished: bool,
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// A parameter is out of range, two parameters contradict each other, or a required engine is not part of this
    /// build.
    pub fn check(&self) -> Result<()> {
        self.cell_plans().map(drop)
    }

    /// Returns the number of measurements, including repetitions.
    ///
    /// # Errors
    /// [`Config::check`] fails.
    pub fn cell_count(&self) -> Result<u64> {
        Ok(numbers::to_u64(self.cell_plans()?.len()) * self.repeat)
    }

    /// Returns a preview of each measurement.
    ///
    /// # Errors
    /// [`Config::check`] fails, or the result of a finished measurement cannot be read.
    pub fn estimate_cells(&self, finished: Option<&RunDirectory>) -> Result<Vec<RmwEstimate>> {
        let plans = (0..).step_by(numbers::to_usize(self.repeat)).zip(self.cell_plans()?);
        let estimates = plans.map(|(place, plan): (u64, CellPlan)| {
            let mut done = finished.is_some();
            for place in place..place + self.repeat {
                done &= match finished {
                    Some(finished) => finished.read_cell::<Vec<RmwCell>>(place)?.is_some(),
                    None => false,
                };
            }
            Ok(RmwEstimate {
                design: plan.design.to_string(),
                sweep: plan.sweep.clone(),
                read_ratio: plan.recipe.mix.read_ratio(plan.recipe.read_ratio),
                records: plan.recipe.records,
                loaded_bytes: plan.generated_records()?.total_bytes(plan.recipe.records),
                memory_budget: plan.settings.memory_budget.unwrap_or(0),
                ops: plan.recipe.ops * self.repeat,
                finished: done,
            })
        });
        estimates.collect()
    }

    /// Executes all measurements whose results `finished` does not contain yet, and stores each new result in
    /// `finished`.
    ///
    /// # Errors
    /// [`Config::check`] fails, an engine operation fails, or an engine returns a wrong answer.
    pub fn run(
        &self,
        finished: Option<&RunDirectory>,
        progress: &mut dyn Progress,
    ) -> Result<RmwResult> {
        let plans = self.cell_plans()?;
        let provenance = self.provenance();
        let repeat = numbers::to_usize(self.repeat);
        let mut done: Vec<Vec<RmwCell>> = vec![Vec::new(); plans.len() * repeat];
        for index in repeat::interleave_repetitions(done.len(), self.repeat) {
            let place = numbers::to_u64(index);
            let known = finished.map(|finished| finished.read_cell(place)).transpose()?.flatten();
            done[index] = match known {
                Some(known) => known,
                None => {
                    let plan = self.repeated_plan(&plans[index / repeat], place % self.repeat);
                    let cells = self.run_plan(&plan, progress)?;
                    if let Some(finished) = finished {
                        finished.store_cell(place, &cells)?;
                    }
                    cells
                }
            };
        }
        let mut cells = Vec::new();
        for repetitions in done.chunks(repeat) {
            cells.extend(median_repetitions(repetitions)?);
        }
        Ok(self.result(provenance, cells))
    }

    fn provenance(&self) -> Provenance {
        Provenance::new(self.command.clone(), None, self.seed, &self.directory)
    }

    fn result(&self, provenance: Provenance, cells: Vec<RmwCell>) -> RmwResult {
        let experiment = self.study.map(|study| study.name().to_owned());
        RmwResult { provenance, experiment, cells }
    }

    fn repeated_plan(&self, plan: &CellPlan, repetition: u64) -> CellPlan {
        let mut plan = plan.clone();
        plan.recipe.seed = self.seed.wrapping_add(repetition);
        plan
    }

    fn run_plan(&self, plan: &CellPlan, progress: &mut dyn Progress) -> Result<Vec<RmwCell>> {
        let directory = temporary::create_temporary_directory("lsmx-rmw-", &self.directory)?;
        let values = |study: RmwStudy| -> Vec<u64> {
            study.parameter_values().iter().copied().map(round_to_u64).collect()
        };
        match self.study {
            Some(study @ RmwStudy::Operands) => {
                operands::run_operand_groups(plan, &values(study), directory.path(), progress)
            }
            Some(study @ RmwStudy::Scans) => {
                scans::run_scans(plan, &values(study), directory.path(), progress)
            }
            _ => plan.run_cell(directory.path(), progress).map(|cell| vec![cell]),
        }
    }

    /// Checks the configuration and returns the plans of all measurements.
    fn cell_plans(&self) -> Result<Vec<CellPlan>> {
        self.check_numbers()?;
        let engines: Vec<EngineKind> =
            std::iter::once(EngineKind::Lsmx).chain(self.peers.iter().copied()).collect();
        let designs = EngineDesign::combinations(&engines, &self.modes, &self.bases);
        if let Some(peer) =
            self.peers.iter().find(|peer| designs.iter().all(|it| it.engine != **peer))
        {
            let modes: Vec<_> = self.modes.iter().map(|mode| mode.name()).collect();
            let second = format!("--mode {}", modes.join(","));
            let why = "peers have only the modes get-put, merge and merge-unfolded";
            return Err(Error::contradictory_arguments(format!("--peers {peer}"), second, why));
        }
        let mut plans = Vec::new();
        for point in self.parameter_points()? {
            for &design in &designs {
                plans.push(self.cell_plan(design, &point)?);
            }
        }
        Ok(plans)
    }

    fn check_numbers(&self) -> Result<()> {
        Error::check_range("--entries", self.records, 1..=1 << 40)?;
        Error::check_range("--ops", self.ops, 1..=1 << 40)?;
        Error::check_range("--threads", self.threads, 1..=THREADS_MAX)?;
        Error::check_range("--repeat", self.repeat, 1..=1000)?;
        Error::check_range("--key-len", self.key_bytes.unwrap_or(1), 1..=KEY_BYTES_MAX)?;
        Error::check_range("--value-len", self.value_bytes.unwrap_or(1), 1..=VALUE_BYTES_MAX)?;
        if let Some(zipf) = self.zipf.filter(|&zipf| !(zipf > 0.0 && zipf <= 10.0)) {
            return Err(Error::invalid_argument("--zipf", zipf, "above 0, at most 10"));
        }
        for &ratio in self.read_ratios.iter().flatten() {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(Error::invalid_argument("--read-ratio", ratio, "from 0 to 1"));
            }
        }
        if self.scan_read_bytes.is_some() && !self.bases.contains(&ValuePlacement::ValueLog) {
            let why = "only values in the value log are brought together";
            return Err(Error::contradictory_arguments("--scan-read-bytes", "--base tree", why));
        }
        if self.read_ratios.is_some() && self.mix != OperationMix::Default {
            let second = format!("--mix {}", self.mix);
            let why = "the mix decides the share of reads";
            return Err(Error::contradictory_arguments("--read-ratio", second, why));
        }
        Ok(())
    }

    /// Returns the parameter values of the selected experiment. Each design is measured once per element of the list.
    ///
    /// # Errors
    /// A parameter contradicts the selected experiment.
    fn parameter_points(&self) -> Result<Vec<ParameterPoint>> {
        let Some(study) = self.study else {
            let ratios = self.read_ratios.clone().unwrap_or_else(|| vec![READ_RATIO]);
            let point =
                |ratio| ParameterPoint { read_ratio: Some(ratio), ..ParameterPoint::default() };
            return Ok(ratios.into_iter().map(point).collect());
        };
        let refuse = |first: &str, is_given: bool, why| match is_given {
            true => {
                Err(Error::contradictory_arguments(first, format!("--experiment {study}"), why))
            }
            false => Ok(()),
        };
        if study.needs_operand_store() {
            let modes: Vec<_> = self.modes.iter().map(|mode| mode.name()).collect();
            let why = "the experiment varies an option of the operand store, which only the modes kd and kd-adaptive use";
            let has_other = !self.modes.iter().all(|mode| mode.uses_operand_store());
            refuse(&format!("--mode {}", modes.join(",")), has_other, why)?;
            refuse("--peers", !self.peers.is_empty(), "no peer keeps operands apart")?;
        }
        if study == RmwStudy::Memtable {
            refuse("--peers", !self.peers.is_empty(), "the memory budget decides their memtables")?;
        }
        if study.has_one_run() {
            refuse("--threads", self.threads > 1, "the experiment measures one thread")?;
        }
        if study == RmwStudy::Operands {
            let why = "the experiment only updates fields and then reads them";
            refuse("--read-ratio", self.read_ratios.is_some(), why)?;
        }
        let ratios = self.read_ratios.as_ref().map_or(0, Vec::len);
        let ratios_max = if study == RmwStudy::ReadRatio { 0 } else { 1 };
        let sizes = [RmwStudy::ValueSize, RmwStudy::DeltaSize].contains(&study);
        let fixes_mix = sizes || study == RmwStudy::ReadRatio;
        for (flag, is_given) in [
            ("--read-ratio", ratios > ratios_max),
            ("--zipf", study == RmwStudy::Zipf && self.zipf.is_some()),
            ("--value-len", sizes && self.value_bytes.is_some()),
            ("--field-len", sizes && self.field_bytes.is_some()),
            ("--delta-len", sizes && self.delta_bytes.is_some()),
            ("--mix", fixes_mix && self.mix != OperationMix::Default),
        ] {
            refuse(flag, is_given, "the experiment varies it")?;
        }
        let runs = if study.has_one_run() { 1 } else { study.parameter_values().len() };
        Ok(study
            .parameter_values()
            .iter()
            .take(runs)
            .map(|&value| self.parameter_point(study, value))
            .collect())
    }

    fn parameter_point(&self, study: RmwStudy, value: f64) -> ParameterPoint {
        let one = self.read_ratios.as_ref().and_then(|all| all.first().copied());
        let mut point = ParameterPoint { read_ratio: one, ..ParameterPoint::default() };
        let mut shown = SweepValue::Real(value);
        let bytes = self.records.saturating_mul(KEY_BYTES + VALUE_BYTES);
        let records = |value: u64| (bytes / (KEY_BYTES + value)).max(1);
        match study {
            RmwStudy::ReadRatio => point.read_ratio = Some(value),
            RmwStudy::Zipf => point.zipf = Some(value),
            RmwStudy::ValueSize => {
                let value = round_to_u64(value);
                let field = value / study::VALUE_SIZE_FIELDS;
                point.sizes = Some((value, field, field));
                point.records = Some(records(value));
                shown = SweepValue::Whole(value);
            }
            RmwStudy::DeltaSize => {
                let (delta, value) = (round_to_u64(value), study::DELTA_SIZE_VALUE_BYTES);
                point.sizes = Some((value, delta, delta));
                point.records = Some(records(value));
                shown = SweepValue::Whole(delta);
            }
            RmwStudy::Recovery => {
                let ops = round_to_u64(to_f64(self.ops) * value).max(1);
                point.ops = Some(ops);
                point.recovers = true;
                shown = SweepValue::Whole(ops);
            }
            RmwStudy::Operands | RmwStudy::Scans => {}
            RmwStudy::KdCache => point.kd_cache_share = Some(value / study::PUBLISHED_MEMORY_MIB),
            RmwStudy::BucketSize => {
                point.delta = point.delta.bucket_bytes(round_to_u64(value * 1024.0));
                shown = SweepValue::Whole(round_to_u64(value));
            }
            RmwStudy::BucketCount => {
                point.delta = point.delta.buckets_max(round_to_u64(value));
                shown = SweepValue::Whole(round_to_u64(value));
            }
            RmwStudy::Memtable => point.memtable_share = Some(value),
            RmwStudy::SplitThreshold => point.delta = point.delta.split_threshold(value),
        }
        point.sweep = SweepPoint(vec![(study.parameter_name().to_owned(), shown)]);
        point
    }

    fn cell_plan(&self, design: EngineDesign, point: &ParameterPoint) -> Result<CellPlan> {
        let (mut key, mut value, field) = match self.mix {
            OperationMix::Up2x => (UP2X_KEY, UP2X_VALUE, UP2X_FIELD_BYTES),
            _ => (
                LengthDistribution::Fixed(KEY_BYTES),
                LengthDistribution::Fixed(VALUE_BYTES),
                FIELD_BYTES,
            ),
        };
        key = self.key_bytes.map_or(key, LengthDistribution::Fixed);
        value = self.value_bytes.map_or(value, LengthDistribution::Fixed);
        let mut field = self.field_bytes.unwrap_or(field);
        let mut delta = self.delta_bytes.unwrap_or(field);
        if let Some((of_value, of_field, of_delta)) = point.sizes {
            (value, field, delta) = (LengthDistribution::Fixed(of_value), of_field, of_delta);
        }
        Error::check_range("--field-len", field, 1..=value.min())?;
        Error::check_range("--delta-len", delta, 1..=field)?;
        let records = point.records.unwrap_or(self.records);
        if self.study == Some(RmwStudy::Operands) {
            let groups = numbers::to_u64(RmwStudy::Operands.parameter_values().len());
            Error::check_range("--entries", records, groups * 10..=1 << 40)?;
        }
        design.engine.check_can_merge()?;
        let mut plan = CellPlan {
            design,
            recipe: StreamParameters {
                mix: self.mix,
                read_ratio: point.read_ratio.unwrap_or(READ_RATIO),
                layout: RecordLayout { key, value, field_bytes: field, delta_bytes: delta },
                records,
                ops: point.ops.unwrap_or(self.ops),
                zipf: point.zipf.or(self.zipf).unwrap_or(ZIPF),
                seed: self.seed,
            },
            threads: self.threads,
            settings: EngineSettings::default(),
            scan_read_bytes: self.scan_read_bytes,
            sweep: point.sweep.clone(),
            recovers: point.recovers,
        };
        let loaded_bytes = plan.generated_records()?.total_bytes(records);
        let budget = self.memory_budget.unwrap_or_else(|| {
            round_to_u64(to_f64(loaded_bytes) * BUDGET_FRACTION).max(BUDGET_BYTES_MIN)
        });
        let operand_store = match point.kd_cache_share {
            Some(share) => point.delta.cache_bytes(round_to_u64(to_f64(budget) * share)),
            None => point.delta,
        };
        let value_bytes_max = u32::try_from(value.max()).unwrap_or(u32::MAX);
        plan.settings = EngineSettings {
            memory_budget: Some(budget),
            memtable_bytes: point.memtable_share.map(|share| round_to_u64(to_f64(budget) * share)),
            direct_io: self.direct_io,
            merge_operator: Some(FieldUpdate { value_bytes_max }),
            operand_store: Some(operand_store),
            value_separation: Some(design::separate_all_values(self.scan_read_bytes)),
            counts_io: true,
            ..plan.settings
        };
        Ok(plan)
    }
}

/// Values of the parameters that the selected experiment varies. If a field is `None`, the configured value applies.
#[derive(Clone, Debug, Default)]
struct ParameterPoint {
    read_ratio: Option<f64>,
    zipf: Option<f64>,
    records: Option<u64>,
    ops: Option<u64>,
    /// Lengths of a value, a field and an update, in bytes.
    sizes: Option<(u64, u64, u64)>,
    recovers: bool,
    /// Size of a memtable as a share of the memory budget. `None` means the default.
    memtable_share: Option<f64>,
    /// Options of the operand store.
    delta: DeltaOptions,
    /// Share of the memory budget that the cache of the operand store receives.
    kd_cache_share: Option<f64>,
    sweep: SweepPoint,
}

/// Replaces repeated results by one result with the medians.
fn median_repetitions(repetitions: &[Vec<RmwCell>]) -> Result<Vec<RmwCell>> {
    let mut cells = Vec::new();
    for place in 0..repetitions.first().map_or(0, Vec::len) {
        let all = repetitions.iter().filter_map(|cells| cells.get(place).cloned()).collect();
        cells.extend(repeat::summarize_repetitions(all)?);
    }
    Ok(cells)
}
