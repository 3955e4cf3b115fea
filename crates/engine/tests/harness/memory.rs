//! Checks of the bounds on memory use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{
    Durability, KeyspaceOptions, MergeOperator, MergeResult, Options, WriteBatch, WriteOptions,
};

use super::Outcome;
use super::small_database::{lock, open_with};

/// Maximum time to wait for another thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads commit large batches at the same time. The memtables may exceed their memory limit by at most one batch.
pub(crate) fn batches_in_flight(seed: u64) -> Outcome {
    const WRITERS: u64 = 6;
    const VALUE_BYTES: usize = 4 << 10;
    const BATCH_BYTES: u64 = 512 << 10;
    let options = Options::default().background(Background::Stepped { seed, workers: 1 });
    let db = open_with(&MemVfs::new(), options.memory_budget(4 << 20)).unwrap();
    let env = db.env().clone();
    let (written, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let (db, written) = (db.clone(), Arc::clone(&written));
        let write = move || {
            let keyspace = db.default_keyspace();
            for _ in 0..2 {
                let mut batch = WriteBatch::new();
                while batch.encoded_bytes() < BATCH_BYTES {
                    let key = [writer, batch.encoded_bytes()].map(u64::to_be_bytes).concat();
                    batch.put(&keyspace, key, [7; VALUE_BYTES]);
                }
                db.write(batch, Durability::Buffered).unwrap();
            }
            written.fetch_add(1, Ordering::Relaxed);
        };
        threads.push(env.spawn("writer", write).unwrap());
    }
    let (watched, seen, done) = (db.clone(), Arc::clone(&most), Arc::clone(&written));
    let watch = move || {
        while done.load(Ordering::Relaxed) < WRITERS {
            let memory = watched.metrics().memory;
            seen.fetch_max(memory.memtables_active + memory.memtables_sealed, Ordering::Relaxed);
            // Taking a snapshot lets the scheduler switch to another thread.
            drop(watched.snapshot());
        }
    };
    threads.push(env.spawn("watch", watch).unwrap());
    for thread in threads {
        env.join(thread).unwrap();
    }
    // The bound includes 25 % for the overhead of memtable entries.
    let bound = db.metrics().memory.memtable_bytes_max + BATCH_BYTES * 5 / 4;
    let most = most.load(Ordering::Relaxed);
    assert!(most <= bound, "memtables had {most} bytes, the bound is {bound}");
    Ok(())
}

/// A merge operator that concatenates operands. Each merge sends a message and then waits for permission to continue.
#[derive(Debug)]
struct BlockingOperator {
    merges: Mutex<Sender<()>>,
    permits: Mutex<Receiver<()>>,
}

impl MergeOperator for BlockingOperator {
    fn name(&self) -> &str {
        "blocking"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        // The results of the channel calls are ignored, because both channels are closed at the end of the check.
        let _ = lock(&self.merges).send(());
        let _ = lock(&self.permits).recv();
        Ok(Some([&[base.unwrap_or_default()], operands].concat().concat()))
    }
}

/// Drops a keyspace while a commit merges a long chain of operands in a memtable of this keyspace. Afterwards the bytes
/// of the memtable must no longer count, so a write to another keyspace does not stall.
pub(crate) fn drops_among_folds(_: u64) -> Outcome {
    const OPERAND_BYTES: usize = 300 << 10;
    const ROUNDS: usize = 10;
    let db = open_with(&MemVfs::new(), Options::default().memory_budget(4 << 20)).unwrap();
    for _ in 0..ROUNDS {
        let (merges, merged) = channel();
        let (permit, permits) = channel();
        let operator =
            BlockingOperator { merges: Mutex::new(merges), permits: Mutex::new(permits) };
        let options = KeyspaceOptions::default().merge_operator(operator);
        let keyspace = db.keyspace("k", options).unwrap();
        // The engine merges a single operand of this size at once, like a long chain of operands.
        std::thread::scope(|scope| {
            let write = scope.spawn(|| keyspace.merge("key", [7; OPERAND_BYTES]));
            let is_merging = merged.recv_timeout(PATIENCE);
            let dropped = db.drop_keyspace("k");
            drop(permit);
            is_merging.expect("no chain is merged");
            dropped.unwrap();
            write.join().unwrap().unwrap();
        });
    }
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "key", "value");
    db.write(batch, at_once).expect("the write stalls");
    Ok(())
}
