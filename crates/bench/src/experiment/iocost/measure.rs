//! Lookups with one cache size.

use std::collections::BTreeMap;

use lsmx::ReadMetrics;
use lsmx::internals::vfs::{IoCounts, VfsCall};
use lsmx::metrics::BlockKind;
use lsmx::metrics::FilterCounts;

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers::ratio;
use crate::process;
use crate::workload::random::Random;
use crate::workload::record::to_hex;

use super::Opened;
use super::keys::Keys;
use super::result::{LevelAnswers, Point};

/// A round of the warm-up is this part of the lookups that are counted, but no fewer than [`ROUND_MIN`].
const ROUNDS_PER_GETS: u64 = 4;
const ROUND_MIN: u64 = 2_000;
/// Most rounds, for a cache that never comes to rest.
const ROUNDS_MAX: u64 = 200;
/// Metadata is steady once a round changes it by no more than this part.
const STEADY: u64 = 1_000;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Present,
    Absent,
}

/// What lookups did, by both counts.
struct Measured {
    gets: u64,
    /// Hits and misses by kind of block.
    blocks: BTreeMap<BlockKind, (u64, u64)>,
    /// By level.
    filters: BTreeMap<u8, FilterCounts>,
    reads: u64,
    read_bytes: u64,
    device: Device,
    latencies: Latencies,
}

/// What the system says that storage did, where it says so.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// Reads that the device completed.
    reads: Option<u64>,
    /// Bytes that this process got from it.
    bytes: Option<u64>,
}

impl Device {
    fn now(opened: &Opened) -> Device {
        let reads = process::device_reads(&opened.path);
        // Where there is no device, as in memory, the system counts no bytes either.
        Device { reads, bytes: reads.and_then(|_| process::storage_read_bytes()) }
    }

    fn since(self, before: Device) -> Device {
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Device { reads: since(self.reads, before.reads), bytes: since(self.bytes, before.bytes) }
    }
}

/// Warms up, looks up `gets` present keys and then as many absent ones. Which cache that is, the caller
/// knows.
pub(super) fn point(
    opened: &Opened,
    keys: &Keys,
    gets: u64,
    random: &mut Random,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<Point> {
    progress.begin(title, 0);
    let warm_up_gets = warm_up(opened, keys, gets, random)?;
    let present = play(opened, keys, Asked::Present, gets, random)?;
    let absent = play(opened, keys, Asked::Absent, gets, random)?;
    progress.end();
    let touched = || present.blocks.iter().filter(|(_, (hits, misses))| hits + misses > 0);
    let (hits, misses) = touched().fold((0, 0), |all, (_, it)| (all.0 + it.0, all.1 + it.1));
    let resident = opened.db.read_metrics().cache;
    let filters: FilterCounts = absent.filters.values().copied().sum();
    let filter_by_level = absent.filters.iter().map(|(&level, answers)| LevelAnswers {
        level,
        negatives: answers.negatives,
        false_positives: answers.false_positives,
        false_positive_rate: answers.false_positive_rate(),
    });
    Ok(Point {
        cache_bytes: 0,
        cache_fraction: 0.0,
        at: None,
        warm_up_gets,
        resident_bytes: resident
            .into_iter()
            .map(|(kind, cache)| (kind, cache.resident_bytes))
            .filter(|(_, bytes)| *bytes > 0)
            .collect(),
        hit_rate: touched().map(|(kind, it)| (*kind, ratio(it.0, it.0 + it.1))).collect(),
        hit_rate_overall: ratio(hits, hits + misses),
        blocks_per_get: touched()
            .map(|(kind, it)| (*kind, ratio(it.0 + it.1, present.gets)))
            .collect(),
        ios_per_get: present.ios_per_get(),
        physical_reads_per_get: ratio(present.reads, present.gets),
        physical_read_bytes_per_get: ratio(present.read_bytes, present.gets),
        device_reads_per_get: present.device.reads.map(|reads| ratio(reads, present.gets)),
        device_read_bytes_per_get: present.device.bytes.map(|bytes| ratio(bytes, present.gets)),
        ios_per_absent_get: absent.ios_per_get(),
        physical_reads_per_absent_get: ratio(absent.reads, absent.gets),
        device_reads_per_absent_get: absent.device.reads.map(|reads| ratio(reads, absent.gets)),
        filter_false_positive_rate: filters.false_positive_rate(),
        filter_negatives: filters.negatives,
        filter_false_positives: filters.false_positives,
        filter_by_level: filter_by_level.collect(),
        get_latency_us: present.latencies.summary(),
        absent_get_latency_us: absent.latencies.summary(),
    })
}

impl Measured {
    fn ios_per_get(&self) -> f64 {
        ratio(self.blocks.values().map(|(_, misses)| misses).sum(), self.gets)
    }
}

/// Looks up present keys until the metadata in memory is steady; returns how many it took.
fn warm_up(opened: &Opened, keys: &Keys, gets: u64, random: &mut Random) -> Result<u64> {
    let round = (gets / ROUNDS_PER_GETS).max(ROUND_MIN);
    let metadata = || {
        let cache = opened.db.read_metrics().cache;
        let kinds = cache.iter().filter(|(kind, _)| **kind != BlockKind::Data);
        kinds.map(|(_, cache)| cache.resident_bytes).sum::<u64>()
    };
    let (mut before, mut done) = (metadata(), 0);
    for _ in 0..ROUNDS_MAX {
        play(opened, keys, Asked::Present, round, random)?;
        done += round;
        let now = metadata();
        if now.abs_diff(before) <= before / STEADY {
            break;
        }
        before = now;
    }
    Ok(done)
}

fn play(
    opened: &Opened,
    keys: &Keys,
    asked: Asked,
    gets: u64,
    random: &mut Random,
) -> Result<Measured> {
    let before = (opened.db.read_metrics(), opened.vfs.counts(), Device::now(opened));
    let mut latencies = Latencies::new();
    let mut key = Vec::new();
    for _ in 0..gets {
        match asked {
            Asked::Present => keys.present(random, &mut key),
            Asked::Absent => keys.absent(random, &mut key),
        }
        let watch = Stopwatch::start();
        let found = opened.keyspace.get(&key);
        latencies.record_ns(watch.elapsed_ns());
        let found = found.map_err(|source| Error::Engine { action: "get", source })?;
        if found.is_some() != (asked == Asked::Present) {
            let (found, must) = match asked {
                Asked::Present => ("absent", "present"),
                Asked::Absent => ("present", "absent"),
            };
            return Err(Error::WrongAnswer { key: to_hex(&key), found, must });
        }
    }
    let after = (opened.db.read_metrics(), opened.vfs.counts(), Device::now(opened));
    Ok(measured(gets, &before, &after, latencies))
}

/// The engine's, the file system's and the device's.
type Counts = (ReadMetrics, IoCounts, Device);

fn measured(gets: u64, before: &Counts, after: &Counts, latencies: Latencies) -> Measured {
    let blocks = after.0.cache.iter().map(|(kind, cache)| {
        let earlier = before.0.cache.get(kind).copied().unwrap_or_default();
        (*kind, (cache.hits - earlier.hits, cache.misses - earlier.misses))
    });
    let filters = after.0.filter_by_level.iter().map(|(level, answers)| {
        let earlier = before.0.filter_by_level.get(level).copied().unwrap_or_default();
        (*level, *answers - earlier)
    });
    let read = VfsCall::Read;
    Measured {
        gets,
        blocks: blocks.collect(),
        filters: filters.collect(),
        reads: after.1.calls.count_of(read) - before.1.calls.count_of(read),
        read_bytes: after.1.bytes.count_of(read) - before.1.bytes.count_of(read),
        device: after.2.since(before.2),
        latencies,
    }
}
