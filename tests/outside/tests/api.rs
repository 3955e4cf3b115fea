//! Tests of the public API of lsmx, run outside the workspace.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lsmx::{Db, Durability, Error, KeyspaceOptions, Options, WriteBatch};
use outside::{EventLines, Library};

/// Creates an empty directory for the test and returns a path in it.
fn test_path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path.join("data")
}

fn open(path: &Path) -> (Library, Arc<EventLines>) {
    let events = Arc::new(EventLines::default());
    let options = outside::options(Arc::clone(&events)).unwrap();
    (Library::open(path, options).unwrap(), events)
}

#[test]
fn service_data_survives_reopen_and_checkpoint() {
    let path = test_path("service");
    let (library, events) = open(&path);

    // Three threads try to lend the same books. Each book is lent once.
    let lent: usize = std::thread::scope(|scope| {
        let members = ["ada", "alan", "emmy"].map(|member| {
            let library = library.clone();
            scope.spawn(move || {
                (0..20).filter(|n| library.lend(&format!("book{n}"), member).is_ok()).count()
            })
        });
        members.into_iter().map(|member| member.join().unwrap()).sum()
    });
    assert_eq!(lent, 20);
    match library.lend("book7", "kurt") {
        Err(outside::Error::Lent { to }) => {
            assert!(["ada", "alan", "emmy"].iter().any(|m| to == m))
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((library.lent("book7").unwrap(), library.lent("none").unwrap()), (1, 0));

    // An iterator reads a snapshot, so later writes do not affect it.
    let before = library.loans_of("ada");
    let count = library.loans_of("ada").count();
    assert_eq!(library.return_all("ada").unwrap(), count);
    assert_eq!(library.loans_of("ada").count(), 0);
    assert!(before.seq() <= library.db().snapshot().seq());
    assert_eq!(before.map(Result::unwrap).count(), count);

    // A custom merge operator merges notes and rejects an empty note.
    for note in ["torn", "mended", "wet", "dry"] {
        library.note("book1", note).unwrap();
    }
    assert_eq!(library.notes("book1").unwrap(), ["mended", "wet", "dry"]);
    library.note("book2", "").unwrap();
    match library.notes("book2") {
        Err(outside::Error::Store(error @ Error::MergeFailed { .. })) => {
            assert!(error.to_string().contains("book2"));
            assert_eq!(error.source().unwrap().to_string(), "a note is empty");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(library.number_of("ada", 17).unwrap(), 17);
    assert_eq!(library.number_of("ada", 18).unwrap(), 17);

    // The application reads metrics, events and lookup explanations.
    library.db().flush().unwrap();
    library.db().wait_idle().unwrap();
    let metrics = library.db().metrics();
    let notes = &metrics.keyspaces["notes"];
    assert_eq!(notes.policy, "tiering(T=4)");
    assert!(notes.flushes > 0 && notes.total().bytes > 0 && metrics.read_only.is_none());
    assert!(metrics.wal.syncs > 0 && metrics.to_string().contains("loans"));
    assert_eq!(library.db().metrics().memory.budget_bytes, Some(16 << 20));
    assert!(events.lines().iter().any(|line| line.contains("flush of")), "{:?}", events.lines());
    let explained = library.db().default_keyspace().explain("book7").unwrap();
    assert!(explained.value_bytes.is_some() || explained.to_string().contains("no value"));

    // A workload trace records one operation.
    let trace = library
        .db()
        .record_trace(
            path.with_file_name("hour.trace"),
            lsmx::workload_trace::TraceOptions::default(),
        )
        .unwrap();
    library.db().get("book7").unwrap();
    assert_eq!(trace.stop().unwrap().operations, 1);

    // The open database can be copied to a checkpoint and observed, but not verified or opened again.
    let copy = path.with_file_name("copy");
    library.db().checkpoint(&copy).unwrap();
    assert!(matches!(library.db().checkpoint(&copy), Err(Error::TargetNotEmpty { .. })));
    assert!(lsmx::observe(&path, &Options::default()).unwrap().keyspaces.contains_key("loans"));
    assert!(matches!(lsmx::verify(&path, &Options::default()), Err(Error::Locked { .. })));
    assert!(matches!(Db::open(&path, Options::default()), Err(Error::Locked { .. })));
    library.db().close(Some(Duration::from_secs(60))).unwrap();
    assert!(matches!(library.db().put("k", "v"), Err(Error::Closed)));
    drop(library);

    // The database and its copy can each be opened read-only twice at the same time.
    assert_eq!(lsmx::verify(&path, &Options::default()).unwrap().keyspaces, 4);
    for path in [&path, &copy] {
        let options = outside::options(Arc::new(EventLines::default())).unwrap();
        let (one, other) = (
            Db::open(path, options.clone().read_only(true)).unwrap(),
            Db::open(path, options.read_only(true)).unwrap(),
        );
        let notes = one.open_keyspace("notes", None).unwrap();
        assert_eq!(notes.get("book1").unwrap().unwrap(), "mended\nwet\ndry");
        assert_eq!(other.open_keyspace("loans", None).unwrap().prefix("ada/").count(), 0);
        assert!(matches!(one.put("k", "v"), Err(Error::OpenedReadOnly)));
        assert!(matches!(Db::open(path, Options::default()), Err(Error::Locked { .. })));
    }
    let (library, _) = open(&path);
    assert_eq!(library.notes("book1").unwrap().len(), 3);
    assert_eq!(library.lent("book7").unwrap(), 1);
}

#[test]
fn ranges_batches_and_keyspaces_work_together() {
    let path = test_path("ranges");
    let db = Db::open(&path, Options::default()).unwrap();
    let days = db.keyspace("days", KeyspaceOptions::default()).unwrap();
    for day in 1u32..=31 {
        days.put(day.to_be_bytes(), format!("day {day}")).unwrap();
    }
    let key = |day: u32| day.to_be_bytes();
    assert_eq!(days.range(key(8)..key(15)).count(), 7);
    assert_eq!(days.range(..=key(3)).rev().next().unwrap().unwrap().1, "day 3");
    let mut both_ends = days.iter();
    let (first, last) = (both_ends.next().unwrap(), both_ends.next_back().unwrap());
    assert_eq!(first.unwrap().1, "day 1");
    assert_eq!(last.unwrap().1, "day 31");
    assert_eq!(days.first().unwrap().unwrap().0, key(1));
    assert_eq!(days.multi_get([key(2), key(40)]).unwrap()[1], None);

    let before = db.snapshot();
    days.delete_range(key(10)..).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&days, key(10), "again");
    batch.delete(&days, key(1));
    batch.put(&db.default_keyspace(), "days", "9");
    assert_eq!((batch.len(), batch.is_empty()), (3, false));
    db.write(batch, Durability::Sync).unwrap();
    assert_eq!(days.iter().count(), 9);
    assert!(!days.contains_key(key(1)).unwrap());
    assert_eq!(before.iter(&days).count(), 31);
    assert_eq!(before.last(&days).unwrap().unwrap().1, "day 31");
    drop(before);
    days.compact_range::<&[u8]>(..).unwrap();
    assert!(days.approximate_size::<&[u8]>(..).unwrap() > 0);
    days.clear().unwrap();
    assert_eq!(days.iter().count(), 0);

    assert_eq!(db.keyspaces(), ["days", "default"]);
    db.drop_keyspace("days").unwrap();
    assert!(matches!(days.get("k"), Err(Error::KeyspaceDropped { name }) if name == "days"));
    assert!(matches!(db.drop_keyspace("default"), Err(Error::DefaultKeyspace)));
    assert!(matches!(db.drop_keyspace("none"), Err(Error::UnknownKeyspace { .. })));
}

#[test]
fn errors_are_matched_by_variant() {
    let path = test_path("errors");
    let none = Options::default().create_if_missing(false);
    assert!(matches!(Db::open(&path, none), Err(Error::NotADatabase { .. })));
    let tiny = Options::default().memory_budget(1000);
    let Err(Error::InvalidOption { name, must, .. }) = Db::open(&path, tiny) else { panic!() };
    assert_eq!((name, must), ("memory_budget", "at least 4194304"));
    assert!("levelled".parse::<lsmx::PolicySpec>().is_err());
    let db = Db::open(&path, Options::default()).unwrap();
    assert!(matches!(
        db.default_keyspace().merge("k", "v"),
        Err(Error::NoMergeOperator { operator: None, .. })
    ));
    let long = vec![0; (64 << 10) + 1];
    assert!(matches!(db.put(&long, "v"), Err(Error::TooLarge { what: "key", .. })));
    let other = Db::open(test_path("errors-other"), Options::default()).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&other.default_keyspace(), "k", "v");
    let refused = db.write(batch, Durability::Buffered);
    assert!(matches!(refused, Err(Error::ForeignKeyspace { .. })));
    // Errors can be cloned, sent and boxed.
    let error: Box<dyn std::error::Error + Send + Sync> = Box::new(refused.unwrap_err().clone());
    assert!(error.downcast_ref::<Error>().is_some());
}
