//! Histories of a database and its followers.
//!
//! The owner executes random operations, also between the file accesses of a catch-up. A model has the contents after
//! each operation. A view of a follower must have the contents after one of the operations, and no later view may have
//! older contents. Processes of owner and followers are killed: their file system then rejects all calls, so that no file
//! changes any more, and their locks are released.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::env::Background;
use lsmx::ingest::BulkLoadOptions;
use lsmx::internals::vfs::{Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, Follower, KeyspaceOptions, Options, Range, RmwMode, Slice, Snapshot,
    WriteBatch,
};
use lsmx_testkit::{TestRng, mix_seeds};

use super::Outcome;
use super::database::assert_entries;
use super::small_database;

const DIR: &str = "db";
/// Names of keyspaces. The first always exists.
const NAMES: [&str; 4] = ["default", "values", "x", "y"];
/// Number of operations of the owner outside of catch-ups.
const STEPS: usize = 120;
const KEYS: u64 = 24;
const FOLLOWERS_MAX: usize = 3;
/// Probability that the owner executes operations before a file system call of a catch-up.
const INTERLEAVED: f64 = 0.05;

/// Entries of all keyspaces, by name.
type Contents = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Parameters of a history.
#[derive(Clone, Copy)]
struct HistoryScale {
    memtable_bytes: u64,
    /// One of this number of operations is not a commit.
    other_one_in: u64,
}

/// Most catch-ups find flushes and other edits of the manifest.
const SMALL: HistoryScale = HistoryScale { memtable_bytes: 2 << 10, other_one_in: 3 };
/// Most catch-ups find only commits.
const LARGE: HistoryScale = HistoryScale { memtable_bytes: 16 << 10, other_one_in: 30 };

impl HistoryScale {
    fn options(self, vfs: &FaultVfs) -> Options {
        let options = small_database::options(Background::Inline).vfs(Arc::new(vfs.clone()));
        let options = options.wal_bytes_max(4 * self.memtable_bytes);
        options.keyspace_defaults(self.keyspace_options("default"))
    }

    fn keyspace_options(self, name: &str) -> KeyspaceOptions {
        small_database::keyspace_options(name).memtable_bytes(self.memtable_bytes)
    }

    fn contents(self, db: &Db) -> Contents {
        let names = db.keyspaces().into_iter();
        let entries = names.map(|name| {
            let options = self.keyspace_options(&name);
            let keyspace = db.open_keyspace(&name, Some(options)).unwrap();
            (name, entries(keyspace.iter()))
        });
        entries.collect()
    }
}

fn rejects_all_calls() -> FaultRule {
    FaultRule::new(Fault::Error(Errno::Io)).from_then_on()
}

/// The owner of the database and the model of its contents.
struct Owner {
    disk: Arc<MemVfs>,
    vfs: FaultVfs,
    db: Db,
    rng: TestRng,
    scale: HistoryScale,
    /// Contents after each operation.
    states: Vec<Contents>,
    /// Contents if the operation that failed last had an effect. Set until the error is resolved.
    in_doubt: Option<Contents>,
    /// Index of the last state that is known to be on stable storage.
    synced: usize,
    /// Whether the running operation makes all contents durable.
    is_synced: bool,
    /// The last operations and their results.
    log: VecDeque<String>,
}

impl Owner {
    fn open(seed: u64) -> Owner {
        let disk = Arc::new(MemVfs::new());
        let vfs = FaultVfs::new(disk.clone(), seed);
        let mut rng = TestRng::new(seed);
        let scale = *rng.choose(&[SMALL, LARGE]);
        let db = Db::open(DIR, scale.options(&vfs)).unwrap();
        let states = vec![scale.contents(&db)];
        Owner {
            disk,
            vfs,
            db,
            rng,
            scale,
            states,
            in_doubt: None,
            synced: 0,
            is_synced: true,
            log: VecDeque::new(),
        }
    }

    fn newest(&self) -> &Contents {
        self.states.last().unwrap()
    }

    /// Executes a random operation.
    fn step(&mut self) {
        if self.in_doubt.is_some() {
            return self.resolve();
        }
        if self.rng.is_one_in(25) {
            let path = *self.rng.choose::<&str>(&[".wal", ".wal", "MANIFEST"]);
            let fault = match self.rng.is_one_in(3) {
                true => FaultRule::new(Fault::ShortWrite(Errno::Io)).for_calls(&[VfsCall::Append]),
                false => FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]),
            };
            self.vfs.add_rule(fault.path_contains(path));
        }
        self.is_synced = false;
        let mut next = self.newest().clone();
        let is_commit = !self.rng.is_one_in(self.scale.other_one_in);
        let operation = if is_commit { 12 } else { self.rng.below(12) };
        let done = match operation {
            0..=2 => self.sync_or_flush(),
            3 => return self.reopen(false),
            4 => return self.reopen(true),
            5 => self.create_keyspace(&mut next),
            6 => self.drop_keyspace(&mut next),
            7 => self.rename_keyspace(&mut next),
            8 => self.clone_keyspace(&mut next),
            9..=11 => self.bulk_load(&mut next),
            _ => self.commit(&mut next),
        };
        self.vfs.clear_rules();
        self.record(format!("{operation}: {done:?}"));
        match done {
            Ok(()) => {
                if next != *self.newest() {
                    self.states.push(next);
                }
                if self.is_synced {
                    self.synced = self.states.len() - 1;
                }
            }
            Err(_) if self.db.health().read_only.is_some() => self.in_doubt = Some(next),
            Err(_) => {}
        }
    }

    fn record(&mut self, what: String) {
        self.log.push_back(what);
        if self.log.len() > 6 {
            self.log.pop_front();
        }
    }

    /// Makes the database writable again if a sync has failed since the last restart. Returns whether one has failed.
    fn recover(&mut self) -> bool {
        if self.vfs.fired_counts().is_empty() {
            return false;
        }
        self.vfs.clear_rules();
        self.db.resume().unwrap();
        self.in_doubt = None;
        true
    }

    /// Resumes the database after an error, or kills it.
    fn resolve(&mut self) {
        if self.rng.is_one_in(3) {
            return self.reopen(true);
        }
        self.record("resume".to_owned());
        self.recover();
        self.synced = self.states.len() - 1;
        assert!(self.scale.contents(&self.db) == *self.newest(), "after a resume: {:?}", self.log);
    }

    fn reopen(&mut self, is_killed: bool) {
        self.vfs.clear_rules();
        self.record(format!("reopen, killed: {is_killed}"));
        if is_killed {
            self.vfs.add_rule(rejects_all_calls());
        }
        let vfs = FaultVfs::new(self.disk.clone(), self.rng.next_u64());
        let closed = self.db.close(None);
        let has_failed = is_killed || !self.vfs.fired_counts().is_empty();
        assert!(has_failed || closed.is_ok(), "{closed:?}");
        self.db = Db::open(DIR, self.scale.options(&vfs)).unwrap();
        self.vfs = vfs;
        let now = self.scale.contents(&self.db);
        // A failed sync may have lost the commits that were not synced.
        self.states.extend(self.in_doubt.take());
        let found = (self.synced..self.states.len()).rfind(|&at| self.states[at] == now);
        let found = found.unwrap_or_else(|| panic!("after a restart: {:?}", self.log));
        self.states.truncate(found + 1);
        self.synced = found;
    }

    fn sync_or_flush(&mut self) -> lsmx::Result<()> {
        match self.rng.is_one_in(2) {
            true => self.db.sync()?,
            false => self.db.flush()?,
        }
        self.is_synced = true;
        Ok(())
    }

    fn draw_existing(&mut self) -> String {
        let names: Vec<String> = self.newest().keys().cloned().collect();
        self.rng.choose(&names).clone()
    }

    fn draw_name(&mut self, exists: bool) -> Option<&'static str> {
        let name = *self.rng.choose(&NAMES[1..]);
        (self.newest().contains_key(name) == exists).then_some(name)
    }

    fn create_keyspace(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let Some(name) = self.draw_name(false) else { return Ok(()) };
        next.insert(name.to_owned(), BTreeMap::new());
        self.is_synced = true;
        self.db.keyspace(name, self.scale.keyspace_options(name)).map(drop)
    }

    fn drop_keyspace(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let Some(name) = self.draw_name(true) else { return Ok(()) };
        next.remove(name);
        self.is_synced = true;
        self.db.drop_keyspace(name)
    }

    fn rename_keyspace(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let (Some(old), Some(new)) = (self.draw_name(true), self.draw_name(false)) else {
            return Ok(());
        };
        let moved = next.remove(old).unwrap();
        next.insert(new.to_owned(), moved);
        self.is_synced = true;
        self.db.rename_keyspace(old, new)
    }

    fn clone_keyspace(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let (source, Some(name)) = (self.draw_existing(), self.draw_name(false)) else {
            return Ok(());
        };
        next.insert(name.to_owned(), next[&source].clone());
        self.is_synced = true;
        let options = self.scale.keyspace_options(&source);
        self.db.clone_keyspace(&source, name, options).map(drop)
    }

    fn bulk_load(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let name = self.draw_existing();
        let entries: BTreeMap<Vec<u8>, Vec<u8>> = (0..self.rng.between(1, 6))
            .map(|_| (key(self.rng.below(KEYS)), self.rng.bytes(12)))
            .collect();
        let keyspace = self.db.open_keyspace(&name, None)?;
        next.get_mut(&name).unwrap().extend(entries.clone());
        self.is_synced = true;
        keyspace.bulk_load(entries, BulkLoadOptions::default()).map(drop)
    }

    fn commit(&mut self, next: &mut Contents) -> lsmx::Result<()> {
        let mut batch = WriteBatch::new();
        for _ in 0..self.rng.between(1, 4) {
            let name = self.draw_existing();
            let keyspace = self.db.open_keyspace(&name, None)?;
            let entries = next.get_mut(&name).unwrap();
            let key = key(self.rng.below(KEYS));
            match self.rng.below(10) {
                0 => {
                    let end = [key.as_slice(), &[0xff]].concat();
                    batch.delete_range(&keyspace, key.clone()..end.clone());
                    entries.retain(|it, _| *it < key || *it >= end);
                }
                1 => {
                    batch.delete(&keyspace, &key);
                    entries.remove(&key);
                }
                2 => {
                    batch.merge(&keyspace, &key, "+");
                    entries.entry(key).or_default().push(b'+');
                }
                _ => {
                    let len = self.rng.between(1, 60);
                    let value = self.rng.bytes(len);
                    batch.put(&keyspace, &key, &value);
                    entries.insert(key, value);
                }
            }
        }
        self.is_synced = self.rng.is_one_in(4);
        let durability = if self.is_synced { Durability::Sync } else { Durability::Buffered };
        self.db.write(batch, durability)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:02}").into_bytes()
}

fn entries(range: Range) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let to_bytes = |(key, value): (Slice, Slice)| (key.to_vec(), value.to_vec());
    range.map(|entry| to_bytes(entry.unwrap())).collect()
}

/// A follower and the model state that its view shows.
struct Followed {
    vfs: FaultVfs,
    follower: Follower,
    shown: usize,
    held: Vec<Held>,
}

/// A part of an earlier view.
struct Held {
    name: String,
    keyspace: lsmx::Keyspace,
    snapshot: Option<Snapshot>,
    /// Iterator and the number of entries that it has returned.
    iterator: Option<(Range, usize)>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Held {
    /// Compares all remaining entries with those of the view.
    fn check(self) {
        // The second pass may find combined values that the first pass has stored.
        for _ in 0..2 {
            assert_entries(&self.keyspace, &self.entries);
            for key in (0..KEYS).map(key) {
                let value = self.keyspace.get(&key).unwrap();
                assert_eq!(value.as_deref(), self.entries.get(&key).map(Vec::as_slice));
            }
        }
        if let Some(snapshot) = self.snapshot {
            let found = entries(snapshot.iter(&self.keyspace));
            assert_eq!(found, self.entries, "snapshot of {}", self.name);
        }
        if let Some((iterator, returned)) = self.iterator {
            let rest: BTreeMap<_, _> = self.entries.into_iter().skip(returned).collect();
            assert_eq!(entries(iterator), rest, "iterator over {}", self.name);
        }
    }
}

/// A history of one owner and several followers.
struct FollowerHistory {
    owner: Arc<Mutex<Owner>>,
    scale: HistoryScale,
    /// Whether the owner executes operations between the file accesses of a follower.
    is_interleaved: Arc<AtomicBool>,
    disk: Arc<MemVfs>,
    followers: Vec<Followed>,
    counts: ViewCounts,
    rng: TestRng,
}

/// Numbers of views of ended followers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ViewCounts {
    pub(crate) views: u64,
    /// Number of views that share the memtables of the view before.
    pub(crate) extensions: u64,
}

impl FollowerHistory {
    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file system in which the owner executes operations before some calls.
    fn follower_vfs(&mut self) -> FaultVfs {
        let vfs = FaultVfs::new(self.disk.clone(), self.rng.next_u64());
        let (owner, is_interleaved) = (Arc::clone(&self.owner), Arc::clone(&self.is_interleaved));
        vfs.add_rule(FaultRule::new(Fault::Delay).chance(INTERLEAVED));
        vfs.set_delay_hook(Some(Arc::new(move |_, _| {
            if is_interleaved.load(Ordering::Relaxed) {
                let mut owner = owner.lock().unwrap_or_else(PoisonError::into_inner);
                // Commits after other operations are the hard case, also for a catch-up that expects only commits.
                let other_one_in = owner.scale.other_one_in;
                owner.scale.other_one_in = SMALL.other_one_in;
                for _ in 0..1 + owner.rng.below(4) {
                    owner.step();
                }
                owner.scale.other_one_in = other_one_in;
            }
        })));
        vfs
    }

    /// Calls `read` while the owner executes operations.
    fn interleaved<T>(&self, read: impl FnOnce() -> T) -> T {
        self.is_interleaved.store(true, Ordering::Relaxed);
        let result = read();
        self.is_interleaved.store(false, Ordering::Relaxed);
        result
    }

    /// Checks the view of a follower. Returns the model state that it shows.
    fn check_view(&self, follower: &Follower, shown: usize) -> Outcome<usize> {
        let now = self.scale.contents(&follower.view());
        let owner = self.owner();
        let found = (shown..owner.states.len()).find(|&at| owner.states[at] == now);
        let older = (0..shown).rfind(|&at| owner.states[at] == now);
        let of = owner.states.len();
        found.ok_or_else(|| match older {
            Some(older) => format!("a view shows state {older} of {of} after state {shown}"),
            None => format!("a view after state {shown} of {of} shows no state"),
        })
    }

    /// Calls `read` while the owner executes operations.
    ///
    /// A failed sync of the owner may have lost the sync mark of the last edit of the manifest. The edit is then unknown,
    /// and a file that it removes may be missing. In this case, the call must succeed after the owner has recovered.
    fn read_interleaved<T>(&self, read: impl Fn() -> lsmx::Result<T>) -> Outcome<T> {
        let result = self.interleaved(&read).or_else(|error| {
            let is_missing = match &error {
                Error::Missing { .. } => true,
                Error::Io { source, .. } => source.kind() == ErrorKind::NotFound,
                _ => false,
            };
            if !is_missing || !self.owner().recover() {
                return Err(error);
            }
            read()
        });
        result.map_err(|error| format!("{error}, after {:?}", self.owner().log))
    }

    fn open_follower(&mut self) -> Outcome<()> {
        let vfs = self.follower_vfs();
        let options = || self.scale.options(&vfs);
        let follower = self.read_interleaved(|| Db::open_follower(DIR, options()))?;
        let shown = self.check_view(&follower, 0)?;
        self.followers.push(Followed { vfs, follower, shown, held: Vec::new() });
        Ok(())
    }

    fn catch_up(&mut self, at: usize) -> Outcome<()> {
        let (follower, shown) = (self.followers[at].follower.clone(), self.followers[at].shown);
        self.read_interleaved(|| follower.catch_up())?;
        let mut shown = self.check_view(&follower, shown)?;
        let newest = {
            let owner = self.owner();
            // A synced commit may have failed to append its sync mark. Followers see it after the owner has recovered.
            let is_synced = owner.synced + 1 == owner.states.len()
                && owner.in_doubt.is_none()
                && owner.db.health().read_only.is_none();
            is_synced.then(|| owner.newest().clone())
        };
        if let Some(newest) = newest {
            follower.catch_up().map_err(|error| format!("catch-up: {error}"))?;
            shown = self.check_view(&follower, shown)?;
            if self.scale.contents(&follower.view()) != newest {
                let log = &self.owner().log;
                return Err(format!(
                    "a catch-up ended at state {shown}, which is not the newest, after {log:?}"
                ));
            }
        }
        self.followers[at].shown = shown;
        Ok(())
    }

    fn hold(&mut self, at: usize) {
        let view = self.followers[at].follower.view();
        let names = view.keyspaces();
        let name = self.rng.choose(&names).clone();
        let options = self.scale.keyspace_options(&name).rmw_mode(RmwMode::Adaptive);
        let keyspace = view.open_keyspace(&name, Some(options)).unwrap();
        let entries = entries(keyspace.iter());
        let mut held = Held { name, keyspace, snapshot: None, iterator: None, entries };
        if self.rng.is_one_in(2) {
            held.snapshot = Some(view.snapshot());
        } else {
            let mut iterator = held.keyspace.iter();
            let returned = self.rng.below(held.entries.len() + 1);
            iterator.by_ref().take(returned).for_each(|entry| drop(entry.unwrap()));
            held.iterator = Some((iterator, returned));
        }
        self.followers[at].held.push(held);
    }

    fn end_follower(&mut self, at: usize) {
        let Followed { vfs, follower, held, .. } = self.followers.swap_remove(at);
        let metrics = follower.metrics();
        self.counts.views += metrics.views;
        self.counts.extensions += metrics.extensions;
        if self.rng.is_one_in(2) {
            vfs.add_rule(rejects_all_calls());
            drop((follower, held));
        } else {
            drop(follower);
            // Iterators and snapshots remain valid.
            (0..10).for_each(|_| self.owner().step());
            held.into_iter().for_each(Held::check);
        }
    }

    fn step(&mut self) -> Outcome<()> {
        let at = match self.followers.len() {
            0 => None,
            count => Some(self.rng.below(count)),
        };
        match (self.rng.below(12), at) {
            (0, _) if self.followers.len() < FOLLOWERS_MAX => self.open_follower()?,
            (1..=3, Some(at)) => self.catch_up(at)?,
            (4, Some(at)) => self.hold(at),
            (5, Some(at)) if !self.followers[at].held.is_empty() => {
                self.followers[at].held.swap_remove(0).check();
            }
            (6, Some(at)) if self.rng.is_one_in(5) => self.end_follower(at),
            _ => self.owner().step(),
        }
        Ok(())
    }

    /// Ends all followers. The owner then deletes all files that it has kept for them.
    fn finish(mut self) -> Outcome<ViewCounts> {
        while !self.followers.is_empty() {
            let at = self.followers.len() - 1;
            self.catch_up(at)?;
            self.end_follower(at);
        }
        let mut owner = self.owner();
        owner.vfs.clear_rules();
        if owner.in_doubt.is_some() {
            owner.resolve();
        }
        owner.reopen(false);
        owner.db.close(None).unwrap();
        let names = self.disk.list(DIR.as_ref()).unwrap();
        drop(owner);
        let report = lsmx::verify(DIR, &Options::default().vfs(self.disk.clone())).unwrap();
        match report.orphans.is_empty() && !names.contains(&"FOLLOWERS".to_owned()) {
            true => Ok(self.counts),
            false => Err(format!("files remain: {:?} of {names:?}", report.orphans)),
        }
    }
}

/// Plays a random history.
pub(crate) fn history_equals_the_model(seed: u64) -> Outcome {
    play_history(seed).map(drop)
}

/// Plays a random history. Returns the numbers of views.
pub(crate) fn play_history(seed: u64) -> Outcome<ViewCounts> {
    let owner = Owner::open(mix_seeds(seed, 1));
    let (disk, scale) = (Arc::clone(&owner.disk), owner.scale);
    let mut history = FollowerHistory {
        owner: Arc::new(Mutex::new(owner)),
        scale,
        is_interleaved: Arc::default(),
        disk,
        followers: Vec::new(),
        counts: ViewCounts::default(),
        rng: TestRng::new(seed),
    };
    let mut play = || (0..STEPS).try_for_each(|_| history.step());
    play().and_then(|()| history.finish()).map_err(|what| format!("seed {seed}: {what}"))
}
