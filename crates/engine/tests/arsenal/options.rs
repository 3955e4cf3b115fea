//! Options so small that a few hundred commits run through every kind of job.

use lsmx::env::Background;
use lsmx::wal::WalOptions;
use lsmx::{Compression, FilterLastRun, KeyspaceOptions, Options, PolicySpec};

use super::Chance;

/// Tuning of a keyspace, drawn at random, without a policy.
pub(crate) fn draw_keyspace(chance: &mut Chance) -> KeyspaceOptions {
    let filter = if chance.one_in(2) { FilterLastRun::On } else { FilterLastRun::Off };
    let compression = if chance.one_in(4) { Compression::Lz4 } else { Compression::None };
    KeyspaceOptions::default()
        .memtable_bytes(1024 << chance.below(3))
        .table_bytes(1024 << chance.below(3))
        .block_bytes(128 << chance.below(2))
        .restart_interval(u32::try_from(1 + chance.below(8)).unwrap_or(1))
        .filter_last_run(filter)
        .compression(compression)
}

/// Options of a database, drawn at random, without a policy.
pub(crate) fn draw(chance: &mut Chance, background: Background) -> Options {
    Options::default()
        .background(background)
        .seed(chance.draw())
        .block_cache_bytes(chance.below(3) * 4096)
        .wal_bytes_max(4096 << chance.below(2))
        .wal(WalOptions {
            segment_bytes: 600 << chance.below(3),
            sync_every_bytes: 2000 << chance.below(4),
            ..WalOptions::default()
        })
        .keyspace_defaults(draw_keyspace(chance))
}

/// A policy, drawn at random.
pub(crate) fn draw_policy(chance: &mut Chance) -> PolicySpec {
    chance.of(&policies()).clone()
}

/// Every preset that loses nothing.
pub(crate) fn policies() -> Vec<PolicySpec> {
    PolicySpec::all_presets()
}
