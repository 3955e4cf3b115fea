//! FIFO layout: flushed runs stay in order of age, and the oldest files are dropped without being read.
//!
//! Only files of the oldest run are dropped. Dropping a newer file could uncover older entries. A file is kept as long
//! as a snapshot can read it.
//!
//! Source: RocksDB, "FIFO compaction style".

use crate::composed::context::{PickContext, ratio_milli};
use crate::job::{Job, JobInput, JobKind, JobReason, OutputTarget};
use crate::shape::TreeShape;
use crate::table_meta::TableMeta;
use crate::trigger::Trigger;

/// Returns a job that drops the oldest file, if the tree is too large or the file is too old.
pub(super) fn pick_fifo(context: &PickContext<'_>) -> Option<Job> {
    let shape = context.shape;
    let (level, run) = shape.last_run()?;
    let file = run.files.iter().min_by_key(|file| (file.seq_largest, file.creation))?;
    let bytes = shape.total_bytes();
    let reason = context.primitives.rules.iter().find_map(|rule| match rule.trigger {
        Trigger::TotalBytes { bytes: bytes_max } => {
            context.explanation.add_score(
                level,
                rule.trigger.name(),
                ratio_milli(bytes, bytes_max),
            );
            (bytes > bytes_max).then_some(JobReason::TotalBytes { bytes })
        }
        Trigger::FileStaleness { ttl_us } => {
            let age_us = shape.now_us.saturating_sub(file.created_us);
            context.explanation.add_score(level, rule.trigger.name(), ratio_milli(age_us, ttl_us));
            (age_us >= ttl_us).then_some(JobReason::Stale { file: file.id, age_us })
        }
        _ => None,
    })?;
    if is_visible_to_snapshots(shape, file) {
        return None;
    }
    let inputs = vec![JobInput { level, run: run.id, files: vec![file.id] }];
    context.build_job(JobKind::Drop, inputs, OutputTarget::oldest_run(level), reason)
}

/// Returns whether a registered snapshot sees an entry of the file.
fn is_visible_to_snapshots(shape: &TreeShape, file: &TableMeta) -> bool {
    shape.newest_snapshot.is_some_and(|snapshot| snapshot >= file.seq_smallest)
}
