//! Random options for each open. Sizes are so small that a few thousand commits cause every kind of background job.

use std::path::Path;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, Options, PolicySpec,
    ValueSeparation,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;

/// Draws options of a keyspace. Half of the draws set a policy, and half set an operand store. An option that is not
/// set keeps its previous value.
pub(crate) fn draw_keyspace(rng: &mut TestRng) -> KeyspaceOptions {
    let filter = match rng.below(3) {
        0 => FilterLastRun::Off,
        1 => FilterLastRun::On,
        _ => FilterLastRun::Auto,
    };
    let compression = if rng.is_one_in(3) { Compression::Lz4 } else { Compression::None };
    let drawn = KeyspaceOptions::default()
        .memtable_bytes(4096 << rng.below(5))
        .table_bytes(8192 << rng.below(4))
        .block_bytes(256 << rng.below(5))
        .filter_last_run(filter)
        .filter_bits(draw_filter_bits(rng))
        .compression(compression)
        .value_separation(draw_separation(rng));
    let drawn = match rng.is_one_in(2) {
        true => drawn.policy(rng.choose(&PolicySpec::all_presets()).clone()),
        false => drawn,
    };
    match rng.is_one_in(2) {
        true => drawn.operand_store(draw_store(rng)),
        false => drawn,
    }
}

/// Draws options of the keyspace with this index. The index determines the merge operator.
pub(crate) fn draw_counted(rng: &mut TestRng, keyspace: usize) -> KeyspaceOptions {
    let drawn = draw_keyspace(rng);
    match keyspace {
        0 => drawn.merge_operator(Counter),
        _ => drawn.merge_operator(Append::default()),
    }
}

fn draw_separation(rng: &mut TestRng) -> Option<ValueSeparation> {
    let separation = ValueSeparation {
        threshold_bytes: 16 << rng.below(6),
        blob_file_bytes: 1024 << rng.below(5),
        garbage_ratio: *rng.choose(&[0.05, 0.3, 0.5, 1.0]),
        space_amplification_max: *rng.choose(&[1.02, 1.3, 3.0, 100.0]),
        scan_read_bytes: *rng.choose(&[0, 100, 400, 16 << 10]),
    };
    (!rng.is_one_in(3)).then_some(separation)
}

/// Draws options of an operand store. Buckets are so few and small that they split, merge, and overflow into the tree.
pub(crate) fn draw_store(rng: &mut TestRng) -> DeltaStoreFactory {
    let drawn = DeltaOptions::default()
        .bucket_bytes(512 << rng.below(5))
        .split_threshold(*rng.choose(&[0.05, 0.3, 0.8, 0.95]))
        .buckets_max(*rng.choose(&[4, 5, 8, 16]))
        .log_bytes_max(1024 << rng.below(7));
    DeltaStoreFactory::new(match rng.below(4) {
        0 | 1 => drawn.cache_bytes(0),
        2 => drawn.cache_bytes(4096),
        _ => drawn,
    })
}

pub(crate) fn draw_options(rng: &mut TestRng, dir: &Path) -> Options {
    Options::default()
        .background(Background::Threads { workers: 1 + usize::from(rng.is_one_in(2)) })
        .block_cache_bytes(rng.below(4) * 65_536)
        .block_cache_kind(*rng.choose(&BlockCacheKind::ALL))
        .warm_up(rng.is_one_in(3))
        .direct_reads(rng.is_one_in(3) && direct_reads_work(dir))
        .wal_bytes_max(32_768 << rng.below(4))
        .wal(WalOptions {
            segment_bytes: 8192 << rng.below(5),
            sync_every_bytes: 16_384 << rng.below(6),
            ..WalOptions::default()
        })
        .operand_store(draw_store(rng))
}

/// Draws a filter type and its size.
pub fn draw_filter_bits(rng: &mut TestRng) -> FilterBits {
    match rng.below(3) {
        0 => FilterBits::Fuse8,
        1 => FilterBits::Fuse16,
        _ => FilterBits::Monkey { bits_per_key: (9 + rng.below(10)) as f64 },
    }
}

/// Returns whether the file system of this directory supports direct reads.
fn direct_reads_work(dir: &Path) -> bool {
    let file = tempfile::NamedTempFile::new_in(dir.parent().unwrap_or(dir));
    file.is_ok_and(|file| OsVfs.open_direct(file.path()).is_ok())
}
