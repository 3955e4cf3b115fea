//! The options of a keyspace are those of the call that opens it, in the first run and in every later one.

use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge::{Append, Counter};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, KeyspaceOptions, Options};

fn open(disk: &MemVfs, options: Options) -> Db {
    let options = options.background(Background::Inline).seed(1);
    Db::open_with(Arc::new(disk.clone()), "db", options).unwrap()
}

fn tiering() -> KeyspaceOptions {
    KeyspaceOptions::default().policy("tiering".parse().unwrap()).memtable_bytes(1 << 20)
}

/// The policy was `leveled` in the first run and `tiering` from the second run on.
#[test]
fn keyspace_options_are_the_same_in_every_run() {
    let disk = MemVfs::new();
    let mut policies = Vec::new();
    for _ in 0..3 {
        let db = open(&disk, Options::default().keyspace("events", tiering()));
        let events = db.keyspace("events", KeyspaceOptions::default()).unwrap();
        events.put("k", "v").unwrap();
        assert_eq!(events.options().memtable_bytes, 64 << 20);
        assert_eq!(events.options().policy, events.policy());
        policies.push(events.policy());
        db.close(None).unwrap();
    }
    assert!(policies.iter().all(|policy| *policy == policies[0]), "{policies:?}");
    // Given where the keyspace is opened, it is in force, and stays if it is left out.
    for options in [tiering(), KeyspaceOptions::default()] {
        let db = open(&disk, Options::default());
        let events = db.keyspace("events", options).unwrap();
        assert!(events.options().policy.starts_with("tiering"), "{:?}", events.options());
        db.close(None).unwrap();
    }
}

/// The merge operator of the default keyspace was taken for that of every keyspace, so the open failed where
/// another keyspace had another one.
#[test]
fn keyspace_structural_options_come_from_the_manifest() {
    let disk = MemVfs::new();
    let of_default = || {
        let tuning = KeyspaceOptions::default().merge_operator(Append::new());
        Options::default().keyspace_defaults(tuning)
    };
    let counters = || KeyspaceOptions::default().merge_operator(Counter);
    let db = open(&disk, of_default());
    db.keyspace("counts", counters()).unwrap().put("k", "v").unwrap();
    db.keyspace("plain", KeyspaceOptions::default()).unwrap();
    db.close(None).unwrap();
    for _ in 0..2 {
        let db = open(&disk, of_default());
        assert_eq!(db.existing_keyspace("plain").unwrap().options().merge_operator, None);
        let counts = db.existing_keyspace("counts").unwrap();
        assert_eq!(counts.options().merge_operator.as_deref(), Some("lsmx.counter"));
        let other = KeyspaceOptions::default().merge_operator(Append::new());
        let Err(error @ Error::Contradiction { .. }) = db.keyspace("counts", other) else {
            panic!("another operator is accepted");
        };
        assert!(error.to_string().contains("merge_operator"), "{error}");
        db.keyspace("counts", KeyspaceOptions::default()).unwrap();
        db.close(None).unwrap();
    }
}
