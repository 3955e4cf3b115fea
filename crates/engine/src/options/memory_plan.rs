//! Division of the memory budget, and the defaults without one.
//!
//! | part | share | limit |
//! | --- | --- | --- |
//! | memtables | ⅜, or `memtable_bytes_max` | hard: writes wait |
//! | buffers of jobs | ⅛ | by the size of tables: at most 1/16 of the budget each |
//! | block cache and open tables | the rest, or `block_cache_bytes` | hard: open tables have priority over data blocks |
//!
//! Guards of write batches are checked against the history of flushed writes. This history uses up to 1/16 of the
//! budget, which is taken from the share of the jobs. Operand stores and transactions use memory from the share of the
//! block cache. Each operand store is limited to half of this share, and all transactions together to a quarter.
//!
//! Flushes start at half of the memtables' share. The other half accepts writes during the flush.
//!
//! A job holds the hash of every key of its output table. Building the filter needs several times this memory. The
//! system allocator may keep freed memory for the thread. A small budget therefore limits the size of tables.

use lsmx_base::sync::Arc;

use crate::cache::{BlockCache, BlockCacheKind};
use crate::error::{Error, Result};
use crate::options::invalid_option;
use crate::options::keyspace::{KeyspaceOptions, MEMTABLE_BYTES_MIN};

/// Minimum of [`crate::Options::memory_budget`]: 4 MiB.
const MEMORY_BUDGET_MIN: u64 = 4 << 20;
/// Default of [`crate::Options::memtable_bytes_max`] without a budget, as a multiple of the memtable size of the
/// default keyspace.
const MEMTABLES_DEFAULT: u64 = 8;
/// Maximum of [`KeyspaceOptions::memtable_bytes`] of a keyspace with an operand store: 1 GiB. A store holds the
/// operands of a delivery in memory, and may address them with 32-bit offsets.
const STORE_MEMTABLE_BYTES_MAX: u64 = 1 << 30;
/// Maximum size of the history of flushed writes: 16 MiB.
const GUARD_HISTORY_BYTES_MAX: u64 = 16 << 20;
/// Divisor of the budget that gives the maximum size of the history.
const GUARD_HISTORIES_PER_BUDGET: u64 = 16;
/// Divisor of the size of the block cache that gives the maximum size of all transactions.
const TRANSACTIONS_PER_CACHE: u64 = 4;
/// Lower bound of the maximum size of all transactions: 256 KiB. It applies to budgets with a small block cache.
const TRANSACTION_BYTES_MIN: u64 = 256 << 10;
/// Maximum size of all transactions without a budget: 8 GiB.
const TRANSACTION_BYTES_DEFAULT: u64 = 8 << 30;
/// Divisor of the budget that gives the maximum size of a table.
const TABLES_PER_BUDGET: u64 = 16;

/// Default of [`crate::Options::block_cache_bytes`] without a memory budget: 64 MiB.
const BLOCK_CACHE_BYTES_DEFAULT: u64 = 64 << 20;

/// Options that determine the memory limits.
pub(crate) struct MemorySettings {
    pub(crate) memory_budget: Option<u64>,
    pub(crate) block_cache_bytes: Option<u64>,
    pub(crate) memtable_bytes_max: Option<u64>,
    /// Memtable size of the default keyspace.
    pub(crate) memtable_bytes: u64,
}

/// Memory limits of a database, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The budget, if one is set.
    pub(crate) budget_bytes: Option<u64>,
    /// Limit of all memtables together.
    pub(crate) memtable_bytes: u64,
    /// Limit of cached blocks. With a budget, open tables are included.
    pub(crate) cache_bytes: u64,
}

impl MemoryPlan {
    /// Computes the limits, without checking them.
    pub(crate) fn new(settings: &MemorySettings) -> MemoryPlan {
        let (cache, memtables) = (settings.block_cache_bytes, settings.memtable_bytes_max);
        let Some(budget) = settings.memory_budget else {
            return MemoryPlan {
                budget_bytes: None,
                memtable_bytes: memtables
                    .unwrap_or(MEMTABLES_DEFAULT.saturating_mul(settings.memtable_bytes)),
                cache_bytes: cache.unwrap_or(BLOCK_CACHE_BYTES_DEFAULT),
            };
        };
        let share = budget / 8 * 3;
        let without_jobs = budget - budget / 8;
        let memtable_bytes = memtables.unwrap_or_else(|| match cache {
            Some(cache) => without_jobs.saturating_sub(cache).min(share),
            None => share,
        });
        let cache_bytes = cache.unwrap_or_else(|| without_jobs.saturating_sub(memtable_bytes));
        MemoryPlan { budget_bytes: Some(budget), memtable_bytes, cache_bytes }
    }

    /// Returns the total size of all memtables at which the largest memtable is flushed, in bytes.
    pub(crate) fn flush_threshold(&self) -> u64 {
        self.memtable_bytes / 2
    }

    /// Returns the maximum size of the history of flushed writes.
    pub(crate) fn guard_history_bytes(&self) -> u64 {
        let share = |budget: u64| budget / GUARD_HISTORIES_PER_BUDGET;
        self.budget_bytes.map_or(GUARD_HISTORY_BYTES_MAX, share).min(GUARD_HISTORY_BYTES_MAX)
    }

    /// Returns the maximum size of all transactions together.
    pub(crate) fn transaction_bytes_max(&self) -> u64 {
        let share = self.cache_bytes / TRANSACTIONS_PER_CACHE;
        self.budget_bytes.map_or(TRANSACTION_BYTES_DEFAULT, |_| share.max(TRANSACTION_BYTES_MIN))
    }

    /// Limits the sizes of memtables and tables to the budget, and memtables whose operands are delivered to an operand
    /// store to [`STORE_MEMTABLE_BYTES_MAX`].
    ///
    /// Two memtables must fit, one that is flushed and one that accepts writes. The table size limits the memory of jobs.
    pub(crate) fn limit_sizes(&self, mut options: KeyspaceOptions) -> KeyspaceOptions {
        if let Some(budget) = self.budget_bytes {
            let memtable_bytes_max = self.flush_threshold().max(MEMTABLE_BYTES_MIN);
            options.memtable_bytes = options.memtable_bytes.min(memtable_bytes_max);
            let table_bytes_max = (budget / TABLES_PER_BUDGET).max(u64::from(options.block_bytes));
            options.table_bytes = Some(options.table_target_bytes().min(table_bytes_max));
        }
        if options.operand_store.is_some() {
            limit_store_memtable(&mut options);
        }
        options
    }

    /// Creates the block cache. With a budget it also accounts for open tables.
    pub(crate) fn new_cache(&self, kind: BlockCacheKind) -> Arc<BlockCache> {
        match self.budget_bytes {
            Some(_) => BlockCache::with_open_tables_in_budget(kind, self.cache_bytes),
            None => BlockCache::with_cache_kind(kind, self.cache_bytes),
        }
    }

    /// Checks that the parts fit into the budget.
    pub(crate) fn check(&self, settings: &MemorySettings) -> Result<()> {
        let Some(budget) = self.budget_bytes else { return Ok(()) };
        if budget < MEMORY_BUDGET_MIN {
            return Err(invalid_option("memory_budget", budget, "at least 4194304"));
        }
        let parts = [
            ("block_cache_bytes", settings.block_cache_bytes),
            ("memtable_bytes_max", settings.memtable_bytes_max),
        ];
        let given = parts.iter().filter_map(|(name, bytes)| bytes.map(|bytes| (*name, bytes)));
        let names: Vec<_> = given.map(|(name, bytes)| format!("{name} = {bytes}")).collect();
        let contradiction = |why| {
            let first = format!("memory_budget = {budget}");
            Err(Error::Contradiction { first, second: names.join(" and "), why })
        };
        if self.cache_bytes.saturating_add(self.memtable_bytes) > budget {
            return contradiction("the parts exceed the budget");
        }
        if self.memtable_bytes < 2 * MEMTABLE_BYTES_MIN {
            return contradiction("no memory is left for memtables");
        }
        Ok(())
    }
}

/// Limits the memtables of a keyspace with an operand store.
pub(crate) fn limit_store_memtable(options: &mut KeyspaceOptions) {
    options.memtable_bytes = options.memtable_bytes.min(STORE_MEMTABLE_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand_store::{
        OperandMetrics, OperandStore, OperandStoreFactory, StoreContext, StoreToken,
    };
    use crate::options::db::Options;

    const MIB: u64 = 1 << 20;

    fn checked_plan(options: Options) -> Result<MemoryPlan> {
        options.check().map(|()| options.memory_plan())
    }

    #[test]
    fn memory_plan_default_shares_fill_budget() {
        let plan = checked_plan(Options::default().memory_budget(128 * MIB)).unwrap();
        assert_eq!((plan.memtable_bytes, plan.cache_bytes), (48 * MIB, 64 * MIB));
        assert_eq!(plan.flush_threshold(), 24 * MIB);
        assert_eq!(plan.transaction_bytes_max(), 16 * MIB);
        let limited = plan.limit_sizes(KeyspaceOptions::default());
        assert_eq!((limited.memtable_bytes, limited.table_target_bytes()), (24 * MIB, 8 * MIB));
    }

    #[test]
    fn memory_plan_one_part_given_other_gets_rest() {
        let budget = || Options::default().memory_budget(128 * MIB);
        let cache = checked_plan(budget().block_cache_bytes(100 * MIB)).unwrap();
        assert_eq!((cache.memtable_bytes, cache.cache_bytes), (12 * MIB, 100 * MIB));
        let memtables = checked_plan(budget().memtable_bytes_max(80 * MIB)).unwrap();
        assert_eq!((memtables.memtable_bytes, memtables.cache_bytes), (80 * MIB, 32 * MIB));
        let small = checked_plan(budget().block_cache_bytes(MIB)).unwrap();
        assert_eq!(small.memtable_bytes, 48 * MIB);
    }

    #[test]
    fn memory_plan_parts_exceed_budget_is_error() {
        let budget = || Options::default().memory_budget(100 * MIB);
        for options in [
            budget().block_cache_bytes(101 * MIB),
            budget().block_cache_bytes(100 * MIB),
            budget().block_cache_bytes(60 * MIB).memtable_bytes_max(41 * MIB),
        ] {
            assert!(matches!(checked_plan(options), Err(Error::Contradiction { .. })));
        }
        let small = checked_plan(Options::default().memory_budget(MEMORY_BUDGET_MIN - 1));
        assert!(matches!(small, Err(Error::InvalidOption { name: "memory_budget", .. })));
    }

    #[test]
    fn memory_plan_without_budget_keeps_sizes() {
        let plan = checked_plan(Options::default()).unwrap();
        assert_eq!(plan.cache_bytes, BLOCK_CACHE_BYTES_DEFAULT);
        assert_eq!(plan.transaction_bytes_max(), TRANSACTION_BYTES_DEFAULT);
        let options = KeyspaceOptions::default();
        assert_eq!(plan.limit_sizes(options.clone()).memtable_bytes, options.memtable_bytes);
    }

    /// Regression: a store with one bucket could not be recovered after a flush with more than 4 GiB of operands.
    #[test]
    fn memory_plan_memtable_of_keyspace_with_operand_store_is_limited() {
        let plan = checked_plan(Options::default()).unwrap();
        let options = KeyspaceOptions::default().memtable_bytes(8 << 30);
        assert_eq!(plan.limit_sizes(options.clone()).memtable_bytes, 8 << 30);
        let limited = plan.limit_sizes(options.operand_store(UnusedFactory));
        assert_eq!(limited.memtable_bytes, STORE_MEMTABLE_BYTES_MAX);
    }

    /// A factory whose stores are never opened.
    #[derive(Debug)]
    struct UnusedFactory;

    impl OperandStoreFactory for UnusedFactory {
        fn name(&self) -> &str {
            "unused"
        }

        fn open(&self, _: StoreContext, _: Option<StoreToken>) -> Result<Arc<dyn OperandStore>> {
            Err(Error::Closed)
        }

        fn verify(&self, _: StoreContext, _: StoreToken) -> Result<OperandMetrics> {
            Err(Error::Closed)
        }
    }
}
