//! Compares the contents of keyspaces or of a snapshot with the model.

use lsmx::{Keyspace, Range, Result, Slice, Snapshot};

use crate::Outcome;
use crate::commits::{Model, draw_changes};
use crate::{KEYSPACES, counter_key, keyspace_churn, merged_key, number};

/// Read access to keyspaces, either to the newest state or to a snapshot.
#[derive(Clone, Copy)]
pub(crate) struct KeyspaceView<'a> {
    pub(crate) keyspaces: &'a [Keyspace],
    /// If `None`, reads return the newest state.
    pub(crate) snapshot: Option<&'a Snapshot>,
}

impl KeyspaceView<'_> {
    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>> {
        match self.snapshot {
            Some(snapshot) => snapshot.get(keyspace, key),
            None => keyspace.get(key),
        }
    }

    fn multi_get(&self, keyspace: &Keyspace, model: &Model) -> Result<Vec<Option<Slice>>> {
        match self.snapshot {
            Some(snapshot) => snapshot.multi_get(keyspace, model.keys()),
            None => keyspace.multi_get(model.keys()),
        }
    }

    fn iter(&self, keyspace: &Keyspace) -> Range {
        match self.snapshot {
            Some(snapshot) => snapshot.iter(keyspace),
            None => keyspace.iter(),
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
        for keyspace in self.keyspaces {
            counts.push(read(keyspace, counter_key(writer))?);
        }
        match counts.iter().all(|count| *count == counts[0]) {
            true => Ok(counts[0]),
            false => Err(format!(
                "the counters of writer {writer} differ: {counts:?}, by merges and by keyspace"
            )),
        }
    }

    /// Compares all entries with the model, using `get`, `multi_get`, and scans in both directions.
    ///
    /// `counts` has the number of commits of each writer, followed by the number of keyspace churn steps.
    ///
    /// # Errors
    /// Returns an error for the first difference from the model.
    pub(crate) fn check(&self, seed: u64, counts: &[u64]) -> Outcome {
        for (keyspace, model) in self.keyspaces.iter().zip(&expected(seed, counts)?) {
            let wrong = |what: String| format!("{}: {what}", keyspace.name());
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
}

/// Returns the expected contents of each keyspace.
///
/// `counts` has the number of commits of each writer, followed by the number of keyspace churn steps.
fn expected(seed: u64, counts: &[u64]) -> Outcome<[Model; KEYSPACES.len()]> {
    let mut models = [const { Model::new() }; KEYSPACES.len()];
    let (steps, counts) = counts.split_last().ok_or("there are no counts")?;
    for (writer, &count) in (0..).zip(counts) {
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
    models[0].extend(keyspace_churn::expected_note(*steps));
    Ok(models)
}

/// Compares a scan with its expected entries.
fn compare<'a>(
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
