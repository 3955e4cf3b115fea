//! What a fuzzer calls: one plain function for each kind of text that users write, as `lsmx::fuzzing` has
//! them for bytes. Not for users.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use lsmx::FilterBits;
use lsmx::fuzzing::Target;
use lsmx::fuzzing::feed::Seeds;
use lsmx::workload_trace::TraceEvent;

use crate::experiment::advise::Weights;
use crate::experiment::iocost::CacheSweep;
use crate::experiment::rmw::{self, Base, Mix, Mode};
use crate::experiment::throughput::workload::Workload;
use crate::experiment::tuning;
use crate::numbers;
use crate::peers::lsmx::LsmxOptions;
use crate::workload::Distribution;
use crate::workload::phases::parse_phases;
use crate::workload::record::{Format, ReadError, RecordReader, decode, encode};
use crate::workload::trace::Parts;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "bench_records", run: records, share: 400 },
    Target { name: "bench_trace_line", run: trace_line, share: 200 },
    Target { name: "bench_phases", run: phases, share: 250 },
    Target { name: "bench_arguments", run: arguments, share: 150 },
];

/// Records as TSV and as JSON lines.
pub fn records(bytes: &[u8]) {
    for format in [Format::Tsv, Format::Jsonl] {
        let mut reader = RecordReader::new(bytes, format);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut lines = 0;
        loop {
            match reader.read(&mut key, &mut value) {
                Ok(false) => break,
                Ok(true) => comes_back(format, &key, &value),
                Err(ReadError::Malformed(line, _)) => assert_eq!(line, lines + 1),
                Err(ReadError::Io(error)) => panic!("{error}"),
            }
            lines += 1;
        }
        assert_eq!((reader.lines(), reader.bytes()), (lines, numbers::count(bytes.len())));
        assert_eq!(lines, numbers::count(bytes.split_inclusive(|byte| *byte == b'\n').count()));
    }
}

/// A record is one line in either format, whichever it was read from.
fn comes_back(from: Format, key: &[u8], value: &[u8]) {
    for format in [Format::Tsv, Format::Jsonl] {
        let mut line = Vec::new();
        encode(format, key, value, &mut line);
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let (mut key_again, mut value_again) = (Vec::new(), Vec::new());
        decode(format, &line, &mut key_again, &mut value_again).expect("it was encoded");
        assert_eq!((&*key_again, &*value_again), (key, value), "from {from:?}");
    }
}

/// A line of a trace that was written by hand.
pub fn trace_line(bytes: &[u8]) {
    let mut parts = Parts::default();
    match parts.operation(bytes) {
        Ok(TraceEvent::DeleteRange { start, end: Some(end), .. }) => assert!(start < end),
        Ok(TraceEvent::Put { value, .. } | TraceEvent::Merge { operand: value, .. }) => {
            assert_eq!(value.content.map(<[u8]>::len).map(numbers::count), Some(value.bytes));
        }
        _ => {}
    }
}

/// A file of phases.
pub fn phases(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(phases) = parse_phases(text, Path::new("file")) else { return };
    assert!(!phases.is_empty() && phases[0].inserts > 0);
    for phase in &phases {
        assert!(phase.ops() > 0 && phase.ops() >= phase.writes());
        assert!((0.0..=1.0).contains(&phase.selectivity));
        assert!(phase.lookups.iter().all(|lookups| (0.0..=1.0).contains(&lookups.alpha)));
    }
}

/// What parses prints as something that parses to the same.
fn prints_as_read<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse().ok(), Some(value));
    }
}

/// What stands behind arguments of the command line.
pub fn arguments(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = LsmxOptions::default().set(text);
    prints_as_read::<CacheSweep>(text);
    prints_as_read::<Distribution>(text);
    prints_as_read::<FilterBits>(text);
    is_its_name::<Mode>(text);
    is_its_name::<Base>(text);
    is_its_name::<Mix>(text);
    is_its_name::<rmw::Study>(text);
    is_its_name::<tuning::Study>(text);
    is_its_name::<Workload>(text);
    if let Ok(Weights { writes, points, ranges, space }) = text.parse() {
        assert!([writes, points, ranges, space].iter().all(|it| it.is_finite() && *it >= 0.0));
    }
}

/// Of what has names, only the name is read.
fn is_its_name<T: FromStr + Display>(text: &str) {
    if let Ok(named) = text.parse::<T>() {
        assert_eq!(named.to_string(), text);
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Seeds {
    let of = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    Seeds::from([
        (
            "bench_records",
            of(&[
                "key\tvalue\nk\\t\\n\t\\\\v\\r\r\nlast\tone",
                "{\"key\":\"a\",\"value\":\"b\"}\n{\"value_hex\":\"ff00\",\"key\":\"\\u00e9\\n\"}\r\n",
                "{\"key_hex\":\"6b\",\"value\":\"\"}",
            ]),
        ),
        (
            "bench_trace_line",
            of(&[
                "put\tkey\tva\\tlue\r\n",
                "delete\tkey",
                "get\tk\\\\",
                "merge\tkey\t+1\n",
                "delete-range\ta\tb",
                "delete-range\ta",
                "scan\t\t100",
            ]),
        ),
        (
            "bench_phases",
            of(&[
                "[[phase]]\nname = \"load\"\nentries = 1000\nupdates = 0.1\nsettle = true\n\n\
                 [[phase]]\nlookups = 100\nempty-lookups = [0.0, 1.0]\nranges = 10\nhot = 1\n\
                 distribution = \"zipf\"\nselectivity = 1e-4\n",
                "[[phase]]\nentries = 100\ndeletes = 0.2\nmerges = 0.2\nrange-deletes = 0.01\n\
                 empty-lookups = 0.5\nlookups = 7\n",
            ]),
        ),
        (
            "bench_arguments",
            of(&[
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
                "ycsb-f",
            ]),
        ),
    ])
}
