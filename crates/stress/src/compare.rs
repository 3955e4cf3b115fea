//! Compares the contents of keyspaces or of a snapshot with the model.

use lsmx::{Db, Error, Keyspace, KeyspaceCursor, Range, ReadOptions, Result, Slice, Snapshot};
use lsmx_testkit::world::{CheckedCursor, CursorMove, Pairs, random_read_options};
use lsmx_testkit::{TestRng, mix_seeds};

use crate::Outcome;
use crate::commits::{Model, draw_changes};
use crate::{
    KEYSPACES, SESSIONS, counter_key, keyspace_churn, loads, merged_key, number, sessions,
};

/// Number of random cursor moves and of random lookups in each keyspace.
const RANDOM_READS: u64 = 60;

/// A snapshot, and times of the database clock before and after it was taken, in microseconds.
#[derive(Debug)]
pub(crate) struct TimedSnapshot {
    snapshot: Snapshot,
    pub(crate) times_us: (u64, u64),
}

impl TimedSnapshot {
    pub(crate) fn take(db: &Db) -> TimedSnapshot {
        let before_us = db.env().database_time_us();
        let snapshot = db.snapshot();
        TimedSnapshot { snapshot, times_us: (before_us, db.env().database_time_us()) }
    }
}

/// Read access to keyspaces, either to the newest state or to a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct KeyspaceView<'a> {
    pub(crate) db: &'a Db,
    pub(crate) keyspaces: &'a [Keyspace],
    /// If `None`, reads return the newest state.
    pub(crate) snapshot: Option<&'a TimedSnapshot>,
}

impl KeyspaceView<'_> {
    pub(crate) fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>> {
        self.get_with(keyspace, key, &ReadOptions::default())
    }

    fn get_with(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        options: &ReadOptions,
    ) -> Result<Option<Slice>> {
        match self.snapshot {
            Some(TimedSnapshot { snapshot, .. }) => snapshot.get_with(keyspace, key, options),
            None => keyspace.get_with(key, options),
        }
    }

    fn multi_get(&self, keyspace: &Keyspace, model: &Model) -> Result<Vec<Option<Slice>>> {
        match self.snapshot {
            Some(TimedSnapshot { snapshot, .. }) => snapshot.multi_get(keyspace, model.keys()),
            None => keyspace.multi_get(model.keys()),
        }
    }

    pub(crate) fn iter(&self, keyspace: &Keyspace) -> Range {
        match self.snapshot {
            Some(TimedSnapshot { snapshot, .. }) => snapshot.iter(keyspace),
            None => keyspace.iter(),
        }
    }

    pub(crate) fn prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Range {
        match self.snapshot {
            Some(TimedSnapshot { snapshot, .. }) => snapshot.prefix(keyspace, prefix),
            None => keyspace.prefix(prefix),
        }
    }

    fn cursor(&self, keyspace: &Keyspace, options: &ReadOptions) -> Result<KeyspaceCursor> {
        match self.snapshot {
            Some(TimedSnapshot { snapshot, .. }) => snapshot.cursor(keyspace, options),
            None => keyspace.cursor(options),
        }
    }

    /// Returns the number of visible commits of a writer.
    ///
    /// # Errors
    /// Returns an error if a read fails or the counters of the writer differ. The counters differ if a commit is
    /// visible only in part, or if a commit was applied twice.
    pub(crate) fn commits_of(&self, writer: u64) -> Outcome<u64> {
        let read = |keyspace: &Keyspace, key: Vec<u8>| {
            let value =
                self.get(keyspace, &key).map_err(|error| format!("a counter: {error:?}"))?;
            number(value.as_deref())
        };
        let mut counts = vec![read(&self.keyspaces[0], merged_key(writer))?];
        for keyspace in &self.keyspaces[..KEYSPACES.len()] {
            counts.push(read(keyspace, counter_key(writer))?);
        }
        match counts.iter().all(|count| *count == counts[0]) {
            true => Ok(counts[0]),
            false => Err(format!(
                "the counters of writer {writer} differ: {counts:?}, by merges and by keyspace"
            )),
        }
    }

    /// Compares all entries with the model, using `get`, `multi_get`, cursors, and scans in both directions.
    ///
    /// `counts` has the number of commits of each writer, followed by the numbers of keyspace churn steps and of loads.
    ///
    /// # Errors
    /// Returns an error for the first difference from the model.
    pub(crate) fn check(&self, seed: u64, counts: &[u64]) -> Outcome {
        let [commits @ .., steps, loads] = counts else {
            return Err("there are no counts".to_owned());
        };
        sessions::check(self, &self.keyspaces[SESSIONS], seed, commits)?;
        loads::check(self, seed, *loads)?;
        let mut rng = TestRng::new(mix_seeds(seed, counts.iter().sum()));
        for (keyspace, model) in self.keyspaces.iter().zip(&expected(seed, commits, *steps)) {
            let wrong = |what: String| format!("{}: {what}", keyspace.name());
            self.check_random_reads(keyspace, model, &mut rng).map_err(wrong)?;
            compare(self.iter(keyspace), model.iter()).map_err(wrong)?;
            compare(self.iter(keyspace).rev(), model.iter().rev())
                .map_err(|what| wrong(format!("backward: {what}")))?;
            let values = self.multi_get(keyspace, model);
            let values = values.map_err(|error| wrong(format!("multi_get: {error:?}")))?;
            for ((key, expected), multi_got) in model.iter().zip(values) {
                let got = self.get(keyspace, key);
                let got = got.map_err(|error| wrong(format!("get: {error:?}")))?;
                for (method, value) in [("get", got), ("multi_get", multi_got)] {
                    if value.as_deref() != Some(expected) {
                        return Err(wrong(format!("{method} {} differs", key.escape_ascii())));
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares random prefixes, lookups and cursor moves with the model. All of them have random read options.
    fn check_random_reads(&self, keyspace: &Keyspace, model: &Model, rng: &mut TestRng) -> Outcome {
        let keys: Vec<&Vec<u8>> = model.keys().collect();
        let draw_key = |rng: &mut TestRng| match keys.is_empty() || rng.is_one_in(8) {
            true => rng.bytes(2),
            false => rng.choose(&keys).to_vec(),
        };
        let pairs: Pairs =
            model.iter().map(|(key, value)| (key[..].into(), value[..].into())).collect();
        let failed = |error| format!("a read with options: {error:?}");
        let options = random_read_options(rng);
        let cursor = self.cursor(keyspace, &options).map_err(failed)?;
        let mut cursor = CheckedCursor::new(cursor, &pairs, |_| true);
        for _ in 0..RANDOM_READS {
            let key = draw_key(rng);
            cursor.apply(&CursorMove::random(rng, key[..].into()))?;
            let options = random_read_options(rng);
            match self.get_with(keyspace, &key, &options) {
                Ok(found) if found.as_deref() == model.get(&key).map(Vec::as_slice) => {}
                // The options allow no file read.
                Err(Error::WouldBlock | Error::Deadline { .. }) => {}
                Err(error) => return Err(failed(error)),
                Ok(_) => return Err(format!("get_with {} differs", key.escape_ascii())),
            }
        }
        let mut prefix = draw_key(rng);
        prefix.truncate(rng.below(4));
        let expected = model.iter().filter(|(key, _)| key.starts_with(&prefix));
        let wrong = |what| format!("prefix {}: {what}", prefix.escape_ascii());
        compare(self.prefix(keyspace, &prefix), expected.clone()).map_err(wrong)?;
        compare(self.prefix(keyspace, &prefix).rev(), expected.rev()).map_err(wrong)
    }
}

/// Returns the expected contents of each of [`KEYSPACES`], after the commits of each writer and the keyspace churn steps.
fn expected(seed: u64, commits: &[u64], steps: u64) -> [Model; KEYSPACES.len()] {
    let mut models = [const { Model::new() }; KEYSPACES.len()];
    for (writer, &count) in (0..).zip(commits) {
        // The contents of each writer are computed in a separate map, because updates of small maps are faster. The
        // writers have disjoint keys.
        let mut own = [const { Model::new() }; KEYSPACES.len()];
        for number in 1..=count {
            for (keyspace, change) in draw_changes(seed, writer, number).0 {
                change.apply(keyspace, &mut own[keyspace]);
            }
        }
        if count > 0 {
            for model in &mut own {
                model.insert(counter_key(writer), count.to_le_bytes().to_vec());
            }
            own[0].insert(merged_key(writer), count.to_le_bytes().to_vec());
        }
        for (model, own) in models.iter_mut().zip(own) {
            model.extend(own);
        }
    }
    models[0].extend(keyspace_churn::expected_note(steps));
    models
}

/// Compares a scan with its expected entries.
pub(crate) fn compare<'a>(
    scan: impl Iterator<Item = Result<(Slice, Slice)>>,
    mut expected: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
) -> Outcome {
    for item in scan {
        let (key, value) = item.map_err(|error| format!("a scan: {error:?}"))?;
        match expected.next() {
            Some((model_key, model_value)) if *key == **model_key && *value == **model_value => {}
            other => {
                let wanted = other.map_or("the end".to_owned(), |(key, value)| {
                    format!("{} of {} bytes", key.escape_ascii(), value.len())
                });
                let (found, bytes) = (key.escape_ascii(), value.len());
                return Err(format!("{found} of {bytes} bytes, not {wanted}"));
            }
        }
    }
    match expected.next() {
        Some((key, _)) => Err(format!("{} is missing", key.escape_ascii())),
        None => Ok(()),
    }
}
