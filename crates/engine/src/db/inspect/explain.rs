//! Explanation of the lookup of one key: memtables, operand store, runs, filters and blocks.

use std::fmt;

use lsmx_base::coding::len_u64;
use lsmx_base::key::{EntryKind, SeqNo};
use serde::Serialize;

use crate::db::inner::DbInner;
use crate::error::Result;
use crate::format::expiry::{expiry_of, without_expiry};
use crate::lookup::point::{self, ReadScope};
use crate::operand_store::OperandReadTier;
use crate::table::explain::{BlockRead, BlockSource, explain_get};
use crate::tree::Tree;

/// The steps of the lookup of one key. `Display` prints one line per step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Name of the keyspace.
    pub keyspace: String,
    /// Sequence number of the lookup.
    pub seq: u64,
    /// Memtables that were searched, newest first.
    pub memtables: Vec<MemtableStep>,
    /// The operand store, if it was read. Its operands are older than the memtables and newer than the runs.
    pub operands: Option<OperandStep>,
    /// Sorted runs that were searched, newest first.
    pub runs: Vec<RunStep>,
    /// Number of older runs that were not searched.
    pub runs_left: u64,
    /// Length of the value, in bytes; `None` if the key has no value.
    pub value_bytes: Option<u64>,
}

/// An entry of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EntryFound {
    /// Sequence number of the entry.
    pub seq: u64,
    /// Kind of the entry: `put`, `delete`, `merge`, `value_pointer`, `put_expiring` or `value_pointer_expiring`.
    pub kind: &'static str,
    /// Length of the value or operand, in bytes.
    pub value_bytes: u64,
    /// Expiry time of the entry, in microseconds of the database clock.
    pub expiry_us: Option<u64>,
}

impl EntryFound {
    fn new(seq: SeqNo, kind: EntryKind, value_bytes: u64, expiry_us: Option<u64>) -> EntryFound {
        let kind = match kind {
            EntryKind::Put => "put",
            EntryKind::Delete => "delete",
            EntryKind::Merge => MERGE,
            EntryKind::ValuePointer => "value_pointer",
            EntryKind::PutExpiring => "put_expiring",
            EntryKind::ValuePointerExpiring => "value_pointer_expiring",
        };
        EntryFound { seq: seq.0, kind, value_bytes, expiry_us }
    }
}

/// The search of a memtable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemtableStep {
    /// True if the memtable is sealed and waits for its flush.
    pub sealed: bool,
    /// Sequence number of the newest range tombstone that covers the key.
    pub range_deleted_at: Option<u64>,
    /// Visible entries of the key, newest first, up to the first put or delete. Merge operands that were combined in
    /// the memtable appear as one put.
    pub found: Vec<EntryFound>,
}

/// The search of the operand store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OperandStep {
    /// Operands that are newer than all entries of the key in the runs, newest first. One entry may be the combination
    /// of several operands.
    pub found: Vec<EntryFound>,
}

/// The search of a sorted run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunStep {
    /// Level of the run.
    pub level: u8,
    /// Number of the run in the tree.
    pub run: u64,
    /// Number of the table file whose key range contains the key.
    pub file: Option<u64>,
    /// Result of the filter. `None` if the file has no filter or the filter was not used, as in the last run.
    pub filter_may_contain: Option<bool>,
    /// Blocks that were read, in order.
    pub blocks: Vec<BlockRead>,
    /// Sequence number of the newest range tombstone of the file that covers the key.
    pub range_deleted_at: Option<u64>,
    /// Newest visible entry of the key in the file.
    pub found: Option<EntryFound>,
}

/// Looks up a key and records each step.
pub(in crate::db) fn explain(db: &DbInner, tree: &Tree, key: &[u8]) -> Result<Explanation> {
    db.check_open()?;
    db.begin_operation();
    let (view, read_point) = db.state.pin_newest(tree, Tree::pin_super_version);
    tree.check_live()?;
    let seq = read_point.seq;
    let mut explanation =
        Explanation { keyspace: tree.name(), seq: seq.0, ..Explanation::default() };
    let mut is_complete = false;
    for (index, memtable) in view.memtables().enumerate() {
        let covering = memtable.newest_covering_seq(key, seq);
        let mut found = Vec::new();
        let found_base = memtable.visit_versions(key, seq, |seq, kind, value| {
            let is_visible = covering < Some(seq);
            if is_visible {
                let value_bytes = len_u64(without_expiry(kind, &value).len());
                found.push(EntryFound::new(seq, kind, value_bytes, expiry_of(kind, &value)));
            }
            is_visible && kind == EntryKind::Merge
        });
        is_complete = found_base || covering.is_some();
        let range_deleted_at = covering.map(|seq| seq.0);
        explanation.memtables.push(MemtableStep { sealed: index > 0, range_deleted_at, found });
        if is_complete {
            break;
        }
    }
    let operands = view.operand_view.as_ref();
    let operands = operands.filter(|operands| !is_complete && operands.view.may_contain(key));
    let mut newest_seq = None;
    let version = &view.version;
    let uses_last_run_filter = tree.last_run_filter.is_used();
    let count = version.runs().len();
    let shapes = version.shape().runs();
    for (index, (run, (level, shape))) in version.runs().iter().zip(shapes).enumerate() {
        if is_complete {
            explanation.runs_left += 1;
            continue;
        }
        let mut step = RunStep { level: level.0, run: shape.id.0, ..RunStep::default() };
        if let Some(file) = run.table_for_key(key) {
            let use_filter = uses_last_run_filter || index + 1 < count;
            let probe = explain_get(file.table(), key, seq, use_filter)?;
            step.found = probe
                .found
                .map(|(seq, kind, bytes)| EntryFound::new(seq, kind, bytes, probe.expiry_us));
            step.range_deleted_at = file.table().covering_tombstone(key, seq)?.map(|seq| seq.0);
            // An operand is not a complete value, so the search continues in older runs.
            let found_base = step.found.is_some_and(|found| found.kind != MERGE);
            is_complete = found_base || step.range_deleted_at.is_some();
            newest_seq =
                newest_seq.or(step.range_deleted_at.max(step.found.map(|found| found.seq)));
            step.file = Some(file.shape().id.0);
            step.filter_may_contain = probe.filter_may_contain;
            step.blocks = probe.blocks;
            if let Some(pointer) = &probe.pointer {
                step.blocks.push(version.blobs().explain(pointer)?);
            }
        }
        explanation.runs.push(step);
    }
    if let Some(operands) = operands {
        let mut found = Vec::new();
        operands.view.read_operands(key, seq, OperandReadTier::Storage, &mut found)?;
        found.retain(|operand| newest_seq < Some(operand.last.0));
        let found = found.iter().map(|operand| {
            EntryFound::new(operand.last, EntryKind::Merge, len_u64(operand.bytes.len()), None)
        });
        explanation.operands = Some(OperandStep { found: found.collect() });
    }
    // The value is read by an ordinary lookup in the same super version.
    let value = point::get(tree, &view, key, read_point, ReadScope::Storage)?;
    explanation.value_bytes = value.map(|value| len_u64(value.len()));
    Ok(explanation)
}

const MERGE: &str = "merge";
/// Maximum number of older operands of a key that are printed individually.
const PRINTED_OPERANDS_MAX: usize = 3;

impl fmt::Display for EntryFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, {} bytes", self.kind, self.seq, self.value_bytes)?;
        match self.expiry_us {
            Some(expiry_us) => write!(f, ", expires at {expiry_us} us"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for MemtableStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.sealed { "sealed memtable: " } else { "memtable: " })?;
        let separator = print_entries(f, &self.found)?;
        match (self.range_deleted_at, self.found.is_empty()) {
            (Some(seq), _) => write!(f, "{separator}range delete at {seq}"),
            (None, true) => f.write_str("nothing"),
            (None, false) => Ok(()),
        }
    }
}

impl fmt::Display for OperandStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("operand store: ")?;
        print_entries(f, &self.found)?;
        if self.found.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// Prints the entries of one key. Returns the separator for the following text.
fn print_entries(
    f: &mut fmt::Formatter<'_>,
    found: &[EntryFound],
) -> Result<&'static str, fmt::Error> {
    let mut remaining = found;
    let mut separator = "";
    while let Some((found, older)) = remaining.split_first() {
        write!(f, "{separator}{found}")?;
        separator = "; ";
        remaining = older;
        let chain = remaining.iter().take_while(|found| found.kind == MERGE).count();
        if found.kind == MERGE
            && chain > PRINTED_OPERANDS_MAX
            && let Some(last) = remaining.get(chain - 1)
        {
            write!(f, "; {chain} older operands, the first at {}", last.seq)?;
            remaining = remaining.get(chain..).unwrap_or_default();
        }
    }
    Ok(separator)
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
    use crate::db::Db;
    use crate::env::Background;
    use crate::merge_operator::Counter;
    use crate::options::db::Options;
    use crate::options::keyspace::KeyspaceOptions;
    use crate::vfs::MemVfs;

    #[test]
    fn explain_memtable_operands_and_range_deletes_are_listed() {
        let merging = KeyspaceOptions::default().merge_operator(Counter);
        let options = Options::default().background(Background::Inline).keyspace_defaults(merging);
        let db = Db::open("db", options.vfs(lsmx_base::sync::Arc::new(MemVfs::new()))).unwrap();
        let keyspace = db.default_keyspace();
        let one = 1u64.to_le_bytes();
        let first = db.snapshot().seq().0 + 1;
        db.put("k", one).unwrap();
        db.flush().unwrap();
        db.default_keyspace().merge("k", one).unwrap();
        db.default_keyspace().merge("k", one).unwrap();

        // Operands do not end the search.
        let explanation = keyspace.explain("k").unwrap();
        let kinds: Vec<_> = explanation.memtables[0].found.iter().map(|found| found.kind).collect();
        assert_eq!((kinds, explanation.runs.len()), (vec!["merge", "merge"], 1));
        let text = explanation.to_string();
        assert!(
            text.contains(&format!(
                "memtable: merge at {}, 8 bytes; merge at {}, 8 bytes\n",
                first + 2,
                first + 1
            )),
            "{text}"
        );

        // A range tombstone ends the search and hides older entries.
        db.default_keyspace().delete_range("a".."z").unwrap();
        let explanation = keyspace.explain("k").unwrap();
        assert_eq!(explanation.memtables[0].range_deleted_at, Some(first + 3));
        assert_eq!(
            (explanation.memtables[0].found.len(), explanation.runs_left, explanation.value_bytes),
            (0, 1, None)
        );
        let text = explanation.to_string();
        assert!(text.contains(&format!("memtable: range delete at {}\n", first + 3)), "{text}");

        // Only entries newer than the range tombstone are visible.
        for _ in 0..8 {
            db.default_keyspace().merge("k", one).unwrap();
        }
        let explanation = keyspace.explain("k").unwrap();
        assert_eq!((explanation.memtables[0].found.len(), explanation.value_bytes), (8, Some(8)));
        let line = format!("; 7 older operands, the first at {}; range delete", first + 4);
        assert!(explanation.to_string().contains(&line), "{explanation}");
        assert_eq!(
            keyspace.explain("none").unwrap().memtables[0].range_deleted_at,
            Some(first + 3)
        );
        assert!(keyspace.explain("~").unwrap().to_string().contains("memtable: nothing"));
    }
}
