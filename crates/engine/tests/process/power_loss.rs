//! Power losses of real file systems, by the shutdown call of ext4 and xfs.
//!
//! A process writes to a database on a file system in a file. The test shuts the file system down and mounts it
//! again. The database must show exactly the first *n* commits, with all that were acknowledged as synced. Needs
//! root, loop devices, `mkfs` and `xfs_io`.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use lsmx::WalOptions;
use lsmx::merge_operator::Append;
use lsmx::operand_store::OperandStoreFactory;
use lsmx::vfs::OsVfs;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, ValueSeparation, WriteBatch};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use lsmx_testkit::{TestRng, mix_seeds, scaled, seed};

/// Has a process write: the seed and the directory.
const ORDERS: &str = "LSMX_POWER_LOSS_ORDERS";
const IMAGE_BYTES: u64 = 400 << 20;
const KINDS: [&str; 3] = ["default", "values", "operands"];
/// Under it each commit counts itself in every keyspace.
const COUNT: &[u8] = b"count";

type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

fn tuning(name: &str) -> KeyspaceOptions {
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
    let options = Options::default().wal(wal).keyspace_defaults(tuning("default"));
    let db = Db::open(dir, options).unwrap();
    let kinds = KINDS.map(|name| db.keyspace(name, tuning(name)).unwrap());
    (db, kinds)
}

/// What commit `n` does to one keyspace: keys with what is put or appended; none: deleted.
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

/// The commit whose number is `n`.
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

/// Writes until the file system gives up, and says which commits were synced.
#[test]
fn a_process_that_writes() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    // A deliberate bug is switched on with it, if one is named.
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
    // Without a close: its file system is gone.
    std::process::exit(0);
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A file system in a file.
struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

impl Disk {
    fn make(dir: &Path, kind: &str) -> Option<Disk> {
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

    /// Forgets all that is not on the disk, and fails from then on.
    fn shut_down(&self) {
        assert!(run("xfs_io", &["-x", "-c", "shutdown", self.mount.to_str().unwrap()]));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &[self.mount.to_str().unwrap()]);
    }
}

/// Waits until so many syncs were acknowledged; returns the last of them. The process goes on.
fn wait_for(lines: &mut impl Iterator<Item = std::io::Result<String>>, syncs: usize) -> u64 {
    let synced = lines.map_while(Result::ok).filter_map(|line| {
        let number = line.strip_prefix("synced ")?;
        Some(number.parse::<u64>().unwrap())
    });
    synced.take(syncs).last().unwrap_or(0)
}

#[test]
fn a_power_loss_on_a_real_file_system_leaves_a_prefix_with_all_that_was_synced() {
    let _alone = lsmx_testkit::run_alone();
    let base = seed();
    let program = std::env::current_exe().unwrap();
    for kind in ["ext4", "xfs"] {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = Disk::make(dir.path(), kind) else {
            let reason = "root, a loop device, xfs_io or mkfs is missing";
            lsmx_testkit::report_skipped(kind, reason);
            continue;
        };
        let seed = mix_seeds(base, kind.len() as u64);
        let (mut rng, mut model) = (TestRng::new(seed), Model::default());
        let (db_dir, mut there, mut lost) = (disk.mount.join("db"), 0, 0);
        let rounds = scaled(6);
        for round in 0..rounds {
            let mut child = Command::new(&program)
                .args(["power_loss::a_process_that_writes", "--exact", "--nocapture"])
                .env(ORDERS, format!("{seed} {}", db_dir.display()))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // Kept until the end, for a process that cannot say anything ends.
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let syncs = 1 + rng.below(150);
            let synced = wait_for(&mut lines, usize::try_from(syncs).unwrap());
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
            for n in there + 1..=found {
                apply(&mut model, seed, n);
            }
            there = found;
            for (keyspace, model) in kinds.iter().zip(&model) {
                let entries = keyspace.iter().map(|entry| entry.unwrap());
                let entries = entries.map(|(key, value)| (key.to_vec(), value.to_vec()));
                assert!(entries.eq(model.clone()), "{when}: {} after {found}", keyspace.name());
            }
            drop(kinds);
            db.close(None).unwrap();
            let store: Arc<dyn OperandStoreFactory> =
                Arc::new(DeltaStoreFactory::new(DeltaOptions::default()));
            lsmx::verify(&db_dir, &Options::default().vfs(Arc::new(OsVfs)).operand_store(store))
                .expect(&when);
        }
        println!("{kind}: {there} commits, {lost} losses left nothing but what was synced");
        assert!(there > 100, "{kind}");
    }
}
