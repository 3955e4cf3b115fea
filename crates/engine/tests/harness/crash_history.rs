//! Short histories with power losses, which `proptest` generates and shrinks.
//!
//! A failing history is shrunk to a few steps. The failure message contains the source of a test with these steps.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::{CrashImage, MemVfs};
use lsmx::{Db, Durability, KeyspaceOptions, Options, RmwMode, WalOptions, WriteBatch};
use lsmx_testkit::{panic_text, shrink_list, with_silent_panics};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use super::{Outcome, oracle};

/// Number of keys. Each key is one byte.
const KEYS: u8 = 6;
/// Key of the entry that stores the number of commits.
const COUNTER: &[u8] = b"number of commits";
const VALUE_BYTES_MAX: u16 = 300;
const STEPS_MAX: usize = 60;
/// Largest `delay` of [`Step::PowerLoss`].
const DELAY_MAX: u16 = 40;

/// A step of a history. Its `Debug` output is a Rust expression.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Puts a value with this number of bytes: `Put(key, value_bytes)`.
    Put(u8, u16),
    Delete(u8),
    /// Deletes all keys in an inclusive range: `DeleteRange(first, last)`.
    DeleteRange(u8, u8),
    /// Merges an operand that appends `+` to the value.
    Merge(u8),
    /// Compares the value of a key with the model.
    Get(u8),
    Sync,
    Flush,
    CompactAll,
    /// Closes and opens the database.
    Reopen,
    /// Schedules a power loss before the `delay`-th changing file system operation after this step. If fewer operations
    /// follow, the power loss occurs at the end of the history. A later `PowerLoss` replaces a scheduled one.
    PowerLoss {
        delay: u16,
        image: CrashImage,
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS;
    let power_loss = (1..=DELAY_MAX, proptest::sample::select(&CrashImage::ALL[..]), any::<u64>());
    prop_oneof![
        8 => (key(), 0..=VALUE_BYTES_MAX).prop_map(|(key, bytes)| Step::Put(key, bytes)),
        2 => key().prop_map(Step::Delete),
        1 => (key(), key()).prop_map(|(one, other)| Step::DeleteRange(one.min(other), one.max(other))),
        6 => key().prop_map(Step::Merge),
        6 => key().prop_map(Step::Get),
        2 => Just(Step::Sync),
        2 => Just(Step::Flush),
        1 => Just(Step::CompactAll),
        1 => Just(Step::Reopen),
        3 => power_loss.prop_map(|(delay, image, seed)| Step::PowerLoss { delay, image, seed }),
    ]
}

type Contents = BTreeMap<u8, Vec<u8>>;

/// Expected contents after each commit, and the number of commits that must survive a power loss.
#[derive(Debug)]
struct Promises {
    /// Contents after each started commit. The first element is the empty database.
    contents: Vec<Contents>,
    /// Number of commits that must survive.
    synced: usize,
}

/// The scheduled power loss, and the disk image of the last power loss.
#[derive(Debug, Default)]
struct PowerSupply {
    /// Remaining operations up to and including the one before which power is lost, the kind of image, and its seed.
    next: Option<(u16, CrashImage, u64)>,
    /// The disk image, and the number of commits that the image must contain.
    lost: Option<(MemVfs, usize)>,
}

struct Player {
    disk: MemVfs,
    db: Db,
    promises: Arc<Mutex<Promises>>,
    power: Arc<Mutex<PowerSupply>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a history. Background jobs run on the calling thread, so the result depends only on the steps.
///
/// # Errors
/// If a call fails, or if a value differs from the model. Also if a reopened database is not a prefix of the commits that
/// includes all synced commits.
pub(crate) fn play(steps: &[Step]) -> Outcome {
    let disk = MemVfs::new();
    let promises = Promises { contents: vec![Contents::new()], synced: 0 };
    let mut player = Player {
        db: open(&disk)?,
        disk,
        promises: Arc::new(Mutex::new(promises)),
        power: Arc::default(),
    };
    player.observe();
    for (index, step) in steps.iter().enumerate() {
        player.apply(step).map_err(|what| format!("step {index}, {step:?}: {what}"))?;
        player.restart_after_power_loss()?;
    }
    let next = lock(&player.power).next.take();
    let (_, image, seed) = next.unwrap_or((0, CrashImage::Drop, 0));
    let disk = player.disk.crash(image, seed);
    let synced = lock(&player.promises).synced;
    lock(&player.power).lost = Some((disk, synced));
    player.restart_after_power_loss()
}

fn open(disk: &MemVfs) -> Outcome<Db> {
    let keyspace = KeyspaceOptions::default()
        .memtable_bytes(1 << 10)
        .table_bytes(1 << 10)
        .block_bytes(128)
        .merge_operator(Append::default())
        .rmw_mode(RmwMode::Adaptive);
    let wal = WalOptions { segment_bytes: 1 << 10, ..WalOptions::default() };
    oracle::open(
        disk,
        Options::default().background(Background::Inline).wal(wal).keyspace_defaults(keyspace),
    )
}

fn failed(error: lsmx::Error) -> String {
    format!("fails: {error:?}")
}

impl Player {
    /// Installs an observer that captures a disk image at the next scheduled power loss.
    fn observe(&self) {
        let (power, promises) = (Arc::clone(&self.power), Arc::clone(&self.promises));
        self.disk.set_observer(Some(Arc::new(move |disk, _| {
            let mut power = lock(&power);
            let Some((delay, image, seed)) = power.next.take() else { return };
            match delay {
                1 => power.lost = Some((disk.crash(image, seed), lock(&promises).synced)),
                _ => power.next = Some((delay - 1, image, seed)),
            }
        })));
    }

    fn apply(&mut self, step: &Step) -> Outcome {
        match *step {
            Step::Put(key, bytes) => {
                let value = vec![b'a' + key; usize::from(bytes)];
                self.commit(
                    |contents| drop(contents.insert(key, value.clone())),
                    |batch, keyspace| batch.put(keyspace, [key], &value),
                )
            }
            Step::Delete(key) => self.commit(
                |contents| drop(contents.remove(&key)),
                |batch, keyspace| batch.delete(keyspace, [key]),
            ),
            Step::DeleteRange(first, last) => self.commit(
                |contents| contents.retain(|key, _| !(first..=last).contains(key)),
                |batch, keyspace| batch.delete_range(keyspace, [first]..=[last]),
            ),
            Step::Merge(key) => self.commit(
                |contents| contents.entry(key).or_default().push(b'+'),
                |batch, keyspace| batch.merge(keyspace, [key], b"+"),
            ),
            Step::Get(key) => {
                let found = self.db.get([key]).map_err(failed)?.map(|value| value.to_vec());
                let promises = lock(&self.promises);
                let expected = promises.contents.last().and_then(|contents| contents.get(&key));
                match found.as_ref() == expected {
                    true => Ok(()),
                    false => Err(format!("{found:?} instead of {expected:?}")),
                }
            }
            Step::Sync => self.db.sync().map_err(failed).map(|()| self.mark_synced()),
            Step::Flush => self.db.flush().map_err(failed).map(|()| self.mark_synced()),
            Step::CompactAll => {
                let keyspace = self.db.default_keyspace();
                keyspace.compact_range::<&[u8]>(..).map_err(failed)
            }
            Step::Reopen => {
                self.db.close(None).map_err(failed)?;
                self.mark_synced();
                self.db = open(&self.disk)?;
                Ok(())
            }
            Step::PowerLoss { delay, image, seed } => {
                lock(&self.power).next = Some((delay, image, seed));
                Ok(())
            }
        }
    }

    /// Commits `write` and the new number of commits in one batch. `change` applies the same write to the model.
    fn commit(
        &self,
        change: impl FnOnce(&mut Contents),
        write: impl FnOnce(&mut WriteBatch, &lsmx::Keyspace),
    ) -> Outcome {
        let mut batch = WriteBatch::new();
        let keyspace = self.db.default_keyspace();
        write(&mut batch, &keyspace);
        {
            let contents = &mut lock(&self.promises).contents;
            batch.put(&keyspace, COUNTER, contents.len().to_le_bytes());
            let mut after = contents[contents.len() - 1].clone();
            change(&mut after);
            contents.push(after);
        }
        self.db.write(batch, Durability::Buffered).map_err(failed)
    }

    fn mark_synced(&self) {
        let mut promises = lock(&self.promises);
        // If power was lost during the call, the observer has already recorded the number of commits synced before it.
        promises.synced = promises.contents.len() - 1;
    }

    /// After a power loss, opens the disk image and compares the contents with the expected contents. Otherwise does
    /// nothing.
    fn restart_after_power_loss(&mut self) -> Outcome {
        let Some((disk, synced)) = lock(&self.power).lost.take() else { return Ok(()) };
        lock(&self.power).next = None;
        self.disk.set_observer(None);
        self.db = open(&disk)?;
        self.disk = disk;
        let mut promises = lock(&self.promises);
        let number = self.db.get(COUNTER).map_err(failed)?;
        let number = number
            .map_or(0, |bytes| bytes.as_ref().try_into().map_or(usize::MAX, usize::from_le_bytes));
        let attempted = promises.contents.len() - 1;
        if number < synced || number > attempted {
            return Err(format!("{number} commits, {synced} were synced, {attempted} attempted"));
        }
        let mut found = Contents::new();
        for entry in self.db.default_keyspace().iter() {
            let (key, value) = entry.map_err(failed)?;
            if &*key != COUNTER {
                found.insert(key[0], value.to_vec());
            }
        }
        let expected = &promises.contents[number];
        if found != *expected {
            return Err(format!("{found:?} after {number} commits, instead of {expected:?}"));
        }
        promises.contents.truncate(number + 1);
        promises.synced = synced;
        drop(promises);
        self.observe();
        Ok(())
    }
}

/// Runs `cases` random histories.
///
/// # Errors
/// If a history fails. Returns a report with the failure and the shrunk history as a test, and the number of steps of the
/// shrunk history.
pub(crate) fn play_random(cases: u64, seed: u64) -> Result<(), (String, usize)> {
    let config = ProptestConfig {
        cases: u32::try_from(cases).unwrap_or(u32::MAX),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut seed_bytes = [0; 32];
    seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes);
    let steps = proptest::collection::vec(step(), 1..STEPS_MAX);
    let run = TestRunner::new_with_rng(config, rng)
        .run(&steps, |steps| play(&steps).map_err(TestCaseError::fail));
    match run {
        Ok(()) => Ok(()),
        Err(TestError::Fail(_, steps)) => {
            // `proptest` removes each step at most once. A step may become unnecessary when another one is removed.
            let fails = |steps: &[Step]| play_catching_panics(steps).is_err();
            let steps = shrink_list(&steps, Duration::from_secs(20), fails);
            let why = play_catching_panics(&steps).err().unwrap_or_default();
            Err((format!("{why}\n\n{}", print_as_test(&steps)), steps.len()))
        }
        Err(aborted) => Err((aborted.to_string(), 0)),
    }
}

fn play_catching_panics(steps: &[Step]) -> Outcome {
    with_silent_panics(|| catch_unwind(AssertUnwindSafe(|| play(steps))))
        .unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

/// Returns the source of a test that plays the steps.
pub(crate) fn print_as_test(steps: &[Step]) -> String {
    let mut text = String::from(
        "#[test]\n\
         fn history_found_by_proptest_passes() {\n    \
             use lsmx::vfs::CrashImage::*;\n\n    \
             use crate::harness::crash_history::{Step::*, play};\n\n    \
             play(&[\n",
    );
    for step in steps {
        text.push_str(&format!("        {step:?},\n"));
    }
    text.push_str("    ])\n    .unwrap();\n}\n");
    text
}
