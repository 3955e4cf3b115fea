//! Restores with the archived log are compared with the states of the live database.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lsmx::merge_operator::Append;
use lsmx::{Durability, Keyspace, LogArchiveEnd, Slice, WalOptions, WriteBatch};
use lsmx_testkit::simple_store::SimpleStore;
use lsmx_testkit::{TestRng, case_seeds};
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;
use crate::{
    ArchiveOptions, ArchiveSummary, Archiver, BackupReason, Error, RestorePoint, VerifyDepth,
};

/// Contents of all keyspaces by name.
pub(super) type State = BTreeMap<String, Contents>;

/// Names of the keyspaces of the tests.
const KEYSPACES: [&str; 4] = [DEFAULT_KEYSPACE, "plain", "appended", "stored"];

fn keyspace_options(name: &str) -> KeyspaceOptions {
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
fn open(dir: &str, options: Options) -> Db {
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
    pub(super) vfs: MemVfs,
    pub(super) db: Db,
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
            .manual_clock(&clock_ms);
        let mut archive = ArchiveOptions { chunk_bytes: 200, ..ArchiveOptions::new(backup) };
        limit(&mut archive);
        let archiver = Archiver::new(&db, archive);
        ArchivedDb { vfs, db, archiver, clock_ms, keyspaces, states: BTreeMap::new() }
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
            let found = restored_to(&repository, RestorePoint::Newest).await.unwrap();
            assert_eq!(found, db.states[&newest], "seed {seed}");
            let verified = repository.verify(writer_a(), VerifyDepth::Contents).await.unwrap();
            assert_eq!(verified, repository.backups().await.unwrap()[0]);
        });
    }
}
