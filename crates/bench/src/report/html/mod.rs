//! HTML pages that load nothing from the network and are readable without their script.
//!
//! Templates escape all text. The modules of `plot` draw plots of any data. Each experiment has its sections in its
//! module `page`.

pub(crate) mod latency;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod value;

use std::path::Path;

use crate::error::{Error, Result};

#[expect(clippy::disallowed_methods, reason = "a report of the user, not part of a database")]
pub fn write(path: &Path, page: &str) -> Result<()> {
    std::fs::write(path, page).map_err(Error::io("write", path))
}
