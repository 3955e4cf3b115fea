//! Runs the fuzz targets of the engine on a million mutated inputs. A target must not panic, hang, exceed its memory
//! bound or violate an invariant. The docs of `lsmx_testkit::fuzzing` list the targets and explain how to replay a
//! failure.
//!
//! The seed inputs are the files of small databases, the golden tables, and `fuzz/corpus`.
#![expect(clippy::disallowed_methods, reason = "golden files are no user data")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Compression, Db, FilterBits, KeyspaceOptions, Options, ValueSeparation};
use lsmx_testkit::engine::{TARGETS, seeds_from_files};
use lsmx_testkit::fuzzing::{Seeds, check_targets, run_targets};

use crate::ALLOCATOR;

/// Number of inputs for all targets together at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 1_000_000;

/// Returns the files of three small databases: two with tables, and one with only a WAL and a manifest.
fn sample_databases() -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
    let mut all = Vec::new();
    for (compression, filter_bits, memtable_bytes, close) in [
        (Compression::None, FilterBits::Fuse8, 2 << 10, true),
        (Compression::Lz4, FilterBits::Fuse16, 6 << 10, false),
        (Compression::None, FilterBits::Fuse8, 1 << 20, false),
    ] {
        let disk = MemVfs::new();
        let keyspace = KeyspaceOptions::default()
            .memtable_bytes(memtable_bytes)
            .table_bytes(3 << 10)
            .block_bytes(256)
            .restart_interval(4)
            .filter_bits(filter_bits)
            .compression(compression)
            .value_separation(ValueSeparation {
                threshold_bytes: 30,
                ..ValueSeparation::default()
            });
        let options = Options::default().background(Background::Inline).seed(5);
        let options = options.keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let trace =
            db.record_trace("trace", lsmx::workload_trace::TraceOptions::default()).unwrap();
        for number in 0..120u64 {
            let key = format!("key-{:06}", number * 7919 % 90);
            if number % 6 == 5 {
                db.delete(&key).unwrap();
            } else {
                db.put(&key, format!("value {number} ").repeat(3)).unwrap();
            }
            if number % 40 == 30 {
                db.sync().unwrap();
            }
        }
        trace.stop().unwrap();
        all.push(disk.snapshot_all());
        if close {
            db.close(None).unwrap();
            all.push(disk.snapshot_all());
        }
    }
    all
}

/// Returns the golden tables, which contain range tombstones, and the golden trace, which contains every kind of item.
fn golden_files() -> BTreeMap<PathBuf, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            files.insert(format!("{:06}.sst", files.len()).into(), fs::read(path).unwrap());
        } else if path.ends_with("trace-v2") {
            files.insert("trace".into(), fs::read(path).unwrap());
        }
    }
    assert!(!files.is_empty());
    files
}

fn all_seeds() -> Seeds {
    let mut seeds = Seeds::default();
    for files in sample_databases().into_iter().chain([golden_files()]) {
        seeds.extend(seeds_from_files(&files));
    }
    seeds.remove_redundant();
    seeds
}

#[test]
fn decoders_changed_inputs_cause_no_failure() {
    let _alone = lsmx_testkit::run_alone();
    run_targets(TARGETS, &all_seeds(), INPUTS, || ALLOCATOR.peak_bytes());
}

#[test]
fn targets_have_shares_seeds_and_binaries() {
    let _alone = lsmx_testkit::run_alone();
    check_targets(TARGETS, &all_seeds());
}

/// Writes the seed corpus of each fuzz target that has no corpus yet.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test resources -- --ignored write_corpora"]
fn write_corpora() {
    all_seeds().write_corpora();
}
