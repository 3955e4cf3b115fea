//! Implements the command `lsmx db PATH verify`.

use lsmx_bench::report::text;

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Reads and checks all files. Returns an error at the first damage.
pub(super) fn run(arguments: &DbArgs) -> Result<(), Failure> {
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
