//! Report that shows which check detected each enabled failpoint.

use std::fmt::Write as _;

use lsmx_base::failpoint::Failpoint;

/// A failpoint that a check has detected.
#[derive(Clone, Copy, Debug)]
pub struct Detection {
    /// The enabled failpoint.
    pub failpoint: Failpoint,
    /// Name of the check that failed.
    pub check: &'static str,
    /// Number of runs of the check, including the run that failed.
    pub runs: u64,
    /// Total time of all runs of the check, in milliseconds.
    pub ms: u64,
}

/// Formats detections as an aligned Markdown table. The rows are sorted by the bug class of the failpoint.
#[must_use]
pub fn format_detections(detections: &[Detection]) -> String {
    let mut detections = detections.to_vec();
    detections.sort_by_key(|detection| detection.failpoint.bug_class());
    let max_len = |text: fn(&Detection) -> &'static str| {
        detections.iter().map(|detection| text(detection).len()).max().unwrap_or(0)
    };
    let name = max_len(|detection| detection.failpoint.name()).max(3);
    let check = max_len(|detection| detection.check).max(8);
    let mut table = String::new();
    let _ =
        writeln!(table, "| {:name$} | class | {:check$} | at try |     ms |", "bug", "found by");
    let _ = writeln!(table, "| {:-<name$} | ----: | {:-<check$} | -----: | -----: |", "", "");
    for Detection { failpoint, check: by, runs, ms } in detections {
        let (text, class) = (failpoint.name(), failpoint.bug_class());
        let _ = writeln!(table, "| {text:name$} | {class:5} | {by:check$} | {runs:6} | {ms:6} |");
    }
    table
}
