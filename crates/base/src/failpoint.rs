//! Deliberate bugs, one at a time by name, that the tests must find: the tests are tested.
//!
//! Each stands for a class of bugs that were real ones elsewhere; `docs/results/reliability.md` lists the
//! classes by number, and how each bug was found.
//!
//! Without the feature `sabotage` every question is answered `false` at compile time.

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident = $text:literal of $class:literal,)*) => {
        /// A deliberate bug; each stands for a class of real ones.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Failpoint {
            $($(#[$doc])* $name,)*
        }

        impl Failpoint {
            /// All of them.
            pub const ALL: &'static [Failpoint] = &[$(Failpoint::$name,)*];

            /// Its name, such as `wal-sync-skipped`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Failpoint::$name => $text,)* }
            }

            /// Number of the class of bugs that it stands for.
            #[must_use]
            pub fn class(self) -> u8 {
                match self { $(Failpoint::$name => $class,)* }
            }
        }
    };
}

bugs! {
    /// A `Sync` commit is acknowledged without a sync.
    WalSyncSkipped = "wal-sync-skipped" of 2,
    /// A leader syncs when it asked for it itself, and forgets what its followers asked for.
    FollowerSyncForgotten = "follower-sync-forgotten" of 2,
    /// A commit is published while one before it is not inserted yet.
    PublishedEarly = "published-early" of 35,
    /// Only the newest segment is synced, older unsynced ones are forgotten.
    WalOlderSegmentUnsynced = "wal-older-segment-unsynced" of 4,
    /// The directory of a new file is not synced.
    DirectoryNotSynced = "directory-not-synced" of 3,
    /// A flush's edit is written before the table is synced.
    EditBeforeTableSync = "edit-before-table-sync" of 5,
    /// The WAL is not synced before the edit of a flush.
    FlushWithoutWalSync = "flush-without-wal-sync" of 13,
    /// Inputs of a job are deleted before the edit is durable.
    InputsDeletedEarly = "inputs-deleted-early" of 6,
    /// A `Buffered` commit is acknowledged while only memory holds it.
    BufferedNotLogged = "buffered-not-logged" of 2,
    /// Replay takes the furthest flush of any keyspace for that of all.
    ReplaySkipsUnflushed = "replay-skips-unflushed" of 13,
    /// Replay passes over range deletes.
    ReplaySkipsRangeDeletes = "replay-skips-range-deletes" of 20,
    /// A failed WAL append is swallowed.
    AppendErrorSwallowed = "append-error-swallowed" of 14,
    /// A failed sync is tried again and believed.
    SyncRetried = "sync-retried" of 1,
    /// Damage in the middle of the WAL is taken for a torn tail.
    WalDamageIsTail = "wal-damage-is-tail" of 9,
    /// A read error is answered as "not found".
    ReadErrorIsNotFound = "read-error-is-not-found" of 16,
    /// A tombstone is dropped while an older version lives below.
    TombstoneDroppedEarly = "tombstone-dropped-early" of 18,
    /// A version that a snapshot needs is dropped.
    SnapshotVersionDropped = "snapshot-version-dropped" of 22,
    /// A job folds merge operands together that a snapshot stands between.
    OperandsFoldedOverSnapshot = "operands-folded-over-snapshot" of 23,
    /// A job folds merge operands without the value that they change.
    BaseForgottenByJob = "base-forgotten-by-job" of 23,
    /// A value folded in a memtable lacks the operand that it stands beside.
    FoldedValueStale = "folded-value-stale" of 23,
    /// A key that was read is written back whoever has written it meanwhile.
    UpdateWithoutGuard = "update-without-guard" of 35,
    /// A batch is applied in parts.
    BatchTorn = "batch-torn" of 13,
    /// Sequence numbers start again where they were before a crash, not after a gap.
    SeqReused = "seq-reused" of 10,
    /// Checksums do not cover where a block lies.
    ChecksumWithoutPlace = "checksum-without-place" of 44,
    /// The filter misses the last key of a table.
    FilterMissesKey = "filter-misses-key" of 21,
    /// Any error while looking for the database is taken for "there is none".
    OpenErrorIsNew = "open-error-is-new" of 17,
    /// The read-only state does not go away on `resume()`.
    ReadOnlySticks = "read-only-sticks" of 15,
    /// No write is told of a compaction that has failed.
    BackgroundErrorUntold = "background-error-untold" of 14,
    /// New tables are deleted though a failed manifest edit may name them.
    DoubtForgotten = "doubt-forgotten" of 7,
    /// File numbers start again where they were before a crash.
    FileNumberReused = "file-number-reused" of 10,
    /// The WAL is not synced before the edit that makes a keyspace or changes its options.
    EditWithoutWalSync = "edit-without-wal-sync" of 13,
    /// The log that a checkpoint copies is not synced.
    CheckpointUnsynced = "checkpoint-unsynced" of 38,
    /// The id of a dropped keyspace is given again.
    KeyspaceIdReused = "keyspace-id-reused" of 10,
    /// A torn tail of the WAL is taken for damage.
    TornTailRefused = "torn-tail-refused" of 8,
    /// WAL segments are deleted before the manifest names a younger one as the oldest.
    SegmentDeletedEarly = "segment-deleted-early" of 6,
    /// A lookup asks for range deletes only where the filter lets the key pass.
    SpanBehindFilter = "span-behind-filter" of 21,
    /// An iterator heeds range deletes that are newer than its snapshot.
    SpanIgnoresSnapshot = "span-ignores-snapshot" of 22,
    /// Where a job ends a table, the rest of the range delete at hand is lost.
    SpanLostAtCut = "span-lost-at-cut" of 20,
    /// What of a range delete lies past the end of a part of a job is lost.
    SpanLostAtPart = "span-lost-at-part" of 20,
    /// The first entry of a part of a job is lost.
    KeyLostAtPart = "key-lost-at-part" of 26,
    /// A job drops a range delete while an older run holds what it deletes.
    SpanDroppedEarly = "span-dropped-early" of 20,
    /// A put or a delete reaches the tree, and the operand store is not told.
    AnchorForgotten = "anchor-forgotten" of 30,
    /// The edit of a flush does not say what the operand store has prepared.
    TokenNotCommitted = "token-not-committed" of 30,
    /// Files are dropped because of a range delete though a snapshot looks past it.
    CoveredFileDroppedEarly = "covered-file-dropped-early" of 22,
    /// A table that points to values is made durable before the values are.
    PointerBeforeBytes = "pointer-before-bytes" of 29,
    /// A blob file is deleted when one of the tables that point to it goes, though others do as well.
    LiveBlobDeleted = "live-blob-deleted" of 29,
    /// A record of the log whose bytes are torn is replayed.
    TornRecordReplayed = "torn-record-replayed" of 8,
    /// Work that has failed is tried again at once, and again.
    RetriedWithoutPause = "retried-without-pause" of 15,
    /// No room is kept for the time when the disk is full.
    ReserveNotKept = "reserve-not-kept" of 15,
    /// The reserve grows without a bound.
    ReserveUnbounded = "reserve-unbounded" of 15,
    /// A reserve that cannot be made makes the database read-only.
    ReserveRequired = "reserve-required" of 15,
    /// A small memtable keeps any number of log segments.
    IdleMemtablePinsLog = "idle-memtable-pins-log" of 15,
    /// `wait_idle` returns while a thread still removes files.
    RemovalNotAwaited = "removal-not-awaited" of 15,
    /// A writer whose commit is done, or that is to lead, is not woken.
    WakeUpLost = "wake-up-lost" of 34,
    /// An iterator that met an error goes on behind it.
    IteratorGoesOn = "iterator-goes-on" of 16,
    /// A read that runs over a close and finds a file removed returns an error that names the file.
    ReadOverCloseNamesFile = "read-over-close-names-file" of 16,
    /// The files of operand stores do not count in the budget of descriptors.
    StoreFilesOutsideBudget = "store-files-outside-budget" of 15,
    /// Quarantined files of operand stores are not read again.
    OperandQuarantineSticks = "operand-quarantine-sticks" of 15,
    /// Background jobs read quarantined blob files.
    QuarantinedBlobRead = "quarantined-blob-read" of 15,
    /// A snapshot takes its number first and is registered later.
    SnapshotInTwoSteps = "snapshot-in-two-steps" of 22,
    /// A job folds merge operands from new to old.
    OperandsReordered = "operands-reordered" of 23,
    /// Of several memtables that wait for their flush the newest goes first.
    NewestFlushedFirst = "newest-flushed-first" of 25,
    /// A table is given a number in the block cache that another one has.
    CacheKeyReused = "cache-key-reused" of 28,
    /// What is kept of the last key of a bucket is lost when the bucket is split.
    OperandLostAtSplit = "operand-lost-at-split" of 30,
    /// A length is taken from a file unseen.
    LengthTrusted = "length-trusted" of 31,
    /// The drop of a keyspace is not in the manifest.
    DropNotLogged = "drop-not-logged" of 39,
    /// A checkpoint has the uid of the database that it copies.
    CheckpointKeepsUid = "checkpoint-keeps-uid" of 44,
    /// Metrics take the lock that a WAL append holds over its device call.
    ObservationTakesLogLock = "observation-takes-log-lock" of 34,
    /// Each guard looks at every operation of the commits before it.
    GuardScansCommit = "guard-scans-commit" of 15,
    /// Guards are checked against memtables alone.
    GuardHistoryForgotten = "guard-history-forgotten" of 15,
    /// A job fails at the first corrupt read of a block.
    CorruptReadNotRepeated = "corrupt-read-not-repeated" of 15,
    /// A policy that stops writes and picks no job is not noticed.
    StallUnnoticed = "stall-unnoticed" of 15,
    /// All inputs of a job that met a corrupt block stay busy, and nothing reads the block again.
    DamagedInputsKept = "damaged-inputs-kept" of 15,
    /// Zeros by which a segment has grown ahead are taken for records that were synced.
    GrownTailIsDamage = "grown-tail-is-damage" of 8,
    /// The manifest names a segment that is not synced as the oldest.
    OldestSegmentUnsynced = "oldest-segment-unsynced" of 4,
    /// A wall clock that jumps ahead is believed at once.
    ClockJumpBelieved = "clock-jump-believed" of 33,
    /// The end of a pause is added up without a look at the largest time.
    TimeOverflows = "time-overflows" of 33,
    /// An output may have the name of an engine file in a database directory.
    OutputOverEngineFile = "output-over-engine-file" of 42,
    /// A file that somebody has named with an impossible number counts for the next number.
    StrayNumberCounts = "stray-number-counts" of 42,
    /// Batches are admitted without regard to those that are admitted already and not inserted yet.
    AdmittedUnreserved = "admitted-unreserved" of 15,
    /// The memtables of a dropped keyspace count values that are folded in them later.
    DroppedMemtableCounted = "dropped-memtable-counted" of 15,
    /// The device calls of a call with a deadline are made on the caller's thread.
    DeadlineIgnoresDevice = "deadline-ignores-device" of 34,
    /// A write that is in the group of another thread waits past its deadline.
    FollowerOutstaysDeadline = "follower-outstays-deadline" of 34,
    /// A call that waits for background work is made in a listener, and is not refused.
    ReentryUnchecked = "reentry-unchecked" of 34,
    /// A listener runs while its thread leads a group of commits that is not decided yet.
    EventsUnderLead = "events-under-lead" of 34,
    /// One thread flushes all keyspaces, and it waits until another thread is done with an operand store.
    FlushWaitsForStore = "flush-waits-for-store" of 34,
    /// A panic of a commit leader leaves its group and the lead behind.
    PanicStrandsGroup = "panic-strands-group" of 43,
    /// A panic ends a background thread.
    PanicEndsThread = "panic-ends-thread" of 43,
    /// A panic of the file system is not taken for an error of the call.
    PanicUnnamed = "panic-unnamed" of 43,
    /// An opening uses file numbers before anything on the disk says that they are in use.
    FileNumbersNotReserved = "file-numbers-not-reserved" of 10,
    /// A flush or a compaction keeps numbers of range deletes that no snapshot can tell apart while it runs.
    HiddenSpanNumbersKept = "hidden-span-numbers-kept" of 20,
    /// Damaged range tombstones of one table fail scans of ranges that do not overlap the table.
    DamagedSpansFailAllScans = "damaged-spans-fail-all-scans" of 16,
    /// An open that fails leaves the files and directories that it has created.
    FailedOpenLeavesFiles = "failed-open-leaves-files" of 42,
    /// An error about a missing log segment names the intact segment before it.
    IntactSegmentBlamed = "intact-segment-blamed" of 9,
    /// A dry run of a repair does not report the commits that the log has lost.
    DryRunMissesCommits = "dry-run-misses-commits" of 45,
    /// The report of a recovery past damage takes the end of the log for the last commit of every keyspace.
    FlushesPastDamageUncounted = "flushes-past-damage-uncounted" of 13,
    /// The open removes log segments that are kept for a missing operand store.
    KeptLogRemoved = "kept-log-removed" of 9,
    /// The manifest still names a kept log after its delivery to the operand store.
    KeptLogDeliveredTwice = "kept-log-delivered-twice" of 9,
    /// A repair that drops later tables takes their commits for flushed all the same.
    LaterFlushStaysCounted = "later-flush-stays-counted" of 13,
    /// The log segment that was written last is cut to its length when the last handle is dropped, although the next
    /// owner may be reading it.
    SegmentCutAfterClose = "segment-cut-after-close" of 42,
    /// A drop of files that a snapshot prevents counts as one that has ended.
    RefusedDropEnds = "refused-drop-ends" of 22,
    /// One thread flushes all keyspaces, with or without an operand store.
    OneFlushThread = "one-flush-thread" of 34,
}

#[cfg(feature = "testing")]
static ARMED: crate::sync::std_atomic::AtomicU8 = crate::sync::std_atomic::AtomicU8::new(u8::MAX);

/// Whether this bug is switched on.
#[inline]
#[must_use]
pub fn is_on(bug: Failpoint) -> bool {
    #[cfg(feature = "testing")]
    return ARMED.load(crate::sync::Ordering::Relaxed) == bug as u8;
    #[cfg(not(feature = "testing"))]
    {
        let _ = bug;
        false
    }
}

/// Switches one bug on for the whole process, or all off.
#[cfg(feature = "testing")]
pub fn arm(bug: Option<Failpoint>) {
    ARMED.store(bug.map_or(u8::MAX, |bug| bug as u8), crate::sync::Ordering::Relaxed);
}

/// How a deliberate bug was found.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The bug.
    pub bug: Failpoint,
    /// Name of the check that failed.
    pub check: &'static str,
    /// At which try it did, counted from 1.
    pub tries: u64,
    /// Milliseconds that the tries took.
    pub ms: u64,
}

/// What was found as lines and columns, aligned for people and for Markdown.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug)]
pub struct Report<'a>(pub &'a [Found]);

#[cfg(feature = "testing")]
impl std::fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Report(found) = self;
        let widest = |of: fn(&Found) -> &'static str| {
            found.iter().map(|found| of(found).len()).max().unwrap_or(0)
        };
        let (bug, check) = (widest(|at| at.bug.name()).max(3), widest(|at| at.check).max(8));
        writeln!(f, "| {:bug$} | class | {:check$} | at try |     ms |", "bug", "found by")?;
        writeln!(f, "| {:-<bug$} | ----: | {:-<check$} | -----: | -----: |", "", "")?;
        for Found { bug: at, check: by, tries, ms } in *found {
            let (name, class) = (at.name(), at.class());
            writeln!(f, "| {name:bug$} | {class:5} | {by:check$} | {tries:6} | {ms:6} |")?;
        }
        Ok(())
    }
}
