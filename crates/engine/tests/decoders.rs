//! Every decoder against a million inputs that no writer wrote: no panic, no hang, no allocation
//! beyond a bound, and nothing accepted that breaks a promise (see `lsmx::fuzzing`). And sequences of
//! operations on a whole database.
//!
//! Seeds are the files of a small database made here, the golden tables, and `fuzz/corpus`. Each
//! input is a seed with some bytes changed; `lsmx::fuzzing::feed` says how to replay and to scale.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "golden files belong to the repository")]

use std::alloc::System;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap::Cap;
use lsmx::env::Background;
use lsmx::fuzzing::feed::{self, Seeds};
use lsmx::fuzzing::{TARGETS, seeds};
use lsmx::vfs::MemVfs;
use lsmx::{Compression, Db, FilterBits, KeyspaceOptions, Options, ValueSeparation};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Inputs over all targets at `LSMX_TEST_SCALE=1`.
const INPUTS: u64 = 1_000_000;

/// The files of a small database with tables, and of another with nothing but its logs.
fn databases() -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
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
            .value_separation(ValueSeparation::default().threshold_bytes(30));
        let options = Options::default().background(Background::Inline).seed(5);
        let options = options.keyspace_defaults(keyspace);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let trace = db.record_trace("trace").unwrap();
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

/// The golden tables, as if they were the files of a database: they have range tombstones. And the
/// golden trace, which has every kind of item.
fn golden() -> BTreeMap<PathBuf, Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            files.insert(format!("{:06}.sst", files.len()).into(), fs::read(path).unwrap());
        } else if path.ends_with("trace-v1") {
            files.insert("trace".into(), fs::read(path).unwrap());
        }
    }
    assert!(!files.is_empty());
    files
}

fn fresh_seeds() -> Seeds {
    let mut all = Seeds::new();
    for files in databases().into_iter().chain([golden()]) {
        for (target, inputs) in seeds(&files) {
            all.entry(target).or_default().extend(inputs);
        }
    }
    feed::tidy(&mut all);
    all
}

#[test]
fn no_input_breaks_a_decoder() {
    feed::feed(TARGETS, &fresh_seeds(), INPUTS, || ALLOCATOR.max_allocated());
}

#[test]
fn every_target_has_its_share_and_its_seeds() {
    feed::check(TARGETS, &fresh_seeds());
}

/// For whoever adds a target.
#[test]
#[ignore = "writes seeds into fuzz/corpus; run with --test decoders -- --ignored write_corpora"]
fn write_corpora() {
    feed::write_corpora(&fresh_seeds());
}
