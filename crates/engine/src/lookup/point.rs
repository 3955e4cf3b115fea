//! Point lookups: search the memtables, the operand store and the sorted runs for one key, from newest to oldest.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::filter::key_hash;
use lsmx_base::key::{EntryKind, SeqNo};
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::block::BlockHandle;
use crate::iter::operand_fold::OperandFold;
use crate::operand_store::{OperandReadTier, OperandView};
use crate::options::read::{ReadOptions, ReadTier};
use crate::table::{ReadContext, ReadDeadline, ReadPurpose, Table, TableCursor};
use crate::tree::Tree;
use crate::tree::blob_set::BlobFile;
use crate::tree::snapshots::ReadPoint;
use crate::tree::super_version::SuperVersion;

/// Data that a lookup may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadScope {
    /// Memory and all files.
    Storage,
    /// Memory and all files. Data blocks that are read are not added to the block cache.
    StorageUncached,
    /// Memory and table files, but no blob files. If a value must be read from a blob file, the lookup fails with
    /// [`Error::WouldBlock`].
    Tables,
    /// Memory only. If data must be read from a file, the lookup fails with [`Error::WouldBlock`] and counts no
    /// metrics.
    Memory,
}

impl From<&ReadOptions> for ReadScope {
    fn from(options: &ReadOptions) -> ReadScope {
        match (options.tier, options.fill_cache) {
            (ReadTier::Memory, _) => ReadScope::Memory,
            (ReadTier::Storage, Some(false)) => ReadScope::StorageUncached,
            (ReadTier::Storage, _) => ReadScope::Storage,
        }
    }
}

impl From<ReadScope> for OperandReadTier {
    fn from(scope: ReadScope) -> OperandReadTier {
        match scope {
            ReadScope::Storage | ReadScope::StorageUncached | ReadScope::Tables => {
                OperandReadTier::Storage
            }
            ReadScope::Memory => OperandReadTier::Memory,
        }
    }
}

/// Size and location of the operands that a lookup combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CombinedOperands {
    /// Total size of the operands in bytes.
    pub(crate) bytes: u64,
    /// Whether the lookup searched tables or the operand store.
    pub(crate) searched_files: bool,
    /// Whether the newest operand is in a memtable.
    pub(crate) newest_in_memtable: bool,
    /// True if the base has an expiry time. The combined value then depends on the time of the read and must not be
    /// stored.
    pub(crate) has_expiring_base: bool,
}

/// Limits of a lookup: the data that it may access, and the deadline of its reads.
pub(crate) type LookupLimits = (ReadScope, Option<Arc<ReadDeadline>>);

/// A value that a lookup found, and that it read only if it had to combine operands with the value.
#[derive(Debug)]
pub(crate) enum ValueOrPointer {
    Value(Slice),
    Pointer(ValuePointer),
}

/// State of a lookup. Its counts are published only if the lookup completes.
struct LookupState<'a> {
    context: ReadContext,
    /// The table that was accessed last.
    table: Option<&'a Arc<Table>>,
    /// The table of the last sorted run that the lookup searched, and true if this table contains the key.
    last_run: Option<(&'a Arc<Table>, bool)>,
    /// Location of the value in the value log.
    blob: Option<(Arc<BlobFile>, ValuePointer)>,
    /// Whether a memtable contains an operand of the key.
    has_memtable_operands: bool,
    combined: Option<CombinedOperands>,
}

impl LookupState<'_> {
    fn new(scope: ReadScope) -> LookupState<'static> {
        let mut context = ReadContext::for_lookup(match scope {
            ReadScope::Storage | ReadScope::Tables => ReadPurpose::Lookup,
            ReadScope::StorageUncached => ReadPurpose::Scan,
            ReadScope::Memory => ReadPurpose::MemoryOnly,
        });
        if scope == ReadScope::Tables {
            context.forbid_blob_reads();
        }
        LookupState {
            context,
            table: None,
            last_run: None,
            blob: None,
            has_memtable_operands: false,
            combined: None,
        }
    }

    fn publish_counts(&self, tree: &Tree, view: &SuperVersion) {
        if let Some(table) = self.table {
            self.context.publish_counts(table.cache());
        }
        if let Some((table, found)) = self.last_run {
            tree.last_run_filter.record(&view.version, table, found);
        }
    }
}

/// Returns the value of `user_key` that is visible at `read_point`.
///
/// # Errors
/// - The error of a read, if a block or a value cannot be read or is corrupt.
/// - [`Error::MergeFailed`] or [`Error::NoMergeOperator`] if operands cannot be combined.
/// - [`Error::WouldBlock`] if the scope does not allow a necessary read.
pub(crate) fn get(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    read_point: ReadPoint,
    scope: ReadScope,
) -> Result<Option<Slice>> {
    let found = get_with_combined_operands(tree, view, user_key, read_point, (scope, None));
    found.map(|(value, _)| value)
}

/// Like [`get`], but with a deadline. Also returns a description of the combined operands, or `None` if the lookup
/// found no operands.
///
/// # Errors
/// Same as [`get`], and [`Error::Deadline`] if the deadline has passed.
#[inline]
pub(crate) fn get_with_combined_operands(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    read_point: ReadPoint,
    (scope, deadline): LookupLimits,
) -> Result<(Option<Slice>, Option<CombinedOperands>)> {
    let (mut fold, mut state) = (OperandFold::at_time(read_point.time_us), LookupState::new(scope));
    state.context.set_deadline(deadline);
    let search = (read_point.seq, scope);
    let value = look_up_and_count::<true>(tree, view, user_key, search, (&mut fold, &mut state))?;
    Ok((value, state.combined))
}

/// Like [`get`]. Also returns the expiry time of the value in microseconds, or `None` if it does not expire. A combined
/// value has the expiry time of the base of its operands.
///
/// # Errors
/// Same as [`get`].
pub(crate) fn get_with_expiry(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    read_point: ReadPoint,
    scope: ReadScope,
) -> Result<(Option<Slice>, Option<u64>)> {
    let (mut fold, mut state) = (OperandFold::at_time(read_point.time_us), LookupState::new(scope));
    let search = (read_point.seq, scope);
    let value = look_up_and_count::<true>(tree, view, user_key, search, (&mut fold, &mut state))?;
    Ok((value, fold.base_expiry_us()))
}

/// Like [`get_with_combined_operands`], but does not read a separated value if the key has no operands.
///
/// # Errors
/// Same as [`get_with_combined_operands`].
pub(crate) fn find_value(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    read_point: ReadPoint,
    (scope, deadline): LookupLimits,
) -> Result<(Option<ValueOrPointer>, Option<CombinedOperands>)> {
    let (mut fold, mut state) = (OperandFold::at_time(read_point.time_us), LookupState::new(scope));
    state.context.set_deadline(deadline);
    let search = (read_point.seq, scope);
    let value = look_up_and_count::<false>(tree, view, user_key, search, (&mut fold, &mut state))?;
    let found = value.map(|value| match (&state.blob, state.combined) {
        (Some((_, pointer)), None) => ValueOrPointer::Pointer(*pointer),
        _ => ValueOrPointer::Value(value),
    });
    Ok((found, state.combined))
}

/// A lookup that is complete except for one read from the value log.
pub(crate) struct PendingValue<'a> {
    fold: OperandFold,
    state: LookupState<'a>,
}

impl PendingValue<'_> {
    /// Issues a read-ahead hint for the value. Returns true if the file system prefetches the value or has it in
    /// memory.
    pub(crate) fn will_need(&self) -> bool {
        let Some((file, pointer)) = &self.state.blob else { return true };
        // If the file cannot be opened, the read returns the error.
        file.blob().will_need(pointer.offset, pointer.bytes).unwrap_or(true)
    }

    /// Reads the value and completes the lookup.
    ///
    /// # Errors
    /// Same as [`get`].
    pub(crate) fn read(
        self,
        tree: &Tree,
        view: &SuperVersion,
        user_key: &[u8],
    ) -> Result<Option<Slice>> {
        let PendingValue { mut fold, mut state } = self;
        state.context.allow_storage_reads();
        let value = resolve_value(tree, view, user_key, &mut fold, &mut state);
        state.publish_counts(tree, view);
        value
    }
}

/// Result of a lookup with a limited scope.
pub(crate) enum LookupAttempt<'a> {
    /// The lookup is complete.
    Value(Option<Slice>),
    /// The value must be read from the value log. Otherwise, the lookup is complete.
    PendingValue(Box<PendingValue<'a>>),
    /// This block must be read. No metrics were counted.
    MissingBlock { table: &'a Arc<Table>, block: BlockHandle },
    /// The operand store must read files. No metrics were counted.
    MissingOperands,
}

/// Like [`get`]. If the scope does not allow a necessary read, returns a description of this read instead of
/// [`Error::WouldBlock`].
///
/// # Errors
/// Same as [`get`], except for [`Error::WouldBlock`].
pub(crate) fn try_get<'a>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    read_point: ReadPoint,
    scope: ReadScope,
) -> Result<LookupAttempt<'a>> {
    let (mut fold, mut state) = (OperandFold::at_time(read_point.time_us), LookupState::new(scope));
    let search = (read_point.seq, scope);
    let value = look_up::<true>(tree, view, user_key, search, (&mut fold, &mut state));
    if matches!(value, Err(Error::WouldBlock)) {
        if state.blob.is_some() {
            return Ok(LookupAttempt::PendingValue(Box::new(PendingValue { fold, state })));
        }
        if let (Some(table), Some(block)) = (state.table, state.context.block_missing_in_memory()) {
            return Ok(LookupAttempt::MissingBlock { table, block });
        }
        if view.operand_view.is_some() {
            return Ok(LookupAttempt::MissingOperands);
        }
    }
    state.publish_counts(tree, view);
    value.map(LookupAttempt::Value)
}

/// Looks up a key, and publishes the counts of the lookup unless it fails with [`Error::WouldBlock`].
#[inline]
fn look_up_and_count<'a, const READS_VALUE: bool>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    search: (SeqNo, ReadScope),
    (fold, state): (&mut OperandFold, &mut LookupState<'a>),
) -> Result<Option<Slice>> {
    let value = look_up::<READS_VALUE>(tree, view, user_key, search, (fold, &mut *state));
    if !matches!(value, Err(Error::WouldBlock)) {
        state.publish_counts(tree, view);
    }
    value
}

/// Looks up a key. Records the accesses in `state`.
///
/// If `READS_VALUE` is false, a separated value without operands is not read. `state` then contains its location, and
/// the returned value is empty.
#[inline]
fn look_up<'a, const READS_VALUE: bool>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    (snapshot, scope): (SeqNo, ReadScope),
    (fold, state): (&mut OperandFold, &mut LookupState<'a>),
) -> Result<Option<Slice>> {
    for memtable in view.memtables() {
        let covering = memtable.newest_covering_seq(user_key, snapshot);
        let found_base = memtable.visit_versions(user_key, snapshot, |seq, kind, value| {
            covering < Some(seq) && fold.push_older(seq, kind, value)
        });
        // Older memtables and all tables contain only entries that are older than this range tombstone.
        if found_base || covering.is_some() {
            return combine(tree, user_key, fold, state, false);
        }
    }
    state.has_memtable_operands = fold.has_operands();
    match &view.operand_view {
        Some(operands) if operands.view.may_contain(user_key) => {
            let operands = &*operands.view;
            search_tables_and_operand_store(
                tree,
                view,
                operands,
                user_key,
                (snapshot, scope),
                fold,
                state,
            )?;
        }
        _ => drop(search_tables::<false>(tree, view, user_key, snapshot, fold, state)?),
    }
    if !READS_VALUE && !fold.has_operands() {
        locate_value(view, fold, state)?;
        return combine(tree, user_key, fold, state, true);
    }
    resolve_value(tree, view, user_key, fold, state)
}

/// Records the location of the value in `state` if the value is in the value log. Replaces the value by an empty one.
fn locate_value(
    view: &SuperVersion,
    fold: &mut OperandFold,
    state: &mut LookupState<'_>,
) -> Result<()> {
    fold.resolve_pointer(|_, pointer| {
        let (file, pointer) = view.version.blobs().locate(pointer)?;
        state.blob = Some((Arc::clone(file), pointer));
        Ok(Slice::default())
    })
}

/// Reads the value from the value log if necessary, and combines the operands with it.
#[inline]
fn resolve_value(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    fold: &mut OperandFold,
    state: &mut LookupState<'_>,
) -> Result<Option<Slice>> {
    fold.resolve_pointer(|seq, pointer| {
        let (file, pointer) = view.version.blobs().locate(pointer)?;
        state.blob = Some((Arc::clone(file), pointer));
        file.blob().read_value((user_key, seq), &pointer, &mut state.context)
    })?;
    combine(tree, user_key, fold, state, true)
}

/// Combines the operands with the base. Records the size of the operands in `state`.
#[inline]
fn combine(
    tree: &Tree,
    user_key: &[u8],
    fold: &mut OperandFold,
    state: &mut LookupState<'_>,
    searched_files: bool,
) -> Result<Option<Slice>> {
    if fold.has_operands() {
        state.combined = Some(CombinedOperands {
            bytes: fold.operand_bytes(),
            searched_files,
            newest_in_memtable: !searched_files || state.has_memtable_operands,
            has_expiring_base: fold.has_expiring_base(),
        });
    }
    fold.take_value(&tree.merge_resolver, user_key)
}

/// Searches a key in the tables and in the operand store, and passes the found versions to `fold`.
///
/// An operand in the store applies only if it is newer than the newest table entry or range tombstone of the key. Other
/// operands are ignored.
///
/// A lookup that fails with [`Error::WouldBlock`] must not count metrics. The store counts its reads itself, so the
/// tables are searched first.
#[cold]
#[inline(never)]
fn search_tables_and_operand_store<'a>(
    tree: &Tree,
    view: &'a SuperVersion,
    operands: &dyn OperandView,
    user_key: &[u8],
    (snapshot, scope): (SeqNo, ReadScope),
    fold: &mut OperandFold,
    state: &mut LookupState<'a>,
) -> Result<()> {
    if scope != ReadScope::Memory {
        // A device performs two concurrent reads in little more time than one.
        operands.prefetch(user_key, snapshot);
    }
    let mut tables = fold.new_at_same_time();
    let newest_seq = search_tables::<true>(tree, view, user_key, snapshot, &mut tables, state)?;
    let mut found = Vec::new();
    operands.read_operands(user_key, snapshot, scope.into(), &mut found)?;
    for operand in found {
        if newest_seq < Some(operand.last) {
            fold.push_older(operand.last, EntryKind::Merge, operand.bytes);
        }
    }
    fold.append_older_operands(tables);
    Ok(())
}

/// Adds the versions of a key in the tables to `fold`.
///
/// If `NEWEST` is true, returns the sequence number of the newest entry or range tombstone of the key.
///
/// The filter of the last sorted run is used only if the settings or the engine's decision require it. This filter
/// needs most of the memory for filters, but most lookups that find their key find it in this run.
fn search_tables<'a, const NEWEST: bool>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    fold: &mut OperandFold,
    state: &mut LookupState<'a>,
) -> Result<Option<SeqNo>> {
    let mut newest_seq = None;
    let uses_last_run_filter = tree.last_run_filter.is_used();
    let mut hash = None;
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for_key(user_key) else { continue };
        let is_last = index + 1 == runs.len();
        let use_filter = uses_last_run_filter || !is_last;
        let table = file.table();
        state.table = Some(table);
        // Filters do not contain range tombstones, so range tombstones are searched without the filter.
        let covering = match failpoint::is_on(Failpoint::SpanSkippedByFilter)
            && !table.may_contain(user_key)?
        {
            true => None,
            false => table.covering_tombstone_in_context(user_key, snapshot, &mut state.context)?,
        };
        let filter_hash = use_filter.then(|| *hash.get_or_insert_with(|| key_hash(user_key)));
        let found = table.get_in_context(user_key, snapshot, filter_hash, &mut state.context);
        let found = match found {
            Err(_) if failpoint::is_on(Failpoint::ReadErrorIsNotFound) => None,
            found => found?,
        };
        if found.is_some() || !use_filter {
            tree.record_read(table);
        }
        if is_last {
            state.last_run = Some((table, found.is_some()));
        }
        // The first version that is found is the newest.
        if NEWEST {
            newest_seq = newest_seq.or(covering.max(found.as_ref().map(|found| found.seq)));
        }
        if let Some(found) = found
            && covering < Some(found.seq)
            && (!fold.push_older(found.seq, found.kind, found.value)
                || push_older_versions(
                    table,
                    user_key,
                    (found.seq, covering),
                    fold,
                    &mut state.context,
                )?)
        {
            break;
        }
        if covering.is_some() {
            break;
        }
    }
    Ok(newest_seq)
}

/// Adds the versions of a key in one table to `fold`. Adds only versions that are older than `operand` and newer than
/// `covering`.
///
/// Returns whether a base or a range tombstone was found. The versions of a key are adjacent in a table, so the cursor
/// reads each block once.
#[cold]
fn push_older_versions(
    table: &Arc<Table>,
    user_key: &[u8],
    (operand, covering): (SeqNo, Option<SeqNo>),
    fold: &mut OperandFold,
    context: &mut ReadContext,
) -> Result<bool> {
    let Some(older) = operand.0.checked_sub(1) else { return Ok(false) };
    let placeholder = ReadContext::for_lookup(ReadPurpose::MemoryOnly);
    let context_of_cursor = std::mem::replace(context, placeholder);
    // The purpose of a lookup is `Scan` only if its blocks must not be cached.
    let mut cursor = TableCursor::with_read_context(table, context_of_cursor).bypassing_cache();
    let mut push_versions = || {
        cursor.seek(user_key, SeqNo(older))?;
        while cursor.valid() && cursor.key().user_key == user_key {
            let key = cursor.key();
            let is_covered = covering >= Some(key.seq);
            if is_covered || !fold.push_older(key.seq, key.kind, cursor.value_slice()) {
                return Ok(true);
            }
            cursor.next()?;
        }
        Ok(false)
    };
    let found_base = push_versions();
    *context = cursor.into_context();
    found_base
}
