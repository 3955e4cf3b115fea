//! Damage to any file of a closed or killed database is detected or harmless.
//!
//! Each result is correct, or an error names the file. No panic, and no allocation sized by damaged bytes.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{
    Compression, Db, Durability, Error, KeyspaceOptions, Options, ValueSeparation, WriteBatch,
};
use lsmx_stress::modelling::{quietly, watchdog};
use lsmx_testkit::{TestRng, scale, seed};

use crate::ALLOCATOR;

/// More than any sample may have allocated at once.
const BYTES_MAX: isize = 64 << 20;

const KEYSPACES: [&str; 2] = ["default", "other"];
type State = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

/// A database on its disk, and what it may answer.
struct Intact {
    name: &'static str,
    disk: MemVfs,
    /// The state after each number of commits.
    states: Vec<State>,
    /// Commits that must be there.
    synced: usize,
}

fn tuning(memtable_bytes: u64) -> KeyspaceOptions {
    KeyspaceOptions::default()
        .policy("leveled(T=2)".parse::<lsmx::PolicySpec>().unwrap())
        .memtable_bytes(memtable_bytes)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .compression(vec![Compression::None, Compression::Lz4])
        .value_separation(ValueSeparation { threshold_bytes: 30, ..ValueSeparation::default() })
}

fn options(seed: u64, segment_bytes: u64) -> Options {
    let wal = WalOptions { segment_bytes, ..WalOptions::default() };
    Options::default()
        .background(Background::Inline)
        .seed(seed)
        .wal(wal)
        .keyspace_defaults(tuning(3 << 10))
}

/// A small database with every kind of file. Each commit writes its number into both keyspaces.
///
/// Of the two keyspaces the one with the smaller memtable is flushed more often, so that at the end
/// it is ahead of the other as far as tables go. The log once could be cut behind that.
fn build(
    name: &'static str,
    seed: u64,
    segment_bytes: u64,
    commits: usize,
    killed: bool,
) -> Intact {
    let disk = MemVfs::new();
    let db = Db::open("db", options(seed, segment_bytes).vfs(Arc::new(disk.clone()))).unwrap();
    let keyspaces = [db.default_keyspace(), db.keyspace("other", tuning(8 << 10)).unwrap()];
    let mut rng = TestRng::new(seed);
    let mut states = vec![State::default()];
    let mut synced = 0;
    for commit in 1..=commits {
        let mut batch = WriteBatch::new();
        let mut state = states.last().unwrap().clone();
        for (at, keyspace) in keyspaces.iter().enumerate() {
            let mut put = |key: Vec<u8>, value: Vec<u8>| {
                batch.put(keyspace, &key, &value);
                state[at].insert(key, value);
            };
            put(b"commits".to_vec(), (commit as u64).to_le_bytes().to_vec());
            let key = format!("key-{:03}", rng.below(90)).into_bytes();
            if rng.is_true_with_percent(15) {
                batch.delete(keyspace, &key);
                state[at].remove(&key);
            } else {
                put(key, format!("{commit}-{}", "value".repeat(rng.below(12))).into_bytes());
            }
        }
        // The last third of a killed database's log is not synced by anybody.
        let sync = commit % 20 == 0 && commit < commits - 30;
        db.write(batch, if sync { Durability::Sync } else { Durability::Buffered }).unwrap();
        states.push(state);
        if sync {
            synced = commit;
        }
    }
    if killed {
        let image = disk.crash(CrashImage::Keep, 0);
        drop((keyspaces, db));
        return Intact { name, disk: image, states, synced };
    }
    drop(keyspaces);
    db.close(None).unwrap();
    Intact { name, disk, states, synced: commits }
}

fn intact() -> Vec<Intact> {
    // Killed at different moments: once a keyspace was flushed after the last segment was begun, so
    // that only the manifest knows how far the log must go.
    let killed = (0..8).map(|at| build("killed", 12, 1 << 10, 150 + 3 * at, true));
    std::iter::once(build("closed", 11, 600, 160, false)).chain(killed).collect()
}

/// The path that an error names, which must be of this database.
fn named(error: &Error) -> PathBuf {
    let path = match error {
        Error::Corrupt { path, offset, .. } => {
            assert!(*offset < 1 << 40, "{error}");
            path
        }
        Error::Io { path, .. }
        | Error::Missing { path, .. }
        | Error::NotADatabase { path, .. }
        | Error::UnsupportedVersion { path, .. } => path,
        Error::ReadOnly { cause } | Error::Background { cause, .. } => return named(cause),
        other => panic!("damage is told as {other:?}"),
    };
    assert!(path.starts_with("db"), "{error}");
    path.clone()
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Right,
    Refused,
}

impl Intact {
    fn copy(&self) -> MemVfs {
        self.disk.crash(CrashImage::Keep, 0)
    }

    /// Opens a damaged copy and asks for everything.
    fn ask(&self, disk: &MemVfs) -> Answer {
        let before = disk.snapshot_all();
        let db = match Db::open("db", options(5, 600).vfs(Arc::new(disk.clone()))) {
            Ok(db) => db,
            Err(error) => {
                named(&error);
                assert!(disk.snapshot_all() == before, "failing to open changed bytes: {error}");
                return Answer::Refused;
            }
        };
        let mut refused = false;
        // Which commit this is, by either keyspace that still tells.
        let mut commits = None;
        for name in KEYSPACES {
            let counter = db.open_keyspace(name, None).and_then(|k| k.get("commits"));
            match counter {
                Ok(Some(value)) => {
                    let found = u64::from_le_bytes(value[..].try_into().unwrap()) as usize;
                    assert!(commits.is_none_or(|other| other == found), "two numbers of commits");
                    commits = Some(found);
                }
                Ok(None) => panic!("no commit is there"),
                Err(error) => {
                    named(&error);
                    refused = true;
                }
            }
        }
        let Some(commits) = commits else { return Answer::Refused };
        assert!(commits >= self.synced, "{commits} commits, {} were synced", self.synced);
        let state = &self.states[commits];
        for (name, model) in KEYSPACES.iter().zip(state) {
            let keyspace = db.open_keyspace(name, None).unwrap();
            for (key, _) in self.states.last().unwrap().iter().flatten() {
                match keyspace.get(key) {
                    Ok(found) => assert_eq!(
                        found.as_deref(),
                        model.get(key).map(Vec::as_slice),
                        "{}",
                        key.escape_ascii()
                    ),
                    Err(error) => {
                        named(&error);
                        refused = true;
                    }
                }
            }
            let mut left = model.iter();
            let mut scan = keyspace.iter();
            loop {
                match (scan.next(), left.next()) {
                    (None, None) => break,
                    (Some(Ok((key, value))), Some(model)) => {
                        assert_eq!((&*key, &*value), (&model.0[..], &model.1[..]));
                    }
                    (Some(Err(error)), _) => {
                        named(&error);
                        assert!(matches!(scan.next(), Some(Err(_))), "an iterator went on");
                        refused = true;
                        break;
                    }
                    (found, model) => panic!("a scan has {found:?} where {model:?} is"),
                }
            }
        }
        if refused { Answer::Refused } else { Answer::Right }
    }

    /// [`Intact::ask`] within bounds of memory; on failure says what was done to the files.
    fn sample(&self, disk: &MemVfs, done: &str) -> Answer {
        let asked = || catch_unwind(AssertUnwindSafe(|| self.ask(disk)));
        let (answer, bytes) = ALLOCATOR.peak_in_thread(|| quietly(asked));
        assert!(bytes < BYTES_MAX, "{} database, {done}: {bytes} bytes allocated", self.name);
        answer.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let text = text.unwrap_or_default();
            panic!("{} database, {done}: {text}", self.name)
        })
    }

    /// All files but the lock, with their lengths.
    fn files(&self) -> Vec<(PathBuf, usize)> {
        let files = self.disk.snapshot_all().into_iter();
        files.map(|(path, bytes)| (path, bytes.len())).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy();
    let kind = name.rsplit_once('.').map_or_else(|| name.split('-').next().unwrap(), |at| at.1);
    kind.to_owned()
}

#[test]
fn intact_databases_have_every_kind_of_file_and_answer() {
    let _shared = lsmx_testkit::run_shared();
    let mut segments = 0;
    for intact in intact() {
        let kinds: Vec<_> = intact.files().iter().map(|(path, _)| extension(path)).collect();
        for kind in ["sst", "blob", "wal", "MANIFEST", "CURRENT"] {
            assert!(kinds.iter().any(|found| found == kind), "{}: {kinds:?}", intact.name);
        }
        assert!(kinds.iter().filter(|kind| *kind == "sst").count() >= 2, "{kinds:?}");
        segments = segments.max(kinds.iter().filter(|kind| *kind == "wal").count());
        lsmx::verify("db", &Options::default().vfs(Arc::new(intact.copy()))).unwrap();
        assert_eq!(intact.sample(&intact.copy(), "nothing"), Answer::Right);
    }
    assert!(segments >= 2, "no log has a chain");
}

#[test]
fn a_changed_byte_is_found_or_harmless() {
    let _shared = lsmx_testkit::run_shared();
    let _dog = watchdog("a_changed_byte_is_found_or_harmless", seed(), Duration::from_secs(300));
    let mut rng = TestRng::new(seed());
    let (mut samples, mut refused) = (0, 0);
    for intact in intact() {
        let files = intact.files();
        let share = (12_000.0 * scale()) as usize / (9 * files.len());
        for (path, len) in files {
            // Every byte of a small file, as many of a larger one.
            let step = (len / share.max(1)).max(1);
            let start = rng.below(step);
            for offset in (start..len).step_by(step) {
                let disk = intact.copy();
                let old = disk.read_all(&path).unwrap()[offset];
                let new = match rng.below(3) {
                    0 => 0,
                    1 => 0xff,
                    _ => old ^ (1 << rng.below(8)),
                };
                if new == old {
                    continue;
                }
                disk.overwrite(&path, offset as u64, &[new]).unwrap();
                let done = format!("{} byte {offset} from {old:#x} to {new:#x}", path.display());
                if extension(&path) == "sst" {
                    let verified =
                        lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone())));
                    let error = verified.expect_err(&done);
                    assert_eq!(named(&error), path, "{done}");
                }
                samples += 1;
                refused += usize::from(intact.sample(&disk, &done) == Answer::Refused);
            }
        }
    }
    println!("{samples} bytes changed, {refused} refused");
    assert!(scale() < 1.0 || (samples >= 6_000 && refused * 4 > samples), "{samples} {refused}");
}

#[test]
fn a_cut_file_is_found_or_harmless() {
    let _shared = lsmx_testkit::run_shared();
    let _dog = watchdog("a_cut_file_is_found_or_harmless", seed(), Duration::from_secs(300));
    let mut rng = TestRng::new(!seed());
    let (mut samples, mut refused) = (0, 0);
    for intact in intact() {
        let files = intact.files();
        let share = (4_000.0 * scale()) as usize / (9 * files.len());
        for (path, len) in files {
            let step = (len / share.max(1)).max(1);
            for cut in (rng.below(step)..len).step_by(step) {
                let disk = intact.copy();
                disk.truncate(&path, cut as u64).unwrap();
                let done = format!("{} cut from {len} to {cut}", path.display());
                if extension(&path) == "sst" {
                    lsmx::verify("db", &Options::default().vfs(Arc::new(disk.clone())))
                        .expect_err(&done);
                }
                samples += 1;
                refused += usize::from(intact.sample(&disk, &done) == Answer::Refused);
            }
        }
    }
    println!("{samples} cuts, {refused} refused");
    assert!(scale() < 1.0 || (samples >= 2_000 && refused * 4 > samples), "{samples} {refused}");
}

/// Files that are whole, each for itself, in the wrong place.
#[test]
fn a_file_in_the_wrong_place_is_found_or_harmless() {
    let _shared = lsmx_testkit::run_shared();
    let _dog = watchdog("a_file_in_the_wrong_place", seed(), Duration::from_secs(300));
    let foreign = build("foreign", 13, 600, 160, false).disk.snapshot_all();
    let mut samples = 0;
    for intact in intact() {
        let files = intact.disk.snapshot_all();
        let present = || files.iter().filter(|(_, bytes)| !bytes.is_empty());
        for (path, bytes) in present() {
            let removed = intact.copy();
            lsmx::vfs::Vfs::remove(&removed, path).unwrap();
            let done = format!("{} removed", path.display());
            let answer = intact.sample(&removed, &done);
            assert!(answer == Answer::Refused || extension(path) == "wal", "{done}");
            samples += 1;
            for (other, other_bytes) in present().filter(|(other, _)| *other != path) {
                let swapped = intact.copy();
                swapped.write_all(path, other_bytes).unwrap();
                let done = format!("{} holds {}", path.display(), other.display());
                intact.sample(&swapped, &done);
                swapped.write_all(other, bytes).unwrap();
                intact.sample(&swapped, &format!("{done}, and the other way round"));
                samples += 2;
            }
            let kind = extension(path);
            for (other, other_bytes) in foreign.iter().filter(|(at, _)| extension(at) == kind) {
                let replaced = intact.copy();
                replaced.write_all(path, other_bytes).unwrap();
                let done = format!("{} of another database as {}", other.display(), path.display());
                let answer = intact.sample(&replaced, &done);
                // A segment that was never synced may show old blocks of the disk, so it counts as torn.
                assert!(answer == Answer::Refused || kind == "wal", "{done}");
                samples += 1;
            }
        }
    }
    println!("{samples} files in the wrong place");
}
