//! A target for the database as a whole: bytes are a short sequence of operations on a small database in
//! memory, which is compared with a model after each of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use lsmx_base::sync::Arc;
use lsmx_compaction::PolicySpec;

use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::db::{Db, verify};
use crate::env::Background;
use crate::iter::range::Range;
use crate::merge_operator::{Append, MergeOperator, MergeResult};
use crate::operand_store::OperandStoreFactory;
use crate::options::db::Options;
use crate::options::keyspace::KeyspaceOptions;
use crate::options::value_separation::ValueSeparation;
use crate::options::write::Durability;
use crate::table::Compression;
use crate::vfs::MemVfs;
use crate::vfs::mem::CrashImage;
use crate::wal::WalOptions;
use crate::write::batch::WriteBatch;

const DIR: &str = "db";
/// The keyspaces, in the order of the model.
const NAMES: [&str; 2] = ["default", "other"];
/// Keys that are hard to tell apart, ascending.
const KEYS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"aa",
    b"aaaaaaaaaaaaaaaa",
    b"aaaaaaaaaaaaaaab",
    b"ab",
    b"b",
    b"key-0001",
    b"key-0002",
    b"key-00020",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
];
/// More operations than this are not played: a short sequence that fails says more.
const OPERATIONS_MAX: usize = 64;
const SNAPSHOTS_MAX: usize = 3;
/// Longest value of [`Bounded`].
const BOUNDED_BYTES: usize = 200;

/// Appends without merging partially; where the value would become too long there is none.
#[derive(Debug)]
struct Bounded;

impl MergeOperator for Bounded {
    fn name(&self) -> &'static str {
        "bounded"
    }

    fn full_merge(&self, _: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        Ok(operands.iter().fold(base.map(<[u8]>::to_vec), |value, operand| {
            let value = [&value.unwrap_or_default(), *operand].concat();
            (value.len() <= BOUNDED_BYTES).then_some(value)
        }))
    }
}

fn operator(keyspace: usize) -> Arc<dyn MergeOperator> {
    match keyspace {
        0 => Arc::new(Append::with_separator(b"|")),
        _ => Arc::new(Bounded),
    }
}

/// A keyspace, a key or a place in a list, by number.
type Index = usize;

#[derive(Clone, Copy, Debug)]
enum Change {
    /// Puts so many bytes.
    Put(usize),
    Delete,
    /// Merges so many bytes.
    Merge(usize),
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Key(Index, Index, Change),
    Range(Index, Limits),
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    from: Bound<Index>,
    to: Bound<Index>,
}

#[derive(Clone, Debug)]
enum Operation {
    Write {
        writes: Vec<Write>,
        sync: bool,
    },
    /// Steps through a range, forward where true, then to its end.
    Range {
        keyspace: Index,
        limits: Limits,
        steps: Vec<bool>,
    },
    Snapshot,
    SnapshotDrop(Index),
    Flush,
    CompactRange {
        keyspace: Index,
        limits: Limits,
    },
    SetPolicy {
        keyspace: Index,
        policy: Index,
    },
    Sync,
    /// Opens the database anew, which was closed before or only let go.
    Reopen {
        closed: bool,
    },
    Crash {
        image: CrashImage,
        seed: u64,
    },
}

/// Reads numbers from bytes; behind their end all are 0.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % end
    }

    fn limit(&mut self) -> Bound<Index> {
        match self.below(2 * KEYS.len() + 1).checked_sub(1) {
            None => Bound::Unbounded,
            Some(key) if key < KEYS.len() => Bound::Included(key),
            Some(key) => Bound::Excluded(key - KEYS.len()),
        }
    }

    fn limits(&mut self) -> Limits {
        Limits { from: self.limit(), to: self.limit() }
    }

    /// Deletes, operands and ranges too.
    fn write(&mut self) -> Write {
        let (what, keyspace) = (self.below(6), self.below(2));
        if what == 0 {
            return Write::Range(keyspace, self.limits());
        }
        let key = self.below(KEYS.len());
        let change = match what {
            1 => Change::Delete,
            2 | 3 => Change::Merge(self.below(64)),
            _ => Change::Put(self.below(64)),
        };
        Write::Key(keyspace, key, change)
    }

    fn operation(&mut self) -> Option<Operation> {
        let what = self.byte()? % 32;
        Some(match what {
            0 => Operation::Flush,
            1 => {
                let (keyspace, limits) = (self.below(2), self.limits());
                let steps = self.below(256);
                let steps = (0..8).map(|bit| steps >> bit & 1 == 1).collect();
                Operation::Range { keyspace, limits, steps }
            }
            2 => Operation::Snapshot,
            3 => Operation::SnapshotDrop(self.below(SNAPSHOTS_MAX)),
            4 => Operation::CompactRange { keyspace: self.below(2), limits: self.limits() },
            5 => Operation::SetPolicy { keyspace: self.below(2), policy: self.below(256) },
            6 => Operation::Sync,
            7 => Operation::Reopen { closed: self.below(2) == 0 },
            8 => {
                let image = CrashImage::ALL[self.below(CrashImage::ALL.len())];
                Operation::Crash { image, seed: u64::from(self.byte().unwrap_or(0)) }
            }
            9..13 => {
                let count = self.below(6);
                let writes = (0..count).map(|_| self.write()).collect();
                Operation::Write { writes, sync: what == 9 }
            }
            _ => Operation::Write { writes: vec![self.write()], sync: what == 13 },
        })
    }
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// What the keyspaces hold.
type State = [Map; 2];

fn bounds(limits: Limits) -> (Bound<&'static [u8]>, Bound<&'static [u8]>) {
    (limits.from.map(|key| KEYS[key]), limits.to.map(|key| KEYS[key]))
}

/// Whether a key lies between two bounds, which need not be in order.
fn within(key: &[u8], (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    let above = match from {
        Bound::Unbounded => true,
        Bound::Included(from) => from <= key,
        Bound::Excluded(from) => from < key,
    };
    let below = match to {
        Bound::Unbounded => true,
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
    };
    above && below
}

/// Steps through a range and what must be in it, forward where true, then on to the end.
fn walk(mut range: Range, mut expected: Vec<(&[u8], &[u8])>, steps: &[bool]) {
    let forward = (0..=expected.len()).map(|_| true);
    for forward in steps.iter().copied().chain(forward) {
        let (found, expected) = match forward {
            true if expected.is_empty() => (range.next(), None),
            true => (range.next(), Some(expected.remove(0))),
            false => (range.next_back(), expected.pop()),
        };
        let found = found.map(|found| found.expect("it can be read"));
        assert_eq!(found.as_ref().map(|(key, value)| (&**key, &**value)), expected);
    }
}

/// A database, and what it must hold.
struct World {
    disk: MemVfs,
    first: u8,
    beside: Beside,
    /// How often the database was opened.
    life: u64,
    /// None while it is opened anew.
    db: Option<Db>,
    keyspaces: Vec<Keyspace>,
    /// After each commit that a crash may leave as the last, the newest one at the end.
    states: Vec<State>,
    snapshots: Vec<(Snapshot, State)>,
    /// Tells values apart.
    written: u8,
}

/// Which operand stores keyspaces have.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Gives the store to a keyspace.
    pub give: fn(KeyspaceOptions) -> KeyspaceOptions,
    /// Those that may be met.
    pub stores: fn() -> Vec<Arc<dyn OperandStoreFactory>>,
}

/// The options that the first byte of an input stands for.
fn keyspace_options(first: u8, at: usize) -> KeyspaceOptions {
    let bit = |bit: u8| first >> bit & 1 == 1;
    KeyspaceOptions::default()
        .memtable_bytes(if bit(0) { 1 << 10 } else { 16 << 10 })
        .table_bytes(256)
        .block_bytes(64)
        .restart_interval(if bit(1) { 2 } else { 16 })
        .compression(if bit(2) { Compression::Lz4 } else { Compression::None })
        .value_separation(bit(3).then(|| ValueSeparation::default().threshold_bytes(20)))
        .merge_operator(operator(at))
}

impl World {
    fn new(first: u8, beside: Beside) -> World {
        let (disk, states) = (MemVfs::new(), vec![State::default()]);
        let (keyspaces, snapshots) = (Vec::new(), Vec::new());
        let mut world = World {
            disk,
            first,
            beside,
            life: 0,
            db: None,
            keyspaces,
            states,
            snapshots,
            written: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        self.life += 1;
        let keyspace = |at: usize| (self.beside.give)(keyspace_options(self.first, at));
        let wal = WalOptions { segment_bytes: 500, ..WalOptions::default() };
        let cache_bytes = if self.first >> 4 & 1 == 1 { 0 } else { 64 << 10 };
        let options = Options::default()
            .background(Background::Inline)
            .seed(self.life)
            .wal(wal)
            .block_cache_bytes(cache_bytes)
            .keyspace_defaults(keyspace(0));
        let db = Db::open(DIR, options.vfs(Arc::new(self.disk.clone()))).expect("it opens");
        let other = db.keyspace(NAMES[1], keyspace(1)).expect("it is there, or is made");
        self.keyspaces = vec![db.default_keyspace(), other];
        self.db = Some(db);
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("open between operations")
    }

    fn state(&self) -> &State {
        self.states.last().expect("there is one from the start")
    }

    /// All commits so far are on stable storage.
    fn synced(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.written = self.written.wrapping_add(1);
        vec![self.written; len]
    }

    fn write(&mut self, writes: &[Write], sync: bool) {
        let mut batch = WriteBatch::new();
        let mut state = self.state().clone();
        for write in writes {
            match *write {
                Write::Key(at, key, change) => {
                    let (keyspace, key) = (self.keyspaces[at].clone(), KEYS[key]);
                    match change {
                        Change::Put(len) => {
                            let value = self.value(len);
                            batch.put(&keyspace, key, &value);
                            state[at].insert(key.to_vec(), value);
                        }
                        Change::Delete => {
                            batch.delete(&keyspace, key);
                            state[at].remove(key);
                        }
                        Change::Merge(len) => {
                            let operand = self.value(len);
                            batch.merge(&keyspace, key, &operand);
                            let base = state[at].remove(key);
                            let merged = operator(at).full_merge(key, base.as_deref(), &[&operand]);
                            let merged = merged.expect("it never fails");
                            state[at].extend(merged.map(|value| (key.to_vec(), value)));
                        }
                    }
                }
                Write::Range(at, limits) => {
                    batch.delete_range::<&[u8]>(&self.keyspaces[at], bounds(limits));
                    state[at].retain(|key, _| !within(key, bounds(limits)));
                }
            }
        }
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        self.db().write(batch, durability).expect("in memory");
        self.states.push(state);
        if sync {
            self.synced();
        }
    }

    /// Lets the database go as it is, and opens it anew.
    fn reopen(&mut self) {
        self.snapshots.clear();
        self.keyspaces.clear();
        self.db = None;
        self.open();
    }

    fn close(&mut self) {
        self.snapshots.clear();
        self.db().close(None).expect("in memory");
        self.synced();
        self.keyspaces.clear();
        self.db = None;
    }

    /// Loses power; what is there afterwards is one of the states that may be.
    fn crash(&mut self, image: CrashImage, seed: u64) {
        self.disk = self.disk.crash(image, seed);
        self.reopen();
        let found = [0, 1].map(|at| {
            let pairs = self.keyspaces[at].iter().map(|pair| pair.expect("it can be read"));
            pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect::<Map>()
        });
        let at = self.states.iter().rposition(|state| *state == found);
        let at = at.unwrap_or_else(|| panic!("{found:?} never was, or was before the last sync"));
        self.states.truncate(at + 1);
        self.synced();
    }

    fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Write { writes, sync } => self.write(writes, *sync),
            Operation::Range { keyspace, limits, steps } => {
                let bounds = bounds(*limits);
                let range = self.keyspaces[*keyspace].range::<&[u8]>(bounds);
                let inside = self.state()[*keyspace].iter().filter(|(key, _)| within(key, bounds));
                walk(range, inside.map(|(key, value)| (&**key, &**value)).collect(), steps);
            }
            Operation::Snapshot => {
                if self.snapshots.len() < SNAPSHOTS_MAX {
                    self.snapshots.push((self.db().snapshot(), self.state().clone()));
                }
            }
            Operation::SnapshotDrop(at) => {
                if *at < self.snapshots.len() {
                    self.snapshots.swap_remove(*at);
                }
            }
            Operation::Flush => {
                self.db().flush().expect("in memory");
                self.synced();
            }
            Operation::CompactRange { keyspace, limits } => {
                let keyspace = &self.keyspaces[*keyspace];
                keyspace.compact_range::<&[u8]>(bounds(*limits)).expect("in memory");
            }
            Operation::SetPolicy { keyspace, policy } => {
                let policies = PolicySpec::all_presets();
                let policy = policies[policy % policies.len()].clone();
                // Small trees are deep then.
                let policy = policy.clone().with_size_ratio(2).unwrap_or(policy);
                self.keyspaces[*keyspace].set_policy(policy).expect("in memory");
            }
            Operation::Sync => {
                self.db().sync().expect("in memory");
                self.synced();
            }
            Operation::Reopen { closed } => {
                if *closed {
                    self.close();
                }
                self.reopen();
            }
            Operation::Crash { image, seed } => self.crash(*image, *seed),
        }
    }

    /// Compares everything, both ways and key by key.
    fn check(&self) {
        for (keyspace, map) in self.keyspaces.iter().zip(self.state()) {
            let all: Vec<_> = map.iter().map(|(key, value)| (&**key, &**value)).collect();
            walk(keyspace.iter(), all.clone(), &[]);
            walk(keyspace.iter(), all, &[false; KEYS.len()]);
            for key in KEYS {
                let found = keyspace.get(key).expect("it can be read");
                assert_eq!(found.as_deref(), map.get(key).map(Vec::as_slice), "{key:?}");
            }
        }
        for (snapshot, state) in &self.snapshots {
            for (keyspace, map) in self.keyspaces.iter().zip(state) {
                let all = map.iter().map(|(key, value)| (&**key, &**value)).collect();
                walk(snapshot.iter(keyspace), all, &[]);
                for (key, value) in map {
                    let found = snapshot.get(keyspace, key).expect("it can be read");
                    assert_eq!(found.as_deref(), Some(&**value), "{key:?}");
                }
            }
        }
    }
}

/// What was played so far: shown when it ends in a panic.
struct Played(Vec<Operation>);

impl Drop for Played {
    #[expect(clippy::print_stderr, reason = "a panic tells what was wrong, and not after what")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("played {:?}", self.0);
        }
    }
}

/// As [`api`], with operand stores.
pub fn api_with(bytes: &[u8], beside: Beside) {
    let mut source = Source(bytes);
    let mut world = World::new(source.byte().unwrap_or(0), beside);
    let mut played = Played(Vec::new());
    while played.0.len() < OPERATIONS_MAX
        && let Some(operation) = source.operation()
    {
        played.0.push(operation.clone());
        world.play(&operation);
        world.check();
    }
    world.close();
    let disk = Arc::new(world.disk.clone());
    let stores = (beside.stores)();
    let mut report = verify(
        Path::new(DIR),
        &stores.iter().cloned().fold(Options::default().vfs(disk), Options::operand_store),
    )
    .expect("all is sound");
    // Stores may leave files that nothing names: the next opening removes them.
    report
        .orphans
        .retain(|path| stores.is_empty() || path.extension().is_none_or(|it| it != "bucket"));
    assert!(report.orphans.is_empty() && report.wal_tail_bytes == 0, "{report:?}");
    world.reopen();
    world.check();
}

/// A sequence of operations: a byte of options, then an operation after the other.
pub fn api(bytes: &[u8]) {
    api_with(bytes, Beside { give: |options| options, stores: Vec::new });
}

/// Short sequences that get to what is rare.
#[must_use]
pub fn api_seeds() -> Vec<Vec<u8>> {
    let put = |keyspace, key, len| [14, 4, keyspace, key, len];
    let merge = |keyspace, key, len| [14, 2, keyspace, key, len];
    let delete = |keyspace, key| [14, 1, keyspace, key];
    let all = [0, 0];
    let compact = |keyspace| [[4, keyspace], all].concat();
    // Runs of overlapping files, under one policy after the other.
    let deep = (0..6).flat_map(|round| {
        let puts = (0..5).flat_map(|key| put(round % 2, (key * 3 + round) % 16, 60));
        puts.chain([0, 5, round % 2, round * 5]).collect::<Vec<u8>>()
    });
    vec![
        // A range delete and a tombstone over a table, ranges from both ends, a compaction.
        [
            &[1][..],
            &put(0, 3, 40),
            &put(0, 4, 30),
            &put(0, 9, 30),
            &[0],
            &delete(0, 9),
            &[14, 0, 0, 4, 6],
            &[1, 0, 0, 0, 0x5a],
            &compact(0),
            &[1, 0, 4, 20, 0xaa],
        ]
        .concat(),
        // Operands under a snapshot, over bases and none, then without it.
        [
            &[0][..],
            &merge(0, 3, 5),
            &merge(1, 3, 50),
            &[2],
            &merge(0, 3, 6),
            &[0],
            &merge(1, 3, 60),
            &delete(0, 3),
            &merge(0, 3, 4),
            &[0],
            &compact(0),
            &[3, 0],
            &compact(1),
            &[7, 0],
        ]
        .concat(),
        // Batches over both keyspaces, values in blob files, power losses of several kinds.
        [
            &[8][..],
            &[10, 3, 4, 0, 1, 50, 4, 1, 1, 20, 2, 0, 2, 8],
            &[13, 4, 0, 5, 9],
            &[10, 2, 1, 0, 1, 0, 1, 0, 0],
            &[8, 2, 7],
            &put(1, 9, 30),
            &[8, 5, 1, 6],
            &put(0, 0, 10),
            &[0, 8, 0, 3],
            &put(0, 0, 11),
            &[8, 6, 9, 7, 1],
        ]
        .concat(),
        [1].into_iter().chain(deep).chain(compact(0)).chain([7, 1, 7, 0]).collect(),
    ]
}
