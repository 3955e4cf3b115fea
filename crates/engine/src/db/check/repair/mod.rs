//! Repair: out of a database that does not open, or that `verify` finds fault with, one that does and is
//! sound, with all that can be read.
//!
//! 1. What the database consists of: `CURRENT` and the manifest it names; else the newest manifest that
//!    there is, past what of it is damaged; else what tables and log say of themselves (`basis.rs`).
//! 2. Every table and blob file is read. Of a damaged table the entries that can be read go into a new one,
//!    which takes its place in its run (`table.rs`, `blocks.rs`). Values that blob records still hold, where
//!    the file is damaged, go into tables (`values.rs`).
//! 3. Where edits of the manifest are lost, nobody knows which tables make up a tree. Then all that are
//!    there and were not let go are merged into one run, by the numbers of their entries (`rebuild.rs`).
//! 4. Damaged files, and those that nobody can place, get a second name in a directory of their own.
//! 5. The log is replayed as far as it is whole, and all becomes real by one new manifest, as at any opening:
//!    a repair that is interrupted has changed nothing.
//!
//! Nothing is invented, but what a lost entry had hidden shows: an older value, or a deleted key. The report
//! says for which keys that may be.

mod basis;
mod blocks;
mod doubt;
mod make;
mod prefix;
mod real;
mod rebuild;
mod report;
mod table;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx_base::key::InternalKey;
use lsmx_base::sync::Arc;
use lsmx_compaction::{Level, RunId};

use self::basis::Basis;
use self::blocks::Remains;
use self::make::{Made, Maker, Values};
pub use self::report::{Finding, Lost, LostKind, RepairReport};
use self::values::BlobRemains;
use crate::cache::BlockCache;
use crate::db::check::verify::open_verified_table;
use crate::db::check::verify_values::{self, verify_blob};
use crate::db::open;
use crate::db::open::lock::Claim;
use crate::db::open::read_only;
use crate::db::open::recovery::{FILE_NUMBER_GAP, largest_number};
use crate::env::{Background, Env};
use crate::error::{Error, Result};
use crate::format::file_name::{CURRENT, FileName};
use crate::format::version_edit::{Change, FileRecord, VersionEdit};
use crate::manifest::{KeyspaceState, ManifestState};
use crate::operand_store::OperandStoreFactory;
use crate::options::db::Options;
use crate::vfs::Vfs;

/// How a repair goes about it.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    dry_run: bool,
    force: bool,
    common_prefix: bool,
}

impl RepairOptions {
    /// Only looks, and reports what it would do; changes nothing. Default: no.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> RepairOptions {
        self.dry_run = dry_run;
        self
    }

    /// Repairs a directory in which no file carries a magic number of lsmx. Without it such a directory is taken
    /// for that of another program, and refused. Default: no.
    #[must_use]
    pub fn force(mut self, force: bool) -> RepairOptions {
        self.force = force;
        self
    }

    /// Brings all keyspaces to the last commit before the damage of the log, so that batches are whole again: drops
    /// the tables that keyspaces flushed later, and replays the log up to the damage. The dropped tables are kept
    /// with the damaged files. Without damage of the log this option has no effect. Default: no.
    ///
    /// The repair fails with [`Error::NoCommonPrefix`], and changes nothing, where there is no such prefix: since the
    /// flush a compaction has removed files that the keyspace consisted of before, the log no longer holds the
    /// commits between, the keyspace has an operand store, or the manifest is damaged or was begun after the
    /// flush.
    #[must_use]
    pub fn common_prefix(mut self, common_prefix: bool) -> RepairOptions {
        self.common_prefix = common_prefix;
        self
    }
}

/// Repairs a damaged database: afterwards it opens, `verify` finds no fault, and it holds everything that can be
/// read. Damaged files are kept in a new directory inside the database directory. A sound database is not changed.
///
/// What the repaired database holds:
///
/// - Damaged log: as after an open in [`RecoveryMode::Tolerant`](crate::RecoveryMode::Tolerant). Each keyspace by
///   itself has the state after a prefix of its operations, which ends at the last commit before the damage or at
///   the last flush of the keyspace, whichever is later. Of a batch that writes to several keyspaces a part may be
///   missing. [`RepairReport::complete_through`] has the end of each prefix. [`RepairOptions::common_prefix`] makes
///   these ends equal where the files allow it.
/// - Damaged table or blob file: all blocks and values that can be read. For the keys in [`RepairReport::lost`] an
///   older value, a deleted key or no value may be read.
/// - Lost manifest edits ([`RepairReport::in_doubt`]): all tables that are found, merged by sequence numbers. No end
///   of a prefix is known then.
///
/// Damage above the last sync mark of the newest log segment looks like a torn tail and is not reported as damage;
/// see [`RepairReport::log_tail_bytes`].
///
/// Copy the database first, by [`Db::checkpoint`](crate::Db::checkpoint) if it opens, else its files.
///
/// # Errors
/// [`Error::NotADatabase`], also if no file carries a magic number of lsmx, unless forced;
/// [`Error::Locked`] while it is open; [`Error::UnsupportedVersion`];
/// [`Error::NoCommonPrefix`] with [`RepairOptions::common_prefix`];
/// [`Error::NoOperandStore`] if `database` has no [`Options::operand_store`] of a keyspace's store; a file cannot be listed,
/// opened or written: all is as it was.
pub fn repair(
    path: impl AsRef<Path>,
    database: &Options,
    options: &RepairOptions,
) -> Result<RepairReport> {
    let (dir, vfs) = (path.as_ref(), database.file_system());
    let stores = &database.operand_stores;
    // Before the lock file is made, so that nothing is changed where there is no database.
    let files = basis::files(&*vfs, dir).map_err(|error| not_a_database(&*vfs, error, dir))?;
    let refuse = |why| Err(Error::NotADatabase { path: dir.to_owned(), why });
    if files.is_empty() {
        return refuse("no file in it is one of a database");
    }
    if !options.force && !basis::has_magic(&*vfs, dir, &files)? {
        return refuse(
            "no file in it carries a magic number of lsmx, so it may be another program's; \
             it is repaired only by force",
        );
    }
    let env = Env::new(Background::Inline, None);
    let run = || {
        let basis = basis::find(&*vfs, dir, &env)?;
        Repair::new(&vfs, dir, &env, (options, stores), &basis)?.run(basis)
    };
    if options.dry_run {
        let _lock = read_only::share_lock(&*vfs, dir)?;
        return run();
    }
    let claim = Claim::take(&vfs, dir)?;
    let report = run()?;
    drop(claim.keep());
    Ok(report)
}

fn not_a_database(vfs: &dyn Vfs, error: Error, dir: &Path) -> Error {
    match &error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            open::missing(vfs, dir)
        }
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
            Error::NotADatabase { path: dir.to_owned(), why: "it is not a directory" }
        }
        _ => error,
    }
}

/// A repair under way.
struct Repair<'a> {
    vfs: &'a Arc<dyn Vfs>,
    dir: &'a Path,
    options: &'a RepairOptions,
    stores: &'a [Arc<dyn OperandStoreFactory>],
    cache: Arc<BlockCache>,
    maker: Maker<'a>,
    state: ManifestState,
    /// The manifest it came from.
    manifest: PathBuf,
    /// Tables by the uid in their footers, for those that have another's name.
    by_uid: BTreeMap<u64, PathBuf>,
    /// Files that leave.
    aside: BTreeSet<FileName>,
    report: RepairReport,
}

impl<'a> Repair<'a> {
    fn new(
        vfs: &'a Arc<dyn Vfs>,
        dir: &'a Path,
        env: &'a Env,
        (options, stores): (&'a RepairOptions, &'a [Arc<dyn OperandStoreFactory>]),
        basis: &Basis,
    ) -> Result<Repair<'a>> {
        let largest = largest_number(&**vfs, dir, None)?.max(basis.state.file_number_next);
        let of_files = basis.state.keyspaces.values().flat_map(KeyspaceState::files);
        let creation = of_files.map(|(.., file)| file.creation.saturating_add(1)).max();
        env.start_database_clock(basis.state.clock_us, u64::MAX);
        let maker = Maker {
            vfs: &**vfs,
            dir,
            env,
            number: largest + FILE_NUMBER_GAP,
            creation: creation.unwrap_or(0),
            dry_run: options.dry_run,
        };
        Ok(Repair {
            vfs,
            dir,
            options,
            stores,
            cache: BlockCache::new(0),
            maker,
            state: basis.state.clone(),
            manifest: basis.path.clone(),
            by_uid: BTreeMap::new(),
            aside: BTreeSet::new(),
            report: RepairReport::default(),
        })
    }

    fn run(mut self, basis: Basis) -> Result<RepairReport> {
        if let Some(wrong) = &basis.wrong {
            let used = basis.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let done = match &basis.doubt {
                None => format!("{used} is whole, and takes its place"),
                Some(_) if basis.path.ends_with(CURRENT) => {
                    "what the database consists of was made up of its tables and its log".to_owned()
                }
                Some(_) => {
                    format!("{used} was read as far as it can be; all tables are merged anew")
                }
            };
            self.found(wrong, done)?;
            self.report.in_doubt = basis.doubt.is_some();
            self.find_tables_by_uid()?;
        }
        if self.options.common_prefix {
            self.cut_to_common_prefix(basis.wrong.is_some())?;
        }
        let ids: Vec<u32> = self.state.keyspaces.keys().copied().collect();
        match &basis.doubt {
            None => {
                for id in ids {
                    self.keyspace(id)?;
                }
            }
            Some(_) => self.doubtful_keyspaces(&basis.removed)?,
        }
        self.operand_stores()?;
        self.log(basis.doubt.is_some())?;
        self.report.damaged = !self.report.findings.is_empty();
        if self.report.damaged && !self.options.dry_run {
            self.make_real()?;
        }
        Ok(self.report)
    }

    /// Notes what is wrong, and what is done about it.
    ///
    /// # Errors
    /// It is no damage.
    fn found(&mut self, error: &Error, done: impl Into<String>) -> Result<()> {
        if is_no_damage(error) {
            return Err(error.clone());
        }
        let path = error.path().unwrap_or(self.dir).to_owned();
        let what = error.to_string();
        self.report.findings.push(Finding { path, what, done: done.into() });
        Ok(())
    }

    /// Checks the files of a keyspace whose state is known, and replaces what is damaged.
    fn keyspace(&mut self, id: u32) -> Result<()> {
        let keyspace = self.state.keyspaces[&id].clone();
        let (mut sound, mut gone) = (BTreeMap::new(), Vec::new());
        for record in keyspace.value_log.blobs() {
            match verify_blob(&**self.vfs, self.dir, id, record, &self.cache) {
                Ok(blob) => drop(sound.insert(record.id, blob)),
                Err(wrong) => {
                    self.found(&wrong, "values that can be read go into tables")?;
                    self.aside.insert(FileName::Blob(record.id.0));
                    gone.push(Change::RemoveBlob { keyspace: id, id: record.id });
                }
            }
        }
        let checked = verify_values::Values::of(self.dir, sound);
        let uids = keyspace.value_log.blobs().map(|record| (record.id.0, record.uid)).collect();
        let remains = BlobRemains::new(self.maker.vfs, self.maker.dir, uids);
        let mut values = Values::new(checked.numbers(), remains);
        for (level, run, file) in keyspace.files() {
            let references = keyspace.value_log.references_of(file.id);
            let wrong = open_verified_table(&**self.vfs, self.dir, (id, file), &self.cache)
                .and_then(|table| checked.verify_table(&table, references))
                .err();
            match wrong {
                None => self.report.tables_sound += 1,
                Some(wrong) if is_no_damage(&wrong) => return Err(wrong),
                Some(wrong) => {
                    self.find_tables_by_uid()?;
                    self.replace((id, &keyspace.name), (level, run), file, &wrong, &mut values)?;
                }
            }
        }
        self.apply(gone)
    }

    /// Writes what can be read of a table to a new one, in its place.
    fn replace(
        &mut self,
        (id, name): (u32, &str),
        (level, run): (Level, RunId),
        file: &FileRecord,
        wrong: &Error,
        values: &mut Values<'_>,
    ) -> Result<()> {
        let path = FileName::Table(file.id.0).in_dir(self.dir);
        self.aside.insert(FileName::Table(file.id.0));
        let salvaged =
            self.salvage((id, name), (&path, file.uid), values, file.oldest_tombstone_us)?;
        // In one edit with what comes instead: so its run, should it be empty meanwhile, keeps its place.
        let mut changes = vec![Change::RemoveFile { keyspace: id, id: file.id }];
        let Some(salvaged) = salvaged else {
            self.found(wrong, "nothing of it can be read")?;
            self.report.tables_lost += 1;
            self.report.lost.push(Lost {
                keyspace: Some(name.to_owned()),
                path,
                what: LostKind::Entries,
                from: Some(file.range.smallest.to_vec()),
                to: Some(file.range.largest.to_vec()),
                bytes: file.bytes,
                why: wrong.to_string(),
            });
            return self.apply(changes);
        };
        self.found(wrong, "what can be read went into a new table")?;
        self.report.tables_rewritten += 1;
        // Bounds that the manifest knows say more than "to the end".
        for lost in salvaged.lost {
            let from = lost.from.or_else(|| Some(file.range.smallest.to_vec()));
            let to = lost.to.or_else(|| Some(file.range.largest.to_vec()));
            self.report.lost.push(Lost { from, to, ..lost });
        }
        let Made { record, references, .. } = salvaged.made;
        if let Some(file) = record {
            let table = file.id;
            changes.push(Change::AddFile { keyspace: id, level, run, file });
            let blobs = references.into();
            changes.push(Change::References { keyspace: id, table, blobs });
        }
        self.apply(changes)
    }

    /// Writes what can be read of a table to a new one. `None` if nothing can be read.
    fn salvage(
        &mut self,
        (id, name): (u32, &str),
        (path, uid): (&Path, u64),
        values: &mut Values<'_>,
        oldest_tombstone_us: Option<u64>,
    ) -> Result<Option<Salvage>> {
        let elsewhere = || self.by_uid.get(&uid);
        let opened = Remains::open(self.maker.vfs, path, Some(uid));
        let remains = match opened {
            Ok(remains) => remains,
            // It may have another's name.
            Err(_) => match elsewhere().map(|at| Remains::open(self.maker.vfs, at, Some(uid))) {
                Some(Ok(remains)) => remains,
                _ => return Ok(None),
            },
        };
        let mut made = None;
        let maker = &mut self.maker;
        let found = table::salvage(&remains, &mut |key: InternalKey<'_>, value| {
            let Some(placed) = values.place(name, key, value) else { return Ok(()) };
            if made.is_none() {
                made = Some(maker.begin((id, name))?);
            }
            made.as_mut().expect("a table was begun just now").add(placed)
        })?;
        if made.is_none() && !found.spans.is_empty() {
            made = Some(maker.begin((id, name))?);
        }
        let mut lost = values.take_lost();
        let Some(made) = made else { return Ok(None) };
        self.report.entries_salvaged += made.entries;
        let missing =
            |what, (from, to): (Option<&Bytes>, Option<&Bytes>), bytes, why: &Error| Lost {
                keyspace: Some(name.to_owned()),
                path: path.to_owned(),
                what,
                from: from.map(|key| key.to_vec()),
                to: to.map(|key| key.to_vec()),
                bytes,
                why: why.to_string(),
            };
        for gap in &found.gaps {
            let keys = (gap.after.as_ref(), gap.before.as_ref());
            lost.push(missing(LostKind::Entries, keys, gap.bytes, &gap.why));
        }
        if let Some(why) = &found.spans_lost {
            lost.push(missing(LostKind::RangeDeletes, (None, None), 0, why));
        }
        let made = self.maker.finish(made, found.spans, oldest_tombstone_us)?;
        Ok(Some(Salvage { made, lost }))
    }

    fn apply(&mut self, changes: Vec<Change>) -> Result<()> {
        // Of a repair that is only tried nothing stands where tables leave.
        if self.options.dry_run || changes.is_empty() {
            return Ok(());
        }
        self.state
            .apply(&VersionEdit { changes })
            .map_err(|what| Error::malformed(what, &self.manifest, 0))
    }

    /// Notes which table each file of that kind is, whatever its name.
    fn find_tables_by_uid(&mut self) -> Result<()> {
        if !self.by_uid.is_empty() {
            return Ok(());
        }
        for file in basis::files(&**self.vfs, self.dir)? {
            let path = file.in_dir(self.dir);
            if matches!(file, FileName::Table(_))
                && let Ok(remains) = Remains::open(&**self.vfs, &path, None)
            {
                let uid = remains.uid();
                self.by_uid.insert(uid, path);
            }
        }
        Ok(())
    }
}

/// What was made of a damaged table.
struct Salvage {
    made: Made,
    lost: Vec<Lost>,
}

/// Whether an error is none of damage: then nothing is repaired.
fn is_no_damage(error: &Error) -> bool {
    match error {
        Error::UnsupportedVersion { .. } => true,
        // What is there and cannot be opened may be whole; what cannot be read is damaged.
        Error::Io { action, source, .. } => {
            *action != "read" && source.kind() != io::ErrorKind::NotFound
        }
        _ => false,
    }
}
