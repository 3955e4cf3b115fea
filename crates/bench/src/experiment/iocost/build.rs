//! Builds the database whose lookups are measured.

use std::path::Path;

use crate::clock::Stopwatch;
use crate::error::Result;
use crate::experiment::Progress;
use crate::experiment::player::flush_and_wait_idle;
use crate::numbers::{self, ratio};
use crate::peers::{EngineKind, EngineSettings};
use crate::workload::random::{append_random_bytes, hash_u64};

use super::Config;
use super::keys::HashedKeys;
use super::result::BuildTime;

const PROGRESS_RECORDS: u64 = 4096;

/// Puts every record once in random key order, flushes, and waits until compaction is idle.
pub(super) fn build_database(
    config: &Config,
    path: &Path,
    settings: &EngineSettings,
    keys: &HashedKeys,
    progress: &mut dyn Progress,
) -> Result<BuildTime> {
    let watch = Stopwatch::start();
    let engine = EngineKind::Lsmx.open(path, settings)?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let filters = settings.filter_bits.map(|bits| format!(", filters {bits}")).unwrap_or_default();
    let title = format!("build, blocks of {} B{filters}", settings.block_bytes);
    progress.begin_phase(&title, config.entries);
    for record in 0..config.entries {
        keys.write_key(record, &mut key);
        value.clear();
        append_random_bytes(
            hash_u64(record ^ config.seed),
            numbers::to_usize(config.value_bytes),
            &mut value,
        );
        engine.put(&key, &value)?;
        if (record + 1).is_multiple_of(PROGRESS_RECORDS) {
            progress.advance(PROGRESS_RECORDS);
        }
    }
    progress.end_phase();
    flush_and_wait_idle(engine.as_ref(), "settle", progress)?;
    let tables_written =
        engine.written_bytes().map_or(0, |it| it.flushed_bytes + it.compaction_bytes);
    let ingested_bytes = config.entries * (config.key_bytes + config.value_bytes);
    engine.close()?;
    let write_amplification = ratio(tables_written, ingested_bytes);
    Ok(BuildTime { elapsed_s: watch.elapsed_s(), write_amplification })
}
