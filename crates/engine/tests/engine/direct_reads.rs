//! Direct table reads and direct compactions, which bypass the page cache of the operating system.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lsmx::internals::vfs::{FileHint, FileLayer, OpenMode, VfsLayer};
use lsmx::vfs::{File, MemVfs, OsVfs, Vfs};
use lsmx::{Compression, Db, Error, KeyspaceOptions, Options};

use crate::harness::database::{assert_entries, inline, open, policy, settle, try_open};

const KEYS: u32 = 3_000;

fn options() -> Options {
    let tuning = KeyspaceOptions::default()
        .memtable_bytes(64 << 10)
        .table_bytes(32 << 10)
        .block_bytes(1 << 10)
        .policy(policy("tiering"));
    inline()
        .block_cache_bytes(16 << 10)
        .open_files_max(2)
        .direct_reads(true)
        .keyspace_defaults(tuning)
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Returns a value of 60 bytes. Every 97th number has a value of 9,000 bytes, which spans several device blocks.
fn value(number: u32, round: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(97) { 9_000 } else { 60 };
    (0..bytes).map(|at: u32| (at ^ number ^ round).to_le_bytes()[0]).collect()
}

/// Asserts that both keyspaces contain the values that round 2 has written.
fn check(db: &Db) {
    let model = (0..KEYS).map(|number| (key(number).to_vec(), value(number, 2))).collect();
    for keyspace in [db.default_keyspace(), db.open_keyspace("packed", None).unwrap()] {
        assert_entries(&keyspace, &model);
        for number in 0..KEYS {
            assert_eq!(keyspace.get([&key(number)[..], b"x"].concat()).unwrap(), None);
        }
    }
}

#[test]
fn direct_reads_return_the_entries_of_cached_reads() {
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
    settle(&db);
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

/// Number of opens of table files, through the page cache and direct.
#[derive(Debug, Default)]
struct Opened {
    cached: AtomicUsize,
    direct: AtomicUsize,
}

/// An in-memory file system that counts opens of table files. If the counter is `None`, the file system does not
/// support direct opens.
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
fn direct_reads_option_applies_to_every_open_of_a_table() {
    for direct in [false, true] {
        let opened = Arc::new(Opened::default());
        let disk = Watched(MemVfs::new(), Some(Arc::clone(&opened)));
        let db = open(&disk, options().direct_reads(direct));
        for number in 0..KEYS {
            db.put(key(number), value(number, 0)).unwrap();
        }
        db.flush().unwrap();
        // The limit of two open files forces the database to reopen tables repeatedly.
        for number in 0..KEYS {
            assert!(db.get(key(number * 7_919 % KEYS)).unwrap().is_some());
        }
        let (cached, past) =
            (opened.cached.load(Ordering::Relaxed), opened.direct.load(Ordering::Relaxed));
        let (used, unused) = if direct { (past, cached) } else { (cached, past) };
        assert!(used > 100 && unused == 0, "{direct}: opened {cached} cached, {past} direct");
    }
}

#[test]
fn direct_reads_unsupported_fail_the_open_without_changes() {
    let disk = Watched(MemVfs::new(), None);
    let cached = options().direct_reads(false);
    let db = open(&disk, cached.clone());
    db.put("k", "v").unwrap();
    db.close(None).unwrap();
    let before = disk.0.snapshot_all();
    let refused = |opened: lsmx::Result<Db>| match opened {
        Err(error @ Error::Io { .. }) => {
            assert!(error.to_string().contains("direct reads"), "{error}");
        }
        other => panic!("{other:?}"),
    };
    refused(try_open(&disk, options()));
    refused(try_open(&disk, options().read_only(true)));
    assert!(disk.0.snapshot_all() == before);
    let db = open(&disk, cached);
    assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Number of table files by their use.
#[derive(Debug, Default)]
struct TableFiles {
    created: AtomicUsize,
    /// Created for direct appends.
    created_direct: AtomicUsize,
    opened_direct: AtomicUsize,
}

/// An in-memory file system that counts table files.
#[derive(Clone, Debug)]
struct CountedTables(MemVfs, Arc<TableFiles>);

#[derive(Debug)]
struct HintedFile(Arc<dyn File>, Arc<TableFiles>);

impl FileLayer for HintedFile {
    fn inner(&self) -> &dyn File {
        &*self.0
    }

    fn intercept_hint(&self, hint: FileHint) -> bool {
        if hint == (FileHint::DropCachedPages { offset: 0, bytes: u64::MAX }) {
            self.1.created_direct.fetch_add(1, Ordering::Relaxed);
        }
        hint.apply_to_file(&*self.0)
    }
}

impl VfsLayer for CountedTables {
    fn inner(&self) -> &dyn Vfs {
        &self.0
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = mode.open(&self.0, path)?;
        if path.extension().is_none_or(|extension| extension != "sst") {
            return Ok(file);
        }
        let counts = &self.1;
        match mode {
            OpenMode::Create => {
                counts.created.fetch_add(1, Ordering::Relaxed);
                return Ok(Arc::new(HintedFile(file, Arc::clone(counts))));
            }
            OpenMode::Read => {}
            OpenMode::ReadDirect => {
                counts.opened_direct.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(file)
    }
}

#[test]
fn compactions_bypass_the_page_cache_if_the_database_exceeds_it() {
    let tuning = KeyspaceOptions::default()
        .memtable_bytes(64 << 10)
        .table_bytes(32 << 10)
        .block_bytes(1 << 10)
        .policy(policy("leveled(T=2)"));
    let options = || inline().keyspace_defaults(tuning.clone());
    // The database has more than 100 KiB.
    let cases = [
        (options(), false),
        (options().cached_file_bytes_max(100 << 20), false),
        (options().cached_file_bytes_max(50 << 10), true),
        (options().keep_compactions_cached(true), false),
        (options().keep_compactions_cached(false), true),
    ];
    for (number, (options, bypasses)) in cases.into_iter().enumerate() {
        let files = Arc::new(TableFiles::default());
        let disk = CountedTables(MemVfs::new(), Arc::clone(&files));
        let db = open(&disk, options);
        for round in 0..3 {
            for number in 0..KEYS {
                db.put(key(number), value(number, round)).unwrap();
            }
        }
        settle(&db);
        let model = (0..KEYS).map(|number| (key(number).to_vec(), value(number, 2))).collect();
        assert_entries(&db.default_keyspace(), &model);
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let used = (count(&files.created_direct) > 0, count(&files.opened_direct) > 0);
        assert_eq!(used, (bypasses, bypasses), "case {number}: {files:?}");
        // Files of flushes stay in the page cache.
        assert!(count(&files.created) > count(&files.created_direct));
    }
}
