//! A keyspace uses the options of the call that opens it, both when the call creates the keyspace and after a reopen.

use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::metrics::ValueLogMetrics;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, KeyspaceOptions, Options, ValueSeparation};

use crate::harness::small_database::{open_with, policy};

fn open(disk: &MemVfs, keyspace: KeyspaceOptions) -> Db {
    let options = Options::default().background(Background::Inline).seed(1);
    open_with(disk, options.keyspace_defaults(keyspace)).unwrap()
}

/// Regression: a new keyspace used the policy `leveled` until the first reopen and `tiering` afterwards, and ignored
/// the memtable size.
#[test]
fn keyspace_options_are_equal_in_every_run() {
    let disk = MemVfs::new();
    for _ in 0..3 {
        let db = open(&disk, KeyspaceOptions::default());
        let options = KeyspaceOptions::default().policy(policy("tiering")).memtable_bytes(1 << 20);
        let events = db.keyspace("events", options).unwrap();
        for number in 0..3_000u32 {
            events.put(number.to_be_bytes(), [7; 1_000]).unwrap();
        }
        let options = events.options();
        assert!(options.policy.to_string().starts_with("tiering"), "{options:?}");
        assert_eq!(options.memtable_bytes, 1 << 20);
        assert!(db.metrics().keyspaces["events"].total().runs > 1, "{options:?}");
        db.close(None).unwrap();
    }
    // If a call sets no policy, the keyspace keeps the stored policy. The sizes are not stored, so the call determines
    // them.
    let db = open(&disk, KeyspaceOptions::default());
    let events = db.keyspace("events", KeyspaceOptions::default()).unwrap();
    assert!(events.options().policy.to_string().starts_with("tiering"), "{:?}", events.options());
    assert_eq!(events.options().memtable_bytes, 64 << 20);
}

/// Regression: the engine compared the merge operator of every keyspace with that of the default keyspace. The open
/// failed if the operators differed.
#[test]
fn keyspace_structural_options_come_from_manifest() {
    let disk = MemVfs::new();
    let append = || KeyspaceOptions::default().merge_operator(Append::default());
    let db = open(&disk, append());
    let counters = KeyspaceOptions::default().merge_operator(Counter);
    db.keyspace("counts", counters).unwrap().put("k", "v").unwrap();
    db.keyspace("plain", KeyspaceOptions::default()).unwrap();
    db.close(None).unwrap();
    for _ in 0..2 {
        let db = open(&disk, append());
        assert_eq!(db.open_keyspace("plain", None).unwrap().options().merge_operator, None);
        let counts = db.open_keyspace("counts", None).unwrap();
        assert_eq!(counts.options().merge_operator.as_deref(), Some("lsmx.counter"));
        let Err(error @ Error::Contradiction { .. }) = db.keyspace("counts", append()) else {
            panic!("another merge operator is accepted");
        };
        assert!(error.to_string().contains("merge_operator"), "{error}");
        db.keyspace("counts", KeyspaceOptions::default()).unwrap();
        db.close(None).unwrap();
    }
}

/// Returns options of a keyspace in which no compaction is due. Garbage collection keeps the bytes of blob files below
/// `amplification` times the referenced bytes.
fn separated(amplification: f64) -> KeyspaceOptions {
    let separation = ValueSeparation {
        threshold_bytes: 100,
        garbage_ratio: 1.0,
        space_amplification_max: amplification,
        ..ValueSeparation::default()
    };
    KeyspaceOptions::default()
        .memtable_bytes(16 << 10)
        .table_bytes(4 << 10)
        .policy(policy("leveled(trigger=100,stop=200)"))
        .value_separation(separation)
}

const KEYS: u32 = 200;

/// Creates the keyspace `images` with separated values and two sorted runs. Half of the blob bytes of the older run is
/// garbage.
fn create_images(disk: &MemVfs) {
    let db = open(disk, KeyspaceOptions::default());
    let images = db.keyspace("images", separated(100.0)).unwrap();
    for (round, step) in [(0, 1), (1, 2)] {
        for number in (0..KEYS).step_by(step) {
            images.put(number.to_be_bytes(), [round; 500]).unwrap();
        }
    }
    images.compact_range::<&[u8]>(..).unwrap();
    images.put("last", "run").unwrap();
    db.flush().unwrap();
    let log = log(&db);
    assert!(log.blob_bytes as f64 > 1.4 * log.blob_referenced_bytes as f64, "{log:?}");
    db.close(None).unwrap();
}

fn log(db: &Db) -> ValueLogMetrics {
    db.metrics().keyspaces["images"].value_log
}

fn check_images(images: &Keyspace) {
    for number in 0..KEYS {
        let round = u8::from(number % 2 == 0);
        assert_eq!(images.get(number.to_be_bytes()).unwrap().unwrap(), [round; 500], "{number}");
    }
    assert_eq!(images.iter().count(), KEYS as usize + 1);
}

/// Regression: until the program had passed the options of a keyspace, compactions and garbage collections moved its
/// separated values into tables. The garbage collection used the default limits.
#[test]
fn separated_values_stay_in_blob_files_until_keyspace_gets_its_options() {
    let disk = MemVfs::new();
    create_images(&disk);
    let db = open(&disk, KeyspaceOptions::default());
    let before = log(&db);
    db.wait_idle().unwrap();
    // This handle does not pass the options either.
    let images = db.open_keyspace("images", None).unwrap();
    assert_eq!(db.metrics().keyspaces["images"].total().runs, 2);
    images.compact_range::<&[u8]>(..).unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.metrics().keyspaces["images"].total().runs, 1);
    let after = log(&db);
    assert_eq!((after.rewrites, after.rewritten_bytes, after.written_bytes), (0, 0, 0));
    assert_eq!(after.blob_referenced_bytes, before.blob_referenced_bytes);
    assert_eq!(after.blob_bytes, before.blob_bytes);
    check_images(&images);

    // The collection is due with the limit of these options. It moves the values to other blob files.
    let images = db.keyspace("images", separated(1.2)).unwrap();
    db.wait_idle().unwrap();
    let collected = log(&db);
    assert!(collected.rewrites > 0, "{collected:?}");
    assert_eq!(collected.blob_referenced_bytes, before.blob_referenced_bytes);
    assert!(collected.blob_bytes < before.blob_bytes, "{collected:?}");
    check_images(&images);
}

/// If the program opens a keyspace without options, the keyspace keeps the value separation of the default keyspace, and
/// its garbage is collected.
#[test]
fn keyspace_opened_without_options_collects_garbage_with_separation_of_default_keyspace() {
    let disk = MemVfs::new();
    create_images(&disk);
    let db = open(&disk, separated(1.2));
    db.wait_idle().unwrap();
    let before = log(&db);
    assert_eq!(before.rewrites, 0);
    let images = db.open_keyspace("images", None).unwrap();
    db.wait_idle().unwrap();
    let collected = log(&db);
    assert!(collected.rewrites > 0 && collected.blob_bytes < before.blob_bytes, "{collected:?}");
    assert_eq!(collected.blob_referenced_bytes, before.blob_referenced_bytes);
    check_images(&images);
}
