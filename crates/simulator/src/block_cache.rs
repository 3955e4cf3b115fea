//! Expected misses of an LRU block cache whose blocks have different popularity.
//!
//! The model is Che's approximation. A block is cached if it was requested within the last `t` lookups. The
//! characteristic time `t` is chosen such that the cache can just hold all blocks that are requested in `t` lookups.
//! The first request of a block always misses, however large the cache is. Therefore the first lookups in a new tree
//! always miss.
//!
//! Source: Che, Tung, Wang, "Hierarchical Web Caching Systems", IEEE JSAC 20 (2002).

use crate::math::zipf_weight;

/// Steps of the binary search for the characteristic time.
const SEARCH_STEPS: usize = 60;
/// Upper bound of the characteristic time, in lookups. No workload has as many lookups.
const LOOKUPS_MAX: f64 = 1e15;

/// A group of equally popular blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EquallyPopularBlocks {
    /// Number of blocks.
    pub(crate) blocks: f64,
    /// Average number of blocks of the group that one lookup requests.
    pub(crate) requests_per_lookup: f64,
}

impl EquallyPopularBlocks {
    /// Returns the requests per lookup for a single block.
    fn request_rate(&self) -> f64 {
        if self.blocks > 0.0 { self.requests_per_lookup / self.blocks } else { 0.0 }
    }
}

/// Returns the expected misses per lookup. The average is over `lookups` lookups that follow `lookups_before` earlier
/// lookups.
///
/// `cache_blocks` is the capacity of the cache in blocks.
pub(crate) fn expected_misses(
    groups: &[EquallyPopularBlocks],
    cache_blocks: f64,
    lookups_before: f64,
    lookups: f64,
) -> f64 {
    let t = characteristic_time(groups, cache_blocks);
    let (from, to) = (lookups_before, lookups_before + lookups.max(1.0));
    let miss_probability = |rate: f64| {
        if rate <= 0.0 {
            return 1.0;
        }
        let evicted = libm::exp(-rate * t);
        if t <= from {
            return evicted;
        }
        // Until the cache is full, only the first request of each block misses.
        let filling = t.min(to);
        let first = (libm::exp(-rate * from) - libm::exp(-rate * filling)) / rate;
        (first + (to - filling) * evicted) / (to - from)
    };
    groups
        .iter()
        .map(|group| group.requests_per_lookup * miss_probability(group.request_rate()))
        .sum()
}

/// Returns the number of lookups for which an unused block stays in the cache.
fn characteristic_time(groups: &[EquallyPopularBlocks], cache_blocks: f64) -> f64 {
    let distinct_blocks = |t: f64| -> f64 {
        groups.iter().map(|it| it.blocks * (1.0 - libm::exp(-it.request_rate() * t))).sum()
    };
    let (mut low, mut high) = (0.0, LOOKUPS_MAX);
    if distinct_blocks(high) <= cache_blocks {
        return high;
    }
    for _ in 0..SEARCH_STEPS {
        let middle = f64::midpoint(low, high);
        if distinct_blocks(middle) < cache_blocks { low = middle } else { high = middle }
    }
    low
}

/// Groups the blocks of a run by the most popular key in each block, most popular group first.
///
/// Key popularity follows a zipf distribution with this exponent. Popular keys are scattered over the blocks.
/// `requests_per_lookup` is the number of blocks of the run that one lookup requests.
pub(crate) fn group_by_popularity(
    exponent: f64,
    blocks: f64,
    keys: f64,
    requests_per_lookup: f64,
) -> Vec<EquallyPopularBlocks> {
    let all = zipf_weight(exponent, 0.0, keys);
    let mut groups: Vec<EquallyPopularBlocks> = Vec::new();
    let mut blocks_left = blocks;
    let mut ranks: (f64, f64) = (0.0, 1.0);
    while ranks.0 < keys && blocks >= 1.0 {
        let to = ranks.1.min(keys);
        let requests = requests_per_lookup * zipf_weight(exponent, ranks.0, to) / all;
        // A block that also contains a more popular key belongs to an earlier group. That group gets a part of the
        // requests.
        for group in &mut groups {
            group.requests_per_lookup += requests * group.blocks / blocks;
        }
        let new_blocks = blocks_left * (1.0 - libm::exp(-(to - ranks.0) / blocks));
        groups.push(EquallyPopularBlocks {
            blocks: new_blocks,
            requests_per_lookup: requests * blocks_left / blocks,
        });
        blocks_left -= new_blocks;
        ranks = (to, to * 2.0);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_misses_of_even_blocks_is_the_share_that_does_not_fit() {
        let even = [EquallyPopularBlocks { blocks: 1000.0, requests_per_lookup: 1.0 }];
        for fitting in [0.0, 250.0, 900.0] {
            let found = expected_misses(&even, fitting, LOOKUPS_MAX, 1000.0);
            assert!((found - (1.0 - fitting / 1000.0)).abs() < 1e-3, "{fitting}: {found}");
        }
        assert!(expected_misses(&even, 1000.0, LOOKUPS_MAX, 1000.0) < 1e-3);
    }

    #[test]
    fn expected_misses_of_cold_cache_counts_first_requests() {
        let even = [EquallyPopularBlocks { blocks: 1000.0, requests_per_lookup: 1.0 }];
        assert!(expected_misses(&even, 1e9, 0.0, 1.0) > 0.99);
        // In the first thousand lookups, each block misses once.
        let found = expected_misses(&even, 1e9, 0.0, 1000.0);
        assert!((found - (1.0 - libm::exp(-1.0))).abs() < 1e-3, "{found}");
        assert!(expected_misses(&even, 1e9, 1000.0, 1000.0) < found);
    }

    #[test]
    fn expected_misses_of_popular_keys_is_low_in_a_small_cache() {
        let groups = group_by_popularity(0.99, 1000.0, 30_000.0, 1.0);
        let blocks: f64 = groups.iter().map(|group| group.blocks).sum();
        let requests: f64 = groups.iter().map(|group| group.requests_per_lookup).sum();
        assert!((blocks - 1000.0).abs() < 1.0, "{blocks}");
        assert!((requests - 1.0).abs() < 1e-6, "{requests}");
        let found = expected_misses(&groups, 100.0, LOOKUPS_MAX, 1.0);
        assert!((0.3..0.7).contains(&found), "{found}");
    }
}
