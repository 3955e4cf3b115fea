//! Counters of work for tests of guarantee 17: the work of a call grows at most as n log n.
//!
//! A counter does not depend on the machine or on timing, so a test can assert its growth. Without the
//! feature `sabotage` the counters do not exist and `add` compiles to nothing.

/// A kind of work that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Work {
    /// Operations, guards, range tombstones and memtables that a commit leader examines.
    LeaderVisits,
    /// Sequence numbers of range tombstones that are copied or compared.
    SpanNumbers,
    /// Entries that a merging cursor steps over.
    EntrySteps,
    /// Bytes of blocks that are read from table files and decoded.
    BlockBytes,
    /// Elements that are copied or visited while a lock is held.
    LockedVisits,
}

impl Work {
    /// All kinds.
    pub const ALL: [Work; 5] = [
        Work::LeaderVisits,
        Work::SpanNumbers,
        Work::EntrySteps,
        Work::BlockBytes,
        Work::LockedVisits,
    ];
}

#[cfg(feature = "testing")]
static COUNTERS: [crate::sync::statics::AtomicU64; Work::ALL.len()] =
    [const { crate::sync::statics::AtomicU64::new(0) }; Work::ALL.len()];

/// Counts work of the whole process.
#[inline]
pub fn add(work: Work, count: usize) {
    #[cfg(feature = "testing")]
    COUNTERS[work as usize].fetch_add(count as u64, crate::sync::Ordering::Relaxed);
    #[cfg(not(feature = "testing"))]
    let _ = (work, count);
}

/// Returns the work counted since the process started.
#[cfg(feature = "testing")]
#[must_use]
pub fn counted(work: Work) -> u64 {
    COUNTERS[work as usize].load(crate::sync::Ordering::Relaxed)
}
