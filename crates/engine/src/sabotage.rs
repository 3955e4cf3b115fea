//! Deliberate bugs, one at a time by name, that the tests must find: the tests are tested.
//!
//! Without the feature `sabotage` every question is answered `false` at compile time.

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A deliberate bug; each stands for a class of real ones.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Bug] = &[$(Bug::$name,)*];

            /// Its name, such as `wal-sync-skipped`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => $text,)* }
            }
        }
    };
}

bugs! {
    /// A `Sync` commit is acknowledged without a sync.
    WalSyncSkipped = "wal-sync-skipped",
    /// A leader syncs when it asked for it itself, and forgets what its followers asked for.
    FollowerSyncForgotten = "follower-sync-forgotten",
    /// A commit is published while one before it is not inserted yet.
    PublishedEarly = "published-early",
    /// Only the newest segment is synced, older unsynced ones are forgotten.
    WalOlderSegmentUnsynced = "wal-older-segment-unsynced",
    /// The directory of a new file is not synced.
    DirectoryNotSynced = "directory-not-synced",
    /// A flush's edit is written before the table is synced.
    EditBeforeTableSync = "edit-before-table-sync",
    /// The WAL is not synced before the edit of a flush.
    FlushWithoutWalSync = "flush-without-wal-sync",
    /// Inputs of a job are deleted before the edit is durable.
    InputsDeletedEarly = "inputs-deleted-early",
    /// A `Buffered` commit is acknowledged while only memory holds it.
    BufferedNotLogged = "buffered-not-logged",
    /// Replay takes the furthest flush of any keyspace for that of all.
    ReplaySkipsUnflushed = "replay-skips-unflushed",
    /// Replay passes over range deletes.
    ReplaySkipsRangeDeletes = "replay-skips-range-deletes",
    /// A failed WAL append is swallowed.
    AppendErrorSwallowed = "append-error-swallowed",
    /// A failed sync is tried again and believed.
    SyncRetried = "sync-retried",
    /// Damage in the middle of the WAL is taken for a torn tail.
    WalDamageIsTail = "wal-damage-is-tail",
    /// A read error is answered as "not found".
    ReadErrorIsNotFound = "read-error-is-not-found",
    /// A tombstone is dropped while an older version lives below.
    TombstoneDroppedEarly = "tombstone-dropped-early",
    /// A version that a snapshot needs is dropped.
    SnapshotVersionDropped = "snapshot-version-dropped",
    /// A job folds merge operands together that a snapshot stands between.
    OperandsFoldedOverSnapshot = "operands-folded-over-snapshot",
    /// A job folds merge operands without the value that they change.
    BaseForgottenByJob = "base-forgotten-by-job",
    /// A value folded in a memtable lacks the operand that it stands beside.
    FoldedValueStale = "folded-value-stale",
    /// A key that was read is written back whoever has written it meanwhile.
    UpdateWithoutGuard = "update-without-guard",
    /// A batch is applied in parts.
    BatchTorn = "batch-torn",
    /// Sequence numbers start again where they were before a crash, not after a gap.
    SeqReused = "seq-reused",
    /// Checksums do not cover where a block lies.
    ChecksumWithoutPlace = "checksum-without-place",
    /// The filter misses the last key of a table.
    FilterMissesKey = "filter-misses-key",
    /// Any error while looking for the database is taken for "there is none".
    OpenErrorIsNew = "open-error-is-new",
    /// The read-only state does not go away on `resume()`.
    ReadOnlySticks = "read-only-sticks",
    /// New tables are deleted though a failed manifest edit may name them.
    DoubtForgotten = "doubt-forgotten",
    /// File numbers start again where they were before a crash.
    FileNumberReused = "file-number-reused",
    /// The WAL is not synced before the edit that makes a keyspace or changes its options.
    EditWithoutWalSync = "edit-without-wal-sync",
    /// The log that a checkpoint copies is not synced.
    CheckpointUnsynced = "checkpoint-unsynced",
    /// The id of a dropped keyspace is given again.
    KeyspaceIdReused = "keyspace-id-reused",
    /// A torn tail of the WAL is taken for damage.
    TornTailRefused = "torn-tail-refused",
    /// WAL segments are deleted before the manifest names a younger one as the oldest.
    SegmentDeletedEarly = "segment-deleted-early",
    /// A lookup asks for range deletes only where the filter lets the key pass.
    SpanBehindFilter = "span-behind-filter",
    /// An iterator heeds range deletes that are newer than its snapshot.
    SpanIgnoresSnapshot = "span-ignores-snapshot",
    /// Where a job ends a table, the rest of the range delete at hand is lost.
    SpanLostAtCut = "span-lost-at-cut",
    /// What of a range delete lies past the end of a part of a job is lost.
    SpanLostAtPart = "span-lost-at-part",
    /// The first entry of a part of a job is lost.
    KeyLostAtPart = "key-lost-at-part",
    /// A job drops a range delete while an older run holds what it deletes.
    SpanDroppedEarly = "span-dropped-early",
    /// A put or a delete reaches the tree, and the operand store is not told.
    AnchorForgotten = "anchor-forgotten",
    /// The edit of a flush does not say what the operand store has prepared.
    TokenNotCommitted = "token-not-committed",
    /// Files are dropped because of a range delete though a snapshot looks past it.
    CoveredFileDroppedEarly = "covered-file-dropped-early",
    /// A table that points to values is made durable before the values are.
    PointerBeforeBytes = "pointer-before-bytes",
    /// A blob file is deleted when one of the tables that point to it goes, though others do as well.
    LiveBlobDeleted = "live-blob-deleted",
}

#[cfg(feature = "sabotage")]
static ARMED: crate::sync::AtomicU8 = crate::sync::AtomicU8::new(u8::MAX);

/// Whether this bug is switched on.
#[inline]
#[must_use]
pub fn on(bug: Bug) -> bool {
    #[cfg(feature = "sabotage")]
    return ARMED.load(crate::sync::Ordering::Relaxed) == bug as u8;
    #[cfg(not(feature = "sabotage"))]
    {
        let _ = bug;
        false
    }
}

/// Switches one bug on for the whole process, or all off.
#[cfg(feature = "sabotage")]
pub fn arm(bug: Option<Bug>) {
    ARMED.store(bug.map_or(u8::MAX, |bug| bug as u8), crate::sync::Ordering::Relaxed);
}
