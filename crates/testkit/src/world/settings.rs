//! Random options. They can be printed in error messages.

use std::time::Duration;

use lsmx::compaction::Preset;
use lsmx::env::Background;
use lsmx::metrics::LatencySampling;
use lsmx::operand_store::OperandStoreFactory;
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, MemtableKind, Options,
    PolicySpec, PrefixExtractor, ReadOptions, ReadTier, RmwMode, ValueSeparation, WalOptions,
    WriteControl,
};

use super::operations::time_to_live;
use crate::compaction_filters::RewritingFilter;
use crate::rng::TestRng;
use crate::simple_store::SimpleStore;

#[derive(Clone, Debug, PartialEq)]
pub struct KeyspaceSettings {
    /// Compaction policy of the keyspace. If `None`, the current policy is kept.
    pub policy: Option<String>,
    pub memtable_bytes: u64,
    pub memtable_kind: MemtableKind,
    pub table_bytes: u64,
    pub block_bytes: u32,
    pub restart_interval: u32,
    pub block_tags: bool,
    /// Compression of each level.
    pub compression: Vec<Compression>,
    pub filter_last_run: FilterLastRun,
    pub filter_bits: FilterBits,
    pub prefix_filter: Option<PrefixExtractor>,
    /// Operand store that is added if the keyspace has none.
    pub store: Option<SimpleStore>,
    pub rmw_mode: RmwMode,
    pub separation: Option<ValueSeparation>,
    /// Whether the keyspace has a `RewritingFilter`.
    pub has_filter: bool,
    /// Value of the option `delete_persistence`. Ignored if the keyspace has an operand store that does not support it.
    pub delete_persistence: Option<Duration>,
    /// Value of the option `default_ttl`. [`KeyspaceSettings::options`] ignores it, because a keyspace with a merge
    /// operator or an operand store cannot have this option.
    pub default_ttl: Option<Duration>,
}

/// Draws a preset of a compaction policy. Most draws set a small size ratio, so that small trees have many levels.
pub fn random_policy(rng: &mut TestRng) -> String {
    let preset = rng.choose(&PolicySpec::all_presets()).clone();
    let spec = match preset.preset() {
        // The database clock of a history runs for about one second.
        Some(Preset::TombstoneAge) => {
            format!("tsa(D={}us)", rng.between(10, 3_000)).parse().unwrap()
        }
        _ => preset,
    };
    let small_ratio = 2 + rng.below(3_u64);
    match spec.clone().with_size_ratio(small_ratio) {
        Ok(small) if rng.is_true_with_percent(67) => small.to_string(),
        _ => spec.to_string(),
    }
}

/// Draws which operations are measured.
pub fn random_latency_sampling(rng: &mut TestRng) -> LatencySampling {
    *rng.choose(&[
        LatencySampling::Off,
        LatencySampling::Off,
        LatencySampling::OneIn(1),
        LatencySampling::OneIn(5),
    ])
}

/// Draws options of reads.
pub fn random_read_options(rng: &mut TestRng) -> ReadOptions {
    ReadOptions {
        tier: if rng.is_one_in(5) { ReadTier::Memory } else { ReadTier::Storage },
        fill_cache: *rng.choose(&[None, Some(false), Some(true)]),
        read_ahead_bytes_max: *rng.choose(&[None, Some(0), Some(300)]),
        // With a deadline of zero, a move that reads files never completes in time.
        deadline: *rng.choose(&[None, None, Some(Duration::MAX), Some(Duration::ZERO)]),
    }
}

impl KeyspaceSettings {
    /// Draws options so small that a few hundred writes cause all kinds of jobs.
    pub fn random(rng: &mut TestRng) -> KeyspaceSettings {
        let levels = rng.between(1, 4);
        let table_bytes = *rng.choose(&[256, 1 << 10, 4 << 10, 16 << 10, 64 << 20]);
        let block_bytes = *rng.choose(&[64, 64, 128, 256, 512, 1024]);
        let bits_per_key = 9.0 + rng.below(10_u8) as f64 / 2.0;
        KeyspaceSettings {
            policy: (!rng.is_one_in(10)).then(|| random_policy(rng)),
            memtable_bytes: *rng.choose(&[1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10]),
            memtable_kind: *rng.choose(&MemtableKind::ALL),
            table_bytes: u64::from(block_bytes).max(table_bytes),
            block_bytes,
            restart_interval: *rng.choose(&[1, 2, 16, 16, 4096]),
            block_tags: rng.is_true_with_percent(80),
            compression: (0..levels)
                .map(|_| *rng.choose(&[Compression::None, Compression::Lz4]))
                .collect(),
            filter_last_run: *rng.choose(&[
                FilterLastRun::Off,
                FilterLastRun::On,
                FilterLastRun::Auto,
            ]),
            filter_bits: *rng.choose(&[
                FilterBits::Fuse8,
                FilterBits::Fuse16,
                FilterBits::Monkey { bits_per_key },
            ]),
            prefix_filter: *rng.choose(&[
                None,
                Some(PrefixExtractor::Length(1)),
                Some(PrefixExtractor::Length(2)),
                Some(PrefixExtractor::Delimiter(0xff)),
            ]),
            store: rng.is_true_with_percent(40).then(|| SimpleStore::random(rng)),
            rmw_mode: *rng.choose(&[RmwMode::Fixed, RmwMode::Adaptive]),
            separation: rng.is_true_with_percent(60).then(|| ValueSeparation {
                threshold_bytes: *rng.choose(&[1, 8, 30, 100]),
                blob_file_bytes: *rng.choose(&[1 << 10, 4 << 10, 1 << 20]),
                garbage_ratio: *rng.choose(&[0.05, 0.3, 0.5, 1.0]),
                space_amplification_max: *rng.choose(&[1.02, 1.3, 2.0, 50.0]),
                scan_read_bytes: *rng.choose(&[0, 100, 400, 16 << 10]),
            }),
            has_filter: rng.is_true_with_percent(30),
            delete_persistence: rng
                .is_one_in(3)
                .then(|| Duration::from_millis(*rng.choose(&[10, 100, 500, 5_000]))),
            default_ttl: rng
                .is_true_with_percent(60)
                .then(|| time_to_live(*rng.choose(&[0, 0, 1, 1 << 20]))),
        }
    }

    /// Returns the keyspace options without an operand store.
    pub fn options(&self) -> KeyspaceOptions {
        self.apply_to(KeyspaceOptions::default())
    }

    /// Replaces all options except the merge operator, the operand store, the bound for deleted values and the default
    /// time to live.
    pub fn apply_to(&self, options: KeyspaceOptions) -> KeyspaceOptions {
        let options = options
            .memtable_bytes(self.memtable_bytes)
            .memtable_kind(self.memtable_kind)
            .table_bytes(self.table_bytes)
            .block_bytes(self.block_bytes)
            .restart_interval(self.restart_interval)
            .block_tags(self.block_tags)
            .compression(self.compression.clone())
            .filter_last_run(self.filter_last_run)
            .filter_bits(self.filter_bits)
            .prefix_filter(self.prefix_filter)
            .rmw_mode(self.rmw_mode)
            .value_separation(self.separation);
        let options = match self.has_filter {
            true => options.compaction_filter(RewritingFilter),
            false => options,
        };
        match &self.policy {
            Some(policy) => options.policy(policy.parse::<PolicySpec>().expect("a printed policy")),
            None => options,
        }
    }

    /// Returns the keyspace options with the operand store of the settings. If they have none and `has_store` is true,
    /// adds a default store.
    pub fn options_with_store(&self, has_store: bool) -> KeyspaceOptions {
        let store = self.store.or_else(|| has_store.then(SimpleStore::default));
        let options = self.options().delete_persistence(self.bound(store.is_some()));
        match store {
            Some(store) => options.operand_store(store.or_delta()),
            None => options,
        }
    }

    /// Returns the value of `delete_persistence`. Returns `None` if the keyspace has an operand store that does not
    /// support this option.
    pub fn bound(&self, has_store: bool) -> Option<Duration> {
        let supports_bound = || SimpleStore::default().or_delta().supports_delete_persistence();
        self.delete_persistence.filter(|_| !has_store || supports_bound())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct DbSettings {
    pub cache_bytes: u64,
    pub cache_kind: BlockCacheKind,
    pub warm_up: bool,
    pub open_files_max: Option<usize>,
    pub io_rate: Option<u64>,
    /// Time after which an idle memtable is flushed, in microseconds.
    pub idle_us: Option<u64>,
    pub wal_bytes_max: Option<u64>,
    pub segment_bytes: u64,
    pub sync_every_bytes: u64,
    pub write_control: WriteControl,
    pub subcompactions_max: Option<usize>,
    /// Whether compactions use direct I/O.
    pub direct_compactions: bool,
    pub latency_sampling: LatencySampling,
    /// Interval of the metrics file. A database without threads writes none.
    pub metrics_file: Option<Duration>,
    pub keyspaces: KeyspaceSettings,
}

impl DbSettings {
    pub fn random(rng: &mut TestRng) -> DbSettings {
        let is_smooth = rng.is_true_with_percent(70);
        DbSettings {
            cache_bytes: *rng.choose(&[0, 300, 4 << 10, 64 << 10, 8 << 20]),
            cache_kind: *rng.choose(&BlockCacheKind::ALL),
            warm_up: rng.is_true_with_percent(30),
            open_files_max: *rng.choose(&[None, Some(1), Some(2), Some(8)]),
            io_rate: *rng.choose(&[None, None, Some(1 << 20), Some(1 << 30)]),
            idle_us: *rng.choose(&[None, None, Some(10_000), Some(1_000_000)]),
            wal_bytes_max: *rng.choose(&[None, None, Some(1), Some(3_000), Some(100_000)]),
            segment_bytes: *rng.choose(&[1, 500, 4 << 10, 16 << 20]),
            sync_every_bytes: *rng.choose(&[1, 2_000, 8 << 20]),
            write_control: if is_smooth { WriteControl::Smooth } else { WriteControl::Stop },
            subcompactions_max: *rng.choose(&[None, Some(1), Some(3), Some(8)]),
            direct_compactions: rng.is_one_in(2),
            latency_sampling: random_latency_sampling(rng),
            metrics_file: rng
                .is_one_in(2)
                .then(|| Duration::from_micros(*rng.choose(&[500, 5_000, 200_000]))),
            keyspaces: KeyspaceSettings::random(rng),
        }
    }

    /// Returns the database options without the keyspace options.
    pub fn options(&self, background: Background, seed: u64) -> Options {
        let mut options = Options::default()
            .background(background)
            .seed(seed)
            .block_cache_bytes(self.cache_bytes)
            .block_cache_kind(self.cache_kind)
            .warm_up(self.warm_up)
            .write_control(self.write_control)
            .keep_compactions_cached(!self.direct_compactions)
            .latency_sampling(self.latency_sampling)
            .wal(WalOptions {
                segment_bytes: self.segment_bytes,
                sync_every_bytes: self.sync_every_bytes,
                ..WalOptions::default()
            });
        if let Some(files) = self.open_files_max {
            options = options.open_files_max(files);
        }
        if let Some(rate) = self.io_rate {
            options = options.background_io_rate(rate);
        }
        if let Some(interval) = self.metrics_file {
            options = options.metrics_file(interval);
        }
        if let Some(us) = self.idle_us {
            options = options.flush_idle_after(Duration::from_micros(us));
        }
        if let Some(parts) = self.subcompactions_max {
            options = options.subcompactions_max(parts);
        }
        match self.wal_bytes_max {
            Some(bytes) => options.wal_bytes_max(bytes),
            None => options,
        }
    }
}
