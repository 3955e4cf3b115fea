//! Deliberate bugs, which tests switch on to check that other tests find them.
//!
//! At most one failpoint is enabled at a time. Each failpoint belongs to a class of bugs that occurred in real systems.
//! `docs/results/reliability.md` lists these classes by number. For each failpoint, the page states which check found
//! it.
//!
//! Without the feature `testing`, [`is_on`] is `false` at compile time.

macro_rules! failpoints {
    ($($(#[$doc:meta])* $name:ident = $text:literal of $class:literal,)*) => {
        /// A deliberate bug. The comment of each variant states the wrong behavior.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Failpoint {
            $($(#[$doc])* $name,)*
        }

        impl Failpoint {
            /// All failpoints.
            pub const ALL: &'static [Failpoint] = &[$(Failpoint::$name,)*];

            /// Returns the name, such as `wal-sync-skipped`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Failpoint::$name => $text,)* }
            }

            /// Returns the failpoint with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Failpoint> {
                Failpoint::ALL.iter().copied().find(|failpoint| failpoint.name() == name)
            }

            /// Returns the number of the class of bugs to which the failpoint belongs.
            #[must_use]
            pub fn bug_class(self) -> u8 {
                match self { $(Failpoint::$name => $class,)* }
            }
        }
    };
}

failpoints! {
    /// A commit with durability `Sync` is acknowledged without a sync of the WAL.
    WalSyncSkipped = "wal-sync-skipped" of 2,
    /// A commit leader ignores a follower's request for a sync. It syncs only if its own commit requests a sync.
    FollowerSyncForgotten = "follower-sync-forgotten" of 2,
    /// A commit is published before an earlier commit is inserted into the memtable.
    CommitPublishedEarly = "commit-published-early" of 35,
    /// A sync covers only the newest WAL segment. Older unsynced segments stay unsynced.
    WalOlderSegmentUnsynced = "wal-older-segment-unsynced" of 4,
    /// The directory of a new file is not synced.
    DirectoryNotSynced = "directory-not-synced" of 3,
    /// The manifest edit of a flush is written before the table is synced.
    EditBeforeTableSync = "edit-before-table-sync" of 5,
    /// The WAL is not synced before the manifest edit of a flush.
    FlushWithoutWalSync = "flush-without-wal-sync" of 13,
    /// The inputs of a job are deleted before its manifest edit is durable.
    InputsDeletedEarly = "inputs-deleted-early" of 6,
    /// A commit with durability `Buffered` is acknowledged without a write to the WAL.
    BufferedNotLogged = "buffered-not-logged" of 2,
    /// WAL replay uses the newest flush position of all keyspaces for every keyspace.
    ReplaySkipsUnflushed = "replay-skips-unflushed" of 13,
    /// Replay skips range deletes.
    ReplaySkipsRangeDeletes = "replay-skips-range-deletes" of 20,
    /// A failed WAL append is treated as successful.
    AppendErrorIgnored = "append-error-ignored" of 14,
    /// A failed sync is repeated, and the success of the repetition is trusted.
    SyncRetried = "sync-retried" of 1,
    /// Damage in the middle of the WAL is treated as a torn tail.
    WalDamageTreatedAsTail = "wal-damage-treated-as-tail" of 9,
    /// A lookup returns "not found" after a read error.
    ReadErrorIsNotFound = "read-error-is-not-found" of 16,
    /// A compaction drops a tombstone while an older run contains the key.
    TombstoneDroppedEarly = "tombstone-dropped-early" of 18,
    /// With delete persistence, a job drops a tombstone below a newer put, although an older run contains the key.
    CoveredTombstoneDropped = "covered-tombstone-dropped" of 46,
    /// With delete persistence, WAL segments with old commits are kept until they are full.
    LogNotEmptied = "log-not-emptied" of 46,
    /// With delete persistence, garbage in blob files is kept until its share is large.
    GarbageAgeIgnored = "garbage-age-ignored" of 46,
    /// With delete persistence, operand stores keep deleted operands until the bucket is full.
    VoidOperandsKept = "void-operands-kept" of 46,
    /// With delete persistence, the log of an operand store is kept until it is full.
    StoreLogNotReplaced = "store-log-not-replaced" of 46,
    /// The filter of a table lacks the prefix of a tombstone, so that scans skip the tombstone.
    PrefixOfTombstoneOmitted = "prefix-of-tombstone-omitted" of 21,
    /// A compaction drops a version that a snapshot needs.
    SnapshotVersionDropped = "snapshot-version-dropped" of 22,
    /// A compaction filter removes and changes values that snapshots see.
    FilterIgnoresSnapshots = "filter-ignores-snapshots" of 22,
    /// A value that a compaction filter removes leaves no tombstone, although an older run contains the key.
    FilterUncoversOlderVersion = "filter-uncovers-older-version" of 18,
    /// A value is removed if the compaction filter fails.
    FilterErrorRemovesValue = "filter-error-removes-value" of 16,
    /// A compaction combines merge operands although a snapshot is between them.
    OperandsFoldedOverSnapshot = "operands-folded-over-snapshot" of 23,
    /// A compaction combines merge operands without their base value.
    FoldIgnoresBaseValue = "fold-ignores-base-value" of 23,
    /// A memtable stores the merged value of a key at its newest operand, but the merged value lacks that operand.
    FoldedValueStale = "folded-value-stale" of 23,
    /// A read-modify-write does not check whether the key has changed, so it overwrites concurrent writes of the key.
    UpdateWithoutGuard = "update-without-guard" of 35,
    /// A read does not check whether its super version was replaced before it read the sequence number. It can then miss
    /// commits up to this number.
    SuperVersionChangeIgnored = "super-version-change-ignored" of 35,
    /// A batch is applied in several parts.
    BatchSplit = "batch-split" of 13,
    /// After a crash, sequence numbers continue without a gap, so that some are used twice.
    SeqReused = "seq-reused" of 10,
    /// Checksums of blocks do not depend on the location of the block.
    ChecksumWithoutLocation = "checksum-without-location" of 44,
    /// The filter of a table does not contain the last key.
    FilterMissesKey = "filter-misses-key" of 21,
    /// An error during the search for an existing database is treated as "no database exists".
    OpenErrorCreatesDatabase = "open-error-creates-database" of 17,
    /// `resume()` does not end the read-only state.
    ReadOnlyNotCleared = "read-only-not-cleared" of 15,
    /// Writes do not return the error of a failed compaction.
    BackgroundErrorNotReported = "background-error-not-reported" of 14,
    /// After a failed manifest edit the new tables are deleted, although the edit may be durable
    /// and name them.
    UncertainTablesDeleted = "uncertain-tables-deleted" of 7,
    /// After a crash, file numbers continue without a gap, so that some are used twice.
    FileNumberReused = "file-number-reused" of 10,
    /// The WAL is not synced before a manifest edit that creates a keyspace or changes its options.
    EditWithoutWalSync = "edit-without-wal-sync" of 13,
    /// The WAL copy of a checkpoint is not synced.
    CheckpointUnsynced = "checkpoint-unsynced" of 38,
    /// The id of a dropped keyspace is used again.
    KeyspaceIdReused = "keyspace-id-reused" of 10,
    /// A torn tail of the WAL is treated as damage.
    TornTailRefused = "torn-tail-refused" of 8,
    /// WAL segments are deleted before the manifest names a newer segment as the oldest one.
    SegmentDeletedEarly = "segment-deleted-early" of 6,
    /// A lookup ignores the range tombstones of a table if the filter excludes the key.
    SpanSkippedByFilter = "span-skipped-by-filter" of 21,
    /// Iterators apply range tombstones that are newer than their snapshot.
    SpanIgnoresSnapshot = "span-ignores-snapshot" of 22,
    /// Where a job ends an output table, the rest of the current range tombstone is lost.
    SpanLostAtCut = "span-lost-at-cut" of 20,
    /// The part of a range tombstone after the end of a subcompaction is lost.
    SpanLostAtSubcompaction = "span-lost-at-subcompaction" of 20,
    /// The first entry of a subcompaction is lost.
    KeyLostAtSubcompaction = "key-lost-at-subcompaction" of 26,
    /// A compaction drops a range tombstone while an older run contains keys that it deletes.
    SpanDroppedEarly = "span-dropped-early" of 20,
    /// A put or a delete writes no delete marker to the operand store.
    DeleteMarkerSkipped = "delete-marker-skipped" of 30,
    /// A flush delivers operands to the operand store. Its manifest edit omits the token that confirms the
    /// delivery.
    TokenNotCommitted = "token-not-committed" of 30,
    /// A delete-only compaction drops files although a snapshot is older than the range tombstone.
    CoveredFileDroppedEarly = "covered-file-dropped-early" of 22,
    /// A compaction drops an expired entry without a tombstone while an older run contains the key.
    ExpiryUncoversOlderVersion = "expiry-uncovers-older-version" of 18,
    /// A read at a snapshot compares expiry times with the current time, not with the time of the snapshot.
    SnapshotIgnoresItsTime = "snapshot-ignores-its-time" of 22,
    /// A compaction combines merge operands with a base value that has an expiry time.
    OperandsFoldedOntoExpiringBase = "operands-folded-onto-expiring-base" of 23,
    /// An entry loses its expiry time when its value is moved to a blob file.
    ExpiryLostAtSeparation = "expiry-lost-at-separation" of 29,
    /// A table with value pointers becomes durable before the blob files that it points to.
    PointerBeforeValue = "pointer-before-value" of 29,
    /// A blob file is deleted with one of its tables, although other tables point to it.
    LiveBlobDeleted = "live-blob-deleted" of 29,
    /// Replay applies a WAL record with a wrong checksum.
    TornRecordReplayed = "torn-record-replayed" of 8,
    /// A failed job is repeated at once, without a pause.
    RetriedWithoutPause = "retried-without-pause" of 15,
    /// No disk space is reserved for the case of a full disk.
    ReserveNotKept = "reserve-not-kept" of 15,
    /// The disk reserve, a file that reserves disk space, grows without bound.
    ReserveUnbounded = "reserve-unbounded" of 15,
    /// The database becomes read-only if the disk reserve cannot be created.
    ReserveRequired = "reserve-required" of 15,
    /// A small memtable that is never flushed keeps WAL segments without bound.
    IdleMemtablePinsLog = "idle-memtable-pins-log" of 15,
    /// `wait_idle` returns while a thread still removes files.
    RemovalNotAwaited = "removal-not-awaited" of 15,
    /// A writer is not woken when its commit is complete or when it becomes the leader.
    WakeUpLost = "wake-up-lost" of 34,
    /// An iterator continues after an error.
    IteratorContinuesAfterError = "iterator-continues-after-error" of 16,
    /// If `close` has removed a file, a concurrent read of the file returns an error with the file name instead of
    /// `Closed`.
    ReadDuringCloseNamesFile = "read-during-close-names-file" of 16,
    /// Files of operand stores do not count toward the limit of open files.
    StoreFilesOutsideBudget = "store-files-outside-budget" of 15,
    /// Files that jobs open for direct reads do not count toward the limit of open files.
    JobFilesOutsideBudget = "job-files-outside-budget" of 15,
    /// A file with direct appends is not synced, as if direct appends were on stable storage.
    DirectAppendsNotSynced = "direct-appends-not-synced" of 5,
    /// Quarantined files of operand stores are never read again.
    OperandQuarantineNotCleared = "operand-quarantine-not-cleared" of 15,
    /// Background jobs read quarantined blob files.
    QuarantinedBlobRead = "quarantined-blob-read" of 15,
    /// A snapshot reads its sequence number before it is registered.
    SnapshotInTwoSteps = "snapshot-in-two-steps" of 22,
    /// A compaction combines merge operands from newest to oldest.
    OperandsReordered = "operands-reordered" of 23,
    /// Of several sealed memtables the newest is flushed first.
    NewestFlushedFirst = "newest-flushed-first" of 25,
    /// A table gets the block cache id of another table.
    CacheKeyReused = "cache-key-reused" of 28,
    /// The operands of the last key are lost when a bucket is split.
    OperandLostAtSplit = "operand-lost-at-split" of 30,
    /// A decoder uses a length from a file without a check.
    LengthTrusted = "length-trusted" of 31,
    /// The drop of a keyspace is not written to the manifest.
    DropNotLogged = "drop-not-logged" of 39,
    /// The rename of a keyspace is not written to the manifest.
    RenameNotLogged = "rename-not-logged" of 39,
    /// A renamed keyspace can also be opened with its old name.
    RenameKeepsOldName = "rename-keeps-old-name" of 39,
    /// A clone of a keyspace is created by one manifest edit, and its tables are added by another one.
    CloneSplit = "clone-split" of 13,
    /// The values of a clone do not expire.
    CloneLosesExpiry = "clone-loses-expiry" of 29,
    /// A checkpoint has the uid of its source database.
    CheckpointKeepsUid = "checkpoint-keeps-uid" of 44,
    /// Reading metrics takes the lock that a WAL append holds during its device call.
    ObservationTakesLogLock = "observation-takes-log-lock" of 34,
    /// The conflict check of each conditional commit scans all operations of the earlier commits in its group.
    GuardScansCommit = "guard-scans-commit" of 15,
    /// The conflict check of a conditional commit searches only the memtables.
    GuardHistoryForgotten = "guard-history-forgotten" of 15,
    /// A job fails at the first read of a corrupt block, without a second read.
    CorruptReadNotRepeated = "corrupt-read-not-repeated" of 15,
    /// A policy that stops writes but picks no job is not reported.
    StallUnnoticed = "stall-unnoticed" of 15,
    /// After a job met a corrupt block, its inputs stay busy and no job reads them again.
    DamagedInputsStayBusy = "damaged-inputs-stay-busy" of 15,
    /// Preallocated zeros at the end of a WAL segment are treated as damaged records.
    GrownTailTreatedAsDamage = "grown-tail-treated-as-damage" of 8,
    /// The manifest names an unsynced WAL segment as the oldest one.
    OldestSegmentUnsynced = "oldest-segment-unsynced" of 4,
    /// A wall clock that jumps ahead is trusted at once.
    ClockJumpTrusted = "clock-jump-trusted" of 33,
    /// The end time of a pause is computed without an overflow check.
    TimeOverflows = "time-overflows" of 33,
    /// A user-specified output file may overwrite an engine file in a database directory.
    OutputOverwritesEngineFile = "output-overwrites-engine-file" of 42,
    /// An ingest does not flush the memtables that overlap the files.
    IngestSkipsFlush = "ingest-skips-flush" of 41,
    /// Entries of an ingested table are visible to older snapshots.
    IngestIgnoresSnapshot = "ingest-ignores-snapshot" of 22,
    /// A file with an implausibly large number, which the engine did not create, determines the next file number.
    StrayFileNumberCounts = "stray-file-number-counts" of 42,
    /// The memory limit ignores admitted batches that are not inserted into a memtable yet.
    AdmissionIgnoresReserved = "admission-ignores-reserved" of 15,
    /// Values that are combined in memtables of a dropped keyspace still count as memtable bytes.
    DroppedMemtableCounted = "dropped-memtable-counted" of 15,
    /// A call with a deadline makes its device calls on the caller's thread.
    DeadlineIgnoresDevice = "deadline-ignores-device" of 34,
    /// A write waits beyond its deadline if another thread commits it.
    FollowerExceedsDeadline = "follower-exceeds-deadline" of 34,
    /// An event listener may call functions that wait for background work.
    ReentryUnchecked = "reentry-unchecked" of 34,
    /// An event listener runs while its thread leads a commit group.
    EventsDuringLead = "events-during-lead" of 34,
    /// Only one thread flushes, and it waits while another thread uses the operand store.
    FlushWaitsForStore = "flush-waits-for-store" of 34,
    /// After a panic of a commit leader, the commits of its group never complete, and no other thread becomes the
    /// leader.
    PanicStrandsGroup = "panic-strands-group" of 43,
    /// A panic ends a background thread.
    PanicEndsThread = "panic-ends-thread" of 43,
    /// A panic in the file system is not converted to an error.
    PanicNotConverted = "panic-not-converted" of 43,
    /// An open uses file numbers before the new manifest, which reserves them, is on disk.
    FileNumbersNotReserved = "file-numbers-not-reserved" of 10,
    /// Flushes and compactions keep all sequence numbers of overlapping range tombstones, not only those that
    /// some snapshot can see.
    HiddenSpanNumbersKept = "hidden-span-numbers-kept" of 20,
    /// Damaged range tombstones of one table also fail scans outside the key range of the table.
    DamagedSpansFailAllScans = "damaged-spans-fail-all-scans" of 16,
    /// A failed open does not remove the files and directories that it has created.
    FailedOpenLeavesFiles = "failed-open-leaves-files" of 42,
    /// The error for a missing WAL segment names the intact segment before it.
    IntactSegmentBlamed = "intact-segment-blamed" of 9,
    /// A dry run of a repair does not report the commits that the WAL has lost.
    DryRunMissesCommits = "dry-run-misses-commits" of 45,
    /// A recovery that stops at damage reports the end of the WAL as the last commit of every
    /// keyspace.
    FlushesAfterDamageIgnored = "flushes-after-damage-ignored" of 13,
    /// An open removes WAL segments that are kept for a missing operand store.
    KeptLogRemoved = "kept-log-removed" of 9,
    /// The manifest still lists a WAL segment after its operands were delivered to the operand store, so that they are
    /// delivered again.
    KeptLogDeliveredTwice = "kept-log-delivered-twice" of 9,
    /// A repair that drops the newest tables still treats their commits as flushed.
    DroppedFlushStaysCounted = "dropped-flush-stays-counted" of 13,
    /// The last WAL segment is truncated when the last handle is dropped, although the next owner
    /// may be reading it.
    SegmentCutAfterClose = "segment-cut-after-close" of 42,
    /// A delete-only compaction that a snapshot prevents is counted as finished.
    BlockedDropCountsAsDone = "blocked-drop-counts-as-done" of 22,
    /// A seek of a cursor that has a position does not move it.
    CursorKeepsPosition = "cursor-keeps-position" of 27,
    /// Flushes to operand stores do not use a second thread.
    OneFlushThread = "one-flush-thread" of 34,
    /// A commit of a transaction ignores writes to the ranges that the transaction read.
    RangeReadsNotValidated = "range-reads-not-validated" of 35,
    /// Reads of a transaction do not see its own writes.
    OwnWritesUnseen = "own-writes-unseen" of 35,
    /// A commit of a transaction checks its reads only against writes since the start of the commit, not since the
    /// snapshot of the transaction.
    ReadsValidatedFromCommit = "reads-validated-from-commit" of 35,
    /// A commit of a transaction checks its range reads only against published commits.
    UnpublishedRangesIgnored = "unpublished-ranges-ignored" of 35,
    /// A commit of a transaction checks its range reads only against the memtables and unpublished commits.
    FlushedRangesIgnored = "flushed-ranges-ignored" of 35,
    /// Guards and commits of transactions are not checked against ingests.
    GuardIgnoresIngest = "guard-ignores-ingest" of 35,
    /// The commit leader does not check range reads against writes after the commit was queued.
    QueuedRangesNotChecked = "queued-ranges-not-checked" of 35,
    /// A locking transaction does not lock keys.
    KeyNotLocked = "key-not-locked" of 35,
    /// If the lock request of a transaction closes a cycle of waiting transactions, the transaction waits until its
    /// timeout.
    DeadlockNotFound = "deadlock-not-found" of 35,
    /// A locking transaction without writes commits although other commits have written keys that it read.
    LockedReadsNotChecked = "locked-reads-not-checked" of 35,
    /// The owner of a database deletes files that followers use.
    FollowerFilesDeleted = "follower-files-deleted" of 6,
    /// A follower reads a new state without preventing the owner from deleting files.
    FollowerReadsUnpinned = "follower-reads-unpinned" of 6,
    /// A follower shows commits that are not on stable storage. The owner may discard them.
    FollowerShowsUnsynced = "follower-shows-unsynced" of 13,
    /// A follower does not check that the keyspaces are unchanged since it read the manifest.
    FollowerSkipsManifestCheck = "follower-skips-manifest-check" of 13,
    /// A log archiver returns commits that are not on stable storage.
    ArchiveReturnsUnsynced = "archive-returns-unsynced" of 13,
    /// A log archiver continues after a change of the database that is not in the log.
    ArchiveIgnoresStructure = "archive-ignores-structure" of 39,
    /// Retired log segments are deleted although a log archiver needs them.
    HeldSegmentDeleted = "held-segment-deleted" of 6,
    /// A chunk of an archive is added to a database that lacks commits before it.
    ArchiveGapIgnored = "archive-gap-ignored" of 13,
}

/// The enabled failpoint as `u8`, or `u8::MAX`.
#[cfg(feature = "testing")]
static ENABLED: crate::sync::std_atomic::AtomicU8 = crate::sync::std_atomic::AtomicU8::new(u8::MAX);

/// Returns whether a failpoint is enabled.
#[inline]
#[must_use]
pub fn is_on(failpoint: Failpoint) -> bool {
    #[cfg(feature = "testing")]
    return ENABLED.load(crate::sync::Ordering::Relaxed) == failpoint as u8;
    #[cfg(not(feature = "testing"))]
    {
        let _ = failpoint;
        false
    }
}

/// Enables a failpoint for the whole process, and disables the one enabled before.
#[cfg(feature = "testing")]
pub fn enable(failpoint: Failpoint) {
    ENABLED.store(failpoint as u8, crate::sync::Ordering::Relaxed);
}

/// Disables all failpoints.
#[cfg(feature = "testing")]
pub fn disable() {
    ENABLED.store(u8::MAX, crate::sync::Ordering::Relaxed);
}
