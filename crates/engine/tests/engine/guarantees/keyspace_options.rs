//! A keyspace uses the options of the call that opens it, both when the call creates the keyspace and after a reopen.

use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, Options};

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
