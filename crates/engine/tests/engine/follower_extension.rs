//! Catch-ups that replay only new commits. The next view then shares the memtables of earlier views.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lsmx::env::{Background, ManualClock};
use lsmx::internals::vfs::{CountingVfs, Errno, Fault, FaultRule, FaultVfs, IoCounts, VfsCall};
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Follower, Keyspace, KeyspaceOptions, Options, RmwMode, WalOptions, WriteBatch};
use lsmx_testkit::{TestRng, seed};

use crate::harness::database::assert_entries;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(vfs: Arc<MemVfs>) -> Options {
    Options::default().background(Background::Inline).vfs(vfs).keyspace_defaults(keyspace_options())
}

fn keyspace_options() -> KeyspaceOptions {
    KeyspaceOptions::default().merge_operator(Append::default()).rmw_mode(RmwMode::Adaptive)
}

/// Calls and bytes between two counts.
fn difference(before: &IoCounts, after: &IoCounts) -> (u64, u64) {
    let read = |counts: &IoCounts| counts.bytes.count_of(VfsCall::Read);
    (after.calls.total() - before.calls.total(), read(after) - read(before))
}

/// Creates a database with many edits in the manifest and about 1 MiB of unflushed commits in the log.
fn fill(owner: &Db) {
    for number in 0..40_u32 {
        owner.put(number.to_be_bytes(), "flushed").unwrap();
        owner.flush().unwrap();
    }
    for number in 0..1_000_u32 {
        owner.put(number.to_be_bytes(), [7; 1_000]).unwrap();
    }
    owner.sync().unwrap();
}

#[test]
fn catch_up_without_news_makes_few_small_reads() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(vfs.clone())).unwrap();
    fill(&owner);
    let counting = CountingVfs::new(vfs.clone());
    let options = options(vfs).vfs(Arc::new(counting.clone()));
    let follower = Db::open_follower("db", options).unwrap();
    for _ in 0..3 {
        let before = counting.counts();
        assert!(!follower.catch_up().unwrap());
        let (calls, read_bytes) = difference(&before, &counting.counts());
        // Opens of CURRENT, the manifest and the segment; reads of CURRENT and of one record header; the size of the
        // manifest.
        assert!(calls <= 6 && read_bytes <= 128, "{calls} calls, {read_bytes} bytes");
    }
}

#[test]
fn catch_up_reads_only_new_commits() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(vfs.clone())).unwrap();
    fill(&owner);
    let counting = CountingVfs::new(vfs.clone());
    let options = options(vfs).vfs(Arc::new(counting.clone()));
    let follower = Db::open_follower("db", options).unwrap();
    for number in 1..=5_u32 {
        owner.put("key", number.to_be_bytes()).unwrap();
        owner.sync().unwrap();
        let before = counting.counts();
        assert!(follower.catch_up().unwrap());
        let (calls, read_bytes) = difference(&before, &counting.counts());
        // Each of two passes reads the new commit, and preallocated zeros up to the end of the file.
        assert!(calls <= 25 && read_bytes <= 100 << 10, "{calls} calls, {read_bytes} bytes");
        assert_eq!(follower.metrics().extensions, u64::from(number));
        let view = follower.view();
        assert_eq!(view.get("key").unwrap().as_deref(), Some(&number.to_be_bytes()[..]));
        assert_eq!(view.default_keyspace().iter().count(), 1_001);
    }
    owner.flush().unwrap();
    assert!(follower.catch_up().unwrap());
    assert_eq!(follower.metrics().extensions, 5, "the flush has changed the files");
    assert_eq!(follower.view().default_keyspace().iter().count(), 1_001);
}

#[test]
fn extension_follows_the_log_to_new_segments() {
    let vfs = Arc::new(MemVfs::new());
    let small = || {
        let wal = WalOptions { segment_bytes: 500, ..WalOptions::default() };
        options(vfs.clone()).wal(wal)
    };
    let owner = Db::open("db", small()).unwrap();
    let follower = Db::open_follower("db", small()).unwrap();
    let mut expected = Entries::new();
    for number in 0..30_u8 {
        for key in number..number + 3 {
            owner.put([key], [number; 100]).unwrap();
            expected.insert(vec![key], vec![number; 100]);
        }
        owner.sync().unwrap();
        assert!(follower.catch_up().unwrap());
        assert_entries(&follower.view().default_keyspace(), &expected);
    }
    assert!(owner.metrics().wal.segments > 10);
    assert_eq!(follower.metrics().extensions, 30);
}

/// Commits a random batch and applies it to `entries`.
fn commit(owner: &Keyspace, db: &Db, rng: &mut TestRng, entries: &mut Entries) {
    let mut batch = WriteBatch::new();
    for _ in 0..1 + rng.below(6) {
        let key = vec![b'k', b'a' + u8::try_from(rng.below(20)).unwrap()];
        match rng.below(10) {
            0 => {
                let end = vec![b'k', key[1] + 3];
                batch.delete_range(owner, key.clone()..end.clone());
                entries.retain(|it, _| *it < key || *it >= end);
            }
            1 => {
                batch.delete(owner, &key);
                entries.remove(&key);
            }
            2..=5 => {
                batch.merge(owner, &key, "+");
                entries.entry(key).or_default().push(b'+');
            }
            _ => {
                let value = rng.bytes(20);
                batch.put(owner, &key, &value);
                entries.insert(key, value);
            }
        }
    }
    db.write(batch, lsmx::Durability::Sync).unwrap();
}

/// Checks all kinds of reads of a view.
fn check_view(keyspace: &Keyspace, expected: &Entries) {
    // Repeated gets store combined values in the memtables.
    for _ in 0..3 {
        assert_entries(keyspace, expected);
    }
    for letter in 0..24 {
        let key = vec![b'k', b'a' + letter];
        let value = keyspace.get(&key).unwrap();
        assert_eq!(value.as_deref(), expected.get(&key).map(Vec::as_slice), "{key:?}");
    }
}

#[test]
fn earlier_views_show_no_newer_entries() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(vfs.clone())).unwrap();
    let follower = Db::open_follower("db", options(vfs)).unwrap();
    let (keyspace, mut rng) = (owner.default_keyspace(), TestRng::new(seed()));
    let mut entries = Entries::new();
    for _ in 0..20 {
        commit(&keyspace, &owner, &mut rng, &mut entries);
    }
    owner.flush().unwrap();
    follower.catch_up().unwrap();
    let mut views: Vec<(Db, Entries)> = Vec::new();
    let mut iterators = Vec::new();
    for _ in 0..40 {
        commit(&keyspace, &owner, &mut rng, &mut entries);
        assert!(follower.catch_up().unwrap());
        let view = follower.view();
        let opened = view.default_keyspace();
        let (mut iterator, snapshot) = (opened.iter(), view.snapshot());
        let first = iterator.next().transpose().unwrap();
        iterators.push((first, iterator, snapshot, opened, entries.clone()));
        views.push((view, entries.clone()));
        for (view, expected) in &views {
            check_view(&view.default_keyspace(), expected);
        }
    }
    assert_eq!(follower.metrics().extensions, 40);
    let write_backs = |view: &Db| view.metrics().keyspaces["default"].merges.write_backs;
    assert!(views.iter().map(|(view, _)| write_backs(view)).sum::<u64>() > 10);
    for (first, iterator, snapshot, opened, expected) in iterators {
        let of_snapshot = snapshot.iter(&opened).map(Result::unwrap);
        let of_iterator = first.into_iter().chain(iterator.map(Result::unwrap));
        let to_bytes = |(key, value): (lsmx::Slice, lsmx::Slice)| (key.to_vec(), value.to_vec());
        assert_eq!(of_iterator.map(to_bytes).collect::<Entries>(), expected);
        assert_eq!(of_snapshot.map(to_bytes).collect::<Entries>(), expected);
    }
}

/// A thread reads an earlier view while catch-ups insert into its memtables.
#[test]
fn earlier_view_is_constant_during_catch_ups() {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(vfs.clone())).unwrap();
    let follower = Db::open_follower("db", options(vfs)).unwrap();
    let (keyspace, mut rng) = (owner.default_keyspace(), TestRng::new(seed()));
    let mut entries = Entries::new();
    for _ in 0..10 {
        commit(&keyspace, &owner, &mut rng, &mut entries);
    }
    follower.catch_up().unwrap();
    let (view, expected) = (follower.view().default_keyspace(), entries.clone());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                check_view(&view, &expected);
                rounds += 1;
            }
        });
        for _ in 0..60 {
            commit(&keyspace, &owner, &mut rng, &mut entries);
            assert!(follower.catch_up().unwrap());
            check_view(&follower.view().default_keyspace(), &entries);
        }
        is_done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert!(follower.metrics().extensions >= 60);
}

#[test]
fn shared_expiring_entry_expires_in_each_view() {
    let vfs = Arc::new(MemVfs::new());
    let clock = ManualClock::new(1_790_000_000_000_000);
    let options =
        || Options::default().background(Background::Inline).vfs(vfs.clone()).clock(clock.clone());
    let owner = Db::open("db", options()).unwrap();
    let follower = Db::open_follower("db", options()).unwrap();
    let keyspace = owner.default_keyspace();
    keyspace.put_with_ttl("expiring", "value", Duration::from_secs(60)).unwrap();
    owner.sync().unwrap();
    follower.catch_up().unwrap();
    let first = follower.view();
    owner.put("other", "value").unwrap();
    owner.sync().unwrap();
    follower.catch_up().unwrap();
    assert_eq!(follower.metrics().extensions, 2);
    let second = follower.view();
    for view in [&first, &second] {
        assert!(view.get("expiring").unwrap().is_some());
    }
    clock.advance_us(61_000_000);
    for view in [&first, &second] {
        assert_eq!(view.get("expiring").unwrap(), None);
    }
    assert_eq!(second.default_keyspace().iter().count(), 1);
}

/// Each call of a catch-up fails once, or from then on. No commit is lost or applied twice afterwards.
#[test]
fn failed_extension_is_replaced_by_a_replay_of_the_whole_log() {
    let (mut failures, mut index) = (0, 0);
    for repeats in [false, true] {
        index = 0;
        while check_failed_call(index, repeats, &mut failures) {
            index += 1;
        }
    }
    assert!(index > 10 && failures > 5, "{index} calls, {failures} failed catch-ups");
}

/// Fails the call with this index of a catch-up. Returns false if the catch-up has fewer calls.
fn check_failed_call(index: u64, repeats: bool, failures: &mut u64) -> bool {
    let vfs = Arc::new(MemVfs::new());
    let owner = Db::open("db", options(vfs.clone())).unwrap();
    let faults = FaultVfs::new(vfs.clone(), 1);
    let follower_options = options(vfs).vfs(Arc::new(faults.clone()));
    let follower: Follower = Db::open_follower("db", follower_options).unwrap();
    let keyspace = owner.default_keyspace();
    let add = |operand: &str| {
        keyspace.merge("key", operand).unwrap();
        owner.sync().unwrap();
    };
    let shown = |view: &Db| view.get("key").unwrap().map(|value| value.to_vec());
    add("1");
    assert!(follower.catch_up().unwrap());
    let first = follower.view();
    add("2");
    let rule = FaultRule::new(Fault::Error(Errno::Io)).nth(index);
    faults.add_rule(if repeats { rule.from_then_on() } else { rule });
    let result = follower.catch_up();
    let has_fired = !faults.fired_counts().is_empty();
    faults.clear_rules();
    let expected: &[u8] = if result.is_ok() { b"12" } else { b"1" };
    assert_eq!(shown(&follower.view()).as_deref(), Some(expected), "call {index}");
    *failures += u64::from(result.is_err());
    for (operand, expected) in [("3", "123"), ("4", "1234")] {
        add(operand);
        assert!(follower.catch_up().unwrap());
        assert_eq!(shown(&follower.view()).as_deref(), Some(expected.as_bytes()), "call {index}");
    }
    assert_eq!(shown(&first).as_deref(), Some(&b"1"[..]), "call {index}");
    has_fired
}
