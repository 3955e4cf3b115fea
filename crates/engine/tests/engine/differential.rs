//! Runs the same operations with many sets of options and compares the results of each set with a model.
//!
//! Half of the option sets are fixed and use extreme option values. The other half are random.

use std::time::Duration;

use lsmx::env::Background;
use lsmx::metrics::LatencySampling;
use lsmx::{
    BlockCacheKind, Compression, FilterBits, FilterLastRun, MemtableKind, RmwMode, ValueSeparation,
    WriteControl,
};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::world::{CaseCounts, DbSettings, History, KeyspaceSettings, Operation, play};
use lsmx_testkit::{TestRng, case_seeds};

const DRAWN_SETS: usize = 20;
const HISTORIES: u64 = 5;
const HISTORY_OPERATIONS: usize = 1_000;

/// Returns the base options. Each fixed option set changes some of these options.
fn plain() -> DbSettings {
    DbSettings {
        warm_up: false,
        cache_bytes: 64 << 10,
        cache_kind: BlockCacheKind::Quick,
        wal_bytes_max: None,
        segment_bytes: 4 << 10,
        sync_every_bytes: 8 << 20,
        write_control: WriteControl::Smooth,
        subcompactions_max: None,
        direct_compactions: false,
        latency_sampling: LatencySampling::Off,
        metrics_file: None,
        open_files_max: None,
        io_rate: None,
        idle_us: None,
        keyspaces: KeyspaceSettings {
            prefix_filter: None,
            policy: Some("leveled".to_owned()),
            memtable_bytes: 4 << 10,
            memtable_kind: MemtableKind::BLinkTree,
            table_bytes: 4 << 10,
            block_bytes: 256,
            restart_interval: 16,
            block_tags: true,
            compression: vec![Compression::None],
            filter_last_run: FilterLastRun::Off,
            filter_bits: FilterBits::Fuse8,
            store: None,
            rmw_mode: RmwMode::Fixed,
            separation: None,
            has_filter: false,
            delete_persistence: None,
            default_ttl: None,
        },
    }
}

/// Returns the fixed option sets, each with its background mode.
fn fixed() -> Vec<(DbSettings, Background)> {
    let (inline, stepped) = (Background::Inline, Background::Stepped { seed: 7, workers: 2 });
    let threads = Background::Threads { workers: 2 };
    let policies = ["full", "lo+1", "tiering", "universal", "1-leveling", "leveled"];
    let mut sets: Vec<_> = policies
        .map(|policy| {
            let mut set = plain();
            set.keyspaces.policy = Some(policy.to_owned());
            (set, inline)
        })
        .into();
    let mut add = |background, change: &dyn Fn(&mut DbSettings)| {
        let mut set = plain();
        change(&mut set);
        sets.push((set, background));
    };
    // The minimum sizes give many levels of tiny files with one entry per block.
    add(inline, &|set| {
        (set.keyspaces.memtable_bytes, set.keyspaces.table_bytes) = (1 << 10, 1 << 10);
        (set.keyspaces.block_bytes, set.keyspaces.restart_interval) = (64, 1);
    });
    add(inline, &|set| set.keyspaces.block_tags = false);
    add(inline, &|set| set.keyspaces.policy = Some("leveled(T=2)".to_owned()));
    add(inline, &|set| set.keyspaces.policy = Some("tiering(T=2)".to_owned()));
    // With the next three option sets, each level has one file, each table has one block, and no memtable reaches its
    // size limit.
    add(inline, &|set| set.keyspaces.table_bytes = 64 << 20);
    add(inline, &|set| {
        (set.keyspaces.table_bytes, set.keyspaces.block_bytes) = (4 << 20, 1 << 20);
        set.keyspaces.restart_interval = 4096;
    });
    add(inline, &|set| set.keyspaces.memtable_bytes = 64 << 20);
    add(inline, &|set| set.keyspaces.memtable_kind = MemtableKind::SkipList);
    add(inline, &|set| set.keyspaces.rmw_mode = RmwMode::Adaptive);
    // Of the next two option sets, the first disables the block cache. The second makes the block cache large enough
    // for all blocks.
    add(inline, &|set| set.cache_bytes = 0);
    add(inline, &|set| {
        (set.cache_bytes, set.keyspaces.filter_last_run) = (64 << 20, FilterLastRun::On);
    });
    add(inline, &|set| (set.cache_bytes, set.cache_kind) = (1 << 20, BlockCacheKind::Moka));
    add(inline, &|set| {
        set.keyspaces.filter_bits = FilterBits::Monkey { bits_per_key: 10.0 };
        set.keyspaces.filter_last_run = FilterLastRun::On;
    });
    add(inline, &|set| set.keyspaces.compression = vec![Compression::Lz4]);
    add(inline, &|set| {
        set.keyspaces.compression = vec![Compression::None, Compression::None, Compression::Lz4];
    });
    add(inline, &|set| set.keyspaces.compression = vec![Compression::Lz4]);
    add(inline, &|set| {
        set.keyspaces.compression = vec![Compression::None, Compression::None, Compression::Lz4];
    });
    // The thresholds for value separation are 1 byte with early garbage collection, 10 bytes and 60 bytes.
    for (background, threshold_bytes, space_amplification_max) in
        [(inline, 1, 1.01), (stepped, 10, 1.3), (threads, 60, 2.0)]
    {
        let separation = ValueSeparation {
            threshold_bytes,
            blob_file_bytes: 1 << 10,
            garbage_ratio: 0.1,
            space_amplification_max,
            scan_read_bytes: 150,
        };
        add(background, &|set| set.keyspaces.separation = Some(separation));
    }
    // The first of these option sets writes one synced WAL segment per commit. The second one flushes because of the
    // WAL size limit.
    add(inline, &|set| (set.segment_bytes, set.sync_every_bytes) = (1, 1));
    add(inline, &|set| set.wal_bytes_max = Some(1));
    add(inline, &|set| set.open_files_max = Some(8));
    add(threads, &|set| set.direct_compactions = true);
    add(stepped, &|set| set.keyspaces.memtable_bytes = 1 << 10);
    // The operand store never starts a collection, starts one after every flush, or collects on background threads.
    for (background, memtable_bytes, collect_after, to_tree_one_in, lazy) in [
        (inline, 4 << 10, u64::MAX, 1, true),
        (inline, 1 << 10, 1, 1, false),
        (stepped, 1 << 10, 2, 2, true),
        (threads, 1 << 10, 2, 2, true),
    ] {
        let store = SimpleStore { collect_after, to_tree_one_in, lazy };
        add(background, &|set| {
            (set.keyspaces.memtable_bytes, set.keyspaces.store) = (memtable_bytes, Some(store));
        });
    }
    // Values without an expiry time get a time to live, and all operations are measured.
    let half_an_hour = Duration::from_secs(1_800);
    add(inline, &|set| set.keyspaces.default_ttl = Some(half_an_hour));
    for background in [inline, stepped] {
        add(background, &|set| {
            set.latency_sampling = LatencySampling::OneIn(1);
            set.metrics_file = Some(Duration::from_millis(1));
        });
    }
    add(threads, &|set| {
        (set.keyspaces.memtable_bytes, set.write_control) = (1 << 10, WriteControl::Stop)
    });
    sets
}

/// Replaces all options in the operations by the options of `set`.
fn under(operations: &[Operation], set: &DbSettings) -> Vec<Operation> {
    let mut operations = operations.to_vec();
    for op in &mut operations {
        match op {
            Operation::CreateKeyspace(_, settings)
            | Operation::ChangeOptions(_, settings)
            | Operation::SetOptions(_, settings) => *settings = set.keyspaces.clone(),
            Operation::Restart(_, settings) => *settings = set.clone(),
            _ => {}
        }
    }
    operations
}

#[test]
fn option_sets_give_equal_results() {
    let histories: Vec<_> = case_seeds(&[], HISTORIES)
        // Guarded batches are removed, because the memtable size decides whether an old guard is refused.
        .map(|seed| {
            let mut history = History::random(seed, Background::Inline, HISTORY_OPERATIONS);
            history.operations.retain(|op| !matches!(op, Operation::GuardedBatch(..)));
            history
        })
        .collect();
    let mut sets = fixed();
    let mut rng = TestRng::new(!histories[0].seed);
    let drawn = (0..DRAWN_SETS).map(|_| {
        let background = match rng.below(4) {
            0 => Background::Stepped { seed: rng.next_u64(), workers: 1 + rng.below(2) },
            _ => Background::Inline,
        };
        (DbSettings::random(&mut rng), background)
    });
    sets.extend(drawn.collect::<Vec<_>>());
    let mut reached = CaseCounts::default();
    for (set, background) in &sets {
        for history in &histories {
            let history = History {
                background: *background,
                first_settings: set.clone(),
                last_settings: set.clone(),
                operations: under(&history.operations, set),
                ..history.clone()
            };
            play("option_sets_give_equal_results", &history, &mut reached);
        }
    }
    println!("{} sets: {reached:?}", sets.len());
    assert!(sets.len() >= 40 && reached.flushes > 1_000 && reached.merges > 100, "{reached:?}");
}
