//! Reads of tables that bypass the page cache.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lsmx::env::Background;
use lsmx::internals::vfs::{OpenMode, VfsLayer};
use lsmx::vfs::{File, MemVfs, OsVfs, Vfs};
use lsmx::{Compression, Db, Error, KeyspaceOptions, Options};

const KEYS: u32 = 3_000;

fn options() -> Options {
    let tuning = KeyspaceOptions::default()
        .memtable_bytes(64 << 10)
        .table_bytes(32 << 10)
        .block_bytes(1 << 10)
        .policy("tiering".parse::<lsmx::PolicySpec>().unwrap());
    Options::default()
        .background(Background::Inline)
        .seed(1)
        .block_cache_bytes(16 << 10)
        .open_files_max(2)
        .direct_reads(true)
        .keyspace_defaults(tuning)
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Some short, some over several blocks of a device.
fn value(number: u32, round: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(97) { 9_000 } else { 60 };
    (0..bytes).map(|at: u32| (at ^ number ^ round).to_le_bytes()[0]).collect()
}

fn check(db: &Db) {
    let (plain, packed) = (db.default_keyspace(), db.open_keyspace("packed", None).unwrap());
    for keyspace in [&plain, &packed] {
        for number in (0..KEYS).map(|number| number * 7_919 % KEYS) {
            let found = keyspace.get(key(number)).unwrap();
            assert_eq!(found.as_deref(), Some(&*value(number, 2)), "{number}");
            assert_eq!(keyspace.get([&key(number)[..], b"x"].concat()).unwrap(), None);
        }
        let forward: Vec<_> = keyspace.iter().map(Result::unwrap).collect();
        let mut backward: Vec<_> = keyspace.iter().rev().map(Result::unwrap).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        let wanted = (0..KEYS).map(|number| (key(number), value(number, 2)));
        assert!(
            forward
                .into_iter()
                .map(|(k, v)| (k.to_vec(), v.to_vec()))
                .eq(wanted.map(|(k, v)| (k.to_vec(), v)))
        );
    }
}

#[test]
fn a_database_reads_the_same_past_the_page_cache() {
    lsmx_testkit::time_test();
    let directory = tempfile::tempdir().unwrap();
    let probe = directory.path().join("probe");
    OsVfs.create(&probe).unwrap();
    if let Err(error) = OsVfs.open_direct(&probe) {
        let reason = format!("{} has no direct reads: {error}", directory.path().display());
        lsmx_testkit::report_skipped("direct reads of real files", reason);
        return;
    }
    let path = directory.path().join("db");
    let db = Db::open(&path, options()).unwrap();
    let packed = KeyspaceOptions::default().compression(Compression::Lz4);
    let packed = db.keyspace("packed", packed.memtable_bytes(64 << 10)).unwrap();
    for round in 0..3 {
        for number in 0..KEYS {
            db.put(key(number), value(number, round)).unwrap();
            packed.put(key(number), value(number, round)).unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    check(&db);
    db.close(None).unwrap();
    drop(packed);
    for direct in [true, false] {
        let db = Db::open(&path, options().direct_reads(direct).read_only(true)).unwrap();
        check(&db);
        let seen = db.metrics();
        assert!(seen.cache[&lsmx::metrics::BlockKind::Data].misses > 0);
    }
    lsmx::verify(&path, &Options::default()).unwrap();
}

/// Which tables were opened, and how.
#[derive(Debug, Default)]
struct Opened {
    cached: AtomicUsize,
    direct: AtomicUsize,
}

/// A file system with direct reads or without, which is what one that says nothing of them has.
#[derive(Clone, Debug)]
struct Watched(MemVfs, Option<Arc<Opened>>);

impl Watched {
    fn note(&self, path: &Path, which: impl Fn(&Opened) -> &AtomicUsize) {
        if let Some(opened) = &self.1
            && path.extension().is_some_and(|extension| extension == "sst")
        {
            which(opened).fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl VfsLayer for Watched {
    fn inner(&self) -> &dyn Vfs {
        &self.0
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        match mode {
            OpenMode::Create => {}
            OpenMode::Read => self.note(path, |opened| &opened.cached),
            OpenMode::ReadDirect => {
                self.note(path, |opened| &opened.direct);
                if self.1.is_none() {
                    return Err(io::ErrorKind::Unsupported.into());
                }
            }
        }
        mode.open(&self.0, path)
    }
}

#[test]
fn every_table_is_opened_in_the_way_that_was_asked_for() {
    for direct in [false, true] {
        let opened = Arc::new(Opened::default());
        let disk = Watched(MemVfs::new(), Some(Arc::clone(&opened)));
        let db = Db::open("db", options().direct_reads(direct).vfs(Arc::new(disk))).unwrap();
        for number in 0..KEYS {
            db.put(key(number), value(number, 0)).unwrap();
        }
        db.flush().unwrap();
        // Two descriptors for many tables, so that they are opened again and again.
        for number in 0..KEYS {
            assert!(db.get(key(number * 7_919 % KEYS)).unwrap().is_some());
        }
        let (cached, past) =
            (opened.cached.load(Ordering::Relaxed), opened.direct.load(Ordering::Relaxed));
        let (used, unused) = if direct { (past, cached) } else { (cached, past) };
        assert!(used > 100 && unused == 0, "{direct}: {cached} and {past}");
    }
}

#[test]
fn where_there_are_none_the_opening_says_so_and_changes_nothing() {
    let disk = Watched(MemVfs::new(), None);
    let cached = options().direct_reads(false);
    let db = Db::open("db", cached.clone().vfs(Arc::new(disk.clone()))).unwrap();
    db.put("k", "v").unwrap();
    db.close(None).unwrap();
    let before = disk.0.snapshot_all();
    let refused = |opened: lsmx::Result<Db>| match opened {
        Err(error @ Error::Io { .. }) => {
            assert!(error.to_string().contains("direct reads"), "{error}");
        }
        other => panic!("{other:?}"),
    };
    refused(Db::open("db", options().vfs(Arc::new(disk.clone()))));
    refused(Db::open("db", options().read_only(true).vfs(Arc::new(disk.clone()))));
    assert!(disk.0.snapshot_all() == before);
    let db = Db::open("db", cached.vfs(Arc::new(disk))).unwrap();
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
}
