//! Fuzz targets for the text formats of `lsmx-bench`.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use lsmx::FilterBits;
use lsmx::workload_trace::TraceEvent;
use lsmx_base::coding::len_u64;
use lsmx_bench::experiment::advise::CostWeights;
use lsmx_bench::experiment::bench_experiment::BenchExperiment;
use lsmx_bench::experiment::iocost::CacheSweep;
use lsmx_bench::experiment::rmw::{self, UpdateMode, ValuePlacement};
use lsmx_bench::experiment::throughput::workload::Workload;
use lsmx_bench::experiment::throughput::workload_argument::WorkloadArgument;
use lsmx_bench::peers::EngineSettings;
use lsmx_bench::workload::KeyDistribution;
use lsmx_bench::workload::operation_mix::OperationMix;
use lsmx_bench::workload::phases::parse_phases;
use lsmx_bench::workload::record::{
    ReadError, RecordFormat, RecordReader, decode_record, encode_record,
};
use lsmx_bench::workload::trace::TraceLineParser;

use crate::fuzzing::{FuzzTarget, Seeds};

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget::new("bench_records", check_records, 400),
    FuzzTarget::new("bench_trace_line", check_trace_line, 200),
    FuzzTarget::new("bench_phases", check_phases, 250),
    FuzzTarget::new("bench_arguments", check_arguments, 150),
];

/// Checks records as TSV and as JSON lines.
fn check_records(input: &[u8]) {
    for format in [RecordFormat::Tsv, RecordFormat::Jsonl] {
        let mut reader = RecordReader::new(input, format);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut lines = 0;
        loop {
            match reader.read(&mut key, &mut value) {
                Ok(false) => break,
                Ok(true) => check_encoded_record(format, &key, &value),
                Err(ReadError::Malformed(line, _)) => assert_eq!(line, lines + 1),
                Err(ReadError::Io(error)) => panic!("{error}"),
            }
            lines += 1;
        }
        assert_eq!((reader.lines(), reader.bytes()), (lines, len_u64(input.len())));
        assert_eq!(lines, len_u64(input.split_inclusive(|byte| *byte == b'\n').count()));
    }
}

/// Checks that a record is one line in both formats, and that the line decodes to the same record.
fn check_encoded_record(read_format: RecordFormat, key: &[u8], value: &[u8]) {
    for format in [RecordFormat::Tsv, RecordFormat::Jsonl] {
        let mut line = Vec::new();
        encode_record(format, key, value, &mut line);
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let (mut decoded_key, mut decoded_value) = (Vec::new(), Vec::new());
        decode_record(format, &line, &mut decoded_key, &mut decoded_value).expect("encoded above");
        assert_eq!((&*decoded_key, &*decoded_value), (key, value), "read as {read_format:?}");
    }
}

/// Checks a line of a trace in text form.
fn check_trace_line(input: &[u8]) {
    let mut parser = TraceLineParser::default();
    match parser.parse_line(input) {
        Ok(TraceEvent::DeleteRange { start, end: Some(end), .. }) => assert!(start < end),
        Ok(TraceEvent::Put { value, .. } | TraceEvent::Merge { operand: value, .. }) => {
            assert_eq!(value.content.map(<[u8]>::len).map(len_u64), Some(value.bytes));
        }
        _ => {}
    }
}

/// Checks a TOML file of workload phases.
fn check_phases(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(phases) = parse_phases(text, Path::new("file")) else { return };
    assert!(!phases.is_empty() && phases[0].inserts > 0);
    for phase in &phases {
        assert!(phase.operation_count() > 0 && phase.operation_count() >= phase.writes());
        assert!((0.0..=1.0).contains(&phase.selectivity));
        assert!(phase.lookups.iter().all(|lookups| (0.0..=1.0).contains(&lookups.alpha)));
    }
}

/// Checks values of command line arguments.
fn check_arguments(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = EngineSettings::default().with_option(text);
    check_printed_value::<CacheSweep>(text);
    check_printed_value::<KeyDistribution>(text);
    check_printed_value::<FilterBits>(text);
    check_printed_value::<WorkloadArgument>(text);
    check_name::<UpdateMode>(text);
    check_name::<ValuePlacement>(text);
    check_name::<OperationMix>(text);
    check_name::<rmw::RmwStudy>(text);
    check_name::<BenchExperiment>(text);
    check_name::<Workload>(text);
    if let Ok(CostWeights { writes, points, ranges, space }) = text.parse() {
        assert!([writes, points, ranges, space].iter().all(|it| it.is_finite() && *it >= 0.0));
    }
}

/// Checks that the printed form of a parsed value parses to the same value.
fn check_printed_value<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse().ok(), Some(value));
    }
}

/// Checks that the text form of a parsed value equals the input.
fn check_name<T: FromStr + Display>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string(), text);
    }
}

/// Returns seeds for all targets of `lsmx-bench`.
#[must_use]
pub fn seeds() -> Seeds {
    let mut seeds = Seeds::default();
    for (target, texts) in SEED_TEXTS {
        for text in *texts {
            seeds.add(&[target], text.as_bytes());
        }
    }
    seeds
}

const SEED_TEXTS: &[(&str, &[&str])] = &[
    (
        "bench_records",
        &[
            "key\tvalue\nk\\t\\n\t\\\\v\\r\r\nlast\tone",
            "{\"key\":\"a\",\"value\":\"b\"}\n{\"value_hex\":\"ff00\",\"key\":\"\\u00e9\\n\"}\r\n",
            "{\"key_hex\":\"6b\",\"value\":\"\"}",
        ],
    ),
    (
        "bench_trace_line",
        &[
            "put\tkey\tva\\tlue\r\n",
            "delete\tkey",
            "get\tk\\\\",
            "merge\tkey\t+1\n",
            "delete-range\ta\tb",
            "delete-range\ta",
            "scan\t\t100",
        ],
    ),
    (
        "bench_phases",
        &[
            "[[phase]]\nname = \"load\"\nentries = 1000\nupdates = 0.1\nsettle = true\n\n\
                 [[phase]]\nlookups = 100\nempty-lookups = [0.0, 1.0]\nranges = 10\nhot = 1\n\
                 distribution = \"zipf\"\nselectivity = 1e-4\n",
            "[[phase]]\nentries = 100\ndeletes = 0.2\nmerges = 0.2\nrange-deletes = 0.01\n\
                 empty-lookups = 0.5\nlookups = 7\n",
        ],
    ),
    (
        "bench_arguments",
        &[
            "policy=tiering(T=4)",
            "filter_bits=monkey(10.5)",
            "block_bytes=4K",
            "memtable_bytes_max=1G",
            "workers=4",
            "auto",
            "0,1.5,100",
            "monkey(12)",
            "prefix-zipf",
            "writes=1,points=0.5,ranges=2,space=0",
            "kd",
            "value-log",
            "up2x",
            "recovery",
            "filter-size",
            "data-size",
            "ycsb-f",
            "seekrandom:threads=2,ops=5K,entries=100,rate=2.5",
        ],
    ),
];
