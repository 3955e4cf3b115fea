//! Counters of work, for tests that check how the work of a call grows.
//!
//! Guarantee 17 in `docs/design/reliability.md` states that the work grows at most as n log n. The counters do not
//! depend on the machine or on timing, so tests can check exact values. Without the feature `testing`, the counters do
//! not exist and [`add`] compiles to nothing.

/// Kind of work that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WorkKind {
    /// Operations, guards, range tombstones and memtables that a commit leader examines.
    LeaderVisits,
    /// Sequence numbers of range tombstones that are copied or compared.
    SpanNumbers,
    /// Entries that merging iterators advance over.
    EntrySteps,
    /// Bytes of blocks that are read from table files and decoded.
    BlockBytes,
    /// Elements that are copied or visited while a lock is held.
    LockedVisits,
}

impl WorkKind {
    /// All kinds.
    pub const ALL: [WorkKind; 5] = [
        WorkKind::LeaderVisits,
        WorkKind::SpanNumbers,
        WorkKind::EntrySteps,
        WorkKind::BlockBytes,
        WorkKind::LockedVisits,
    ];
}

#[cfg(feature = "testing")]
static COUNTERS: [crate::sync::std_atomic::AtomicU64; WorkKind::ALL.len()] =
    [const { crate::sync::std_atomic::AtomicU64::new(0) }; WorkKind::ALL.len()];

/// Adds `count` to the counter of one kind of work. The counters belong to the process.
#[inline]
pub fn add(work: WorkKind, count: usize) {
    #[cfg(feature = "testing")]
    COUNTERS[work as usize].fetch_add(count as u64, crate::sync::Ordering::Relaxed);
    #[cfg(not(feature = "testing"))]
    let _ = (work, count);
}

/// Returns the amount of work of one kind since the start of the process.
#[cfg(feature = "testing")]
#[must_use]
pub fn total(work: WorkKind) -> u64 {
    COUNTERS[work as usize].load(crate::sync::Ordering::Relaxed)
}
