//! Whether compactions bypass the page cache.

use lsmx_base::sync::{AtomicBool, Ordering};

use crate::vfs::os::page_cache_bytes;

/// Rule for whether the data that compactions read and write bypasses the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheBypassRule {
    /// Always.
    Always,
    /// Never.
    Never,
    /// If the files of the database have more bytes than the page cache of the system can hold.
    BySystemMemory,
    /// If the files of the database have more bytes than this.
    #[cfg_attr(not(feature = "internals"), expect(dead_code, reason = "only tests set it"))]
    ByFileBytes(u64),
}

/// Whether the data that compactions read and write bypasses the page cache, for all jobs of a database.
///
/// Jobs that are running when the value changes may use either way.
#[derive(Debug)]
pub(crate) struct CacheBypass {
    rule: CacheBypassRule,
    is_on: AtomicBool,
}

impl CacheBypass {
    pub(crate) fn new(rule: CacheBypassRule) -> CacheBypass {
        CacheBypass { rule, is_on: AtomicBool::new(rule == CacheBypassRule::Always) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Applies the rule to a database whose files have `file_bytes` bytes.
    ///
    /// If the files fit into the page cache, compactions read their inputs from it, and lookups read the outputs from it.
    /// Otherwise the inputs and outputs would evict pages that lookups use.
    pub(crate) fn select(&self, file_bytes: impl FnOnce() -> u64) {
        let bytes_max = match self.rule {
            CacheBypassRule::Always | CacheBypassRule::Never => return,
            CacheBypassRule::BySystemMemory => page_cache_bytes(),
            CacheBypassRule::ByFileBytes(bytes) => Some(bytes),
        };
        let bypasses = bytes_max.is_some_and(|bytes_max| file_bytes() > bytes_max);
        self.is_on.store(bypasses, Ordering::Relaxed);
    }
}
