//! Implements the command `lsmx bench`.

use std::ffi::OsString;

use lsmx_bench::experiment::bench_experiment::BenchExperiment;
use lsmx_bench::experiment::steady_state::{
    SteadyStateArguments, run_steady_state, serve_steady_state,
};
use lsmx_bench::experiment::throughput::engine_child::EngineAssignment;
use lsmx_bench::experiment::throughput::memory_limit::{LimitMethod, MemoryLimit};
use lsmx_bench::experiment::throughput::{self, Config};
use lsmx_bench::experiment::tuning::{self, TuningStudy};
use lsmx_bench::peers::EngineSettings;

use super::cells::{self, PreparedStudy};
use crate::args::{BenchArgs, Command};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Bar};

const ENTRIES_DEFAULT: u64 = 1_000_000;
const VALUE_LEN_DEFAULT: u64 = 100;
const BLOCK_CACHE_BYTES_DEFAULT: u64 = 64 << 20;
/// Default of `--entries` for the experiment `data-size`. With this default, all values together have 128 MiB.
const DATA_SIZE_ENTRIES_DEFAULT: u64 = 16_384;

/// Runs the workloads or the experiment, and writes the results. If environment variables define an
/// [`EngineAssignment`], this process is a child of another `lsmx bench` and serves the requests of its parent.
pub(crate) fn run(arguments: &BenchArgs, words: &[OsString]) -> Result<(), Failure> {
    let dir = arguments.setup.dir.as_deref();
    let prepare = |command, words: &[OsString]| match command {
        Command::Bench(listed) => {
            prepare(&listed, words, arguments.cells.run_cell.is_some()).map(Some)
        }
        _ => Ok(None),
    };
    if cells::run(&arguments.cells, &arguments.output, dir, words, prepare)? {
        return Ok(());
    }
    let mut config = config(arguments, words)?;
    let steady = steady_arguments(arguments);
    if let Some(assignment) = EngineAssignment::from_env()? {
        match arguments.experiment {
            Some(BenchExperiment::SteadyState) => {
                serve_steady_state(&assignment, &config, &steady)?;
            }
            _ => assignment.serve_workloads(&config)?,
        }
        return Ok(());
    }
    match arguments.experiment {
        None => steady.check_unused("the workloads")?,
        Some(BenchExperiment::Tuning(study)) => {
            steady.check_unused(&format!("--experiment {}", study.name()))?;
        }
        Some(BenchExperiment::SteadyState) => {}
    }
    let registry =
        arguments.experiment.map_or(&throughput::columns::REGISTRY, BenchExperiment::registry);
    arguments.output.probe(registry, &[])?;
    if let Some(bytes) = arguments.memory_limit {
        limit_memory(&mut config, bytes, words)?;
    }
    let _temporary = match arguments.db {
        Some(_) => None,
        None => Some(interrupt::make_temporary("lsmx-bench-", &mut config.directory, None)?),
    };
    let bar = &mut Bar::new();
    match arguments.experiment {
        None => arguments.output.write(&config.run(bar)?),
        Some(BenchExperiment::Tuning(study)) => {
            arguments.output.write(&tuning::run_study(study, &config, bar)?)
        }
        Some(BenchExperiment::SteadyState) => {
            arguments.output.write(&run_steady_state(&config, &steady, bar)?)
        }
    }
}

/// Returns the workloads of a command line. If `limits` is false, no memory limit is set. This machine need not support
/// memory limits if other machines run the cells.
fn prepare(
    arguments: &BenchArgs,
    words: &[OsString],
    limits: bool,
) -> Result<PreparedStudy<Config>, Failure> {
    let mut study = config(arguments, words)?;
    steady_arguments(arguments).check_unused("the workloads")?;
    if let Some(bytes) = arguments.memory_limit.filter(|_| limits) {
        limit_memory(&mut study, bytes, words)?;
    }
    Ok(PreparedStudy::new(study))
}

fn steady_arguments(arguments: &BenchArgs) -> SteadyStateArguments {
    SteadyStateArguments {
        testing_minutes: arguments.testing_minutes,
        minutes: arguments.minutes,
        read_ratio: arguments.read_ratio,
    }
}

/// Sets the memory limit. If no memory control group can be created, prints the reason.
fn limit_memory(config: &mut Config, bytes: u64, words: &[OsString]) -> Result<(), Failure> {
    let limit = MemoryLimit::choose(bytes, words.iter().skip(1).cloned().collect());
    let (method, processes) = (limit.method.clone(), limit.processes.clone());
    interrupt::on_interrupt(move || processes.kill_all())?;
    config.memory_limit = Some(limit);
    config.check_memory_limit()?;
    if let LimitMethod::DirectIo { reason } = method {
        output::note(&format!(
            "memory is not limited: {reason}; engines read without the page cache"
        ));
    }
    Ok(())
}

fn config(arguments: &BenchArgs, words: &[OsString]) -> Result<Config, Failure> {
    let mut settings = EngineSettings {
        memtable_bytes: Some(arguments.memtable),
        block_cache_bytes: Some(arguments.block_cache.unwrap_or(BLOCK_CACHE_BYTES_DEFAULT)),
        ..EngineSettings::default()
    };
    for option in &arguments.option {
        settings = settings.with_option(option)?;
    }
    let data_size = BenchExperiment::Tuning(TuningStudy::DataSize);
    let is_data_size = arguments.experiment == Some(data_size);
    if is_data_size && arguments.value_len.is_some() {
        let error = "--value-len contradicts --experiment data-size: its values differ in size";
        return Err(Failure::Usage(error.to_owned()));
    }
    if let Some(BenchExperiment::Tuning(study @ (TuningStudy::Caching | TuningStudy::FilterSize))) =
        arguments.experiment
        && arguments.block_cache.is_some()
    {
        let study = study.name();
        let error =
            format!("--block-cache contradicts --experiment {study}: the experiment sets it");
        return Err(Failure::Usage(error));
    }
    let entries_default = if is_data_size { DATA_SIZE_ENTRIES_DEFAULT } else { ENTRIES_DEFAULT };
    Ok(Config {
        workloads: arguments.workloads.clone(),
        peers: super::peers(&arguments.peers)?,
        settings,
        options: arguments.option.clone(),
        entries: arguments.entries.unwrap_or(entries_default),
        key_bytes: arguments.key_len,
        value_bytes: arguments.value_len.unwrap_or(VALUE_LEN_DEFAULT),
        threads: arguments.threads,
        ops: arguments.ops,
        seek_entries: arguments.seek_entries,
        rate: arguments.rate,
        repeat: arguments.repeat,
        seed: arguments.setup.seed,
        directory: arguments.setup.directory(),
        database: arguments.db.clone(),
        memory_limit: None,
        command: super::command_line(words),
    })
}
