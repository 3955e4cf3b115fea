//! Cloning a keyspace.
//!
//! 1. *Begin.* The commit pipeline assigns a sequence number *s* to the clone. A snapshot of all commits before *s* is
//!    registered. The manifest reserves the id of the new keyspace, because its tables and blob files contain the id.
//! 2. *Copy.* The entries that the snapshot sees are written to tables in key order, with merge operands combined and expired
//!    entries omitted. All of them have the number *s*. Commits, flushes and compactions continue. No manifest lists the
//!    files, so a crash leaves orphans, which the next open removes.
//! 3. *Install.* One manifest edit creates the keyspace with all files. Then the name becomes visible.
//!
//! Readers with a snapshot before *s* see an empty keyspace, as for every keyspace that is newer than the snapshot.
//!
//! The tables of the source are not linked. They contain the id of the source, which `verify` and repairs check. Their
//! value pointers contain the numbers of blob files, which contain the id too.

use std::ops::Bound;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::sync::{Arc, Ordering};
use lsmx_compaction::{KeyRange, OutputSplitter, RunningJobs, SplitRule, TreeShape};

use crate::db::ingest::external_table::DEEPEST_LEVEL;
use crate::db::ingest::install::{PlacedTable, count_ingest};
use crate::db::inner::DbInner;
use crate::db::open_keyspace::check_keyspace_name;
use crate::env::rate_limit::IoPriority;
use crate::env::{WaitCause, YieldKind};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::format::expiry::put_expiring_value;
use crate::format::version_edit::Change;
use crate::iter::iter_view::IterView;
use crate::jobs::compaction::output::JobOutputs;
use crate::jobs::version_installer::sync_directory;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::read::ReadOptions;
use crate::state::work_queue::WorkKind;
use crate::table::{FilterWidth, ScanHints};
use crate::tree::keyspace_name::KeyspaceName;
use crate::tree::snapshots::SnapshotGuard;
use crate::tree::super_version::SuperVersion;
use crate::tree::version::Version;
use crate::tree::version_edit::NextVersion;
use crate::tree::{Tree, TreeContext, last_run_filter};
use crate::write::backpressure;

/// Number of entries that are copied between two checks that the database is open and writable.
const ENTRIES_PER_CHECK: u64 = 64;

/// Creates the keyspace `name` with the contents of the keyspace `source`.
pub(crate) fn clone_keyspace(
    inner: &DbInner,
    source: &str,
    name: &str,
    options: KeyspaceOptions,
) -> Result<Arc<Tree>> {
    inner.check_writable()?;
    inner.begin_operation();
    check_keyspace_name(name)?;
    inner.options.check_keyspace_options(name, &options)?;
    let options = inner.options.memory_plan().limit_sizes(options);
    let state = &inner.state;
    let begun = begin(inner, source, name, options);
    state.emit_pending_events();
    let CloneSource { source, snapshot, tree, seq, rewrites } = begun?;
    let mut outputs = create_outputs(inner, &tree);
    {
        // While this guard exists, `close` and `resume` wait. The copy fails at its next check of the database state.
        let _writes = inner.begin_file_writes()?;
        copy_entries(inner, &source, snapshot, seq, &mut outputs)?;
    }
    let installed = install(inner, (&tree, name), seq, &mut outputs, rewrites);
    drop(outputs);
    state.emit_pending_events();
    let placed = installed?;
    backpressure::refresh_write_limits(state, &inner.throttle, &tree);
    state.work.push(WorkKind::Compaction, tree.id);
    state.emit(&Event::Ingest(count_ingest(&tree, &placed, seq)));
    inner.rewrite_manifest();
    inner.scheduler.run_inline();
    Ok(tree)
}

/// Source and target of a clone, and the sequence number of the clone.
struct CloneSource {
    source: Arc<Tree>,
    /// Snapshot of all commits before `seq`.
    snapshot: Arc<SnapshotGuard>,
    /// The tree of the new keyspace, which no other thread sees.
    tree: Arc<Tree>,
    /// Sequence number of all entries of the clone.
    seq: SeqNo,
    /// Value of [`DbInner::rewrites`] before `seq` was assigned.
    rewrites: u64,
}

/// Assigns a sequence number to the clone, and reserves the id of the keyspace.
fn begin(
    inner: &DbInner,
    source: &str,
    name: &str,
    mut options: KeyspaceOptions,
) -> Result<CloneSource> {
    let state = &inner.state;
    let _lock = inner.lock_admin(None)?;
    inner.check_can_write_files()?;
    let source = inner.existing_tree(source)?;
    source.check_accepts_writes()?;
    check_name_is_free(inner, name)?;
    let operator = check_compatible(&source, &mut options)?;
    let id = {
        let _changes = inner.keyspace_changes.lock();
        let id = state.manifest.with_state(|manifest| manifest.keyspace_id_next);
        inner.append_edit(vec![Change::ReserveKeyspaceId(id)])?;
        id
    };
    let rewrites = inner.rewrites.load(Ordering::Acquire);
    let (seq, snapshot) = loop {
        let register = |seq| {
            let clock = || state.env.database_time_us();
            Ok(state.sequence.register(state.env.now_us(), clock).map(|snapshot| (seq, snapshot)))
        };
        if let Some(begun) = inner.committer.run_exclusive(None, register)? {
            break begun;
        }
        // No snapshot can be registered while an edit is installed that removes data which the snapshot could see. The
        // installation always ends.
        let ended = &mut || !state.sequence.has_entry_removal();
        state.env.wait(WaitCause::BackgroundWork, &state.progress, None, ended);
    };
    let policy = options.stored_policy().unwrap_or_default();
    let (env, latencies) = (state.env.clone(), Arc::clone(&state.latencies));
    let context = TreeContext { open_id: inner.open_id, env, latencies };
    let version = Arc::new(Version::empty(&state.tables.deferred_drop));
    let (name, first_seq) = (KeyspaceName::new(name), SeqNo(seq.0 + 1));
    let tree = Tree::new(context, id, name, options, policy, version, first_seq);
    if let Some(operator) = operator {
        tree.merge_resolver.set_stored_name(operator)?;
    }
    let (snapshot, tree) = (Arc::new(snapshot), Arc::new(tree));
    Ok(CloneSource { source, snapshot, tree, seq, rewrites })
}

/// Fails if a keyspace has this name.
fn check_name_is_free(inner: &DbInner, name: &str) -> Result<()> {
    match inner.state.trees.read().by_name(name) {
        Some(_) => Err(Error::KeyspaceExists { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// Checks the options of a clone, and adds the merge operator of the source. Returns the name of the operator.
fn check_compatible(source: &Tree, options: &mut KeyspaceOptions) -> Result<Option<String>> {
    if let Some(store) = &options.operand_store {
        return Err(Error::InvalidOption {
            name: "operand_store",
            value: store.name().to_owned(),
            must: "absent; `Db::keyspace` adds a store to the clone",
        });
    }
    let stored = source.merge_resolver.name();
    let given = options.merge_operator.as_ref().map(|operator| operator.name());
    if let (Some(given), Some(stored)) = (given, stored)
        && given != stored
    {
        return Err(Error::Contradiction {
            first: format!("merge_operator = {given}"),
            second: format!("merge_operator = {stored} of keyspace {:?}", source.name()),
            why: "a clone has the merge operator of its source",
        });
    }
    let name = stored.or(given).map(str::to_owned);
    if options.merge_operator.is_none() {
        options.merge_operator = source.merge_resolver.shared_operator();
    }
    let operator = name.as_ref().map(|name| format!("merge_operator = {name}"));
    options.check_default_ttl(operator.as_deref())?;
    Ok(name)
}

/// Returns outputs that write one sorted run of the deepest level.
fn create_outputs<'a>(inner: &'a DbInner, tree: &'a Tree) -> JobOutputs<'a> {
    let target = (DEEPEST_LEVEL, FilterWidth::default());
    let tables = &inner.state.tables;
    let mut outputs = JobOutputs::new(IoPriority::Compaction, tables, tree, target, None);
    let file_bytes = tree.settings().options.table_target_bytes();
    let split = SplitRule { file_bytes, grandparent: None, boundaries: Vec::new() };
    outputs.set_splitter(OutputSplitter::new(&split, &TreeShape::default()));
    outputs
}

/// Writes all entries that the snapshot sees, each with the sequence number of the clone.
fn copy_entries(
    inner: &DbInner,
    source: &Tree,
    snapshot: Arc<SnapshotGuard>,
    seq: SeqNo,
    outputs: &mut JobOutputs<'_>,
) -> Result<()> {
    let state = &inner.state;
    // Does not fill the block cache, so that the copy evicts no blocks of other readers.
    let options = ReadOptions { fill_cache: Some(false), ..ReadOptions::default() };
    let read_point = state.read_point_of_snapshot(&snapshot);
    let mut view = IterView::new(source.pin_super_version(), source, read_point, Some(snapshot));
    view.set_options(&options);
    let mut iter =
        view.open_iter((&Bound::Unbounded, &Bound::Unbounded), ScanHints::default(), None)?;
    iter.seek_first_from(Bound::Unbounded)?;
    let (mut expiring, mut count) = (Vec::new(), 0u64);
    while iter.valid() {
        let value = iter.value_slice()?;
        let (user_key, expiry_us) = (iter.key(), iter.expiry_us());
        outputs.begin_key(user_key)?;
        match expiry_us.filter(|_| !failpoint::is_on(Failpoint::CloneLosesExpiry)) {
            None => outputs.add(InternalKey { user_key, seq, kind: EntryKind::Put }, &value)?,
            Some(expiry_us) => {
                put_expiring_value(&mut expiring, expiry_us, &value);
                let kind = EntryKind::PutExpiring;
                outputs.add(InternalKey { user_key, seq, kind }, &expiring)?;
            }
        }
        count += 1;
        if count.is_multiple_of(ENTRIES_PER_CHECK) {
            state.env.yield_point(YieldKind::JobStep);
            inner.check_can_write_files()?;
        }
        iter.next()?;
    }
    outputs.finish()
}

/// Creates the keyspace with the tables in `outputs`. Returns the tables and their levels.
///
/// # Errors
/// If the manifest cannot be written, the database becomes read-only, and no file is removed.
fn install(
    inner: &DbInner,
    (tree, name): (&Arc<Tree>, &str),
    seq: SeqNo,
    outputs: &mut JobOutputs<'_>,
    rewrites: u64,
) -> Result<Vec<PlacedTable>> {
    let state = &inner.state;
    let _lock = inner.lock_admin(None)?;
    inner.check_can_write_files()?;
    if inner.rewrites.load(Ordering::Acquire) != rewrites {
        // `resume` ran after the copy began. It removes files that the manifest does not list, such as those of the
        // clone.
        return Err(Error::CloneInterrupted { name: name.to_owned() });
    }
    if !outputs.tables().is_empty() {
        sync_directory(state.vfs.as_ref(), &state.dir)?;
    }
    let _changes = inner.keyspace_changes.lock();
    // `close` sets `closed`, and then acquires this lock once. After that, no keyspace changes.
    inner.check_open()?;
    check_name_is_free(inner, name)?;
    let before = Arc::clone(&tree.pin_super_version().version);
    let (metas, level_max) = (outputs.table_metas(), tree.ingest_level_max());
    let update = before.shape().with_ingested_files(&metas, &RunningJobs::default(), level_max)?;
    let placed = update.edit.added.iter().map(|added| {
        let table = outputs.tables().iter().find(|table| table.shape().id == added.file.id);
        let properties = table.map(|table| table.table().properties());
        let entry_bytes = properties.map_or(0, |it| it.key_bytes + it.value_bytes);
        let file = Arc::clone(&added.file);
        PlacedTable { level: added.level, file, is_written: true, entry_bytes }
    });
    let placed: Vec<_> = placed.collect();
    let NextVersion { version, changes } =
        NextVersion::new(tree.id, &before, update, outputs.tables())?;
    // The WAL does not contain `seq`, so `FlushedThrough` must not exceed `synced`; see `flush_memtable`.
    let synced = state.wal.sync().map_err(|error| state.make_read_only_under_lock(error))?;
    let options = tree.stored_options().encode();
    let create = Change::CreateKeyspace { id: tree.id, name: name.to_owned(), options };
    let mut edit = vec![create];
    if failpoint::is_on(Failpoint::CloneSplit) {
        inner.append_edit(std::mem::take(&mut edit))?;
    }
    edit.extend(changes);
    edit.push(Change::FlushedThrough { keyspace: tree.id, seq: seq.min(synced) });
    edit.push(Change::FileNumberNext(state.files.next()));
    edit.push(Change::LastSeq(state.sequence.published()));
    edit.push(Change::ClockUs(state.env.database_time_us()));
    state.error_state.check_writable()?;
    // From here on, the manifest may list the files, even if the append fails or panics.
    outputs.keep_files();
    inner.append_edit(edit)?;
    if version.shape().files().any(|file| file.expiry.is_some()) {
        tree.set_may_expire();
    }
    // Replaces the empty memtable by one that starts at the next sequence number.
    let first_seq = inner.committer.next_seq();
    tree.update_super_version(|view| SuperVersion::new(view.active.kind(), &version, first_seq));
    if !tree.last_run_filter.is_used() {
        last_run_filter::release_filters(&version);
    }
    // Write guards that are older than `seq` cannot be checked. They fail with [`Error::ConflictUnknown`].
    if let Some(range) = KeyRange::enclosing_range(placed.iter().map(|it| &it.file.range)) {
        tree.ingested_ranges.add(seq, range);
    }
    state.trees.write().insert(Arc::clone(tree));
    Ok(placed)
}
