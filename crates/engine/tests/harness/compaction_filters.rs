//! Random histories of a keyspace with a compaction filter. The model contains, for each key, all values that the key may
//! have: the filter may have been applied to each version or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use lsmx::compaction_filter::{FilterContext, FilterDecision, FilterError, FilterValue};
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::metrics::CompactionFilterMetrics;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{
    CompactionFilter, Db, Durability, Keyspace, KeyspaceOptions, MergeOperator, Snapshot,
    WriteBatch,
};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::use_delta_stores;
use lsmx_testkit::world::{DbSettings, KeyspaceSettings};

use super::Outcome;
use super::database::{assert_clean, try_open};
use super::small_database::lock;

const KEYS: u64 = 24;
/// Name of the keyspace with the filter.
const NAME: &str = "filtered";

type Value = Option<Vec<u8>>;
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Removes values that begin with `r`, changes the first byte of values that begin with `c` to `k`, and fails for values
/// that begin with `e`.
pub(crate) fn decide(value: &[u8]) -> Result<FilterDecision, FilterError> {
    match value.first() {
        Some(b'r') => Ok(FilterDecision::Remove),
        Some(b'c') => Ok(FilterDecision::Change([b"k", &value[1..]].concat())),
        Some(b'e') => Err(FilterError::new("the value begins with an e")),
        _ => Ok(FilterDecision::Keep),
    }
}

/// Returns the value after a call of the filter.
fn filtered(value: &Value) -> Value {
    match value.as_deref().map(decide) {
        Some(Ok(FilterDecision::Remove)) => None,
        Some(Ok(FilterDecision::Change(changed))) => Some(changed),
        _ => value.clone(),
    }
}

/// Adds a value to the possible values of a key, before and after the filter.
fn add(possible: &mut BTreeSet<Value>, value: Value) {
    possible.insert(filtered(&value));
    possible.insert(value);
}

fn append() -> Append {
    Append::with_separator(b"|")
}

/// A snapshot and its contents right after it was taken.
struct SeenSnapshot {
    snapshot: Snapshot,
    contents: Contents,
}

impl SeenSnapshot {
    fn take(db: &Db, keyspace: &Keyspace) -> Result<SeenSnapshot, String> {
        let snapshot = db.snapshot();
        let contents = read(snapshot.iter(keyspace))?;
        Ok(SeenSnapshot { snapshot, contents })
    }

    fn check(&self, keyspace: &Keyspace) -> Outcome {
        let contents = read(self.snapshot.iter(keyspace))?;
        match contents == self.contents {
            true => Ok(()),
            false => Err(format!(
                "a snapshot changed from {:?} to {:?}",
                text(&self.contents),
                text(&contents)
            )),
        }
    }
}

fn text(contents: &Contents) -> Vec<String> {
    let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    };
    contents.iter().map(pair).collect()
}

fn read(range: lsmx::Range) -> Result<Contents, String> {
    let pair = |(key, value): (lsmx::Slice, lsmx::Slice)| (key.to_vec(), value.to_vec());
    range.map(|item| item.map(pair).map_err(failed)).collect()
}

fn failed(error: lsmx::Error) -> String {
    format!("{error:?}")
}

/// The filter of [`decide`]. It takes snapshots during compactions.
#[derive(Default)]
struct SnapshotTakingFilter {
    state: Mutex<FilterState>,
}

#[derive(Default)]
struct FilterState {
    handles: Option<(Db, Keyspace)>,
    /// The filter takes a snapshot at this call. Calls are counted down.
    calls_left: u64,
    taken: Option<Result<SeenSnapshot, String>>,
}

impl std::fmt::Debug for SnapshotTakingFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotTakingFilter").finish_non_exhaustive()
    }
}

impl CompactionFilter for SnapshotTakingFilter {
    fn name(&self) -> &'static str {
        "snapshot-taking"
    }

    fn filter(
        &self,
        _: &[u8],
        value: &FilterValue<'_>,
        context: &FilterContext,
    ) -> Result<FilterDecision, FilterError> {
        assert!(context.seq.0 > 0, "a value without a sequence number");
        let handles = {
            let mut state = lock(&self.state);
            state.calls_left = state.calls_left.saturating_sub(1);
            if state.calls_left == 0 { state.handles.take() } else { None }
        };
        // The lock is not held during the reads, at which other threads may run.
        if let Some((db, keyspace)) = handles {
            let taken = SeenSnapshot::take(&db, &keyspace);
            lock(&self.state).taken = Some(taken);
        }
        decide(value.bytes()?)
    }
}

struct FilteredHistory {
    rng: TestRng,
    disk: MemVfs,
    filter: Arc<SnapshotTakingFilter>,
    has_operator: bool,
    has_store: bool,
    is_stepped: bool,
    /// All values that each key may have.
    possible: BTreeMap<Vec<u8>, BTreeSet<Value>>,
    snapshots: Vec<SeenSnapshot>,
    open: Option<(Keyspace, Db)>,
    /// Metrics of earlier opens.
    metrics: CompactionFilterMetrics,
    values: u64,
}

/// Runs a random history and compares all contents with the model. Returns the sum of the metrics.
pub(crate) fn play_history(seed: u64) -> Outcome<CompactionFilterMetrics> {
    let mut rng = TestRng::new(seed);
    let has_operator = rng.is_true_with_percent(60);
    use_delta_stores(rng.is_one_in(2));
    let mut history = FilteredHistory {
        has_operator,
        has_store: has_operator && rng.is_one_in(2),
        is_stepped: rng.is_one_in(5),
        rng,
        disk: MemVfs::new(),
        filter: Arc::default(),
        possible: BTreeMap::new(),
        snapshots: Vec::new(),
        open: None,
        metrics: CompactionFilterMetrics::default(),
        values: 0,
    };
    let played = history.play();
    *lock(&history.filter.state) = FilterState::default();
    history.snapshots.clear();
    played.map_err(|what| format!("seed {seed}: {what}"))?;
    Ok(history.metrics)
}

/// As [`play_history`], without its metrics.
pub(crate) fn history_equals_the_model(seed: u64) -> Outcome {
    play_history(seed).map(drop)
}

impl FilteredHistory {
    fn play(&mut self) -> Outcome {
        self.reopen()?;
        for step in 0..self.rng.between(50, 400) {
            self.step().map_err(|what| format!("step {step}: {what}"))?;
        }
        self.snapshots.clear();
        self.compact(true)?;
        self.close()?;
        if !self.has_store {
            assert_clean(&self.disk);
        }
        Ok(())
    }

    fn handles(&self) -> Outcome<(Db, Keyspace)> {
        let (keyspace, db) = self.open.as_ref().ok_or("the database is not open")?;
        Ok((db.clone(), keyspace.clone()))
    }

    fn keyspace_options(&mut self) -> KeyspaceOptions {
        let settings = KeyspaceSettings {
            memtable_bytes: 1024 << self.rng.below(2),
            table_bytes: 1024,
            store: None,
            has_filter: false,
            ..KeyspaceSettings::random(&mut self.rng)
        };
        let options =
            settings.options_with_store(self.has_store).compaction_filter(Arc::clone(&self.filter));
        if self.has_operator { options.merge_operator(append()) } else { options }
    }

    fn reopen(&mut self) -> Outcome {
        let seed = self.rng.next_u64();
        let background = match self.is_stepped {
            true => Background::Stepped { seed, workers: 2 },
            false => Background::Inline,
        };
        let settings = DbSettings {
            idle_us: None,
            io_rate: None,
            open_files_max: None,
            ..DbSettings::random(&mut self.rng)
        };
        let db = try_open(&self.disk, settings.options(background, seed)).map_err(failed)?;
        let keyspace = db.keyspace(NAME, self.keyspace_options()).map_err(failed)?;
        assert_eq!(keyspace.options().compaction_filter.as_deref(), Some("snapshot-taking"));
        self.open = Some((keyspace, db));
        self.check_current()
    }

    /// Closes the database, after a check that all snapshots are unchanged.
    fn close(&mut self) -> Outcome {
        self.check_snapshots()?;
        self.snapshots.clear();
        let (db, keyspace) = self.handles()?;
        self.open = None;
        if let Some(metrics) = db.metrics().keyspaces.get(NAME).map(|it| it.compaction_filter) {
            self.metrics.passed += metrics.passed;
            self.metrics.removed += metrics.removed;
            self.metrics.changed += metrics.changed;
            self.metrics.errors += metrics.errors;
            self.metrics.repeated_merges += metrics.repeated_merges;
        }
        drop(keyspace);
        *lock(&self.filter.state) = FilterState::default();
        let closed = db.close(None).map_err(failed);
        // A compaction on another thread may have taken a snapshot in the meantime.
        *lock(&self.filter.state) = FilterState::default();
        closed
    }

    fn step(&mut self) -> Outcome {
        match self.rng.below(100) {
            0..75 => self.write()?,
            75..79 => {
                let (db, keyspace) = self.handles()?;
                self.snapshots.push(SeenSnapshot::take(&db, &keyspace)?);
            }
            79..85 if !self.snapshots.is_empty() => {
                let index = self.rng.below(self.snapshots.len());
                self.snapshots.swap_remove(index);
            }
            85..89 => {
                let mut state = lock(&self.filter.state);
                state.handles =
                    self.open.as_ref().map(|(keyspace, db)| (db.clone(), keyspace.clone()));
                state.calls_left = self.rng.below(30);
            }
            89..91 => self.handles()?.0.flush().map_err(failed)?,
            91..94 => self.compact(false)?,
            94..96 => {
                let options = self.keyspace_options();
                self.handles()?.0.keyspace(NAME, options).map_err(failed)?;
            }
            96 => {
                self.close()?;
                self.reopen()?;
            }
            97 => {
                let image = *self.rng.choose(&CrashImage::ALL);
                let disk = self.disk.crash(image, self.rng.next_u64());
                self.close()?;
                self.disk = disk;
                self.reopen()?;
            }
            _ => self.check_snapshots()?,
        }
        let taken = lock(&self.filter.state).taken.take();
        if let Some(taken) = taken {
            self.snapshots.push(taken?);
        }
        if self.snapshots.len() > 4 {
            self.snapshots.remove(0);
        }
        self.check_current()
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key-{:02}", self.rng.below(KEYS)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        self.values += 1;
        let first = *self.rng.choose(b"rrccekk");
        let mut value = [&[first], format!("{}.", self.values).as_bytes()].concat();
        value.resize(value.len() + self.rng.below(60usize), b'.');
        value
    }

    fn write(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let mut batch = WriteBatch::new();
        let key = self.key();
        match self.rng.below(20) {
            0 => {
                let end = self.key();
                batch.delete_range(&keyspace, &key[..]..&end[..]);
                for deleted in self.possible.range_mut(key.clone()..end.max(key)) {
                    *deleted.1 = BTreeSet::from([None]);
                }
            }
            1..4 => {
                batch.delete(&keyspace, &key);
                self.possible.insert(key, BTreeSet::from([None]));
            }
            4..10 if self.has_operator => {
                let operand = self.value();
                batch.merge(&keyspace, &key, &operand);
                let before = self.possible.remove(&key).unwrap_or(BTreeSet::from([None]));
                let mut after = BTreeSet::new();
                for base in &before {
                    let merged = append().full_merge(&key, base.as_deref(), &[&operand]);
                    add(&mut after, merged.map_err(|error| error.to_string())?);
                }
                self.possible.insert(key, after);
            }
            _ => {
                let value = self.value();
                batch.put(&keyspace, &key, &value);
                let mut possible = BTreeSet::new();
                add(&mut possible, Some(value));
                self.possible.insert(key, possible);
            }
        }
        db.write(batch, Durability::Sync).map_err(failed)
    }

    /// Compacts the whole keyspace. Without snapshots and without an operand store, the filter has then seen every value.
    fn compact(&mut self, is_last: bool) -> Outcome {
        let (_, keyspace) = self.handles()?;
        if is_last {
            lock(&self.filter.state).handles = None;
        }
        let had_snapshots =
            !self.snapshots.is_empty() || lock(&self.filter.state).handles.is_some();
        keyspace.compact_range::<&[u8]>(..).map_err(failed)?;
        if had_snapshots || self.has_store || self.is_stepped {
            return Ok(());
        }
        let unfiltered = read(keyspace.iter())?.into_values().map(Some);
        match unfiltered.into_iter().find(|value| filtered(value) != *value) {
            Some(value) => Err(format!("the filter has not seen {value:?}")),
            None => Ok(()),
        }
    }

    fn check_snapshots(&self) -> Outcome {
        let (_, keyspace) = self.handles()?;
        self.snapshots.iter().try_for_each(|seen| seen.check(&keyspace))
    }

    /// Checks that the value of each key is possible.
    fn check_current(&self) -> Outcome {
        let (_, keyspace) = self.handles()?;
        let contents = read(keyspace.iter())?;
        for key in contents.keys().chain(self.possible.keys()) {
            let scanned = contents.get(key).cloned();
            let found = keyspace.get(key).map_err(failed)?.map(|value| value.to_vec());
            let none = BTreeSet::from([None]);
            let possible = self.possible.get(key).unwrap_or(&none);
            for value in [scanned, found] {
                if !possible.contains(&value) {
                    return Err(format!(
                        "{}: {value:?}, possible are {possible:?}",
                        key.escape_ascii()
                    ));
                }
            }
        }
        Ok(())
    }
}
