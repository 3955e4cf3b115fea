//! Parallel reads of blocks and separated values by `multi_get`, seeks and scans.

#![allow(clippy::disallowed_methods, reason = "the simulated slow device waits in real time")]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lsmx::env::Background;
use lsmx::internals::vfs::{FileHint, FileLayer, OpenMode, VfsLayer};
use lsmx::metrics::BlockKind;
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx::{Db, KeyspaceOptions, Options, ValueSeparation};

use crate::harness::database::{metrics, open, policy, settle};

const KEYS: u32 = 4_000;
/// Duration of one read on the simulated slow device.
const DEVICE: Duration = Duration::from_micros(500);
/// A read that waits longer than this time for a second concurrent read fails the test.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum time that a read waits for a second concurrent read. Threads may start late on a busy machine.
const LINGER: Duration = Duration::from_millis(300);

/// A simulated device with slow reads. It counts concurrent reads and can make a read wait for a second one.
#[derive(Debug, Default)]
struct Device {
    slow: AtomicBool,
    /// Whether the file system supports read-ahead hints.
    reads_ahead: AtomicBool,
    /// Whether reads must overlap: each read except the first waits until two reads have run concurrently.
    gathers: AtomicBool,
    /// Whether reads may overlap: each read waits at most [`LINGER`] for a second concurrent read.
    lingers: AtomicBool,
    reads: AtomicUsize,
    /// Number of received read-ahead hints.
    hints: AtomicUsize,
    /// Current and maximum number of concurrent reads.
    running: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Device {
    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        if !self.slow.load(Ordering::SeqCst) {
            return read();
        }
        let start = Instant::now();
        let first = self.reads.fetch_add(1, Ordering::SeqCst) == 0;
        let mut running = self.running.lock().unwrap();
        running.0 += 1;
        running.1 = running.1.max(running.0);
        self.changed.notify_all();
        let gathers = self.gathers.load(Ordering::SeqCst) && !first;
        if gathers || self.lingers.load(Ordering::SeqCst) {
            let patience = if gathers { PATIENCE } else { LINGER };
            let alone = |it: &mut (usize, usize)| it.1 < 2;
            let (met, waited) = self.changed.wait_timeout_while(running, patience, alone).unwrap();
            assert!(!gathers || !waited.timed_out(), "no two reads ran concurrently");
            running = met;
        }
        drop(running);
        while start.elapsed() < DEVICE {
            std::hint::spin_loop();
        }
        self.running.lock().unwrap().0 -= 1;
        read()
    }
}

#[derive(Clone, Debug)]
struct SlowVfs {
    inner: MemVfs,
    device: Arc<Device>,
}

#[derive(Debug)]
struct SlowFile {
    inner: Arc<dyn File>,
    device: Arc<Device>,
}

impl FileLayer for SlowFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept_read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.device.read(|| self.inner.read_at(buffer, offset))
    }

    fn intercept_hint(&self, hint: FileHint) -> bool {
        if !matches!(hint, FileHint::WillNeed { .. }) {
            return hint.apply_to_file(&*self.inner);
        }
        self.device.hints.fetch_add(1, Ordering::SeqCst);
        self.device.reads_ahead.load(Ordering::SeqCst)
    }
}

impl VfsLayer for SlowVfs {
    fn inner(&self) -> &dyn Vfs {
        &self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&self.inner, path)?;
        if mode == OpenMode::Create {
            return Ok(inner);
        }
        Ok(Arc::new(SlowFile { inner, device: Arc::clone(&self.device) }))
    }
}

fn key(number: u32) -> Vec<u8> {
    number.wrapping_mul(0x9e37_79b9).to_be_bytes().to_vec()
}

/// Returns a database and its device. The block cache holds all index and filter blocks, but only some data blocks.
fn database(background: Background) -> (Db, Arc<Device>) {
    let device = Arc::new(Device::default());
    let disk = SlowVfs { inner: MemVfs::new(), device: Arc::clone(&device) };
    let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10).block_bytes(512);
    let options = Options::default()
        .background(background)
        .block_cache_bytes(64 << 10)
        .keyspace_defaults(keyspace);
    let db = open(&disk, options);
    for number in 0..KEYS {
        db.put(key(number), number.to_le_bytes().repeat(10)).unwrap();
    }
    settle(&db);
    for number in 0..KEYS {
        db.get(key(number)).unwrap();
    }
    (db, device)
}

/// Calls `multi_get` and checks the values. A third of the keys does not exist, and some keys occur twice.
fn look_up(db: &Db) {
    let keys: Vec<u32> = (0..90).map(|n| n * 613 % (KEYS + KEYS / 2)).chain([5, 5, 613]).collect();
    let values = db.default_keyspace().multi_get(keys.iter().map(|&number| key(number))).unwrap();
    for (number, value) in keys.iter().zip(values) {
        let expected = (*number < KEYS).then(|| number.to_le_bytes().repeat(10));
        assert_eq!(value.as_deref(), expected.as_deref(), "{number}");
    }
}

fn misses(db: &Db) -> u64 {
    db.metrics().cache[&BlockKind::Data].misses
}

#[test]
fn multi_get_without_read_ahead_reads_on_several_threads() {
    let (db, device) = database(Background::default());
    let before = misses(&db);
    device.gathers.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    look_up(&db);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.running.lock().unwrap().1 >= 2);
    assert_eq!(misses(&db) - before, device.reads.load(Ordering::SeqCst) as u64);
}

#[test]
fn multi_get_with_read_ahead_gives_all_hints_first() {
    let (db, device) = database(Background::default());
    let before = misses(&db);
    device.reads_ahead.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    look_up(&db);
    device.slow.store(false, Ordering::SeqCst);
    let reads = device.reads.load(Ordering::SeqCst);
    assert_eq!(misses(&db) - before, reads as u64);
    let hints = device.hints.load(Ordering::SeqCst);
    // The engine measures the latency of the first read. Later reads are preceded by read-ahead hints.
    assert!(hints > 20 && hints + 2 >= reads, "{hints} hints, {reads} reads");
    assert_eq!(device.running.lock().unwrap().1, 1);
}

#[test]
fn multi_get_inline_gives_hints_from_the_second_read_on() {
    let (db, device) = database(Background::Inline);
    device.reads_ahead.store(true, Ordering::SeqCst);
    look_up(&db);
    assert!(device.hints.load(Ordering::SeqCst) > 20);
}

#[test]
fn seek_after_a_slow_seek_announces_the_blocks_of_all_runs() {
    const RUNS: u32 = 5;
    let device = Arc::new(Device::default());
    let disk = SlowVfs { inner: MemVfs::new(), device: Arc::clone(&device) };
    let keyspace = KeyspaceOptions::default().policy(policy("tiering(T=20)"));
    let options = Options::default()
        .background(Background::Inline)
        .block_cache_bytes(0)
        .keyspace_defaults(keyspace);
    let db = open(&disk, options);
    for run in 0..RUNS {
        for number in (run..KEYS).step_by(RUNS as usize) {
            db.put(number.to_be_bytes(), number.to_le_bytes().repeat(25)).unwrap();
        }
        db.flush().unwrap();
    }
    let hints = || device.hints.swap(0, Ordering::SeqCst);
    let first_entries = |from: u32| {
        let range = db.default_keyspace().range(from.to_be_bytes()..).limit(10);
        let entries: Vec<_> = range.map(Result::unwrap).collect();
        let keys: Vec<u32> = (from..from + 10).collect();
        assert!(entries.iter().zip(&keys).all(|((key, _), number)| **key == number.to_be_bytes()));
    };
    // With inline background work, each seek counts as a read of the device.
    first_entries(100);
    assert_eq!(hints(), 0);
    first_entries(2_000);
    assert_eq!(hints(), RUNS as usize);
}

/// Returns a database and its device. The values of neighbouring keys are in different blob files.
fn values_in_many_files() -> (Db, Arc<Device>) {
    let device = Arc::new(Device::default());
    let disk = SlowVfs { inner: MemVfs::new(), device: Arc::clone(&device) };
    let separation = ValueSeparation {
        threshold_bytes: 1,
        garbage_ratio: 0.9,
        space_amplification_max: 20.0,
        ..ValueSeparation::default()
    };
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(8 << 20)
        .policy(policy("tiering(T=20)"))
        .value_separation(separation);
    let options = Options::default().block_cache_bytes(0).keyspace_defaults(keyspace);
    let db = open(&disk, options);
    for round in 0..8 {
        for number in (round..1_000_u32).step_by(1 + round as usize) {
            db.put(number.to_be_bytes(), [number.to_le_bytes().repeat(200), vec![0]].concat())
                .unwrap();
        }
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    assert!(metrics(&db).value_log.blob_files >= 8);
    (db, device)
}

fn scan(db: &Db, count: usize) {
    let keyspace = db.default_keyspace();
    let scanned = keyspace.iter().take(count).map(Result::unwrap);
    for (number, (key, value)) in (0_u32..).zip(scanned) {
        assert_eq!(key, number.to_be_bytes());
        assert_eq!(value, [number.to_le_bytes().repeat(200), vec![0]].concat());
    }
}

#[test]
fn scan_reads_separated_values_on_several_threads() {
    let (db, device) = values_in_many_files();
    device.slow.store(true, Ordering::SeqCst);
    let misses = || db.metrics().cache.get(&BlockKind::Blob).map_or(0, |blob| blob.misses);
    // A scan that stops after one entry reads only one separated value.
    let before = misses();
    scan(&db, 1);
    assert_eq!(misses() - before, 1);
    let before = device.reads.load(Ordering::SeqCst);
    device.lingers.store(true, Ordering::SeqCst);
    scan(&db, 1_000);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.running.lock().unwrap().1 >= 2, "no two reads ran concurrently");
    let reads = device.reads.load(Ordering::SeqCst) - before;
    assert!(reads < 400, "{reads} reads for 1000 values");
}

#[test]
fn scan_with_read_ahead_gives_hints_for_separated_values() {
    let (db, device) = values_in_many_files();
    device.reads_ahead.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    scan(&db, 1_000);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.hints.load(Ordering::SeqCst) > 20);
    assert_eq!(device.running.lock().unwrap().1, 1);
}
