//! The data set as a database.

use std::path::Path;

use lsmx::{Db, Options};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::numbers::{self, ratio};
use crate::workload::random::fill;

use super::keys::Hashed;
use super::result::Build;
use super::{Config, Design};

/// Random bytes that values are cut from.
const POOL_BYTES: usize = 1 << 20;
/// Records between two reports of progress.
const STEP: u64 = 4096;

/// Puts every record once, in an order that is random by key, and waits until the tree rests.
pub(super) fn build(
    config: &Config,
    path: &Path,
    design: Design,
    keys: &Hashed,
    progress: &mut dyn Progress,
) -> Result<Build> {
    let failed = |action| move |source| Error::Engine { action, source };
    let watch = Stopwatch::start();
    let options = Options::default().keyspace_defaults(super::keyspace_options(config, design));
    let db = Db::open(path, options).map_err(failed("open the database"))?;
    let value_bytes = numbers::length(config.value_bytes);
    let mut pool = Vec::new();
    fill(config.seed, POOL_BYTES + value_bytes, &mut pool);
    let mut key = Vec::new();
    let Design { block_bytes, filter_bits } = design;
    let title = format!("build, blocks of {block_bytes} B, filters {filter_bits}");
    progress.begin(&title, config.entries);
    for record in 0..config.entries {
        keys.write(record, &mut key);
        let start = numbers::length(record.wrapping_mul(0x9e37_79b9) % numbers::count(POOL_BYTES));
        let value = &pool[start..start + value_bytes];
        db.put(&key, value).map_err(failed("put"))?;
        if (record + 1).is_multiple_of(STEP) {
            progress.advance(STEP);
        }
    }
    progress.end();
    progress.begin("settle", 0);
    db.flush().map_err(failed("flush"))?;
    db.wait_idle().map_err(failed("settle"))?;
    progress.end();
    let metrics = db.metrics();
    let tree = metrics.keyspaces.get(&config.keyspace);
    let write_amplification = tree.map_or(0.0, |tree| {
        ratio(tree.flushed_bytes + tree.compaction.written_bytes, tree.ingested_bytes)
    });
    db.close(None).map_err(failed("close the database"))?;
    Ok(Build { elapsed_s: watch.elapsed_s(), write_amplification })
}
