//! Checkpoints and read-only opens.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{
    CountingVfs, CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall, VfsLayer,
};
use lsmx::vfs::{MemVfs, OsVfs, Vfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};

use crate::harness::database::{self, assert_clean, inline, metrics, try_open, verify};
use crate::harness::small_database;

fn options() -> Options {
    let keyspace = KeyspaceOptions::default().memtable_bytes(8 << 10).table_bytes(8 << 10);
    inline().keyspace_defaults(keyspace)
}

fn create(disk: &(impl Vfs + Clone)) -> Db {
    database::open(disk, options())
}

fn open(disk: &(impl Vfs + Clone), path: &str) -> lsmx::Result<Db> {
    Db::open(path, options().create_if_missing(false).vfs(Arc::new(disk.clone())))
}

fn read_only(disk: &MemVfs) -> lsmx::Result<Db> {
    try_open(disk, options().read_only(true))
}

fn fill(db: &Db, keys: std::ops::Range<u32>) {
    for key in keys {
        db.put(key.to_be_bytes(), vec![b'v'; 100]).unwrap();
    }
}

fn count(db: &Db) -> usize {
    db.default_keyspace().iter().map(Result::unwrap).count()
}

#[test]
fn checkpoint_is_an_independent_database_with_earlier_commits() {
    let disk = MemVfs::new();
    let db = create(&disk);
    let users = db.keyspace("users", KeyspaceOptions::default()).unwrap();
    fill(&db, 0..1_000);
    users.put("ada", "1815").unwrap();
    db.checkpoint("copies/one").unwrap();
    fill(&db, 1_000..3_000);
    db.drop_keyspace("users").unwrap();
    db.wait_idle().unwrap();
    // A power loss that drops all unsynced data must not damage the checkpoint.
    let crashed = disk.crash(CrashImage::Drop, 0);
    for disk in [&disk, &crashed] {
        let copy = open(disk, "copies/one").unwrap();
        assert_eq!(count(&copy), 1_000);
        let users = copy.open_keyspace("users", None).unwrap();
        assert_eq!(users.get("ada").unwrap().unwrap(), *b"1815");
        fill(&copy, 5_000..6_000);
        drop(users);
        copy.close(None).unwrap();
        let vfs = Options::default().vfs(Arc::new(disk.clone()));
        assert_eq!(lsmx::verify("copies/one", &vfs).unwrap().orphans.len(), 0);
    }
    assert_eq!(count(&db), 3_000);
    assert!(matches!(db.checkpoint("copies/one"), Err(Error::TargetNotEmpty { .. })));
    assert!(matches!(db.checkpoint("db"), Err(Error::TargetNotEmpty { .. })));
    db.close(None).unwrap();
    assert!(matches!(db.checkpoint("copies/two"), Err(Error::Closed)));
    assert_clean(&disk);
}

/// A checkpoint into an empty directory did not sync the parent, so a power loss removed the checkpoint.
#[test]
fn checkpoint_in_an_unsynced_directory_survives_a_power_loss() {
    let disk = MemVfs::new();
    let db = create(&disk);
    fill(&db, 0..10);
    disk.create_dir(Path::new("copy")).unwrap();
    db.checkpoint("copy").unwrap();
    let copy = open(&disk.crash(CrashImage::Drop, 0), "copy").unwrap();
    assert_eq!(count(&copy), 10);
}

#[test]
fn checkpoint_links_tables_or_copies_them_if_links_are_unsupported() {
    for cannot in [false, true] {
        let disk = CannotLink { inner: MemVfs::new(), cannot };
        let faults = FaultVfs::new(Arc::new(disk), 0);
        let vfs = CountingVfs::new(Arc::new(faults.clone()));
        let db = create(&vfs);
        fill(&db, 0..2_000);
        db.flush().unwrap();
        let total = metrics(&db).total();
        let (tables, bytes) = (total.files, total.bytes);
        let before = vfs.counts();
        db.checkpoint("copy").unwrap();
        let after = vfs.counts();
        assert_eq!(
            after.calls.count_of(VfsCall::HardLink) - before.calls.count_of(VfsCall::HardLink),
            tables
        );
        let written =
            after.bytes.count_of(VfsCall::Append) - before.bytes.count_of(VfsCall::Append);
        assert_eq!(written > bytes, cannot, "{written} bytes written, {bytes} in tables");
        // If creating a hard link fails with an error other than `Unsupported`, the checkpoint fails.
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::HardLink]));
        assert!(matches!(db.checkpoint("second"), Err(Error::Io { action: "link", .. })));
        db.checkpoint("second").unwrap();
        for copy in ["copy", "second"] {
            let copy = open(&vfs, copy).unwrap();
            assert_eq!(count(&copy), 2_000);
        }
    }
}

/// An in-memory file system. If `cannot` is set, creating a hard link fails with `Unsupported`.
#[derive(Clone, Debug)]
struct CannotLink {
    inner: MemVfs,
    cannot: bool,
}

impl VfsLayer for CannotLink {
    fn inner(&self) -> &dyn Vfs {
        &self.inner
    }

    fn before_call(&self, call: VfsCall, _: &Path) -> io::Result<()> {
        if self.cannot && call == VfsCall::HardLink {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(())
    }
}

/// Creates a checkpoint whose k-th file system call fails, with further faults during the checkpoint. Returns `None` if the
/// checkpoint has fewer calls.
fn checkpoint_with_failed_call(
    k: u64,
    further: Option<FaultRule>,
) -> Option<(MemVfs, Db, lsmx::Result<()>)> {
    let disk = MemVfs::new();
    let vfs = FaultVfs::new(Arc::new(disk.clone()), k);
    let db = create(&vfs);
    fill(&db, 0..400);
    db.sync().unwrap();
    vfs.add_rule(FaultRule::new(Fault::Error(Errno::NoSpace)).for_calls(VfsCall::ALL).nth(k));
    if let Some(rule) = further {
        vfs.add_rule(rule);
    }
    let made = db.checkpoint("copy");
    vfs.clear_rules();
    if vfs.fired_counts().is_empty() {
        made.unwrap();
        assert!(k > 20, "only {k} calls");
        return None;
    }
    Some((disk, db, made))
}

/// The disk, and its images after a power loss.
fn images(disk: &MemVfs, seed: u64) -> [MemVfs; 3] {
    [disk.clone(), disk.crash(CrashImage::Drop, seed), disk.crash(CrashImage::Keep, seed)]
}

/// After a failed checkpoint, the source database accepts writes, and a second checkpoint succeeds.
#[test]
fn checkpoint_failed_leaves_no_database() {
    for k in 0.. {
        let Some((disk, db, made)) = checkpoint_with_failed_call(k, None) else { break };
        if made.is_err() {
            for disk in images(&disk, k) {
                let opened = open(&disk, "copy");
                assert!(matches!(opened, Err(Error::NotADatabase { .. })), "call {k}: {opened:?}");
            }
            if db.health().read_only.is_some() {
                db.resume().unwrap();
            }
            db.checkpoint("copy").unwrap();
        }
        fill(&db, 400..500);
        assert_eq!(count(&db), 500);
        let copy = open(&disk, "copy").unwrap();
        assert_eq!(count(&copy), 400);
    }
}

#[test]
fn checkpoint_failed_without_removals_leaves_no_incomplete_database() {
    for k in 0.. {
        let no_removals = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Remove]);
        let Some((disk, ..)) = checkpoint_with_failed_call(k, Some(no_removals)) else { break };
        for disk in images(&disk, k) {
            match open(&disk, "copy") {
                Err(Error::NotADatabase { .. }) => {}
                opened => assert_eq!(count(&opened.unwrap()), 400, "call {k}"),
            }
        }
    }
}

/// In round k, the k-th read of the checkpoint returns altered bytes. Without hard links, the checkpoint also reads the
/// tables in order to copy them.
#[test]
fn checkpoint_with_an_altered_read_fails_or_is_correct() {
    for cannot in [false, true] {
        let mut refused = 0;
        for k in 0.. {
            let disk = MemVfs::new();
            let linking = CannotLink { inner: disk.clone(), cannot };
            let faulty = FaultVfs::new(Arc::new(linking), k);
            let db = create(&faulty);
            fill(&db, 0..400);
            db.sync().unwrap();
            faulty.add_rule(FaultRule::new(Fault::AlteredRead).nth(k));
            let made = db.checkpoint("copy");
            faulty.clear_rules();
            if faulty.fired_counts().is_empty() {
                assert!(k > 0 && refused > 0, "{k} reads, {refused} refused");
                break;
            }
            match made {
                Err(Error::Corrupt { .. }) => refused += 1,
                made => made.unwrap(),
            }
            if disk.exists(Path::new("copy/CURRENT")).unwrap() {
                let copy = open(&disk, "copy").unwrap();
                assert_eq!(count(&copy), 400);
            }
        }
    }
}

/// A checkpoint contains a prefix of the commit history of all keyspaces. The prefix includes all commits that were
/// acknowledged before the checkpoint started.
#[test]
fn checkpoint_during_writes_contains_a_prefix_of_commits() {
    lsmx_testkit::time_test();
    for seed in 0..30 {
        let disk = MemVfs::new();
        let db =
            database::open(&disk, options().background(Background::Stepped { seed, workers: 2 }));
        let small = KeyspaceOptions::default().memtable_bytes(2 << 10).block_bytes(1 << 10);
        let other = db.keyspace("other", small).unwrap();
        let env = db.env().clone();
        let writer = {
            let (db, other) = (db.clone(), other.clone());
            env.spawn("writer", move || {
                for number in 0..1_500u32 {
                    let mut batch = WriteBatch::new();
                    batch.put(&db.default_keyspace(), "number", number.to_be_bytes());
                    batch.put(&other, number.to_be_bytes(), vec![b'v'; 40]);
                    db.write(batch, Durability::Buffered).unwrap();
                    if number % 400 == 399 {
                        db.flush().unwrap();
                    }
                }
            })
        };
        let writer = writer.unwrap();
        let mut floors = Vec::new();
        for copy in 0..6 {
            for _ in 0..150 {
                db.put("beside", "v").unwrap();
            }
            let floor = db.get("number").unwrap();
            floors.push(floor.map_or(0, |value| u32::from_be_bytes(value[..].try_into().unwrap())));
            db.checkpoint(format!("copy-{copy}")).unwrap();
        }
        env.join(writer).unwrap();
        drop(other);
        db.close(None).unwrap();
        for (copy, floor) in floors.iter().enumerate() {
            let db = open(&disk, &format!("copy-{copy}")).unwrap();
            let number = db.get("number").unwrap();
            let there = number.map(|value| u32::from_be_bytes(value[..].try_into().unwrap()));
            assert!(there.is_none_or(|there| there >= *floor), "seed {seed}: {there:?} < {floor}");
            let other = db.open_keyspace("other", None).unwrap();
            let count = there.map_or(0, |there| there as usize + 1);
            assert_eq!(other.iter().filter(Result::is_ok).count(), count, "seed {seed}");
        }
    }
}

#[test]
fn read_only_open_shows_all_entries_and_changes_no_file() {
    let disk = MemVfs::new();
    let db = create(&disk);
    let users = db.keyspace("users", KeyspaceOptions::default()).unwrap();
    fill(&db, 0..1_000);
    users.put("ada", "1815").unwrap();
    assert!(matches!(read_only(&disk), Err(Error::Locked { .. })));
    // The killed database has a log to replay. A read-only open replays the log into memory.
    let killed = disk.crash(CrashImage::Keep, 0);
    drop(users);
    db.close(None).unwrap();
    for disk in [disk, killed] {
        let (before, operations) = (disk.snapshot_all(), disk.operations());
        let db = read_only(&disk).unwrap();
        let second = read_only(&disk).unwrap();
        assert!(matches!(open(&disk, "db"), Err(Error::Locked { .. })));
        verify(&disk).unwrap();
        for db in [&db, &second] {
            assert_eq!(db.default_keyspace().iter().rev().count(), 1_000);
            let users = db.open_keyspace("users", None).unwrap();
            assert_eq!(db.snapshot().get(&users, "ada").unwrap().unwrap(), *b"1815");
            assert_eq!(db.keyspaces(), ["default", "users"]);
            db.wait_idle().unwrap();
        }
        fn refused<T: std::fmt::Debug>(answer: lsmx::Result<T>) {
            assert!(matches!(answer, Err(Error::OpenedReadOnly)), "{answer:?}");
        }
        refused(db.put("k", "v"));
        refused(db.delete("k"));
        refused(db.write(WriteBatch::new(), Durability::Sync));
        refused(db.sync());
        refused(db.flush());
        refused(db.resume());
        refused(db.checkpoint("copy"));
        refused(db.drop_keyspace("users"));
        refused(db.keyspace("new", KeyspaceOptions::default()));
        let tuned = db.keyspace("users", KeyspaceOptions::default().block_bytes(1 << 12)).unwrap();
        assert_eq!(tuned.get("ada").unwrap().unwrap(), *b"1815");
        assert!(db.metrics().keyspaces["users"].memtable_bytes < 1 << 20);
        db.close(None).unwrap();
        assert!(matches!(db.get("k"), Err(Error::Closed)));
        drop((tuned, db, second));
        assert_eq!((disk.snapshot_all(), disk.operations()), (before, operations));
        // Closing the read-only databases released their locks.
        open(&disk, "db").unwrap().close(None).unwrap();
    }
}

#[test]
fn read_only_open_needs_a_database_and_no_lock_file() {
    let disk = MemVfs::new();
    assert!(matches!(read_only(&disk), Err(Error::NotADatabase { .. })));
    assert_eq!(disk.operations(), 0);
    create(&disk).close(None).unwrap();
    disk.remove(Path::new("db/LOCK")).unwrap();
    let operations = disk.operations();
    drop(read_only(&disk).unwrap());
    assert_eq!(disk.operations(), operations);
}

#[cfg(unix)]
#[test]
fn read_only_open_of_a_directory_without_write_permission_succeeds() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = Db::open(&path, Options::default()).unwrap();
    db.put("k", "v").unwrap();
    db.checkpoint(dir.path().join("copy")).unwrap();
    db.close(None).unwrap();
    let copy = dir.path().join("copy");
    for file in std::fs::read_dir(&copy).unwrap() {
        set_permissions(file.unwrap().path(), Permissions::from_mode(0o444)).unwrap();
    }
    set_permissions(&copy, Permissions::from_mode(0o555)).unwrap();
    let db = Db::open(&copy, Options::default().read_only(true)).unwrap();
    assert_eq!(db.get("k").unwrap().unwrap(), *b"v");
    assert!(lsmx::verify(&copy, &Options::default()).is_ok());
    drop(db);
    set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    assert!(OsVfs.exists(&path).unwrap());
}

/// Regression: the copy of an operand store ended only after all its files, even if the deadline had passed.
#[test]
fn checkpoint_past_deadline_stops_between_files_of_an_operand_store() {
    const DEADLINE_SECONDS: u64 = 5;
    let disk = MemVfs::new();
    let faults = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = small_database::open_with(&faults, small_database::options(Background::Inline));
    let db = db.unwrap();
    let [_, _, operands] = small_database::open_kinds(&db);
    for key in 0..200_u64 {
        operands.merge(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [7; 200]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    let buckets = db.metrics().keyspaces["operands"].operand_store.as_ref().unwrap().buckets;
    assert!(buckets > 10 * DEADLINE_SECONDS, "{buckets} buckets");
    // The copy creates the files, and its verification opens them.
    for call in [VfsCall::Create, VfsCall::Open] {
        let (calls, env) = (Arc::new(AtomicU64::new(0)), db.env().clone());
        let counted = Arc::clone(&calls);
        faults.set_delay_hook(Some(Arc::new(move |_, path: &Path| {
            if path.starts_with("copy") {
                counted.fetch_add(1, Ordering::Relaxed);
                env.advance_us(1_000_000);
            }
        })));
        let rule = FaultRule::new(Fault::Delay).for_calls(&[call]).path_contains(".bucket");
        faults.add_rule(rule.chance(1.0));
        let late = db.with_deadline(Duration::from_secs(DEADLINE_SECONDS)).checkpoint("copy");
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
        let calls = calls.load(Ordering::Relaxed);
        assert!((1..=DEADLINE_SECONDS + 1).contains(&calls), "{call:?}: {calls} calls");
        assert!(!disk.exists(Path::new("copy")).unwrap(), "{call:?}: files remain");
        faults.clear_rules();
    }
    db.checkpoint("copy").unwrap();
}
