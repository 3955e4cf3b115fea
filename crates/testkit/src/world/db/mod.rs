//! Applies operations to a database and to its model, and compares the two.

mod ingest;
mod maintenance;
mod observation;
mod reads;
mod restart;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::vfs::MemVfs;
use lsmx::{
    Db, Durability, Error, Keyspace, KeyspaceOptions, PolicySpec, SeqNo, Snapshot, Update,
    WriteBatch,
};

use self::observation::ObservationState;
use super::change::{Bounds, Bytes, Change, Pairs, is_within, system_time};
use super::checked_range::CheckedRange;
use super::compare::{compare_keyspace, compare_pairs, compare_transaction, compare_value};
use super::counts::CaseCounts;
use super::operations::{
    HOUR_US, KEYSPACES, Limit, Operation, Place, Span, TransactionKind, UpdateWrite,
    WITHOUT_OPERANDS, Write, time_to_live,
};
use super::settings::{DbSettings, KeyspaceSettings};
use crate::EventLog;
use crate::merge_operators::merge_operator;
use crate::simple_store::SimpleStore;

/// Maximum length of merged values, for keyspaces whose merge operator has a limit.
const MERGED_BYTES_MAX: usize = 600;
/// Maximum number of open snapshots, and maximum number of open iterators.
const HELD_MAX: usize = 6;
/// Maximum time for which a locking transaction waits for a key. No other transaction holds a lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// Contents of all keyspaces. `None` for a keyspace that does not exist.
type Contents = Vec<Option<Arc<Pairs>>>;

/// A value that expires, and the merge operands that are newer than the value, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExpiringValue {
    expiry_us: u64,
    operands: Vec<Bytes>,
}

/// For each keyspace, the keys whose newest value expires.
type ExpiringKeys = Vec<BTreeMap<Bytes, ExpiringValue>>;

/// Removes expired values from the contents and returns their number. Keeps the merge operands that are newer than an
/// expired value.
fn expire_values(
    contents: &mut Contents,
    expiring: &mut ExpiringKeys,
    operator_indexes: &[usize],
    now_us: u64,
) -> u64 {
    let mut count = 0;
    for (index, (pairs, expiring)) in contents.iter_mut().zip(expiring).enumerate() {
        let is_expired = |(_, value): &(&Bytes, &ExpiringValue)| value.expiry_us <= now_us;
        let expired = expiring.iter().filter(is_expired).map(|(key, _)| Arc::clone(key));
        let expired: Vec<Bytes> = expired.collect();
        let Some(pairs) = pairs.as_mut().filter(|_| !expired.is_empty()) else { continue };
        let pairs = Arc::make_mut(pairs);
        count += expired.len() as u64;
        for key in expired {
            pairs.remove(&key);
            let operands = expiring.remove(&key).map(|value| value.operands);
            for operand in operands.unwrap_or_default() {
                let operator = operators(operator_indexes[index]);
                Change::Merge(Arc::clone(&key), operand).apply(pairs, &*operator);
            }
        }
    }
    count
}

struct HeldSnapshot {
    snapshot: Snapshot,
    contents: Contents,
    /// Keyspaces that existed when the snapshot was taken. A keyspace may since have been dropped and created again
    /// with the same name.
    keyspaces: Vec<Option<Keyspace>>,
    /// Number of operations before the snapshot.
    clock: u64,
}

/// A database, its model, and its open snapshots and iterators.
pub(super) struct ModelledDb {
    keys: Vec<Bytes>,
    background: Background,
    seed: u64,
    pub(super) disk: MemVfs,
    /// `None` while the database is closed.
    db: Option<Db>,
    keyspaces: Vec<Option<Keyspace>>,
    /// Current name of each keyspace. A keyspace that does not exist has a name too.
    names: Vec<&'static str>,
    /// Index of the merge operator of each keyspace. [`WITHOUT_OPERANDS`] stands for no merge operator and no operand
    /// store. A clone has the operator of its source.
    operator_indexes: Vec<usize>,
    contents: Contents,
    expiring: ExpiringKeys,
    /// Current hour of the database clock, counted from 0.
    hour: u64,
    /// Contents after the last sync and after each later commit, oldest first. `None` if the history has no power loss.
    unsynced: Option<Vec<(Contents, ExpiringKeys)>>,
    policies: Vec<String>,
    has_store: Vec<bool>,
    /// Default time to live of each keyspace.
    default_ttls: Vec<Option<Duration>>,
    observation: ObservationState,
    snapshots: Vec<HeldSnapshot>,
    iterators: Vec<CheckedRange>,
    /// `clock` is the number of operations so far. `written` is the `clock` of the last write of each key in each
    /// keyspace.
    clock: u64,
    written: HashMap<(usize, Bytes), u64>,
    seq_largest: SeqNo,
    pub(super) events: EventLog,
    pub(super) counts: CaseCounts,
    /// Hash of the thread schedule, for each database that was closed.
    pub(super) traces: Vec<u64>,
}

fn operators(index: usize) -> Arc<dyn lsmx::MergeOperator> {
    merge_operator(index, MERGED_BYTES_MAX)
}

impl ModelledDb {
    /// Creates a database. If `has_power_loss` is true, keeps the contents that a power loss may restore.
    pub(super) fn new(
        keys: Vec<Bytes>,
        background: Background,
        seed: u64,
        settings: &DbSettings,
        has_power_loss: bool,
    ) -> ModelledDb {
        let mut contents = vec![None; KEYSPACES.len()];
        contents[0] = Some(Arc::default());
        let expiring = vec![BTreeMap::new(); KEYSPACES.len()];
        let mut db = ModelledDb {
            keys,
            background,
            seed,
            disk: MemVfs::new(),
            db: None,
            keyspaces: vec![None; KEYSPACES.len()],
            names: KEYSPACES.to_vec(),
            operator_indexes: (0..KEYSPACES.len()).collect(),
            unsynced: has_power_loss.then(|| vec![(contents.clone(), expiring.clone())]),
            contents,
            expiring,
            hour: 0,
            policies: vec!["leveled".to_owned(); KEYSPACES.len()],
            has_store: vec![false; KEYSPACES.len()],
            default_ttls: vec![None; KEYSPACES.len()],
            observation: ObservationState::default(),
            snapshots: Vec::new(),
            iterators: Vec::new(),
            clock: 0,
            written: HashMap::new(),
            seq_largest: SeqNo::ZERO,
            events: EventLog::default(),
            counts: CaseCounts::default(),
            traces: Vec::new(),
        };
        db.open(settings, true);
        db
    }

    pub(super) fn db(&self) -> &Db {
        self.db.as_ref().expect("open between operations")
    }

    /// Opens the database. The options of each keyspace contain its operand store. For even seeds, the options of the
    /// database contain a store too.
    fn open(&mut self, settings: &DbSettings, has_operators: bool) {
        self.seed = self.seed.wrapping_add(1);
        let background = match self.background {
            Background::Stepped { workers, .. } => Background::Stepped { seed: self.seed, workers },
            other => other,
        };
        let keyspace_options = |(index, has_store): (usize, &bool)| {
            let settings = self.supported_settings(index, &settings.keyspaces);
            let options = settings.options_with_store(*has_store).default_ttl(settings.default_ttl);
            if has_operators { self.add_operator(index, options) } else { options }
        };
        let keyspaces: Vec<_> = self.has_store.iter().enumerate().map(keyspace_options).collect();
        let mut options = settings
            .options(background, self.seed)
            .keyspace_defaults(keyspaces[0].clone())
            .listener(Arc::new(self.events.clone()));
        if self.seed.is_multiple_of(2) {
            options = options.operand_store(SimpleStore::default().or_delta());
        }
        let db = Db::open("db", options.vfs(Arc::new(self.disk.clone()))).unwrap();
        self.observation =
            ObservationState::new(settings.latency_sampling, settings.metrics_file, background);
        self.advance_clock_of(&db);
        for (index, (name, options)) in self.names.clone().into_iter().zip(keyspaces).enumerate() {
            if self.contents[index].is_none() {
                let missing = db.open_keyspace(name, None);
                assert!(matches!(missing, Err(Error::UnknownKeyspace { .. })));
                continue;
            }
            let opened = db.keyspace(name, options).unwrap();
            if let Some(policy) = &settings.keyspaces.policy {
                self.policies[index].clone_from(policy);
            }
            assert_eq!(opened.options().policy.to_string(), self.policies[index]);
            let supported = self.supported_settings(index, &settings.keyspaces);
            self.note_default_ttl(index, &opened, supported.default_ttl);
            self.has_store[index] |= supported.store.is_some();
            self.keyspaces[index] = Some(opened);
        }
        assert!(db.snapshot().seq() >= self.seq_largest, "sequence numbers go back");
        self.db = Some(db);
    }

    /// Advances the clock of a newly opened database to the start of the current hour.
    fn advance_clock_of(&self, db: &Db) {
        let now_us = db.env().now_us();
        db.env().advance_us((self.hour * HOUR_US).saturating_sub(now_us));
    }

    /// Removes expired values from the model if a new hour has begun. The clock also advances while jobs wait.
    fn expire_model_values(&mut self) {
        let now_us = self.db().env().now_us();
        if now_us < (self.hour + 1) * HOUR_US {
            return;
        }
        self.hour = now_us / HOUR_US;
        let indexes = &self.operator_indexes;
        let count = expire_values(&mut self.contents, &mut self.expiring, indexes, now_us);
        self.counts.expired_values += count;
    }

    /// Returns the merge operator of a keyspace. Returns an unused operator for a keyspace without a merge operator.
    fn operator(&self, index: usize) -> Arc<dyn lsmx::MergeOperator> {
        operators(self.operator_indexes[index])
    }

    /// Returns whether the keyspace has a merge operator, and may have an operand store.
    fn has_operands(&self, index: usize) -> bool {
        self.operator_indexes[index] != WITHOUT_OPERANDS
    }

    /// Adds the merge operator of a keyspace to its options, if the keyspace has one.
    fn add_operator(&self, index: usize, options: KeyspaceOptions) -> KeyspaceOptions {
        match self.has_operands(index) {
            true => options.merge_operator(self.operator(index)),
            false => options,
        }
    }

    /// Returns the settings without the default time to live, or without the operand store if the keyspace has no merge
    /// operator. A system clock has no default time to live, because the model cannot advance this clock.
    fn supported_settings(&self, index: usize, settings: &KeyspaceSettings) -> KeyspaceSettings {
        let has_operands = self.has_operands(index);
        let has_ttl = !has_operands && !matches!(self.background, Background::Threads { .. });
        KeyspaceSettings {
            store: settings.store.filter(|_| has_operands),
            default_ttl: settings.default_ttl.filter(|_| has_ttl),
            ..settings.clone()
        }
    }

    /// Records the default time to live of a keyspace, and compares it with the options in force.
    fn note_default_ttl(&mut self, index: usize, keyspace: &Keyspace, ttl: Option<Duration>) {
        assert_eq!(keyspace.options().default_ttl, ttl);
        self.default_ttls[index] = ttl;
    }

    /// Returns the expiry time for the model of a value that is written now with a time to live.
    fn expiry_us(&self, ttl: Duration) -> u64 {
        let hours = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX) / HOUR_US;
        (self.hour + 1 + hours) * HOUR_US
    }

    /// Returns the index and the handle of an existing keyspace.
    fn keyspace(&self, index: usize) -> (usize, Keyspace) {
        let index = index % KEYSPACES.len();
        match &self.keyspaces[index] {
            Some(keyspace) => (index, keyspace.clone()),
            None => (0, self.keyspaces[0].clone().expect("the default keyspace")),
        }
    }

    fn key(&self, index: usize) -> Bytes {
        Arc::clone(&self.keys[index % self.keys.len()])
    }

    fn place(&self, place: Place) -> (usize, Keyspace, Bytes) {
        let (index, keyspace) = self.keyspace(place.keyspace);
        (index, keyspace, self.key(place.key))
    }

    fn span(&self, span: Span) -> (usize, Keyspace, Bounds) {
        let bound = |limit| match limit {
            Limit::Open => Bound::Unbounded,
            Limit::At(key) => Bound::Included(self.key(key)),
            Limit::Past(key) => Bound::Excluded(self.key(key)),
        };
        let (index, keyspace) = self.keyspace(span.keyspace);
        (index, keyspace, (bound(span.from), bound(span.to)))
    }

    /// Resolves the indexes of a write. Returns the index and the handle of its keyspace, and the change with its key
    /// and value.
    fn change(&self, write: Write) -> (usize, Keyspace, Change) {
        if let Write::DeleteRange(span) = write {
            let (index, keyspace, bounds) = self.span(span);
            return (index, keyspace, Change::DeleteRange(bounds));
        }
        let (Write::Put(place, _)
        | Write::PutUntil(place, ..)
        | Write::PutWithTtl(place, ..)
        | Write::Delete(place)
        | Write::Merge(place, _)) = write
        else {
            unreachable!("all other writes")
        };
        let (index, keyspace, key) = self.place(place);
        let change = match write {
            Write::PutUntil(_, value, hours) if !self.has_store[index] => {
                let expiry_us = (self.hour + 1 + hours) * HOUR_US;
                Change::PutUntil(key, value.to_bytes(), expiry_us)
            }
            Write::PutWithTtl(_, value, hours)
                if !self.has_store[index]
                    && !matches!(self.background, Background::Threads { .. }) =>
            {
                let ttl = time_to_live(hours);
                Change::PutWithTtl(key, value.to_bytes(), ttl, self.expiry_us(ttl))
            }
            Write::Merge(_, operand) if self.has_operands(index) => {
                Change::Merge(key, operand.to_bytes())
            }
            Write::Put(_, value)
            | Write::PutUntil(_, value, _)
            | Write::PutWithTtl(_, value, _)
            | Write::Merge(_, value) => Change::Put(key, value.to_bytes()),
            _ => Change::Delete(key),
        };
        (index, keyspace, change)
    }

    fn batch(&self, writes: &[Write]) -> (WriteBatch, Vec<(usize, Change)>) {
        let mut batch = WriteBatch::new();
        let mut changes = Vec::new();
        for write in writes {
            let (index, keyspace, change) = self.change(*write);
            change.add_to(&mut batch, &keyspace);
            changes.push((index, change));
        }
        // A batch ignores range deletes of empty ranges.
        let is_range = |(_, change): &&(usize, Change)| matches!(change, Change::DeleteRange(_));
        let ranges = changes.iter().filter(is_range).count();
        assert!((writes.len() - ranges..=writes.len()).contains(&batch.len()));
        (batch, changes)
    }

    /// Applies a commit to the model. Puts get the default time to live of their keyspace.
    fn apply(&mut self, changes: &[(usize, Change)], is_synced: bool) {
        let changes =
            changes.iter().map(|(index, change)| match (change, self.default_ttls[*index]) {
                (Change::Put(key, value), Some(ttl)) => {
                    let (key, value) = (Arc::clone(key), Arc::clone(value));
                    (*index, Change::PutWithTtl(key, value, ttl, self.expiry_us(ttl)))
                }
                _ => (*index, change.clone()),
            });
        let changes: Vec<_> = changes.collect();
        self.apply_unchanged(&changes, is_synced);
    }

    /// Applies a commit to the model. Puts without an expiry time do not expire, as in an ingest.
    fn apply_unchanged(&mut self, changes: &[(usize, Change)], is_synced: bool) {
        for (index, change) in changes {
            let mut note_written = |key: &Bytes| {
                self.written.insert((*index, Arc::clone(key)), self.clock);
            };
            let pairs = Arc::make_mut(self.contents[*index].as_mut().expect("it exists"));
            let count = pairs.len();
            change.apply(pairs, &*operators(self.operator_indexes[*index]));
            let expiring = &mut self.expiring[*index];
            match change {
                Change::Put(key, _) | Change::Delete(key) => drop(expiring.remove(key)),
                Change::PutUntil(key, _, expiry_us) | Change::PutWithTtl(key, _, _, expiry_us) => {
                    let value = ExpiringValue { expiry_us: *expiry_us, operands: Vec::new() };
                    expiring.insert(Arc::clone(key), value);
                }
                Change::Merge(key, operand) => {
                    if let Some(value) = expiring.get_mut(key) {
                        value.operands.push(Arc::clone(operand));
                    }
                }
                Change::DeleteRange(bounds) => expiring.retain(|key, _| !is_within(bounds, key)),
            }
            match change {
                Change::Put(key, _)
                | Change::PutUntil(key, ..)
                | Change::PutWithTtl(key, ..)
                | Change::Delete(key)
                | Change::Merge(key, _) => {
                    note_written(key);
                    self.counts.operands += u64::from(matches!(change, Change::Merge(..)));
                    let has_ttl = matches!(change, Change::PutWithTtl(..));
                    self.counts.puts_with_ttl += u64::from(has_ttl);
                }
                Change::DeleteRange(bounds) => {
                    self.keys.iter().filter(|key| is_within(bounds, key)).for_each(note_written);
                    self.counts.range_deleted += (count - pairs.len()) as u64;
                }
            }
        }
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.push((self.contents.clone(), self.expiring.clone()));
        }
        if is_synced {
            self.note_synced();
        }
    }

    /// Records in the model that all commits so far are durable.
    fn note_synced(&mut self) {
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.drain(..unsynced.len() - 1);
        }
    }

    /// Returns the value in the model.
    fn model_value(&self, index: usize, key: &Bytes) -> Option<&Bytes> {
        self.contents[index].as_ref().and_then(|pairs| pairs.get(key))
    }

    /// Returns an open snapshot, and the index and the handle of a keyspace that existed when the snapshot was taken.
    fn held(
        &self,
        snapshot: Option<usize>,
        keyspace: &Keyspace,
    ) -> Option<(&HeldSnapshot, usize, Keyspace)> {
        let held = self.snapshots.get(snapshot?.checked_rem(self.snapshots.len())?)?;
        let name = keyspace.name();
        let index = self.names.iter().position(|known| *known == name)?;
        // If the keyspace was dropped after the snapshot, only the handle from before the drop can read it. If the
        // keyspace was created after the snapshot, it is empty in the snapshot.
        let keyspace = held.keyspaces[index].clone().unwrap_or_else(|| keyspace.clone());
        Some((held, index, keyspace))
    }

    /// Applies an operation to the database and to the model.
    pub(super) fn apply_operation(&mut self, operation: &Operation) {
        self.clock += 1;
        self.counts.operations += 1;
        self.expire_model_values();
        let measured = self.measured_counts(operation);
        self.execute(operation);
        self.check_measured_counts(operation, measured);
    }

    fn execute(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(writes, is_synced) => {
                writes.iter().for_each(|write| self.write(*write, *is_synced));
            }
            Operation::Batch(writes, is_synced) => {
                let (batch, changes) = self.batch(writes);
                let durability = if *is_synced { Durability::Sync } else { Durability::Buffered };
                self.db().write(batch, durability).unwrap();
                self.apply(&changes, *is_synced);
            }
            Operation::Transaction(kind, writes, is_synced) => {
                self.write_in_transaction(*kind, writes, *is_synced);
            }
            Operation::GuardedBatch(snapshot, place, writes) => {
                self.write_guarded(*snapshot, *place, writes);
            }
            Operation::Ingest(writes, files, copy_files) => {
                self.ingest(writes, *files, *copy_files);
            }
            Operation::BulkLoad(keyspace, entries, sorts) => {
                self.bulk_load(*keyspace, entries, *sorts);
            }
            Operation::Update(write, is_fetch) => self.update(*write, *is_fetch),
            Operation::Clear(keyspace) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                keyspace.clear().unwrap();
                assert_eq!(keyspace.iter().count(), 0);
                let all = Change::DeleteRange((Bound::Unbounded, Bound::Unbounded));
                self.apply(&[(index, all)], false);
            }
            Operation::DeleteAll(keyspace) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                for key in self.contents[index].as_ref().expect("it exists").clone().keys() {
                    keyspace.delete(key).unwrap();
                    self.apply(&[(index, Change::Delete(Arc::clone(key)))], false);
                }
                assert_eq!(keyspace.iter().count(), 0);
            }
            Operation::Snapshot if self.snapshots.len() < HELD_MAX => {
                let snapshot = self.db().snapshot();
                assert!(snapshot.seq() >= self.seq_largest, "sequence numbers go back");
                self.seq_largest = snapshot.seq();
                let (contents, keyspaces) = (self.contents.clone(), self.keyspaces.clone());
                let clock = self.clock;
                self.snapshots.push(HeldSnapshot { snapshot, contents, keyspaces, clock });
            }
            Operation::Snapshot => {}
            Operation::DropSnapshot(index) => {
                if let Some(index) = index.checked_rem(self.snapshots.len()) {
                    self.snapshots.swap_remove(index);
                }
            }
            Operation::CreateKeyspace(index, settings) => {
                self.open_keyspace(index % KEYSPACES.len(), settings, true);
            }
            Operation::ChangeOptions(index, settings) => {
                self.open_keyspace(self.keyspace(*index).0, settings, false);
            }
            Operation::SetOptions(keyspace, settings) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                let bound = settings.bound(self.has_store[index]);
                let ttl = self.supported_settings(index, settings).default_ttl;
                let changed = keyspace.set_options(|options| {
                    settings.apply_to(options).delete_persistence(bound).default_ttl(ttl)
                });
                changed.unwrap();
                self.note_default_ttl(index, &keyspace, ttl);
                if let Some(policy) = &settings.policy {
                    self.note_policy(index, policy);
                }
                let options = keyspace.options();
                assert_eq!(options.policy.to_string(), self.policies[index]);
                assert_eq!(options.memtable_bytes, settings.memtable_bytes);
                assert_eq!(options.compression, settings.compression);
            }
            Operation::SetPolicy(keyspace, policy) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                keyspace.set_policy(policy.parse::<PolicySpec>().unwrap()).unwrap();
                self.note_policy(index, policy);
                assert_eq!(keyspace.options().policy.to_string(), self.policies[index]);
            }
            Operation::SetLatencySampling(sampling) => {
                self.db().set_latency_sampling(*sampling);
                self.observation.sampling = *sampling;
            }
            Operation::DropKeyspace(index) => self.drop_keyspace(index % KEYSPACES.len()),
            Operation::CloneKeyspace(source, target, settings) => {
                let (source, target) = (source % KEYSPACES.len(), target % KEYSPACES.len());
                self.clone_keyspace(source, target, settings);
            }
            Operation::RenameKeyspace(index, name) => {
                self.rename_keyspace(index % KEYSPACES.len(), *name);
            }
            Operation::Restart(kind, settings) => self.restart(*kind, settings),
            Operation::RestartWithoutOperators(without, deletes, with) => {
                self.close();
                self.open(without, false);
                self.check_without_operators(deletes);
                self.close();
                self.open(with, true);
            }
            Operation::CheckAll => {
                self.check_all();
                self.check_metrics_file();
            }
            Operation::AdvanceClock => {
                let end_us = (self.hour + 1) * HOUR_US;
                let env = self.db().env();
                env.advance_us(end_us.saturating_sub(env.now_us()));
                self.expire_model_values();
            }
            Operation::Get(..)
            | Operation::ContainsKey(..)
            | Operation::GetWith(..)
            | Operation::MultiGet(..)
            | Operation::Ends(_)
            | Operation::Scan(..)
            | Operation::Cursor(..)
            | Operation::PrefixCursor(..)
            | Operation::Estimate(_)
            | Operation::Prefix(..)
            | Operation::OpenIterator(..)
            | Operation::StepIterator(..)
            | Operation::DropIterator(_) => self.read(operation),
            Operation::Flush
            | Operation::WaitIdle
            | Operation::Sync
            | Operation::CompactRange(_)
            | Operation::OperandsToTree(_)
            | Operation::Checkpoint
            | Operation::OpenReadOnly => self.maintain(operation),
        }
    }

    /// Commits a single write.
    fn write(&mut self, write: Write, is_synced: bool) {
        let (index, keyspace, change) = self.change(write);
        match &change {
            _ if is_synced => change.commit(&keyspace.with_write_options(Durability::Sync)),
            Change::Put(key, value) if index == 0 => self.db().put(key, value),
            _ => change.commit(&keyspace),
        }
        .unwrap();
        self.apply(&[(index, change)], is_synced);
    }

    fn update(&mut self, write: UpdateWrite, is_fetch: bool) {
        let (write, keeps_expiry) = match write {
            UpdateWrite::Write(write) => (write, false),
            UpdateWrite::PutKeepExpiry(place, value) => (Write::Put(place, value), true),
        };
        let (index, keyspace, mut change) = self.change(write);
        // The value may be older than the operand store, which refuses values that expire.
        let keeps_expiry = keeps_expiry && !self.has_store[index];
        let update = |old: Option<&[u8]>| {
            let append = |value: &[u8]| [old.unwrap_or_default(), value].concat();
            match &change {
                Change::Put(_, value) if keeps_expiry => Update::PutKeepExpiry(append(value)),
                Change::Put(_, value) => Update::Put(append(value)),
                Change::PutUntil(_, value, us) => Update::PutUntil(append(value), system_time(*us)),
                Change::PutWithTtl(_, value, ttl, _) => Update::PutWithTtl(append(value), *ttl),
                _ => Update::Delete,
            }
        };
        let returned = match is_fetch {
            true => keyspace.fetch_update(change.key(), update),
            false => keyspace.update_fetch(change.key(), update),
        };
        let before = self.model_value(index, change.key()).cloned();
        let kept = self.expiring[index].get(change.key()).map(|value| value.expiry_us);
        let after = change.value_mut().map(|value| {
            *value = [before.as_deref().unwrap_or_default(), &**value].concat().into();
            Arc::clone(value)
        });
        let expected = if is_fetch { &before } else { &after };
        assert_eq!(returned.unwrap().as_deref(), expected.as_deref());
        let keeps_expiry = keeps_expiry && before.is_some();
        match (change, kept) {
            (Change::Put(key, value), Some(expiry_us)) if keeps_expiry => {
                self.apply_unchanged(&[(index, Change::PutUntil(key, value, expiry_us))], false);
                self.counts.kept_expiries += 1;
            }
            (change, None) if keeps_expiry => self.apply_unchanged(&[(index, change)], false),
            (change, _) => self.apply(&[(index, change)], false),
        }
        self.counts.updates += 1;
    }

    /// Commits writes in one transaction. After each write, reads of the transaction must return the model contents
    /// including this write.
    ///
    /// Some writes are rolled back and then repeated. No other thread writes, so the commit has no conflict.
    fn write_in_transaction(&mut self, kind: TransactionKind, writes: &[Write], is_synced: bool) {
        // A transaction without writes syncs nothing.
        let is_synced = is_synced && !self.batch(writes).0.is_empty();
        let begin = || match kind {
            TransactionKind::Optimistic => self.db().transaction(),
            TransactionKind::Locking => self.db().locking_transaction(LOCK_TIMEOUT),
        };
        let (abandoned, tx) = (begin(), begin());
        for write in writes {
            let (_, keyspace, change) = self.change(*write);
            change.add_to_transaction(&abandoned, &keyspace).unwrap();
        }
        // The writes have no effect, and their locks are released.
        drop(abandoned);
        self.counts.locking_transactions += u64::from(matches!(kind, TransactionKind::Locking));
        let mut contents = self.contents.clone();
        let mut changes = Vec::new();
        for (number, write) in writes.iter().enumerate() {
            let (index, keyspace, change) = self.change(*write);
            let pairs = Arc::make_mut(contents[index].as_mut().expect("it exists"));
            let keys = [number, number + 1].map(|key| self.key(key));
            if number % 3 == 1 {
                let savepoint = tx.savepoint();
                change.add_to_transaction(&tx, &keyspace).unwrap();
                tx.rollback_to(savepoint).unwrap();
                compare_transaction(&tx, &keyspace, &keys[0], pairs).unwrap();
            }
            change.add_to_transaction(&tx, &keyspace).unwrap();
            change.apply(pairs, &*self.operator(index));
            compare_transaction(&tx, &keyspace, &keys[1], pairs).unwrap();
            let values = tx.multi_get(&keyspace, &keys).unwrap();
            for (key, value) in keys.iter().zip(values) {
                compare_value(key, value, pairs).unwrap();
                compare_value(key, tx.get(&keyspace, key).unwrap(), pairs).unwrap();
            }
            changes.push((index, change));
        }
        tx.commit(if is_synced { Durability::Sync } else { Durability::Buffered }).unwrap();
        assert_eq!(self.db().metrics().transactions.locks_held, 0);
        self.apply(&changes, is_synced);
        self.counts.transactions += 1;
    }

    fn write_guarded(&mut self, snapshot: Option<usize>, place: Place, writes: &[Write]) {
        let (guarded, keyspace, key) = self.place(place);
        let (mut batch, changes) = self.batch(writes);
        let (read, clock) = match self.held(snapshot, &keyspace) {
            Some((held, ..)) => (held.snapshot.seq(), held.clock),
            None => (self.db().snapshot().seq(), self.clock),
        };
        batch.guard(&keyspace, &key, read);
        let written = self.written.get(&(guarded, Arc::clone(&key))).copied().unwrap_or(0);
        match self.db().write(batch, Durability::Buffered) {
            Ok(()) => {
                assert!(written <= clock, "a guard held though its key was written since");
                self.apply(&changes, false);
                self.counts.guards_held += 1;
                return;
            }
            Err(Error::Conflict { read: found, key: found_key, .. }) => {
                assert_eq!((found, &found_key[..]), (read.0, &key[..]));
                assert!(written > clock, "a guard was refused though its key was not written");
            }
            Err(Error::ConflictUnknown { read: found, .. }) => {
                assert_eq!(found, read.0);
                // For an old snapshot, the engine may not know all writes since the snapshot. For a new snapshot, it
                // must decide the condition of the commit.
                assert!(clock < self.clock, "a guard of a new snapshot was not decided");
            }
            Err(error) => panic!("a guarded write failed: {error}"),
        }
        self.counts.guards_refused += 1;
    }

    /// Compares all contents and snapshots with the model.
    pub(super) fn check_all(&self) {
        for (keyspace, pairs) in self.keyspaces.iter().zip(&self.contents) {
            if let (Some(keyspace), Some(pairs)) = (keyspace, pairs) {
                compare_keyspace(keyspace, pairs, &self.keys).unwrap();
            }
        }
        for HeldSnapshot { snapshot, contents, keyspaces, .. } in &self.snapshots {
            for (keyspace, pairs) in keyspaces.iter().zip(contents) {
                if let (Some(keyspace), Some(pairs)) = (keyspace, pairs) {
                    compare_pairs("snapshot", snapshot.iter(keyspace), pairs.iter()).unwrap();
                }
            }
        }
    }
}

/// Contents of a keyspace that did not exist when a snapshot was taken.
static NO_PAIRS: Pairs = Pairs::new();
