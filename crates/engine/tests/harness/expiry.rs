//! Random histories of a keyspace whose values expire. The model computes the value of a key from all its versions, at a
//! sequence number and a time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::metrics::ExpiryMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Keyspace, Slice, Snapshot};
use lsmx_testkit::TestRng;
use lsmx_testkit::world::{DbSettings, KeyspaceSettings};

use super::Outcome;
use super::database::{assert_clean, try_open};

const KEYS: u64 = 20;
/// Name of the keyspace.
const NAME: &str = "expiring";

/// One write of a key.
#[derive(Clone, Debug)]
enum Version {
    /// A value and its expiry time in microseconds.
    Put(Vec<u8>, Option<u64>),
    Merge(Vec<u8>),
    Delete,
}

/// The writes of all keys, each with its position in the order of writes.
#[derive(Clone, Debug, Default)]
struct Model {
    writes: u64,
    versions: BTreeMap<Vec<u8>, Vec<(u64, Version)>>,
}

impl Model {
    fn add(&mut self, key: &[u8], version: Version) {
        self.writes += 1;
        self.versions.entry(key.to_vec()).or_default().push((self.writes, version));
    }

    /// Returns the value of a key after the first `writes` writes, at a time.
    fn value(&self, key: &[u8], writes: u64, time_us: u64) -> Option<Vec<u8>> {
        let versions = self.versions.get(key).map_or(&[][..], Vec::as_slice);
        let visible = versions.iter().take_while(|(number, _)| *number <= writes);
        visible.fold(None, |value, (_, version)| match version {
            Version::Put(_, Some(expiry_us)) if *expiry_us <= time_us => None,
            Version::Put(new, _) => Some(new.clone()),
            Version::Merge(operand) => Some([value.unwrap_or_default(), operand.clone()].concat()),
            Version::Delete => None,
        })
    }

    /// Returns the value of a key now in a clone that was made at a time. A combined value expires with the value below its
    /// operands.
    fn value_in_clone(&self, key: &[u8], clone_us: u64, now_us: u64) -> Option<Vec<u8>> {
        let versions = self.versions.get(key).map_or(&[][..], Vec::as_slice);
        let expiry_us = versions.iter().fold(None, |expiry_us, (_, version)| match version {
            Version::Put(_, new_us) => new_us.filter(|new_us| *new_us > clone_us),
            Version::Merge(_) => expiry_us,
            Version::Delete => None,
        });
        let value = self.value(key, self.writes, clone_us)?;
        expiry_us.is_none_or(|expiry_us| expiry_us > now_us).then_some(value)
    }

    fn contents(&self, writes: u64, time_us: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let pair = |key: &Vec<u8>| Some((key.clone(), self.value(key, writes, time_us)?));
        self.versions.keys().filter_map(pair).collect()
    }
}

struct ExpiringHistory {
    rng: TestRng,
    disk: MemVfs,
    has_operator: bool,
    is_stepped: bool,
    model: Model,
    /// Snapshots, each with the number of writes that it sees, and the times before and after it was taken.
    snapshots: Vec<(Snapshot, u64, (u64, u64))>,
    open: Option<(Keyspace, Db)>,
    /// Metrics of earlier opens.
    expired: ExpiryMetrics,
}

/// Runs a random history and compares all reads with the model. Returns the sum of the metrics.
pub(crate) fn play_history(seed: u64) -> Outcome<ExpiryMetrics> {
    let mut rng = TestRng::new(seed);
    let mut history = ExpiringHistory {
        has_operator: rng.is_true_with_percent(60),
        is_stepped: rng.is_one_in(5),
        rng,
        disk: MemVfs::new(),
        model: Model::default(),
        snapshots: Vec::new(),
        open: None,
        expired: ExpiryMetrics::default(),
    };
    let played = history.play();
    history.snapshots.clear();
    played.map_err(|what| format!("seed {seed}: {what}"))?;
    Ok(history.expired)
}

/// As [`play_history`], without its metrics.
pub(crate) fn history_equals_the_model(seed: u64) -> Outcome {
    play_history(seed).map(drop)
}

impl ExpiringHistory {
    fn play(&mut self) -> Outcome {
        self.reopen()?;
        for step in 0..self.rng.between(50, 400) {
            self.step().map_err(|what| format!("step {step}: {what}"))?;
        }
        self.check_all()?;
        self.close()?;
        assert_clean(&self.disk);
        Ok(())
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
            memtable_bytes: 1024 << self.rng.below(2),
            table_bytes: 1024,
            store: None,
            ..KeyspaceSettings::random(&mut self.rng)
        };
        let options = keyspace.options_with_store(false);
        let options = match self.has_operator {
            true => options.merge_operator(Append::default()),
            false => options,
        };
        let db = try_open(&self.disk, settings.options(background, seed)).map_err(failed)?;
        let keyspace = db.keyspace(NAME, options).map_err(failed)?;
        self.open = Some((keyspace, db));
        self.check_all()
    }

    /// Closes the database, after a check of all snapshots.
    fn close(&mut self) -> Outcome {
        self.check_all()?;
        self.snapshots.clear();
        let (db, keyspace) = self.handles()?;
        self.open = None;
        if let Some(metrics) = db.metrics().keyspaces.get(NAME) {
            self.expired.entries += metrics.expired.entries;
            self.expired.bytes += metrics.expired.bytes;
        }
        drop(keyspace);
        db.close(None).map_err(failed)
    }

    /// Clones the keyspace, and compares the clone with the model at several times.
    fn check_clone(&mut self) -> Outcome {
        let (db, _) = self.handles()?;
        let settings = KeyspaceSettings::random(&mut self.rng);
        let before_us = db.env().now_us();
        let clone = db.clone_keyspace(NAME, "clone", settings.options()).map_err(failed)?;
        let cloned_us = [before_us, db.env().now_us()];
        for wait_us in [0, 100, 5_000] {
            db.env().advance_us(wait_us);
            if self.rng.is_one_in(3) {
                clone.compact_range::<&[u8]>(..).map_err(failed)?;
            }
            for number in 0..KEYS {
                let key = format!("key {number:02}").into_bytes();
                let before_us = db.env().now_us();
                let found = clone.get(&key).map_err(failed)?.map(|value| value.to_vec());
                let read_us = [before_us, db.env().now_us()];
                let times = cloned_us.iter().flat_map(|at| read_us.map(|now| (*at, now)));
                // An expiry between two times may be seen or not.
                let is_expected = |(at, now)| self.model.value_in_clone(&key, at, now) == found;
                if !times.into_iter().any(is_expected) {
                    return Err(format!("the clone has {found:?} for {}", key.escape_ascii()));
                }
            }
        }
        drop(clone);
        db.drop_keyspace("clone").map_err(failed)
    }

    fn draw_key(&mut self) -> Vec<u8> {
        let number = self.rng.below(KEYS);
        format!("key {number:02}").into_bytes()
    }

    fn draw_value(&mut self) -> Vec<u8> {
        let bytes = *self.rng.choose(&[1, 5, 20, 60, 150]);
        let number = self.model.writes;
        [format!("{number}:").into_bytes(), vec![b'v'; bytes]].concat()
    }

    fn step(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let key = self.draw_key();
        match self.rng.below(100) {
            0..25 => {
                let value = self.draw_value();
                let ttl_us = *self.rng.choose(&[0, 20, 100, 500, 5_000, 1 << 40]);
                let expiry_us = db.env().now_us() + ttl_us;
                let expires = SystemTime::UNIX_EPOCH + Duration::from_micros(expiry_us);
                keyspace.put_until(&key, &value, expires).map_err(failed)?;
                self.model.add(&key, Version::Put(value, Some(expiry_us)));
            }
            25..35 => {
                let value = self.draw_value();
                keyspace.put(&key, &value).map_err(failed)?;
                self.model.add(&key, Version::Put(value, None));
            }
            35..40 => {
                keyspace.delete(&key).map_err(failed)?;
                self.model.add(&key, Version::Delete);
            }
            40..60 if self.has_operator => {
                for _ in 0..self.rng.between(1, 3) {
                    let operand = self.draw_value();
                    keyspace.merge(&key, &operand).map_err(failed)?;
                    self.model.add(&key, Version::Merge(operand));
                }
            }
            60..66 => db.env().advance_us(*self.rng.choose(&[10, 100, 1_000])),
            66..72 => {
                let before_us = db.env().now_us();
                let snapshot = db.snapshot();
                let times = (before_us, db.env().now_us());
                self.snapshots.push((snapshot, self.model.writes, times));
            }
            72..77 if !self.snapshots.is_empty() => {
                let index = self.rng.below(self.snapshots.len());
                self.check_snapshot(index)?;
                self.snapshots.swap_remove(index);
            }
            77..82 => db.flush().map_err(failed)?,
            82..86 => keyspace.compact_range::<&[u8]>(..).map_err(failed)?,
            86..88 => db.wait_idle().map_err(failed)?,
            88 => {
                self.close()?;
                self.reopen()?;
            }
            94 => self.check_clone()?,
            89..92 if !self.snapshots.is_empty() => {
                let index = self.rng.below(self.snapshots.len());
                self.check_snapshot(index)?;
            }
            92..94 => self.check_current()?,
            _ => {
                let before_us = db.env().now_us();
                let found = keyspace.get(&key).map_err(failed)?;
                let (found, writes) = (found.map(|value| value.to_vec()), self.model.writes);
                let times = (before_us, db.env().now_us());
                let expected = [times.0, times.1].map(|us| self.model.value(&key, writes, us));
                // An expiry between the two times may be seen or not.
                if !expected.contains(&found) {
                    let (key, found) = (key.escape_ascii(), found.as_deref().map(shorten));
                    let expected = expected.map(|value| value.as_deref().map(shorten));
                    return Err(format!("{key} is {found:?}, expected one of {expected:?}"));
                }
            }
        }
        Ok(())
    }

    fn check_all(&mut self) -> Outcome {
        self.check_current()?;
        (0..self.snapshots.len()).try_for_each(|index| self.check_snapshot(index))
    }

    fn check_current(&mut self) -> Outcome {
        let (db, keyspace) = self.handles()?;
        let before_us = db.env().now_us();
        let iter = if self.rng.is_one_in(2) {
            collect(keyspace.iter())?
        } else {
            collect(keyspace.iter().rev())?
        };
        let times = (before_us, db.env().now_us());
        self.compare("now", self.model.writes, times, &iter)
    }

    fn check_snapshot(&self, index: usize) -> Outcome {
        let (_, keyspace) = self.handles()?;
        let (snapshot, writes, times) = &self.snapshots[index];
        let found = collect(snapshot.iter(&keyspace))?;
        self.compare("at a snapshot", *writes, *times, &found)?;
        let keys: Vec<_> = self.model.versions.keys().cloned().collect();
        let values = snapshot.multi_get(&keyspace, &keys).map_err(failed)?;
        let values = values.into_iter().map(|value| value.map(|value| value.to_vec()));
        let found = keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?)));
        self.compare("in a multi-get at a snapshot", *writes, *times, &found.collect())
    }

    /// Compares contents with the model. A key whose value expires between the two times may have it or not.
    fn compare(
        &self,
        what: &str,
        writes: u64,
        (first_us, last_us): (u64, u64),
        found: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Outcome {
        let before = self.model.contents(writes, first_us);
        let after = self.model.contents(writes, last_us);
        for key in before.keys().chain(after.keys()).chain(found.keys()) {
            let value = found.get(key);
            if value != before.get(key) && value != after.get(key) {
                let [value, before, after] = [value, before.get(key), after.get(key)]
                    .map(|value| value.map(|it| shorten(it)));
                let key = key.escape_ascii();
                return Err(format!(
                    "{what}: {key} is {value:?}, expected {before:?} or {after:?}"
                ));
            }
        }
        Ok(())
    }
}

fn collect(
    pairs: impl Iterator<Item = lsmx::Result<(Slice, Slice)>>,
) -> Outcome<BTreeMap<Vec<u8>, Vec<u8>>> {
    let pairs = pairs.collect::<lsmx::Result<Vec<_>>>().map_err(failed)?;
    Ok(pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

fn shorten(value: &[u8]) -> String {
    let end = value.len().min(40);
    format!("{} ({} bytes)", value[..end].escape_ascii(), value.len())
}

fn failed(error: lsmx::Error) -> String {
    error.to_string()
}
