//! `lsmx db PATH verify`.

use std::fmt::Write as _;
use std::sync::Arc;

use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::OsVfs;
use lsmx_bench::report::text;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use crate::args::DbArgs;
use crate::failure::Failure;
use crate::output;

/// Reads all files. The first damage ends the command with exit code 1.
pub(super) fn run(arguments: &DbArgs) -> Result<(), Failure> {
    super::whole_database(arguments, "verify")?;
    let delta: Arc<dyn OperandStoreFactory> =
        Arc::new(DeltaStoreFactory::new(DeltaOptions::default()));
    let report = lsmx::verify(
        &arguments.path,
        &lsmx::Options::default().vfs(Arc::new(OsVfs)).operand_store(delta),
    )?;
    let mut lines = format!(
        "{} keyspaces, {} tables of {} with {} entries, {} commits in {} log segments: all sound{}\n",
        report.keyspaces,
        report.tables,
        text::bytes(report.table_bytes),
        report.entries,
        report.wal_records,
        report.wal_segments,
        if report.operands_unchecked.is_empty() { "" } else { " but for what was not checked" },
    );
    let mut note = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = lines.write_fmt(line);
    };
    if report.blob_files > 0 {
        note(format_args!(
            "{} blob files of {}, {} values in use\n",
            report.blob_files,
            text::bytes(report.blob_bytes),
            report.blob_values,
        ));
    }
    if report.operand_stores > 0 {
        note(format_args!("{} operand stores\n", report.operand_stores));
    }
    for keyspace in &report.operands_unchecked {
        note(format_args!(
            "the operands of keyspace {keyspace:?} were not checked: this program does not have their store\n"
        ));
    }
    if report.wal_tail_bytes > 0 {
        note(format_args!(
            "the log ends in {} bytes of an unfinished commit, which the next opening cuts\n",
            report.wal_tail_bytes
        ));
    }
    for orphan in &report.orphans {
        note(format_args!(
            "{} belongs to nothing, the next opening removes it\n",
            orphan.display()
        ));
    }
    output::stdout(lines.as_bytes())
}
