//! Report of a repair.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

/// Findings and changes of [`repair`](crate::db::check::repair::repair). A dry run reports the changes that it would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Whether something was wrong. If not, nothing was done.
    pub damaged: bool,
    /// Tables that are as they were.
    pub tables_sound: u64,
    /// Tables whose readable entries were written to new ones.
    pub tables_rewritten: u64,
    /// Tables of which nothing could be read, or that are missing.
    pub tables_lost: u64,
    /// Tables with later commits that [`common_prefix`](crate::db::check::repair::RepairOptions::common_prefix) has dropped.
    pub tables_dropped: u64,
    /// Entries of the rewritten tables.
    pub entries_salvaged: u64,
    /// Commits that the log held.
    pub commits: u64,
    /// Bytes at the end of the log that hold no whole commit. Nothing distinguishes the torn tail of a power
    /// loss from damage of these bytes, so they are no finding.
    pub log_tail_bytes: u64,
    /// For each keyspace by name, the sequence number up to which it is complete: it holds all of its
    /// operations up to this number and none after it, apart from entries, values, range deletes and operands that
    /// [`lost`](RepairReport::lost) names. `None` if [`in_doubt`](RepairReport::in_doubt).
    pub complete_through: BTreeMap<String, Option<u64>>,
    /// What was wrong, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// What cannot be read any more.
    pub lost: Vec<Lost>,
    /// Whether parts of the manifest are lost. Then nobody can tell which tables are missing, or were let go
    /// before and are back, so nothing can be said of what is not in `lost` either.
    pub in_doubt: bool,
    /// Where the files are that were damaged, or that the repair could not place.
    pub set_aside: Option<PathBuf>,
    /// Names of these files.
    pub files_set_aside: Vec<String>,
}

impl RepairReport {
    /// Whether what is read of a key may be other than it was: an older value, a deleted one, or none.
    #[must_use]
    pub fn may_affect(&self, keyspace: &str, key: &[u8]) -> bool {
        let lost = self.lost.iter().any(|lost| {
            lost.keyspace.as_deref().is_none_or(|name| name == keyspace)
                && lost.from.as_deref().is_none_or(|from| from <= key)
                && lost.to.as_deref().is_none_or(|to| key <= to)
        });
        lost || self.in_doubt
    }
}

/// Something that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it, and where.
    pub what: String,
    /// What was done about it.
    pub done: String,
}

/// Something that is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Name of the keyspace; none for what belongs to several, or to nobody knows which.
    pub keyspace: Option<String>,
    /// The file it was in.
    pub path: PathBuf,
    /// What it was.
    pub what: LostKind,
    /// The smallest key that may be affected; none: from the beginning.
    pub from: Option<Vec<u8>>,
    /// The largest key that may be affected; none: to the end.
    pub to: Option<Vec<u8>>,
    /// Bytes of the file that could not be read, as far as that is known.
    pub bytes: u64,
    /// What is wrong there.
    pub why: String,
}

/// What is lost of a range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LostKind {
    /// Entries: their keys have an older value, one that was deleted, or none.
    Entries,
    /// Values of entries, in a blob file; as for entries.
    Values,
    /// Range deletes: what they had deleted may be back.
    RangeDeletes,
    /// Merge operands.
    Operands,
    /// The last commits.
    Commits,
}

impl LostKind {
    /// For people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LostKind::Entries => "entries",
            LostKind::Values => "values",
            LostKind::RangeDeletes => "range deletes",
            LostKind::Operands => "merge operands",
            LostKind::Commits => "commits",
        }
    }
}
