//! Checks of memory bounds that several test binaries share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, KeyspaceOptions, MergeOperator, MergeResult, Options, WriteBatch, WriteOptions,
};

use super::Outcome;

/// Longest wait for a thread that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Threads commit large batches at the same time. Memtables exceed their share of the budget by one batch at
/// most.
pub(crate) fn batches_in_flight(seed: u64) -> Outcome {
    const WRITERS: u64 = 6;
    const VALUE_BYTES: usize = 4 << 10;
    const BATCH_BYTES: u64 = 512 << 10;
    let background = Background::Stepped { seed, workers: 1 };
    let options = Options::default().background(background).memory_budget(4 << 20);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new())));
    let db = db.map_err(|error| error.to_string())?;
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
                    batch.put(
                        &keyspace,
                        [writer, batch.encoded_bytes()].map(u64::to_be_bytes).concat(),
                        [7; VALUE_BYTES],
                    );
                }
                db.write(batch, Durability::Buffered).expect("a write");
            }
            written.fetch_add(1, Ordering::Relaxed);
        };
        threads.push(env.spawn("writer", write).map_err(|error| error.to_string())?);
    }
    let (watched, seen, done) = (db.clone(), Arc::clone(&most), Arc::clone(&written));
    let watch = move || {
        while done.load(Ordering::Relaxed) < WRITERS {
            let memory = watched.metrics().memory;
            seen.fetch_max(memory.memtables_active + memory.memtables_sealed, Ordering::Relaxed);
            // Another thread may run.
            drop(watched.snapshot());
        }
    };
    threads.push(env.spawn("watch", watch).map_err(|error| error.to_string())?);
    for thread in threads {
        env.join(thread).map_err(|_| "a thread panicked".to_owned())?;
    }
    let (most, share) = (most.load(Ordering::Relaxed), db.metrics().memory.memtable_bytes_max);
    // An entry takes more than its value.
    let bound = share + BATCH_BYTES * 5 / 4;
    if most > bound {
        return Err(format!("memtables had {most} bytes, the bound is {bound}"));
    }
    Ok(())
}

/// Joins operands, after it has said that it folds and was told to go on.
#[derive(Debug)]
struct HeldUp {
    folds: Mutex<Sender<()>>,
    goes_on: Mutex<Receiver<()>>,
}

impl MergeOperator for HeldUp {
    fn name(&self) -> &str {
        "held-up"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        // Without a listener the check has ended.
        let _ = self.folds.lock().map(|folds| folds.send(()));
        let _ = self.goes_on.lock().map(|goes_on| goes_on.recv());
        Ok(Some([&[base.unwrap_or_default()], operands].concat().concat()))
    }
}

/// A keyspace is dropped while a commit folds a long chain of operands in its memtable. Afterwards its bytes do
/// not count, so a write that must not wait does not have to.
pub(crate) fn drops_among_folds(_: u64) -> Outcome {
    const OPERAND_BYTES: usize = 300 << 10;
    const ROUNDS: usize = 10;
    let options = Options::default().memory_budget(4 << 20);
    let db = Db::open("db", options.vfs(Arc::new(MemVfs::new())));
    let db = db.map_err(|error| error.to_string())?;
    for _ in 0..ROUNDS {
        let (folds, is_folding) = channel();
        let (go_on, goes_on) = channel();
        let operator = HeldUp { folds: Mutex::new(folds), goes_on: Mutex::new(goes_on) };
        let options = KeyspaceOptions::default().merge_operator(operator);
        let keyspace = db.keyspace("k", options).map_err(|error| error.to_string())?;
        // One operand of that size is a long chain.
        std::thread::scope(|scope| {
            let merge = scope.spawn(|| keyspace.merge("key", [7; OPERAND_BYTES]));
            let folding = is_folding.recv_timeout(PATIENCE);
            let dropped = db.drop_keyspace("k");
            drop(go_on);
            folding.map_err(|_| "no chain is folded".to_owned())?;
            dropped.map_err(|error| error.to_string())?;
            let merged = merge.join().map_err(|_| "the merge panicked".to_owned())?;
            merged.map_err(|error| error.to_string())
        })?;
    }
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), "key", "value");
    db.write(batch, at_once).map_err(|error| format!("all memtables are dropped: {error}"))
}
