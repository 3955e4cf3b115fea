//! Guarantees 15 and 16: calls that a hanging device call may block, and calls that it may not.

use std::sync::Arc;

use super::support::{options, seeds, try_all_kinds, tuning};
use crate::harness::gate::{Gate, flushes_while_store_hangs, nth};
use crate::harness::parallel::watched;
use lsmx::env::Background;
use lsmx::{Db, Durability, ReadOptions, ReadTier, WriteBatch};
use lsmx_testkit::TestRng;

/// Opens a database with every kind of file and threads of its own.
fn open_threads(disk: Arc<dyn lsmx::vfs::Vfs>) -> lsmx::Result<Db> {
    Db::open("db", options(Background::Threads { workers: 1 }).vfs(disk))
}

/// Makes device calls of every kind that an open database makes.
pub(crate) fn use_everything(db: &Db) -> lsmx::Result<()> {
    let keyspaces = try_all_kinds(db)?;
    for n in 0..40u64 {
        let mut batch = WriteBatch::new();
        for keyspace in &keyspaces {
            batch.put(keyspace, (n % 20).to_be_bytes(), [7; 100]);
            batch.merge(keyspace, (n % 7 + 100).to_be_bytes(), [8; 50]);
        }
        db.write(batch, if n % 10 == 9 { Durability::Sync } else { Durability::Buffered })?;
    }
    db.flush()?;
    db.keyspace("more", tuning("more"))?.put("k", "v")?;
    db.checkpoint("copy")?;
    db.drop_keyspace("more")?;
    keyspaces[0].compact_range::<&[u8]>(..)?;
    db.wait_idle()?;
    db.sync()?;
    keyspaces[1].get(3u64.to_be_bytes()).map(drop)
}

/// 15. Observation (`metrics`, `memory`, `stats`) never waits for a device: it returns while any one call of
///     an open database hangs.
#[test]
fn observation_hanging_device_call_returns() {
    let (mut hangs, mut k) = (0, 0);
    let mut rng = TestRng::new(seeds(15, 1).next().unwrap());
    loop {
        // A fifth of the calls, others in each run.
        k += 1 + rng.below(9);
        let (gate, never) = (Gate::default(), u64::MAX);
        // The calls are counted from the first one after the open.
        let disk = gate.disk(nth(never), "");
        let db = open_threads(Arc::new(disk.clone())).unwrap();
        disk.add_rule(nth(k));
        gate.shut();
        let worked = std::thread::scope(|scope| {
            let worker = scope.spawn(|| use_everything(&db));
            while gate.blocked().is_none() && !worker.is_finished() {
                std::thread::yield_now();
            }
            if let Some(call) = gate.blocked() {
                hangs += 1;
                watched(&format!("observation during {call} (call {k})"), || observe(&db));
            }
            gate.open();
            worker.join().unwrap()
        });
        worked.unwrap();
        let blocked = gate.blocked();
        db.close(None).unwrap();
        if blocked.is_none() {
            break;
        }
    }
    assert!(hangs > 20, "{hangs} calls only");
}

/// 16. A device that hangs under the operand store of one keyspace does not stop the flushes of others.
#[test]
fn flush_other_keyspace_store_hangs_continues() {
    watched("a flush", || flushes_while_store_hangs("lsmx-compact").unwrap());
    watched("a flush", || flushes_while_store_hangs("lsmx-flush").unwrap());
}

fn observe(db: &Db) {
    let metrics = db.metrics();
    assert!(metrics.wal.segments > 0);
    let _ = db.read_metrics();
    let _ = db.health();
    assert!(db.health().read_only.is_none());
    assert!(!db.keyspaces().is_empty());
    // Any answer, including that a file would have to be read.
    let _ = db.default_keyspace().get_with(
        3u64.to_be_bytes(),
        &ReadOptions { tier: ReadTier::Memory, ..ReadOptions::default() },
    );
    let _ = db.open_keyspace("default", None).unwrap().options();
}
