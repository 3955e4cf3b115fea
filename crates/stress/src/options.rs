//! Draws random options for each open of a database. Memtables and files are so small that a few thousand commits cause
//! all kinds of background jobs.

use std::path::Path;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{BlockCacheKind, KeyspaceOptions, Options, PolicySpec, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{KeyspaceSettings, random_latency_sampling};

use crate::{LOADED, SESSIONS, sessions};

/// Interval of the metrics file.
const METRICS_INTERVAL: Duration = Duration::from_millis(20);

/// Draws keyspace options. Half of the draws set a compaction policy, and half of the draws set an operand store.
/// Opening a keyspace keeps the previous values of options that are not set.
pub(crate) fn draw_keyspace(rng: &mut TestRng) -> KeyspaceOptions {
    let options = draw_without_store(rng);
    match rng.is_one_in(2) {
        true => options.operand_store(draw_store(rng)),
        false => options,
    }
}

/// Draws keyspace options without an operand store.
pub(crate) fn draw_without_store(rng: &mut TestRng) -> KeyspaceOptions {
    draw_settings(rng).options()
}

/// Draws settings of a keyspace.
pub(crate) fn draw_settings(rng: &mut TestRng) -> KeyspaceSettings {
    let has_policy = rng.is_one_in(2);
    let drawn = KeyspaceSettings::random(rng);
    KeyspaceSettings {
        policy: has_policy.then(|| rng.choose(&PolicySpec::all_presets()).to_string()),
        memtable_bytes: 4096 << rng.below(5),
        table_bytes: 8192 << rng.below(4),
        block_bytes: 256 << rng.below(5),
        separation: drawn.separation.map(|separation| ValueSeparation {
            threshold_bytes: 16 << rng.below(6),
            blob_file_bytes: 1024 << rng.below(5),
            ..separation
        }),
        ..drawn
    }
}

/// Draws options for the keyspace with this index. The merge operator and the default time to live depend on the index.
pub(crate) fn draw_indexed(rng: &mut TestRng, keyspace: usize) -> KeyspaceOptions {
    match keyspace {
        0 => draw_keyspace(rng).merge_operator(Counter),
        SESSIONS => draw_without_store(rng).default_ttl(sessions::DEFAULT_TTL),
        LOADED => draw_without_store(rng),
        _ => draw_keyspace(rng).merge_operator(Append::default()),
    }
}

/// Draws the keyspace option `delete_persistence`. Half of the draws set no bound.
pub(crate) fn draw_delete_persistence(rng: &mut TestRng) -> Option<Duration> {
    let bound_ms = *rng.choose(&[20, 200, 2_000]);
    rng.is_one_in(2).then(|| Duration::from_millis(bound_ms))
}

/// Draws options of an operand store with few and small buckets. A bucket is a file with the operands of a key range.
/// Small buckets are often split and merged, and often move operands to the tree.
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
    let options = match rng.is_one_in(2) {
        true => Options::default().metrics_file(METRICS_INTERVAL),
        false => Options::default(),
    };
    options
        .latency_sampling(random_latency_sampling(rng))
        .background(Background::Threads { workers: 1 + usize::from(rng.is_one_in(2)) })
        .block_cache_bytes(rng.below(4) * 65_536)
        .block_cache_kind(*rng.choose(&BlockCacheKind::ALL))
        .warm_up(rng.is_one_in(3))
        .direct_reads(rng.is_one_in(3) && direct_reads_work(dir))
        .keep_compactions_cached(rng.is_one_in(2))
        .wal_bytes_max(32_768 << rng.below(4))
        .wal(WalOptions {
            segment_bytes: 8192 << rng.below(5),
            sync_every_bytes: 16_384 << rng.below(6),
            ..WalOptions::default()
        })
        .operand_store(draw_store(rng))
}

/// Returns whether the file system of this directory supports direct reads.
fn direct_reads_work(dir: &Path) -> bool {
    let file = tempfile::NamedTempFile::new_in(dir.parent().unwrap_or(dir));
    file.is_ok_and(|file| OsVfs.open_direct(file.path()).is_ok())
}
