//! `lsmx explore`: from what was typed to a config, from the result to a table and a file.

use std::ffi::OsString;
use std::path::Path;

use lsmx::WriteControl;
use lsmx_bench::Error;
use lsmx_bench::experiment::explore::{Config, Source};
use lsmx_bench::report::{json, text};
use lsmx_bench::workload::data_file::DataFile;
use lsmx_bench::workload::phases::{Mix, Phase, SELECTIVITY_DEFAULT, parse_phases};
use lsmx_bench::workload::record::Format;
use lsmx_compaction::{Parameter, PolicySpec};

use crate::args::{self, DataOrder, ExploreArgs};
use crate::failure::Failure;
use crate::output::{self, Bar};

const ENTRIES_DEFAULT: u64 = 1_000_000;
const KEY_LEN_DEFAULT: u64 = 16;
const VALUE_LEN_DEFAULT: u64 = 112;
/// Writes per lookup, as in the study: 10 M and 1 M.
const WRITES_PER_LOOKUP: u64 = 10;
const RANGES_DEFAULT: u64 = 1000;
const EMPTY_LOOKUPS_DEFAULT: [f64; 2] = [0.0, 1.0];

/// Runs the experiment and reports it.
pub(crate) fn run(arguments: &ExploreArgs, words: &[OsString]) -> Result<(), Failure> {
    let config = config(arguments, words)?;
    if let Some(path) = &arguments.json {
        // A report that cannot be written is better known before the run than after it.
        json::probe(path)?;
    }
    let result = config.run(&mut Bar::new())?;
    if let Some(path) = &arguments.json {
        json::write(path, &result)?;
    }
    output::stdout(text::exploration(&result.cells).as_bytes())
}

fn config(arguments: &ExploreArgs, words: &[OsString]) -> Result<Config, Failure> {
    for (flag, typed) in
        [("--format", arguments.format.is_some()), ("--data-order", arguments.data_order.is_some())]
    {
        if typed && arguments.data.is_none() {
            return Err(Failure::Usage(format!("{flag} goes with --data, which is not there")));
        }
    }
    if arguments.lookups == Some(0) && arguments.empty_lookups.is_some() {
        return Err(contradiction("--empty-lookups", "--lookups 0", "there is nothing to share"));
    }
    if arguments.ranges == Some(0) && arguments.selectivity.is_some() {
        return Err(contradiction("--selectivity", "--ranges 0", "there is nothing to select"));
    }
    let policies = policies(arguments)?;
    let (source, records) = source(arguments)?;
    let (phases, spec) = match &arguments.phases {
        Some(path) => {
            let (phases, text) = phases(path)?;
            (phases, Some(text))
        }
        None => (mix(arguments, records).phases()?, None),
    };
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    Ok(Config {
        policies,
        source,
        phases,
        memtable_bytes: arguments.memtable,
        block_cache_bytes: arguments.block_cache,
        write_control: match arguments.write_control {
            Some(args::WriteControl::Stop) => WriteControl::Stop,
            Some(args::WriteControl::Smooth) | None => WriteControl::Smooth,
        },
        deterministic: arguments.deterministic,
        seed: arguments.seed,
        directory: arguments.dir.clone().unwrap_or_else(std::env::temp_dir),
        command: command.join(" "),
        spec,
    })
}

fn policies(arguments: &ExploreArgs) -> Result<Vec<PolicySpec>, Failure> {
    let mut policies = arguments.policy.0.clone();
    let Some(size_ratio) = arguments.size_ratio else { return Ok(policies) };
    for policy in &mut policies {
        let default = policy.preset().map(PolicySpec::new);
        let default = default.and_then(|preset| preset.value(Parameter::SizeRatio));
        let given = policy.value(Parameter::SizeRatio);
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

fn contradiction(first: &str, second: &str, why: &'static str) -> Failure {
    Error::Contradiction { first: first.to_owned(), second: second.to_owned(), why }.into()
}

/// Where records come from, and how many there are if a file says so.
fn source(arguments: &ExploreArgs) -> Result<(Source, Option<u64>), Failure> {
    let Some(path) = &arguments.data else {
        let source = Source::Generated {
            key_bytes: arguments.key_len.unwrap_or(KEY_LEN_DEFAULT),
            value_bytes: arguments.value_len.unwrap_or(VALUE_LEN_DEFAULT),
        };
        return Ok((source, None));
    };
    let format = arguments.format.unwrap_or_else(|| Format::of_file(path));
    let shuffled = arguments.data_order == Some(DataOrder::Shuffled);
    let file = DataFile::open(path, format, shuffled.then_some(arguments.seed))?;
    let records = file.len();
    Ok((Source::File { file: Box::new(file), shuffled }, Some(records)))
}

fn phases(path: &Path) -> Result<(Vec<Phase>, String), Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::file("read", path.display().to_string(), error))?;
    Ok((parse_phases(&text, path)?, text))
}

fn mix(arguments: &ExploreArgs, records: Option<u64>) -> Mix {
    let entries = records.or(arguments.entries).unwrap_or(ENTRIES_DEFAULT);
    Mix {
        entries,
        updates: arguments.updates.unwrap_or(0.0),
        deletes: arguments.deletes.unwrap_or(0.0),
        merges: arguments.merges.unwrap_or(0.0),
        range_deletes: arguments.range_deletes,
        lookups: arguments.lookups.unwrap_or(entries / WRITES_PER_LOOKUP),
        empty_lookups: arguments
            .empty_lookups
            .clone()
            .unwrap_or_else(|| EMPTY_LOOKUPS_DEFAULT.to_vec()),
        ranges: arguments.ranges.unwrap_or(RANGES_DEFAULT),
        selectivity: arguments.selectivity.unwrap_or(SELECTIVITY_DEFAULT),
        distribution: arguments.distribution.unwrap_or_default(),
        interleave: arguments.interleave,
    }
}
