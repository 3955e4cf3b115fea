//! HTML pages that need no network, and no script to be read.
//!
//! Templates escape all text. The modules of `plot` draw plots and know nothing of experiments. Each experiment has its
//! sections in its module `page`.

pub(crate) mod latency;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod value;

use std::path::Path;

use crate::error::{Error, Result};

/// Writes a page.
///
/// # Errors
/// If the file cannot be written.
#[expect(clippy::disallowed_methods, reason = "a report for the user, not part of a database")]
pub fn write(path: &Path, page: &str) -> Result<()> {
    let failed = |source| Error::Io { action: "write", path: path.to_owned(), source };
    std::fs::write(path, page).map_err(failed)
}
