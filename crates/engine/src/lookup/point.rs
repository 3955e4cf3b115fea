//! One key: memtables, then sorted runs from newest to oldest, until nothing older counts.

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::blob::ValuePointer;
use crate::format::block::Handle;
use crate::iter::operand_fold::Fold;
use crate::lookup::operands;
use crate::options::read::{ReadOptions, ReadTier};
use crate::table::{ReadContext, ReadPurpose, Table, TableCursor};
use crate::tree::Tree;
use crate::tree::version::{BlobFile, SuperVersion};

/// Where a read may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// In memory, and where that does not do in files.
    Storage,
    /// As `Storage`; data blocks that a search passes are not added to the block cache.
    StorageUncached,
    /// In memory and in the files of tables, and in memory alone for what lies in the value log:
    /// [`Error::WouldBlock`] where that does not do.
    Tables,
    /// In memory alone: [`Error::WouldBlock`] where that does not do, and then nothing was counted.
    Memory,
}

impl From<&ReadOptions> for Reads {
    fn from(options: &ReadOptions) -> Reads {
        match (options.tier, options.fill_cache) {
            (ReadTier::Memory, _) => Reads::Memory,
            (ReadTier::Storage, Some(false)) => Reads::StorageUncached,
            (ReadTier::Storage, _) => Reads::Storage,
        }
    }
}

/// What a lookup has met in tables, until it is known that it counts.
struct Met<'a> {
    access: ReadContext,
    /// Any table it came to.
    table: Option<&'a Arc<Table>>,
    /// The table of the last sorted run, and whether it had the key.
    last_run: Option<(&'a Arc<Table>, bool)>,
    /// The value in the value log that it came to.
    blob: Option<(Arc<BlobFile>, ValuePointer)>,
}

impl Met<'_> {
    fn nothing(reads: Reads) -> Met<'static> {
        let mut access = ReadContext::for_lookup(match reads {
            Reads::Storage | Reads::Tables => ReadPurpose::Lookup,
            Reads::StorageUncached => ReadPurpose::Scan,
            Reads::Memory => ReadPurpose::MemoryOnly,
        });
        if reads == Reads::Tables {
            access.forbid_blob_reads();
        }
        Met { access, table: None, last_run: None, blob: None }
    }

    fn count(&self, tree: &Tree, view: &SuperVersion) {
        if let Some(table) = self.table {
            self.access.publish_counts(table.cache());
        }
        if let Some((table, found)) = self.last_run {
            tree.note_last_run(&view.version, table, found);
        }
    }
}

/// The value of `user_key` as of `snapshot`.
///
/// The filter of the last sorted run is asked only if the tree's settings say so: most hits end
/// there, and its filter is most of the filter bytes of a tree.
///
/// # Errors
/// When a block cannot be read (what could not be read is never taken for absent), or when operands
/// do not fold; [`Error::WouldBlock`].
pub(crate) fn value(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    reads: Reads,
) -> Result<Option<Slice>> {
    let (mut fold, mut met) = (Fold::default(), Met::nothing(reads));
    let value = look_up(tree, view, user_key, (snapshot, reads), (&mut fold, &mut met));
    if !matches!(value, Err(Error::WouldBlock)) {
        met.count(tree, view);
    }
    value
}

/// A lookup that has come to a value in the value log, which is not in memory.
pub(crate) struct Pending<'a> {
    fold: Fold,
    met: Met<'a>,
}

impl Pending<'_> {
    /// Says that the value is about to be read; returns whether the file system reads it ahead.
    pub(crate) fn will_need(&self) -> bool {
        let Some((file, pointer)) = &self.met.blob else { return true };
        // A file that cannot be opened is an error of the read.
        file.blob().will_need(pointer.offset, pointer.bytes).unwrap_or(true)
    }

    /// Reads it, which ends the lookup of the key.
    ///
    /// # Errors
    /// As [`value`].
    pub(crate) fn read(
        mut self,
        tree: &Tree,
        view: &SuperVersion,
        user_key: &[u8],
    ) -> Result<Option<Slice>> {
        self.met.access.allow_reads();
        let Pending { mut fold, mut met } = self;
        let value = finish(tree, view, user_key, &mut fold, &mut met);
        met.count(tree, view);
        value
    }
}

/// What a lookup came to that does not read everything.
pub(crate) enum Attempt<'a> {
    /// All of it.
    Value(Option<Slice>),
    /// The value in the value log would have to be read, and nothing else.
    Pending(Box<Pending<'a>>),
    /// This block would have to be read first. Nothing was counted.
    Lacks {
        /// Whose it is.
        table: &'a Arc<Table>,
        /// Where it is.
        block: Handle,
    },
    /// The operand store would have to read. Nothing was counted.
    LacksOperands,
}

/// As [`value`], with what is missing where it may look.
///
/// # Errors
/// As [`value`].
pub(crate) fn attempt<'a>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    reads: Reads,
) -> Result<Attempt<'a>> {
    let (mut fold, mut met) = (Fold::default(), Met::nothing(reads));
    let value = look_up(tree, view, user_key, (snapshot, reads), (&mut fold, &mut met));
    if matches!(value, Err(Error::WouldBlock)) {
        if met.blob.is_some() {
            return Ok(Attempt::Pending(Box::new(Pending { fold, met })));
        }
        if let (Some(table), Some(block)) = (met.table, met.access.missing_block()) {
            return Ok(Attempt::Lacks { table, block });
        }
        if view.operands.is_some() {
            return Ok(Attempt::LacksOperands);
        }
    }
    met.count(tree, view);
    value.map(Attempt::Value)
}

/// Looks a key up, and says what it met on the way.
#[inline]
fn look_up<'a>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    (snapshot, reads): (SeqNo, Reads),
    (fold, met): (&mut Fold, &mut Met<'a>),
) -> Result<Option<Slice>> {
    for memtable in view.memtables() {
        let covering = memtable.newest_covering(user_key, snapshot);
        let ended = memtable.visit_versions(user_key, snapshot, |seq, kind, value| {
            covering < Some(seq) && fold.older(seq, kind, value)
        });
        // What lies in older places is older than any range delete here.
        if ended || covering.is_some() {
            return fold.finish(&tree.merging, user_key);
        }
    }
    match &view.operands {
        Some(beside) if beside.view.may_contain(user_key) => {
            gather_with_store(tree, view, user_key, (snapshot, reads), fold, met)?;
        }
        _ => drop(gather::<false>(tree, view, user_key, snapshot, fold, met)?),
    }
    finish(tree, view, user_key, fold, met)
}

/// The value that the versions of a key come to; reads it from the value log if it lies there.
#[inline]
fn finish(
    tree: &Tree,
    view: &SuperVersion,
    user_key: &[u8],
    fold: &mut Fold,
    met: &mut Met<'_>,
) -> Result<Option<Slice>> {
    fold.resolve(|seq, pointer| {
        let (file, pointer) = view.version.blobs().locate(pointer)?;
        met.blob = Some((Arc::clone(file), pointer));
        file.blob().value((user_key, seq), &pointer, &mut met.access)
    })?;
    fold.finish(&tree.merging, user_key)
}

/// Gathers what tables and the operand store hold of a key.
#[cold]
#[inline(never)]
fn gather_with_store<'a>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    (snapshot, reads): (SeqNo, Reads),
    fold: &mut Fold,
    met: &mut Met<'a>,
) -> Result<()> {
    let mut tables = Fold::default();
    if reads != Reads::Memory
        && let Some(beside) = &view.operands
    {
        // A device serves both in hardly more time than one.
        beside.view.prefetch(user_key, snapshot);
    }
    let newest = gather::<true>(tree, view, user_key, snapshot, &mut tables, met)?;
    match &view.operands {
        Some(beside) => {
            let tables = (tables, newest);
            operands::between(fold, &*beside.view, user_key, snapshot, reads, tables)
        }
        None => Ok(()),
    }
}

/// Gathers what the tables hold of a key; returns the newest number of an entry of it or of a range
/// delete over it, if that is asked for: most lookups need not know.
fn gather<'a, const NEWEST: bool>(
    tree: &Tree,
    view: &'a SuperVersion,
    user_key: &[u8],
    snapshot: SeqNo,
    fold: &mut Fold,
    met: &mut Met<'a>,
) -> Result<Option<SeqNo>> {
    let mut newest = None;
    let filter_last_run = tree.filter_last_run();
    let runs = view.version.runs();
    for (index, run) in runs.iter().enumerate() {
        let Some(file) = run.table_for(user_key) else { continue };
        let is_last = index + 1 == runs.len();
        let use_filter = filter_last_run || !is_last;
        let table = file.table();
        met.table = Some(table);
        // The filter knows the keys of entries alone, so it is not asked here.
        let covering = match failpoint::is_on(Failpoint::SpanSkippedByFilter)
            && !table.may_contain(user_key)?
        {
            true => None,
            false => table.covering_tombstone_with(user_key, snapshot, &mut met.access)?,
        };
        let found = match table.get_with(user_key, snapshot, use_filter, &mut met.access) {
            Err(_) if failpoint::is_on(Failpoint::ReadErrorIsNotFound) => None,
            found => found?,
        };
        if found.is_some() || !use_filter {
            tree.note_read(table);
        }
        if is_last {
            met.last_run = Some((table, found.is_some()));
        }
        // From here on all that is met is older.
        if NEWEST {
            newest = newest.or(covering.max(found.as_ref().map(|found| found.seq)));
        }
        if let Some(found) = found
            && covering < Some(found.seq)
            && (!fold.older(found.seq, found.kind, found.value)
                || older_operands(table, user_key, found.seq, covering, fold, &mut met.access)?)
        {
            break;
        }
        if covering.is_some() {
            break;
        }
    }
    Ok(newest)
}

/// Gathers what a table holds of a key below an operand, down to the newest range delete of the table
/// over it; returns whether nothing older counts.
///
/// A table that holds several versions of a key holds them side by side, so a cursor reads each
/// block once, however many there are.
#[cold]
fn older_operands(
    table: &Arc<Table>,
    user_key: &[u8],
    operand: SeqNo,
    covering: Option<SeqNo>,
    fold: &mut Fold,
    access: &mut ReadContext,
) -> Result<bool> {
    let Some(below) = operand.0.checked_sub(1) else { return Ok(false) };
    let mut cursor = TableCursor::with_context(
        table,
        std::mem::replace(access, ReadContext::for_lookup(ReadPurpose::MemoryOnly)),
    );
    let mut walk = || {
        cursor.seek(user_key, SeqNo(below))?;
        while cursor.valid() && cursor.key().user_key == user_key {
            let key = cursor.key();
            if covering >= Some(key.seq) || !fold.older(key.seq, key.kind, cursor.value_slice()) {
                return Ok(true);
            }
            cursor.next()?;
        }
        Ok(false)
    };
    let ended = walk();
    *access = cursor.into_context();
    ended
}
