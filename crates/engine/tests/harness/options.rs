//! Random options so small that a few hundred commits cause every kind of job.

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::{
    BlockCacheKind, Compression, FilterLastRun, KeyspaceOptions, MergeOperator, MergeResult,
    Options, PolicySpec, ValueSeparation,
};
use lsmx_stress::draw_filter_bits;
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::{SimpleStore, use_delta_stores};

/// Appends, so that a lost, repeated or misplaced operand changes the value. Partial merges may be on with one open and
/// off with the next.
#[derive(Debug)]
struct Appending {
    partially: bool,
}

impl MergeOperator for Appending {
    fn name(&self) -> &'static str {
        "appending"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Append::default().full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        if self.partially { Append::default().partial_merge(key, older, newer) } else { None }
    }
}

thread_local! {
    /// Operand stores of the databases of this thread. Each open must name the same.
    static STORES: std::cell::Cell<Stores> = const { std::cell::Cell::new(Stores::None) };
}

/// Location of the operands of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Trees.
    #[default]
    None,
    /// Simple stores of `lsmx-testkit`.
    Plain,
    /// Stores of `lsmx-delta`.
    Real,
}

impl Stores {
    /// Returns the location for the run with a seed.
    pub(crate) fn of_seed(seed: u64) -> Stores {
        match seed % 4 {
            1 => Stores::Plain,
            3 => Stores::Real,
            _ => Stores::None,
        }
    }
}

/// Sets the operand stores of the options that this thread draws.
pub(crate) fn set_stores(stores: Stores) {
    STORES.set(stores);
    use_delta_stores(stores == Stores::Real);
}

/// Returns whether the options of this thread name operand stores.
pub(crate) fn has_stores() -> bool {
    STORES.get() != Stores::None
}

fn draw_store(rng: &mut TestRng) -> SimpleStore {
    SimpleStore {
        collect_after: 1 + rng.below(6),
        to_tree_one_in: 1 + rng.below(3),
        lazy: rng.is_one_in(2),
    }
}

/// Draws options of a keyspace, without a policy.
pub(crate) fn draw_keyspace(rng: &mut TestRng) -> KeyspaceOptions {
    let filter = match rng.below(3) {
        0 => FilterLastRun::Off,
        1 => FilterLastRun::On,
        _ => FilterLastRun::Auto,
    };
    let compression = if rng.is_one_in(4) { Compression::Lz4 } else { Compression::None };
    let options = KeyspaceOptions::default()
        .memtable_bytes(1024 << rng.below(3))
        .table_bytes(1024 << rng.below(3))
        .block_bytes(128 << rng.below(2))
        .restart_interval(u32::try_from(1 + rng.below(8)).unwrap_or(1))
        .block_tags(!rng.is_one_in(4))
        .filter_last_run(filter)
        .filter_bits(draw_filter_bits(rng))
        .compression(compression)
        .merge_operator(Appending { partially: rng.is_one_in(2) })
        .value_separation(draw_separation(rng));
    if has_stores() { options.operand_store(draw_store(rng).or_delta()) } else { options }
}

/// Draws the value separation: none, or with small files and mostly low thresholds.
pub(crate) fn draw_separation(rng: &mut TestRng) -> Option<ValueSeparation> {
    if rng.is_one_in(3) {
        return None;
    }
    let separation = ValueSeparation {
        threshold_bytes: *rng.choose(&[1, 10, 30, 60]),
        blob_file_bytes: 1024 << rng.below(3),
        garbage_ratio: *rng.choose(&[0.1, 0.5, 1.0]),
        space_amplification_max: *rng.choose(&[1.05, 1.3, 3.0, 100.0]),
        scan_read_bytes: *rng.choose(&[0, 100, 400, 16 << 10]),
    };
    Some(separation)
}

/// Draws options of a database, without a policy.
pub(crate) fn draw(rng: &mut TestRng, background: Background) -> Options {
    Options::default()
        .background(background)
        .seed(rng.next_u64())
        .block_cache_bytes(*rng.choose(&[0, 4096, 8192, 64 << 10]))
        .block_cache_kind(*rng.choose(&BlockCacheKind::ALL))
        .warm_up(rng.is_one_in(3))
        .subcompactions_max(usize::try_from(1 + rng.below(4)).unwrap_or(1))
        .wal_bytes_max(*rng.choose(&[4096, 8192, 32 << 10]))
        .wal(WalOptions {
            // Less than a page, and several.
            segment_bytes: *rng.choose(&[600, 1200, 2400, 10_000, 24_000]),
            sync_every_bytes: 2000 << rng.below(4),
            ..WalOptions::default()
        })
        .keyspace_defaults(draw_keyspace(rng))
}

/// Draws a policy.
pub(crate) fn draw_policy(rng: &mut TestRng) -> PolicySpec {
    rng.choose(&policies()).clone()
}

/// Returns all presets.
pub(crate) fn policies() -> Vec<PolicySpec> {
    PolicySpec::all_presets()
}
