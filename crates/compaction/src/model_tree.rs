//! A model of a tree for tests. Each file is a set of keys in memory, and jobs are executed on these sets. Outputs,
//! splits and lookups are therefore exact, and nothing is read from disk.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::error::Error;
use crate::ids::FileId;
use crate::job::{Job, JobKind};
use crate::key_range::{Key, KeyRange};
use crate::output_splitter::OutputSplitter;
use crate::shape::TreeShape;
use crate::table_meta::{ExpiringBytes, ExpirySummary, TableMeta};
use crate::tree_edit::TreeUpdate;

/// Size of an entry in a file, in bytes.
pub const ENTRY_BYTES: u64 = 100;
/// Bytes of an entry without its value.
const KEY_BYTES: u64 = 16;

/// One version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// User key.
    pub key: u32,
    /// Sequence number.
    pub seq: u64,
    /// Whether the entry deletes the key.
    pub is_tombstone: bool,
    /// Write time in microseconds.
    pub written_us: u64,
    /// Expiry time in microseconds, if the entry expires.
    pub expiry_us: Option<u64>,
}

impl Entry {
    /// Returns whether the entry has expired at a time.
    fn has_expired(&self, time_us: u64) -> bool {
        self.expiry_us.is_some_and(|expiry_us| expiry_us <= time_us)
    }
}

/// Amount of work done on a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelTotals {
    /// Number of merges and rewrites.
    pub merges: u64,
    /// Number of trivial moves.
    pub moves: u64,
    /// Bytes written by flushes.
    pub flushed_bytes: u64,
    /// Bytes read by merges and rewrites.
    pub read_bytes: u64,
    /// Bytes written by merges and rewrites.
    pub written_bytes: u64,
}

impl ModelTotals {
    /// Returns the bytes read and written by merges and rewrites.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }
}

/// A tree, the contents of its files, and the expected results of lookups.
#[derive(Clone, Debug)]
pub struct ModelTree {
    /// The tree.
    pub shape: TreeShape,
    /// Entries of each file, in key order.
    pub files: HashMap<FileId, Vec<Entry>>,
    /// Newest entry of each key: the expected result of a lookup.
    pub newest: BTreeMap<u32, Entry>,
    /// Work done so far.
    pub totals: ModelTotals,
    file_next: u64,
    seq_next: u64,
    /// Time to live of entries that are written, in microseconds.
    ttl_us: Option<u64>,
    /// Time of the snapshot.
    snapshot_us: Option<u64>,
}

fn encode_model_key(key: u32) -> Key {
    Key::copy_from_slice(&key.to_be_bytes())
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Returns the summary of expiry times, which are in ascending order. `total` is the number of all entries.
fn summarize_expiry_times(times: &[u64], total: u64) -> Option<ExpirySummary> {
    let (&earliest_us, &latest_us) = (times.first()?, times.last()?);
    let median_us = *times.get((times.len() - 1) / 2)?;
    let entries = len_u64(times.len());
    let (expiring, total) = (entries * ENTRY_BYTES, total * ENTRY_BYTES);
    let bytes = Some(ExpiringBytes { expiring, total, median_us });
    Some(ExpirySummary { entries, earliest_us, median_us, latest_us, bytes })
}

impl ModelTree {
    /// Returns an empty tree with these target sizes.
    #[must_use]
    pub fn new(memtable_entries: u64, table_entries: u64) -> ModelTree {
        ModelTree {
            shape: TreeShape {
                memtable_bytes: memtable_entries * ENTRY_BYTES,
                table_bytes: table_entries * ENTRY_BYTES,
                ..TreeShape::default()
            },
            files: HashMap::new(),
            newest: BTreeMap::new(),
            totals: ModelTotals::default(),
            file_next: 1,
            seq_next: 1,
            ttl_us: None,
            snapshot_us: None,
        }
    }

    /// Registers a single snapshot at the current time, or none. Jobs keep tombstones that are newer than the snapshot,
    /// and entries that expire later. In contrast to the engine, they drop old versions of a key even if the snapshot can
    /// see them.
    pub fn set_snapshot(&mut self, seq: Option<u64>) {
        (self.shape.oldest_snapshot, self.shape.newest_snapshot) = (seq, seq);
        self.snapshot_us = seq.map(|_| self.shape.now_us);
        self.advance_us(0);
    }

    /// Sets the time to live of entries that are written from now on.
    pub fn set_ttl(&mut self, ttl_us: Option<u64>) {
        self.ttl_us = ttl_us;
    }

    /// Advances the time.
    pub fn advance_us(&mut self, us: u64) {
        self.shape.now_us += us;
        let now_us = self.shape.now_us;
        self.shape.expiry_limit_us = self.snapshot_us.map_or(now_us, |us| us.min(now_us));
    }

    /// Stores a new file with the given entries, which are in key order. Returns `None` if there are no entries.
    fn add_file(&mut self, entries: Vec<Entry>) -> Option<Arc<TableMeta>> {
        let range = KeyRange::new(
            encode_model_key(entries.first()?.key),
            encode_model_key(entries.last()?.key),
        );
        let id = FileId(self.file_next);
        self.file_next += 1;
        let tombstones = || entries.iter().filter(|entry| entry.is_tombstone);
        let (count, tombstone_count) = (len_u64(entries.len()), len_u64(tombstones().count()));
        let mut expiry_times: Vec<u64> =
            entries.iter().filter_map(|entry| entry.expiry_us).collect();
        expiry_times.sort_unstable();
        let file = TableMeta {
            bytes: count * ENTRY_BYTES,
            entries: count,
            tombstones: tombstone_count,
            tombstone_seq_smallest: tombstones().map(|entry| entry.seq).min(),
            value_bytes: (count - tombstone_count) * (ENTRY_BYTES - KEY_BYTES),
            oldest_tombstone_us: tombstones().map(|entry| entry.written_us).min(),
            expiry: summarize_expiry_times(&expiry_times, count),
            seq_smallest: entries.iter().map(|entry| entry.seq).min()?,
            seq_largest: entries.iter().map(|entry| entry.seq).max()?,
            last_read_us: self.shape.now_us,
            created_us: self.shape.now_us,
            ..TableMeta::new(id, range)
        };
        self.files.insert(id, entries);
        Some(Arc::new(file))
    }

    /// Writes keys and flushes them. The flag of a key states whether it is deleted. Each file of the new run has at
    /// most `file_entries` entries.
    ///
    /// # Errors
    ///
    /// Fails if the flushed run is invalid.
    pub fn flush(&mut self, writes: &[(u32, bool)], file_entries: usize) -> Result<(), Error> {
        let mut memtable = BTreeMap::new();
        for &(key, is_tombstone) in writes {
            self.advance_us(1);
            let written_us = self.shape.now_us;
            let ttl_us = self.ttl_us.filter(|_| !is_tombstone);
            let expiry_us = ttl_us.map(|ttl_us| written_us + ttl_us);
            let entry = Entry { key, seq: self.seq_next, is_tombstone, written_us, expiry_us };
            self.seq_next += 1;
            memtable.insert(key, entry);
            self.newest.insert(key, entry);
        }
        let entries: Vec<Entry> = memtable.into_values().collect();
        self.totals.flushed_bytes += len_u64(entries.len()) * ENTRY_BYTES;
        let chunks = entries.chunks(file_entries.max(1));
        let files = chunks.filter_map(|chunk| self.add_file(chunk.to_vec())).collect();
        let flushed = self.shape.with_flushed_run(files)?;
        self.set_shape(flushed);
        Ok(())
    }

    /// Replaces the tree. In debug builds, checks that applying the edit to the old tree gives the same tree.
    fn set_shape(&mut self, update: TreeUpdate) {
        let TreeUpdate { shape, edit } = update;
        if cfg!(debug_assertions) {
            let replayed = self.shape.apply_edit(&edit);
            debug_assert_eq!(replayed, Ok(()));
            debug_assert_eq!(self.shape, shape);
        }
        self.shape = shape;
    }

    /// Executes a job and applies it to the tree.
    ///
    /// # Errors
    ///
    /// Fails if the job is invalid.
    pub fn execute_job(&mut self, job: &Job) -> Result<(), Error> {
        let input_bytes = job.input_bytes(&self.shape)?;
        let outputs = match job.kind {
            JobKind::Merge | JobKind::Rewrite => self.merge(job)?,
            JobKind::Move | JobKind::Drop => Vec::new(),
        };
        let outputs: Vec<Arc<TableMeta>> =
            outputs.into_iter().filter_map(|output| self.add_file(output)).collect();
        let written_bytes: u64 = outputs.iter().map(|output| output.bytes).sum();
        let applied = self.shape.apply_job(job, outputs.clone())?;
        if cfg!(debug_assertions) {
            let in_place = self.shape.clone().apply_job_in_place(job, outputs)?;
            debug_assert_eq!(in_place, applied);
        }
        match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                self.totals.merges += 1;
                self.totals.read_bytes += input_bytes;
                self.totals.written_bytes += written_bytes;
            }
            JobKind::Move => self.totals.moves += 1,
            JobKind::Drop => {}
        }
        self.set_shape(applied);
        for file in job.input_files().filter(|_| job.kind != JobKind::Move) {
            let entries = self.files.remove(&file).unwrap_or_default();
            if job.kind == JobKind::Drop {
                entries.iter().for_each(|entry| self.forget_dropped_key(entry.key));
            }
        }
        Ok(())
    }

    /// Corrects the expected lookup result of a key whose entries a job may have dropped.
    fn forget_dropped_key(&mut self, key: u32) {
        match self.get(key) {
            Some(entry) => self.newest.insert(key, entry),
            None => self.newest.remove(&key),
        };
    }

    /// Returns the entries of each output. They contain the newest version of each key.
    fn merge(&self, job: &Job) -> Result<Vec<Vec<Entry>>, Error> {
        let mut newest: BTreeMap<u32, Entry> = BTreeMap::new();
        let inputs = job.input_files().filter_map(|file| self.files.get(&file));
        for entry in inputs.flatten() {
            let held = newest.entry(entry.key).or_insert(*entry);
            if entry.seq > held.seq {
                *held = *entry;
            }
        }
        // An entry that has expired for all readers is a tombstone.
        let (now_us, limit_us) = (self.shape.now_us, self.shape.expiry_limit_us);
        for entry in newest.values_mut().filter(|entry| entry.has_expired(limit_us)) {
            let (is_tombstone, written_us, expiry_us) = (true, now_us, None);
            *entry = Entry { is_tombstone, written_us, expiry_us, ..*entry };
        }
        let is_oldest_in_range = self.is_oldest_in_range(job)?;
        let snapshot = self.shape.oldest_snapshot;
        let is_obsolete = |entry: &Entry| {
            let is_held = snapshot.is_some_and(|snapshot| snapshot < entry.seq);
            is_oldest_in_range && entry.is_tombstone && !is_held
        };
        let mut splitter = OutputSplitter::new(&job.split, &self.shape);
        let mut outputs: Vec<Vec<Entry>> = Vec::new();
        for entry in newest.into_values().filter(|entry| !is_obsolete(entry)) {
            let bytes = outputs.last().map_or(0, |output| len_u64(output.len()) * ENTRY_BYTES);
            let split = splitter.should_split_before(&encode_model_key(entry.key), bytes);
            match outputs.last_mut() {
                Some(output) if !split => output.push(entry),
                _ => outputs.push(vec![entry]),
            }
        }
        Ok(outputs)
    }

    /// Returns whether the job can drop tombstones.
    ///
    /// Tombstones can be dropped if no file that stays in the tree overlaps the key range of the job. Only files of the
    /// newest input run and of older runs matter.
    fn is_oldest_in_range(&self, job: &Job) -> Result<bool, Error> {
        let range = job.input_key_range(&self.shape)?;
        let mut is_below = false;
        for (level, run) in self.shape.runs() {
            let input = job.inputs.iter().find(|i| i.level == level && i.run == run.id);
            is_below |= input.is_some();
            let stays = |file: &Arc<TableMeta>| !input.is_some_and(|i| i.files.contains(&file.id));
            if is_below && run.overlapping_files(&range).iter().any(stays) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the result of a lookup: the newest entry of a key.
    #[must_use]
    pub fn get(&self, key: u32) -> Option<Entry> {
        self.shape.runs().find_map(|(_, run)| {
            let file = run.find_file_for_key(&encode_model_key(key))?;
            let entries = self.files.get(&file.id)?;
            entries.binary_search_by_key(&key, |entry| entry.key).ok().map(|index| entries[index])
        })
    }

    /// Returns the first key for which a lookup returns a wrong result.
    #[must_use]
    pub fn find_wrong_lookup(&self) -> Option<u32> {
        let now_us = self.shape.now_us;
        let value = |entry: Option<Entry>| {
            entry.filter(|entry| !entry.is_tombstone && !entry.has_expired(now_us))
        };
        let is_wrong =
            |(key, newest): &(&u32, &Entry)| value(self.get(**key)) != value(Some(**newest));
        self.newest.iter().find(is_wrong).map(|(key, _)| *key)
    }

    /// Returns whether the tree refers to exactly the stored files.
    #[must_use]
    pub fn has_all_files(&self) -> bool {
        self.shape.files().count() == self.files.len()
            && self.shape.files().all(|file| self.files.contains_key(&file.id))
    }

    /// Formats the tree, one line per level.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (index, level) in self.shape.levels.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(text, "L{index}:");
            for run in &level.runs {
                let _ = write!(text, "  r{}", run.id.0);
                for file in &run.files {
                    let entries = self.files.get(&file.id).map_or(&[][..], Vec::as_slice);
                    let first = entries.first().map_or(0, |entry| entry.key);
                    let last = entries.last().map_or(0, |entry| entry.key);
                    let _ = write!(text, " {}[{first}..{last}]{}", file.id.0, file.bytes);
                }
            }
            text.push('\n');
        }
        text
    }
}
