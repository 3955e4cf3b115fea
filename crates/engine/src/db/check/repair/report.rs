//! Report of a repair.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use lsmx_compaction::TableMeta;
use serde::Serialize;

use crate::error::Error;

/// Findings and changes of [`repair`](crate::repair). A dry run reports the changes that it would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// True if damage was found. Without damage, the repair changes nothing.
    pub damaged: bool,
    /// Number of undamaged tables.
    pub tables_sound: u64,
    /// Number of damaged tables whose readable entries were written to new tables.
    pub tables_rewritten: u64,
    /// Number of tables that are missing or completely unreadable.
    pub tables_lost: u64,
    /// Number of tables dropped by [`RepairOptions::common_prefix`](crate::RepairOptions::common_prefix).
    pub tables_dropped: u64,
    /// Number of entries read from damaged tables.
    pub entries_salvaged: u64,
    /// Number of commits in the log.
    pub commits: u64,
    /// Bytes at the end of the log that hold no complete commit. They are not a finding, because they may be the torn
    /// tail of a power loss.
    pub log_tail_bytes: u64,
    /// Last sequence number up to which each keyspace is complete, by keyspace name. The keyspace holds all of its
    /// operations up to this number and no later ones, except for the data in [`lost`](RepairReport::lost). `None` if
    /// [`in_doubt`](RepairReport::in_doubt).
    pub complete_through: BTreeMap<String, Option<u64>>,
    /// Damage, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Unreadable data.
    pub lost: Vec<Loss>,
    /// True if manifest edits are lost. Tables may then be missing, or removed tables may reappear, without an entry in
    /// [`lost`](RepairReport::lost).
    pub in_doubt: bool,
    /// Directory to which damaged and unusable files were moved.
    pub set_aside: Option<PathBuf>,
    /// Names of the files in [`set_aside`](RepairReport::set_aside).
    pub files_set_aside: Vec<String>,
}

impl RepairReport {
    /// Returns whether reads of a key may return an older value, a deleted value or no value.
    #[must_use]
    pub fn may_affect(&self, keyspace: &str, key: &[u8]) -> bool {
        let is_lost = self.lost.iter().any(|loss| {
            loss.keyspace.as_deref().is_none_or(|name| name == keyspace)
                && loss.from.as_deref().is_none_or(|from| from <= key)
                && loss.to.as_deref().is_none_or(|to| key <= to)
        });
        is_lost || self.in_doubt
    }
}

/// Damage of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Path of the file or directory.
    pub path: PathBuf,
    /// The damage and its position.
    pub what: String,
    /// Action that the repair took.
    pub done: String,
}

/// Unreadable data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Name of the keyspace. `None` if several may be affected.
    pub keyspace: Option<String>,
    /// File that held the data.
    pub path: PathBuf,
    /// Kind of the data.
    pub what: LossKind,
    /// Smallest key that may be affected. `None`: no lower bound.
    pub from: Option<Vec<u8>>,
    /// Largest key that may be affected. `None`: no upper bound.
    pub to: Option<Vec<u8>>,
    /// Unreadable bytes of the file, or 0 if unknown.
    pub bytes: u64,
    /// Cause of the loss.
    pub why: String,
}

impl Loss {
    /// Creates a loss without key bounds.
    pub(crate) fn new(
        keyspace: Option<&str>,
        path: PathBuf,
        what: LossKind,
        why: impl ToString,
    ) -> Loss {
        let (keyspace, why) = (keyspace.map(str::to_owned), why.to_string());
        Loss { keyspace, path, what, from: None, to: None, bytes: 0, why }
    }

    /// Creates the loss of a whole table.
    pub(crate) fn for_table(
        keyspace: &str,
        path: PathBuf,
        what: LossKind,
        (table, why): (&TableMeta, &Error),
    ) -> Loss {
        Loss {
            from: Some(table.range.smallest.to_vec()),
            to: Some(table.range.largest.to_vec()),
            bytes: table.bytes,
            ..Loss::new(Some(keyspace), path, what, why)
        }
    }
}

/// Kind of lost data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossKind {
    /// Entries of a table. Reads of their keys return an older value, a deleted value or no value.
    Entries,
    /// Values in a blob file. Reads of their keys return an older value, a deleted value or no value.
    Values,
    /// Range tombstones of a table. Deleted keys may reappear.
    RangeDeletes,
    /// Merge operands.
    Operands,
    /// The newest commits of the log.
    Commits,
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossKind::Entries => "entries",
            LossKind::Values => "values",
            LossKind::RangeDeletes => "range deletes",
            LossKind::Operands => "merge operands",
            LossKind::Commits => "commits",
        })
    }
}

/// Returns true if an error is caused by damage. Any other error ends the repair.
pub(crate) fn is_damage_error(error: &Error) -> bool {
    match error {
        Error::UnsupportedVersion { .. } => false,
        // An unreadable file is damaged. A file that cannot be opened may be intact.
        Error::Io { action, source, .. } => {
            *action == "read" || source.kind() == io::ErrorKind::NotFound
        }
        _ => true,
    }
}
