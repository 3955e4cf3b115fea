//! What a lookup of one key does: memtables, runs, filters, blocks.

use std::fmt;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use serde::Serialize;

use crate::db::{DbInner, Keyspace};
use crate::error::Result;
use crate::lookup::point::ReadScope;
use crate::operand_store::OperandReadTier;
use crate::table::explain::{BlockRead, BlockSource, explain_get};
use crate::tree::Tree;

/// What the lookup of one key did, step by step; prints as one line for each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The keyspace.
    pub keyspace: String,
    /// The number up to which it saw.
    pub seq: u64,
    /// Memtables that it asked, newest first.
    pub memtables: Vec<MemtableStep>,
    /// The operand store, if it came to it and that may have something of the key. Its operands
    /// come between those of memtables and runs, though runs are asked first.
    pub operands: Option<OperandStep>,
    /// Sorted runs that it came to, newest first.
    pub runs: Vec<RunStep>,
    /// Runs that it did not come to, because it had its answer.
    pub runs_left: u64,
    /// Bytes of the value; none if the key has no value.
    pub value_bytes: Option<u64>,
}

/// An entry of the key that a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EntryFound {
    /// Its sequence number.
    pub seq: u64,
    /// What it does: `put`, `delete`, `merge` or `value_pointer`.
    pub kind: &'static str,
    /// Bytes of its value or operand.
    pub value_bytes: u64,
}

/// A memtable that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemtableStep {
    /// Whether it waits for its flush.
    pub sealed: bool,
    /// Number of its newest range delete that covers the key.
    pub range_deleted_at: Option<u64>,
    /// What it holds of the key and nothing above makes void, newest first: merge operands, down to a
    /// put or a delete. Operands that were folded in memory already show as the put they came to.
    pub found: Vec<EntryFound>,
}

/// An operand store that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperandStep {
    /// Operands of the key, several of which may be folded into one, newest first: those that runs do not
    /// make void.
    pub found: Vec<EntryFound>,
}

/// A sorted run that a lookup came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunStep {
    /// Its level.
    pub level: u8,
    /// Its name in the tree.
    pub run: u64,
    /// Number of the one file whose range covers the key; none if the key is in no file's range.
    pub file: Option<u64>,
    /// What the filter answered; none if it was not asked, as in the last run, or there is none.
    pub filter_may_contain: Option<bool>,
    /// Blocks that were needed, in order.
    pub blocks: Vec<BlockRead>,
    /// Number of the newest range delete in the file that covers the key.
    pub range_deleted_at: Option<u64>,
    /// What the file holds of the key.
    pub found: Option<EntryFound>,
}

impl Explanation {
    /// Blocks that storage had to give.
    #[must_use]
    pub fn blocks_from_storage(&self) -> u64 {
        let blocks = self.runs.iter().flat_map(|run| &run.blocks);
        len_u64(blocks.filter(|block| block.source == BlockSource::Storage).count())
    }
}

impl Keyspace {
    /// Looks `key` up as [`Keyspace::get`] does, and tells what that takes. The lookup is a real one:
    /// it fills the cache and counts in the metrics, so that a second call shows what is cached then.
    ///
    /// # Errors
    /// As [`Db::get`](crate::Db::get).
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        self.inner().explain(self.tree(), key.as_ref())
    }
}

impl DbInner {
    fn explain(&self, tree: &Tree, key: &[u8]) -> Result<Explanation> {
        self.check_open()?;
        self.begin_operation();
        let view = tree.pin_super_version();
        tree.check_live()?;
        let seq = self.state.sequence.published();
        let mut explanation = Explanation {
            keyspace: tree.name.clone(),
            seq: seq.0,
            memtables: Vec::new(),
            operands: None,
            runs: Vec::new(),
            runs_left: 0,
            value_bytes: None,
        };
        // An operand is an answer only with what lies below it.
        let ends = |found: &Option<EntryFound>| found.is_some_and(|found| found.kind != MERGE);
        let mut answered = false;
        for (number, memtable) in view.memtables().enumerate() {
            let covering = memtable.newest_covering(key, seq);
            let mut found = Vec::new();
            let ended = memtable.visit_versions(key, seq, |seq, kind, value| {
                let counts = covering < Some(seq);
                if counts {
                    found.push(entry(seq, kind, len_u64(value.len())));
                }
                counts && kind == EntryKind::Merge
            });
            answered = ended || covering.is_some();
            let range_deleted_at = covering.map(|seq| seq.0);
            explanation.memtables.push(MemtableStep {
                sealed: number > 0,
                range_deleted_at,
                found,
            });
            if answered {
                break;
            }
        }
        let beside =
            view.operand_view.as_ref().filter(|beside| !answered && beside.view.may_contain(key));
        let mut newest = None;
        let version = &view.version;
        let filter_last_run = tree.uses_last_run_filter();
        let count = version.runs().len();
        let shapes = version.shape().runs();
        for (index, (run, (level, shape))) in version.runs().iter().zip(shapes).enumerate() {
            if answered {
                explanation.runs_left += 1;
                continue;
            }
            let mut step = RunStep {
                level: level.0,
                run: shape.id.0,
                file: None,
                filter_may_contain: None,
                blocks: Vec::new(),
                range_deleted_at: None,
                found: None,
            };
            if let Some(file) = run.table_for(key) {
                let use_filter = filter_last_run || index + 1 < count;
                let probe = explain_get(file.table(), key, seq, use_filter)?;
                let found = probe.found.map(|(seq, kind, bytes)| entry(seq, kind, bytes));
                let deleted = file.table().covering_tombstone(key, seq)?.map(|seq| seq.0);
                answered = ends(&found) || deleted.is_some();
                newest = newest.or(deleted.max(found.map(|found| found.seq)));
                step.file = Some(file.shape().id.0);
                step.filter_may_contain = probe.filter_may_contain;
                step.blocks = probe.blocks;
                if let Some(pointer) = &probe.pointer {
                    step.blocks.push(version.blobs().explain(pointer)?);
                }
                (step.range_deleted_at, step.found) = (deleted, found);
            }
            explanation.runs.push(step);
        }
        if let Some(beside) = beside {
            let mut operands = Vec::new();
            beside.view.read_operands(key, seq, OperandReadTier::Storage, &mut operands)?;
            let found = operands.iter().filter(|operand| newest < Some(operand.last.0));
            let found = found.map(|it| entry(it.last, EntryKind::Merge, len_u64(it.bytes.len())));
            explanation.operands = Some(OperandStep { found: found.collect() });
        }
        // The answer itself is that of an ordinary lookup in the same view.
        let value = crate::lookup::point::get(tree, &view, key, seq, ReadScope::Storage)?;
        explanation.value_bytes = value.map(|value| len_u64(value.len()));
        Ok(explanation)
    }
}

const MERGE: &str = "merge";
/// Longest chain of operands below the newest that is printed one by one.
const OPERANDS_SHOWN: usize = 3;

fn entry(seq: SeqNo, kind: EntryKind, value_bytes: u64) -> EntryFound {
    let kind = match kind {
        EntryKind::Put => "put",
        EntryKind::Delete => "delete",
        EntryKind::Merge => MERGE,
        EntryKind::ValuePointer => "value_pointer",
    };
    EntryFound { seq: seq.0, kind, value_bytes }
}

impl fmt::Display for EntryFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, {} bytes", self.kind, self.seq, self.value_bytes)
    }
}

impl fmt::Display for MemtableStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sealed { "sealed memtable: " } else { "memtable: " })?;
        let gap = show_chain(f, &self.found)?;
        match (self.range_deleted_at, self.found.is_empty()) {
            (Some(seq), _) => write!(f, "{gap}range delete at {seq}"),
            (None, true) => f.write_str("nothing"),
            (None, false) => Ok(()),
        }
    }
}

impl fmt::Display for OperandStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("operand store: ")?;
        show_chain(f, &self.found)?;
        if self.found.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// Shows entries of one key; returns what stands before whatever follows.
fn show_chain(
    f: &mut fmt::Formatter<'_>,
    found: &[EntryFound],
) -> Result<&'static str, fmt::Error> {
    let mut left = found;
    let mut gap = "";
    while let Some((found, older)) = left.split_first() {
        write!(f, "{gap}{found}")?;
        gap = "; ";
        left = older;
        // A chain of operands may be long.
        let chain = left.iter().take_while(|found| found.kind == MERGE).count();
        if found.kind == MERGE
            && chain > OPERANDS_SHOWN
            && let Some(last) = left.get(chain - 1)
        {
            write!(f, "; {chain} older operands, the first at {}", last.seq)?;
            left = left.get(chain..).unwrap_or_default();
        }
    }
    Ok(gap)
}

impl fmt::Display for RunStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{} run {}: ", self.level, self.run)?;
        let Some(file) = self.file else { return f.write_str("key in no file's range") };
        write!(f, "file {file:06}, filter ")?;
        f.write_str(match self.filter_may_contain {
            None => "not asked",
            Some(true) => "says maybe",
            Some(false) => "says absent",
        })?;
        for block in &self.blocks {
            let source = match block.source {
                BlockSource::Cache => "cached",
                BlockSource::Storage => "read",
            };
            write!(
                f,
                ", {:?} block of {} bytes at {} {source}",
                block.kind, block.bytes, block.offset
            )?;
        }
        if let Some(seq) = self.range_deleted_at {
            write!(f, ", range delete at {seq}")?;
        }
        match &self.found {
            Some(found) => write!(f, ": {found}"),
            None => f.write_str(": nothing"),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[{}] as of {}", self.keyspace, self.seq)?;
        for memtable in &self.memtables {
            writeln!(f, "{memtable}")?;
        }
        if let Some(operands) = &self.operands {
            writeln!(f, "{operands}")?;
        }
        for run in &self.runs {
            writeln!(f, "{run}")?;
        }
        if self.runs_left > 0 {
            writeln!(f, "{} older runs not asked", self.runs_left)?;
        }
        match self.value_bytes {
            Some(bytes) => write!(f, "value of {bytes} bytes"),
            None => f.write_str("no value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::env::Background;
    use crate::merge_operator::Counter;
    use crate::vfs::MemVfs;
    use crate::{Db, KeyspaceOptions, Options};

    #[test]
    fn operands_and_range_deletes_in_memtables_are_told() {
        let merging = KeyspaceOptions::default().merge_operator(Counter);
        let options = Options::default().background(Background::Inline).keyspace_defaults(merging);
        let db = Db::open("db", options.vfs(lsmx_base::sync::Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let one = 1u64.to_le_bytes();
        let first = db.snapshot().seq().0 + 1;
        db.put("k", one).unwrap();
        db.flush().unwrap();
        db.merge("k", one).unwrap();
        db.merge("k", one).unwrap();

        // Operands need what lies below them.
        let told = keyspace.explain("k").unwrap();
        let kinds: Vec<_> = told.memtables[0].found.iter().map(|found| found.kind).collect();
        assert_eq!((kinds, told.runs.len()), (vec!["merge", "merge"], 1));
        let text = told.to_string();
        assert!(
            text.contains(&format!(
                "memtable: merge at {}, 8 bytes; merge at {}, 8 bytes\n",
                first + 2,
                first + 1
            )),
            "{text}"
        );

        // A range delete ends the lookup, and hides what is older.
        db.delete_range("a".."z").unwrap();
        let told = keyspace.explain("k").unwrap();
        assert_eq!(told.memtables[0].range_deleted_at, Some(first + 3));
        assert_eq!((told.memtables[0].found.len(), told.runs_left, told.value_bytes), (0, 1, None));
        let text = told.to_string();
        assert!(text.contains(&format!("memtable: range delete at {}\n", first + 3)), "{text}");

        // What comes after it counts, and only that.
        for _ in 0..8 {
            db.merge("k", one).unwrap();
        }
        let told = keyspace.explain("k").unwrap();
        assert_eq!((told.memtables[0].found.len(), told.value_bytes), (8, Some(8)));
        let line = format!("; 7 older operands, the first at {}; range delete", first + 4);
        assert!(told.to_string().contains(&line), "{told}");
        assert_eq!(
            keyspace.explain("none").unwrap().memtables[0].range_deleted_at,
            Some(first + 3)
        );
        assert!(keyspace.explain("~").unwrap().to_string().contains("memtable: nothing"));
    }
}
