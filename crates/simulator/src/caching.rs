//! What a cache that keeps the blocks asked for last has of blocks that are not asked for alike.
//!
//! A block is there if it was asked for within the last `t` lookups, where `t` is such that all blocks
//! asked for in that time just fit. Blocks that were never asked for are not there, however large the
//! cache: the first lookups in a tree that was just written find none.
//!
//! Source: Che, Tung, Wang, "Hierarchical Web Caching Systems", IEEE JSAC 20 (2002).

use crate::traffic::zipf_weight;

/// Halvings of the search for `t`.
const STEPS: usize = 60;
/// Longer than any workload, in lookups.
const FOREVER: f64 = 1e15;

/// Blocks that are asked for alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) blocks: f64,
    /// How many of them a lookup asks for, on average.
    pub(super) per_lookup: f64,
}

impl Asked {
    /// How often one of the blocks is asked for.
    fn rate(&self) -> f64 {
        if self.blocks > 0.0 { self.per_lookup / self.blocks } else { 0.0 }
    }
}

/// Blocks per lookup that a cache for so many blocks lacks, over `ops` lookups that come after `before`
/// others.
pub(super) fn missed(groups: &[Asked], cache_blocks: f64, before: f64, ops: f64) -> f64 {
    let t = time_kept(groups, cache_blocks);
    let (from, to) = (before, before + ops.max(1.0));
    let chance = |rate: f64| {
        if rate <= 0.0 {
            return 1.0;
        }
        let kept = libm::exp(-rate * t);
        if t <= from {
            return kept;
        }
        // Until the cache is full a block misses if nobody ever asked for it.
        let filling = t.min(to);
        let new = (libm::exp(-rate * from) - libm::exp(-rate * filling)) / rate;
        (new + (to - filling) * kept) / (to - from)
    };
    groups.iter().map(|group| group.per_lookup * chance(group.rate())).sum()
}

/// For how many lookups a block stays.
fn time_kept(groups: &[Asked], cache_blocks: f64) -> f64 {
    let asked_for = |t: f64| -> f64 {
        groups.iter().map(|group| group.blocks * (1.0 - libm::exp(-group.rate() * t))).sum()
    };
    let (mut low, mut high) = (0.0, FOREVER);
    if asked_for(high) <= cache_blocks {
        return high;
    }
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if asked_for(middle) < cache_blocks { low = middle } else { high = middle }
    }
    low
}

/// Blocks of which lookups ask for `per_lookup`, where keys are popular by zipf and lie scattered: those
/// with one of the most popular keys first.
pub(super) fn by_popularity(blocks: f64, keys: f64, per_lookup: f64) -> Vec<Asked> {
    let all = zipf_weight(0.0, keys);
    let (mut groups, mut left, mut ranks): (Vec<Asked>, f64, (f64, f64)) =
        (Vec::new(), blocks, (0.0, 1.0));
    while ranks.0 < keys && blocks >= 1.0 {
        let to = ranks.1.min(keys);
        let weight = per_lookup * zipf_weight(ranks.0, to) / all;
        // Some of these keys lie in blocks that have a more popular one.
        for group in &mut groups {
            group.per_lookup += weight * group.blocks / blocks;
        }
        let found = left * (1.0 - libm::exp(-(to - ranks.0) / blocks));
        groups.push(Asked { blocks: found, per_lookup: weight * left / blocks });
        left -= found;
        ranks = (to, to * 2.0);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_asked_for_alike_are_there_by_the_share_that_fits() {
        let even = [Asked { blocks: 1000.0, per_lookup: 1.0 }];
        for fitting in [0.0, 250.0, 900.0] {
            let found = missed(&even, fitting, FOREVER, 1000.0);
            assert!((found - (1.0 - fitting / 1000.0)).abs() < 1e-3, "{fitting}: {found}");
        }
        assert!(missed(&even, 1000.0, FOREVER, 1000.0) < 1e-3);
    }

    #[test]
    fn a_tree_just_written_has_no_block_in_the_cache() {
        let even = [Asked { blocks: 1000.0, per_lookup: 1.0 }];
        assert!(missed(&even, 1e9, 0.0, 1.0) > 0.99);
        // Of a thousand lookups each block's first one misses.
        let found = missed(&even, 1e9, 0.0, 1000.0);
        assert!((found - (1.0 - libm::exp(-1.0))).abs() < 1e-3, "{found}");
        assert!(missed(&even, 1e9, 1000.0, 1000.0) < found);
    }

    #[test]
    fn popular_keys_make_a_small_cache_worth_more() {
        let groups = by_popularity(1000.0, 30_000.0, 1.0);
        let (blocks, asked) = groups
            .iter()
            .fold((0.0, 0.0), |sum, group| (sum.0 + group.blocks, sum.1 + group.per_lookup));
        assert!((blocks - 1000.0).abs() < 1.0 && (asked - 1.0).abs() < 1e-6, "{blocks} {asked}");
        let found = missed(&groups, 100.0, FOREVER, 1.0);
        assert!((0.3..0.7).contains(&found), "{found}");
    }
}
