//! Histories of a database whose log is archived.
//!
//! A model has the contents after each commit. A checkpoint and the chunks of the archiver must restore the contents after each archived
//! commit. The archiver must end at changes that are not in the log. After a power loss, the database must contain all archived
//! commits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Db, Error, KeyspaceOptions, LogArchiveEnd, LogArchiver, LogChunk, LogExtender, Options, SeqNo,
    WriteBatch,
};
use lsmx_testkit::TestRng;

use super::Outcome;
use super::small_database::{self, KINDS, durability, keyspace_options};

const DIR: &str = "db";
/// Number of operations of a history.
const STEPS: usize = 90;
const KEYS: u64 = 16;

/// Entries of all keyspaces, by name.
type Contents = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn options(vfs: Arc<dyn Vfs>) -> Options {
    small_database::options(Background::Inline).vfs(vfs)
}

fn contents(db: &Db) -> Contents {
    let entries = |name: &String| {
        let entries = db.open_keyspace(name, None).unwrap().iter().map(Result::unwrap);
        entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    };
    db.keyspaces().into_iter().map(|name| (name.clone(), entries(&name))).collect()
}

fn open(dir: &str, vfs: Arc<dyn Vfs>) -> lsmx::Result<Db> {
    let db = Db::open(dir, options(vfs))?;
    for name in db.keyspaces() {
        let kind = if KINDS.contains(&name.as_str()) { &name } else { "default" };
        db.keyspace(&name, keyspace_options(kind))?;
    }
    Ok(db)
}

/// An archive: the last sequence number of its checkpoint, and the chunks after it.
struct Archive {
    archiver: LogArchiver,
    checkpoint: String,
    first_seq: u64,
    last_seq: u64,
    chunks: Vec<LogChunk>,
}

struct History {
    disk: MemVfs,
    vfs: FaultVfs,
    db: Db,
    rng: TestRng,
    /// Contents by the last sequence number.
    states: BTreeMap<u64, Contents>,
    /// Contents between a change of the structure and the next commit, with the last sequence number.
    uncommitted: Vec<(u64, Contents)>,
    archives_begun: u64,
    archive: Archive,
    /// Whether the structure of the database has changed, or the database was resumed, since the archiver was created.
    is_changed: bool,
}

/// Plays a random history.
pub(crate) fn history_equals_the_model(seed: u64) -> Outcome {
    let disk = MemVfs::new();
    let vfs = FaultVfs::new(Arc::new(disk.clone()), seed);
    let db = open(DIR, Arc::new(vfs.clone())).unwrap();
    KINDS.iter().for_each(|kind| drop(db.keyspace(kind, keyspace_options(kind)).unwrap()));
    let archive = begin_archive(&db, "copy0");
    let mut history = History {
        disk,
        vfs,
        db,
        rng: TestRng::new(seed),
        states: BTreeMap::new(),
        uncommitted: Vec::new(),
        archives_begun: 1,
        archive,
        is_changed: false,
    };
    history.record_state();
    for step in 0..STEPS {
        history.step().map_err(|error| format!("seed {seed}, step {step}: {error}"))?;
    }
    history.end_archive().map_err(|error| format!("seed {seed}, end: {error}"))
}

fn begin_archive(db: &Db, checkpoint: &str) -> Archive {
    let archiver = db.archive_log(1 << 20).unwrap();
    db.checkpoint(checkpoint).unwrap();
    let last_seq = db.snapshot().seq().0;
    let (checkpoint, chunks) = (checkpoint.to_owned(), Vec::new());
    Archive { archiver, checkpoint, first_seq: last_seq, last_seq, chunks }
}

impl History {
    fn record_state(&mut self) {
        self.states.insert(self.db.snapshot().seq().0, contents(&self.db));
    }

    fn step(&mut self) -> Outcome {
        match self.rng.below(48) {
            0..=3 => self.db.flush().map_err(|error| error.to_string())?,
            4 => self.change_structure(),
            5 => return self.fail_and_resume(),
            6 => return self.restart_after_power_loss(),
            7 => return self.end_archive(),
            8..=19 => return self.read_chunk().map(drop),
            _ => self.commit(),
        }
        self.record_state();
        Ok(())
    }

    fn batch(&mut self) -> WriteBatch {
        let mut batch = WriteBatch::new();
        let names = self.db.keyspaces();
        for _ in 0..self.rng.between(1, 5) {
            let name = self.rng.choose(&names).clone();
            let keyspace = self.db.open_keyspace(&name, None).unwrap();
            let (key, value) = (format!("k{:02}", self.rng.below(KEYS)), self.rng.next_u64());
            let value = value.to_string().repeat(1 + self.rng.below(4_usize));
            match self.rng.below(9) {
                0 => batch.delete(&keyspace, key),
                1 => batch.delete_range(&keyspace, key.clone()..format!("{key}~")),
                2..=4 => batch.merge(&keyspace, key, value),
                _ => batch.put(&keyspace, key, value),
            }
        }
        batch
    }

    fn commit(&mut self) {
        let batch = self.batch();
        let sync = self.rng.is_one_in(3);
        self.db.write(batch, durability(sync)).unwrap();
    }

    /// Makes a change that is not in the log.
    fn change_structure(&mut self) {
        self.is_changed = true;
        let extra: Vec<_> =
            self.db.keyspaces().into_iter().filter(|name| name.starts_with('x')).collect();
        let new = format!("x{}", self.rng.next_u64());
        match (self.rng.below(5), extra.first()) {
            (0, Some(name)) => self.db.drop_keyspace(name).unwrap(),
            (1, Some(name)) => self.db.rename_keyspace(name, &new).unwrap(),
            (2, _) => {
                let plain = KeyspaceOptions::default();
                self.db.clone_keyspace("default", &new, plain).unwrap();
            }
            (3, _) => {
                let entries = [(format!("k{:02}", self.rng.below(KEYS)), "loaded")];
                self.db.default_keyspace().bulk_load(entries, Default::default()).unwrap();
            }
            _ => drop(self.db.keyspace(&new, keyspace_options("default")).unwrap()),
        }
        self.uncommitted.push((self.db.snapshot().seq().0, contents(&self.db)));
        // Later commits depend on the change.
        self.commit();
    }

    /// Reads the next chunk. Returns false if there is none.
    fn read_chunk(&mut self) -> Outcome<bool> {
        let (archive, bytes_max) = (&mut self.archive, self.rng.below(2_000));
        match archive.archiver.next_chunk(bytes_max) {
            Ok(Some(chunk)) => {
                archive.last_seq = archive.last_seq.max(chunk.last_seq.0);
                archive.chunks.push(chunk);
                Ok(true)
            }
            Ok(None) if self.is_changed => Err("no end at a change of the structure".to_owned()),
            Ok(None) => Ok(false),
            Err(Error::LogArchiveEnded { reason, .. }) if self.is_changed => {
                match reason {
                    LogArchiveEnd::StructureChanged | LogArchiveEnd::Resumed => {}
                    reason => return Err(format!("the archiver ended: {reason}")),
                }
                self.check_restores()?;
                self.begin_archive();
                Ok(false)
            }
            Err(error) => Err(format!("cannot read a chunk: {error}")),
        }
    }

    fn begin_archive(&mut self) {
        let checkpoint = format!("copy{}", self.archives_begun);
        self.archives_begun += 1;
        self.archive = begin_archive(&self.db, &checkpoint);
        self.is_changed = false;
        self.record_state();
    }

    /// Reads all chunks, checks the archive and begins a new one.
    fn end_archive(&mut self) -> Outcome {
        self.db.sync().map_err(|error| error.to_string())?;
        let is_changed = self.is_changed;
        while self.read_chunk()? {}
        if !is_changed {
            let (newest, archived) = (self.db.snapshot().seq().0, self.archive.last_seq);
            if archived != newest {
                return Err(format!("all commits are durable, archived {archived} of {newest}"));
            }
            self.check_restores()?;
        }
        self.begin_archive();
        Ok(())
    }

    /// Fails a write of the log, and resumes the database.
    fn fail_and_resume(&mut self) -> Outcome {
        let fault = match self.rng.is_one_in(2) {
            true => FaultRule::new(Fault::ShortWrite(Errno::Io)).for_calls(&[VfsCall::Append]),
            false => FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]),
        };
        self.vfs.add_rule(fault.path_contains(".wal"));
        let batch = self.batch();
        let failed = self.db.write(batch, durability(true));
        self.vfs.clear_rules();
        if failed.is_err() {
            // Commits before the failure may be archived.
            match self.archive.archiver.next_chunk(1_000) {
                Err(Error::ReadOnly { .. } | Error::LogArchiveEnded { .. }) => {}
                other => return Err(format!("a chunk after a failed write: {other:?}")),
            }
            self.db.resume().map_err(|error| error.to_string())?;
            self.is_changed = true;
        }
        self.record_state();
        Ok(())
    }

    /// Opens the database after a power loss, which may lose unsynced commits but no archived ones.
    fn restart_after_power_loss(&mut self) -> Outcome {
        let image = *self.rng.choose(&CrashImage::ALL);
        let crashed = self.disk.crash(image, self.rng.next_u64());
        let vfs = FaultVfs::new(Arc::new(crashed.clone()), self.rng.next_u64());
        let db = open(DIR, Arc::new(vfs.clone())).map_err(|error| error.to_string())?;
        let found = contents(&db);
        let archived = self.archive.last_seq;
        let uncommitted = self.uncommitted.iter().filter(|(seq, _)| *seq >= archived);
        let mut possible = self.states.range(archived..).map(|(_, state)| state);
        if !possible.any(|state| *state == found)
            && !uncommitted.into_iter().any(|(_, state)| *state == found)
        {
            return Err(format!(
                "a power loss ({image:?}) loses archived commits up to {archived}"
            ));
        }
        self.check_restores()?;
        (self.disk, self.vfs, self.db) = (crashed, vfs, db);
        self.begin_archive();
        Ok(())
    }

    /// Restores random archived commits, and checks that a missing chunk is found.
    fn check_restores(&mut self) -> Outcome {
        let Archive { first_seq, last_seq, .. } = self.archive;
        let archived: Vec<u64> =
            self.states.range(first_seq..=last_seq).map(|(&seq, _)| seq).collect();
        for _ in 0..2 {
            let seq = *self.rng.choose(&archived);
            let found = self.restore(seq, None)?;
            if found != self.states[&seq] {
                return Err(format!("the restored state after the commit {seq} differs"));
            }
        }
        let count = self.archive.chunks.len();
        if count >= 2 {
            let omitted = self.rng.below(count - 1);
            let is_needed = self.archive.chunks[omitted].last_seq.0 > first_seq;
            let restored = self.restore(last_seq, Some(omitted));
            match restored {
                Err(error) if error.contains("expected at most") => {}
                Ok(state) if !is_needed && state == self.states[&last_seq] => {}
                other => return Err(format!("a chunk is missing: {other:?}")),
            }
        }
        Ok(())
    }

    fn restore(&self, seq: u64, omitted: Option<usize>) -> Outcome<Contents> {
        let Archive { checkpoint, chunks, .. } = &self.archive;
        let copy = Arc::new(self.disk.crash(CrashImage::Keep, 0));
        let current = Path::new(checkpoint).join("CURRENT");
        let mut text = vec![0; 256];
        let read = copy.open(&current).and_then(|file| file.read_at(&mut text, 0)).unwrap();
        text.truncate(read);
        let extend = || {
            let mut extender = LogExtender::new(checkpoint, &options(copy.clone()), &text)?;
            for (at, chunk) in chunks.iter().enumerate() {
                if Some(at) != omitted {
                    extender.add_chunk(&chunk.bytes, SeqNo(seq))?;
                }
            }
            extender.finish()
        };
        let new = extend().map_err(|error| error.to_string())?;
        copy.remove(&current).unwrap();
        copy.create(&current).and_then(|file| file.append(&new)).unwrap();
        lsmx::verify(checkpoint, &options(copy.clone())).map_err(|error| error.to_string())?;
        open(checkpoint, copy).map(|db| contents(&db)).map_err(|error| error.to_string())
    }
}
