//! Lookups of many keys and scans read blocks and values in parallel.

#![allow(clippy::disallowed_methods, reason = "a slow device is made of real time")]

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

const KEYS: u32 = 4_000;
/// Longer than anything takes but a device.
const DEVICE: Duration = Duration::from_micros(500);
/// Long enough that who comes late was not on the way at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a second thread on a busy machine.
const LINGER: Duration = Duration::from_millis(300);

/// A device: each read takes its time, and once more than one has to be under way, waits for another.
#[derive(Debug, Default)]
struct Device {
    /// Whether reads take their time.
    slow: AtomicBool,
    /// Whether the file system reads ahead.
    reads_ahead: AtomicBool,
    /// Whether every read but the first waits until two were under way at once.
    gathers: AtomicBool,
    /// Whether each read waits for [`LINGER`] for a second one, until two were under way at once.
    lingers: AtomicBool,
    reads: AtomicUsize,
    told: AtomicUsize,
    under_way: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Device {
    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        if !self.slow.load(Ordering::SeqCst) {
            return read();
        }
        let start = Instant::now();
        let first = self.reads.fetch_add(1, Ordering::SeqCst) == 0;
        let mut under_way = self.under_way.lock().unwrap();
        under_way.0 += 1;
        under_way.1 = under_way.1.max(under_way.0);
        self.changed.notify_all();
        let gathers = self.gathers.load(Ordering::SeqCst) && !first;
        if gathers || self.lingers.load(Ordering::SeqCst) {
            let patience = if gathers { PATIENCE } else { LINGER };
            let alone = |it: &mut (usize, usize)| it.1 < 2;
            let (met, waited) =
                self.changed.wait_timeout_while(under_way, patience, alone).unwrap();
            assert!(!gathers || !waited.timed_out(), "one after the other");
            under_way = met;
        }
        drop(under_way);
        while start.elapsed() < DEVICE {
            std::hint::spin_loop();
        }
        self.under_way.lock().unwrap().0 -= 1;
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
        self.device.told.fetch_add(1, Ordering::SeqCst);
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

/// A database with a cache for its metadata and little else, all of the metadata read.
fn database(background: Background) -> (Db, Arc<Device>) {
    let device = Arc::new(Device::default());
    let disk = SlowVfs { inner: MemVfs::new(), device: Arc::clone(&device) };
    let keyspace = KeyspaceOptions::default().memtable_bytes(64 << 10).block_bytes(512);
    let options = Options::default()
        .background(background)
        .block_cache_bytes(64 << 10)
        .keyspace_defaults(keyspace);
    let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
    for number in 0..KEYS {
        db.put(key(number), number.to_le_bytes().repeat(10)).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    for number in 0..KEYS {
        db.get(key(number)).unwrap();
    }
    (db, device)
}

/// Looks up keys of which every third is not there and some are asked twice, and checks the values.
fn ask(db: &Db) {
    let asked: Vec<u32> = (0..90).map(|n| n * 613 % (KEYS + KEYS / 2)).chain([5, 5, 613]).collect();
    let values = db.default_keyspace().multi_get(asked.iter().map(|&number| key(number))).unwrap();
    for (number, value) in asked.iter().zip(values) {
        let expected = (*number < KEYS).then(|| number.to_le_bytes().repeat(10));
        assert_eq!(value.as_deref(), expected.as_deref(), "{number}");
    }
}

fn misses(db: &Db) -> u64 {
    db.metrics().cache[&BlockKind::Data].misses
}

#[test]
fn where_nothing_is_read_ahead_several_threads_read() {
    let (db, device) = database(Background::default());
    let before = misses(&db);
    device.gathers.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    ask(&db);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.under_way.lock().unwrap().1 >= 2);
    assert_eq!(misses(&db) - before, device.reads.load(Ordering::SeqCst) as u64);
}

#[test]
fn where_the_file_system_reads_ahead_it_is_told_all_places_first() {
    let (db, device) = database(Background::default());
    let before = misses(&db);
    device.reads_ahead.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    ask(&db);
    device.slow.store(false, Ordering::SeqCst);
    let reads = device.reads.load(Ordering::SeqCst);
    assert_eq!(misses(&db) - before, reads as u64);
    let told = device.told.load(Ordering::SeqCst);
    // All but the first, which showed that reads are slow.
    assert!(told > 20 && told + 2 >= reads, "{told} told, {reads} read");
    assert_eq!(device.under_way.lock().unwrap().1, 1);
}

#[test]
fn where_time_is_driven_lookups_go_together_from_the_second_on() {
    let (db, device) = database(Background::Inline);
    device.reads_ahead.store(true, Ordering::SeqCst);
    ask(&db);
    assert!(device.told.load(Ordering::SeqCst) > 20);
}

/// Values of neighbouring keys in many blob files.
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
        .policy("tiering(T=20)".parse::<lsmx::PolicySpec>().unwrap())
        .value_separation(separation);
    let options = Options::default().block_cache_bytes(0).keyspace_defaults(keyspace);
    let db = Db::open("db", options.vfs(Arc::new(disk))).unwrap();
    for round in 0..8 {
        for number in (round..1_000_u32).step_by(1 + round as usize) {
            db.put(number.to_be_bytes(), [number.to_le_bytes().repeat(200), vec![0]].concat())
                .unwrap();
        }
        db.flush().unwrap();
    }
    db.wait_idle().unwrap();
    assert!(db.metrics().keyspaces["default"].value_log.blob_files >= 8);
    (db, device)
}

fn walk(db: &Db, count: usize) -> usize {
    let keyspace = db.default_keyspace();
    let walked = keyspace.iter().take(count).map(Result::unwrap);
    for (number, (key, value)) in (0_u32..).zip(walked) {
        assert_eq!(key, number.to_be_bytes());
        assert_eq!(value, [number.to_le_bytes().repeat(200), vec![0]].concat());
    }
    count
}

#[test]
fn values_of_a_scan_are_read_by_several_threads() {
    let (db, device) = values_in_many_files();
    device.slow.store(true, Ordering::SeqCst);
    let misses = || db.metrics().cache.get(&BlockKind::Blob).map_or(0, |blob| blob.misses);
    // Who wants one value reads one.
    let before = misses();
    walk(&db, 1);
    assert_eq!(misses() - before, 1);
    let before = device.reads.load(Ordering::SeqCst);
    device.lingers.store(true, Ordering::SeqCst);
    walk(&db, 1_000);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.under_way.lock().unwrap().1 >= 2, "one after the other");
    let reads = device.reads.load(Ordering::SeqCst) - before;
    assert!(reads < 400, "{reads} reads for 1000 values");
}

#[test]
fn the_file_system_is_told_where_values_of_a_scan_are() {
    let (db, device) = values_in_many_files();
    device.reads_ahead.store(true, Ordering::SeqCst);
    device.slow.store(true, Ordering::SeqCst);
    walk(&db, 1_000);
    device.slow.store(false, Ordering::SeqCst);
    assert!(device.told.load(Ordering::SeqCst) > 20);
    assert_eq!(device.under_way.lock().unwrap().1, 1);
}
