//! Decides whether the reads and writes of compactions bypass the page cache.

use lsmx_base::sync::{AtomicBool, Ordering};

use crate::vfs::os::page_cache_bytes;

/// Rule that decides whether reads and writes of compactions bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheBypassRule {
    /// Always bypass the page cache.
    Always,
    /// Never bypass the page cache.
    Never,
    /// Bypass the page cache if the files of the database have more bytes than the page cache of the system can hold.
    /// Never bypass it if that size is unknown.
    BySystemMemory,
    /// Bypass the page cache if the files of the database have more than this number of bytes.
    #[cfg_attr(not(feature = "internals"), expect(dead_code, reason = "only tests set it"))]
    ByFileBytes(u64),
}

/// Current decision whether the compactions of a database bypass the page cache.
///
/// A compaction that runs while the decision changes may use the old or the new value.
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

    /// Updates the decision for a database whose files have `file_bytes` bytes in total.
    ///
    /// If all files fit into the page cache, cached compaction inputs and outputs save reads from the device. If the
    /// files do not fit, compaction inputs and outputs would evict pages that lookups use.
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
