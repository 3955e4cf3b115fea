//! Functions that write to standard output and standard error, and the progress bar.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lsmx_bench::experiment::Progress;

use crate::failure::Failure;

/// Writes a result to standard output. If the reader has closed the pipe, discards the result, so that the command still
/// returns its verdict and writes its files.
pub(crate) fn stdout(bytes: &[u8]) -> Result<(), Failure> {
    match stream(bytes) {
        Err(Failure::OutputClosed) => Ok(()),
        written => written,
    }
}

/// Writes a part of a long output to standard output. Fails with [`Failure::OutputClosed`] if the reader has closed the
/// pipe, so that the command stops.
pub(crate) fn stream(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::stdout)
}

/// Writes an error message to standard error.
pub(crate) fn stderr(line: &str) {
    // A failed write to standard error cannot be reported, so the failure is ignored.
    let _ = writeln!(io::stderr().lock(), "error: {line}");
}

/// Writes a remark about the run to standard error.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "note: {line}");
}

/// Progress bar on standard error. The bar is hidden if standard error is not a terminal.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar { bar: ProgressBar::hidden() }
    }
}

impl Progress for Bar {
    fn begin_phase(&mut self, what: &str, ops: u64) {
        self.bar = if io::stderr().is_terminal() {
            ProgressBar::with_draw_target(Some(ops), ProgressDrawTarget::stderr())
        } else {
            ProgressBar::hidden()
        };
        let style = if ops == 0 { "{msg} {spinner}" } else { "{msg} {wide_bar} {percent} % {eta}" };
        if let Ok(style) = ProgressStyle::with_template(style) {
            self.bar.set_style(style);
        }
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    fn advance(&mut self, ops: u64) {
        self.bar.inc(ops);
    }

    fn end_phase(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_templates_are_valid() {
        for template in ["{msg} {spinner}", "{msg} {wide_bar} {percent} % {eta}"] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
