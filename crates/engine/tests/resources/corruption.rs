//! Guarantee 10: damage to any file of a closed or killed database is detected or harmless.
//!
//! Every call returns a correct result or an error that names a damaged file. No call panics. A damaged length field
//! does not determine the size of an allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::{CrashImage, MemVfs, Vfs};
use lsmx::{
    Compression, Db, Durability, Error, Keyspace, KeyspaceOptions, Options, PolicySpec,
    ValueSeparation, WriteBatch,
};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, panic_text, scale, seed, watchdog, with_silent_panics};

use crate::ALLOCATOR;

/// Maximum number of bytes that all reads of one damaged database may allocate.
const BYTES_MAX: isize = 64 << 20;

const KEYSPACES: [&str; 3] = ["default", "other", "operands"];
type State = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

/// An undamaged database and the states that an open may recover.
struct IntactDatabase {
    name: &'static str,
    disk: MemVfs,
    /// The contents of the keyspaces after 0, 1, 2, … commits.
    states: Vec<State>,
    /// Number of commits that must survive.
    synced: usize,
}

/// Returns options of a keyspace. The keyspaces have different memtable sizes, so one keyspace is flushed later than
/// another. The log must keep the unflushed commits.
fn keyspace_options(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .policy("leveled(T=2)".parse::<PolicySpec>().unwrap())
        .memtable_bytes(3 << 10)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .compression(vec![Compression::None, Compression::Lz4]);
    let separation = ValueSeparation { threshold_bytes: 30, ..ValueSeparation::default() };
    match name {
        "default" => options.value_separation(separation),
        "other" => options.memtable_bytes(8 << 10).value_separation(separation),
        _ => {
            let buckets = DeltaOptions::default().bucket_bytes(2 << 10).log_bytes_max(2 << 10);
            let options = options.memtable_bytes(1 << 10).merge_operator(Append::default());
            options.operand_store(DeltaStoreFactory::new(buckets))
        }
    }
}

fn options(seed: u64, segment_bytes: u64) -> Options {
    let wal = WalOptions { segment_bytes, ..WalOptions::default() };
    let options = Options::default().background(Background::Inline).seed(seed).wal(wal);
    options.keyspace_defaults(keyspace_options("default"))
}

/// Builds a small database with every kind of file. Each commit writes its number to all keyspaces.
fn build(
    name: &'static str,
    seed: u64,
    segment_bytes: u64,
    commits: usize,
    killed: bool,
) -> IntactDatabase {
    let disk = MemVfs::new();
    let db = Db::open("db", options(seed, segment_bytes).vfs(Arc::new(disk.clone()))).unwrap();
    let keyspaces = KEYSPACES.map(|name| db.keyspace(name, keyspace_options(name)).unwrap());
    let mut rng = TestRng::new(seed);
    let mut states = vec![State::default()];
    let mut synced = 0;
    for commit in 1..=commits {
        let mut batch = WriteBatch::new();
        let mut state = states.last().unwrap().clone();
        for (keyspace, state) in keyspaces.iter().zip(&mut state) {
            let number = (commit as u64).to_le_bytes();
            batch.put(keyspace, b"commits", number);
            state.insert(b"commits".to_vec(), number.to_vec());
            let key = format!("key-{:03}", rng.below(90)).into_bytes();
            let value = format!("{commit}-{}", "value".repeat(rng.below(12))).into_bytes();
            if rng.is_true_with_percent(15) {
                batch.delete(keyspace, &key);
                state.remove(&key);
            } else if keyspace.name() == "operands" {
                batch.merge(keyspace, &key, &value);
                state.entry(key).or_default().extend(value);
            } else {
                batch.put(keyspace, &key, &value);
                state.insert(key, value);
            }
        }
        // The last commits of a killed database are not synced.
        let sync = commit % 20 == 0 && commit < commits - 30;
        db.write(batch, if sync { Durability::Sync } else { Durability::Buffered }).unwrap();
        states.push(state);
        if sync {
            synced = commit;
        }
    }
    if killed {
        return IntactDatabase { name, disk: disk.crash(CrashImage::Keep, 0), states, synced };
    }
    drop(keyspaces);
    db.close(None).unwrap();
    IntactDatabase { name, disk, states, synced: commits }
}

/// Returns a closed database, and databases that were killed at different times. In some of them, a keyspace was
/// flushed after the newest log segment was created. Only the manifest then determines which log segments to replay.
fn intact() -> Vec<IntactDatabase> {
    let killed = (0..8).map(|at| build("killed", 12, 1 << 10, 150 + 3 * at, true));
    std::iter::once(build("closed", 11, 600, 160, false)).chain(killed).collect()
}

/// Returns the paths that an error names.
fn named(error: &Error) -> Vec<PathBuf> {
    match error {
        Error::Corrupt { path, offset, .. } => {
            assert!(*offset < 1 << 40, "{error}");
            let cause = std::error::Error::source(error);
            assert!(cause.is_some_and(|it| !it.to_string().is_empty()), "{error}");
            vec![path.clone()]
        }
        Error::Missing { path, named_by, .. } => vec![path.clone(), named_by.clone()],
        Error::Io { path, .. }
        | Error::NotADatabase { path, .. }
        | Error::UnsupportedVersion { path, .. } => vec![path.clone()],
        Error::ReadOnly { cause }
        | Error::Background { cause, .. }
        | Error::NoOperandStore { cause: Some(cause), .. } => named(cause),
        other => panic!("damage is reported as {other:?}"),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Right,
    Refused,
}

/// The damaged files. A read error must name one of these files.
type Culprits<'a> = &'a [&'a Path];

fn is_not_found(error: &Error) -> bool {
    match error {
        Error::Missing { .. } => true,
        Error::Io { source, .. } => source.kind() == ErrorKind::NotFound,
        Error::NoOperandStore { cause: Some(cause), .. } => is_not_found(cause),
        _ => false,
    }
}

/// Checks that the error names one of the damaged files.
fn check_named(error: &Error, culprits: Culprits<'_>) {
    let named = named(error);
    let is_named = |culprit: &&Path| named.iter().any(|path| path == culprit);
    // If the file `CURRENT` is missing, the error names the directory.
    let lost_current = culprits[0].ends_with("CURRENT") && named == [Path::new("db")];
    // After a kill, a truncated manifest looks like a torn tail. The open then recovers an older state, which may refer
    // to files that no longer exist.
    let is_older = extension(culprits[0]) == "MANIFEST" && is_not_found(error);
    let is_right = culprits.iter().any(is_named) || lost_current || is_older;
    assert!(is_right, "{error:?}: named {named:?}");
}

impl IntactDatabase {
    fn copy(&self) -> MemVfs {
        self.disk.crash(CrashImage::Keep, 0)
    }

    /// Opens a damaged copy and reads all keys with gets and scans.
    fn read(&self, disk: &MemVfs, culprits: Culprits<'_>) -> Answer {
        let before = disk.snapshot_all();
        let mut refused = false;
        let mut refuse = |error: Error| {
            check_named(&error, culprits);
            refused = true;
        };
        let db = match Db::open("db", options(5, 600).vfs(Arc::new(disk.clone()))) {
            Ok(db) => db,
            Err(error) => {
                refuse(error);
                assert!(disk.snapshot_all() == before, "a failed open changed bytes");
                return Answer::Refused;
            }
        };
        let mut keyspaces: Vec<(usize, Keyspace)> = Vec::new();
        for (at, name) in KEYSPACES.iter().enumerate() {
            match db.keyspace(name, keyspace_options(name)) {
                Ok(keyspace) => keyspaces.push((at, keyspace)),
                Err(error) => refuse(error),
            }
        }
        // All readable keyspaces must have the same number of commits.
        let mut commits = None;
        for (_, keyspace) in &keyspaces {
            match keyspace.get("commits") {
                Ok(value) => {
                    let value = value.expect("no commit exists");
                    let found = u64::from_le_bytes(value[..].try_into().unwrap()) as usize;
                    assert!(commits.is_none_or(|other| other == found), "commit counts differ");
                    commits = Some(found);
                }
                Err(error) => refuse(error),
            }
        }
        let Some(commits) = commits else { return Answer::Refused };
        assert!(commits >= self.synced, "{commits} commits, {} were synced", self.synced);
        for (at, keyspace) in keyspaces {
            let model = &self.states[commits][at];
            for key in self.states.last().unwrap()[at].keys() {
                match keyspace.get(key) {
                    Ok(found) => {
                        let expected = model.get(key).map(Vec::as_slice);
                        assert_eq!(found.as_deref(), expected, "{}", key.escape_ascii());
                    }
                    Err(error) => refuse(error),
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
                        refuse(error);
                        // After an iterator has failed, each further call returns an error.
                        assert!(matches!(scan.next(), Some(Err(_))), "an iterator continues");
                        assert!(matches!(scan.next_back(), Some(Err(_))), "backward");
                        break;
                    }
                    (found, model) => panic!("a scan returns {found:?}, expected {model:?}"),
                }
            }
        }
        if refused { Answer::Refused } else { Answer::Right }
    }

    /// Runs [`IntactDatabase::read`] and checks how much memory it allocates. Failure messages include the database and
    /// the damage.
    fn sample(&self, disk: &MemVfs, culprits: Culprits<'_>, damage: &str) -> Answer {
        let read = || catch_unwind(AssertUnwindSafe(|| self.read(disk, culprits)));
        let (answer, bytes) = ALLOCATOR.peak_in_thread(|| with_silent_panics(read));
        assert!(bytes < BYTES_MAX, "{} database, {damage}: {bytes} bytes allocated", self.name);
        answer.unwrap_or_else(|panic| {
            panic!("{} database, {damage}: {}", self.name, panic_text(&*panic))
        })
    }

    fn files(&self) -> Vec<(PathBuf, usize)> {
        let files = self.disk.snapshot_all().into_iter();
        files.map(|(path, bytes)| (path, bytes.len())).filter(|(_, bytes)| *bytes > 0).collect()
    }
}

fn verify(disk: &MemVfs) -> lsmx::Result<lsmx::VerifyReport> {
    let options = Options::default().vfs(Arc::new(disk.clone()));
    lsmx::verify("db", &options.operand_store(DeltaStoreFactory::new(DeltaOptions::default())))
}

fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy();
    let kind = name.rsplit_once('.').map_or_else(|| name.split('-').next().unwrap(), |at| at.1);
    kind.to_owned()
}

#[test]
fn intact_databases_have_every_kind_of_file_and_are_readable() {
    let _shared = lsmx_testkit::run_shared();
    let (mut segments, mut buckets) = (0, 0);
    for intact in intact() {
        let kinds: Vec<_> = intact.files().iter().map(|(path, _)| extension(path)).collect();
        for kind in ["sst", "blob", "operands", "wal", "MANIFEST", "CURRENT"] {
            assert!(kinds.iter().any(|found| found == kind), "{}: {kinds:?}", intact.name);
        }
        assert!(kinds.iter().filter(|kind| *kind == "sst").count() >= 2, "{kinds:?}");
        segments = segments.max(kinds.iter().filter(|kind| *kind == "wal").count());
        buckets += kinds.iter().filter(|kind| *kind == "bucket").count();
        verify(&intact.copy()).unwrap();
        assert_eq!(intact.sample(&intact.copy(), &[], "no damage"), Answer::Right);
    }
    assert!(segments >= 2, "no log has several segments");
    assert!(buckets >= 9, "{buckets} buckets in nine databases");
}

/// Damages each file of each database at evenly spaced offsets and checks each damaged copy. `samples` is the total
/// number of copies at `LSMX_TEST_SCALE=1`. `damage` gets the disk, the file and the offset, and returns a description.
/// If a table is damaged, `verify` must also detect it.
fn damage_files(
    samples: f64,
    rng: &mut TestRng,
    damage: impl Fn(&MemVfs, &Path, usize, &mut TestRng) -> Option<String>,
) {
    let _shared = lsmx_testkit::run_shared();
    let _dog = watchdog("damaged files", seed(), Duration::from_secs(300));
    let (mut count, mut refused) = (0, 0);
    for intact in intact() {
        let files = intact.files();
        let share = (samples * scale()) as usize / (9 * files.len());
        for (path, len) in files {
            let step = (len / share.max(1)).max(1);
            for offset in (rng.below(step)..len).step_by(step) {
                let disk = intact.copy();
                let Some(damage) = damage(&disk, &path, offset, rng) else { continue };
                if extension(&path) == "sst" {
                    check_named(&verify(&disk).expect_err(&damage), &[&path]);
                }
                count += 1;
                let answer = intact.sample(&disk, &[&path], &damage);
                refused += usize::from(answer == Answer::Refused);
            }
        }
    }
    println!("{count} samples, {refused} refused");
    let enough = count as f64 >= samples / 2.0 && refused * 4 > count;
    assert!(scale() < 1.0 || enough, "{count} samples, {refused} refused");
}

#[test]
fn changed_byte_is_detected_or_harmless() {
    damage_files(13_000.0, &mut TestRng::new(seed()), |disk, path, offset, rng| {
        let old = disk.read_all(path).unwrap()[offset];
        let new = match rng.below(3) {
            0 => 0,
            1 => 0xff,
            _ => old ^ (1 << rng.below(8)),
        };
        disk.overwrite(path, offset as u64, &[new]).unwrap();
        let damage = format!("{} byte {offset} from {old:#x} to {new:#x}", path.display());
        (new != old).then_some(damage)
    });
}

#[test]
fn cut_file_is_detected_or_harmless() {
    damage_files(4_500.0, &mut TestRng::new(!seed()), |disk, path, offset, _| {
        disk.truncate(path, offset as u64).unwrap();
        Some(format!("{} cut to {offset} bytes", path.display()))
    });
}

/// Removes a file, swaps two files, or replaces a file by a file of another database.
#[test]
fn misplaced_file_is_detected_or_harmless() {
    let _shared = lsmx_testkit::run_shared();
    let _dog = watchdog("misplaced files", seed(), Duration::from_secs(300));
    let foreign = build("foreign", 13, 600, 160, false).disk.snapshot_all();
    let (mut samples, mut refused) = (0, BTreeSet::new());
    // A log segment that was never synced may contain old blocks of the disk, so recovery treats damage as a torn tail.
    // After a kill, some buckets may be obsolete, so damage to them has no effect.
    let mut check = |damage: &str, kind: &str, answer: Answer| {
        assert!(answer == Answer::Refused || ["wal", "bucket"].contains(&kind), "{damage}");
        if answer == Answer::Refused {
            refused.insert(kind.to_owned());
        }
    };
    for intact in intact() {
        let files = intact.disk.snapshot_all();
        let present = || files.iter().filter(|(_, bytes)| !bytes.is_empty());
        let manifest = files.keys().find(|path| extension(path) == "MANIFEST").unwrap();
        for (path, bytes) in present() {
            let kind = extension(path);
            let removed = intact.copy();
            removed.remove(path).unwrap();
            let damage = format!("{} removed", path.display());
            check(&damage, &kind, intact.sample(&removed, &[path], &damage));
            samples += 1;
            for (other, other_bytes) in present().filter(|(other, _)| *other != path) {
                let swapped = intact.copy();
                swapped.write_all(path, other_bytes).unwrap();
                let damage = format!("{} holds {}", path.display(), other.display());
                intact.sample(&swapped, &[path, other, manifest], &damage);
                swapped.write_all(other, bytes).unwrap();
                let damage = format!("{damage}, and the other way round");
                intact.sample(&swapped, &[path, other, manifest], &damage);
                samples += 2;
            }
            for (other, other_bytes) in foreign.iter().filter(|(at, _)| extension(at) == kind) {
                let replaced = intact.copy();
                replaced.write_all(path, other_bytes).unwrap();
                let damage =
                    format!("{} of another database as {}", other.display(), path.display());
                // The `CURRENT` file of another database names a manifest of that database.
                check(&damage, &kind, intact.sample(&replaced, &[path, manifest], &damage));
                samples += 1;
            }
        }
    }
    println!("{samples} misplaced files");
    assert!(refused.contains("wal") && refused.contains("bucket"), "{refused:?}");
}
