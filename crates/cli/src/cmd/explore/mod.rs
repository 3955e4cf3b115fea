//! Implements the command `lsmx explore`.

mod sweep;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::WORKERS_DEFAULT;
use lsmx::{Compression, FilterLastRun, WriteControl};
use lsmx_bench::Error;
use lsmx_bench::experiment::explore::columns::REGISTRY;
use lsmx_bench::experiment::explore::decisions::DecisionWriter;
use lsmx_bench::experiment::explore::{Config, RecordSource, WorkloadPoint, estimates_table};
use lsmx_bench::numbers;
use lsmx_bench::peers::EngineSettings;
use lsmx_bench::workload::data_file::DataFile;
use lsmx_bench::workload::phases::{SELECTIVITY_DEFAULT, WorkloadMix, parse_phases};
use lsmx_bench::workload::record::RecordFormat;
use lsmx_bench::workload::trace::TraceFile;
use lsmx_compaction::{PolicyParameter, PolicySpec};

use super::cells::{self, PreparedStudy};
use crate::args::{self, Command, DataOrder, ExploreArgs, ReadArgs, WorkloadArgs, WriteArgs};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

use sweep::SweptArguments;

const ENTRIES_DEFAULT: u64 = 1_000_000;
pub(super) const KEY_LEN_DEFAULT: u64 = 16;
pub(super) const VALUE_LEN_DEFAULT: u64 = 112;
/// Default share of updates among the writes, if no workload flag is given.
const UPDATES_DEFAULT: f64 = 0.5;
/// Default number of writes per point lookup. The compaction study of Sarkar et al. runs 10 writes per lookup.
const WRITES_PER_LOOKUP: u64 = 10;
const RANGES_DEFAULT: u64 = 1000;
const EMPTY_LOOKUPS_DEFAULT: [f64; 2] = [0.0, 1.0];

/// Runs the experiment and writes the results.
pub(crate) fn run(arguments: &ExploreArgs, words: &[OsString]) -> Result<(), Failure> {
    let dir = arguments.run.setup.dir.as_deref();
    let prepare = |command, words: &[OsString]| match command {
        Command::Explore(arguments) => prepare(&arguments, words).map(Some),
        _ => Ok(None),
    };
    if cells::run(&arguments.cells, &arguments.output, dir, words, prepare)? {
        return Ok(());
    }
    let mut config = config(arguments, words, check_threads)?;
    config.check()?;
    let inputs = input_files(arguments);
    let ExploreArgs { run, output: outputs, .. } = arguments;
    outputs.probe(&REGISTRY, &inputs)?;
    let finished = super::open_finished(run, outputs, words, &inputs, config.cell_count())?;
    if run.dry_run {
        let estimates = config.estimate_cells(finished.as_ref())?;
        return output::stdout(estimates_table::format_estimates(&estimates).as_bytes());
    }
    let resume = run.resume.as_deref();
    let _temporary = interrupt::make_temporary("lsmx-explore-", &mut config.directory, resume)?;
    let result = config.run(finished.as_ref(), &mut Bar::new())?;
    outputs.write(&result)
}

fn prepare(arguments: &ExploreArgs, words: &[OsString]) -> Result<PreparedStudy<Config>, Failure> {
    let study = config(arguments, words, check_threads)?;
    Ok(PreparedStudy { inputs: input_files(arguments), ..PreparedStudy::new(study) })
}

/// Returns the files that determine the workload and the policies.
pub(super) fn input_files(arguments: &ExploreArgs) -> Vec<PathBuf> {
    let ExploreArgs { spec, data, workload: WorkloadArgs { phases, trace, .. }, .. } = arguments;
    spec.iter().chain([phases, data, trace].into_iter().flatten()).cloned().collect()
}

/// Returns the configuration of `explore` or `simulate`. `check_flags` checks the flags for each combination of swept
/// values, before any file is read.
pub(super) fn config(
    arguments: &ExploreArgs,
    words: &[OsString],
    check_flags: fn(&ExploreArgs) -> Result<(), Failure>,
) -> Result<Config, Failure> {
    let points = sweep::points(arguments, words)?;
    points.iter().try_for_each(|swept| check_flags(&swept.arguments))?;
    let spec = arguments.workload.phases.as_deref().map(read_text).transpose()?;
    let data = open_data(arguments)?;
    let trace = arguments.workload.trace.as_deref().map(TraceFile::open).transpose()?.map(Arc::new);
    let points = points.iter().map(|swept| {
        let mut point = point(swept, spec.as_deref(), data.as_ref())?;
        if let Some(trace) = &trace {
            point.source = RecordSource::Trace(Arc::clone(trace));
            point.phases.clear();
        }
        Ok(point)
    });
    Ok(Config {
        points: points.collect::<Result<_, Failure>>()?,
        repeat: arguments.run.repeat,
        seed: arguments.run.setup.seed,
        directory: arguments.run.setup.directory(),
        command: super::command_line(words),
        spec,
        decisions: arguments
            .explain
            .then(|| DecisionWriter::with_output(Box::new(std::io::stderr()))),
    })
}

/// Returns the configuration for one combination of swept values. `spec` holds the contents of the `--phases` file.
fn point(
    swept: &SweptArguments,
    spec: Option<&str>,
    data: Option<&DataFile>,
) -> Result<WorkloadPoint, Failure> {
    let arguments = &swept.arguments;
    for (flag, is_given) in
        [("--format", arguments.format.is_some()), ("--data-order", arguments.data_order.is_some())]
    {
        if is_given && arguments.data.is_none() {
            return Err(Failure::Usage(format!("{flag} needs --data")));
        }
    }
    check(&arguments.workload)?;
    let policies =
        policies(arguments)?.iter().map(|policy| swept.policy(policy)).collect::<Result<_, _>>()?;
    let source = match data {
        Some(file) => {
            let shuffled = arguments.data_order == Some(DataOrder::Shuffled);
            RecordSource::File { file: Box::new(file.reopen(None)?), shuffled }
        }
        None => RecordSource::Generated {
            key_bytes: arguments.workload.records.key_len.unwrap_or(KEY_LEN_DEFAULT),
            value_bytes: arguments.workload.records.value_len.unwrap_or(VALUE_LEN_DEFAULT),
        },
    };
    let phases = match (&arguments.workload.phases, spec, data) {
        (Some(path), Some(text), _) => parse_phases(text, path)?,
        (_, _, Some(data)) => {
            WorkloadMix { updates: 0.0, ..mix(&arguments.workload, Some(data.len())) }.phases()?
        }
        _ => mix(&arguments.workload, arguments.entries).phases()?,
    };
    let (engine, defaults) = (&arguments.engine, EngineSettings::default());
    Ok(WorkloadPoint {
        sweep: swept.point.clone(),
        policies,
        source,
        phases,
        settings: EngineSettings {
            memtable_bytes: engine.memtable,
            table_bytes: engine.table,
            block_cache_bytes: engine.block_cache,
            write_control: match engine.write_control {
                Some(args::WriteControl::Stop) => WriteControl::Stop,
                Some(args::WriteControl::Smooth) | None => WriteControl::Smooth,
            },
            block_bytes: engine.block_bytes.unwrap_or(defaults.block_bytes),
            filter_bits: engine.filter_bits,
            direct_io: engine.direct_io,
            memtable_kind: engine.memtable_kind,
            compression: engine.compression.map(|compression| match compression {
                args::Compression::Lz4 => Compression::Lz4,
                args::Compression::None => Compression::None,
            }),
            workers: engine.workers.map_or(WORKERS_DEFAULT, numbers::to_usize),
            filter_last_run: engine.filter_last_run.then_some(FilterLastRun::On),
            ..defaults
        },
        deterministic: engine.deterministic,
        threads: arguments.threads.unwrap_or(1),
        write_rate: arguments.write_rate,
    })
}

/// Rejects `--empty-lookups` with `--lookups 0`, and `--selectivity` with `--ranges 0`.
pub(super) fn check(workload: &WorkloadArgs) -> Result<(), Failure> {
    if workload.reads.lookups == Some(0) && workload.reads.empty_lookups.is_some() {
        return Err(contradiction("--empty-lookups", "--lookups 0", "there are no lookups"));
    }
    if workload.reads.ranges == Some(0) && workload.reads.selectivity.is_some() {
        return Err(contradiction("--selectivity", "--ranges 0", "there are no range lookups"));
    }
    Ok(())
}

/// Rejects `--threads` above 1 with flags whose operations run on one thread.
fn check_threads(arguments: &ExploreArgs) -> Result<(), Failure> {
    let Some(threads) = arguments.threads.filter(|threads| *threads > 1) else { return Ok(()) };
    for (flag, is_given) in [
        ("--interleave", arguments.workload.reads.interleave),
        ("--deterministic", arguments.engine.deterministic),
        ("--trace", arguments.workload.trace.is_some()),
    ] {
        if is_given {
            let why = "its operations run on one thread";
            return Err(contradiction(&format!("--threads {threads}"), flag, why));
        }
    }
    Ok(())
}

fn policies(arguments: &ExploreArgs) -> Result<Vec<PolicySpec>, Failure> {
    let mut policies =
        arguments.policy.as_ref().map_or_else(Vec::new, |policies| policies.0.clone());
    for path in &arguments.spec {
        let policy = read_policy(path)?;
        if policies.iter().any(|other| other.name() == policy.name() && other.preset().is_none()) {
            let (path, name) = (path.display(), policy.name());
            return Err(Failure::Usage(format!(
                "--spec {path}: another --spec has name {name:?} too"
            )));
        }
        policies.push(policy);
    }
    let Some(size_ratio) = arguments.engine.size_ratio else { return Ok(policies) };
    for policy in &mut policies {
        let default = policy.preset().map(PolicySpec::new);
        let default = default.and_then(|preset| preset.parameter_value(PolicyParameter::SizeRatio));
        let given = policy.parameter_value(PolicyParameter::SizeRatio);
        if given != default && given != Some(size_ratio) {
            let first = format!("--policy {policy}");
            let second = format!("--size-ratio {size_ratio}");
            return Err(contradiction(&first, &second, "there is one size ratio"));
        }
        *policy = policy
            .clone()
            .with_size_ratio(size_ratio)
            .map_err(|error| Failure::Usage(format!("--size-ratio {size_ratio}: {error}")))?;
    }
    Ok(policies)
}

/// Reads a compaction policy from a `--spec` file.
fn read_policy(path: &Path) -> Result<PolicySpec, Failure> {
    let spec = PolicySpec::from_toml(&read_text(path)?);
    spec.map_err(|error| Failure::Usage(format!("--spec {}, {error}", path.display())))
}

fn contradiction(first: &str, second: &str, why: &'static str) -> Failure {
    Error::Contradiction { first: first.to_owned(), second: second.to_owned(), why }.into()
}

fn open_data(arguments: &ExploreArgs) -> Result<Option<DataFile>, Failure> {
    let Some(path) = &arguments.data else { return Ok(None) };
    let format = arguments.format.unwrap_or_else(|| RecordFormat::of_file(path));
    Ok(Some(DataFile::open(path, format, None)?))
}

pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::file("read", path.display().to_string(), error))
}

/// Builds the workload from the flags. If no workload flag is given, half of the writes are updates.
pub(super) fn mix(workload: &WorkloadArgs, entries: Option<u64>) -> WorkloadMix {
    let entries = entries.unwrap_or(ENTRIES_DEFAULT);
    let WorkloadArgs { writes, reads, .. } = workload;
    let is_default = *writes == WriteArgs::default() && *reads == ReadArgs::default();
    WorkloadMix {
        entries,
        updates: writes.updates.unwrap_or(if is_default { UPDATES_DEFAULT } else { 0.0 }),
        deletes: writes.deletes.unwrap_or(0.0),
        merges: writes.merges.unwrap_or(0.0),
        range_deletes: writes.range_deletes.unwrap_or(0.0),
        lookups: reads.lookups.unwrap_or(entries / WRITES_PER_LOOKUP),
        empty_lookups: reads.empty_lookups.clone().unwrap_or(EMPTY_LOOKUPS_DEFAULT.to_vec()),
        ranges: reads.ranges.unwrap_or(RANGES_DEFAULT),
        selectivities: reads.selectivity.clone().unwrap_or(vec![SELECTIVITY_DEFAULT]),
        distribution: reads.distribution.unwrap_or_default(),
        zipf: reads.zipf,
        interleave: reads.interleave,
    }
}
