//! Random histories of a keyspace with a bound for deleted values. After the bound, the files of the database contain no
//! entry of a deleted or expired value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lsmx::env::Background;
use lsmx::event::PersistenceHolder;
use lsmx::internals::vfs::CrashImage;
use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Event, KeySearchReport, Keyspace, Options, search_key};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::world::{DbSettings, KeyspaceSettings};
use lsmx_testkit::{EventLog, TestRng};

use super::Outcome;
use super::database::try_open;

const KEYS: u64 = 12;
/// Name of the keyspace.
const NAME: &str = "bounded";
/// The bound of the keyspace.
const BOUND: Duration = Duration::from_secs(8);
const BOUND_US: u64 = 8_000_000;
/// Number of steps in which the time of one bound passes.
const STEPS_PER_BOUND: u64 = 16;

/// One write of a key.
#[derive(Clone, Copy, Debug)]
struct Version {
    seq: u64,
    written_us: u64,
    is_operand: bool,
    /// Time from which on the versions up to this one are deleted, in microseconds. `None` for a value that does not
    /// expire.
    deleted_us: Option<u64>,
}

/// Results of the histories, so that a test can check that they reach all cases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PersistenceCounts {
    /// Number of searches of a key with deleted versions.
    pub(crate) searches: u64,
    /// Number of these searches in a keyspace with an operand store.
    pub(crate) store_searches: u64,
    /// Number of snapshots and iterators that events have named.
    pub(crate) snapshots_named: u64,
    pub(crate) iterators_named: u64,
}

struct BoundedHistory {
    rng: TestRng,
    disk: MemVfs,
    has_operator: bool,
    /// Operand store of the keyspace.
    store: Option<DeltaStoreFactory>,
    is_stepped: bool,
    versions: BTreeMap<Vec<u8>, Vec<Version>>,
    open: Option<(Keyspace, Db)>,
    events: EventLog,
    counts: PersistenceCounts,
}

/// Runs a random history.
pub(crate) fn play_history(seed: u64) -> Outcome<PersistenceCounts> {
    let mut rng = TestRng::new(seed);
    let store = rng.is_one_in(3).then(|| draw_store(&mut rng));
    let mut history = BoundedHistory {
        has_operator: store.is_some() || rng.is_one_in(3),
        store,
        is_stepped: rng.is_one_in(4),
        rng,
        disk: MemVfs::new(),
        versions: BTreeMap::new(),
        open: None,
        events: EventLog::default(),
        counts: PersistenceCounts::default(),
    };
    history.play().map_err(|what| format!("seed {seed}: {what}"))?;
    Ok(history.counts)
}

/// Draws an operand store. Most stores have several buckets, which are full after a few operands.
fn draw_store(rng: &mut TestRng) -> DeltaStoreFactory {
    DeltaStoreFactory::new(
        DeltaOptions::default()
            .bucket_bytes(*rng.choose(&[512, 2048, 64 << 10]))
            .buckets_max(*rng.choose(&[4, 1000]))
            .log_bytes_max(*rng.choose(&[1024, 1 << 20]))
            .cache_bytes(*rng.choose(&[0, 4096])),
    )
}

/// As [`play_history`], without its counts.
pub(crate) fn history_leaves_no_trace(seed: u64) -> Outcome {
    play_history(seed).map(drop)
}

impl BoundedHistory {
    fn play(&mut self) -> Outcome {
        self.reopen()?;
        if self.rng.is_one_in(3) {
            self.check_delete_below_put()?;
        }
        for _ in 0..self.rng.between(1, 4) {
            for _ in 0..self.rng.between(5, 120) {
                self.step()?;
            }
            match self.rng.below(4) {
                0 => self.check_with_snapshot()?,
                1 => self.check_with_iterator()?,
                _ => {}
            }
            self.let_bound_pass()?;
            self.check_traces()?;
        }
        let (db, keyspace) = self.handles()?;
        self.open = None;
        drop(keyspace);
        db.close(None).map_err(failed)
    }

    fn handles(&self) -> Outcome<(Db, Keyspace)> {
        let (keyspace, db) = self.open.as_ref().ok_or("the database is not open")?;
        Ok((db.clone(), keyspace.clone()))
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
        let keyspace = KeyspaceSettings {
            memtable_bytes: *self.rng.choose(&[1024, 4096, 64 << 10]),
            table_bytes: 1024,
            store: None,
            has_filter: false,
            delete_persistence: Some(BOUND),
            ..KeyspaceSettings::random(&mut self.rng)
        };
        let options = keyspace.options_with_store(false);
        let options = match self.has_operator {
            true => options.merge_operator(Append::default()),
            false => options,
        };
        let options = match &self.store {
            Some(store) => options.operand_store(store.clone()),
            None => options,
        };
        let db_options = self.add_store(settings.options(background, seed));
        let db_options = db_options.listener(Arc::new(self.events.clone()));
        let db = try_open(&self.disk, db_options).map_err(failed)?;
        let keyspace = db.keyspace(NAME, options).map_err(failed)?;
        self.open = Some((keyspace, db));
        Ok(())
    }

    /// Adds the operand store to the options of the database.
    fn add_store(&self, options: Options) -> Options {
        match &self.store {
            Some(store) => options.operand_store(store.clone()),
            None => options,
        }
    }

    fn draw_key(&mut self) -> Vec<u8> {
        let number = self.rng.below(KEYS);
        format!("key {number:02}").into_bytes()
    }

    fn draw_value(&mut self) -> Vec<u8> {
        let bytes = *self.rng.choose(&[1, 20, 60, 150, 400]);
        vec![b'v'; bytes]
    }

    /// Records a write of keys with the last sequence number.
    fn record(&mut self, keys: &[Vec<u8>], deleted_us: Option<u64>) -> Outcome {
        let (db, _) = self.handles()?;
        let (seq, written_us) = (db.snapshot().seq().0, db.env().database_time_us());
        let version = Version { seq, written_us, is_operand: false, deleted_us };
        for key in keys {
            self.versions.entry(key.clone()).or_default().push(version);
        }
        Ok(())
    }

    fn step(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let (key, value) = (self.draw_key(), self.draw_value());
        let now_us = db.env().database_time_us();
        match self.rng.below(100) {
            0..30 => {
                keyspace.put(&key, &value).map_err(failed)?;
                self.record(&[key], None)?;
            }
            // A keyspace with an operand store refuses values that expire.
            30..45 if self.store.is_none() => {
                let ttl_us = *self.rng.choose(&[0, 1_000, BOUND_US / 2, 2 * BOUND_US]);
                let expires = SystemTime::UNIX_EPOCH + Duration::from_micros(now_us + ttl_us);
                keyspace.put_until(&key, &value, expires).map_err(failed)?;
                self.record(&[key], Some(now_us + ttl_us))?;
            }
            45..60 => {
                keyspace.delete(&key).map_err(failed)?;
                self.record(&[key], Some(db.env().database_time_us()))?;
            }
            60..66 => {
                let (first, count) = (self.rng.below(KEYS), 1 + self.rng.below(6_u64));
                let name = |number: u64| format!("key {number:02}").into_bytes();
                let range = name(first)..name(first + count);
                keyspace.delete_range(range).map_err(failed)?;
                let keys: Vec<_> = (first..(first + count).min(KEYS)).map(name).collect();
                self.record(&keys, Some(db.env().database_time_us()))?;
            }
            30..45 => self.merge(&key, &value)?,
            66..74 if self.has_operator => self.merge(&key, &value)?,
            74..80 => db.flush().map_err(failed)?,
            80..83 => keyspace.compact_range::<&[u8]>(..).map_err(failed)?,
            83..88 => self.pass_time(BOUND_US / 16)?,
            88..91 => db.put("other", &value).map_err(failed)?,
            91 => {
                drop(keyspace);
                self.open = None;
                db.close(None).map_err(failed)?;
                self.reopen()?;
            }
            92 => {
                db.sync().map_err(failed)?;
                let seed = self.rng.next_u64();
                let crashed = self.disk.crash(CrashImage::Drop, seed);
                self.open = None;
                drop((keyspace, db));
                self.disk = crashed;
                self.reopen()?;
            }
            // The put hides the delete. The older value may be in a table.
            _ => {
                keyspace.delete(&key).map_err(failed)?;
                self.record(std::slice::from_ref(&key), Some(db.env().database_time_us()))?;
                keyspace.put(&key, &value).map_err(failed)?;
                self.record(&[key], None)?;
            }
        }
        Ok(())
    }

    fn merge(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        let (_, keyspace) = self.handles()?;
        keyspace.merge(key, value).map_err(failed)?;
        self.record(&[key.to_vec()], None)?;
        let newest = self.versions.get_mut(key).and_then(|versions| versions.last_mut());
        newest.into_iter().for_each(|version| version.is_operand = true);
        Ok(())
    }

    /// Writes a value of a key and flushes it. With an operand store, the value is an operand in the store, and the
    /// tree may contain a value below it.
    fn flush_value(&mut self, key: &[u8]) -> Outcome {
        let (db, keyspace) = self.handles()?;
        if self.store.is_none() || self.rng.is_one_in(2) {
            keyspace.put(key, [b'v'; 200]).map_err(failed)?;
            self.record(&[key.to_vec()], None)?;
            db.flush().map_err(failed)?;
        }
        if self.store.is_some() {
            self.merge(key, &[b'v'; 200])?;
            db.flush().map_err(failed)?;
        }
        Ok(())
    }

    /// Advances the clock and runs the jobs that are due.
    fn pass_time(&self, us: u64) -> Outcome {
        let (db, keyspace) = self.handles()?;
        db.env().advance_us(us);
        // Threads that wait for a time run at the yield points of the reads.
        for _ in 0..if self.is_stepped { 8 } else { 1 } {
            keyspace.get("key 00").map_err(failed)?;
            db.wait_idle().map_err(failed)?;
        }
        Ok(())
    }

    fn let_bound_pass(&self) -> Outcome {
        (0..=STEPS_PER_BOUND).try_for_each(|_| self.pass_time(BOUND_US / STEPS_PER_BOUND))
    }

    fn search(&self, image: &MemVfs, key: &[u8]) -> Outcome<KeySearchReport> {
        let options = self.add_store(Options::default().vfs(Arc::new(image.clone())));
        search_key("db", &options, Some(NAME), key).map_err(failed)
    }

    /// Returns the sequence number up to which the versions of a key have been deleted for longer than the bound. A value
    /// that was overwritten before its expiry is not deleted.
    fn deleted_through(&self, versions: &[Version], now_us: u64) -> Option<u64> {
        let is_overdue = |(index, version): &(usize, &Version)| {
            let mut later = versions[index + 1..].iter().filter(|later| !later.is_operand);
            version.deleted_us.is_some_and(|us| {
                us + BOUND_US <= now_us && later.next().is_none_or(|next| next.written_us >= us)
            })
        };
        versions.iter().enumerate().filter(is_overdue).map(|(_, version)| version.seq).max()
    }

    /// Returns the keys with entries that should be gone, each with a description of the first one.
    fn find_traces(&mut self) -> Outcome<BTreeMap<Vec<u8>, String>> {
        let now_us = self.handles()?.0.env().database_time_us();
        let mut traces = BTreeMap::new();
        let versions = self.versions.clone();
        for (key, versions) in &versions {
            let Some(through) = self.deleted_through(versions, now_us) else { continue };
            let mut report = self.search(&self.disk.crash(CrashImage::Keep, 0), key)?;
            if !report.unsearched.is_empty() {
                // An operand store names new pages of bucket files in its log only at the next delivery. A delete is a part of a
                // delivery, so these pages contain no operand that an older delete voids. An open removes them.
                let reopened = self.disk.crash(CrashImage::Keep, 0);
                let options = self.add_store(Options::default().background(Background::Inline));
                try_open(&reopened, options).and_then(|db| db.close(None)).map_err(failed)?;
                report.unsearched = self.search(&reopened, key)?.unsearched;
            }
            self.counts.searches += 1;
            self.counts.store_searches += report.operand_stores;
            if let Some(path) = report.unsearched.first() {
                traces.insert(key.clone(), format!("{} exists", path.display()));
            }
            if let Some(entry) = report.entries.iter().find(|entry| entry.seq <= through) {
                traces.insert(key.clone(), format!("deleted through {through}: {entry:?}"));
            }
        }
        Ok(traces)
    }

    fn check_traces(&mut self) -> Outcome {
        match self.find_traces()?.pop_first() {
            None => Ok(()),
            Some((name, trace)) => {
                let (db, keyspace) = self.handles()?;
                let policy = keyspace.options().policy.to_string();
                let metrics = db.metrics().keyspaces.remove(NAME).unwrap_or_default();
                let persistence = metrics.delete_persistence;
                let key = name.escape_ascii();
                let versions = self.versions.get(&name);
                let store = &self.store;
                Err(format!(
                    "{key}: {trace}, policy {policy}, {persistence:?}, {store:?}, {versions:?}"
                ))
            }
        }
    }

    /// Deletes a key whose value is in the last run, and writes it again. No other delete makes jobs due.
    fn check_delete_below_put(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let key = b"key 00".to_vec();
        self.flush_value(&key)?;
        keyspace.compact_range::<&[u8]>(..).map_err(failed)?;
        keyspace.delete(&key).map_err(failed)?;
        self.record(std::slice::from_ref(&key), Some(db.env().database_time_us()))?;
        keyspace.put(&key, b"v").map_err(failed)?;
        self.record(std::slice::from_ref(&key), None)?;
        db.flush().map_err(failed)?;
        self.let_bound_pass()?;
        self.check_traces()
    }

    /// Deletes a key while a snapshot sees it. After the bound, metric and event must name the snapshot.
    fn check_with_snapshot(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let key = b"key 00".to_vec();
        self.flush_value(&key)?;
        let snapshot = db.snapshot();
        keyspace.delete(&key).map_err(failed)?;
        self.record(std::slice::from_ref(&key), Some(db.env().database_time_us()))?;
        self.let_bound_pass()?;
        self.let_bound_pass()?;
        let seq = snapshot.seq().0;
        let names_snapshot = |event: &Event| match event {
            Event::DeletePersistenceOverdue(overdue) => {
                matches!(overdue.holder, PersistenceHolder::Snapshot { seq: named, .. } if named == seq)
            }
            _ => false,
        };
        let metrics = db.metrics().keyspaces.remove(NAME).unwrap_or_default();
        let held_us = metrics.delete_persistence.snapshot_overdue_us;
        if self.events.count(names_snapshot) == 0 || held_us == 0 {
            return Err(format!("the snapshot is not named, held for {held_us} us"));
        }
        if snapshot.get(&keyspace, &key).map_err(failed)?.is_none() {
            return Err("the snapshot does not see its value".to_owned());
        }
        self.counts.snapshots_named += 1;
        Ok(())
    }

    /// Deletes a key while an iterator uses its table. After the bound, metric and event must name the iterator.
    fn check_with_iterator(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let key = b"key 00".to_vec();
        self.flush_value(&key)?;
        let mut iterator = keyspace.iter();
        keyspace.delete(&key).map_err(failed)?;
        self.record(std::slice::from_ref(&key), Some(db.env().database_time_us()))?;
        self.let_bound_pass()?;
        let names_iterator = |event: &Event| match event {
            Event::DeletePersistenceOverdue(overdue) => {
                matches!(overdue.holder, PersistenceHolder::Iterator { .. })
            }
            _ => false,
        };
        let metrics = db.metrics().keyspaces.remove(NAME).unwrap_or_default();
        let held_us = metrics.delete_persistence.iterator_overdue_us;
        if self.events.count(names_iterator) == 0 || held_us == 0 {
            return Err(format!("the iterator is not named, held for {held_us} us"));
        }
        let found: BTreeSet<Vec<u8>> = iterator
            .by_ref()
            .map(|pair| pair.map(|(key, _)| key.to_vec()))
            .collect::<lsmx::Result<_>>()
            .map_err(failed)?;
        if !found.contains(&key) {
            return Err("the iterator does not see its value".to_owned());
        }
        self.counts.iterators_named += 1;
        Ok(())
    }
}

fn failed(error: lsmx::Error) -> String {
    error.to_string()
}
