//! Checks of compaction policies that drop whole files, such as `fifo`.

use std::sync::{Arc, Mutex};

use lsmx::compaction::JobKind;
use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Event, EventListener, KeyspaceOptions, Options, Snapshot};

use super::Outcome;
use super::small_database::{lock, open_with, policy};

/// A listener that takes a snapshot after a policy has picked a file drop and before the drop begins.
#[derive(Default)]
struct SnapshotAtPick {
    db: Mutex<Option<Db>>,
    snapshot: Mutex<Option<Snapshot>>,
}

impl EventListener for SnapshotAtPick {
    fn on_event(&self, event: &Event) {
        let Event::Decision(decision) = event else { return };
        let picked = decision.explanation.picked.as_ref();
        if picked.is_some_and(|job| job.kind == JobKind::Drop)
            && let Some(db) = lock(&self.db).take()
        {
            *lock(&self.snapshot) = Some(db.snapshot());
        }
    }
}

/// A snapshot that is taken after the policy has picked files to drop, but before the drop begins, keeps the files.
/// Later snapshots need not wait. The files are dropped after the first snapshot is released.
///
/// Regression: the cancelled drop was recorded as finished, and every later snapshot waited forever.
pub(crate) fn late_snapshot_keeps_files(_: u64) -> Outcome {
    let late = Arc::new(SnapshotAtPick::default());
    let keyspace = KeyspaceOptions::default().policy(policy("fifo(4K)")).memtable_bytes(1 << 10);
    let listener: Arc<dyn EventListener> = Arc::clone(&late) as _;
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.explain_decisions(true).listener(listener).keyspace_defaults(keyspace);
    let db = open_with(&MemVfs::new(), options).unwrap();
    *lock(&late.db) = Some(db.clone());
    let put = |number: u64| db.put(number.to_be_bytes(), [7; 100]).unwrap();
    let has_oldest = || db.get(1u64.to_be_bytes()).unwrap().is_some();
    (1..=100).for_each(put);
    let snapshot = lock(&late.snapshot).take().expect("no drop was picked");
    assert!(has_oldest(), "a file of the snapshot was dropped");
    assert!(db.health().read_only.is_none(), "{:?}", db.health());
    drop((snapshot, db.snapshot()));
    (101..=200).for_each(put);
    assert!(!has_oldest(), "no file is dropped after the release of the snapshot");
    Ok(())
}
