//! Measures the index of a table: index bytes per data block, and time of an index search.
//!
//! Usage: `cargo run --release -p lsmx-bench --example index_cost -- hash:1000000 ids:1000000 spread:1000000 FILE…`.
//! Each FILE contains one key per line. With `--features peer-rocksdb` the output includes the partitioned index of
//! RocksDB for the same keys. `docs/results/read-cost.md` contains the measured figures.

#![allow(clippy::print_stdout, reason = "the program prints a table")]
#![allow(clippy::disallowed_methods, reason = "reads key files and measures real time")]

#[cfg(feature = "peer-rocksdb")]
mod rocksdb;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lsmx::benching::{IndexBlockKeys, index_blocks};
use lsmx::internals::cache::BlockCache;
use lsmx::internals::format::index::{IndexBlock, Separator};
use lsmx::internals::table::{Table, TableIdentity, TableOptions, TableWriter, verify_table};
use lsmx::vfs::MemVfs;
use lsmx::{EntryKind, SeqNo};
use lsmx_base::key::InternalKey;
use lsmx_bench::workload::KeyDistribution;
use lsmx_bench::workload::keys::KeySpace;
use lsmx_bench::workload::random::{hash_u64, random_bytes};
use lsmx_compaction::FileId;

type Failure = Box<dyn std::error::Error>;

const VALUE_BYTES: usize = 110;
const HASH_BYTES: usize = 32;
const SPREAD_BYTES: usize = 16;
/// Restart interval of the front-coded index to which the index of lsmx is compared.
const RESTART_INTERVAL: usize = 16;
/// Memory overhead of a cached index block in bytes, excluding `size_of::<IndexBlock>()`.
const OVERHEAD_BYTES: usize = 48;
const INDEX_BLOCK_BYTES: usize = 4096;
const LOOKUPS: usize = 500_000;

fn main() -> Result<(), Failure> {
    let parts = size_of::<IndexBlock>();
    println!("{} bytes of overhead per index block\n", parts + OVERHEAD_BYTES);
    println!(
        "| keys | entries | data blocks | index blocks | bytes per data block | front-coded | ratio | lookup ns | RocksDB's, restart interval 1, 16 |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for argument in std::env::args().skip(1) {
        measure_index(&argument, &load_keys(&argument)?)?;
    }
    Ok(())
}

/// Returns the sorted keys for a command-line argument, such as `hash:1000000` or the name of a key file.
fn load_keys(argument: &str) -> Result<Vec<Vec<u8>>, Failure> {
    let mut keys = BTreeSet::new();
    match argument.split_once(':') {
        Some(("hash", count)) => {
            keys.extend(
                (0..count.parse()?).map(|record| random_bytes(hash_u64(record), HASH_BYTES)),
            );
        }
        // Uniformly distributed keys as in `lsmx explore`.
        Some(("spread", count)) => {
            let count = count.parse()?;
            let space = KeySpace::new(KeyDistribution::Uniform, count, SPREAD_BYTES, 1)?;
            keys.extend((0..count).map(|record| space.key(record)));
        }
        Some(("ids", count)) => {
            let fields = ["address", "created", "email", "name", "phone", "status"];
            for n in 0..count.parse::<usize>()? {
                let (user, field) = (n / fields.len(), fields[n % fields.len()]);
                keys.insert(format!("user:{user:09}:{field}").into_bytes());
            }
        }
        _ => {
            let lines = std::fs::read(argument)?;
            keys.extend(lines.split(|&byte| byte == b'\n').map(<[u8]>::to_vec));
            keys.remove(&b""[..]);
        }
    }
    Ok(keys.into_iter().collect())
}

fn measure_index(argument: &str, keys: &[Vec<u8>]) -> Result<(), Failure> {
    let (vfs, path, uid) = (MemVfs::new(), Path::new("table"), 7);
    let mut writer = TableWriter::create(&vfs, path, uid, &TableOptions::default())?;
    let value = vec![7; VALUE_BYTES];
    for user_key in keys {
        writer.add(InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put }, &value)?;
    }
    let summary = writer.finish()?;
    let identity = TableIdentity {
        id: FileId(1),
        bytes: summary.bytes,
        uid,
        checksum: summary.checksum,
        seq_largest: summary.properties.seq_largest,
    };
    let table = Arc::new(Table::open(&vfs, path, &identity, &BlockCache::new(1 << 30))?);
    verify_table(&table)?;
    let indexed = index_blocks(&table)?;
    let overhead = OVERHEAD_BYTES + size_of::<IndexBlock>();
    let bytes: usize = indexed.iter().map(|(index, _)| index.bytes() + overhead).sum();
    let data_blocks: usize = indexed.iter().map(|(_, blocks)| blocks.len()).sum();
    let each = bytes as f64 / data_blocks as f64;
    let front = front_coded_bytes(&indexed, overhead)? as f64 / data_blocks as f64;
    println!(
        "| {argument} | {} | {data_blocks} | {} | {each:.2} | {front:.2} | {:.2} | {:.0} | {} |",
        keys.len(),
        indexed.len(),
        each / front,
        measure_search_ns(&indexed)?,
        rocksdb_bytes(keys, &value)?,
    );
    Ok(())
}

#[cfg(feature = "peer-rocksdb")]
fn rocksdb_bytes(keys: &[Vec<u8>], value: &[u8]) -> Result<String, Failure> {
    let each = |restart_interval| rocksdb::index_bytes(keys, value, restart_interval);
    Ok(format!("{:.2}, {:.2}", each(1)?, each(RESTART_INTERVAL)?))
}

#[cfg(not(feature = "peer-rocksdb"))]
fn rocksdb_bytes(_: &[Vec<u8>], _: &[u8]) -> Result<String, Failure> {
    Ok("not built in".to_owned())
}

/// Returns the size in bytes of a front-coded index of the same data blocks, with varint block handles.
fn front_coded_bytes(indexed: &[IndexBlockKeys], overhead: usize) -> Result<usize, Failure> {
    let varint = |value: u64| (64 - (value | 1).leading_zeros() as usize).div_ceil(7);
    let internal = |user_key| InternalKey { user_key, seq: SeqNo(1), kind: EntryKind::Put };
    let mut firsts = indexed.iter().flat_map(|(_, blocks)| blocks).skip(1).map(|keys| &keys[0]);
    let mut before: Vec<u8> = Vec::new();
    let (mut bytes, mut entries, mut held) = (0, 0usize, 0usize);
    for (index, blocks) in indexed {
        for (ordinal, keys) in blocks.iter().enumerate() {
            let last = internal(&keys[keys.len() - 1]);
            let next = firsts.next().map(|first| internal(first));
            let separator = Separator::between(last, next).user_key;
            let handle = index.handle(ordinal)?.ok_or("an index block with fewer data blocks")?;
            let restart = entries.is_multiple_of(RESTART_INTERVAL);
            let common = before.iter().zip(&separator).take_while(|(a, b)| a == b).count();
            let shared = if restart { 0 } else { common };
            let unshared = separator.len() - shared;
            held += varint(shared as u64) + varint(unshared as u64) + unshared;
            held += varint(handle.offset) + varint(handle.bytes) + if restart { 4 } else { 0 };
            entries += 1;
            before = separator;
            // As in lsmx, the next index block starts once the current block has `INDEX_BLOCK_BYTES`.
            if held >= INDEX_BLOCK_BYTES {
                bytes += held + 4 + overhead;
                (entries, held) = (0, 0);
            }
        }
    }
    Ok(bytes + if held > 0 { held + 4 + overhead } else { 0 })
}

/// Returns the mean time of a search in a cached index block, in nanoseconds.
fn measure_search_ns(indexed: &[IndexBlockKeys]) -> Result<f64, Failure> {
    let (mut total_s, mut lookups) = (0.0, 0usize);
    for (index, blocks) in indexed.iter().step_by(indexed.len().div_ceil(8).max(1)) {
        // The searched keys are not sorted and fit into the processor's cache.
        let keys: Vec<&[u8]> = blocks.iter().flatten().map(Vec::as_slice).collect();
        let count = keys.len().min(512);
        let searched: Vec<&[u8]> = (0..count).map(|n| keys[n * 7919 % keys.len()]).collect();
        for is_warm in [false, true] {
            let start = Instant::now();
            for n in 0..LOOKUPS {
                black_box(index.seek(black_box(searched[n % count]), SeqNo::MAX)?);
            }
            if is_warm {
                total_s += start.elapsed().as_secs_f64();
                lookups += LOOKUPS;
            }
        }
    }
    Ok(total_s * 1e9 / lookups as f64)
}
