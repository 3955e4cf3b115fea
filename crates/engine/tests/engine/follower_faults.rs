//! Followers while calls of the file system fail, and while the owner changes files that they read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall, VfsLayer};
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WalOptions, WriteBatch};

use crate::harness::small_database::files;

fn options(vfs: Arc<dyn Vfs>) -> Options {
    Options::default().background(Background::Inline).vfs(vfs)
}

fn put_synced(db: &Db, key: &str, value: &str) -> lsmx::Result<()> {
    let mut batch = WriteBatch::new();
    batch.put(&db.default_keyspace(), key, value);
    db.write(batch, Durability::Sync)
}

fn replace_all_tables(owner: &Db, value: &str) {
    owner.put("key", value).unwrap();
    owner.flush().unwrap();
    owner.default_keyspace().compact_range::<&str>(..).unwrap();
}

/// The append of the sync mark fails after the sync of a commit. The commit was then reported as failed, and `resume`
/// discarded it, although a follower may show it.
#[test]
fn synced_commit_succeeds_if_its_mark_cannot_be_written() {
    let faults = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let owner = Db::open("db", options(Arc::new(faults.clone()))).unwrap();
    let mark = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
    faults.add_rule(mark.path_contains(".wal").nth(1));
    put_synced(&owner, "key", "value").unwrap();
    assert_eq!(faults.fired_counts().len(), 1);
    let refused = owner.put("other", "value");
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    owner.resume().unwrap();
    assert_eq!(owner.get("key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(owner.get("other").unwrap(), None);
}

/// A new keyspace syncs the log twice. The first sync makes the commit of another thread durable, and a follower shows the
/// commit. The second sync fails. The commit was then reported as failed, and `resume` discarded it.
#[test]
fn shown_commit_is_kept_if_a_sync_of_another_thread_fails() {
    let mut kept = 0;
    for seed in 0..60 {
        let disk = Arc::new(MemVfs::new());
        let faults = FaultVfs::new(disk.clone(), seed);
        let stepped = Background::Stepped { seed, workers: 1 };
        let owner = Db::open("db", options(Arc::new(faults.clone())).background(stepped)).unwrap();
        let follower = Db::open_follower("db", options(disk)).unwrap();
        let env = owner.env().clone();
        let (result, writer) = {
            let (owner, result) = (owner.clone(), Arc::new(std::sync::OnceLock::new()));
            let of_writer = Arc::clone(&result);
            let write = move || of_writer.set(put_synced(&owner, "key", "value")).unwrap();
            (result, env.spawn("writer", write).unwrap())
        };
        let of_rule = follower.clone();
        let catch_up = move |path: &Path| {
            // The calling thread holds locks, which a follower must not be called with.
            std::thread::scope(|scope| scope.spawn(|| of_rule.catch_up().unwrap()).join().unwrap());
            path.extension().is_some_and(|extension| extension == "wal")
        };
        let second_sync = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]);
        faults.add_rule(second_sync.path_where(catch_up).nth(1));
        let created = owner.keyspace("new", KeyspaceOptions::default());
        env.join(writer).unwrap();
        faults.clear_rules();
        let is_shown = follower.view().get("key").unwrap().is_some();
        let result = result.get().unwrap();
        assert!(result.is_ok() || !is_shown, "seed {seed}: {result:?}");
        if created.is_err() {
            kept += u64::from(is_shown);
            owner.resume().unwrap();
        }
        assert_eq!(owner.get("key").unwrap().is_some(), result.is_ok(), "seed {seed}");
        owner.close(None).unwrap();
    }
    assert!(kept > 0);
}

/// The options were passed to a view that was not the current one any more. Later views did not have the operator.
#[test]
fn merge_operator_of_an_earlier_view_is_kept_by_later_views() {
    let disk = Arc::new(MemVfs::new());
    let with_operator = || KeyspaceOptions::default().merge_operator(Append::default());
    for has_flush in [false, true] {
        let owner = Db::open("db", options(disk.clone())).unwrap();
        let counters = owner.keyspace("counters", with_operator()).unwrap();
        let follower = Db::open_follower("db", options(disk.clone())).unwrap();
        let add = |operand: &str| {
            counters.merge("key", operand).unwrap();
            owner.sync().unwrap();
            if has_flush {
                owner.flush().unwrap();
            }
            assert!(follower.catch_up().unwrap());
            follower.view().open_keyspace("counters", None).unwrap()
        };
        let first = follower.view();
        let second = add("1");
        assert!(matches!(second.get("key"), Err(Error::NoMergeOperator { .. })));
        first.keyspace("counters", with_operator()).unwrap();
        for later in [add("2"), second] {
            assert!(later.get("key").unwrap().is_some());
        }
        let other = KeyspaceOptions::default().merge_operator(Append::with_separator(b","));
        let refused = follower.view().keyspace("counters", other);
        assert!(matches!(refused, Err(Error::Contradiction { .. })));
        drop(counters);
        owner.close(None).unwrap();
    }
}

/// The memtables of the view contain a later commit, which the view does not show.
#[test]
fn locking_transaction_on_a_view_has_no_conflict() {
    let disk = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(disk.clone())).unwrap();
    put_synced(&owner, "key", "first").unwrap();
    let follower = Db::open_follower("db", options(disk)).unwrap();
    let view = follower.view();
    let tx = view.locking_transaction(Duration::from_secs(1));
    let keyspace = view.default_keyspace();
    assert_eq!(tx.get_for_update(&keyspace, "key").unwrap().as_deref(), Some(&b"first"[..]));
    put_synced(&owner, "key", "second").unwrap();
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.metrics().extensions, 1);
    assert_eq!(tx.get(&keyspace, "key").unwrap().as_deref(), Some(&b"first"[..]));
    tx.commit(Durability::Buffered).unwrap();
}

/// The catch-up returned the error of the rename by which it allows the deletion of files again.
#[test]
fn catch_up_returns_its_first_error() {
    let disk = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(disk.clone())).unwrap();
    let faults = FaultVfs::new(disk.clone(), 1);
    let follower = Db::open_follower("db", options(Arc::new(faults.clone()))).unwrap();
    replace_all_tables(&owner, "first");
    let error = |errno| FaultRule::new(Fault::Error(errno));
    faults.add_rule(error(Errno::Io).for_calls(&[VfsCall::Open]).path_contains(".sst"));
    faults.add_rule(error(Errno::NoSpace).for_calls(&[VfsCall::Rename]).path_contains(".old"));
    match follower.catch_up() {
        Err(Error::Io { path, .. }) => assert_eq!(path, files(&disk, ".sst")[0]),
        other => panic!("{other:?}"),
    }
    assert_eq!(faults.fired_counts().values().sum::<u64>(), 2);
    faults.clear_rules();
    replace_all_tables(&owner, "second");
    assert!(files(&disk, ".sst").len() > 1, "the owner does not know which files are used");
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.view().get("key").unwrap().as_deref(), Some(&b"second"[..]));
    replace_all_tables(&owner, "third");
    assert_eq!(files(&disk, ".sst").len(), 2);
}

/// A resume queues all files that the manifest does not list, also those that the owner already keeps for a follower. They
/// were counted twice. Each deletion also read the sizes of all kept files.
#[test]
fn file_kept_for_a_follower_is_counted_once() {
    let disk = Arc::new(MemVfs::new());
    let faults = FaultVfs::new(disk.clone(), 1);
    let owner = Db::open("db", options(Arc::new(faults.clone()))).unwrap();
    replace_all_tables(&owner, "first");
    let table = files(&disk, ".sst").pop().unwrap();
    let bytes = disk.open(&table).unwrap().len().unwrap();
    let follower = Db::open_follower("db", options(disk.clone())).unwrap();
    let opens = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Open]).chance(1.0);
    faults.add_rule(opens.path_contains(table.to_str().unwrap()));
    let kept = || {
        let metrics = owner.metrics().followers;
        (metrics.followers, metrics.files, metrics.file_bytes)
    };
    replace_all_tables(&owner, "second");
    assert_eq!(kept(), (1, 1, bytes));
    let opened = faults.fired_counts()[&Fault::Delay];
    faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]));
    put_synced(&owner, "other", "value").unwrap_err();
    owner.resume().unwrap();
    assert_eq!(kept(), (1, 1, bytes));
    replace_all_tables(&owner, "third");
    assert_eq!(kept(), (1, 1, bytes));
    assert_eq!(faults.fired_counts()[&Fault::Delay], opened, "the size is known");
    drop(follower);
    replace_all_tables(&owner, "fourth");
    assert_eq!(kept(), (0, 0, 0));
    assert!(!disk.exists(&table).unwrap());
}

/// A file system on which another process removes a file before one of the opens of the file.
#[derive(Debug)]
struct RemovedBeforeOpen {
    disk: MemVfs,
    path: PathBuf,
    /// Number of opens after which the file is removed.
    opens: usize,
    opened: AtomicUsize,
}

impl VfsLayer for RemovedBeforeOpen {
    fn inner(&self) -> &dyn Vfs {
        &self.disk
    }

    fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        let is_open = call == VfsCall::Open && path == self.path;
        if is_open && self.opened.fetch_add(1, Ordering::Relaxed) == self.opens {
            self.disk.remove(path)?;
        }
        Ok(())
    }
}

/// The owner removes the segment of a failed resume after the follower has listed the directory.
#[test]
fn follower_needs_only_the_segments_of_the_log() {
    let disk = MemVfs::new();
    let owner = Db::open("db", options(Arc::new(disk.clone()))).unwrap();
    put_synced(&owner, "key", "value").unwrap();
    let live = files(&disk, ".wal").pop().unwrap();
    let orphan = PathBuf::from("db/000900.wal");
    disk.create(&orphan).unwrap();
    let open = |path: &Path, opens| {
        let (disk, path) = (disk.crash(lsmx::vfs::CrashImage::Keep, 0), path.to_owned());
        let vfs = RemovedBeforeOpen { disk, path, opens, opened: AtomicUsize::new(0) };
        Db::open_follower("db", options(Arc::new(vfs)))
    };
    // The log is read twice. Each read opens the file for its header and for its records.
    for opens in 0..4 {
        let follower = open(&orphan, opens).unwrap();
        assert_eq!(follower.view().get("key").unwrap().as_deref(), Some(&b"value"[..]));
        match open(&live, opens) {
            Err(Error::Missing { path, .. }) => assert_eq!(path, live),
            other => panic!("{other:?}"),
        }
    }
}

fn with_small_segments(vfs: &FaultVfs) -> Options {
    let wal = WalOptions { segment_bytes: 500, ..WalOptions::default() };
    options(Arc::new(vfs.clone())).wal(wal)
}

/// A failed sync lost the sync mark of the edit that had removed a segment from the log. The follower read the manifest
/// without this edit, and then the owner recovered. The follower returned an error about the missing segment.
#[test]
fn state_is_read_again_if_the_owner_recovers_meanwhile() {
    for is_first_state in [false, true] {
        let disk = Arc::new(MemVfs::new());
        let (faults, vfs) = (FaultVfs::new(disk.clone(), 1), FaultVfs::new(disk, 2));
        let owner = Db::open("db", with_small_segments(&faults)).unwrap();
        let open = || Db::open_follower("db", options(Arc::new(vfs.clone())));
        let follower = open().unwrap();
        for key in ["first", "second"] {
            put_synced(&owner, key, &"x".repeat(400)).unwrap();
        }
        owner.flush().unwrap();
        let sync = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]);
        faults.add_rule(sync.path_contains("MANIFEST"));
        owner.keyspace("x", KeyspaceOptions::default()).unwrap_err();
        for missing in [follower.catch_up().map(drop), open().map(drop)] {
            assert!(matches!(missing, Err(Error::Missing { .. })), "{missing:?}");
        }
        let of_hook = owner.clone();
        vfs.set_delay_hook(Some(Arc::new(move |_, _| of_hook.resume().unwrap())));
        vfs.add_rule(FaultRule::new(Fault::Delay).for_calls(&[VfsCall::List]));
        let view = if is_first_state {
            open().unwrap().view()
        } else {
            assert!(follower.catch_up().unwrap());
            follower.view()
        };
        assert_eq!(vfs.fired_counts()[&Fault::Delay], 1);
        assert!(view.get("first").unwrap().is_some() && view.get("second").unwrap().is_some());
        vfs.set_delay_hook(None);
    }
}

/// An extension found the end of the log. Then the owner restarted, and deleted the newest segment before the older ones.
/// The next view had the sequence number of the deleted commits, but did not contain them.
#[test]
fn extension_is_not_used_if_the_newest_segment_is_removed() {
    let disk = Arc::new(MemVfs::new());
    let (faults, vfs) = (FaultVfs::new(disk.clone(), 1), FaultVfs::new(disk.clone(), 2));
    let owner = Db::open("db", with_small_segments(&faults)).unwrap();
    let follower = Db::open_follower("db", options(Arc::new(vfs.clone()))).unwrap();
    let oldest = files(&disk, ".wal").pop().unwrap();
    let removals = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Remove]);
    faults.add_rule(removals.path_contains(oldest.to_str().unwrap()).from_then_on());
    let value = "x".repeat(400);
    put_synced(&owner, "first", &value).unwrap();
    let (owner, lists) = (Arc::new(Mutex::new(owner)), AtomicUsize::new(0));
    let of_hook = Arc::clone(&owner);
    vfs.set_delay_hook(Some(Arc::new(move |_, _| {
        let mut owner = of_hook.lock().unwrap();
        match lists.fetch_add(1, Ordering::Relaxed) {
            0 => put_synced(&owner, "second", &value).unwrap(),
            1 => {
                owner.close(None).unwrap();
                *owner = Db::open("db", with_small_segments(&faults)).unwrap();
            }
            _ => {}
        }
    })));
    let lists = FaultRule::new(Fault::Delay).for_calls(&[VfsCall::List]).from_then_on();
    vfs.add_rule(lists.path_where(|path| path == Path::new("db")));
    assert!(follower.catch_up().unwrap());
    assert!(disk.exists(&oldest).unwrap() && files(&disk, ".wal").len() == 2);
    let view = follower.view();
    assert!(view.get("first").unwrap().is_some() && view.get("second").unwrap().is_some());
    assert_eq!(follower.metrics().extensions, 0);
    vfs.set_delay_hook(None);
}

/// The open did not end.
#[cfg(unix)]
#[test]
fn follower_open_fails_if_its_directory_is_a_dangling_link() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let threads = || Options::default().background(Background::Inline);
    let _owner = Db::open(&path, threads()).unwrap();
    std::os::unix::fs::symlink(dir.path().join("missing"), path.join("FOLLOWERS")).unwrap();
    match Db::open_follower(&path, threads()) {
        Err(Error::Io { path: named, .. }) => assert!(named.starts_with(path.join("FOLLOWERS"))),
        other => panic!("{other:?}"),
    }
}
