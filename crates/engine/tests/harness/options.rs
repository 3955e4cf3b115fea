//! Draws random options. The sizes are so small that a few hundred commits cause every kind of job.

use std::cell::Cell;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::{KeyspaceOptions, MergeOperator, MergeResult, Options, PolicySpec, WriteControl};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::{SimpleStore, use_delta_stores};
use lsmx_testkit::world::{DbSettings, KeyspaceSettings};

use super::history::time_to_live;

/// Appends operands, so that a lost, repeated or misplaced operand changes the value. Partial merges may be enabled in
/// one open and disabled in the next.
#[derive(Debug)]
struct AppendOperator {
    merges_partially: bool,
}

impl MergeOperator for AppendOperator {
    fn name(&self) -> &'static str {
        "appending"
    }

    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Append::default().full_merge(key, base, operands)
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        self.merges_partially.then(|| Append::default().partial_merge(key, older, newer))?
    }
}

thread_local! {
    /// Operand stores of the databases of this thread. Every open of a database must name the same store.
    static STORES: Cell<Stores> = const { Cell::new(Stores::None) };
}

/// Where a database stores its operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stores {
    /// In the trees of the keyspaces.
    #[default]
    None,
    /// In simple stores of `lsmx-testkit`.
    Simple,
    /// In stores of `lsmx-delta`.
    Delta,
}

impl Stores {
    /// Returns the location that the seed of a run selects.
    pub(crate) fn of_seed(seed: u64) -> Stores {
        match seed % 4 {
            1 => Stores::Simple,
            3 => Stores::Delta,
            _ => Stores::None,
        }
    }
}

/// Sets which operand stores the options of this thread name.
pub(crate) fn set_stores(stores: Stores) {
    STORES.set(stores);
    use_delta_stores(stores == Stores::Delta);
}

/// Returns whether the options of this thread name operand stores.
pub(crate) fn has_stores() -> bool {
    STORES.get() != Stores::None
}

/// Draws options of a keyspace, without a policy.
pub(crate) fn draw_keyspace(rng: &mut TestRng) -> KeyspaceOptions {
    let settings = KeyspaceSettings {
        policy: None,
        memtable_bytes: 1024 << rng.below(3),
        table_bytes: 1024 << rng.below(3),
        block_bytes: 128 << rng.below(2),
        store: has_stores().then(|| SimpleStore::random(rng)),
        ..KeyspaceSettings::random(rng)
    };
    let merges_partially = rng.is_one_in(2);
    settings.options_with_store(false).merge_operator(AppendOperator { merges_partially })
}

/// Draws options of a keyspace without a merge operator and without an operand store. Most draws set a default time to
/// live of half an hour.
pub(crate) fn draw_expiring(rng: &mut TestRng) -> KeyspaceOptions {
    let ttl = (!rng.is_one_in(3)).then(|| time_to_live(0));
    let settings = KeyspaceSettings { policy: None, store: None, ..KeyspaceSettings::random(rng) };
    settings.options_with_store(false).default_ttl(ttl)
}

/// Draws options of a clone, which are those of a keyspace without an operand store.
pub(crate) fn draw_clone(rng: &mut TestRng) -> KeyspaceOptions {
    let settings = KeyspaceSettings { policy: None, store: None, ..KeyspaceSettings::random(rng) };
    settings.options()
}

/// Draws options for [`Keyspace::set_options`], which keeps the merge operator and the operand store.
///
/// [`Keyspace::set_options`]: lsmx::Keyspace::set_options
pub(crate) fn draw_settings(rng: &mut TestRng) -> KeyspaceSettings {
    KeyspaceSettings { policy: None, ..KeyspaceSettings::random(rng) }
}

/// Draws options of a database, without a policy.
pub(crate) fn draw(rng: &mut TestRng, background: Background) -> Options {
    draw_with(rng, background, |_| {})
}

/// Draws options of a database that writes no metrics file. The thread that writes the file takes steps at all times,
/// which histories with a limit of steps cannot distinguish from the steps of a database that hangs.
pub(crate) fn draw_without_metrics_file(rng: &mut TestRng, background: Background) -> Options {
    draw_with(rng, background, |settings| settings.metrics_file = None)
}

fn draw_with(
    rng: &mut TestRng,
    background: Background,
    change: impl FnOnce(&mut DbSettings),
) -> Options {
    let mut settings = DbSettings {
        cache_bytes: *rng.choose(&[0, 4096, 8192, 64 << 10]),
        open_files_max: None,
        io_rate: None,
        idle_us: None,
        wal_bytes_max: Some(*rng.choose(&[4096, 8192, 32 << 10])),
        // Less than a page, and several.
        segment_bytes: *rng.choose(&[600, 1200, 2400, 10_000, 24_000]),
        sync_every_bytes: 2000 << rng.below(4),
        write_control: WriteControl::default(),
        ..DbSettings::random(rng)
    };
    change(&mut settings);
    settings.options(background, rng.next_u64()).keyspace_defaults(draw_keyspace(rng))
}

pub(crate) fn draw_policy(rng: &mut TestRng) -> PolicySpec {
    rng.choose(&policies()).clone()
}

pub(crate) fn policies() -> Vec<PolicySpec> {
    PolicySpec::all_presets()
}
