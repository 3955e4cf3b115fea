//! Followers: read-only handles of a database that its owner writes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Follower, Options, RepairOptions, WriteBatch};
use lsmx_testkit::case_seeds;

use crate::harness::database::wait_until;
use crate::harness::followers;
use crate::harness::small_database::{self, files};

fn options(vfs: &Arc<MemVfs>) -> Options {
    Options::default().background(Background::Inline).vfs(vfs.clone())
}

fn pair(vfs: &Arc<MemVfs>) -> (Db, Follower) {
    let owner = Db::open("db", options(vfs)).unwrap();
    let follower = Db::open_follower("db", options(vfs)).unwrap();
    (owner, follower)
}

#[test]
fn follower_shows_synced_commits_after_catch_up() {
    let vfs = Arc::new(MemVfs::new());
    let (owner, follower) = pair(&vfs);
    owner.put("a", "1").unwrap();
    assert!(!follower.catch_up().unwrap(), "the commit is not synced");
    owner.sync().unwrap();
    let empty = follower.view();
    assert!(follower.catch_up().unwrap());
    assert!(!follower.catch_up().unwrap());
    assert_eq!(empty.get("a").unwrap(), None);
    let view = follower.view();
    assert_eq!(view.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(matches!(view.put("a", "2"), Err(Error::OpenedReadOnly)));
    owner.put("b", "2").unwrap();
    owner.flush().unwrap();
    assert!(follower.catch_up().unwrap());
    let view = follower.view();
    assert_eq!(view.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(view.get("b").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn follower_histories_equal_the_model() {
    for seed in case_seeds(&[], 25) {
        followers::history_equals_the_model(seed).unwrap();
    }
}

#[test]
fn follower_of_damaged_log_keeps_its_view() {
    let vfs = Arc::new(MemVfs::new());
    let (owner, follower) = pair(&vfs);
    for number in 0..3_u8 {
        let mut batch = WriteBatch::new();
        batch.put(&owner.default_keyspace(), "key", [number; 100]);
        owner.write(batch, Durability::Sync).unwrap();
        if number == 0 {
            assert!(follower.catch_up().unwrap());
        }
    }
    let segment = files(&vfs, ".wal").pop().unwrap();
    let damaged_at = 80 + 36 + 50;
    vfs.flip_bits(&segment, damaged_at, 1).unwrap();
    match follower.catch_up() {
        Err(Error::Corrupt { path, .. }) => assert_eq!(path, segment),
        other => panic!("{other:?}"),
    }
    assert_eq!(follower.view().get("key").unwrap().as_deref(), Some(&[0; 100][..]));
    vfs.flip_bits(&segment, damaged_at, 1).unwrap();
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.view().get("key").unwrap().as_deref(), Some(&[2; 100][..]));
}

#[test]
fn follower_refuses_keyspace_with_operand_store() {
    let vfs = Arc::new(MemVfs::new());
    let (owner, follower) = pair(&vfs);
    owner.put("key", "value").unwrap();
    let store_options = || small_database::keyspace_options("operands");
    let operands = owner.keyspace("operands", store_options()).unwrap();
    operands.merge("key", "operand").unwrap();
    for _ in 0..2 {
        owner.flush().unwrap();
        assert!(follower.catch_up().unwrap());
        let view = follower.view();
        assert_eq!(view.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        let refused = |error: Error| match error {
            Error::NoOperandStore { keyspace, cause: Some(cause), .. } => {
                keyspace == "operands" && matches!(*cause, Error::FollowerUnsupported { .. })
            }
            _ => false,
        };
        let keyspace = view.open_keyspace("operands", None);
        let read = keyspace.and_then(|keyspace| keyspace.get("key"));
        assert!(refused(read.unwrap_err()));
        assert!(refused(view.keyspace("operands", store_options()).unwrap_err()));
        operands.merge("key", "operand").unwrap();
    }
}

#[test]
fn repair_beside_follower_is_refused() {
    let vfs = Arc::new(MemVfs::new());
    let (owner, follower) = pair(&vfs);
    owner.close(None).unwrap();
    let repair = || lsmx::repair("db", &options(&vfs), &RepairOptions::default());
    match repair() {
        Err(Error::Locked { path }) => assert_eq!(path, Path::new("db/FOLLOWERS/000001.lock")),
        other => panic!("{other:?}"),
    }
    drop(follower);
    assert!(!vfs.exists(Path::new("db/FOLLOWERS")).unwrap());
    repair().unwrap();
}

#[test]
fn follower_catches_up_in_its_interval() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(&vfs)).unwrap();
    let threads = options(&vfs)
        .background(Background::Threads { workers: 1 })
        .follower_interval(Duration::from_millis(1));
    let follower = Db::open_follower("db", threads).unwrap();
    for number in 0..20_u8 {
        owner.put("key", [number]).unwrap();
        owner.sync().unwrap();
        wait_until("the follower shows the value", || {
            follower.view().get("key").unwrap().as_deref() == Some(&[number][..])
        });
    }
    let view = follower.view();
    follower.close();
    assert!(matches!(follower.catch_up(), Err(Error::Closed)));
    assert_eq!(view.get("key").unwrap().as_deref(), Some(&[19][..]));
}
