//! Options drawn anew for each opening, so small that a life of a few thousand commits runs through
//! every kind of job.

use std::path::Path;
use std::sync::Arc;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, Options, PolicySpec,
    ValueSeparation,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::chance::Chance;

/// Tuning of a keyspace. A policy stays with its keyspace unless it is drawn; so does an operand store,
/// and a keyspace for which one is drawn takes it on.
pub(crate) fn draw_keyspace(chance: &mut Chance) -> KeyspaceOptions {
    let filter = match chance.below(3) {
        0 => FilterLastRun::Off,
        1 => FilterLastRun::On,
        _ => FilterLastRun::Auto,
    };
    let compression = if chance.one_in(3) { Compression::Lz4 } else { Compression::None };
    let drawn = KeyspaceOptions::default()
        .memtable_bytes(4096 << chance.below(5))
        .table_bytes(8192 << chance.below(4))
        .block_bytes(256 << chance.below(5))
        .filter_last_run(filter)
        .filter_bits(draw_filter_bits(chance))
        .compression(compression)
        .value_separation(draw_separation(chance));
    let drawn = match chance.one_in(2) {
        true => drawn.policy(chance.of(&PolicySpec::all_presets()).clone()),
        false => drawn,
    };
    match chance.one_in(2) {
        true => drawn.operand_store(draw_store(chance)),
        false => drawn,
    }
}

/// Tuning of a keyspace that every commit counts itself in, with the operator that it always has.
pub(crate) fn draw_counted(chance: &mut Chance, keyspace: usize) -> KeyspaceOptions {
    let drawn = draw_keyspace(chance);
    match keyspace {
        0 => drawn.merge_operator(Counter),
        _ => drawn.merge_operator(Append::default()),
    }
}

/// Whether values are kept apart, from where on, and how soon their files are emptied.
fn draw_separation(chance: &mut Chance) -> Option<ValueSeparation> {
    let separation = ValueSeparation {
        threshold_bytes: 16 << chance.below(6),
        blob_file_bytes: 1024 << chance.below(5),
        garbage_ratio: *chance.of(&[0.05, 0.3, 0.5, 1.0]),
        space_amplification_max: *chance.of(&[1.02, 1.3, 3.0, 100.0]),
        scan_read_bytes: *chance.of(&[0, 100, 400, 16 << 10]),
    };
    (!chance.one_in(3)).then_some(separation)
}

/// Buckets so few and small that they split, merge, and overflow into the tree.
pub(crate) fn draw_store(chance: &mut Chance) -> DeltaStoreFactory {
    let drawn = DeltaOptions::default()
        .bucket_bytes(512 << chance.below(5))
        .split_threshold(*chance.of(&[0.05, 0.3, 0.8, 0.95]))
        .buckets_max(*chance.of(&[4, 5, 8, 16]))
        .log_bytes_max(1024 << chance.below(7));
    DeltaStoreFactory::new(match chance.below(4) {
        0 | 1 => drawn.cache_bytes(0),
        2 => drawn.cache_bytes(4096),
        _ => drawn,
    })
}

/// Options of a database, whose keyspaces may have the store that [`draw_store`] draws.
pub(crate) fn draw_options(chance: &mut Chance, dir: &Path) -> Options {
    Options::default()
        .background(Background::Threads { workers: 1 + usize::from(chance.one_in(2)) })
        .block_cache_bytes(chance.below(4) * 65_536)
        .block_cache_kind(*chance.of(&BlockCacheKind::ALL))
        .warm_up(chance.one_in(3))
        .direct_reads(chance.one_in(3) && direct_reads_work(dir))
        .wal_bytes_max(32_768 << chance.below(4))
        .wal(WalOptions {
            segment_bytes: 8192 << chance.below(5),
            sync_every_bytes: 16_384 << chance.below(6),
            ..WalOptions::default()
        })
        .operand_store(draw_store(chance))
}

/// Every store that keyspaces may have, for verification.
pub(crate) fn stores() -> [Arc<dyn OperandStoreFactory>; 1] {
    [Arc::new(DeltaStoreFactory::new(DeltaOptions::default()))]
}

/// Widths of filters, drawn at random.
pub fn draw_filter_bits(chance: &mut Chance) -> FilterBits {
    match chance.below(3) {
        0 => FilterBits::Fuse8,
        1 => FilterBits::Fuse16,
        _ => FilterBits::Monkey { bits_per_key: (9 + chance.below(10)) as f64 },
    }
}

/// Whether files beside this directory can be read past the system's cache: not every file system can do
/// that.
fn direct_reads_work(dir: &Path) -> bool {
    let file = tempfile::NamedTempFile::new_in(dir.parent().unwrap_or(dir));
    file.is_ok_and(|file| OsVfs.open_direct(file.path()).is_ok())
}
