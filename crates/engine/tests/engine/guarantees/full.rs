//! Guarantee 9, tested on a disk of limited size. The disk frees the space of removed files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::{CrashImage, MemVfs, OsVfs, Vfs};
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;

use crate::harness::database::{assert_clean, files};
use crate::harness::small_database::{KINDS, durability, seeds};

/// A model of the acknowledged writes: the expected entries of each keyspace.
type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

fn keyspace_options(kind: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(128 << 10)
        .table_bytes(128 << 10)
        .merge_operator(Append::default());
    match kind {
        "values" => options.value_separation(ValueSeparation {
            threshold_bytes: 512,
            ..ValueSeparation::default()
        }),
        "operands" => options.operand_store(DeltaStoreFactory::new(
            DeltaOptions::default().bucket_bytes(32 << 10).log_bytes_max(256 << 10),
        )),
        _ => options,
    }
}

fn options() -> Options {
    let wal = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
    let options = Options::default().background(Background::Inline).wal(wal).seed(1);
    options.keyspace_defaults(keyspace_options("default")).wal_bytes_max(512 << 10)
}

/// A database on a disk of limited size, and a model of its acknowledged writes.
struct LimitedDatabase {
    vfs: Arc<dyn Vfs>,
    db: Db,
    kinds: [Keyspace; 3],
    model: Model,
    rng: TestRng,
    when: String,
}

fn open(vfs: &Arc<dyn Vfs>, dir: &Path) -> (Db, [Keyspace; 3]) {
    let db = Db::open(dir, options().vfs(Arc::clone(vfs))).unwrap();
    let kinds = KINDS.map(|kind| db.keyspace(kind, keyspace_options(kind)).unwrap());
    (db, kinds)
}

impl LimitedDatabase {
    fn new(vfs: Arc<dyn Vfs>, dir: &Path, rng: TestRng, when: String) -> LimitedDatabase {
        let (db, kinds) = open(&vfs, dir);
        LimitedDatabase { vfs, db, kinds, model: Model::default(), rng, when }
    }

    fn write(&mut self) -> lsmx::Result<()> {
        let at = self.rng.below(3);
        let key = self.rng.below(2_000_u64).to_be_bytes().to_vec();
        let len = 1 + self.rng.below(2_000);
        let value = self.rng.bytes(len);
        let keyspace = self.kinds[at].with_write_options(durability(self.rng.is_one_in(20)));
        match at {
            2 => keyspace.merge(&key, &value)?,
            _ => keyspace.put(&key, &value)?,
        }
        let expected = self.model[at].entry(key).or_default();
        if at < 2 {
            expected.clear();
        }
        expected.extend_from_slice(&value);
        Ok(())
    }

    /// Writes until the disk is full. The database must use its reserve before it becomes read-only.
    fn fill(&mut self, dir: &Path) {
        let when = self.when.clone();
        let cause = (0..100_000).find_map(|_| match self.write() {
            // Compactions and collections of blob files also fail on a full disk.
            Ok(()) | Err(Error::Background { .. }) => None,
            Err(Error::ReadOnly { cause }) => Some(cause),
            Err(error) => panic!("{when}: {error:?}"),
        });
        let cause = cause.expect("the disk never got full");
        let Error::Io { source, .. } = &*cause else { panic!("{when}: {cause:?}") };
        assert_eq!(source.kind(), ErrorKind::StorageFull, "{when}: {cause}");
        assert!(!self.vfs.exists(&dir.join("RESERVE")).unwrap(), "{when}: the reserve is unused");
        self.check(&self.db);
    }

    /// Calls `resume` after the test has enlarged the disk.
    fn resume(&self) {
        self.db.resume().unwrap_or_else(|error| panic!("{}: {error}", self.when));
        self.check(&self.db);
    }

    fn drop_values(&mut self) {
        self.db.drop_keyspace("values").unwrap();
        self.model[1].clear();
        self.check(&self.db);
    }

    fn put_more(&mut self) {
        for _ in 0..50 {
            let put = || self.kinds[0].put("more", "room");
            // A write reports the failure of a compaction on the full disk.
            let result = match put() {
                Err(Error::Background { .. }) => put(),
                result => result,
            };
            result.unwrap();
        }
        self.model[0].insert(b"more".to_vec(), b"room".to_vec());
    }

    /// Closes the database, which removes the reserve. All acknowledged writes must exist after a reopen.
    fn close_and_check(self, dir: &Path) {
        self.db.close(None).unwrap();
        assert!(
            !self.vfs.exists(&dir.join("RESERVE")).unwrap(),
            "the reserve exists after a close"
        );
        self.check(&Db::open(dir, options().vfs(Arc::clone(&self.vfs))).unwrap());
    }

    fn check(&self, db: &Db) {
        for (model, kind) in self.model.iter().zip(KINDS) {
            let Ok(existing) = db.open_keyspace(kind, None) else {
                assert!(model.is_empty(), "{}: keyspace {kind} is lost", self.when);
                continue;
            };
            let keyspace = match db.keyspace(kind, keyspace_options(kind)) {
                Err(Error::ReadOnly { .. }) => existing,
                opened => opened.unwrap(),
            };
            let found = keyspace.iter().map(|entry| entry.unwrap());
            let found: BTreeMap<_, _> =
                found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let (count, expected) = (found.len(), model.len());
            assert!(found == *model, "{}: {kind}: {count} of {expected} keys", self.when);
        }
    }
}

/// Guarantee 9: a disk fills up several times, and each time the test enlarges the disk. All acknowledged writes must
/// exist.
#[test]
fn guarantee_09_disk_gets_full_acknowledged_writes_stay() {
    for seed in seeds(90, 3) {
        fill_memory(seed);
        fill_mounted(seed);
    }
}

fn fill_memory(seed: u64) {
    let mut rng = TestRng::new(seed);
    let (disk, dir) = (MemVfs::new(), Path::new("db"));
    let mut capacity = (2 << 20) + rng.below(6 << 20);
    let when = format!("seed {seed}, {capacity} bytes at first");
    let mut database = LimitedDatabase::new(Arc::new(disk.clone()), dir, rng, when);
    let open_image = |image| {
        let disk: Arc<dyn Vfs> = Arc::new(disk.crash(image, seed));
        open(&disk, dir).0
    };
    for _ in 0..3 {
        disk.set_capacity(Some(capacity));
        database.fill(dir);
        assert!(disk.used_bytes() <= capacity);
        CrashImage::ALL.iter().for_each(|image| drop(open_image(*image)));
        capacity += 3 << 20;
        disk.set_capacity(Some(capacity));
        database.resume();
        CrashImage::ALL.iter().for_each(|image| database.check(&open_image(*image)));
    }
    database.drop_values();
    assert!(disk.used_bytes() < capacity * 9 / 10, "the dropped keyspace takes space");
    database.put_more();
    // A killed process leaves the file `RESERVE`, which the next open removes.
    database.check(&open_image(CrashImage::Keep));
    assert!(disk.exists(&dir.join("RESERVE")).unwrap(), "no reserve exists");
    database.close_and_check(dir);
}

/// Runs the test [`fill_memory`] on a tmpfs. Skips the test if the process may not mount a file system.
fn fill_mounted(seed: u64) {
    let mut rng = TestRng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let size = format!("size={}k", 2_048 + rng.below(6_144));
    if let Err(reason) = mount(&["-t", "tmpfs", "-o", &size, "lsmx"], dir.path()) {
        lsmx_testkit::report_skipped("a full disk on a real file system", reason);
        return;
    }
    let when = format!("seed {seed}, {size}");
    let result = std::panic::catch_unwind(|| fill_and_resume(dir.path(), rng, when));
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success(), "{size} stays mounted");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn mount(arguments: &[&str], dir: &Path) -> Result<(), String> {
    match Command::new("mount").args(arguments).arg(dir).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("cannot run mount: {error}")),
    }
}

fn fill_and_resume(root: &Path, rng: TestRng, when: String) {
    let dir = &root.join("db");
    let grow = |megabytes: u64| {
        mount(&["-o", &format!("remount,size={megabytes}m")], root).unwrap();
    };
    let mut database = LimitedDatabase::new(Arc::new(OsVfs), dir, rng, when);
    for megabytes in [12, 18] {
        database.fill(dir);
        grow(megabytes);
        database.resume();
    }
    database.fill(dir);
    let LimitedDatabase { vfs, db, kinds, model, rng, when } = database;
    drop((db, kinds));
    let list = || {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // A failed open and a read-only open change no file.
    let before = list();
    // The directory may also contain an incomplete manifest with a larger number than the current manifest.
    let current = std::fs::read_to_string(dir.join("CURRENT")).unwrap();
    let current = current.split_whitespace().find(|word| word.contains("MANIFEST")).unwrap();
    let (manifest, away) = (dir.join(current), root.join("away"));
    OsVfs.rename(&manifest, &away).unwrap();
    assert!(Db::open(dir, options()).is_err());
    OsVfs.rename(&away, &manifest).unwrap();
    drop(Db::open(dir, options().read_only(true)).unwrap());
    assert_eq!(list(), before, "{when}");
    // The next open needs more space: it writes each memtable to a separate table, and the file system allocates whole
    // blocks.
    grow(64);
    let mut database = LimitedDatabase { model, ..LimitedDatabase::new(vfs, dir, rng, when) };
    database.check(&database.db);
    database.drop_values();
    database.put_more();
    database.close_and_check(dir);
}

/// Regression: the tables of killed opens stayed on the disk until an open succeeded. They filled the disk, and every later
/// open failed.
#[test]
fn full_disk_tables_of_killed_opens_are_removed() {
    // With small memtables, the replay flushes tables before all commits are replayed.
    for memtable_bytes in [1 << 20, 64 << 10] {
        let open = |disk: Arc<dyn Vfs>, memtable_bytes| {
            let keyspace = keyspace_options("values").memtable_bytes(memtable_bytes);
            let options = Options::default().background(Background::Inline).seed(1).vfs(disk);
            Db::open("db", options.keyspace_defaults(keyspace)).unwrap()
        };
        let mut disk = MemVfs::new();
        let db = open(Arc::new(disk.clone()), 1 << 20);
        let mut rng = TestRng::new(1);
        let model: Vec<_> = (0..200_u8).map(|key| (key, rng.bytes(1_000))).collect();
        for (key, value) in &model {
            db.put([*key], value).unwrap();
        }
        db.sync().unwrap();
        disk = disk.crash(CrashImage::Drop, 1);
        let segments = files(&disk, ".wal");
        for _ in 0..3 {
            let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
            let killed: Arc<OnceLock<MemVfs>> = Arc::default();
            let image = Arc::clone(&killed);
            faults.set_delay_hook(Some(Arc::new(move |_, _: &Path| {
                image.get_or_init(|| disk.crash(CrashImage::Keep, 1));
            })));
            // The open replaces `CURRENT` by a rename after it has flushed all memtables.
            faults.add_rule(FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Rename]).nth(0));
            drop(open(Arc::new(faults), memtable_bytes));
            disk = killed.get().unwrap().crash(CrashImage::Keep, 1);
        }
        assert!(files(&disk, ".sst").len() >= 3 && files(&disk, ".blob").len() >= 3);
        assert!(segments.iter().all(|segment| disk.exists(segment).unwrap()));
        disk.set_capacity(Some(disk.used_bytes()));
        let db = open(Arc::new(disk.clone()), memtable_bytes);
        for (key, value) in &model {
            assert_eq!(&*db.get([*key]).unwrap().unwrap(), value);
        }
        db.close(None).unwrap();
        assert!(
            lsmx::verify("db", &Options::default().vfs(Arc::new(disk))).unwrap().orphans.is_empty()
        );
    }
}

/// Regression: each failed call of `resume` left the files of its deliveries behind. They took the space that the next
/// call needed.
#[test]
fn failed_resume_leaves_no_files_of_operand_stores() {
    // The table of the second keyspace cannot be created, or the new manifest cannot be created.
    for cause in [".sst", "MANIFEST"] {
        let (disk, dir) = (MemVfs::new(), Path::new("db"));
        let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
        let db = Db::open(dir, options().vfs(Arc::new(faults.clone()))).unwrap();
        // `resume` writes the memtables of keyspaces in the order of their creation.
        let operands = db.keyspace("operands", keyspace_options("operands")).unwrap();
        let tables = db.keyspace("tables", keyspace_options("default")).unwrap();
        let sync = tables.with_write_options(durability(true));
        let write = |round: u8| {
            (0..100_u8).for_each(|key| operands.merge([key], [round; 500]).unwrap());
            sync.put("key", [round]).unwrap();
        };
        write(0);
        db.flush().unwrap();
        write(1);
        let full = |calls: &[VfsCall], path: &str| {
            let rule = FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(calls);
            faults.add_rule(rule.path_contains(path).from_then_on());
        };
        full(&[VfsCall::Append, VfsCall::Sync], ".wal");
        sync.put("key", "lost").unwrap_err();
        faults.clear_rules();
        full(&[VfsCall::Create], cause);
        let store_files = || [files(&disk, ".operands"), files(&disk, ".bucket")].concat();
        let before = store_files();
        for _ in 0..3 {
            let failed = db.resume().unwrap_err();
            assert!(failed.to_string().contains(cause), "{failed}");
            assert_eq!(store_files(), before, "{cause}");
        }
        faults.clear_rules();
        db.resume().unwrap();
        write(2);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let expected = [[0; 500], [1; 500], [2; 500]].concat();
        (0..100_u8).for_each(|key| assert_eq!(*operands.get([key]).unwrap().unwrap(), expected));
        drop((operands, tables, sync));
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}
