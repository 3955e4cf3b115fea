//! Flush of overlapping memtables and installation of prepared tables.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::range_tombstone::RangeTombstone;
use lsmx_base::sync::{Arc, Ordering};
use lsmx_base::work_counter;
use lsmx_compaction::{FileId, KeyRange, Level, TableMeta};

use crate::cursor::Cursor;
use crate::db::ingest::prepared::{
    IngestSummary, NewFiles, PreparedTable, TreeTables, check_accepts_ingest,
};
use crate::db::inner::DbInner;
use crate::env::thread_time::{IoKind, measure_wait};
use crate::env::{Background, WaitCause};
use crate::error::{Error, Result};
use crate::event::{Event, IngestEnd};
use crate::format::version_edit::{Change, VersionEdit};
use crate::jobs::version_installer::sync_directory;
use crate::memtable::Memtable;
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::tree::table_file::TableFile;
use crate::tree::version::Version;
use crate::tree::version_edit::NextVersion;
use crate::tree::{Tree, last_run_filter};
use crate::write::backpressure;

/// Adds prepared tables to their trees. `rewrites` is the value of [`DbInner::rewrites`] before the tables were
/// prepared.
pub(super) fn install_tables(
    inner: &DbInner,
    mut prepared: Vec<TreeTables>,
    mut new_files: NewFiles,
    rewrites: u64,
) -> Result<IngestSummary> {
    prepared.retain(|of_tree| !of_tree.tables.is_empty());
    if prepared.is_empty() {
        return Ok(IngestSummary { seq: inner.state.sequence.published(), ..Default::default() });
    }
    for TreeTables { tree, tables } in &mut prepared {
        tables.sort_by(|a, b| a.meta.range.smallest.cmp(&b.meta.range.smallest));
        if !KeyRange::are_disjoint(tables.iter().map(|table| &table.meta.range)) {
            let (keyspace, why) = (tree.name(), "the files overlap each other");
            return Err(Error::IngestRefused { keyspace, file: None, why });
        }
    }
    let trees: Vec<_> = prepared.iter().map(|of_tree| Arc::clone(&of_tree.tree)).collect();
    let installed = {
        let _lock = inner.lock_admin(None)?;
        inner.check_can_write_files()?;
        if inner.rewrites.load(Ordering::Acquire) != rewrites {
            let (keyspace, why) = (trees[0].name(), "the database was resumed meanwhile");
            return Err(Error::IngestRefused { keyspace, file: None, why });
        }
        sync_directory(inner.state.vfs.as_ref(), &inner.state.dir)?;
        install_after_flush(inner, &trees, &mut prepared, &mut new_files)
    };
    // The tables are closed before their files are removed.
    drop(prepared);
    drop(new_files);
    for tree in &trees {
        backpressure::refresh_write_limits(&inner.state, &inner.throttle, tree);
        inner.state.work.push(WorkKind::Compaction, tree.id);
    }
    let installed = installed?;
    for event in installed.events {
        inner.state.emit(&Event::Ingest(event));
    }
    inner.rewrite_manifest();
    inner.scheduler.run_inline();
    Ok(installed.summary)
}

/// Flushes overlapping memtables and installs the tables. Repeats both steps if a new write overlaps the tables.
fn install_after_flush(
    inner: &DbInner,
    trees: &[Arc<Tree>],
    prepared: &mut Vec<TreeTables>,
    new_files: &mut NewFiles,
) -> Result<Installed> {
    let mut blocked_writes = None;
    loop {
        wait_for_runs(inner, trees)?;
        let overlapping: Vec<_> = prepared
            .iter()
            .filter(|of_tree| has_overlapping_memtable(of_tree))
            .map(|of_tree| Arc::clone(&of_tree.tree))
            .collect();
        if !overlapping.is_empty() {
            inner.flush_trees(&overlapping, None)?;
        }
        let installed = {
            let _paused_jobs = PausedJobs::new(inner, trees);
            let install = |seq| install(inner, prepared, new_files, seq);
            inner.committer.run_exclusive(None, install)?
        };
        if let Some(installed) = installed {
            return Ok(installed);
        }
        // From here on, new writes wait. Only writes that were admitted earlier can still overlap the tables, so the loop
        // ends.
        blocked_writes.get_or_insert_with(|| BlockedWrites::new(inner, trees));
    }
}

/// Waits until the policies of all trees allow more runs, because a file may become a run of L0.
fn wait_for_runs(inner: &DbInner, trees: &[Arc<Tree>]) -> Result<()> {
    let state = &inner.state;
    if state.env.background() == Background::Inline {
        inner.scheduler.run_inline();
        return Ok(());
    }
    let has_obstacle = |tree: &Arc<Tree>| tree.jobs.lock().write_error(&tree.name());
    state.env.wait(WaitCause::TooManyRuns, &state.progress, None, &mut || {
        let is_ready = |tree: &Arc<Tree>| !tree.is_write_stopped() || has_obstacle(tree).is_some();
        trees.iter().all(is_ready) || inner.check_can_write_files().is_err()
    });
    inner.check_can_write_files()?;
    let stopped = trees.iter().filter(|tree| tree.is_write_stopped());
    stopped.filter_map(has_obstacle).next().map_or(Ok(()), Err)
}

/// Makes writes to the trees wait for admission until it is dropped.
struct BlockedWrites<'a> {
    inner: &'a DbInner,
    trees: &'a [Arc<Tree>],
}

impl<'a> BlockedWrites<'a> {
    fn new(inner: &'a DbInner, trees: &'a [Arc<Tree>]) -> BlockedWrites<'a> {
        trees.iter().for_each(|tree| tree.set_ingest_waiting(true));
        BlockedWrites { inner, trees }
    }
}

impl Drop for BlockedWrites<'_> {
    fn drop(&mut self) {
        self.trees.iter().for_each(|tree| tree.set_ingest_waiting(false));
        self.inner.state.progress.notify();
    }
}

/// Prevents the start of compactions of the trees until it is dropped.
struct PausedJobs<'a> {
    inner: &'a DbInner,
    trees: &'a [Arc<Tree>],
}

impl<'a> PausedJobs<'a> {
    fn new(inner: &'a DbInner, trees: &'a [Arc<Tree>]) -> PausedJobs<'a> {
        trees.iter().for_each(|tree| tree.jobs.lock().is_ingesting = true);
        PausedJobs { inner, trees }
    }
}

impl Drop for PausedJobs<'_> {
    fn drop(&mut self) {
        for tree in self.trees {
            tree.jobs.lock().is_ingesting = false;
            self.inner.state.work.push(WorkKind::Compaction, tree.id);
        }
        self.inner.state.progress.notify();
    }
}

/// Returns whether a memtable of the tree contains a key or a range tombstone in the range of a table.
fn has_overlapping_memtable(of_tree: &TreeTables) -> bool {
    if failpoint::is_on(Failpoint::IngestSkipsFlush) {
        return false;
    }
    let view = of_tree.tree.pin_super_version();
    let ranges: Vec<_> = of_tree.tables.iter().map(|prepared| &prepared.meta.range).collect();
    view.memtables().any(|memtable| {
        ranges.iter().any(|range| contains_key_in(memtable, range))
            || memtable.range_tombstones().iter().any(|it| overlaps_any(it, &ranges))
    })
}

/// Returns whether a range tombstone overlaps one of the ranges, which are disjoint and in key order.
fn overlaps_any(tombstone: &RangeTombstone, ranges: &[&KeyRange]) -> bool {
    // Commits wait meanwhile, so each range tombstone is searched among the ranges.
    let first = ranges.partition_point(|range| {
        work_counter::add(work_counter::WorkKind::LeaderVisits, 1);
        range.largest < tombstone.start
    });
    let begins_before = |end: &Bytes| ranges[first].smallest < *end;
    first < ranges.len() && tombstone.end.as_ref().is_none_or(begins_before)
}

fn contains_key_in(memtable: &Arc<Memtable>, range: &KeyRange) -> bool {
    let mut cursor = memtable.cursor();
    // A memtable is in memory, so its cursor does not fail.
    let sought = cursor.seek(&range.smallest, SeqNo::MAX);
    sought.is_ok() && cursor.valid() && cursor.key().user_key <= &*range.largest
}

/// Result of an installation.
struct Installed {
    summary: IngestSummary,
    events: Vec<IngestEnd>,
}

/// A tree with its next version.
struct TreeInstall {
    tree: Arc<Tree>,
    version: Arc<Version>,
    placed: Vec<PlacedTable>,
}

/// An ingested table and its level.
pub(in crate::db) struct PlacedTable {
    pub(in crate::db) level: Level,
    pub(in crate::db) file: Arc<TableMeta>,
    /// True if the engine wrote the file, false if the file was linked.
    pub(in crate::db) is_written: bool,
    /// Bytes of all keys and values.
    pub(in crate::db) entry_bytes: u64,
}

/// Adds the tables to their trees at `seq`. Returns `None` if a memtable overlaps them. The caller is the leader of the
/// commit pipeline.
fn install(
    inner: &DbInner,
    prepared: &mut Vec<TreeTables>,
    new_files: &mut NewFiles,
    seq: SeqNo,
) -> Result<Option<Installed>> {
    let state = &inner.state;
    state.error_state.check_writable()?;
    if state.is_closing() {
        return Err(Error::Closed);
    }
    for of_tree in prepared.iter() {
        check_accepts_ingest(&of_tree.tree)?;
    }
    if prepared.iter().any(has_overlapping_memtable) {
        return Ok(None);
    }
    // The manifest edit makes the entries of the tables durable, so all earlier commits must be durable before it.
    let durable = state.wal.sync().and_then(|_| state.wal.durable_segments());
    let durable = durable.map_err(|error| state.make_read_only_under_lock(error))?;
    let prepared = std::mem::take(prepared);
    let trees: Vec<_> = prepared.iter().map(|of_tree| Arc::clone(&of_tree.tree)).collect();
    // Locked in the order of the keyspace ids.
    let install_locks: Vec<_> = trees.iter().map(|tree| tree.install.lock()).collect();
    let (mut edit, mut installs) = (Vec::new(), Vec::new());
    for of_tree in prepared {
        let (install, changes) = next_version(state, of_tree, seq)?;
        edit.extend(changes);
        installs.push(install);
    }
    edit.push(Change::FileNumberNext(state.files.next()));
    edit.push(Change::LastSeq(seq));
    // With this mark, recovery detects a log that lacks commits before the ingest.
    edit.extend(durable.last().map(|last| Change::WalMark { segment: last.id, bytes: last.bytes }));
    edit.push(Change::ClockUs(state.env.database_time_us()));
    state.error_state.check_writable()?;
    // From here on the manifest may name the files, even if the call fails or panics.
    new_files.keep();
    let edit = VersionEdit { changes: edit };
    measure_wait(&state.env, IoKind::Sync, || state.append_edit(&edit))
        .map_err(|error| state.make_read_only_under_lock(error))?;
    for TreeInstall { tree, version, placed } in &installs {
        // The entries stay invisible until `seq` is published.
        tree.update_super_version(|view| view.with_version(version, None));
        if !tree.last_run_filter.is_used() {
            last_run_filter::release_filters(version);
        }
        let range = KeyRange::enclosing_range(placed.iter().map(|placed| &placed.file.range));
        if let Some(range) = range {
            tree.ingested_ranges.add(seq, range);
        }
    }
    drop(install_locks);
    let mut installed =
        Installed { summary: IngestSummary { seq, ..Default::default() }, events: Vec::new() };
    for TreeInstall { tree, placed, .. } in &installs {
        installed.events.push(count_ingest(tree, placed, seq));
    }
    for event in &installed.events {
        installed.summary.files += event.files.len() as u64;
        installed.summary.entries += event.entries;
        installed.summary.bytes += event.bytes;
    }
    Ok(Some(installed))
}

/// Returns the next version of a tree with its prepared tables, and the manifest changes that lead to it. The caller
/// holds `tree.install`.
fn next_version(
    state: &DbState,
    of_tree: TreeTables,
    seq: SeqNo,
) -> Result<(TreeInstall, Vec<Change>)> {
    let TreeTables { tree, tables } = of_tree;
    let before = Arc::clone(&tree.pin_super_version().version);
    let mut facts: BTreeMap<FileId, (bool, u64)> = BTreeMap::new();
    let mut opened: Vec<Arc<TableFile>> = Vec::new();
    for PreparedTable { mut table, meta, is_written } in tables {
        table.set_ingest_seq(seq);
        let now_us = state.env.creation_time_us();
        let meta = TableMeta {
            seq_smallest: seq.0,
            seq_largest: seq.0,
            tombstone_seq_smallest: (meta.tombstones > 0).then_some(seq.0),
            oldest_tombstone_us: (meta.tombstones > 0).then_some(now_us),
            created_us: now_us,
            last_read_us: now_us,
            creation: state.tables.next_creation(),
            ..meta
        };
        let entry_bytes = table.properties().key_bytes + table.properties().value_bytes;
        facts.insert(meta.id, (is_written, entry_bytes));
        opened.push(state.tables.add_table_file(table, Arc::new(meta), Vec::new()));
    }
    let metas: Vec<_> = opened.iter().map(|table| Arc::clone(table.shape())).collect();
    let running = tree.jobs.lock().running.clone();
    let update = before.shape().with_ingested_files(&metas, &running, tree.ingest_level_max())?;
    let placed = update.edit.added.iter().map(|added| {
        let (is_written, entry_bytes) = facts.get(&added.file.id).copied().unwrap_or_default();
        PlacedTable { level: added.level, file: Arc::clone(&added.file), is_written, entry_bytes }
    });
    let placed = placed.collect();
    let NextVersion { version, changes } = NextVersion::new(tree.id, &before, update, &opened)?;
    Ok((TreeInstall { tree, version, placed }, changes))
}

/// Adds an ingest to the metrics of its tree. Returns its event.
pub(in crate::db) fn count_ingest(tree: &Tree, placed: &[PlacedTable], seq: SeqNo) -> IngestEnd {
    let mut end = IngestEnd {
        keyspace: tree.name(),
        seq: seq.0,
        files: placed.iter().map(|placed| placed.file.id).collect(),
        entries: 0,
        bytes: 0,
    };
    tree.counters.update(|counts| {
        counts.ingest.ingests += 1;
        for PlacedTable { level, file, is_written, .. } in placed {
            let written_bytes = if *is_written { file.bytes } else { 0 };
            counts.ingest.files += 1;
            counts.ingest.l0_files += u64::from(*level == Level(0));
            counts.ingest.bytes += file.bytes;
            counts.ingest.written_bytes += written_bytes;
            let flow = &mut counts.level_mut(level.0).flow;
            flow.incoming_bytes += file.bytes;
            flow.written_bytes += written_bytes;
            end.entries += file.entries;
            end.bytes += file.bytes;
        }
    });
    // Deletes count as puts without a value.
    let entry_bytes = placed.iter().map(|placed| placed.entry_bytes).sum();
    tree.counters.count_ingested_bytes(entry_bytes);
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_any_finds_exactly_the_overlaps() {
        let key = |number: u8| Bytes::copy_from_slice(&[number]);
        let ranges = [(2, 4), (6, 6), (8, 9)].map(|(from, to)| KeyRange::new(key(from), key(to)));
        let ranges: Vec<_> = ranges.iter().collect();
        for start in 0..12 {
            for end in (start + 1..13).map(Some).chain([None]) {
                let is_covered = |at: u8| at >= start && end.is_none_or(|end| at < end);
                let tombstone =
                    RangeTombstone { start: key(start), end: end.map(key), seqs: vec![SeqNo(1)] };
                let expected = [2, 3, 4, 6, 8, 9].into_iter().any(is_covered);
                assert_eq!(overlaps_any(&tombstone, &ranges), expected, "{start}..{end:?}");
            }
            let tombstone = RangeTombstone { start: key(start), end: None, seqs: vec![SeqNo(1)] };
            assert!(!overlaps_any(&tombstone, &[]));
        }
    }
}
