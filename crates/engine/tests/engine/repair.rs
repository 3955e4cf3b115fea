//! Repair of damaged databases.
//!
//! A repaired database opens and passes verification. Its entries are correct except for keys that the report names as
//! lost. A lost key has one of its earlier values or no value.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::ManualClock;
use lsmx::ingest::ExternalTableWriter;
use lsmx::internals::format::block::TRAILER_BYTES;
use lsmx::internals::format::footer::{FOOTER_BYTES, Footer};
use lsmx::internals::format::properties::TableProperties;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{
    Compression, Db, Durability, Error, KeyspaceOptions, Loss, LossKind, Options, RepairOptions,
    RepairReport, ValueSeparation, WalOptions, WriteBatch,
};
use lsmx_testkit::watchdog;
use lsmx_testkit::{TestRng, scale, scaled, seed};

use crate::harness::database::{
    Entries, assert_entries, compact, files, inline, metrics, open, policy, try_open, verify,
    without_jobs,
};

const KEYSPACES: [&str; 2] = ["default", "other"];

/// The entries of the two keyspaces, in the order of `KEYSPACES`.
type State = [Entries; 2];

/// Returns keyspace options with a leveled policy for even seeds and a tiering policy for odd seeds.
fn tuning(memtable_bytes: u64, seed: u64) -> KeyspaceOptions {
    let text = if seed.is_multiple_of(2) { "leveled(T=2)" } else { "tiering(T=3)" };
    KeyspaceOptions::default()
        .policy(policy(text))
        .memtable_bytes(memtable_bytes)
        .table_bytes(2 << 10)
        .block_bytes(256)
        .compression(vec![Compression::None, Compression::Lz4])
        .value_separation(ValueSeparation { threshold_bytes: 40, ..ValueSeparation::default() })
}

fn options(seed: u64) -> Options {
    let wal = WalOptions { segment_bytes: 2 << 10, ..WalOptions::default() };
    inline().seed(seed).wal(wal).keyspace_defaults(tuning(3 << 10, seed))
}

/// An undamaged database and its history.
struct Intact {
    disk: MemVfs,
    /// The entries of both keyspaces after each commit. Index 0 is the state before the first commit.
    states: Vec<State>,
    /// All values that each key ever had.
    values: [Values; 2],
}

type Values = std::collections::BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>;

/// Builds a database with puts, deletes and range deletes in two keyspaces. Each commit stores its number in both
/// keyspaces under the key `commits`.
fn build(seed: u64, commits: usize, killed: bool) -> Intact {
    let disk = MemVfs::new();
    let db = open(&disk, options(seed));
    let keyspaces = [db.default_keyspace(), db.keyspace("other", tuning(5 << 10, seed)).unwrap()];
    let mut rng = TestRng::new(seed);
    let mut states = vec![State::default()];
    let mut values = <[Values; 2]>::default();
    for commit in 1..=commits {
        let mut batch = WriteBatch::new();
        let mut state = states.last().unwrap().clone();
        for (at, keyspace) in keyspaces.iter().enumerate() {
            if rng.is_true_with_percent(5) {
                let from = rng.below(120);
                let (from, to) = (key(from), key(from + 1 + rng.below(9)));
                batch.delete_range(keyspace, from.clone()..to.clone());
                state[at].retain(|key, _| *key < from || *key >= to);
            }
            let mut put = |key: Vec<u8>, value: Vec<u8>| {
                batch.put(keyspace, &key, &value);
                values[at].entry(key.clone()).or_default().insert(value.clone());
                state[at].insert(key, value);
            };
            put(b"commits".to_vec(), (commit as u64).to_le_bytes().to_vec());
            let key = key(rng.below(120));
            if rng.is_true_with_percent(20) {
                batch.delete(keyspace, &key);
                state[at].remove(&key);
            } else {
                put(key, format!("{commit}-{}", "value".repeat(rng.below(14))).into_bytes());
            }
        }
        db.write(batch, Durability::Sync).unwrap();
        states.push(state);
    }
    let disk = match killed {
        true => disk.crash(CrashImage::Keep, 0),
        false => {
            drop(keyspaces);
            db.close(None).unwrap();
            disk
        }
    };
    Intact { disk, states, values }
}

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn repair_with(vfs: &(impl Vfs + Clone), options: &RepairOptions) -> lsmx::Result<RepairReport> {
    lsmx::repair("db", &Options::default().vfs(Arc::new(vfs.clone())), options)
}

fn repair(disk: &MemVfs) -> lsmx::Result<RepairReport> {
    repair_with(disk, &RepairOptions::default())
}

impl Intact {
    fn copy(&self) -> MemVfs {
        self.disk.crash(CrashImage::Keep, 0)
    }

    fn files(&self) -> Vec<(PathBuf, usize)> {
        let files = self.disk.snapshot_all().into_iter();
        files.map(|(path, bytes)| (path, bytes.len())).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Asserts that a repaired database is correct except for the losses in the report, and that it accepts writes.
    /// Failure messages include `damage`, a description of the damaged files.
    fn check(&self, disk: &MemVfs, report: &RepairReport, damage: &str) {
        let failed = |error: Error| -> ! { panic!("{damage}: {error:?} {}", describe(report)) };
        verify(disk).unwrap_or_else(|error| failed(error));
        let db = try_open(disk, options(5)).unwrap_or_else(|error| failed(error));
        let commits_lost = report.lost.iter().any(|lost| lost.what == LossKind::Commits);
        // A WAL truncated after the last sync mark looks like a power loss, so repair reports no lost commits.
        let last = match damage.contains(".wal ") {
            false => self.states.len() - 1,
            true => KEYSPACES.iter().filter_map(|name| commits(&db, name)).max().unwrap_or(0),
        };
        let last = &self.states[last];
        for (at, name) in KEYSPACES.into_iter().enumerate() {
            // If the manifest and the only table of a keyspace are lost, repair cannot find the keyspace. The report
            // names its keys as lost.
            let keyspace = db.open_keyspace(name, None).ok();
            let scanned: Entries = keyspace
                .iter()
                .flat_map(|keyspace| keyspace.iter())
                .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
                .collect();
            let keys = self.values[at].keys();
            for key in keys.chain(scanned.keys()).collect::<BTreeSet<_>>() {
                let found = keyspace.as_ref().and_then(|keyspace| keyspace.get(key).unwrap());
                let found = found.as_deref();
                assert_eq!(found, scanned.get(key).map(Vec::as_slice), "{damage}: get != scan");
                if !commits_lost && !report.may_affect(name, key) {
                    let expected = last[at].get(key).map(Vec::as_slice);
                    let key = key.escape_ascii();
                    assert_eq!(found, expected, "{damage}: {name} {key}: {}", describe(report));
                }
                let once =
                    |value: &[u8]| self.values[at].get(key).is_some_and(|all| all.contains(value));
                assert!(found.is_none_or(once), "{damage}: a value that the key never had");
            }
        }
        db.put("afterwards", "yes").unwrap();
        compact(&db).unwrap();
        db.close(None).unwrap();
        let db = open(disk, options(6));
        assert_eq!(db.get("afterwards").unwrap().as_deref(), Some(&b"yes"[..]));
    }
}

fn commits(db: &Db, name: &str) -> Option<usize> {
    let value = db.open_keyspace(name, None).ok()?.get("commits").ok()??;
    Some(u64::from_le_bytes(value[..].try_into().ok()?) as usize)
}

fn describe(report: &RepairReport) -> String {
    let mut lines = format!("in doubt: {}", report.in_doubt);
    let key = |key: &Option<Vec<u8>>| key.as_ref().map(|key| key.escape_ascii().to_string());
    for found in &report.findings {
        lines.push_str(&format!("\n  {}; {}", found.what, found.done));
    }
    for lost in &report.lost {
        let keys = (&lost.keyspace, key(&lost.from), key(&lost.to));
        lines.push_str(&format!("\n  lost: {:?} {keys:?}: {}", lost.what, lost.why));
    }
    lines
}

/// Returns the extension of a file name. For a name without an extension, returns the part before the first hyphen.
fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy();
    let kind = name.rsplit_once('.').map_or_else(|| name.split('-').next().unwrap(), |at| at.1);
    kind.to_owned()
}

/// Returns a cleanly closed database and two databases whose process was killed.
fn intact() -> Vec<Intact> {
    vec![build(11, 260, false), build(12, 255, true), build(13, 301, true)]
}

#[test]
fn repair_of_an_intact_database_changes_nothing() {
    for intact in intact() {
        let disk = intact.copy();
        let before = disk.snapshot_all();
        let report = repair(&disk).unwrap();
        assert!(!report.damaged && report.tables_sound > 2, "{}", describe(&report));
        assert!(disk.snapshot_all() == before, "files of an intact database have changed");
    }
}

#[test]
fn repair_without_a_database_or_of_an_open_one_is_refused() {
    let disk = MemVfs::new();
    assert!(matches!(repair(&disk), Err(Error::NotADatabase { .. })));
    disk.create_dir(Path::new("db")).unwrap();
    disk.create(Path::new("db/notes.txt")).unwrap();
    let before = disk.snapshot_all();
    assert!(matches!(repair(&disk), Err(Error::NotADatabase { .. })));
    assert!(disk.snapshot_all() == before);
    let disk = MemVfs::new();
    let _db = open(&disk, options(1));
    let locked = repair(&disk);
    assert!(matches!(locked, Err(Error::Locked { .. })), "{locked:?}");
}

/// Other engines, such as RocksDB, use the same file names. Without `force`, repair must refuse their directories.
#[test]
fn repair_of_files_without_a_magic_number_is_refused_unless_forced() {
    let rocks = [
        ("CURRENT", &b"MANIFEST-000004\n"[..]),
        ("IDENTITY", b"0c1f"),
        ("LOCK", b""),
        ("MANIFEST-000004", b"\x56\xf9\xb8\xf8\x1c\x00\x01\x01\x1aleveldb"),
        ("000009.sst", b"\x00\x03\x05key\xf7\xcf\xf4\x85\xb7\x41\xe2\x88"),
    ];
    for files in [&rocks[..], &[("000001.sst", b"a text\n")], &[("000001.sst", b"")]] {
        let disk = MemVfs::new();
        disk.create_dir(Path::new("db")).unwrap();
        for (name, bytes) in files {
            disk.write_all(&Path::new("db").join(name), bytes).unwrap();
        }
        let before = disk.snapshot_all();
        for dry_run in [true, false] {
            let refused = repair_with(&disk, &RepairOptions { dry_run, ..Default::default() });
            assert!(matches!(refused, Err(Error::NotADatabase { .. })), "{refused:?}");
            assert!(disk.snapshot_all() == before);
        }
        let forced = RepairOptions { force: true, ..RepairOptions::default() };
        let report = repair_with(&disk, &forced).unwrap();
        assert!(report.damaged && report.set_aside.is_some(), "{}", describe(&report));
    }
}

/// Damages one or two random files. Returns a description of the damage.
fn damage(rng: &mut TestRng, intact: &Intact, disk: &MemVfs) -> String {
    let files = intact.files();
    let mut done = Vec::new();
    for _ in 0..1 + rng.below(2) {
        let (path, len) = &files[rng.below(files.len())];
        if !disk.exists(path).unwrap() {
            continue;
        }
        let at = rng.below(*len);
        let what = match rng.below(10) {
            0 => {
                disk.remove(path).unwrap();
                "removed".to_owned()
            }
            1 | 2 => {
                let now = disk.read_all(path).unwrap().len();
                disk.truncate(path, at.min(now) as u64).unwrap();
                format!("cut to {at}")
            }
            3 => {
                let (other, _) = &files[rng.below(files.len())];
                let bytes = intact.disk.read_all(other).unwrap();
                disk.write_all(path, &bytes).unwrap();
                format!("overwritten by {}", other.display())
            }
            4 => {
                let end = (at + 1 + rng.below(700)).min(disk.read_all(path).unwrap().len());
                let at = at.min(end);
                let zeros = vec![0; end.saturating_sub(at)];
                disk.overwrite(path, at as u64, &zeros).unwrap();
                format!("zeroed from {at} to {end}")
            }
            _ => match disk.flip_bits(path, at as u64, 1 << rng.below(8)) {
                Ok(()) => format!("byte {at} changed"),
                Err(_) => continue,
            },
        };
        done.push(format!("{} {what}", path.display()));
    }
    done.join(", ")
}

#[test]
fn repaired_database_is_correct_except_for_the_reported_losses() {
    let _dog = watchdog("repaired_database_is_correct", seed(), Duration::from_secs(300));
    let mut rng = TestRng::new(seed());
    let (mut damaged, mut lossless) = (0, 0);
    let all = intact();
    let samples = scaled(1_500);
    for number in 0..samples as usize {
        let intact = &all[number % all.len()];
        let disk = intact.copy();
        let done = damage(&mut rng, intact, &disk);
        let done = format!("sample {number}: {done}");
        let before = disk.snapshot_all();
        let dry = RepairOptions { dry_run: true, ..RepairOptions::default() };
        let dry = repair_with(&disk, &dry);
        assert!(disk.snapshot_all() == before, "{done}: the dry run changed a file");
        let dry = match dry {
            // The damage changed a format version number. Repair refuses files with an unknown format version.
            Err(Error::UnsupportedVersion { .. }) => {
                assert!(matches!(repair(&disk), Err(Error::UnsupportedVersion { .. })), "{done}");
                continue;
            }
            dry => dry.unwrap_or_else(|error| panic!("{done}: {error:?}")),
        };
        let report = repair(&disk).unwrap_or_else(|error| panic!("{done}: {error:?}"));
        let without_files = |report: &RepairReport| RepairReport {
            set_aside: None,
            files_set_aside: Vec::new(),
            ..report.clone()
        };
        assert_eq!(without_files(&dry), without_files(&report), "{done}: the dry run differs");
        damaged += u64::from(report.damaged);
        lossless += u64::from(report.damaged && report.lost.is_empty());
        let after = disk.snapshot_all();
        // Repair keeps every original file, in place or set aside. Only WAL segments and `LOCK` may change.
        for (path, bytes) in before.iter().filter(|_| report.damaged) {
            let name = path.file_name().unwrap();
            let aside = report.set_aside.as_ref().unwrap().join(name);
            let kept = [path, &aside].into_iter().any(|at| after.get(at) == Some(bytes));
            let log = extension(path) == "wal";
            assert!(kept || log || name == "LOCK", "{done}: {} is missing", path.display());
        }
        intact.check(&disk, &report, &done);
    }
    println!("{samples} samples: {damaged} damaged, {lossless} of them without loss");
    assert!(scale() < 1.0 || (damaged * 2 > samples && lossless > 50));
}

#[test]
fn repair_without_current_or_manifest_loses_nothing() {
    for intact in intact() {
        for kinds in [&["CURRENT"][..], &["MANIFEST"], &["CURRENT", "MANIFEST"]] {
            let disk = intact.copy();
            for (path, _) in intact.files() {
                if kinds.contains(&extension(&path).as_str()) {
                    disk.remove(&path).unwrap();
                }
            }
            assert!(try_open(&disk, options(1)).is_err());
            let report = repair(&disk).unwrap();
            assert!(report.damaged && report.lost.is_empty(), "{kinds:?}: {}", describe(&report));
            // Without a manifest, repair sets `in_doubt`. The test, however, knows that the tables are complete and
            // live.
            let certain = RepairReport { in_doubt: false, ..report };
            intact.check(&disk, &certain, &format!("without {kinds:?}"));
        }
    }
}

/// The manifest lacks the edit of the compaction, so it lists only tables that the compaction has removed.
#[test]
fn repair_after_lost_manifest_edits_finds_unlisted_tables() {
    let disk = MemVfs::new();
    let db = open(&disk, options(2));
    let flushed = |value: &str| {
        for number in 0..20 {
            db.put(key(number), value).unwrap();
        }
        db.flush().unwrap();
    };
    flushed("old");
    flushed("new");
    let manifests = || {
        let files = disk.snapshot_all().into_iter();
        files.filter(|(path, _)| extension(path) == "MANIFEST").collect::<Vec<_>>()
    };
    let before = manifests();
    compact(&db).unwrap();
    let crashed = disk.crash(CrashImage::Keep, 0);
    let [(path, bytes)] = &before[..] else { panic!("{} manifests", before.len()) };
    assert!(manifests()[0].1.len() > bytes.len() && manifests()[0].0 == *path);
    crashed.truncate(path, bytes.len() as u64).unwrap();
    let report = repair(&crashed).unwrap();
    assert!(report.in_doubt, "{}", describe(&report));
    let db = open(&crashed, options(2));
    assert_eq!(db.default_keyspace().iter().count(), 20);
    for number in 0..20 {
        assert_eq!(db.get(key(number)).unwrap().as_deref(), Some(&b"new"[..]));
    }
}

/// Bug: if the last edits of a readable manifest were lost, the repair ignored the removals that its other edits record.
/// Tables of earlier compactions restored deleted entries, and dropped keyspaces were restored.
#[test]
fn repair_after_lost_manifest_edits_respects_earlier_removals() {
    let disk = MemVfs::new();
    let db = open(&disk, options(2));
    // Two keyspaces are dropped. An ingested table does not contain the id of its keyspace.
    let names = ["flushed", "ingested"];
    let dropped = names.map(|name| db.keyspace(name, tuning(3 << 10, 2)).unwrap());
    dropped[0].put("key", "value").unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let mut table =
        ExternalTableWriter::create_in(vfs, "external.sst", &tuning(3 << 10, 2)).unwrap();
    table.put("ingested", "value").unwrap();
    table.finish().unwrap();
    dropped[1].ingest(["external.sst"]).unwrap();
    db.put(key(1), "deleted").unwrap();
    db.flush().unwrap();
    let removed = disk.snapshot_all();
    db.delete(key(1)).unwrap();
    db.put(key(2), "value").unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    drop(dropped);
    for name in names {
        db.drop_keyspace(name).unwrap();
    }
    let manifest = || {
        let mut files = disk.snapshot_all().into_iter();
        files.find(|(path, _)| extension(path) == "MANIFEST").unwrap()
    };
    let (path, bytes) = manifest();
    // The lost edits replace the only table that the manifest lists.
    db.put(key(2), "newer").unwrap();
    db.flush().unwrap();
    compact(&db).unwrap();
    assert!(manifest().1.len() > bytes.len() && manifest().0 == path);
    let crashed = disk.crash(CrashImage::Keep, 0);
    crashed.truncate(&path, bytes.len() as u64).unwrap();
    let mut restored = 0;
    for (path, bytes) in removed.iter().filter(|(path, _)| extension(path) == "sst") {
        if path.starts_with("db") && !crashed.exists(path).unwrap() {
            crashed.write_all(path, bytes).unwrap();
            restored += 1;
        }
    }
    assert_eq!(restored, 3);
    let report = repair(&crashed).unwrap();
    assert!(report.in_doubt, "{}", describe(&report));
    let db = open(&crashed, options(2));
    assert_eq!(db.keyspaces(), ["default"]);
    let expected = Entries::from([(key(2), b"newer".to_vec())]);
    assert_entries(&db.default_keyspace(), &expected);
}

/// Writes an external table.
fn write_external_table(disk: &MemVfs, path: &str, write: impl FnOnce(&mut ExternalTableWriter)) {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let mut table = ExternalTableWriter::create_in(vfs, path, &tuning(3 << 10, 2)).unwrap();
    write(&mut table);
    table.finish().unwrap();
}

/// Returns the path and the size of the only manifest.
fn manifest_size(disk: &MemVfs) -> (PathBuf, u64) {
    let mut files = disk.snapshot_all().into_iter();
    let (path, bytes) = files.find(|(path, _)| extension(path) == "MANIFEST").unwrap();
    (path, bytes.len() as u64)
}

/// Bug: if the write time of some tombstones was unknown, the merged table had the time of the others. The bound for
/// deleted values did not hold.
#[test]
fn repair_after_lost_manifest_edits_tombstones_of_unknown_age_are_due_at_once() {
    let disk = MemVfs::new();
    let bounded = without_jobs().delete_persistence(Duration::from_secs(1));
    let options = || inline().keyspace_defaults(bounded.clone());
    let db = open(&disk, options());
    for number in 0..4 {
        db.put(key(number), "value").unwrap();
    }
    db.flush().unwrap();
    // Only the manifest contains the time of an ingest.
    write_external_table(&disk, "external.sst", |table| table.delete(key(1)).unwrap());
    db.default_keyspace().ingest(["external.sst"]).unwrap();
    db.delete(key(2)).unwrap();
    db.flush().unwrap();
    let (path, lost_at) = manifest_size(&disk);
    for value in ["lost edit", "later edit"] {
        db.put(key(4), value).unwrap();
        db.flush().unwrap();
    }
    assert_eq!(metrics(&db).total().tombstones, 2);
    let crashed = disk.crash(CrashImage::Keep, 0);
    crashed.flip_bits(&path, lost_at + 5, 1).unwrap();
    let report = repair(&crashed).unwrap();
    assert!(report.in_doubt, "{}", describe(&report));
    let db = open(&crashed, options());
    db.wait_idle().unwrap();
    assert_eq!(metrics(&db).total().tombstones, 0);
    for number in 0..4 {
        let found = db.get(key(number)).unwrap();
        assert_eq!(found.is_some(), number != 1 && number != 2, "{number}");
    }
}

/// Bug: the repair took the number of an ingest for that of a flush. The replay of the log skipped unflushed commits
/// before the ingest.
#[test]
fn repair_after_lost_manifest_edits_replays_unflushed_commits_before_ingest() {
    for is_table_damaged in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, options(2));
        db.put("unflushed", "value").unwrap();
        write_external_table(&disk, "external.sst", |table| {
            for number in 0..100 {
                table.put(key(number), "value").unwrap();
            }
        });
        db.default_keyspace().ingest(["external.sst"]).unwrap();
        let (path, lost_at) = manifest_size(&disk);
        for name in ["lost", "later"] {
            db.keyspace(name, tuning(3 << 10, 2)).unwrap();
        }
        let crashed = disk.crash(CrashImage::Keep, 0);
        crashed.flip_bits(&path, lost_at + 5, 1).unwrap();
        if is_table_damaged {
            let table = files(&crashed, ".sst").into_iter().find(|path| path.starts_with("db"));
            crashed.flip_bits(&table.unwrap(), 5, 1).unwrap();
        }
        let report = repair(&crashed).unwrap();
        assert!(report.in_doubt, "{}", describe(&report));
        let is_loss_of_commits = |lost: &Loss| lost.what == LossKind::Commits;
        assert!(!report.lost.iter().any(is_loss_of_commits), "{}", describe(&report));
        let db = open(&crashed, options(2));
        assert_eq!(db.get("unflushed").unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(db.get(key(99)).unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Repair of a damaged table keeps its range deletes if their block is intact. Otherwise the report lists them as lost.
#[test]
fn repair_keeps_or_reports_range_deletes_of_a_damaged_table() {
    let disk = MemVfs::new();
    let runs = tuning(3 << 10, 1).policy(policy("tiering(T=10)"));
    let open = |disk: &MemVfs| open(disk, options(1).keyspace_defaults(runs.clone()));
    let db = open(&disk);
    for number in 0..20 {
        db.put(key(number), "value").unwrap();
    }
    db.flush().unwrap();
    let older = disk.snapshot_all();
    db.default_keyspace().delete_range(key(5)..key(9)).unwrap();
    db.put(key(30), "value").unwrap();
    db.flush().unwrap();
    let disk = disk.crash(CrashImage::Keep, 0);
    let files = disk.snapshot_all();
    let newer = |path: &Path| extension(path) == "sst" && !older.contains_key(path);
    let (path, bytes) = files.iter().find(|(path, _)| newer(path)).unwrap();
    let footer = Footer::decode(&bytes[bytes.len() - FOOTER_BYTES..]).unwrap();
    let properties = footer.properties;
    // The properties block is not compressed, so the test can decode it directly.
    let block = &bytes[properties.offset as usize..][..properties.bytes as usize - TRAILER_BYTES];
    let range_tombstones =
        TableProperties::decode(&block.to_vec().into()).unwrap().range_tombstones.unwrap();
    let (properties, spans) = (properties.offset, range_tombstones.offset);
    let footer = (bytes.len() - FOOTER_BYTES) as u64;
    for (damaged, stay) in [
        (&[properties][..], true),
        (&[footer], true),
        (&[spans], false),
        (&[properties, spans], false),
        (&[footer, spans], false),
    ] {
        let disk = disk.crash(CrashImage::Keep, 0);
        for offset in damaged {
            disk.flip_bits(path, offset + 3, 1).unwrap();
        }
        let report = repair(&disk).unwrap();
        assert_eq!(report.tables_rewritten, 1, "{}", describe(&report));
        let are_lost = report.lost.iter().any(|lost| lost.what == LossKind::RangeDeletes);
        assert_eq!(
            (are_lost, report.may_affect("default", &key(6))),
            (!stay, !stay),
            "{damaged:?}"
        );
        let db = open(&disk);
        assert_eq!(db.get(key(6)).unwrap().is_none(), stay, "{damaged:?}");
        assert!(db.get(key(30)).unwrap().is_some());
    }
}

/// The manifest records that the keyspace was dropped, but a table of the keyspace still exists.
#[test]
fn repair_does_not_restore_a_dropped_keyspace() {
    let disk = MemVfs::new();
    let db = open(&disk, options(2));
    let other = db.keyspace("other", tuning(3 << 10, 2)).unwrap();
    other.put("key", "value").unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    let before = disk.snapshot_all();
    drop(other);
    db.drop_keyspace("other").unwrap();
    let manifest = |disk: &MemVfs| {
        let mut files = disk.snapshot_all().into_iter();
        files.find(|(path, _)| extension(path) == "MANIFEST").unwrap()
    };
    let dropped_at = manifest(&disk).1.len();
    for value in ["another", "and another"] {
        db.put("key", value).unwrap();
        db.flush().unwrap();
    }
    let crashed = disk.crash(CrashImage::Keep, 0);
    let mut back = 0;
    for (path, bytes) in before.iter().filter(|(path, _)| extension(path) == "sst") {
        if !crashed.exists(path).unwrap() {
            crashed.write_all(path, bytes).unwrap();
            back += 1;
        }
    }
    assert_eq!(back, 1);
    // The test damages the manifest edit that follows the drop of the keyspace.
    crashed.flip_bits(&manifest(&crashed).0, dropped_at as u64 + 5, 1).unwrap();
    let report = repair(&crashed).unwrap();
    assert!(report.in_doubt, "{}", describe(&report));
    let db = open(&crashed, options(2));
    assert_eq!(db.keyspaces(), ["default"]);
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"and another"[..]));
}

/// Bug: the log contains operations of a dropped keyspace whose creation is lost. The repair discarded the whole log.
#[test]
fn repair_keeps_log_with_operations_of_a_dropped_keyspace() {
    let disk = MemVfs::new();
    let db = open(&disk, options(2));
    let (path, created_at) = manifest_size(&disk);
    let dropped = db.keyspace("dropped", tuning(3 << 10, 2)).unwrap();
    dropped.put("key", "value").unwrap();
    db.put("key", "value").unwrap();
    drop(dropped);
    db.drop_keyspace("dropped").unwrap();
    let crashed = disk.crash(CrashImage::Keep, 0);
    crashed.flip_bits(&path, created_at + 5, 1).unwrap();
    let report = repair(&crashed).unwrap();
    assert!(report.in_doubt && report.lost.is_empty(), "{}", describe(&report));
    let db = open(&crashed, options(2));
    assert_eq!(db.keyspaces(), ["default"]);
    assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Bug: the repair refused a common prefix if a keyspace was created since the open and first flushed after the damage.
#[test]
fn repair_to_common_prefix_reverts_keyspace_created_since_the_open() {
    let disk = MemVfs::new();
    let open = |disk: &MemVfs| open(disk, inline());
    let db = open(&disk);
    db.put("earlier open", "value").unwrap();
    db.close(None).unwrap();
    let db = open(&disk);
    let other = db.keyspace("other", tuning(3 << 10, 1)).unwrap();
    for commit in 1..=20 {
        let mut batch = WriteBatch::new();
        for keyspace in [&db.default_keyspace(), &other] {
            batch.put(keyspace, key(commit), format!("commit {commit:0200}"));
        }
        db.write(batch, Durability::Sync).unwrap();
    }
    assert!(db.metrics().keyspaces["other"].flushes > 0);
    let disk = disk.crash(CrashImage::Keep, 0);
    let damaged = format!("commit {:0200}", 8);
    let files = disk.snapshot_all().into_iter();
    let mut segments = files.filter(|(path, _)| extension(path) == "wal");
    let place = segments.find_map(|(path, bytes)| {
        let mut windows = bytes.windows(damaged.len());
        windows.position(|window| window == damaged.as_bytes()).map(|at| (path, at))
    });
    let (path, at) = place.unwrap();
    disk.flip_bits(&path, at as u64, 1).unwrap();
    let options = RepairOptions { common_prefix: true, ..RepairOptions::default() };
    let report = repair_with(&disk, &options).unwrap();
    assert!(report.tables_dropped > 0, "{}", describe(&report));
    let db = open(&disk);
    for keyspace in [db.default_keyspace(), db.open_keyspace("other", None).unwrap()] {
        for commit in 1..=20 {
            let found = keyspace.get(key(commit)).unwrap();
            assert_eq!(found.is_some(), commit < 8, "{} {commit}", keyspace.name());
        }
    }
    assert!(db.get("earlier open").unwrap().is_some());
}

/// Tables contain the name of their keyspace at the time when they were written.
#[test]
fn repair_without_manifest_takes_the_name_of_the_newest_table() {
    for is_flushed in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, options(2));
        let keyspace = db.keyspace("first", tuning(3 << 10, 2)).unwrap();
        keyspace.put("one", "1").unwrap();
        db.flush().unwrap();
        db.rename_keyspace("first", "second").unwrap();
        keyspace.put("two", "2").unwrap();
        // Another keyspace has the first name.
        db.keyspace("first", tuning(3 << 10, 2)).unwrap().put("three", "3").unwrap();
        if is_flushed {
            db.flush().unwrap();
        }
        let crashed = disk.crash(CrashImage::Keep, 0);
        for path in crashed.paths().iter().filter(|path| extension(path) == "MANIFEST") {
            crashed.remove(path).unwrap();
        }
        repair(&crashed).unwrap();
        let db = open(&crashed, options(2));
        let names = if is_flushed {
            ["default", "first", "second"]
        } else {
            ["default", "first", "keyspace-2"]
        };
        assert_eq!(db.keyspaces(), names);
        let value = |name, key| db.open_keyspace(name, None).unwrap().get(key).unwrap();
        let (of_two, of_three) =
            if is_flushed { ("second", "first") } else { ("first", "keyspace-2") };
        assert_eq!(value(of_two, "one").as_deref(), Some(&b"1"[..]));
        assert_eq!(value(of_two, "two").as_deref(), Some(&b"2"[..]));
        assert_eq!(value(of_three, "three").as_deref(), Some(&b"3"[..]));
    }
}

/// Bug: the new tables had a creation time in 1970. A policy with an age limit dropped them when the database clock
/// reached the wall clock.
#[test]
fn repair_without_manifest_new_tables_are_young() {
    const MINUTE_US: u64 = 60_000_000;
    let clock = ManualClock::new(1_790_000_000_000_000);
    let fifo = KeyspaceOptions::default().policy(policy("fifo(1G,ttl=7200s)"));
    let options = || inline().clock(clock.clone()).keyspace_defaults(fifo.clone());
    for is_flushed in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, options());
        db.put("key", "value").unwrap();
        if is_flushed {
            db.flush().unwrap();
        }
        let crashed = disk.crash(CrashImage::Keep, 0);
        crashed.remove(&manifest_size(&crashed).0).unwrap();
        let repair_options = options().vfs(Arc::new(crashed.clone()));
        lsmx::repair("db", &repair_options, &RepairOptions::default()).unwrap();
        let db = open(&crashed, options());
        // A large step of the wall clock is accepted after an hour.
        for _ in 0..70 {
            clock.advance_us(MINUTE_US);
            db.wait_idle().unwrap();
        }
        assert_eq!(db.get("key").unwrap().as_deref(), Some(&b"value"[..]), "{is_flushed}");
    }
}

/// Bug: the repair gave two keyspaces the same name, or a keyspace a name that is too long. The database could not be
/// opened.
#[test]
fn repair_without_manifest_gives_each_keyspace_a_valid_name() {
    let disk = MemVfs::new();
    let db = open(&disk, options(2));
    let create = |name: &str, value: &str| {
        db.keyspace(name, tuning(3 << 10, 2)).unwrap().put("key", value).unwrap();
        db.flush().unwrap();
    };
    // The tables of the renamed keyspaces contain their first names.
    let long = "x".repeat(255);
    create("a-3", "1");
    create("a", "2");
    db.rename_keyspace("a", "b").unwrap();
    create("a", "3");
    create(&long, "4");
    db.rename_keyspace(&long, "c").unwrap();
    create(&long, "5");
    let crashed = disk.crash(CrashImage::Keep, 0);
    crashed.remove(&manifest_size(&crashed).0).unwrap();
    repair(&crashed).unwrap();
    let db = open(&crashed, options(2));
    let names = ["a-3", "a", "keyspace-3", &long, "keyspace-5"];
    for (name, value) in names.into_iter().zip(["1", "2", "3", "4", "5"]) {
        let found = db.open_keyspace(name, None).unwrap().get("key").unwrap();
        assert_eq!(found.as_deref(), Some(value.as_bytes()), "{name}");
    }
    assert_eq!(db.keyspaces().len(), 6);
}

/// From the k-th call on, all file system calls of a repair fail. Then the power is lost. A second repair must succeed.
#[test]
fn repair_interrupted_can_be_repeated() {
    let _dog = watchdog("repair_interrupted", seed(), Duration::from_secs(300));
    let mut rng = TestRng::new(seed());
    let all = intact();
    for round in 0..scaled(6) as usize {
        let intact = &all[round % all.len()];
        let damaged = intact.copy();
        let done = damage(&mut rng, intact, &damaged);
        let Ok(uninterrupted) = repair(&damaged.crash(CrashImage::Keep, 0)) else { continue };
        let mut k = 0;
        loop {
            let disk = damaged.crash(CrashImage::Keep, 0);
            let faults = FaultVfs::new(Arc::new(disk.clone()), k);
            faults.add_rule(FaultRule::new(Fault::Error(Errno::NoSpace)).nth(k).from_then_on());
            let failed = repair_with(&faults, &RepairOptions::default());
            if faults.fired_counts().is_empty() {
                break;
            }
            let image = [CrashImage::Drop, CrashImage::Keep, CrashImage::Torn, CrashImage::Sectors]
                [rng.below(4)];
            let crashed = disk.crash(image, k);
            let done = format!("{done}, call {k}, then {image:?}: {failed:?}");
            let mut report = repair(&crashed).unwrap_or_else(|error| panic!("{done}: {error:?}"));
            // If the first repair was almost complete, the second repair finds no damage and reports no losses.
            report.lost.extend(uninterrupted.lost.clone());
            report.in_doubt |= uninterrupted.in_doubt;
            intact.check(&crashed, &report, &done);
            k += 1 + rng.below(9) as u64;
        }
    }
}

/// Regression: a repair that ran out of file descriptors dropped readable values and entries.
#[test]
fn repair_without_descriptors_fails_or_loses_nothing_more() {
    let intact = build(seed(), 60, false);
    let damaged = |name: &str| {
        let disk = intact.copy();
        let of_kind = |(path, _): &&(PathBuf, usize)| extension(path) == name;
        for (path, bytes) in intact.files().iter().filter(of_kind) {
            disk.flip_bits(path, (bytes / 2) as u64, 1).unwrap();
        }
        disk
    };
    for name in ["blob", "sst"] {
        let expected = repair(&damaged(name)).unwrap();
        assert!(!expected.lost.is_empty(), "{name}: {}", describe(&expected));
        let mut refused = 0;
        for nth in 0.. {
            let faults = FaultVfs::new(Arc::new(damaged(name)), 1);
            let rule = FaultRule::new(Fault::Error(Errno::TooManyFiles));
            faults.add_rule(rule.for_calls(&[VfsCall::Open]).nth(nth).once());
            let repaired = repair_with(&faults, &RepairOptions::default());
            if faults.fired_counts().is_empty() {
                break;
            }
            match repaired {
                Err(error) => {
                    assert!(matches!(error, Error::Io { .. }), "{name}, open {nth}: {error}");
                    refused += 1;
                }
                Ok(report) => assert_eq!(report.lost, expected.lost, "{name}, open {nth}"),
            }
        }
        assert!(refused > 0, "{name}");
    }
}
