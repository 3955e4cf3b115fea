//! Random options, as plain data that can be printed.

use std::time::Duration;

use lsmx::WalOptions;
use lsmx::compaction::Preset;
use lsmx::env::Background;
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, KeyspaceOptions, Options, PolicySpec,
    ValueSeparation, WriteControl,
};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, merge_operator};

/// Maximum length of merged values in keyspaces that bound it.
pub(super) const MERGED_BYTES_MAX: usize = 600;

/// Options of a keyspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    pub policy: Option<String>,
    pub memtable_bytes: u64,
    pub table_bytes: u64,
    pub block_bytes: u32,
    pub restart_interval: u32,
    pub block_tags: bool,
    /// Whether each level is compressed.
    pub lz4: Vec<bool>,
    pub filter_last_run: FilterLastRun,
    pub filter_bits: FilterBits,
    /// Operand store for a keyspace without one.
    pub store: Option<SimpleStore>,
    pub separation: Option<ValueSeparation>,
}

impl Tuning {
    /// Draws a preset, mostly with a small size ratio, so that small trees are deep.
    pub fn policy(rng: &mut TestRng) -> String {
        let presets = PolicySpec::all_presets();
        let preset = rng.choose(&presets).clone();
        let small_ratio = 2 + rng.below(3) as u64;
        let bound = Duration::from_micros(10 + rng.below(3_000) as u64);
        let spec = match preset.preset() {
            // A history takes about a second of its clock.
            Some(Preset::TombstoneAge) => {
                format!("tsa(D={}us)", bound.as_micros()).parse().unwrap()
            }
            _ => preset,
        };
        let small = if rng.is_true_with_percent(67) {
            spec.clone().with_size_ratio(small_ratio).ok()
        } else {
            None
        };
        small.unwrap_or(spec).to_string()
    }

    pub fn random(rng: &mut TestRng) -> Tuning {
        let policy = if rng.is_true_with_percent(10) { None } else { Some(Tuning::policy(rng)) };
        let levels = 1 + rng.below(4);
        let table_bytes = *rng.choose(&[256, 1 << 10, 4 << 10, 16 << 10, 64 << 20]);
        let block_bytes = *rng.choose(&[64, 64, 128, 256, 512, 1024]);
        Tuning {
            policy,
            memtable_bytes: *rng.choose(&[1 << 10, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10]),
            // At least a block.
            table_bytes: table_bytes.max(u64::from(block_bytes)),
            block_bytes,
            restart_interval: *rng.choose(&[1, 2, 16, 16, 4096]),
            block_tags: rng.is_true_with_percent(80),
            lz4: (0..levels).map(|_| rng.is_true_with_percent(50)).collect(),
            filter_last_run: *rng.choose(&[
                FilterLastRun::Off,
                FilterLastRun::On,
                FilterLastRun::Auto,
            ]),
            filter_bits: *rng.choose(&[
                FilterBits::Fuse8,
                FilterBits::Fuse16,
                FilterBits::Monkey { bits_per_key: 10.0 },
                FilterBits::Monkey { bits_per_key: 14.5 },
            ]),
            store: rng.is_true_with_percent(40).then(|| SimpleStore {
                collect_after: 1 + rng.below(6) as u64,
                to_tree_one_in: 1 + rng.below(3) as u64,
                lazy: rng.is_true_with_percent(50),
            }),
            separation: rng.is_true_with_percent(50).then(|| ValueSeparation {
                threshold_bytes: *rng.choose(&[1, 8, 30, 100]),
                blob_file_bytes: *rng.choose(&[1 << 10, 4 << 10, 1 << 20]),
                garbage_ratio: *rng.choose(&[0.05, 0.3, 0.5, 1.0]),
                space_amplification_max: *rng.choose(&[1.02, 1.3, 2.0, 50.0]),
                scan_read_bytes: *rng.choose(&[0, 100, 400, 16 << 10]),
            }),
        }
    }

    /// Returns the options, with an operand store if `self` has one or the keyspace already does.
    pub fn options_with_store(&self, stored: bool) -> KeyspaceOptions {
        match self.store.or_else(|| stored.then(SimpleStore::default)) {
            Some(store) => self.options().operand_store(store.or_delta()),
            None => self.options(),
        }
    }

    /// Returns the options without an operand store.
    pub fn options(&self) -> KeyspaceOptions {
        let lz4 = self.lz4.iter();
        let compression = lz4.map(|lz4| if *lz4 { Compression::Lz4 } else { Compression::None });
        let options = KeyspaceOptions::default()
            .memtable_bytes(self.memtable_bytes)
            .table_bytes(self.table_bytes)
            .block_bytes(self.block_bytes)
            .restart_interval(self.restart_interval)
            .block_tags(self.block_tags)
            .compression(compression.collect::<Vec<_>>())
            .filter_last_run(self.filter_last_run)
            .filter_bits(self.filter_bits)
            .value_separation(self.separation);
        match &self.policy {
            Some(policy) => {
                options.policy(policy.parse::<PolicySpec>().expect("a spec that was printed"))
            }
            None => options,
        }
    }
}

/// Options of a database.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    pub cache_bytes: u64,
    pub cache_kind: BlockCacheKind,
    pub warm_up: bool,
    pub open_files: Option<usize>,
    pub io_rate: Option<u64>,
    pub idle_us: Option<u64>,
    pub wal_bytes_max: Option<u64>,
    pub segment_bytes: u64,
    pub sync_every_bytes: u64,
    pub smooth: bool,
    pub merge_parts: Option<u8>,
    pub tuning: Tuning,
}

impl Opening {
    pub fn random(rng: &mut TestRng) -> Opening {
        Opening {
            cache_bytes: *rng.choose(&[0, 300, 4 << 10, 64 << 10, 8 << 20]),
            cache_kind: *rng.choose(&BlockCacheKind::ALL),
            warm_up: rng.is_true_with_percent(30),
            open_files: *rng.choose(&[None, Some(1), Some(2), Some(8)]),
            io_rate: *rng.choose(&[None, None, Some(1 << 20), Some(1 << 30)]),
            idle_us: *rng.choose(&[None, None, Some(10_000), Some(1_000_000)]),
            wal_bytes_max: *rng.choose(&[None, None, Some(1), Some(3_000), Some(100_000)]),
            segment_bytes: *rng.choose(&[1, 500, 4 << 10, 16 << 20]),
            sync_every_bytes: *rng.choose(&[1, 2_000, 8 << 20]),
            smooth: rng.is_true_with_percent(70),
            merge_parts: *rng.choose(&[None, Some(1), Some(3), Some(8)]),
            tuning: Tuning::random(rng),
        }
    }

    /// Returns the options of the keyspace with an index, with or without its merge operator. `stored` states whether the
    /// keyspace has an operand store.
    pub fn keyspace_options(&self, at: usize, merges: bool, stored: bool) -> KeyspaceOptions {
        let tuning = self.tuning.options_with_store(stored);
        if merges { tuning.merge_operator(merge_operator(at, MERGED_BYTES_MAX)) } else { tuning }
    }

    /// Returns the options of the database. Even seeds give the operand stores to the open; with odd seeds each keyspace gets
    /// its store when it is opened.
    pub fn options(
        &self,
        background: Background,
        seed: u64,
        merges: bool,
        stored: &[bool],
    ) -> Options {
        let control = if self.smooth { WriteControl::Smooth } else { WriteControl::Stop };
        let mut options = Options::default()
            .background(background)
            .seed(seed)
            .block_cache_bytes(self.cache_bytes)
            .block_cache_kind(self.cache_kind)
            .warm_up(self.warm_up)
            .write_control(control)
            .wal(WalOptions {
                segment_bytes: self.segment_bytes,
                sync_every_bytes: self.sync_every_bytes,
                ..WalOptions::default()
            })
            .keyspace_defaults(self.keyspace_options(0, merges, stored[0]));
        if seed.is_multiple_of(2) {
            options = options.operand_store(SimpleStore::default().or_delta());
        }
        if let Some(files) = self.open_files {
            options = options.open_files_max(files);
        }
        if let Some(rate) = self.io_rate {
            options = options.background_io_rate(rate);
        }
        if let Some(us) = self.idle_us {
            options = options.flush_idle_after(Duration::from_micros(us));
        }
        if let Some(parts) = self.merge_parts {
            options = options.subcompactions_max(parts.into());
        }
        match self.wal_bytes_max {
            Some(bytes) => options.wal_bytes_max(bytes),
            None => options,
        }
    }
}
