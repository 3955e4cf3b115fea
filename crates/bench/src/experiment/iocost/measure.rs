//! Measures point lookups with one cache size.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx::metrics::{BlockKind, FilterCounts};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers::ratio;
use crate::peers::lsmx::{Lsmx, engine_error};
use crate::process;
use crate::workload::random::Random;

use super::keys::LookupKeys;
use super::result::{CacheSizePoint, LevelFilterChecks};

/// Number of measured lookups divided by the number of lookups of a warm-up round. A round has at least [`ROUND_MIN`]
/// lookups.
const ROUNDS_PER_GETS: u64 = 4;
const ROUND_MIN: u64 = 2_000;
const ROUNDS_MAX: u64 = 200;
/// The warm-up ends when a round changes the metadata bytes in the cache by a fraction of at most `1 / STEADY`.
const STEADY: u64 = 1_000;

struct MeasuredLookups {
    gets: u64,
    /// Cache hits and misses by kind of block.
    blocks: BTreeMap<BlockKind, (u64, u64)>,
    /// Filter checks by level.
    filters: BTreeMap<u8, FilterCounts>,
    reads: u64,
    read_bytes: u64,
    /// Number of device reads and number of bytes read from the device.
    device: [Option<u64>; 2],
    latencies: Latencies,
}

/// Returns the number of reads that the device completed, and the bytes that this process read from the device. Both
/// numbers are `None` if the system does not report them, or if the file system has no device.
fn read_device_counters(path: &Path) -> [Option<u64>; 2] {
    let reads = process::device_read_count(path);
    [reads, reads.and_then(|_| process::process_storage_read_bytes())]
}

/// A database opened for reading, its directory, and the keys to look up.
#[derive(Clone, Copy)]
pub(super) struct LookupTarget<'a> {
    pub(super) engine: &'a Lsmx,
    pub(super) path: &'a Path,
    pub(super) keys: &'a LookupKeys,
}

/// Warms up the cache, then looks up `gets` present keys and `gets` absent keys. The caller sets the cache size in the
/// result.
pub(super) fn measure_point(
    target: LookupTarget<'_>,
    gets: u64,
    random: &mut Random,
    title: &str,
    progress: &mut dyn Progress,
) -> Result<CacheSizePoint> {
    progress.begin_phase(title, 0);
    let warm_up_gets = warm_up_cache(target, gets, random)?;
    let present = look_up_keys(target, true, gets, random)?;
    let absent = look_up_keys(target, false, gets, random)?;
    progress.end_phase();
    let touched = || present.blocks.iter().filter(|(_, (hits, misses))| hits + misses > 0);
    let (hits, misses) = touched().fold((0, 0), |all, (_, it)| (all.0 + it.0, all.1 + it.1));
    let resident = target.engine.db.read_metrics().cache;
    let filters: FilterCounts = absent.filters.values().copied().sum();
    let filter_by_level = absent.filters.iter().map(|(&level, answers)| LevelFilterChecks {
        level,
        negatives: answers.negatives,
        false_positives: answers.false_positives,
        false_positive_rate: answers.false_positive_rate(),
    });
    Ok(CacheSizePoint {
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
        device_reads_per_get: present.device[0].map(|reads| ratio(reads, present.gets)),
        device_read_bytes_per_get: present.device[1].map(|bytes| ratio(bytes, present.gets)),
        ios_per_absent_get: absent.ios_per_get(),
        physical_reads_per_absent_get: ratio(absent.reads, absent.gets),
        device_reads_per_absent_get: absent.device[0].map(|reads| ratio(reads, absent.gets)),
        filter_false_positive_rate: filters.false_positive_rate(),
        filter_negatives: filters.negatives,
        filter_false_positives: filters.false_positives,
        filter_by_level: filter_by_level.collect(),
        get_latency_us: present.latencies.summary(),
        absent_get_latency_us: absent.latencies.summary(),
    })
}

impl MeasuredLookups {
    fn ios_per_get(&self) -> f64 {
        ratio(self.blocks.values().map(|(_, misses)| misses).sum(), self.gets)
    }
}

/// Looks up present keys until the metadata bytes in the cache are steady. Returns the number of lookups.
fn warm_up_cache(target: LookupTarget<'_>, gets: u64, random: &mut Random) -> Result<u64> {
    let round = (gets / ROUNDS_PER_GETS).max(ROUND_MIN);
    let metadata = || {
        let cache = target.engine.db.read_metrics().cache;
        let kinds = cache.iter().filter(|(kind, _)| **kind != BlockKind::Data);
        kinds.map(|(_, cache)| cache.resident_bytes).sum::<u64>()
    };
    let (mut before, mut done) = (metadata(), 0);
    for _ in 0..ROUNDS_MAX {
        look_up_keys(target, true, round, random)?;
        done += round;
        let now = metadata();
        if now.abs_diff(before) <= before / STEADY {
            break;
        }
        before = now;
    }
    Ok(done)
}

fn look_up_keys(
    LookupTarget { engine, path, keys }: LookupTarget<'_>,
    is_present: bool,
    gets: u64,
    random: &mut Random,
) -> Result<MeasuredLookups> {
    let counters = || (engine.db.read_metrics(), engine.file_reads(), read_device_counters(path));
    let before = counters();
    let mut latencies = Latencies::new();
    let mut key = Vec::new();
    for _ in 0..gets {
        if is_present {
            keys.write_present(random, &mut key);
        } else {
            keys.write_absent(random, &mut key);
        }
        let watch = Stopwatch::start();
        let found = engine.keyspace.get(&key);
        latencies.record_ns(watch.elapsed_ns());
        if found.map_err(engine_error("get"))?.is_some() != is_present {
            let (found, must) =
                if is_present { ("absent", "present") } else { ("present", "absent") };
            return Err(Error::wrong_answer(&key, found, must));
        }
    }
    let after = counters();
    let blocks = after.0.cache.iter().map(|(kind, cache)| {
        let earlier = before.0.cache.get(kind).copied().unwrap_or_default();
        (*kind, (cache.hits - earlier.hits, cache.misses - earlier.misses))
    });
    let filters = after.0.filter_by_level.iter().map(|(level, answers)| {
        let earlier = before.0.filter_by_level.get(level).copied().unwrap_or_default();
        (*level, *answers - earlier)
    });
    Ok(MeasuredLookups {
        gets,
        blocks: blocks.collect(),
        filters: filters.collect(),
        reads: after.1.0 - before.1.0,
        read_bytes: after.1.1 - before.1.1,
        device: [0, 1].map(|at| Some(after.2[at]?.saturating_sub(before.2[at]?))),
        latencies,
    })
}
