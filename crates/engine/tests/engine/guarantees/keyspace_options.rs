//! The options of a keyspace are those of the call that opens it, in the first run and in every later one.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::{Append, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, Options};

fn open(disk: &MemVfs, options: Options) -> Db {
    let options = options.background(Background::Inline).seed(1);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

fn tiering() -> KeyspaceOptions {
    KeyspaceOptions::default()
        .policy("tiering".parse::<lsmx::PolicySpec>().unwrap())
        .memtable_bytes(1 << 20)
}

/// The policy was `leveled` in the first run and `tiering` from the second run on, and the size of the memtable
/// was never applied.
#[test]
fn keyspace_options_are_the_same_in_every_run() {
    let disk = MemVfs::new();
    for _ in 0..3 {
        let db = open(&disk, Options::default());
        let events = db.keyspace("events", tiering()).unwrap();
        for number in 0..3_000u32 {
            events.put(number.to_be_bytes(), [7; 1_000]).unwrap();
        }
        let options = events.options();
        assert!(options.policy.to_string().starts_with("tiering"), "{options:?}");
        assert_eq!(options.policy.to_string(), events.options().policy.to_string());
        assert_eq!(options.memtable_bytes, 1 << 20);
        assert!(db.metrics().keyspaces["events"].total().runs > 1, "{options:?}");
        db.close(None).unwrap();
    }
    // The policy stays if it is left out; sizes are those of the call.
    let db = open(&disk, Options::default());
    let events = db.keyspace("events", KeyspaceOptions::default()).unwrap();
    assert!(events.options().policy.to_string().starts_with("tiering"), "{:?}", events.options());
    assert_eq!(events.options().memtable_bytes, 64 << 20);
}

/// The merge operator of the default keyspace was taken for that of every keyspace, so the open failed where
/// another keyspace had another one.
#[test]
fn keyspace_structural_options_come_from_the_manifest() {
    let disk = MemVfs::new();
    let of_default = || {
        let tuning = KeyspaceOptions::default().merge_operator(Append::default());
        Options::default().keyspace_defaults(tuning)
    };
    let counters = || KeyspaceOptions::default().merge_operator(Counter);
    let db = open(&disk, of_default());
    db.keyspace("counts", counters()).unwrap().put("k", "v").unwrap();
    db.keyspace("plain", KeyspaceOptions::default()).unwrap();
    db.close(None).unwrap();
    for _ in 0..2 {
        let db = open(&disk, of_default());
        assert_eq!(db.open_keyspace("plain", None).unwrap().options().merge_operator, None);
        let counts = db.open_keyspace("counts", None).unwrap();
        assert_eq!(counts.options().merge_operator.as_deref(), Some("lsmx.counter"));
        let other = KeyspaceOptions::default().merge_operator(Append::default());
        let Err(error @ Error::Contradiction { .. }) = db.keyspace("counts", other) else {
            panic!("another operator is accepted");
        };
        assert!(error.to_string().contains("merge_operator"), "{error}");
        db.keyspace("counts", KeyspaceOptions::default()).unwrap();
        db.close(None).unwrap();
    }
}
