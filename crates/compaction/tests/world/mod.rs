//! A tree whose files really hold keys: jobs are played on sets of numbers, so that outputs, cuts
//! and lookups are the real thing, without a byte of storage.

#![allow(dead_code, reason = "each test binary uses its part of this driver")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lsmx_compaction::{
    Applied, BusyFiles, CompactionPolicy, FileId, FileShape, Job, JobKind, Key, KeyRange, Level,
    OutputCutter, TreeShape,
};

/// Bytes that one entry takes in a file.
pub(crate) const ENTRY_BYTES: u64 = 100;

/// One version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: u32,
    pub(crate) seq: u64,
    pub(crate) tombstone: bool,
    /// When it was written.
    pub(crate) at_us: u64,
}

/// What a world has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) flushes: u64,
    pub(crate) merges: u64,
    pub(crate) moves: u64,
    pub(crate) flushed_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

impl Totals {
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) shape: TreeShape,
    pub(crate) files: HashMap<FileId, Vec<Entry>>,
    /// Newest version of every key: what lookups must find.
    pub(crate) model: BTreeMap<u32, Entry>,
    pub(crate) totals: Totals,
    file_next: u64,
    seq_next: u64,
}

pub(crate) fn key_bytes(key: u32) -> Key {
    Key::copy_from_slice(&key.to_be_bytes())
}

/// The entries that a job writes: the newest version of each key, cut as the rule says.
pub(crate) fn merge(
    shape: &TreeShape,
    job: &Job,
    inputs: &[&[Entry]],
    to_bottom: bool,
) -> Vec<Vec<Entry>> {
    let mut newest: BTreeMap<u32, Entry> = BTreeMap::new();
    for entry in inputs.iter().copied().flatten() {
        let held = newest.entry(entry.key).or_insert(*entry);
        if entry.seq > held.seq {
            *held = *entry;
        }
    }
    let mut cutter = OutputCutter::new(&job.cut, shape);
    let mut outputs: Vec<Vec<Entry>> = Vec::new();
    let held = |entry: &Entry| shape.oldest_snapshot.is_some_and(|snapshot| snapshot < entry.seq);
    let goes = |entry: &Entry| to_bottom && entry.tombstone && !held(entry);
    for entry in newest.into_values().filter(|entry| !goes(entry)) {
        let bytes = outputs.last().map_or(0, |output| output.len() as u64 * ENTRY_BYTES);
        if cutter.cut_before(&key_bytes(entry.key), bytes) || outputs.is_empty() {
            outputs.push(Vec::new());
        }
        outputs.last_mut().unwrap().push(entry);
    }
    outputs
}

impl World {
    pub(crate) fn new(memtable_entries: u64, table_entries: u64) -> World {
        World {
            shape: TreeShape {
                memtable_bytes: memtable_entries * ENTRY_BYTES,
                table_bytes: table_entries * ENTRY_BYTES,
                ..TreeShape::default()
            },
            files: HashMap::new(),
            model: BTreeMap::new(),
            totals: Totals::default(),
            file_next: 1,
            seq_next: 1,
        }
    }

    /// Says that one snapshot is registered, or none. Its versions are not kept, its tombstones are.
    pub(crate) fn snapshot(&mut self, seq: Option<u64>) {
        (self.shape.oldest_snapshot, self.shape.newest_snapshot) = (seq, seq);
    }

    /// Stores entries as a new file.
    fn file(&mut self, entries: Vec<Entry>) -> FileShape {
        let id = FileId(self.file_next);
        self.file_next += 1;
        let (first, last) = (entries.first().unwrap().key, entries.last().unwrap().key);
        let tombstones = || entries.iter().filter(|entry| entry.tombstone);
        let count = entries.len() as u64;
        let dead = tombstones().count() as u64;
        let file = FileShape {
            bytes: count * ENTRY_BYTES,
            entries: count,
            tombstones: dead,
            tombstone_seq_smallest: tombstones().map(|entry| entry.seq).min(),
            value_bytes: (count - dead) * (ENTRY_BYTES - 16),
            oldest_tombstone_us: tombstones().map(|entry| entry.at_us).min(),
            seq_smallest: entries.iter().map(|entry| entry.seq).min().unwrap(),
            seq_largest: entries.iter().map(|entry| entry.seq).max().unwrap(),
            last_read_us: self.shape.now_us,
            created_us: self.shape.now_us,
            ..FileShape::new(id, KeyRange::new(key_bytes(first), key_bytes(last)))
        };
        self.files.insert(id, entries);
        file
    }

    /// Flushes writes of these keys, in this order; the run is cut after `cut` entries.
    pub(crate) fn flush(&mut self, writes: &[(u32, bool)], cut: usize) {
        let mut memtable = BTreeMap::new();
        for &(key, tombstone) in writes {
            self.shape.now_us += 1;
            let entry = Entry { key, seq: self.seq_next, tombstone, at_us: self.shape.now_us };
            self.seq_next += 1;
            memtable.insert(key, entry);
            self.model.insert(key, entry);
        }
        let entries: Vec<Entry> = memtable.into_values().collect();
        self.totals.flushed_bytes += entries.len() as u64 * ENTRY_BYTES;
        self.totals.flushes += u64::from(!entries.is_empty());
        let files = entries.chunks(cut.max(1)).map(|c| self.file(c.to_vec())).collect();
        let (shape, run) = self.shape.with_flush(files).unwrap();
        assert_eq!(run.is_some(), !writes.is_empty());
        self.shape = shape;
    }

    /// Ends a job: what it writes is worked out and put into the tree.
    pub(crate) fn finish(&mut self, job: &Job) -> Applied {
        // A tombstone may go when nothing older than the job overlaps it: here, when the job takes
        // part of every run that stands below its newest one, and all of what overlaps there.
        let to_bottom = self.nothing_older_overlaps(job);
        let input_bytes = job.input_bytes(&self.shape).unwrap();
        let outputs = match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                let inputs: Vec<&[Entry]> =
                    job.input_files().map(|file| &self.files[&file][..]).collect();
                merge(&self.shape, job, &inputs, to_bottom)
            }
            JobKind::Move | JobKind::Drop => Vec::new(),
        };
        let outputs: Vec<FileShape> = outputs.into_iter().map(|o| self.file(o)).collect();
        match job.kind {
            JobKind::Merge | JobKind::Rewrite => {
                self.totals.merges += 1;
                self.totals.read_bytes += input_bytes;
                self.totals.written_bytes += outputs.iter().map(|o| o.bytes).sum::<u64>();
            }
            JobKind::Move => self.totals.moves += 1,
            JobKind::Drop => {}
        }
        let applied = match self.shape.apply(job, outputs.clone()) {
            Ok(applied) => applied,
            Err(error) => panic!("apply failed: {error}\n{job}\n{}", describe(&self.shape)),
        };
        // Where nobody shares it the tree is changed in place, to the same end.
        let in_place = std::mem::take(&mut self.shape).into_applied(job, outputs).unwrap();
        assert_eq!(in_place.shape, applied.shape);
        assert_eq!(in_place.placed, applied.placed);
        assert_eq!(in_place.run_orders, applied.run_orders);
        for file in &applied.removed {
            assert!(self.files.remove(file).is_some());
        }
        self.shape = applied.shape.clone();
        applied
    }

    fn nothing_older_overlaps(&self, job: &Job) -> bool {
        let range = job.range(&self.shape).unwrap();
        let mut below = false;
        for (level, run) in self.shape.runs() {
            let input = job.inputs.iter().find(|i| i.level == level && i.run == run.id);
            below |= input.is_some();
            let taken = |file: &Arc<FileShape>| input.is_some_and(|i| i.files.contains(&file.id));
            if below && run.overlapping(&range).iter().any(|file| !taken(file)) {
                return false;
            }
        }
        true
    }

    /// Runs jobs one after the other until the policy rests; returns how many there were.
    pub(crate) fn settle(&mut self, policy: &dyn CompactionPolicy) -> usize {
        for jobs in 0..100_000 {
            let Some(job) = policy.pick(&self.shape, &BusyFiles::default()) else { return jobs };
            self.finish(&job);
        }
        panic!("{} does not come to rest:\n{}", policy.name(), describe(&self.shape));
    }

    /// The version that a lookup finds: in the newest run that holds the key.
    pub(crate) fn get(&self, key: u32) -> Option<Entry> {
        self.shape.runs().find_map(|(_, run)| {
            let file = run.file_for(&key_bytes(key))?;
            let entries = &self.files[&file.id];
            entries.binary_search_by_key(&key, |entry| entry.key).ok().map(|i| entries[i])
        })
    }

    /// Every invariant: those of the shape, and that every lookup finds the newest version.
    pub(crate) fn check(&self) {
        if let Err(error) = self.shape.check() {
            panic!("{error}\n{}", describe(&self.shape));
        }
        assert_eq!(self.shape.files().count(), self.files.len(), "files lost or left behind");
        for (key, newest) in &self.model {
            let found = self.get(*key);
            let visible = found.filter(|entry| !entry.tombstone);
            let expected = Some(*newest).filter(|entry| !entry.tombstone);
            assert_eq!(visible, expected, "key {key}\n{}", describe(&self.shape));
        }
    }
}

/// A line per level.
pub(crate) fn describe(shape: &TreeShape) -> String {
    let mut text = String::new();
    for (index, level) in shape.levels.iter().enumerate() {
        text += &format!("{}:", Level::from_index(index).unwrap());
        for run in &level.runs {
            text += &format!("  r{}", run.id.0);
            for file in &run.files {
                let (a, b) = (&file.range.smallest, &file.range.largest);
                let kib = file.bytes;
                text += &format!(" {}[{}..{}]{kib}", file.id.0, show(a), show(b));
            }
        }
        text.push('\n');
    }
    text
}

fn show(key: &Key) -> String {
    match <[u8; 4]>::try_from(key.as_ref()) {
        Ok(bytes) if !key.is_ascii() || bytes[0] == 0 => u32::from_be_bytes(bytes).to_string(),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}
