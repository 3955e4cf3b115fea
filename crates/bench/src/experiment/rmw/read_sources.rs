//! The experiment `read-sources`: measures where lookups find blocks and operands after updates.
//!
//! 1. When compaction is idle after the operations, lookups of popular records are timed.
//! 2. The steps of further lookups with the same access frequencies are recorded: searched tables, block reads, and
//!    found operands.
//! 3. All entries of all tables are read, which gives the share of operands in each level.

use std::collections::BTreeMap;
use std::path::Path;

use lsmx::inspect::{BlockRead, BlockSource};
use lsmx::internals::cache::BlockCache;
use lsmx::internals::manifest::Manifest;
use lsmx::internals::table::{ReadPurpose, Table, TableCursor, TableIdentity};
use lsmx::metrics::BlockKind;
use lsmx::operand_store::Cursor;
use lsmx::vfs::OsVfs;
use lsmx::{EntryKind, Explanation, SeqNo};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::{OperationKind, ThreadGroup, flush_and_wait_idle};
use crate::experiment::sweep::{SweepPoint, SweepValue};
use crate::numbers::{self, ratio};
use crate::peers::lsmx::engine_error;
use crate::workload::random::Random;

use super::cell::{CellPlan, LoadedDatabase};
use super::design::ValuePlacement;
use super::model::ValueModel;
use super::result::{ReadSource, RmwCell};
use super::study::RmwStudy;

/// Number of operations per measured lookup, and maximum number of measured lookups.
const OPS_PER_LOOKUP: u64 = 10;
const LOOKUPS_MAX: u64 = 50_000;
const PURPOSE_TIMED: u64 = 0x7469_6d65;
const PURPOSE_STEPS: u64 = 0x7374_6570;

/// Sums over all lookups, for one source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SourceReads {
    searches: u64,
    block_reads: u64,
    operands: u64,
}

/// Sums over all lookups: the levels, the operand store, and the value log.
#[derive(Debug, Default)]
struct LookupSteps {
    lookups: u64,
    levels: BTreeMap<u8, SourceReads>,
    operand_store: SourceReads,
    value_log: SourceReads,
}

impl LookupSteps {
    fn add(&mut self, steps: &Explanation, bucket_reads: u64) {
        self.lookups += 1;
        for step in &steps.runs {
            let level = self.levels.entry(step.level).or_default();
            let is_blob = |block: &&BlockRead| block.kind == BlockKind::Blob;
            let read = |block: &&BlockRead| block.source == BlockSource::Storage;
            let (blobs, blocks): (Vec<&BlockRead>, Vec<&BlockRead>) =
                step.blocks.iter().partition(is_blob);
            level.searches += u64::from(blocks.iter().any(|block| block.kind == BlockKind::Data));
            level.block_reads += numbers::to_u64(blocks.into_iter().filter(read).count());
            level.operands += u64::from(step.found.is_some_and(|found| found.kind == "merge"));
            self.value_log.searches += numbers::to_u64(blobs.len());
            self.value_log.block_reads += numbers::to_u64(blobs.into_iter().filter(read).count());
        }
        if let Some(step) = &steps.operands {
            self.operand_store.searches += 1;
            self.operand_store.operands += numbers::to_u64(step.found.len());
        }
        self.operand_store.block_reads += bucket_reads;
    }
}

/// Bytes of the keys and values of all entries, and of the operands among them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TableContents {
    bytes: u64,
    operand_bytes: u64,
}

/// Runs the operations and the lookups in one database. Returns one result per source, and one for all sources.
pub(super) fn run_read_sources(
    plan: &CellPlan,
    directory: &Path,
    progress: &mut dyn Progress,
) -> Result<Vec<RmwCell>> {
    let (path, records) = (directory.join("db"), plan.generated_records()?);
    let database = plan.load_database(&path, &records, progress)?;
    let before = database.read_counters();
    let updated = plan.run_operations(&database, progress)?;
    let settle_s =
        flush_and_wait_idle(database.engine.as_ref(), &plan.step_title("settle"), progress)?;
    let used = database.read_counters().since(&before);
    plan.warm_up(&database, progress)?;
    let lookups = (plan.recipe.ops / OPS_PER_LOOKUP).clamp(1, LOOKUPS_MAX);
    let popularity = plan.recipe.popularity();
    let seed = plan.recipe.seed;
    let group = ThreadGroup { seed, purpose: PURPOSE_TIMED, ..database.thread_group() };
    let played = group.run_work((&plan.step_title("read"), lookups), progress, &|player| {
        player.for_each_own_number(lookups, |player, _| {
            let record = popularity.draw(&mut player.random);
            player.get_present(record)
        })
    })?;
    let steps = record_steps(plan, &database, lookups, progress)?;
    let contents = read_table_contents(&path)?;
    let model = ValueModel::after_stream(&plan.recipe, &records);
    let cell = RmwCell {
        settle_s,
        rmws: updated.count(OperationKind::Update),
        rmw_latency_us: updated.latency(OperationKind::Update),
        put_latency_us: updated.latency(OperationKind::Put),
        operand_store: database.engine.operand_store_metrics(),
        checked_records: numbers::to_u64(model.len()),
        ..plan.result_cell(&database, &played, &used)
    };
    let cells = list_sources(plan, &steps, &contents).into_iter().map(|(name, source)| RmwCell {
        sweep: SweepPoint(vec![(
            RmwStudy::ReadSources.parameter_name().to_owned(),
            SweepValue::Text(name),
        )]),
        source: Some(source),
        ..cell.clone()
    });
    let cells = cells.collect();
    database.check_and_remove(&model)?;
    Ok(cells)
}

fn record_steps(
    plan: &CellPlan,
    database: &LoadedDatabase<'_>,
    lookups: u64,
    progress: &mut dyn Progress,
) -> Result<LookupSteps> {
    progress.begin_phase(&plan.step_title("explain"), lookups);
    let popularity = plan.recipe.popularity();
    let mut random = Random::new(plan.recipe.seed, PURPOSE_STEPS);
    let (mut steps, mut key) = (LookupSteps::default(), Vec::new());
    for _ in 0..lookups {
        database.records.write_key(popularity.draw(&mut random), &mut key);
        if let Some((explanation, bucket_reads)) = database.engine.explain(&key)? {
            steps.add(&explanation, bucket_reads);
        }
        progress.advance(1);
    }
    progress.end_phase();
    Ok(steps)
}

/// Reads all entries of the tables of an idle database. Returns the sizes by level.
fn read_table_contents(path: &Path) -> Result<BTreeMap<u8, TableContents>> {
    let failed = || engine_error("read the entries of tables");
    let manifest = Manifest::load(&OsVfs, path).map_err(failed())?;
    let cache = BlockCache::new(0);
    let mut levels: BTreeMap<u8, TableContents> = BTreeMap::new();
    let trees = manifest.state.keyspaces.values().map(|keyspace| &keyspace.tree);
    for (level, _, file) in trees.flat_map(|tree| tree.positioned_files()) {
        let identity = TableIdentity {
            id: file.id,
            bytes: file.bytes,
            uid: file.uid,
            checksum: file.checksum,
            seq_largest: SeqNo(file.seq_largest),
        };
        let table_path = FileName::Table(file.id.0).in_dir(path);
        let table = Table::open(&OsVfs, &table_path, &identity, &cache).map_err(failed())?;
        let mut cursor = TableCursor::new(&Arc::new(table), ReadPurpose::Job);
        let contents = levels.entry(level.0).or_default();
        cursor.first().map_err(failed())?;
        while cursor.valid() {
            let key = cursor.key();
            let bytes = numbers::to_u64(key.user_key.len() + cursor.value().len());
            contents.bytes += bytes;
            contents.operand_bytes += if key.kind == EntryKind::Merge { bytes } else { 0 };
            cursor.next().map_err(failed())?;
        }
    }
    Ok(levels)
}

/// Returns the name and the numbers of each source, and of all sources together. Levels without entries are omitted.
fn list_sources(
    plan: &CellPlan,
    steps: &LookupSteps,
    contents: &BTreeMap<u8, TableContents>,
) -> Vec<(String, ReadSource)> {
    let source = |reads: SourceReads, contents: Option<TableContents>| ReadSource {
        searches_per_read: ratio(reads.searches, steps.lookups),
        block_reads_per_read: ratio(reads.block_reads, steps.lookups),
        operands_per_read: ratio(reads.operands, steps.lookups),
        bytes: contents.map(|contents| contents.bytes),
        operand_share: contents.map(|contents| ratio(contents.operand_bytes, contents.bytes)),
    };
    let (mut all_reads, mut all_contents) = (SourceReads::default(), TableContents::default());
    let mut add = |reads: SourceReads| {
        all_reads.searches += reads.searches;
        all_reads.block_reads += reads.block_reads;
        all_reads.operands += reads.operands;
    };
    let mut sources = Vec::new();
    for (level, contents) in contents {
        let reads = steps.levels.get(level).copied().unwrap_or_default();
        add(reads);
        all_contents.bytes += contents.bytes;
        all_contents.operand_bytes += contents.operand_bytes;
        sources.push((format!("L{level}"), source(reads, Some(*contents))));
    }
    if plan.design.mode.uses_operand_store() {
        add(steps.operand_store);
        sources.push(("operand store".to_owned(), source(steps.operand_store, None)));
    }
    if plan.design.base == ValuePlacement::ValueLog {
        add(steps.value_log);
        sources.push(("value log".to_owned(), source(steps.value_log, None)));
    }
    sources.push(("all".to_owned(), source(all_reads, Some(all_contents))));
    sources
}
