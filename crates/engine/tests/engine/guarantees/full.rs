//! Guarantee 9 on a disk of limited size, where removed files free their space.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use super::support::KINDS;
use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, OsVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options, ValueSeparation};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::TestRng;

/// What was acknowledged, by keyspace.
type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

fn tuning(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(128 << 10)
        .table_bytes(128 << 10)
        .merge_operator(Append::default());
    match name {
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

fn open(disk: &MemVfs) -> Db {
    open_in(Arc::new(disk.clone()), Path::new("db"))
}

fn open_in(vfs: Arc<dyn Vfs>, dir: &Path) -> Db {
    Db::open(dir, options().vfs(vfs)).unwrap()
}

fn options() -> Options {
    let wal = WalOptions { segment_bytes: 64 << 10, ..WalOptions::default() };
    let options = Options::default().background(Background::Inline).wal(wal).seed(1);
    options.keyspace_defaults(tuning("default")).wal_bytes_max(512 << 10)
}

struct Filling {
    db: Db,
    kinds: [Keyspace; 3],
    model: Model,
    rng: TestRng,
}

impl Filling {
    fn new(db: Db, rng: TestRng) -> Filling {
        let kinds = KINDS.map(|name| db.keyspace(name, tuning(name)).unwrap());
        Filling { db, kinds, model: Model::default(), rng }
    }

    /// One more value, new or in the place of another.
    fn write(&mut self) -> lsmx::Result<()> {
        let at = self.rng.below(3);
        let key = self.rng.below(2_000_u64).to_be_bytes().to_vec();
        let len = 1 + self.rng.below(2_000);
        let value = self.rng.bytes(len);
        let sync = self.rng.is_one_in(20);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        match at {
            2 => self.kinds[at].with_write_options(durability).merge(&key, &value)?,
            _ => self.kinds[at].with_write_options(durability).put(&key, &value)?,
        }
        let there = self.model[at].entry(key).or_default();
        if at < 2 {
            there.clear();
        }
        there.extend_from_slice(&value);
        Ok(())
    }

    /// Writes until the disk is full.
    fn fill(&mut self, when: &str) {
        for _ in 0..100_000 {
            match self.write() {
                Ok(()) => {}
                // Compactions and collections need room as well.
                Err(Error::Background { .. }) => {}
                Err(Error::ReadOnly { cause }) => {
                    let Error::Io { source, .. } = &*cause else { panic!("{when}: {cause:?}") };
                    assert_eq!(source.kind(), ErrorKind::StorageFull, "{when}: {cause}");
                    return;
                }
                Err(error) => panic!("{when}: {error:?}"),
            }
        }
        panic!("{when}: the disk never got full");
    }

    /// All that was acknowledged is there, and nothing else.
    fn check(&self, db: &Db, when: &str) {
        for (model, name) in self.model.iter().zip(KINDS) {
            let Ok(there) = db.open_keyspace(name, None) else {
                assert!(model.is_empty(), "{when}: {name} is gone");
                continue;
            };
            let keyspace = match db.keyspace(name, tuning(name)) {
                Err(Error::ReadOnly { .. }) => there,
                opened => opened.unwrap(),
            };
            let found = keyspace.iter().map(|entry| entry.unwrap());
            let found: Vec<_> = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let same = found.iter().map(|(key, value)| (key, value)).eq(model.iter());
            assert!(same, "{when}: {name} has {} keys, {} are due", found.len(), model.len());
        }
    }
}

/// A disk gets full more than once, and each time some room is freed. What was acknowledged stays.
pub(crate) fn a_disk_that_gets_full(seed: u64) {
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let mut capacity = (2 << 20) + rng.below(6 << 20);
    let mut filling = Filling::new(open(&disk), rng);
    let reserve = Path::new("db/RESERVE");
    for round in 0..3 {
        disk.set_capacity(Some(capacity));
        let when = format!("seed {seed}, {capacity} bytes, round {round}");
        filling.fill(&when);
        assert!(disk.used_bytes() <= capacity);
        assert!(!disk.exists(reserve).unwrap(), "{when}: the reserve is used first");
        filling.check(&filling.db, &when);
        for image in CrashImage::ALL {
            let left = disk.crash(image, seed);
            drop(open(&left));
        }
        capacity += 3 << 20;
        disk.set_capacity(Some(capacity));
        filling.db.resume().unwrap_or_else(|error| panic!("{when}: {error}"));
        filling.check(&filling.db, &when);
        for image in CrashImage::ALL {
            let left = disk.crash(image, seed);
            filling.check(&open(&left), &format!("{when}, resumed, {image:?}"));
        }
    }
    let when = format!("seed {seed}, {capacity} bytes, dropped");
    filling.db.drop_keyspace("values").unwrap();
    filling.model[1].clear();
    filling.check(&filling.db, &when);
    assert!(disk.used_bytes() < capacity * 9 / 10, "{when}: what was dropped takes room");
    // A killed process leaves the reserve behind, and the next opening removes it.
    for _ in 0..50 {
        filling.kinds[0].put("more", "room").unwrap();
    }
    filling.model[0].insert(b"more".to_vec(), b"room".to_vec());
    let left = disk.crash(CrashImage::Keep, seed);
    filling.check(&open(&left), &when);
    assert!(disk.exists(reserve).unwrap(), "room is kept");
    filling.db.close(None).unwrap();
    assert!(!disk.exists(reserve).unwrap(), "a closed database keeps no room");
    filling.check(&open(&disk), &when);
}

/// The same on a real file system, where one can be mounted.
pub(crate) fn a_real_disk_that_gets_full(seed: u64) {
    let mut rng = TestRng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let size = format!("size={}k", 2_048 + rng.below(6_144));
    if let Err(reason) = mount(&["-t", "tmpfs", "-o", &size, "lsmx"], dir.path()) {
        lsmx_testkit::report_skipped("a full disk on a real file system", reason);
        return;
    }
    let played = std::panic::catch_unwind(|| fill_and_resume(dir.path(), rng, &size));
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success(), "{size} stays mounted");
    if let Err(panic) = played {
        println!("seed {seed}, {size}");
        std::panic::resume_unwind(panic);
    }
}

/// Runs `mount` with these arguments for a directory.
fn mount(arguments: &[&str], dir: &Path) -> Result<(), String> {
    match Command::new("mount").args(arguments).arg(dir).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("cannot run mount: {error}")),
    }
}

fn fill_and_resume(dir: &Path, rng: TestRng, when: &str) {
    let dir = dir.join("db");
    let grow = |megabytes: u64| {
        let size = format!("remount,size={megabytes}m");
        mount(&["-o", &size], dir.parent().unwrap()).unwrap();
    };
    let mut filling = Filling::new(open_in(Arc::new(OsVfs), &dir), rng);
    for megabytes in [12, 18] {
        filling.fill(when);
        assert!(!dir.join("RESERVE").exists(), "{when}: the reserve is used first");
        filling.check(&filling.db, when);
        grow(megabytes);
        filling.db.resume().unwrap_or_else(|error| panic!("{when}: {error}"));
        filling.check(&filling.db, when);
    }
    filling.fill(when);
    let Filling { db, kinds, model, rng } = filling;
    drop((db, kinds));
    let listed = || {
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // An opening that fails, and one for reading, change nothing.
    let before = listed();
    // A manifest that could not be completed may have a larger number than the current one.
    let current = std::fs::read_to_string(dir.join("CURRENT")).unwrap();
    let is_current = |name: &&std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.contains("MANIFEST") && current.split_whitespace().any(|word| *word == *name)
    };
    let manifest = dir.join(before.iter().find(is_current).unwrap());
    OsVfs.rename(&manifest, &dir.parent().unwrap().join("away")).unwrap();
    assert!(Db::open(&dir, options()).is_err());
    OsVfs.rename(&dir.parent().unwrap().join("away"), &manifest).unwrap();
    drop(Db::open(&dir, options().read_only(true)).unwrap());
    assert_eq!(listed(), before, "{when}");
    // Opening writes every memtable to a file of its own, in whole blocks.
    grow(64);
    let db = open_in(Arc::new(OsVfs), &dir);
    let mut filling = Filling { model, ..Filling::new(db, rng) };
    filling.check(&filling.db, when);
    filling.db.drop_keyspace("values").unwrap();
    filling.model[1].clear();
    filling.kinds[0].put("more", "room").unwrap();
    filling.model[0].insert(b"more".to_vec(), b"room".to_vec());
    filling.db.close(None).unwrap();
    assert!(!dir.join("RESERVE").exists(), "a closed database keeps no room");
    filling.check(&open_in(Arc::new(OsVfs), &dir), when);
}
