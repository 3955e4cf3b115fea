//! A queue: flushes stand in the order of their age, and the oldest leave the tree unread.
//!
//! Only files of the last run go, for below them nothing is left that they could hide. A file waits for
//! snapshots that see into it.
//!
//! Source: RocksDB, "FIFO compaction style".

use super::look::{Look, score};
use crate::trigger::Trigger;
use crate::{CutRule, FileShape, Job, JobInput, JobKind, Placement, Reason, Target};

impl Look<'_> {
    /// The oldest file leaves while all of them are too large together, or it is too old.
    pub(super) fn pick_queue(&self) -> Option<Job> {
        let (level, run) = self.shape.last_run()?;
        let file = run.files.iter().min_by_key(|file| (file.seq_largest, file.creation))?;
        let bytes = self.shape.bytes();
        let reason = self.primitives.rules.iter().find_map(|rule| match rule.trigger {
            Trigger::TotalBytes { bytes: bytes_max } => {
                self.notes.score(level, rule.trigger.name(), score(bytes, bytes_max));
                (bytes > bytes_max).then_some(Reason::TotalBytes { bytes })
            }
            Trigger::FileStaleness { ttl_us } => {
                let age_us = self.shape.now_us.saturating_sub(file.created_us);
                self.notes.score(level, rule.trigger.name(), score(age_us, ttl_us));
                (age_us >= ttl_us).then_some(Reason::Stale { file: file.id, age_us })
            }
            _ => None,
        })?;
        if self.is_seen(file) {
            return None;
        }
        self.admitted(Job {
            kind: JobKind::Drop,
            inputs: vec![JobInput { level, run: run.id, files: vec![file.id] }],
            // Without meaning for a drop.
            target: Target { level, placement: Placement::NewRun { before: None } },
            cut: CutRule { file_bytes: u64::MAX, grandparent: None, boundaries: Vec::new() },
            reason,
        })
    }

    /// Whether a registered snapshot sees an entry of the file.
    fn is_seen(&self, file: &FileShape) -> bool {
        self.shape.newest_snapshot.is_some_and(|snapshot| snapshot >= file.seq_smallest)
    }
}
