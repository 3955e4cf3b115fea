//! Operations as data. Each index is taken modulo the number of existing items, so any sublist is valid too.

use lsmx_testkit::TestRng;
use std::sync::Arc;

use super::{Opening, Tuning};

/// Names of the keyspaces of a history. The first is the default keyspace.
pub const KEYSPACES: [&str; 4] = ["default", "second", "Ümläut / ../ \u{0}", "4"];

/// A value, whose bytes follow from both numbers.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    pub tag: u64,
    pub bytes: u32,
}

impl Value {
    pub fn to_bytes(self) -> Arc<[u8]> {
        let tag = format!("{:x}.", self.tag);
        // Every other value compresses well.
        let mut state = self.tag | 1;
        let fill = (0..).map(|at: usize| {
            if self.tag.is_multiple_of(2) {
                return tag.as_bytes()[at % tag.len()];
            }
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        });
        fill.take(self.bytes as usize).collect()
    }
}

/// A write to one key.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Put(Value),
    Delete,
    Merge(Value),
}

/// A bound of a range.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Open,
    At(usize),
    Past(usize),
}

/// A write inside a batch.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    /// Keyspace, key and change.
    Key(usize, usize, Change),
    /// Keyspace and bounds of a range delete.
    Range(usize, Limit, Limit),
}

/// An operation of a history.
#[expect(
    clippy::large_enum_variant,
    reason = "few operations have options, and histories are short"
)]
#[derive(Clone, Debug)]
pub enum Op {
    Put {
        keyspace: usize,
        key: usize,
        value: Value,
        sync: bool,
    },
    Delete {
        keyspace: usize,
        key: usize,
    },
    DeleteRange {
        keyspace: usize,
        from: Limit,
        to: Limit,
        sync: bool,
    },
    Clear {
        keyspace: usize,
    },
    /// One merge for each operand.
    Merge {
        keyspace: usize,
        key: usize,
        operands: Vec<Value>,
        sync: bool,
    },
    /// An update that appends to the value, or deletes it for `None`. `fetch` returns the old value rather than the new one.
    Update {
        keyspace: usize,
        key: usize,
        append: Option<Value>,
        fetch: bool,
    },
    Batch {
        writes: Vec<Write>,
        sync: bool,
    },
    /// A batch with a guard: it is refused if the key was written after the snapshot. `None` takes a new snapshot.
    Guarded {
        snapshot: Option<usize>,
        keyspace: usize,
        key: usize,
        writes: Vec<Write>,
    },
    Get {
        keyspace: usize,
        key: usize,
    },
    MultiGet {
        snapshot: Option<usize>,
        keyspace: usize,
        keys: Vec<usize>,
    },
    /// The first and the last entry.
    Ends {
        keyspace: usize,
    },
    CompactRange {
        keyspace: usize,
        from: Limit,
        to: Limit,
    },
    DropKeyspace {
        keyspace: usize,
    },
    OperandsToTree {
        keyspace: usize,
    },
    /// Makes a checkpoint, opens it and compares it with the model.
    Checkpoint,
    /// Opens the files of a killed process read-only and compares them with the model.
    ReadOnly,
    /// Iterates over a range, or over its first `limit` entries. Positive steps go forward, negative ones back; then to the
    /// end.
    Range {
        keyspace: usize,
        from: Limit,
        to: Limit,
        limit: Option<u64>,
        steps: Vec<i8>,
    },
    Prefix {
        keyspace: usize,
        key: usize,
        bytes: usize,
    },
    Snapshot,
    SnapshotGet {
        snapshot: usize,
        keyspace: usize,
        key: usize,
    },
    SnapshotRange {
        snapshot: usize,
        keyspace: usize,
        from: Limit,
        to: Limit,
        steps: Vec<i8>,
    },
    SnapshotDrop {
        snapshot: usize,
    },
    Iterator {
        keyspace: usize,
        snapshot: Option<usize>,
        from: Limit,
        to: Limit,
    },
    IteratorStep {
        iterator: usize,
        steps: Vec<i8>,
    },
    IteratorDrop {
        iterator: usize,
    },
    Flush,
    WaitIdle,
    Sync,
    Create {
        name: usize,
        tuning: Tuning,
    },
    Tune {
        keyspace: usize,
        tuning: Tuning,
    },
    /// Changes the policy of an open keyspace.
    SetPolicy {
        keyspace: usize,
        policy: String,
    },
    DeleteAll {
        keyspace: usize,
    },
    CheckAll,
    /// `close()`, then a reopen with other options.
    Close {
        opening: Opening,
    },
    /// Drops all handles, then reopens with other options.
    Drop {
        opening: Opening,
    },
    /// `close()`, a reopen without merge operators, which keeps operands unmerged, `close()`, and a reopen with operators.
    Bare {
        bare: Opening,
        deletes: Vec<(usize, usize)>,
        opening: Opening,
    },
    /// A killed process, then a reopen with other options.
    Kill {
        opening: Opening,
    },
}

/// Shares of the kinds of operations in a history.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub keys: usize,
    /// Percentage of operations that write.
    pub writes: usize,
    pub value_bytes: u32,
    pub snapshots: bool,
    pub iterators: bool,
    pub reopens: bool,
    pub keyspaces: bool,
    pub range_deletes: bool,
}

impl Weights {
    /// Enables a random subset of the kinds, so that each kind also occurs without the others.
    pub fn random(rng: &mut TestRng) -> Weights {
        Weights {
            keys: *rng.choose(&[3, 12, 40, 150, 400]),
            writes: *rng.choose(&[30, 50, 70, 95]),
            value_bytes: *rng.choose(&[1, 20, 60, 60, 400]),
            snapshots: rng.is_true_with_percent(60),
            iterators: rng.is_true_with_percent(60),
            reopens: rng.is_true_with_percent(70),
            keyspaces: rng.is_true_with_percent(60),
            range_deletes: rng.is_true_with_percent(60),
        }
    }
}

/// Draws keys with common prefixes, extreme bytes and extreme lengths.
pub fn key_pool(rng: &mut TestRng, count: usize) -> Vec<Arc<[u8]>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let huge = rng.is_true_with_percent(4);
    let shared = rng.below(40);
    let shared = rng.bytes(shared);
    while keys.len() < count {
        let number = keys.len();
        let mut key = match rng.below(14) {
            0 => Vec::new(),
            1 => vec![0; rng.below(5)],
            2 => vec![0xff; rng.below(5)],
            3 => vec![b'a'; rng.below(12)],
            4 => [&[0xff; 3][..], &[rng.below(4) as u8]].concat(),
            5 => [&vec![0; rng.below(3)][..], &[rng.below(3) as u8]].concat(),
            // One byte more, or one byte less, than another key.
            6 if number > 0 => [&rng.choose(&keys).clone()[..], &[0]].concat(),
            7 if number > 0 => {
                let mut key = rng.choose(&keys).clone();
                key.pop();
                key
            }
            8 => format!("key-{number:05}").into_bytes(),
            9 => (number as u64).to_be_bytes().to_vec(),
            10 => [&shared[..], &[rng.below(256) as u8]].concat(),
            11 => [&shared[..], format!("{}", rng.below(count)).as_bytes()].concat(),
            12 => {
                let len = rng.below(30);
                rng.bytes(len)
            }
            _ => vec![rng.below(256) as u8],
        };
        if huge && number < 2 {
            // Long keys cost time with each job, so histories with few keys get shorter ones.
            let bytes = if count < 40 { 4 << 10 } else { 64 << 10 };
            key = vec![b'a' + number as u8; bytes];
        }
        key.truncate(64 << 10);
        keys.push(key);
    }
    keys.into_iter().map(Arc::from).collect()
}

/// Draws `count` operations.
pub fn operations(rng: &mut TestRng, count: usize, weights: &Weights) -> Vec<Op> {
    (0..count).map(|tag| Draw { rng, weights, tag: tag as u64 }.op()).collect()
}

struct Draw<'a> {
    rng: &'a mut TestRng,
    weights: &'a Weights,
    tag: u64,
}

impl Draw<'_> {
    fn keyspace(&mut self) -> usize {
        if self.weights.keyspaces { self.rng.below(KEYSPACES.len()) } else { 0 }
    }

    fn key(&mut self) -> usize {
        let keys = self.weights.keys;
        // Half of the operations use eight keys.
        if self.rng.is_true_with_percent(50) {
            self.rng.below(keys)
        } else {
            self.rng.below(keys.min(8))
        }
    }

    fn value(&mut self) -> Value {
        let longest = self.weights.value_bytes as usize
            * if self.rng.is_true_with_percent(1) { 20 } else { 1 };
        Value { tag: self.tag, bytes: self.rng.below(longest + 1) as u32 }
    }

    fn limit(&mut self) -> Limit {
        match self.rng.below(4) {
            0 => Limit::Open,
            1 => Limit::Past(self.key()),
            _ => Limit::At(self.key()),
        }
    }

    /// Draws the bounds of a range delete. Most are narrow, so that keys remain.
    fn deleted_range(&mut self) -> (Limit, Limit) {
        let (from, to) = (self.limit(), self.limit());
        let key = self.key();
        match self.rng.below(12) {
            0 => (from, to),
            1 => (Limit::At(key), Limit::At(key)),
            2 => (Limit::At(key), Limit::Past(key)),
            3 => (from, Limit::Past(0)),
            _ => {
                let other = self.key();
                (Limit::At(key.min(other)), Limit::Past(key.max(other)))
            }
        }
    }

    fn steps(&mut self) -> Vec<i8> {
        let turns = self.rng.below(5);
        (0..turns).map(|_| self.rng.below(13) as i8 - 6).collect()
    }

    fn writes(&mut self) -> Vec<Write> {
        let count = if self.rng.is_true_with_percent(3) { 80 } else { self.rng.below(6) };
        let mut write = |_| {
            let (keyspace, key) = (self.keyspace(), self.key());
            if self.weights.range_deletes && self.rng.is_true_with_percent(8) {
                let (from, to) = self.deleted_range();
                return Write::Range(keyspace, from, to);
            }
            let change = match self.rng.below(100) {
                0..25 => Change::Delete,
                25..60 => Change::Merge(self.value()),
                _ => Change::Put(self.value()),
            };
            Write::Key(keyspace, key, change)
        };
        (0..count).map(&mut write).collect()
    }

    fn snapshot(&mut self) -> usize {
        self.rng.below(8)
    }

    fn op(&mut self) -> Op {
        if self.rng.below(100) < self.weights.writes { self.write() } else { self.other() }
    }

    fn write(&mut self) -> Op {
        let (keyspace, key) = (self.keyspace(), self.key());
        match self.rng.below(100) {
            0..42 => {
                let sync = self.rng.is_true_with_percent(2);
                Op::Put { keyspace, key, value: self.value(), sync }
            }
            42..66 => {
                let sync = self.rng.is_true_with_percent(2);
                let count = if self.rng.is_true_with_percent(5) { self.rng.below(80) } else { 1 };
                let operands = (0..count).map(|_| self.value()).collect();
                Op::Merge { keyspace, key, operands, sync }
            }
            66..70 => {
                let append = self.rng.is_true_with_percent(85).then(|| self.value());
                Op::Update { keyspace, key, append, fetch: self.rng.is_true_with_percent(50) }
            }
            70..73 if self.weights.range_deletes => {
                let ((from, to), sync) = (self.deleted_range(), self.rng.is_true_with_percent(5));
                Op::DeleteRange { keyspace, from, to, sync }
            }
            73 if self.weights.range_deletes && self.rng.is_true_with_percent(10) => {
                Op::Clear { keyspace }
            }
            70..88 => Op::Delete { keyspace, key },
            88..96 => Op::Batch { writes: self.writes(), sync: self.rng.is_true_with_percent(5) },
            _ => {
                let snapshot = self.rng.is_true_with_percent(60).then(|| self.snapshot());
                Op::Guarded { snapshot, keyspace, key, writes: self.writes() }
            }
        }
    }

    fn other(&mut self) -> Op {
        let (keyspace, key) = (self.keyspace(), self.key());
        let weights = *self.weights;
        match self.rng.below(1000) {
            0..490 => Op::Get { keyspace, key },
            490..510 => {
                let snapshot = self.rng.is_true_with_percent(30).then(|| self.snapshot());
                let count = self.rng.below(9);
                Op::MultiGet { snapshot, keyspace, keys: (0..count).map(|_| self.key()).collect() }
            }
            510..520 => Op::Ends { keyspace },
            520..532 => {
                let (from, to) = (self.limit(), self.limit());
                Op::CompactRange { keyspace, from, to }
            }
            532..534 => Op::OperandsToTree { keyspace },
            534..540 if weights.keyspaces => Op::DropKeyspace { keyspace },
            540..545 if weights.reopens => Op::Checkpoint,
            545..550 if weights.reopens => Op::ReadOnly,
            550..650 => {
                let (from, to) = (self.limit(), self.limit());
                let limit = self.rng.is_true_with_percent(40).then(|| self.rng.below(40) as u64);
                Op::Range { keyspace, from, to, limit, steps: self.steps() }
            }
            650..670 => Op::Prefix { keyspace, key, bytes: self.rng.below(6) },
            670..700 if weights.snapshots => Op::Snapshot,
            700..770 if weights.snapshots => {
                Op::SnapshotGet { snapshot: self.snapshot(), keyspace, key }
            }
            770..790 if weights.snapshots => {
                let (from, to) = (self.limit(), self.limit());
                let (snapshot, steps) = (self.snapshot(), self.steps());
                Op::SnapshotRange { snapshot, keyspace, from, to, steps }
            }
            790..815 if weights.snapshots => Op::SnapshotDrop { snapshot: self.snapshot() },
            815..830 if weights.iterators => {
                let snapshot = self.rng.is_true_with_percent(30).then(|| self.snapshot());
                let (from, to) = (self.limit(), self.limit());
                Op::Iterator { keyspace, snapshot, from, to }
            }
            830..890 if weights.iterators => {
                Op::IteratorStep { iterator: self.snapshot(), steps: self.steps() }
            }
            890..905 if weights.iterators => Op::IteratorDrop { iterator: self.snapshot() },
            905..925 => Op::Flush,
            925..940 => Op::WaitIdle,
            940..955 => Op::Sync,
            955..963 if weights.keyspaces => {
                Op::Create { name: self.rng.below(KEYSPACES.len()), tuning: self.tuning() }
            }
            963..969 => Op::Tune { keyspace, tuning: self.tuning() },
            969..975 => Op::SetPolicy { keyspace, policy: Tuning::policy(self.rng) },
            975..977 => Op::DeleteAll { keyspace },
            977..980 => Op::CheckAll,
            980..986 if weights.reopens => Op::Close { opening: Opening::random(self.rng) },
            986..988 if weights.reopens => {
                let deletes = self.rng.below(4);
                let deletes = (0..deletes).map(|_| (self.keyspace(), self.key())).collect();
                let (bare, opening) = (Opening::random(self.rng), Opening::random(self.rng));
                Op::Bare { bare, deletes, opening }
            }
            988..993 if weights.reopens => Op::Drop { opening: Opening::random(self.rng) },
            993..1000 if weights.reopens => Op::Kill { opening: Opening::random(self.rng) },
            _ => Op::Get { keyspace, key },
        }
    }

    fn tuning(&mut self) -> Tuning {
        Tuning::random(self.rng)
    }
}
