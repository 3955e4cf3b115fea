//! The end of a repair: stores, log, files set aside, and the manifest that makes it real.

use std::io;
use std::path::{Path, PathBuf};

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Arc;

use crate::db::check::repair::{Lost, LostKind, Repair, basis};
use crate::db::check::verify::read_log;
use crate::db::open::recovery::Recovery;
use crate::db::operand_store::{self, StoreCheck};
use crate::error::{Error, Result};
use crate::format::file_name::{CURRENT, FileName};
use crate::format::version_edit::Change;
use crate::options::db::Options;
use crate::options::keyspace::{Persisted, kept_logs};
use crate::vfs::Vfs;
use crate::wal::{RecoveryMode, RecoveryReport};

/// Bytes of one step of a copy.
const COPY_BYTES: usize = 1 << 20;

impl Repair<'_> {
    /// Checks the operand stores. One that is damaged in part stays: it has errors for the keys whose
    /// operands cannot be read, and answers for all others. One that cannot be opened is begun anew.
    pub(crate) fn operand_stores(&mut self) -> Result<()> {
        let keyspaces: Vec<_> = self.state.keyspaces.clone().into_iter().collect();
        let (mut live, mut lost) = (Vec::new(), false);
        for (id, keyspace) in keyspaces {
            let checked = operand_store::verify_store(self.vfs, self.dir, &keyspace, self.stores);
            let wrong = match checked {
                Ok(StoreCheck::NoStore) => continue,
                Ok(StoreCheck::Checked(files)) => {
                    live.extend(files);
                    continue;
                }
                Ok(StoreCheck::Unchecked) => {
                    // Which files are whose nobody knows then.
                    let persisted = Persisted::decode(&keyspace.options);
                    let store = persisted.as_ref().and_then(Persisted::store_name);
                    let (keyspace, store) = (keyspace.name, store.unwrap_or_default().to_owned());
                    return Err(Error::NoOperandStore { keyspace, store, cause: None });
                }
                Err(wrong) => wrong,
            };
            let opened =
                operand_store::live_store_files(self.vfs, self.dir, &keyspace, self.stores);
            if let Ok(files) = opened {
                let done = "it stays: reads of keys whose operands are damaged answer an error";
                self.found(&wrong, done)?;
                live.extend(files);
                continue;
            }
            self.found(&wrong, "it cannot be opened, and begins anew without operands")?;
            lost = true;
            self.report.lost.push(Lost {
                keyspace: Some(keyspace.name.clone()),
                path: self.dir.to_owned(),
                what: LostKind::Operands,
                from: None,
                to: None,
                bytes: 0,
                why: wrong.to_string(),
            });
            let changes = vec![Change::OperandToken { keyspace: id, token: None }];
            self.apply(changes)?;
        }
        if lost || self.manifest.ends_with(CURRENT) {
            let files = basis::files(&**self.vfs, self.dir)?;
            let unknown = files.into_iter().filter(|file| {
                matches!(file, FileName::Operands(_) | FileName::Bucket(_)) && !live.contains(file)
            });
            self.aside.extend(unknown);
        }
        Ok(())
    }

    /// Sets the commits aside that are in a log of their own, which no manifest names any more: nothing says
    /// which keyspace lacks them.
    fn unnamed_kept_logs(&mut self) -> Result<()> {
        let files = basis::files(&**self.vfs, self.dir)?;
        let named = kept_logs(&self.state);
        let chains = basis::chains_of(&**self.vfs, self.dir, &files)?.into_iter();
        let unnamed = chains.filter(|(header, commits)| {
            let is_named = named.values().any(|log| log.holds(header.id));
            *commits > 0 && header.id < self.state.wal_oldest && !is_named
        });
        for (header, commits) in unnamed {
            let path = FileName::Segment(header.id).in_dir(self.dir);
            let why = format!(
                "{commits} commits of a keyspace without its operand store were kept here, and no manifest says of which"
            );
            self.report.lost.push(Lost {
                keyspace: None,
                path,
                what: LostKind::Commits,
                from: None,
                to: None,
                bytes: 0,
                why,
            });
            let segments = files.iter().filter(
                |file| matches!(file, FileName::Segment(id) if *id < self.state.wal_oldest),
            );
            self.aside.extend(segments.copied());
        }
        Ok(())
    }

    /// Checks the log; `doubt` if the manifest does not know all about it.
    pub(crate) fn log(&mut self, doubt: bool) -> Result<()> {
        if self.manifest.ends_with(CURRENT) {
            self.unnamed_kept_logs()?;
        }
        if doubt {
            self.state.wal_named = Vec::new();
            self.state.wal_mark = None;
            let files = basis::files(&**self.vfs, self.dir)?;
            if !files.contains(&FileName::Segment(self.state.wal_oldest)) {
                let later = files.into_iter().filter(
                    |file| matches!(file, FileName::Segment(id) if *id >= self.state.wal_oldest),
                );
                let oldest =
                    basis::oldest_segment(&**self.vfs, self.dir, &later.collect::<Vec<_>>())?;
                self.state.wal_oldest = oldest.map_or(0, |(id, _)| id);
            }
        }
        let wrong = match self.read_log(RecoveryMode::Strict) {
            Ok(report) => {
                (self.report.commits, self.report.log_tail_bytes) =
                    (report.records, report.bytes_cut);
                self.note_completeness(&report, doubt);
                return Ok(());
            }
            Err(wrong) => wrong,
        };
        // A log that lacks commits which tables have is what a lost edit may look like.
        let kept = match self.read_log(RecoveryMode::Tolerant) {
            Ok(kept) => {
                self.found(&wrong, "commits before the damage were kept")?;
                kept
            }
            // The beginning of the log is unknown.
            Err(error @ (Error::Corrupt { .. } | Error::Missing { .. })) => {
                self.found(&error, "the log was left out")?;
                self.leave_log_out();
                let complete_through = self.state.complete_through(SeqNo::ZERO);
                RecoveryReport {
                    damage: Some(error),
                    complete_through,
                    ..RecoveryReport::default()
                }
            }
            Err(error) => return Err(error),
        };
        let segments = basis::files(&**self.vfs, self.dir)?.into_iter();
        self.aside.extend(segments.filter(|file| matches!(file, FileName::Segment(_))));
        self.report.commits = kept.records;
        self.note_completeness(&kept, doubt);
        let unreported = self.options.dry_run && failpoint::is_on(Failpoint::DryRunMissesCommits);
        if let Some(damage) = kept.damage.filter(|_| !unreported) {
            let path = damage.path().unwrap_or(self.dir).to_owned();
            let (what, bytes) = (LostKind::Commits, kept.bytes_cut);
            let (keyspace, why) = (None, damage.to_string());
            self.report.lost.push(Lost { keyspace, path, what, from: None, to: None, bytes, why });
        }
        Ok(())
    }

    fn note_completeness(&mut self, log: &RecoveryReport, doubt: bool) {
        let keyspaces = log.complete_through.iter();
        let known = keyspaces.map(|(name, seq)| (name.clone(), (!doubt).then_some(seq.0)));
        self.report.complete_through = known.collect();
    }

    pub(crate) fn read_log(&self, mode: RecoveryMode) -> Result<RecoveryReport> {
        read_log(&**self.vfs, self.dir, &self.state, &self.manifest, mode)
    }

    /// Has the database begin a new log behind everything that tables hold.
    fn leave_log_out(&mut self) {
        let flushed = self.state.keyspaces.values().map(|keyspace| keyspace.flushed_through);
        self.state.last_seq = flushed.fold(self.state.last_seq, SeqNo::max);
        self.state.wal_oldest = self.maker.allocate();
        self.state.wal_named = Vec::new();
        self.state.wal_mark = None;
    }

    /// Gives all that leaves a second name, then makes what was found the database.
    pub(crate) fn make_real(&mut self) -> Result<()> {
        let aside = self.set_aside()?;
        self.state.clean_close = false;
        self.state.file_number_next = self.state.file_number_next.max(self.maker.number);
        self.report.commits = self.recover()?;
        for file in &self.aside {
            let path = file.in_dir(self.dir);
            if !matches!(file, FileName::Current) {
                // What stays is an orphan, which the next opening removes.
                let _ = self.vfs.remove(&path);
            }
        }
        self.report.files_set_aside = self.aside.iter().map(FileName::to_string).collect();
        self.report.set_aside = Some(aside);
        Ok(())
    }

    /// Opens the database of the state at hand as after a crash, and makes what was found its new manifest.
    /// Returns how many commits the log held.
    fn recover(&self) -> Result<u64> {
        let mut options = Options::default().recovery(RecoveryMode::Tolerant);
        for store in self.stores {
            options.operand_stores.push(Arc::clone(store));
        }
        let (vfs, env) = (Arc::clone(self.vfs), self.maker.env.clone());
        let (state, current) = (self.state.clone(), self.dir.join(CURRENT));
        let mut recovery = Recovery::new(vfs, self.dir, options, env, (state, &current), false)?;
        recovery.replay(&self.manifest).map_err(|error| recovery.take_back(error))?;
        recovery.make_durable()?;
        Ok(recovery.report().records)
    }

    /// A directory that was not there before, not even of a repair that did not come to its end.
    fn new_dir(&mut self) -> Result<PathBuf> {
        loop {
            let dir = self.dir.join(format!("damaged-{:06}", self.maker.allocate()));
            match self.vfs.create_dir(&dir) {
                Ok(()) => return Ok(dir),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &dir, error)),
            }
        }
    }

    /// Gives damaged files a second name in a directory of their own, which is on stable storage before the
    /// first name goes.
    fn set_aside(&mut self) -> Result<PathBuf> {
        for file in basis::files(&**self.vfs, self.dir)? {
            if matches!(file, FileName::Current | FileName::Manifest(_)) {
                self.aside.insert(file);
            }
        }
        let dir = self.new_dir()?;
        for file in self.aside.clone() {
            let (from, to) = (file.in_dir(self.dir), file.in_dir(&dir));
            match link_or_copy(&**self.vfs, &from, &to) {
                // A file that is missing is set aside by being missing.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    self.aside.remove(&file);
                }
                done => done?,
            }
        }
        for dir in [&dir, self.dir] {
            self.vfs.sync_dir(dir).map_err(|error| Error::io("sync", dir, error))?;
        }
        Ok(dir)
    }
}

/// Gives a file a second name, or copies what can be read of it where files have one name only.
fn link_or_copy(vfs: &dyn Vfs, from: &Path, to: &Path) -> Result<()> {
    match vfs.hard_link(from, to) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::io("link", from, error));
        }
        Err(_) => {}
    }
    let source = vfs.open(from).map_err(|error| Error::io("open", from, error))?;
    let target = vfs.create(to).map_err(|error| Error::io("create", to, error))?;
    let (mut offset, mut buffer) = (0, vec![0; COPY_BYTES]);
    loop {
        let read = source.read_at(&mut buffer, offset);
        let read = read.map_err(|error| Error::io("read", from, error))?;
        if read == 0 {
            break;
        }
        let written = target.append(&buffer[..read]);
        written.map_err(|error| Error::io("append to", to, error))?;
        offset += lsmx_base::coding::len_u64(read);
    }
    target.sync().map_err(|error| Error::io("sync", to, error))
}
