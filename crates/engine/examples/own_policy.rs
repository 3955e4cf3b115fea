//! A compaction policy of one's own: small runs are merged with each other until one is large enough
//! to be left alone. Good for data that is written once and read by time.
//!
//! ```text
//! cargo run --release --example own_policy
//! ```

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;

use lsmx::compaction::{
    CompactionPolicy, Debt, Job, JobInput, JobKind, JobReason, Level, OutputPlacement,
    OutputTarget, RunningJobs, SplitRule, TreeShape,
};
use lsmx::{Db, KeyspaceOptions, Options};

/// Merges the runs of L0 into one run of L1, which is the newest there, whenever L0 has
/// [`merge_runs`](Self::merge_runs). Runs of L1 are never touched again.
#[derive(Debug)]
struct WriteOnce {
    merge_runs: usize,
    stop_runs: usize,
}

impl CompactionPolicy for WriteOnce {
    fn name(&self) -> &str {
        "write-once"
    }

    fn pick(&self, shape: &TreeShape, busy: &RunningJobs) -> Option<Job> {
        let flushed = shape.runs_of(Level(0));
        if flushed.len() < self.merge_runs {
            return None;
        }
        // Newer than all that stands in L1, so in front of it.
        let before = shape.runs_of(Level(1)).first().map(|run| run.id);
        let job = Job {
            kind: JobKind::Merge,
            inputs: flushed.iter().map(|run| JobInput::from_run(Level(0), run)).collect(),
            target: OutputTarget { level: Level(1), placement: OutputPlacement::NewRun { before } },
            split: SplitRule {
                file_bytes: shape.table_bytes,
                grandparent: None,
                boundaries: Vec::new(),
            },
            reason: JobReason::RunCount { level: Level(0), runs: flushed.len() },
        };
        // Nothing that a running job holds may be picked.
        busy.admit_job(job, shape)
    }

    fn debt(&self, shape: &TreeShape, busy: &RunningJobs) -> Debt {
        let flushed = shape.runs_of(Level(0));
        let bytes: u64 = flushed.iter().map(|run| run.total_bytes()).sum();
        let running: u64 = busy.jobs.iter().map(|(_, left)| left).sum();
        let due = if flushed.len() < self.merge_runs { 0 } else { bytes };
        let free = self.stop_runs.saturating_sub(flushed.len());
        Debt { pending_bytes: due.max(running), headroom_bytes: free as u64 * shape.memtable_bytes }
    }

    fn must_stop_writes(&self, shape: &TreeShape) -> bool {
        shape.runs_of(Level(0)).len() >= self.stop_runs
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let policy = Arc::new(WriteOnce { merge_runs: 4, stop_runs: 16 });
    let tuning = KeyspaceOptions::default().memtable_bytes(256 << 10).policy(policy);
    let db = Db::open(dir.path().join("db"), Options::default().keyspace_defaults(tuning))?;
    for second in 0..100_000u64 {
        db.put(second.to_be_bytes(), [0; 100])?;
    }
    db.flush()?;
    db.wait_idle()?;
    let metrics = db.metrics();
    let tree = &metrics.keyspaces[lsmx::DEFAULT_KEYSPACE];
    for level in tree.levels.iter().filter(|level| level.runs > 0) {
        println!("L{}: {} runs, {} bytes", level.level, level.runs, level.bytes);
    }
    println!("merged {} times what was flushed", {
        let (written, flushed) = (tree.compaction.written_bytes, tree.flushed_bytes);
        format!("{}.{:02}", written / flushed, written * 100 / flushed % 100)
    });
    // One by name takes over while the database is in use, and is remembered.
    db.default_keyspace().set_policy("lazy-leveling(T=4)".parse::<lsmx::PolicySpec>()?)?;
    db.wait_idle()?;
    println!("now {}", db.default_keyspace().options().policy);
    Ok(())
}
