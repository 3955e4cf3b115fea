//! How one budget of memory is split, and what follows from it where nothing else was said.
//!
//! | part | share | bound |
//! | --- | --- | --- |
//! | memtables | ⅜, or `memtable_bytes_max` | hard: writes wait there |
//! | buffers of jobs | ⅛ | by the size of tables: at most 1/16 of the budget each |
//! | block cache and open tables | the rest, or `block_cache_bytes` | hard: open tables go before data |
//!
//! The history of flushed writes, for guards, takes up to 1/16 of the budget from the part of the jobs.
//!
//! What operand stores take is taken from the blocks; each is told to stay within a quarter of the last
//! part.
//!
//! Flushes begin at half of the memtables' share, so that the other half takes writes meanwhile.
//! A job has a hash for every key of the table it writes, and several times that while it builds
//! the filter; what it frees, the allocator of the system may keep for its thread. That is why
//! tables are smaller under a small budget.

use lsmx_base::sync::Arc;

use crate::cache::{BlockCache, BlockCacheKind};
use crate::error::{Error, Result};
use crate::options::db::{BLOCK_CACHE_BYTES_DEFAULT, Options};
use crate::options::keyspace::{KeyspaceOptions, MEMTABLE_BYTES_MIN};

/// Smallest [`Options::memory_budget`] that is accepted: 4 MiB.
pub const MEMORY_BUDGET_MIN: u64 = 4 << 20;
/// Default of [`Options::memtable_bytes_max`] without a budget, in memtables of the default keyspace.
pub const MEMTABLES_DEFAULT: u64 = 8;
/// Most bytes of the history of flushed writes that guards are checked against: 16 MiB.
const GUARD_HISTORY_BYTES_MAX: u64 = 16 << 20;
/// The history is at most this part of the budget.
const GUARD_HISTORIES_PER_BUDGET: u64 = 16;
/// A table is at most this part of the budget.
const TABLES_PER_BUDGET: u64 = 16;

/// Bounds in bytes, as opening uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// What was asked for, if it was.
    pub(crate) budget: Option<u64>,
    /// All memtables together.
    pub(crate) memtables: u64,
    /// Cached blocks, and with a budget open tables too.
    pub(crate) cache: u64,
}

impl MemoryPlan {
    /// What these options come to; [`MemoryPlan::check`] says whether they can.
    pub(crate) fn of(options: &Options) -> MemoryPlan {
        let (cache, memtables) = (options.block_cache_bytes, options.memtable_bytes_max);
        let Some(budget) = options.memory_budget else {
            let default =
                MEMTABLES_DEFAULT.saturating_mul(options.keyspace_defaults.memtable_bytes);
            return MemoryPlan {
                budget: None,
                memtables: memtables.unwrap_or(default),
                cache: cache.unwrap_or(BLOCK_CACHE_BYTES_DEFAULT),
            };
        };
        let share = budget / 8 * 3;
        let without_jobs = budget - budget / 8;
        let memtables = memtables.unwrap_or_else(|| match cache {
            Some(cache) => without_jobs.saturating_sub(cache).min(share),
            None => share,
        });
        let cache = cache.unwrap_or_else(|| without_jobs.saturating_sub(memtables));
        MemoryPlan { budget: Some(budget), memtables, cache }
    }

    /// Bytes of memtables past which the largest is flushed.
    pub(crate) fn flush_from(&self) -> u64 {
        self.memtables / 2
    }

    /// Bytes of the history of flushed writes.
    pub(crate) fn guard_history(&self) -> u64 {
        let part = |budget: u64| budget / GUARD_HISTORIES_PER_BUDGET;
        self.budget.map_or(GUARD_HISTORY_BYTES_MAX, part).min(GUARD_HISTORY_BYTES_MAX)
    }

    /// The options of a keyspace with its memtable within the budget: two of them fit, one that is
    /// flushed and one that takes writes. Its tables too, for the sake of the jobs that write them.
    pub(crate) fn fit(&self, mut options: KeyspaceOptions) -> KeyspaceOptions {
        if let Some(budget) = self.budget {
            let fits = self.flush_from().max(MEMTABLE_BYTES_MIN);
            options.memtable_bytes = options.memtable_bytes.min(fits);
            let table = (budget / TABLES_PER_BUDGET).max(u64::from(options.block_bytes));
            options.table_bytes = options.table_bytes.min(table);
        }
        options
    }

    /// The cache of blocks; with a budget open tables are part of it.
    pub(crate) fn cache(&self, kind: BlockCacheKind) -> Arc<BlockCache> {
        match self.budget {
            Some(_) => BlockCache::with_open_tables(kind, self.cache),
            None => BlockCache::with_kind(kind, self.cache),
        }
    }

    /// Checks that the parts fit into the whole.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::Contradiction`].
    pub(crate) fn check(&self, options: &Options) -> Result<()> {
        let Some(budget) = self.budget else { return Ok(()) };
        if budget < MEMORY_BUDGET_MIN {
            return Err(Error::InvalidOption {
                name: "memory_budget",
                value: budget.to_string(),
                must: "at least 4194304",
            });
        }
        let parts = [
            ("block_cache_bytes", options.block_cache_bytes),
            ("memtable_bytes_max", options.memtable_bytes_max),
        ];
        let given = parts.iter().filter_map(|(name, bytes)| bytes.map(|bytes| (*name, bytes)));
        let names: Vec<_> = given.map(|(name, bytes)| format!("{name} = {bytes}")).collect();
        let contradiction = |why| {
            let first = format!("memory_budget = {budget}");
            Err(Error::Contradiction { first, second: names.join(" and "), why })
        };
        if self.cache.saturating_add(self.memtables) > budget {
            return contradiction("the parts do not fit into the whole");
        }
        if self.memtables < 2 * MEMTABLE_BYTES_MIN {
            return contradiction("nothing is left for memtables");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn plan(options: Options) -> Result<MemoryPlan> {
        let plan = MemoryPlan::of(&options);
        plan.check(&options).map(|()| plan)
    }

    #[test]
    fn the_parts_are_the_whole() {
        let halves = plan(Options::default().memory_budget(128 * MIB)).unwrap();
        assert_eq!((halves.memtables, halves.cache), (48 * MIB, 64 * MIB));
        assert_eq!(halves.flush_from(), 24 * MIB);
        let fitted = halves.fit(KeyspaceOptions::default());
        assert_eq!((fitted.memtable_bytes, fitted.table_bytes), (24 * MIB, 8 * MIB));
    }

    #[test]
    fn a_part_that_is_given_leaves_the_rest_to_the_other() {
        let budget = || Options::default().memory_budget(128 * MIB);
        let cache = plan(budget().block_cache_bytes(100 * MIB)).unwrap();
        assert_eq!((cache.memtables, cache.cache), (12 * MIB, 100 * MIB));
        let memtables = plan(budget().memtable_bytes_max(80 * MIB)).unwrap();
        assert_eq!((memtables.memtables, memtables.cache), (80 * MIB, 32 * MIB));
        let small = plan(budget().block_cache_bytes(MIB)).unwrap();
        assert_eq!(small.memtables, 48 * MIB);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let budget = || Options::default().memory_budget(100 * MIB);
        for options in [
            budget().block_cache_bytes(101 * MIB),
            budget().block_cache_bytes(100 * MIB),
            budget().block_cache_bytes(60 * MIB).memtable_bytes_max(41 * MIB),
        ] {
            assert!(matches!(plan(options), Err(Error::Contradiction { .. })));
        }
        let small = Options::default().memory_budget(MEMORY_BUDGET_MIN - 1);
        assert!(matches!(plan(small), Err(Error::InvalidOption { name: "memory_budget", .. })));
    }

    #[test]
    fn without_a_budget_keyspaces_stay_as_they_are() {
        let plan = plan(Options::default()).unwrap();
        assert_eq!(plan.cache, BLOCK_CACHE_BYTES_DEFAULT);
        let options = KeyspaceOptions::default();
        assert_eq!(plan.fit(options.clone()).memtable_bytes, options.memtable_bytes);
    }
}
