//! Restores with the archived log are compared with the states of the live database.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use lsmx::merge_operator::Append;
use lsmx::{Durability, Keyspace, Slice, WalOptions, WriteBatch};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, case_seeds};
use object_store::memory::InMemory;

use super::fault_store::{Crash, FaultStore};
use super::*;
use crate::log_chunk::read_header;
use crate::restore_point::plan_restore;
use crate::{ArchiveOptions, ArchiveSummary, Archiver, Error, RestorePoint, VerifyDepth};

/// Contents of all keyspaces by name.
pub(super) type State = BTreeMap<String, Contents>;

/// Names of the keyspaces of the tests.
const KEYSPACES: [&str; 4] = [DEFAULT_KEYSPACE, "plain", "appended", "stored"];

pub(super) fn keyspace_options(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default();
    match name {
        DEFAULT_KEYSPACE => options.value_separation(ValueSeparation {
            threshold_bytes: 200,
            ..ValueSeparation::default()
        }),
        "appended" => options.merge_operator(Append::default()),
        "stored" => options
            .merge_operator(Append::default())
            .operand_store(Arc::new(SimpleStore::default())),
        _ => options,
    }
}

/// Opens a database and those of its keyspaces that exist.
pub(super) fn open(dir: &str, options: Options) -> Db {
    let db = Db::open(dir, options).unwrap();
    for name in db.keyspaces() {
        db.keyspace(&name, keyspace_options(&name)).unwrap();
    }
    db
}

/// Returns the contents of all keyspaces.
pub(super) fn state(db: &Db) -> State {
    let mut state = State::new();
    for name in db.keyspaces() {
        let keyspace = db.open_keyspace(&name, None).unwrap();
        let entry = |entry: lsmx::Result<(Slice, Slice)>| {
            let (key, value) = entry.unwrap();
            (key.to_vec(), value.to_vec())
        };
        state.insert(name, keyspace.iter().map(entry).collect());
    }
    state
}

/// A database whose log is archived, and its states.
pub(super) struct ArchivedDb {
    pub(super) db: Db,
    options: ArchiveOptions,
    pub(super) archiver: Archiver,
    pub(super) clock_ms: Arc<AtomicU64>,
    keyspaces: Vec<Keyspace>,
    /// State after each commit, by its last sequence number.
    pub(super) states: BTreeMap<u64, State>,
}

impl ArchivedDb {
    pub(super) fn new() -> ArchivedDb {
        ArchivedDb::with_limits(|_| {})
    }

    pub(super) fn with_limits(limit: impl FnOnce(&mut ArchiveOptions)) -> ArchivedDb {
        let vfs = MemVfs::new();
        let wal = WalOptions { segment_bytes: 700, ..WalOptions::default() };
        let db = Db::open("db", options(&vfs).wal(wal)).unwrap();
        let keyspaces: Vec<_> = KEYSPACES
            .iter()
            .map(|name| db.keyspace(name, keyspace_options(name)).unwrap())
            .collect();
        let clock_ms = Arc::new(AtomicU64::new(1_000));
        let backup = BackupOptions::new("staging")
            .vfs(Arc::new(vfs.clone()))
            .writer("a")
            .transfer(one_at_a_time())
            .with_part_bytes(PART_BYTES)
            .test_clock({
                let clock_ms = Arc::clone(&clock_ms);
                move || clock_ms.load(Ordering::Relaxed)
            });
        let mut archive = ArchiveOptions { chunk_bytes: 200, ..ArchiveOptions::new(backup) };
        limit(&mut archive);
        let (archiver, options) = (Archiver::new(&db, archive.clone()), archive);
        ArchivedDb { db, options, archiver, clock_ms, keyspaces, states: BTreeMap::new() }
    }

    /// Returns another archiver of the database, as that of another process.
    pub(super) fn new_archiver(&self) -> Archiver {
        let options =
            ArchiveOptions { backup: self.second_backup_options(), ..self.options.clone() };
        Archiver::new(&self.db, options)
    }

    /// Returns the options of another process that creates backups of the database.
    pub(super) fn second_backup_options(&self) -> BackupOptions {
        self.options.backup.clone().with_staging("staging2")
    }

    /// Replaces the archiver, as after a restart of the process.
    pub(super) fn restart_archiver(&mut self) {
        self.archiver = Archiver::new(&self.db, self.options.clone());
    }

    pub(super) fn record_state(&mut self) -> u64 {
        let seq = self.db.snapshot().seq().0;
        self.states.insert(seq, state(&self.db));
        seq
    }

    /// Writes a value and returns the sequence number of the commit.
    pub(super) fn put(&mut self, key: &str, value: &str) -> u64 {
        self.db.put(key, value).unwrap();
        self.record_state()
    }

    /// Commits random operations. Returns the sequence number.
    pub(super) fn commit(&mut self, rng: &mut TestRng) -> u64 {
        let mut batch = WriteBatch::new();
        for _ in 0..rng.between(1, 4) {
            let at = rng.below(self.keyspaces.len());
            let (keyspace, key) = (&self.keyspaces[at], format!("key{}", rng.below(12)));
            let number = rng.next_u64();
            match rng.below(10) {
                0 => batch.delete(keyspace, &key),
                1 => batch.delete_range(keyspace, key.clone()..format!("{key}~")),
                2 if at == 0 => batch.put(keyspace, &key, number.to_le_bytes().repeat(40)),
                3 if at < 2 => {
                    let ttl = Duration::from_secs(3600);
                    batch.put_with_ttl(keyspace, &key, number.to_string(), ttl);
                }
                4..=7 if at >= 2 => batch.merge(keyspace, &key, (number % 100).to_string()),
                _ => batch.put(keyspace, &key, number.to_string()),
            }
        }
        let durability = *rng.choose(&[Durability::Buffered, Durability::Sync]);
        self.db.write(batch, durability).unwrap();
        self.record_state()
    }

    /// Archives all commits.
    pub(super) async fn archive(&mut self, repository: &BackupRepository) -> ArchiveSummary {
        self.db.sync().unwrap();
        self.clock_ms.fetch_add(10, Ordering::Relaxed);
        self.archiver.run_once(repository).await.unwrap()
    }
}

pub(super) fn writer_a() -> Selection {
    Selection::NewestOf("a".to_owned())
}

/// Restores to a point, verifies the database and returns its state.
pub(super) async fn restored_to(
    repository: &BackupRepository,
    point: RestorePoint,
) -> Result<State, Error> {
    let vfs = MemVfs::new();
    let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone())).to(point);
    repository.restore(writer_a(), "copy", &restore.transfer(one_at_a_time())).await?;
    assert_eq!(vfs.list("copy".as_ref()).unwrap().iter().find(|name| name.contains("RES")), None);
    lsmx::verify("copy", &options(&vfs)).unwrap();
    Ok(state(&open("copy", options(&vfs))))
}

#[test]
fn each_commit_and_the_newest_state_can_be_restored() {
    for seed in case_seeds(&[], 12) {
        run(async {
            let rng = &mut TestRng::new(seed);
            let repository = repository(InMemory::new());
            let mut db = ArchivedDb::new();
            let mut first = u64::MAX;
            for _ in 0..rng.between(2, 6) {
                for _ in 0..rng.between(0, 12) {
                    db.commit(rng);
                    match rng.below(8) {
                        0 => db.db.flush().unwrap(),
                        1 => db.keyspaces[0].compact_range::<&str>(..).unwrap(),
                        _ => {}
                    }
                }
                let summary = db.archive(&repository).await;
                let newest = db.record_state();
                assert_eq!(summary.last_seq, newest, "seed {seed}");
                first = first.min(newest);
            }
            let newest = db.states.keys().next_back().copied().unwrap();
            assert_eq!(repository.backups().await.unwrap().len(), 1, "seed {seed}");
            for (&seq, expected) in db.states.range(first..) {
                let found = restored_to(&repository, RestorePoint::Commit(seq)).await.unwrap();
                assert_eq!(found, *expected, "seed {seed}, commit {seq} of {newest}");
            }
            // A number inside of a commit does not contain it.
            for _ in 0..4 {
                let seq = first + rng.below(newest - first + 1);
                let expected = db.states.range(..=seq).next_back().unwrap().1;
                let found = restored_to(&repository, RestorePoint::Commit(seq)).await.unwrap();
                assert_eq!(found, *expected, "seed {seed}, number {seq} of {newest}");
            }
            let found = restored_to(&repository, RestorePoint::Newest).await.unwrap();
            assert_eq!(found, db.states[&newest], "seed {seed}");
            let verified = repository.verify(writer_a(), VerifyDepth::Contents).await.unwrap();
            assert_eq!(verified, repository.backups().await.unwrap()[0]);
        });
    }
}

/// Checks that each recorded commit in a range can be restored.
pub(super) async fn check_commits(
    repository: &BackupRepository,
    db: &ArchivedDb,
    range: std::ops::RangeInclusive<u64>,
) {
    for (&seq, expected) in db.states.range(range) {
        let found = restored_to(repository, RestorePoint::Commit(seq)).await.unwrap();
        assert_eq!(found, *expected, "commit {seq}");
    }
}

#[test]
fn times_select_the_last_chunk_or_backup_before_them() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        let mut states = vec![(0, None)];
        for round in 0..5 {
            db.put("key", &round.to_string());
            let expected = Some(db.states.values().next_back().unwrap().clone());
            db.archive(&repository).await;
            states.push((db.clock_ms.load(Ordering::Relaxed), expected));
        }
        // The clock of the archiver goes back. Times of chunks do not.
        db.clock_ms.store(1_000, Ordering::Relaxed);
        db.put("key", "last");
        db.archive(&repository).await;
        let last = states.last_mut().unwrap();
        last.1 = db.states.values().next_back().cloned();
        for time_ms in 1_005..1_065 {
            let expected = states.iter().rev().find(|(at, _)| *at <= time_ms).unwrap().1.as_ref();
            match (restored_to(&repository, RestorePoint::Time(time_ms)).await, expected) {
                (Ok(found), Some(expected)) => assert_eq!(found, *expected, "time {time_ms}"),
                (Err(Error::NoBackupBefore { time_ms: named }), None) => assert_eq!(named, time_ms),
                (other, _) => panic!("time {time_ms}: {other:?}"),
            }
        }
        let listed = repository.backups().await.unwrap();
        let archived = listed[0].archived.unwrap();
        assert_eq!((archived.chunks, archived.time_ms), (5, 1_050));
        assert_eq!(archived.last_seq, *db.states.keys().next_back().unwrap());
    });
}

#[test]
fn backup_without_a_last_commit_cannot_be_extended() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let forget = |catalog: &mut crate::catalog::Catalog| {
            catalog.backups[0].last_seq = None;
            Ok(())
        };
        repository.catalog.update(forget).await.unwrap();
        let refused = restored_to(&repository, RestorePoint::Newest).await.unwrap_err();
        assert!(matches!(refused, Error::NotExtensible { id: 1 }), "{refused}");
        restored_to(&repository, RestorePoint::Backup).await.unwrap();
    });
}

/// A power loss at each operation of a restore leaves no database or the requested state, and the next call completes the
/// restore, even if the archive has grown.
#[test]
fn restore_with_the_log_continues_after_power_loss_at_each_operation() {
    run(async {
        let repository = repository(InMemory::new());
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let rng = &mut TestRng::new(3);
        for _ in 0..6 {
            db.commit(rng);
            db.archive(&repository).await;
        }
        let seqs: Vec<u64> = db.states.keys().copied().collect();
        let points = [RestorePoint::Newest, RestorePoint::Commit(seqs[3])];
        let expected = [db.states[seqs.last().unwrap()].clone(), db.states[&seqs[3]].clone()];
        for (point, expected) in points.into_iter().zip(&expected) {
            let vfs = MemVfs::new();
            let crashes = Arc::new(std::sync::Mutex::new(Vec::new()));
            let observer = {
                let crashes = Arc::clone(&crashes);
                move |vfs: &MemVfs, operation: lsmx::internals::vfs::MemOperation<'_>| {
                    for image in CrashImage::ALL {
                        let text = format!("{point:?}, {image:?} before {operation:?}");
                        crashes.lock().unwrap().push((text, vfs.crash(image, operation.index)));
                    }
                }
            };
            vfs.set_observer(Some(Arc::new(observer)));
            let restore = |vfs: &MemVfs| {
                let restore = RestoreOptions::default().vfs(Arc::new(vfs.clone())).to(point);
                restore.transfer(one_at_a_time())
            };
            repository.restore(writer_a(), "copy", &restore(&vfs)).await.unwrap();
            vfs.set_observer(None);
            // The archive grows. An interrupted restore keeps its goal.
            db.put("key", "later");
            db.archive(&repository).await;
            let crashes = std::mem::take(&mut *crashes.lock().unwrap());
            assert!(crashes.len() > 100, "{}", crashes.len());
            for (text, vfs) in crashes {
                let must_exist = || options(&vfs).create_if_missing(false);
                let was_begun = vfs.exists("copy/RESTORE".as_ref()).unwrap();
                if let Ok(_copy) = Db::open("copy", must_exist().read_only(true)) {
                    let copy = open("copy", options(&vfs.crash(CrashImage::Keep, 0)));
                    assert_eq!(state(&copy), *expected, "{text}");
                }
                match repository.restore(writer_a(), "copy", &restore(&vfs)).await {
                    Ok(_) => {}
                    // The restore was complete.
                    Err(Error::TargetNotEmpty { .. }) => assert!(!was_begun, "{text}"),
                    Err(error) => panic!("{text}: {error}"),
                }
                let report = lsmx::verify("copy", &options(&vfs)).unwrap();
                // The manifest of the backup, which the next open removes.
                let is_manifest =
                    |path: &std::path::PathBuf| path.to_string_lossy().contains("MANIFEST-");
                assert!(report.orphans.iter().all(is_manifest), "{text}: {report:?}");
                let found = state(&open("copy", options(&vfs)));
                let newest = state(&db.db);
                let is_new = point == RestorePoint::Newest && found == newest;
                assert!(found == *expected || is_new, "{text}");
            }
        }
    });
}

/// A restored database continues under the name of the original. Its newest state is newer than those of the original, although
/// the original may have used larger sequence numbers.
#[test]
fn newest_state_is_that_of_the_database_that_was_archived_last() {
    run(async {
        let repository = repository(InMemory::new());
        let mut original = ArchivedDb::new();
        for round in 0..50 {
            original.put("key", &round.to_string());
        }
        original.archive(&repository).await;
        let mut restored = ArchivedDb::new();
        restored.clock_ms.store(10_000, Ordering::Relaxed);
        restored.put("key", "restored");
        let summary = restored.archive(&repository).await;
        assert!(summary.last_seq < *original.states.keys().next_back().unwrap());
        let newest = restored_to(&repository, RestorePoint::Newest).await.unwrap();
        assert_eq!(newest, restored.states[&summary.last_seq]);
        let found = restored_to(&repository, RestorePoint::Commit(summary.last_seq)).await.unwrap();
        assert_eq!(found, newest);
    });
}

/// Returns the last sequence number of the latest archived state that is not later than the time.
async fn latest_seq(repository: &BackupRepository, time_ms: u64) -> Option<u64> {
    let store = &*repository.catalog.store;
    let mut seqs = Vec::new();
    for info in repository.catalog.load().await.unwrap().backups {
        if info.checkpoint_ms.unwrap() > time_ms {
            continue;
        }
        seqs.extend(info.last_seq);
        for number in 1.. {
            match read_header(store, info.id, number).await.unwrap() {
                Some(chunk) if chunk.time_ms <= time_ms => seqs.push(chunk.last_seq),
                _ => break,
            }
        }
    }
    seqs.into_iter().max()
}

/// Returns the last sequence number that a restore to a time selects, or `None` if no backup is old enough.
pub(super) async fn planned_seq(
    repository: &BackupRepository,
    time_ms: u64,
) -> Result<Option<u64>, Error> {
    let backups = repository.catalog.load().await.unwrap().backups;
    let point = RestorePoint::Time(time_ms);
    match plan_restore(&*repository.catalog.store, backups, point).await {
        Ok(plan) => Ok(plan.through),
        Err(Error::NoBackupBefore { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks that each time selects the latest state of the repository.
async fn check_times(repository: &BackupRepository, times_ms: impl IntoIterator<Item = u64>) {
    for time_ms in times_ms {
        let found = planned_seq(repository, time_ms).await.unwrap();
        assert_eq!(found, latest_seq(repository, time_ms).await, "time {time_ms}");
    }
}

/// Creates a database whose next run of the archiver creates a new backup, because the log is large. After the cell is filled with the
/// database, commits are added during the upload of this backup. Each read of the clock advances it. Returns the cell and the clock.
pub(super) async fn database_before_second_backup(
    repository: &BackupRepository,
) -> (ArchivedDb, Arc<OnceLock<Db>>, Arc<AtomicU64>) {
    let clock_ms = Arc::new(AtomicU64::new(1_000));
    let written = Arc::new(OnceLock::<Db>::new());
    let mut db = ArchivedDb::with_limits(|options| {
        options.backup_after_bytes = 1_500;
        let written = Arc::clone(&written);
        let commit = move || {
            if let Some(db) = written.get() {
                let last_seq = db.snapshot().seq().0;
                db.put("key", format!("{last_seq:0100}")).unwrap();
                db.sync().unwrap();
            }
        };
        // A thread of its own, because the caller holds the lock of the progress.
        let commit = move |_: crate::Progress| {
            std::thread::scope(|scope| scope.spawn(&commit).join()).unwrap();
        };
        let progress: Option<crate::ProgressCallback> = Some(Arc::new(commit));
        let transfer = TransferOptions { progress, ..one_at_a_time() };
        let clock_ms = Arc::clone(&clock_ms);
        let tick = move || clock_ms.fetch_add(1, Ordering::Relaxed);
        options.backup = options.backup.clone().transfer(transfer).test_clock(tick);
    });
    db.archive(repository).await;
    for _ in 0..4 {
        db.put("key", &"v".repeat(500));
    }
    db.db.sync().unwrap();
    (db, written, clock_ms)
}

/// The first chunks of a new backup contain commits that the previous archive has already. A restore chose them, because they were
/// read later, and omitted the later commits of the previous archive.
#[test]
fn state_of_the_previous_archive_is_newest_until_the_next_archive_has_reached_it() {
    run(async {
        let mut incomplete = 0;
        for call in 0.. {
            let inner = Arc::new(InMemory::new());
            let healthy = repository(FaultStore::new(&inner));
            let (mut db, written, clock_ms) = database_before_second_backup(&healthy).await;
            assert!(written.set(db.db.clone()).is_ok());
            let store = FaultStore::new(&inner).with_crash(Crash { call, has_effect: true });
            let crashed = db.archiver.run_once(&repository(store.clone())).await.is_err();
            let end_ms = clock_ms.load(Ordering::Relaxed);
            check_times(&healthy, (1_000..=end_ms).chain([u64::MAX])).await;
            let backups = healthy.backups().await.unwrap();
            let last_seq = |at: usize| backups[at].last_restorable_seq();
            let has_partial_log = backups.len() == 2 && backups[1].archived.is_some();
            incomplete += u32::from(has_partial_log && last_seq(1) < last_seq(0));
            if store.calls() <= call {
                assert!(!crashed && backups.len() == 2, "{backups:?}");
                break;
            }
        }
        assert!(incomplete > 0, "the case does not occur");
    });
}

/// The time of a backup is that after its checkpoint. A restore to the newest state chose the backup, although an archiver had archived
/// a later commit before this time.
#[test]
fn commit_that_is_archived_during_a_checkpoint_is_newer_than_the_backup() {
    run(async {
        let repository = Arc::new(repository(InMemory::new()));
        let mut db = ArchivedDb::new();
        db.archive(&repository).await;
        let clock_ms = Arc::clone(&db.clock_ms);
        let (writer, archive) = (db.db.clone(), Arc::clone(&repository));
        let unused = db.new_archiver();
        let archiver = Mutex::new((std::mem::replace(&mut db.archiver, unused), 0));
        // The first read of the clock is at the start, the second one after the checkpoint.
        let options = db.second_backup_options().test_clock(move || {
            let (archiver, reads) = &mut *archiver.lock().unwrap();
            *reads += 1;
            if *reads == 2 {
                writer.put("key", "after the checkpoint").unwrap();
                writer.sync().unwrap();
                clock_ms.fetch_add(10, Ordering::Relaxed);
                archiver.run_once(&archive).now_or_never().unwrap().unwrap();
            }
            clock_ms.fetch_add(10, Ordering::Relaxed) + 10
        });
        let info = repository.create(&db.db, &options).await.unwrap();
        let newest = db.record_state();
        assert!(info.last_seq.unwrap() < newest, "{info:?}");
        let archived = repository.backups().await.unwrap()[0].archived.unwrap();
        assert!(archived.time_ms < info.checkpoint_ms.unwrap(), "{archived:?}, {info:?}");
        check_times(&repository, (1_000..1_060).chain([u64::MAX])).await;
        let found = restored_to(&repository, RestorePoint::Newest).await.unwrap();
        assert_eq!(found, db.states[&newest]);
    });
}

/// Services spawn tasks that archive and restore.
#[test]
fn futures_of_archives_and_restores_can_be_sent_to_other_threads() {
    fn check(_: &impl Send) {}
    let repository = repository(InMemory::new());
    let mut db = ArchivedDb::new();
    check(&db.archiver.run_once(&repository));
    check(&repository.restore(writer_a(), "copy", &RestoreOptions::default()));
    check(&repository.backups());
    check(&repository.verify(writer_a(), VerifyDepth::Contents));
    check(&repository.prune(keep_last(1)));
}
