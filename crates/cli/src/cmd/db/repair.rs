//! Implements the command `lsmx db PATH repair`.

use std::fmt::Write as _;

use lsmx::{Loss, RepairOptions, RepairReport};
use lsmx_bench::report::text;

use crate::args::{DbArgs, RepairArgs};
use crate::failure::Failure;
use crate::output;

/// Repairs the database, or reports what a repair would do.
pub(super) fn run(arguments: &DbArgs, flags: &RepairArgs) -> Result<(), Failure> {
    super::reject_keyspace(arguments, "repair")?;
    let options = RepairOptions {
        dry_run: flags.dry_run,
        force: flags.force,
        common_prefix: flags.common_prefix,
    };
    let report = lsmx::repair(&arguments.path, &super::options(), &options)?;
    if flags.json {
        super::print_json(&report)?;
    } else {
        let mut lines = String::new();
        // Writing to a string does not fail.
        let _ = write_report(&mut lines, &report, flags.dry_run);
        output::stdout(lines.as_bytes())?;
    }
    match report.lost.is_empty() && !report.in_doubt {
        true => Ok(()),
        false => Err(Failure::DataLost),
    }
}

fn write_report(lines: &mut String, report: &RepairReport, dry_run: bool) -> std::fmt::Result {
    if !report.damaged {
        return writeln!(
            lines,
            "{} tables: no damage was found, nothing was changed",
            report.tables_sound
        );
    }
    for finding in &report.findings {
        writeln!(lines, "{}; {}", finding.what, finding.done)?;
    }
    for lost in &report.lost {
        writeln!(lines, "lost: {}", describe_loss(lost))?;
    }
    writeln!(
        lines,
        "{} intact tables, {} partly readable tables ({} entries), {} lost tables, {} commits in the log",
        report.tables_sound,
        report.tables_rewritten,
        report.entries_salvaged,
        report.tables_lost,
        report.commits,
    )?;
    if report.tables_dropped > 0 {
        let tables = report.tables_dropped;
        writeln!(lines, "{tables} tables with commits after the damage of the log were dropped")?;
    }
    for (keyspace, seq) in &report.complete_through {
        match seq {
            Some(seq) => {
                writeln!(lines, "keyspace {keyspace} is complete through sequence number {seq}")?;
            }
            None => writeln!(lines, "keyspace {keyspace} may lack any of its commits")?,
        }
    }
    if report.log_tail_bytes > 0 {
        let bytes = report.log_tail_bytes;
        writeln!(lines, "the log ends with {bytes} bytes of an unfinished commit, which were cut")?;
    }
    if report.in_doubt {
        writeln!(lines, "parts of the manifest are lost: further tables may be missing")?;
    }
    if report.lost.is_empty() {
        writeln!(lines, "no loss is known")?;
    } else {
        writeln!(lines, "lost keys may have older values, and deleted keys may be visible again")?;
    }
    match &report.set_aside {
        Some(aside) => writeln!(
            lines,
            "{} files were moved to {}",
            report.files_set_aside.len(),
            aside.display()
        ),
        None if dry_run => writeln!(lines, "nothing was changed: this was a dry run"),
        None => Ok(()),
    }
}

fn describe_loss(lost: &Loss) -> String {
    let mut line = format!("{} of {}", lost.what, lost.path.display());
    let key = |key: &Option<Vec<u8>>, none: &str| match key {
        Some(key) => format!("\"{}\"", key[..key.len().min(64)].escape_ascii()),
        None => none.to_owned(),
    };
    if let Some(keyspace) = &lost.keyspace {
        let (from, to) = (key(&lost.from, "the first key"), key(&lost.to, "the last key"));
        // Writing to a string does not fail.
        let _ = write!(line, ", keyspace {keyspace}, from {from} to {to}");
    }
    if lost.bytes > 0 {
        // Writing to a string does not fail.
        let _ = write!(line, " ({})", text::format_bytes(lost.bytes));
    }
    line
}
