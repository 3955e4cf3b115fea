//! Applies operations to a database and to its model, and compares the two.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use lsmx::compaction::Preset;
use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Durability, Error, EventListener, Keyspace, KeyspaceOptions, Options, PolicySpec, SeqNo,
    Snapshot, WriteBatch, verify,
};
use lsmx_testkit::merge_operator;

use super::ops::{Change, KEYSPACES, Limit, Op, Write};
use super::reached::{Events, Reached};
use super::tuning::MERGED_BYTES_MAX;
use super::walk::{State, Text, Walk, assert_value, between, within};
use super::{Opening, Tuning};

type Bytes = Arc<[u8]>;

/// Change of the model by a write.
enum Effect {
    Key(usize, Bytes, Change),
    Range(usize, (Bound<Bytes>, Bound<Bytes>)),
}

struct Held {
    snapshot: Snapshot,
    state: State,
    /// Keyspaces at that time. One may have been dropped since, and another created under its name.
    keyspaces: Vec<Option<Keyspace>>,
    clock: u64,
}

/// A database, its model, and its open snapshots and iterators.
pub struct World {
    keys: Vec<Bytes>,
    background: Background,
    seed: u64,
    disk: MemVfs,
    db: Option<Db>,
    keyspaces: Vec<Option<Keyspace>>,
    state: State,
    policies: Vec<String>,
    /// Whether each keyspace has an operand store.
    stored: Vec<bool>,
    snapshots: Vec<Held>,
    walks: Vec<Walk>,
    /// Number of operations. `written` has the last one that wrote a key.
    clock: u64,
    written: HashMap<(usize, Bytes), u64>,
    last_seq: SeqNo,
    pub events: Arc<Events>,
    pub reached: Reached,
    /// Hash of the schedule of each closed database.
    pub traces: Vec<u64>,
}

impl World {
    pub fn new(keys: Vec<Bytes>, background: Background, seed: u64, opening: &Opening) -> World {
        let mut state = vec![None; KEYSPACES.len()];
        state[0] = Some(Arc::default());
        let mut world = World {
            keys,
            background,
            seed,
            disk: MemVfs::new(),
            db: None,
            keyspaces: vec![None; KEYSPACES.len()],
            state,
            policies: vec![String::new(); KEYSPACES.len()],
            stored: vec![false; KEYSPACES.len()],
            snapshots: Vec::new(),
            walks: Vec::new(),
            clock: 0,
            written: HashMap::new(),
            last_seq: SeqNo::ZERO,
            events: Arc::default(),
            reached: Reached::default(),
            traces: Vec::new(),
        };
        let default = opening.tuning.policy.clone().unwrap_or_else(|| "leveled".to_owned());
        world.policies[0] = default;
        world.open(opening);
        world
    }

    pub fn disk(&self) -> &MemVfs {
        &self.disk
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("open between operations")
    }

    fn open(&mut self, opening: &Opening) {
        self.open_merging(opening, true);
    }

    fn open_merging(&mut self, opening: &Opening, merges: bool) {
        self.seed = self.seed.wrapping_add(1);
        let background = match self.background {
            Background::Stepped { workers, .. } => Background::Stepped { seed: self.seed, workers },
            other => other,
        };
        let listener = Arc::clone(&self.events) as Arc<dyn EventListener>;
        let options = opening.options(background, self.seed, merges, &self.stored);
        let options = options.listener(listener);
        let db = Db::open("db", options.vfs(Arc::new(self.disk.clone()))).unwrap();
        for (at, name) in KEYSPACES.iter().enumerate() {
            match &self.state[at] {
                None => {
                    assert!(matches!(
                        db.open_keyspace(name, None),
                        Err(Error::UnknownKeyspace { .. })
                    ));
                }
                Some(_) => {
                    let options = opening.keyspace_options(at, merges, self.stored[at]);
                    let keyspace = db.keyspace(name, options).unwrap();
                    self.stored[at] |= opening.tuning.store.is_some();
                    // Without a policy in the options, the keyspace keeps its own.
                    if let Some(policy) = &opening.tuning.policy {
                        self.policies[at].clone_from(policy);
                    }
                    assert_eq!(keyspace.options().policy.to_string(), self.policies[at]);
                    self.keyspaces[at] = Some(keyspace);
                }
            }
        }
        let snapshot = db.snapshot();
        assert!(snapshot.seq() >= self.last_seq, "numbers go back");
        self.db = Some(db);
    }

    /// Returns the index and the handle of an existing keyspace.
    fn keyspace(&self, wanted: usize) -> (usize, Keyspace) {
        let at = wanted % KEYSPACES.len();
        match &self.keyspaces[at] {
            Some(keyspace) => (at, keyspace.clone()),
            None => (0, self.keyspaces[0].clone().expect("the default keyspace")),
        }
    }

    fn key(&self, wanted: usize) -> Bytes {
        Arc::clone(&self.keys[wanted % self.keys.len()])
    }

    fn write_model(&mut self, keyspace: usize, key: Bytes, value: Option<Bytes>) {
        self.written.insert((keyspace, Arc::clone(&key)), self.clock);
        let map = Arc::make_mut(self.state[keyspace].as_mut().expect("it exists"));
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
    }

    fn delete_range_in_model(&mut self, keyspace: usize, bounds: &(Bound<Bytes>, Bound<Bytes>)) {
        let keys: Vec<Bytes> =
            self.keys.iter().filter(|key| within(bounds, key)).cloned().collect();
        let map = Arc::make_mut(self.state[keyspace].as_mut().expect("it exists"));
        for key in keys {
            self.reached.range_deleted += u64::from(map.remove(&key).is_some());
            self.written.insert((keyspace, key), self.clock);
        }
    }

    /// Returns the value in the model.
    fn model(&self, keyspace: usize, key: &Bytes) -> Option<&Bytes> {
        self.state[keyspace].as_ref().and_then(|map| map.get(key))
    }

    fn merge_model(&mut self, at: usize, key: Bytes, operand: &[u8]) {
        let base = self.model(at, &key).map(|base| &**base);
        let value =
            merge_operator(at, MERGED_BYTES_MAX).full_merge(&key, base, &[operand]).unwrap();
        self.write_model(at, key, value.map(Bytes::from));
        self.reached.operands += 1;
    }

    fn batch(&self, writes: &[Write]) -> (WriteBatch, Vec<Effect>) {
        let mut batch = WriteBatch::new();
        let mut effects = Vec::new();
        let mut single = 0;
        for write in writes {
            match *write {
                Write::Key(keyspace, key, change) => {
                    let ((at, keyspace), key) = (self.keyspace(keyspace), self.key(key));
                    match change {
                        Change::Put(value) => batch.put(&keyspace, &key, value.to_bytes()),
                        Change::Delete => batch.delete(&keyspace, &key),
                        Change::Merge(operand) => {
                            batch.merge(&keyspace, &key, operand.to_bytes());
                        }
                    }
                    single += 1;
                    effects.push(Effect::Key(at, key, change));
                }
                Write::Range(keyspace, from, to) => {
                    let ((at, keyspace), bounds) = (self.keyspace(keyspace), self.bounds(from, to));
                    batch.delete_range::<Bytes>(&keyspace, bounds.clone());
                    effects.push(Effect::Range(at, bounds));
                }
            }
        }
        // A batch ignores empty ranges.
        assert!((single..=writes.len()).contains(&batch.len()));
        (batch, effects)
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Key(at, key, change) => match change {
                    Change::Put(value) => self.write_model(at, key, Some(value.to_bytes())),
                    Change::Delete => self.write_model(at, key, None),
                    Change::Merge(operand) => self.merge_model(at, key, &operand.to_bytes()),
                },
                Effect::Range(at, bounds) => self.delete_range_in_model(at, &bounds),
            }
        }
    }

    /// Applies an operation to the database and to the model.
    pub fn play(&mut self, op: &Op) {
        self.clock += 1;
        self.reached.operations += 1;
        match op {
            Op::Put { keyspace, key, value, sync } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                let value = value.to_bytes();
                match (sync, at) {
                    (true, _) => {
                        keyspace.with_write_options(Durability::Sync).put(&key, &value).unwrap()
                    }
                    (false, 0) => self.db().put(&key, &value).unwrap(),
                    (false, _) => keyspace.put(&key, &value).unwrap(),
                }
                self.write_model(at, key, Some(value));
            }
            Op::Delete { keyspace, key } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                keyspace.delete(&key).unwrap();
                self.write_model(at, key, None);
            }
            Op::Merge { keyspace, key, operands, sync } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                for operand in operands {
                    let operand = operand.to_bytes();
                    match (sync, at) {
                        (true, _) => keyspace
                            .with_write_options(Durability::Sync)
                            .merge(&key, &operand)
                            .unwrap(),
                        (false, 0) => self.db().default_keyspace().merge(&key, &operand).unwrap(),
                        (false, _) => keyspace.merge(&key, &operand).unwrap(),
                    }
                    self.merge_model(at, Arc::clone(&key), &operand);
                }
            }
            Op::Update { keyspace, key, append, fetch } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                let append = append.map(super::ops::Value::to_bytes);
                let change = |old: Option<&[u8]>| {
                    append.as_deref().map(|append| [old.unwrap_or_default(), append].concat())
                };
                let before = self.model(at, &key).cloned();
                let after = change(before.as_deref()).map(Bytes::from);
                let (returned, expected) = match fetch {
                    true => (keyspace.fetch_update(&key, change), &before),
                    false => (keyspace.update_fetch(&key, change), &after),
                };
                assert_eq!(returned.unwrap().as_deref(), expected.as_deref());
                self.write_model(at, key, after);
                self.reached.updates += 1;
            }
            Op::Batch { writes, sync } => {
                let (batch, changes) = self.batch(writes);
                let durability = if *sync { Durability::Sync } else { Durability::Buffered };
                self.db().write(batch, durability).unwrap();
                self.apply(changes);
            }
            Op::DeleteRange { keyspace, from, to, sync } => {
                let ((at, keyspace), bounds) = (self.keyspace(*keyspace), self.bounds(*from, *to));
                match (sync, at) {
                    (true, _) => keyspace
                        .with_write_options(Durability::Sync)
                        .delete_range::<Bytes>(bounds.clone())
                        .unwrap(),
                    (false, 0) => {
                        self.db().default_keyspace().delete_range::<Bytes>(bounds.clone()).unwrap()
                    }
                    (false, _) => keyspace.delete_range::<Bytes>(bounds.clone()).unwrap(),
                }
                self.delete_range_in_model(at, &bounds);
            }
            Op::Clear { keyspace } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                keyspace.clear().unwrap();
                assert_eq!(keyspace.iter().count(), 0);
                self.delete_range_in_model(at, &(Bound::Unbounded, Bound::Unbounded));
            }
            Op::Guarded { snapshot, keyspace, key, writes } => {
                self.guarded(*snapshot, *keyspace, *key, writes);
            }
            Op::Get { keyspace, key } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                let found = match at {
                    0 => self.db().get(&key),
                    _ => keyspace.get(&key),
                };
                assert_value(found, &self.state, at, &key);
            }
            Op::MultiGet { snapshot, keyspace, keys } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                let keys: Vec<Bytes> = keys.iter().map(|key| self.key(*key)).collect();
                let held = snapshot.and_then(|snapshot| self.held(snapshot, &keyspace));
                let (found, state, at) = match &held {
                    Some((held, at, keyspace)) => {
                        (held.snapshot.multi_get(keyspace, &keys), &held.state, *at)
                    }
                    None => (keyspace.multi_get(&keys), &self.state, at),
                };
                for (found, key) in found.unwrap().into_iter().zip(&keys) {
                    assert_value(Ok(found), state, at, key);
                }
            }
            Op::Ends { keyspace } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                let mut left = between(&self.state, at, &(Bound::Unbounded, Bound::Unbounded));
                let ends =
                    [(keyspace.first(), left.front().cloned()), (keyspace.last(), left.pop_back())];
                for (found, model) in ends {
                    Walk::compare(found.transpose(), model);
                }
            }
            Op::CompactRange { keyspace, from, to } => {
                let (_, keyspace) = self.keyspace(*keyspace);
                keyspace.compact_range::<Bytes>(self.bounds(*from, *to)).unwrap();
            }
            Op::DropKeyspace { keyspace } => self.drop_keyspace(*keyspace),
            Op::OperandsToTree { keyspace } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                match keyspace.operands_to_tree() {
                    Ok(()) => self.reached.brought_back += u64::from(self.stored[at]),
                    Err(Error::SnapshotsHeld { .. }) if self.holds_snapshots() => return,
                    Err(error) => panic!("operands to the tree: {error}"),
                }
                self.stored[at] = false;
            }
            Op::Checkpoint => {
                let path = format!("copy-{}", self.clock);
                self.db().checkpoint(&path).unwrap();
                // Before an open changes the files.
                let disk: Arc<dyn Vfs> = Arc::new(self.disk.crash(CrashImage::Keep, self.clock));
                self.compare_copy(&Db::open(&path, self.copy_options().vfs(disk)).unwrap());
            }
            Op::ReadOnly => {
                let disk = self.disk.crash(CrashImage::Keep, self.clock);
                let before = disk.snapshot_all();
                let vfs = Arc::new(disk.clone());
                let copy = Db::open("db", self.copy_options().read_only(true).vfs(vfs)).unwrap();
                self.compare_copy(&copy);
                assert!(disk.snapshot_all() == before, "a reader has changed a file");
            }
            Op::Range { keyspace, from, to, limit, steps } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                let bounds = self.bounds(*from, *to);
                let range = keyspace.range::<Bytes>(bounds.clone());
                let mut walk = Walk::new(range, between(&self.state, at, &bounds));
                if let Some(limit) = limit {
                    walk = walk.limit(*limit);
                }
                self.reached.turns += walk.steps(steps);
                walk.finish();
            }
            Op::Prefix { keyspace, key, bytes } => {
                let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                let prefix = &key[..key.len().min(*bytes)];
                let mut left = between(&self.state, at, &(Bound::Unbounded, Bound::Unbounded));
                left.retain(|(key, _)| key.starts_with(prefix));
                Walk::new(keyspace.prefix(prefix), left).finish();
            }
            Op::Snapshot => {
                if self.snapshots.len() < 6 {
                    self.hold_snapshot();
                }
            }
            Op::SnapshotGet { snapshot, keyspace, key } => {
                let ((_, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                if let Some((held, at, keyspace)) = self.held(*snapshot, &keyspace) {
                    assert_value(held.snapshot.get(&keyspace, &key), &held.state, at, &key);
                    self.reached.snapshot_reads += 1;
                }
            }
            Op::SnapshotRange { snapshot, keyspace, from, to, steps } => {
                let (_, keyspace) = self.keyspace(*keyspace);
                let bounds = self.bounds(*from, *to);
                if let Some((held, at, keyspace)) = self.held(*snapshot, &keyspace) {
                    let range = held.snapshot.range::<Bytes>(&keyspace, bounds.clone());
                    let mut walk = Walk::new(range, between(&held.state, at, &bounds));
                    walk.steps(steps);
                    walk.finish();
                    self.reached.snapshot_reads += 1;
                }
            }
            Op::SnapshotDrop { snapshot } => {
                if !self.snapshots.is_empty() {
                    self.snapshots.swap_remove(*snapshot % self.snapshots.len());
                }
            }
            Op::Iterator { keyspace, snapshot, from, to } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                let bounds = self.bounds(*from, *to);
                let held = snapshot.and_then(|snapshot| self.held(snapshot, &keyspace));
                let walk = match held {
                    Some((held, at, keyspace)) => Walk::new(
                        held.snapshot.range::<Bytes>(&keyspace, bounds.clone()),
                        between(&held.state, at, &bounds),
                    ),
                    None => Walk::new(
                        keyspace.range::<Bytes>(bounds.clone()),
                        between(&self.state, at, &bounds),
                    ),
                };
                if self.walks.len() < 6 {
                    self.walks.push(walk);
                }
            }
            Op::IteratorStep { iterator, steps } => {
                if !self.walks.is_empty() {
                    let at = *iterator % self.walks.len();
                    self.reached.turns += self.walks[at].steps(steps);
                }
            }
            Op::IteratorDrop { iterator } => {
                if !self.walks.is_empty() {
                    self.walks.swap_remove(*iterator % self.walks.len()).finish();
                }
            }
            Op::Flush => {
                self.db().flush().unwrap();
                let metrics = self.db().metrics();
                let sealed = |keyspace: &lsmx::metrics::KeyspaceMetrics| keyspace.memtables_sealed;
                assert!(metrics.keyspaces.values().all(|keyspace| sealed(keyspace) == 0));
            }
            Op::WaitIdle => self.db().wait_idle().unwrap(),
            Op::Sync => self.db().sync().unwrap(),
            Op::Create { name, tuning } | Op::Tune { keyspace: name, tuning } => {
                let create = matches!(op, Op::Create { .. });
                self.tune(*name, tuning, create);
            }
            Op::SetPolicy { keyspace, policy } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                keyspace.set_policy(policy.parse::<PolicySpec>().unwrap()).unwrap();
                self.note_policy(at, policy);
                assert_eq!(self.keyspace(at).1.options().policy.to_string(), self.policies[at]);
            }
            Op::DeleteAll { keyspace } => {
                let (at, keyspace) = self.keyspace(*keyspace);
                let keys: Vec<Bytes> =
                    self.state[at].iter().flat_map(|map| map.keys().cloned()).collect();
                for key in keys {
                    keyspace.delete(&key).unwrap();
                    self.write_model(at, key, None);
                }
                assert_eq!(keyspace.iter().count(), 0);
            }
            Op::CheckAll => self.check_all(),
            Op::Close { opening } => {
                self.close();
                self.open(opening);
            }
            Op::Drop { opening } => {
                self.let_go();
                self.open(opening);
            }
            Op::Bare { bare, deletes, opening } => {
                self.close();
                self.open_merging(bare, false);
                self.live_without_operators(deletes);
                self.close();
                self.open(opening);
            }
            Op::Kill { opening } => {
                let image = self.disk.crash(CrashImage::Keep, self.seed);
                self.walks.clear();
                self.let_go();
                self.reached.kills += 1;
                self.disk = image;
                self.open(opening);
            }
        }
    }

    /// Opens the database without merge operators. Merges fail, reads are correct or fail, jobs continue.
    fn live_without_operators(&mut self, deletes: &[(usize, usize)]) {
        for round in 0..2 {
            for at in 0..KEYSPACES.len() {
                let Some(keyspace) = self.keyspaces[at].clone() else { continue };
                let refused = keyspace.merge("k", "v");
                assert!(matches!(refused, Err(Error::NoMergeOperator { .. })), "{refused:?}");
                for key in self.keys.clone() {
                    match keyspace.get(&key) {
                        Ok(found) => {
                            let found = found.as_deref().map(Text);
                            assert_eq!(found, self.model(at, &key).map(|value| Text(value)));
                        }
                        Err(Error::NoMergeOperator { .. }) => self.reached.unfolded += 1,
                        Err(error) => panic!("without an operator: {error}"),
                    }
                }
            }
            if round == 0 {
                for (keyspace, key) in deletes {
                    let ((at, keyspace), key) = (self.keyspace(*keyspace), self.key(*key));
                    keyspace.delete(&key).unwrap();
                    assert!(keyspace.get(&key).unwrap().is_none(), "a base makes it readable");
                    self.write_model(at, key, None);
                }
                self.db().flush().unwrap();
                self.db().wait_idle().unwrap();
            }
        }
        self.reached.bare_lives += 1;
    }

    fn tune(&mut self, name: usize, tuning: &Tuning, create: bool) {
        let name = if create { name } else { self.keyspace(name).0 };
        let at = name % KEYSPACES.len();
        let existed = self.state[at].is_some();
        // An open keyspace keeps its operator.
        let given = tuning.options_with_store(false);
        let options = match existed && create {
            true => given,
            false => given.merge_operator(merge_operator(at, MERGED_BYTES_MAX)),
        };
        let keyspace = self.db().keyspace(KEYSPACES[at], options).unwrap();
        self.stored[at] = tuning.store.is_some() || (existed && self.stored[at]);
        let other = tuning.options().merge_operator(merge_operator(at + 1, MERGED_BYTES_MAX));
        let refused = self.db().keyspace(KEYSPACES[at], other).map(drop);
        assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
        assert_eq!(keyspace.name(), KEYSPACES[at]);
        match &tuning.policy {
            Some(policy) if existed => self.note_policy(at, policy),
            Some(policy) => self.policies[at].clone_from(policy),
            None if existed => {}
            None => self.policies[at] = "leveled".to_owned(),
        }
        assert_eq!(keyspace.options().policy.to_string(), self.policies[at]);
        self.state[at].get_or_insert_with(Arc::default);
        self.keyspaces[at] = Some(keyspace);
    }

    /// Records the change of a policy.
    fn note_policy(&mut self, at: usize, policy: &str) {
        let preset = |text: &str| text.parse::<PolicySpec>().ok()?.preset();
        let index = |preset| Preset::ALL.iter().position(|known| Some(*known) == preset);
        if let (Some(old), Some(new)) = (index(preset(&self.policies[at])), index(preset(policy))) {
            self.reached.took_over[old] |= 1 << new;
        }
        policy.clone_into(&mut self.policies[at]);
    }

    fn drop_keyspace(&mut self, wanted: usize) {
        let at = wanted % KEYSPACES.len();
        let dropped = self.db().drop_keyspace(KEYSPACES[at]);
        match (at, self.keyspaces[at].take()) {
            (0, default) => {
                assert!(matches!(dropped, Err(Error::DefaultKeyspace)));
                self.keyspaces[0] = default;
            }
            (_, None) => assert!(matches!(dropped, Err(Error::UnknownKeyspace { .. }))),
            (_, Some(keyspace)) => {
                dropped.unwrap();
                assert!(matches!(keyspace.get("k"), Err(Error::KeyspaceDropped { .. })));
                assert!(matches!(keyspace.put("k", "v"), Err(Error::KeyspaceDropped { .. })));
                self.state[at] = None;
                self.stored[at] = false;
                self.written.retain(|(keyspace, _), _| *keyspace != at);
                self.reached.dropped += 1;
            }
        }
    }

    /// Returns options that keep the settings of a copied database.
    fn copy_options(&self) -> Options {
        Options::default()
            .background(Background::Inline)
            .seed(self.seed)
            .keyspace_defaults(self.copy_keyspace_options(0))
    }

    /// Returns options that keep the settings of a keyspace, with its merge operator and its operand store.
    fn copy_keyspace_options(&self, at: usize) -> KeyspaceOptions {
        let options =
            KeyspaceOptions::default().merge_operator(merge_operator(at, MERGED_BYTES_MAX));
        match self.stored[at] {
            true => {
                options.operand_store(lsmx_testkit::simple_store::SimpleStore::default().or_delta())
            }
            false => options,
        }
    }

    /// Compares a copy of the database with the model.
    fn compare_copy(&mut self, db: &Db) {
        for (at, name) in KEYSPACES.iter().enumerate() {
            match (&self.state[at], db.open_keyspace(name, None)) {
                (None, Err(Error::UnknownKeyspace { .. })) => {}
                (Some(_), Ok(_)) => {
                    let keyspace = db.keyspace(name, self.copy_keyspace_options(at)).unwrap();
                    let all = (Bound::Unbounded, Bound::Unbounded);
                    let left = between(&self.state, at, &all);
                    Walk::new(keyspace.iter(), left).finish();
                }
                (model, copy) => panic!("{name}: {:?}, copy {copy:?}", model.is_some()),
            }
        }
        self.reached.copies += 1;
    }

    fn hold_snapshot(&mut self) {
        let snapshot = self.db().snapshot();
        assert!(snapshot.seq() >= self.last_seq, "numbers go back");
        self.last_seq = snapshot.seq();
        let state = self.state.clone();
        let keyspaces = self.keyspaces.clone();
        self.snapshots.push(Held { snapshot, state, keyspaces, clock: self.clock });
    }

    /// Returns a held snapshot and the keyspace at its time.
    fn held(&self, wanted: usize, keyspace: &Keyspace) -> Option<(&Held, usize, Keyspace)> {
        let count = self.snapshots.len();
        let held = (count > 0).then(|| &self.snapshots[wanted % count])?;
        let at = KEYSPACES.iter().position(|name| *name == keyspace.name())?;
        // A keyspace dropped since needs its old handle; one created since is empty.
        let keyspace = held.keyspaces[at].clone().unwrap_or_else(|| keyspace.clone());
        Some((held, at, keyspace))
    }

    fn guarded(&mut self, snapshot: Option<usize>, keyspace: usize, key: usize, writes: &[Write]) {
        let ((guarded, keyspace), key) = (self.keyspace(keyspace), self.key(key));
        let (mut batch, changes) = self.batch(writes);
        let held = snapshot.and_then(|wanted| self.held(wanted, &keyspace));
        let (read, clock) = match held {
            Some((held, ..)) => (held.snapshot.seq(), held.clock),
            None => (self.db().snapshot().seq(), self.clock),
        };
        batch.guard(&keyspace, &key, read);
        let written = self.written.get(&(guarded, Arc::clone(&key))).copied().unwrap_or(0);
        match self.db().write(batch, Durability::Buffered) {
            Ok(()) => {
                assert!(written <= clock, "a guard held though its key was written since");
                self.apply(changes);
                self.reached.guards_held += 1;
            }
            Err(Error::GuardRefused { read: named, key: named_key, .. }) => {
                assert_eq!((named, &named_key[..]), (read.0, &key[..]));
                assert!(
                    written > clock,
                    "a guard was refused though its key was not written since"
                );
                self.reached.guards_refused += 1;
            }
            Err(Error::GuardUnknown { read: named, .. }) => {
                assert_eq!(named, read.0);
                // Old snapshots may be older than the known history, a new one is not.
                assert!(clock < self.clock, "a fresh guard was not decided");
                self.reached.guards_refused += 1;
            }
            Err(error) => panic!("a guarded write failed: {error}"),
        }
    }

    fn bounds(&self, from: Limit, to: Limit) -> (Bound<Bytes>, Bound<Bytes>) {
        let bound = |limit| match limit {
            Limit::Open => Bound::Unbounded,
            Limit::At(key) => Bound::Included(self.key(key)),
            Limit::Past(key) => Bound::Excluded(self.key(key)),
        };
        (bound(from), bound(to))
    }

    /// Compares all contents: scans in both directions and lookups.
    pub fn check_all(&mut self) {
        for (at, keyspace) in self.keyspaces.iter().enumerate() {
            let Some(keyspace) = keyspace else { continue };
            let all = (Bound::Unbounded, Bound::Unbounded);
            Walk::new(keyspace.iter(), between(&self.state, at, &all)).finish();
            let mut backward = Walk::new(keyspace.iter(), between(&self.state, at, &all));
            while backward.step_back() {}
            for key in &self.keys {
                assert_value(keyspace.get(key), &self.state, at, key);
            }
        }
        for held in &self.snapshots {
            let all = (Bound::Unbounded, Bound::Unbounded);
            for (at, keyspace) in held.keyspaces.iter().enumerate() {
                let Some(keyspace) = keyspace else { continue };
                let range = held.snapshot.iter(keyspace);
                Walk::new(range, between(&held.state, at, &all)).finish();
            }
        }
    }

    /// Returns whether a snapshot or an iterator of one is held.
    fn holds_snapshots(&self) -> bool {
        self.db().metrics().snapshots > 0
    }

    fn count_work(&mut self) {
        for keyspace in self.db().metrics().keyspaces.values() {
            self.reached.flushes += keyspace.flushes;
            self.reached.merges += keyspace.compaction.jobs;
            self.reached.divided += keyspace.compaction.jobs_divided;
            self.reached.helped += keyspace.compaction.parts_helped;
            self.reached.moves += keyspace.compaction.trivial_moves;
            self.reached.drops += keyspace.compaction.drops;
            let store = keyspace.operand_store.unwrap_or_default();
            self.reached.operands_in_stores += store.operands;
            self.reached.anchors += store.anchors;
            self.reached.collected += store.to_tree;
            self.reached.folded_by_reads += keyspace.merges.reads.operands;
            self.reached.folded_by_jobs += keyspace.merges.jobs.operands;
            self.reached.collections += keyspace.value_log.rewrites;
            assert_eq!(keyspace.merges.failures, 0);
        }
        self.reached.reopenings += 1;
    }

    fn close(&mut self) {
        self.count_work();
        let db = self.db.take().expect("open between operations");
        db.close(None).unwrap();
        self.traces.push(db.env().trace_hash());
        assert!(matches!(db.put("k", "v"), Err(Error::Closed)));
        assert!(matches!(db.get("k"), Err(Error::Closed)));
        assert!(matches!(db.flush(), Err(Error::Closed)));
        assert!(matches!(db.default_keyspace().iter().next(), Some(Err(Error::Closed))));
        for held in self.snapshots.drain(..) {
            assert!(matches!(held.snapshot.get(&db.default_keyspace(), "k"), Err(Error::Closed)));
        }
        self.keyspaces.fill(None);
        // Open iterators stay readable after a close.
        for walk in &mut self.walks {
            walk.steps(&[2, -2]);
            self.reached.iterators_over_closes += 1;
        }
    }

    /// Drops all handles except iterators.
    fn let_go(&mut self) {
        self.count_work();
        self.snapshots.clear();
        self.keyspaces.fill(None);
        let env = self.db().env().clone();
        self.db = None;
        self.traces.push(env.trace_hash());
        self.reached.iterators_over_closes += self.walks.len() as u64;
    }

    /// Compares all contents, closes, verifies the files, reopens and compares again.
    pub fn end(&mut self, opening: &Opening) {
        self.check_all();
        for mut walk in self.walks.drain(..) {
            walk.steps(&[3, -3]);
            walk.finish();
        }
        self.snapshots.clear();
        self.close();
        let report = verify(
            "db",
            &lsmx_testkit::simple_store::all_stores()
                .iter()
                .cloned()
                .fold(Options::default().vfs(Arc::new(self.disk.clone())), Options::operand_store),
        )
        .unwrap();
        let mut orphans = report.orphans;
        orphans.retain(|orphan| !lsmx_testkit::simple_store::may_be_orphan(orphan));
        assert_eq!(orphans, Vec::<std::path::PathBuf>::new());
        assert_eq!(report.wal_tail_bytes, 0);
        self.open(opening);
        self.check_all();
        self.let_go();
    }
}
