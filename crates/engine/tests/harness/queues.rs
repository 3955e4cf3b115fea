//! Checks of policies that drop whole files, such as `fifo`.

use std::sync::{Arc, Mutex, PoisonError};

use lsmx::compaction::JobKind;
use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Event, EventListener, KeyspaceOptions, Options, Snapshot};

use super::{Outcome, oracle};

/// Takes a snapshot when a drop of files was picked and has not begun.
#[derive(Default)]
struct Late {
    db: Mutex<Option<Db>>,
    taken: Mutex<Option<Snapshot>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventListener for Late {
    fn on_event(&self, event: &Event) {
        let Event::Decision(decision) = event else { return };
        let drops = |job: &lsmx::compaction::Job| job.kind == JobKind::Drop;
        if decision.explanation.picked.as_ref().is_some_and(drops)
            && let Some(db) = locked(&self.db).take()
        {
            *locked(&self.taken) = Some(db.snapshot());
        }
    }
}

/// A snapshot that is taken between the pick and the begin of a drop keeps the files. Later snapshots do not wait,
/// and the files leave once the snapshot is released.
///
/// The refused drop used to count as one that had ended, and every later snapshot waited without end.
pub(crate) fn late_snapshot_keeps_files(_: u64) -> Outcome {
    let failed = |error: lsmx::Error| error.to_string();
    let late = Arc::new(Late::default());
    let tuning = KeyspaceOptions::default()
        .policy("fifo(4K)".parse::<lsmx::PolicySpec>().map_err(|error| format!("{error}"))?)
        .memtable_bytes(1 << 10);
    let listener: Arc<dyn EventListener> = Arc::clone(&late) as _;
    let options = Options::default().background(Background::Inline).seed(1);
    let options = options.explain_decisions(true).listener(listener).keyspace_defaults(tuning);
    let db = Db::open(oracle::DIR, options.vfs(Arc::new(MemVfs::new()))).map_err(failed)?;
    *locked(&late.db) = Some(db.clone());
    let mut number = 0u64;
    let mut put_some = || {
        for _ in 0..100 {
            number += 1;
            db.put(number.to_be_bytes(), [7; 100]).map_err(failed)?;
        }
        Ok::<(), String>(())
    };
    put_some()?;
    let Some(snapshot) = locked(&late.taken).take() else {
        return Err("no drop was picked".to_owned());
    };
    let oldest = db.get(1u64.to_be_bytes()).map_err(failed)?;
    if oldest.is_none() {
        return Err("a file left that the snapshot sees".to_owned());
    }
    if let Some(cause) = db.health().read_only {
        return Err(format!("the database is read-only: {cause}"));
    }
    drop((snapshot, db.snapshot()));
    put_some()?;
    match db.get(1u64.to_be_bytes()).map_err(failed)? {
        None => Ok(()),
        Some(_) => Err("no file leaves after the snapshot was released".to_owned()),
    }
}
