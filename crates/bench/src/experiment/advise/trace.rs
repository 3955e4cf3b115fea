//! Converts a trace to phases that approximate the trace. Unlike a trace, phases can be simulated and scaled.
//!
//! The trace is divided into sections with equal numbers of operations. Each section becomes a phase with its own mix
//! of operations. The preceding writes determine whether a put is an insert or an update, and whether a lookup finds
//! its key. If the inserts are in ascending key order, the key distribution is sequential. Otherwise the share of
//! accesses to the most popular 1 % of the keys decides between the uniform and the Zipf distribution.

use std::collections::HashMap;

use lsmx::workload_trace::TraceEvent;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Result;
use crate::numbers::{ratio, round_to_u64, to_f64, to_u64};
use crate::workload::KeyDistribution;
use crate::workload::phases::{LookupGroup, Phase};
use crate::workload::trace::TraceFile;

/// Number of sections into which a trace is divided.
const STRETCHES: u64 = 8;
/// The sequential distribution is used if at least this share of inserts has a key larger than all earlier keys.
const ASCENDING_MIN: f64 = 0.9;
/// Minimum mean number of accesses per key for the zipf distribution. A trace with fewer accesses counts as uniform.
const ACCESSES_PER_KEY_MIN: f64 = 0.1;

/// Phases that approximate a trace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TraceApproximation {
    pub(super) phases: Vec<Phase>,
    /// Mean key length of puts in bytes.
    pub(super) key_bytes: u64,
    /// Mean value length of puts in bytes.
    pub(super) value_bytes: u64,
}

/// Reads a trace and returns phases that approximate the trace.
pub(super) fn approximate_trace(trace: &TraceFile) -> Result<TraceApproximation> {
    let mut seen = TraceStatistics::new(trace.counts().ops().div_ceil(STRETCHES).max(1));
    trace.visit_items(&mut |item| {
        seen.count_event(&item.event);
        Ok(())
    })?;
    Ok(seen.into_approximation())
}

/// Operations of one section of the trace.
#[derive(Clone, Debug, Default)]
struct SectionCounts {
    phase: Option<Phase>,
    gets: u64,
    absent: u64,
    /// Sum of the selectivities of all scans.
    selectivity: f64,
}

#[derive(Default)]
struct TraceStatistics {
    stretch_ops: u64,
    stretches: Vec<SectionCounts>,
    ops: u64,
    /// Maps the hash of each key to two values: whether the key is present, and the number of accesses since the
    /// insert.
    keys: HashMap<u64, (bool, u64)>,
    live: u64,
    /// Largest key that was inserted.
    largest: Vec<u8>,
    inserts: u64,
    ascending: u64,
    puts: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl TraceStatistics {
    fn new(stretch_ops: u64) -> TraceStatistics {
        TraceStatistics { stretch_ops, ..TraceStatistics::default() }
    }

    /// Counts an access to the key. Returns whether the key is present.
    fn count_access(&mut self, keyspace: u32, key: &[u8]) -> bool {
        let entry = self.keys.entry(hash_key(keyspace, key)).or_default();
        entry.1 += u64::from(entry.0);
        entry.0
    }

    /// Marks the key as present. Returns whether the key was present before.
    fn count_write(&mut self, keyspace: u32, key: &[u8]) -> bool {
        let was = self.count_access(keyspace, key);
        if !was {
            self.keys.insert(hash_key(keyspace, key), (true, 0));
            self.live += 1;
            self.inserts += 1;
            if key > self.largest.as_slice() {
                self.ascending += 1;
                self.largest = key.to_vec();
            }
        }
        was
    }

    fn count_event(&mut self, what: &TraceEvent<'_>) {
        if !what.is_operation() {
            return;
        }
        if self.ops.is_multiple_of(self.stretch_ops) {
            self.stretches.push(SectionCounts::default());
        }
        self.ops += 1;
        let name = format!("stretch {}", self.stretches.len());
        let mut stretch = self.stretches.pop().unwrap_or_default();
        let mut phase =
            stretch.phase.take().unwrap_or_else(|| Phase::new(name, KeyDistribution::Uniform));
        match *what {
            TraceEvent::Put { keyspace, key, value } => {
                self.puts += 1;
                self.key_bytes += to_u64(key.len());
                self.value_bytes += value.bytes;
                let was = self.count_write(keyspace, key);
                *(if was { &mut phase.updates } else { &mut phase.inserts }) += 1;
            }
            TraceEvent::Merge { keyspace, key, .. } => {
                let was = self.count_write(keyspace, key);
                *(if was { &mut phase.merges } else { &mut phase.inserts }) += 1;
            }
            TraceEvent::Delete { keyspace, key } => {
                // A delete of an absent key also writes a tombstone.
                phase.deletes += 1;
                if self.count_access(keyspace, key) {
                    self.live -= 1;
                    self.keys.insert(hash_key(keyspace, key), (false, 0));
                }
            }
            TraceEvent::DeleteRange { .. } => phase.range_deletes += 1,
            TraceEvent::Get { keyspace, key, .. } => {
                stretch.gets += 1;
                stretch.absent += u64::from(!self.count_access(keyspace, key));
            }
            TraceEvent::Scan { entries, .. } => {
                phase.ranges += 1;
                stretch.selectivity += ratio(entries, self.live.max(1)).min(1.0);
            }
            _ => {}
        }
        stretch.phase = Some(phase);
        self.stretches.push(stretch);
    }

    fn into_approximation(self) -> TraceApproximation {
        let distribution = self.estimate_distribution();
        let (puts, key_bytes, value_bytes) = (self.puts.max(1), self.key_bytes, self.value_bytes);
        let mut phases: Vec<Phase> = Vec::new();
        let (mut inserted, mut deleted) = (0, 0);
        for stretch in self.stretches {
            let Some(mut phase) = stretch.phase else { continue };
            phase.distribution = distribution;
            if stretch.gets > 0 {
                let alpha = ratio(stretch.absent, stretch.gets);
                phase.lookups = vec![LookupGroup { alpha, ops: stretch.gets }];
            }
            if phase.ranges > 0 {
                phase.selectivity = stretch.selectivity / to_f64(phase.ranges);
            }
            inserted += phase.inserts;
            // A simulated workload cannot delete its last key.
            phase.deletes = phase.deletes.min(inserted.saturating_sub(deleted + 1));
            deleted += phase.deletes;
            if inserted > 0 && phase.operation_count() > 0 {
                phases.push(phase);
            }
        }
        if let Some(last) = phases.last_mut() {
            last.settle = true;
        }
        TraceApproximation {
            phases,
            key_bytes: round_to_u64(ratio(key_bytes, puts)).max(1),
            value_bytes: round_to_u64(ratio(value_bytes, puts)),
        }
    }

    fn estimate_distribution(&self) -> KeyDistribution {
        if self.inserts > 1 && ratio(self.ascending, self.inserts) >= ASCENDING_MIN {
            return KeyDistribution::Sequential;
        }
        let mut accesses: Vec<u64> = self.keys.values().map(|(_, accesses)| *accesses).collect();
        let all: u64 = accesses.iter().sum();
        if ratio(all, to_u64(accesses.len()).max(1)) < ACCESSES_PER_KEY_MIN {
            return KeyDistribution::Uniform;
        }
        accesses.sort_unstable_by(|a, b| b.cmp(a));
        let keys = to_u64(accesses.len());
        let popular = (keys / 100).max(1);
        let taken = accesses.iter().take(accesses.len().div_ceil(100)).sum::<u64>();
        // The Zipf distribution is chosen if the share is closer to the share that it predicts than to 0.05, which is
        // an upper bound for the uniform distribution.
        let zipf = harmonic_number(popular) / harmonic_number(keys);
        let uniform = 0.05;
        if ratio(taken, all) > f64::midpoint(zipf, uniform) {
            KeyDistribution::Zipf
        } else {
            KeyDistribution::Uniform
        }
    }
}

/// Approximates the harmonic number of `n`.
fn harmonic_number(n: u64) -> f64 {
    libm::log(to_f64(n.max(1))) + 0.577
}

fn hash_key(keyspace: u32, key: &[u8]) -> u64 {
    xxh3_64(key) ^ u64::from(keyspace).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::floor_to_u64;
    use lsmx::workload_trace::TraceValue;

    fn put(seen: &mut TraceStatistics, key: u64) {
        let value = TraceValue { bytes: 100, content: None };
        seen.count_event(&TraceEvent::Put { keyspace: 0, key: &key.to_be_bytes(), value });
    }

    fn get(seen: &mut TraceStatistics, key: u64) {
        seen.count_event(&TraceEvent::Get { keyspace: 0, key: &key.to_be_bytes(), found: None });
    }

    #[test]
    fn trace_put_of_present_key_is_update() {
        let mut seen = TraceStatistics::new(6);
        for key in [5, 3, 9, 5] {
            put(&mut seen, key);
        }
        seen.count_event(&TraceEvent::Delete { keyspace: 0, key: &9u64.to_be_bytes() });
        get(&mut seen, 3);
        // The second section starts here.
        get(&mut seen, 9);
        get(&mut seen, 3);
        seen.count_event(&TraceEvent::Scan {
            keyspace: 0,
            backward: false,
            start: None,
            entries: 1,
        });
        let likeness = seen.into_approximation();
        assert_eq!((likeness.key_bytes, likeness.value_bytes), (8, 100));
        let [first, second] = &likeness.phases[..] else { panic!("{likeness:?}") };
        assert_eq!((first.inserts, first.updates, first.deletes), (3, 1, 1));
        assert_eq!(first.lookups, [LookupGroup { alpha: 0.0, ops: 1 }]);
        assert_eq!(second.lookups, [LookupGroup { alpha: 0.5, ops: 2 }]);
        assert_eq!(second.ranges, 1);
        assert!((second.selectivity - 0.5).abs() < 1e-9 && second.settle && !first.settle);
    }

    #[test]
    fn trace_accesses_determine_key_distribution() {
        let scattered = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let seen = |choose: fn(u64) -> u64, scatter: bool| {
            let mut seen = TraceStatistics::new(u64::MAX);
            for key in 0..1000 {
                put(&mut seen, if scatter { scattered(key) } else { key });
            }
            for at in 0..20_000 {
                get(&mut seen, scattered(choose(at)));
            }
            seen.estimate_distribution()
        };
        assert_eq!(seen(|at| at % 1000, false), KeyDistribution::Sequential);
        assert_eq!(seen(|at| at % 1000, true), KeyDistribution::Uniform);
        // The probability of key k is proportional to 1 ÷ k.
        let zipf = |at: u64| {
            let uniform = to_f64(at % 997) / 997.0;
            floor_to_u64(libm::pow(1000.0, uniform)).min(999)
        };
        assert_eq!(seen(zipf, true), KeyDistribution::Zipf);
    }
}
