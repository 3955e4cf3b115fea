//! Implements the command `lsmx db PATH verify`.

use std::fmt::Write as _;
use std::path::Path;

use lsmx::{KeySearchReport, RemainingEntry, RemainingKind};
use lsmx_bench::report::text;

use crate::args::{DbArgs, VerifyArgs};
use crate::failure::Failure;
use crate::output;

/// Reads and checks all files. Returns an error at the first damage.
pub(super) fn run(arguments: &DbArgs, flags: &VerifyArgs) -> Result<(), Failure> {
    if let Some(key) = &flags.no_trace_of {
        let key = super::parse_bytes(arguments, "key", key)?;
        return search_key(arguments, &key, flags.json);
    }
    super::reject_keyspace(arguments, "verify")?;
    let report = lsmx::verify(&arguments.path, &super::options())?;
    let mut lines = vec![format!(
        "{} keyspaces, {} tables of {} with {} entries, {} commits in {} log segments: no damage was found",
        report.keyspaces,
        report.tables,
        text::format_bytes(report.table_bytes),
        report.entries,
        report.wal_records,
        report.wal_segments,
    )];
    if report.blob_files > 0 {
        lines.push(format!(
            "{} blob files of {}, {} values in use",
            report.blob_files,
            text::format_bytes(report.blob_bytes),
            report.blob_values,
        ));
    }
    if report.operand_stores > 0 {
        lines.push(format!("{} operand stores", report.operand_stores));
    }
    for keyspace in &report.operands_unchecked {
        lines.push(format!(
            "the operands of keyspace {keyspace:?} were not checked: this program does not have their store"
        ));
    }
    if report.wal_tail_bytes > 0 {
        lines.push(format!(
            "the log ends with {} bytes of an unfinished commit, which the next open cuts",
            report.wal_tail_bytes
        ));
    }
    for orphan in &report.orphans {
        lines.push(format!("{} is not in use, the next open removes it", orphan.display()));
    }
    output::stdout(format!("{}\n", lines.join("\n")).as_bytes())
}

/// Searches all files for a key, and returns an error if an entry remains.
fn search_key(arguments: &DbArgs, key: &[u8], json: bool) -> Result<(), Failure> {
    let (path, options) = (&arguments.path, super::options());
    let report = lsmx::search_key(path, &options, arguments.keyspace.as_deref(), key)?;
    if json {
        super::print_json(&report)?;
    } else {
        let mut lines = String::new();
        // Writing to a string does not fail.
        let _ = write_search_report(&mut lines, &report);
        output::stdout(lines.as_bytes())?;
    }
    if report.is_clear() { Ok(()) } else { Err(Failure::KeyRemains) }
}

fn write_search_report(lines: &mut String, report: &KeySearchReport) -> std::fmt::Result {
    for entry in &report.entries {
        let RemainingEntry { offset, seq, .. } = entry;
        let kind = match entry.kind {
            RemainingKind::Value => "value",
            RemainingKind::ValuePointer => "pointer to a value",
            RemainingKind::Operand => "merge operand",
            RemainingKind::Tombstone => "tombstone",
            RemainingKind::BlobValue => "value in a blob file",
        };
        let (file, keyspace) = (file_name(&entry.path), keyspace(entry.keyspace.as_ref()));
        write!(lines, "{file}, at {offset}: {kind} at sequence number {seq}, {keyspace}")?;
        match entry.expiry_us {
            Some(expiry_us) => writeln!(lines, ", expires at {expiry_us} us")?,
            None => writeln!(lines)?,
        }
    }
    for tombstone in &report.range_tombstones {
        let (file, keyspace) = (file_name(&tombstone.path), keyspace(tombstone.keyspace.as_ref()));
        writeln!(
            lines,
            "{file}: a range delete at sequence number {} covers the key, {keyspace}",
            tombstone.seq
        )?;
    }
    for path in &report.unsearched {
        writeln!(
            lines,
            "{} is not in use and was not searched, the next open removes it",
            path.display()
        )?;
    }
    for path in &report.wal_unreadable {
        writeln!(
            lines,
            "{} contains an unreadable commit, which was not searched",
            file_name(path)
        )?;
    }
    for keyspace in &report.operands_unsearched {
        writeln!(
            lines,
            "the operands of keyspace {keyspace:?} were not searched: this program cannot search their store"
        )?;
    }
    let KeySearchReport { tables, blob_files, wal_segments, operand_stores, .. } = report;
    writeln!(
        lines,
        "searched {tables} tables, {blob_files} blob files, {wal_segments} log segments and {operand_stores} operand stores: {}",
        match report.entries.len() {
            0 if report.is_clear() => "no trace".to_owned(),
            0 => "no entry found, but the search is incomplete".to_owned(),
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        }
    )
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn keyspace(name: Option<&String>) -> String {
    name.map_or_else(|| "dropped keyspace".to_owned(), |name| format!("keyspace {name:?}"))
}
