//! Simulates power losses of ext4 and xfs file systems with the shutdown ioctl.
//!
//! A child process writes to a database on a file system in an image file. The test shuts the file system down and
//! mounts it again. The database must contain exactly the first *n* commits, and these must include all commits that
//! were acknowledged as synced. The test needs root, loop devices, `mkfs` and `xfs_io`. Without these, the test is
//! skipped.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lsmx::WalOptions;
use lsmx::merge_operator::Append;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, ValueSeparation, WriteBatch};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, mix_seeds, scaled, seed};

/// Environment variable that passes the seed and the database directory to the child process.
const ORDERS: &str = "LSMX_POWER_LOSS_ORDERS";
const IMAGE_BYTES: u64 = 400 << 20;
const KINDS: [&str; 3] = ["default", "values", "operands"];
/// The key that stores the number of the last commit in every keyspace.
const COUNT: &[u8] = b"count";

type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

fn keyspace_options(name: &str) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .memtable_bytes(32 << 10)
        .table_bytes(32 << 10)
        .merge_operator(Append::default());
    match name {
        "values" => options.value_separation(ValueSeparation {
            threshold_bytes: 300,
            ..ValueSeparation::default()
        }),
        "operands" => options.operand_store(DeltaStoreFactory::new(
            DeltaOptions::default().bucket_bytes(16 << 10).log_bytes_max(32 << 10),
        )),
        _ => options,
    }
}

fn open(dir: &Path) -> (Db, [Keyspace; 3]) {
    let wal = WalOptions { segment_bytes: 32 << 10, ..WalOptions::default() };
    let options = Options::default().wal(wal).keyspace_defaults(keyspace_options("default"));
    let db = Db::open(dir, options).unwrap();
    let kinds = KINDS.map(|name| db.keyspace(name, keyspace_options(name)).unwrap());
    (db, kinds)
}

/// Returns the keys that commit `n` writes to a keyspace. Each key has a value, an operand, or `None` for a delete.
fn changes(seed: u64, n: u64, at: usize) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut rng = TestRng::new(mix_seeds(mix_seeds(seed, n), at as u64));
    let mut changes = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let key = format!("key {}", rng.below(500)).into_bytes();
        let len = 1 + rng.below(600);
        let value = (!rng.is_one_in(8)).then(|| rng.bytes(len));
        changes.push((key, value));
    }
    changes
}

fn is_synced(seed: u64, n: u64) -> bool {
    TestRng::new(mix_seeds(seed, n)).is_one_in(3)
}

fn batch(kinds: &[Keyspace; 3], seed: u64, n: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (at, keyspace) in kinds.iter().enumerate() {
        for (key, value) in changes(seed, n, at) {
            match value {
                None => batch.delete(keyspace, key),
                Some(value) if at == 2 => batch.merge(keyspace, key, value),
                Some(value) => batch.put(keyspace, key, value),
            };
        }
        batch.put(keyspace, COUNT, n.to_be_bytes());
    }
    batch
}

fn apply(model: &mut Model, seed: u64, n: u64) {
    for (at, keyspace) in model.iter_mut().enumerate() {
        for (key, value) in changes(seed, n, at) {
            match value {
                None => drop(keyspace.remove(&key)),
                Some(value) if at == 2 => keyspace.entry(key).or_default().extend(value),
                Some(value) => drop(keyspace.insert(key, value)),
            }
        }
        keyspace.insert(COUNT.to_vec(), n.to_be_bytes().to_vec());
    }
}

fn count(keyspace: &Keyspace) -> u64 {
    let count = keyspace.get(COUNT).unwrap();
    count.map_or(0, |count| u64::from_be_bytes(count[..].try_into().unwrap()))
}

/// The child process, which writes until the file system fails and prints the number of each synced commit.
#[test]
fn writing_process() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    // `seed` enables the failpoint that `LSMX_TEST_SABOTAGE` names.
    self::seed();
    let (seed, dir) = orders.split_once(' ').unwrap();
    let seed = seed.parse().unwrap();
    let (db, kinds) = open(Path::new(dir));
    let mut out = std::io::stdout().lock();
    for n in count(&kinds[0]) + 1.. {
        let sync = is_synced(seed, n);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        if db.write(batch(&kinds, seed, n), durability).is_err() {
            break;
        }
        if sync && writeln!(out, "\nsynced {n}").is_err() {
            break;
        }
    }
    // Exits without closing the database, because the close would fail on a file system that is shut down.
    std::process::exit(0);
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A file system in an image file.
struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    /// Creates and mounts a file system. Returns `None` if a tool or a privilege is missing.
    fn create(dir: &Path, kind: &str) -> Option<Disk> {
        let disk = Disk { image: dir.join("image"), mount: dir.join("mount") };
        let _ = std::fs::create_dir(&disk.mount);
        let image = OpenOptions::new().write(true).create(true).truncate(true).open(&disk.image);
        image.unwrap().set_len(IMAGE_BYTES).unwrap();
        let force = if kind == "xfs" { "-f" } else { "-F" };
        let made = run(&format!("mkfs.{kind}"), &["-q", force, disk.image.to_str().unwrap()]);
        (made && run("xfs_io", &["-V"]) && disk.mount()).then_some(disk)
    }

    fn mount(&self) -> bool {
        run("mount", &["-o", "loop", self.image.to_str().unwrap(), self.mount.to_str().unwrap()])
    }

    /// Shuts the file system down. All data that is not on the disk is lost, and all later calls fail.
    fn shut_down(&self) {
        assert!(run("xfs_io", &["-x", "-c", "shutdown", self.mount.to_str().unwrap()]));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &[self.mount.to_str().unwrap()]);
    }
}

/// Waits until the child process has reported `syncs` synced commits. Returns the number of the last reported commit.
fn wait_for_syncs(lines: &mut impl Iterator<Item = std::io::Result<String>>, syncs: usize) -> u64 {
    let synced = lines.map_while(Result::ok).filter_map(|line| {
        let number = line.strip_prefix("synced ")?;
        Some(number.parse::<u64>().unwrap())
    });
    synced.take(syncs).last().unwrap_or(0)
}

#[test]
fn power_loss_on_real_file_system_leaves_prefix_with_synced_commits() {
    let _alone = lsmx_testkit::run_alone();
    let base = seed();
    let program = std::env::current_exe().unwrap();
    for kind in ["ext4", "xfs"] {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = Disk::create(dir.path(), kind) else {
            let reason = "root, a loop device, xfs_io or mkfs is missing";
            lsmx_testkit::report_skipped(kind, reason);
            continue;
        };
        let seed = mix_seeds(base, kind.len() as u64);
        let (mut rng, mut model) = (TestRng::new(seed), Model::default());
        let (db_dir, mut commits, mut lost) = (disk.mount.join("db"), 0, 0);
        let rounds = scaled(6);
        for round in 0..rounds {
            let mut child = Command::new(&program)
                .args(["power_loss::writing_process", "--exact", "--nocapture"])
                .env(ORDERS, format!("{seed} {}", db_dir.display()))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // The test keeps the pipe open. The child process would exit if it could not print.
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let syncs = 1 + rng.below(150);
            let synced = wait_for_syncs(&mut lines, usize::try_from(syncs).unwrap());
            disk.shut_down();
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(run("umount", &[disk.mount.to_str().unwrap()]), "{kind} stays mounted");
            assert!(disk.mount(), "{kind} cannot be mounted again");
            let when = format!("LSMX_TEST_SEED={base}, {kind}, round {round}");
            let (db, kinds) = open(&db_dir);
            let found = count(&kinds[0]);
            assert!(found >= synced, "{when}: {found} commits, {synced} were synced");
            lost += u64::from(found == synced);
            for n in commits + 1..=found {
                apply(&mut model, seed, n);
            }
            commits = found;
            for (keyspace, model) in kinds.iter().zip(&model) {
                let entries = keyspace.iter().map(|entry| entry.unwrap());
                let entries = entries.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert!(entries.eq(model.clone()), "{when}: {} after {found}", keyspace.name());
            }
            drop(kinds);
            db.close(None).unwrap();
            let store = DeltaStoreFactory::new(DeltaOptions::default());
            lsmx::verify(&db_dir, &Options::default().operand_store(store)).expect(&when);
        }
        println!(
            "{kind}: {commits} commits, {lost} of {rounds} power losses left synced commits only"
        );
        assert!(commits > 100, "{kind}: {commits} commits");
    }
}
