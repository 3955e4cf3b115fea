//! Followers: read-only handles of a database that its owner writes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lsmx::env::{Background, ManualClock};
use lsmx::ingest::BulkLoadOptions;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::metrics::FollowerFileMetrics;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Event, EventListener, Follower, KeyspaceOptions, Options, RepairOptions,
    WalOptions, WriteBatch,
};
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
    let (mut views, mut extensions) = (0, 0);
    for seed in case_seeds(&[], 25) {
        let counts = followers::play_history(seed).unwrap();
        views += counts.views;
        extensions += counts.extensions;
    }
    assert!(extensions > views / 20 && extensions < views, "{extensions} of {views} views");
    println!("{extensions} of {views} views share memtables");
}

fn with_segments(segment_bytes: u64, vfs: Arc<dyn Vfs>) -> Options {
    let wal = WalOptions { segment_bytes, ..WalOptions::default() };
    Options::default().background(Background::Inline).wal(wal).vfs(vfs)
}

/// The header of a third segment states that no byte of the second one is synced. The follower took this for a statement
/// about the first segment.
#[test]
fn unsynced_commits_in_several_segments_are_not_shown() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", with_segments(500, vfs.clone())).unwrap();
    owner.put("synced", "value").unwrap();
    owner.sync().unwrap();
    let follower = Db::open_follower("db", with_segments(500, vfs)).unwrap();
    for number in 0..10_u8 {
        owner.put([number], [number; 200]).unwrap();
    }
    assert!(owner.metrics().wal.segments >= 3);
    assert!(!follower.catch_up().unwrap());
    assert_eq!(follower.view().default_keyspace().iter().count(), 1);
    owner.sync().unwrap();
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.view().default_keyspace().iter().count(), 11);
}

/// A failed sync loses everything after the last successful sync. The follower showed an edit of the manifest without the
/// commits before it, because the mark that covers them was lost, or because it ignored that of the next segment.
#[test]
fn failed_sync_loses_no_mark_that_an_edit_depends_on() {
    for (segment_bytes, segments) in [(500, 2), (16 << 20, 1)] {
        let disk = Arc::new(MemVfs::new());
        let faults = FaultVfs::new(disk.clone(), 1);
        let options = |vfs| with_segments(segment_bytes, vfs);
        let owner = Db::open("db", options(Arc::new(faults.clone()))).unwrap();
        owner.keyspace("x", KeyspaceOptions::default()).unwrap();
        owner.put("before", [1; 500]).unwrap();
        owner.drop_keyspace("x").unwrap();
        owner.put("after", "value").unwrap();
        assert_eq!(owner.metrics().wal.segments, segments);
        faults.add_rule(FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]));
        owner.sync().unwrap_err();
        let view = Db::open_follower("db", options(disk)).unwrap().view();
        assert!(!view.keyspace_exists("x"));
        assert!(view.get("before").unwrap().is_some() && view.get("after").unwrap().is_none());
    }
}

/// A failed sync of the manifest lost the mark of the drop. The follower showed the commit after the drop, and the keyspace.
#[test]
fn failed_sync_loses_no_mark_of_an_edit_before_a_commit() {
    let disk = Arc::new(MemVfs::new());
    let faults = FaultVfs::new(disk.clone(), 1);
    let owner = Db::open("db", with_segments(16 << 20, Arc::new(faults.clone()))).unwrap();
    owner.keyspace("x", KeyspaceOptions::default()).unwrap();
    owner.drop_keyspace("x").unwrap();
    owner.put("after", "value").unwrap();
    owner.sync().unwrap();
    let sync = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]);
    faults.add_rule(sync.path_contains("MANIFEST"));
    owner.keyspace("y", KeyspaceOptions::default()).unwrap_err();
    let view = Db::open_follower("db", options(&disk)).unwrap().view();
    assert!(view.get("after").unwrap().is_some() && !view.keyspace_exists("x"));
}

/// A follower may show an edit whose mark is written, but not yet synced. The edit must not be discarded if this sync fails.
#[test]
fn edit_takes_effect_if_the_sync_of_its_mark_fails() {
    let disk = Arc::new(MemVfs::new());
    let faults = FaultVfs::new(disk.clone(), 1);
    let owner = Db::open("db", with_segments(16 << 20, Arc::new(faults.clone()))).unwrap();
    owner.keyspace("x", KeyspaceOptions::default()).unwrap();
    let sync = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]);
    faults.add_rule(sync.path_contains("MANIFEST").nth(1).once());
    owner.drop_keyspace("x").unwrap();
    assert!(matches!(owner.put("after", "value"), Err(Error::ReadOnly { .. })));
    let follower = Db::open_follower("db", options(&disk)).unwrap();
    owner.resume().unwrap();
    owner.put("after", "value").unwrap();
    owner.sync().unwrap();
    follower.catch_up().unwrap();
    let view = follower.view();
    assert!(!owner.keyspace_exists("x") && !view.keyspace_exists("x"));
    assert!(view.get("after").unwrap().is_some());
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
    let file = vfs.open(&segment).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(&mut bytes, 0).unwrap();
    // The value of the second commit, which the follower has not read yet.
    let damaged_at = bytes.windows(100).position(|value| value == [1; 100]).unwrap() as u64 + 50;
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

/// Listener that keeps the values of `Event::Followers`.
#[derive(Default)]
struct FollowerEvents(Mutex<Vec<FollowerFileMetrics>>);

impl EventListener for FollowerEvents {
    fn on_event(&self, event: &Event) {
        if let Event::Followers(metrics) = event {
            self.0.lock().unwrap().push(*metrics);
        }
    }
}

/// Writes a value and compacts, so that all earlier tables are obsolete.
fn replace_all_tables(owner: &Db, value: &str) {
    owner.put("key", value).unwrap();
    owner.flush().unwrap();
    owner.default_keyspace().compact_range::<&str>(..).unwrap();
}

#[test]
fn owner_metrics_count_followers_and_files_kept_for_them() {
    let vfs = Arc::new(MemVfs::new());
    let events = Arc::new(FollowerEvents::default());
    let owner = Db::open("db", options(&vfs).listener(events.clone())).unwrap();
    let metrics = || {
        let FollowerFileMetrics { followers, files, file_bytes, .. } = owner.metrics().followers;
        (followers, files, file_bytes)
    };
    replace_all_tables(&owner, "first");
    assert_eq!(metrics(), (0, 0, 0));
    let table = files(&vfs, ".sst").pop().unwrap();
    let bytes = vfs.open(&table).unwrap().len().unwrap();
    let [first, second] = [(); 2].map(|()| Db::open_follower("db", options(&vfs)).unwrap());
    replace_all_tables(&owner, "second");
    assert_eq!(metrics(), (2, 1, bytes));
    assert_eq!(owner.metrics().held.files, 0, "only the followers use the file");
    let text = owner.metrics().to_prometheus(&[]);
    let has_line = |line: String| text.lines().any(|it| it == line);
    assert!(
        has_line("lsmx_followers 2".to_owned()) && has_line("lsmx_follower_files 1".to_owned())
    );
    assert!(has_line(format!("lsmx_follower_file_bytes {bytes}")), "{text}");
    assert!(owner.metrics().to_string().contains("followers 2; 1 obsolete files of"));
    assert!(first.catch_up().unwrap());
    drop(second);
    replace_all_tables(&owner, "third");
    assert_eq!(metrics().0, 1);
    assert!(!vfs.exists(&table).unwrap(), "no follower uses the first table");
    assert!(metrics().1 == 1 && first.view().get("key").unwrap().as_deref() == Some(b"second"));
    drop(first);
    replace_all_tables(&owner, "fourth");
    assert_eq!(metrics(), (0, 0, 0));
    assert_eq!(files(&vfs, ".sst").len(), 1);
    let counts: Vec<u64> = events.0.lock().unwrap().iter().map(|it| it.followers).collect();
    assert_eq!(counts, [2, 1, 0]);
}

#[test]
fn follower_metrics_count_catch_ups_and_time_since_the_last() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(&vfs)).unwrap();
    let clock = ManualClock::new(1_790_000_000_000_000);
    let follower = Db::open_follower("db", options(&vfs).clock(clock.clone())).unwrap();
    clock.advance_us(7);
    let opened = follower.metrics();
    assert_eq!((opened.catch_ups, opened.last_catch_up_age_us), (0, 7));
    owner.put("key", "value").unwrap();
    owner.sync().unwrap();
    assert!(follower.catch_up().unwrap());
    assert!(!follower.catch_up().unwrap());
    let metrics = follower.metrics();
    assert_eq!((metrics.catch_ups, metrics.views, metrics.failures), (2, 1, 0));
    assert_eq!((metrics.last_catch_up_age_us, metrics.last_catch_up_us), (0, 0));
    assert_eq!(metrics.shown_seq, owner.metrics().published_seq);
    clock.advance_us(5);
    owner.put("key", "newer").unwrap();
    owner.close(None).unwrap();
    let current = Path::new("db/CURRENT");
    vfs.rename(current, Path::new("db/moved")).unwrap();
    follower.catch_up().unwrap_err();
    let failed = follower.metrics();
    assert_eq!((failed.catch_ups, failed.failures), (2, 1));
    assert_eq!((failed.shown_seq, failed.last_catch_up_age_us), (metrics.shown_seq, 5));
    vfs.rename(Path::new("db/moved"), current).unwrap();
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.metrics().last_catch_up_age_us, 0);
    assert!(follower.metrics().shown_seq > metrics.shown_seq);
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

/// The largest sequence number was that of an ingested table. After the drop of its keyspace, the follower took the end of
/// the commits for an older state, and did not show the drop.
#[test]
fn drop_of_the_keyspace_with_the_newest_table_is_shown() {
    let vfs = Arc::new(MemVfs::new());
    let (owner, follower) = pair(&vfs);
    let ingested = owner.keyspace("ingested", KeyspaceOptions::default()).unwrap();
    ingested.bulk_load([("key", "value")], BulkLoadOptions::default()).unwrap();
    assert!(follower.catch_up().unwrap());
    let shown_seq = follower.metrics().shown_seq;
    drop(ingested);
    owner.drop_keyspace("ingested").unwrap();
    assert!(follower.catch_up().unwrap());
    assert!(!follower.view().keyspace_exists("ingested"));
    assert!(!follower.catch_up().unwrap());
    assert!(follower.metrics().shown_seq >= shown_seq);
    for number in 0..3_u8 {
        owner.put("key", [number]).unwrap();
        owner.sync().unwrap();
        assert!(follower.catch_up().unwrap());
        assert_eq!(follower.view().get("key").unwrap().as_deref(), Some(&[number][..]));
    }
}
