//! The tools of `lsmx db`, run as an operator runs them.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and works on files of its own"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{db, db_with_input, lsmx};

/// A database with tables, a log and two keyspaces.
fn fill(path: &Path) {
    let records: String = (0..2_000).map(|i| format!("key{i:05}\tvalue {i}\n")).collect();
    db_with_input(path, "import -", records.as_bytes()).ok();
    db(path, "put ada 1815 --keyspace users").ok();
}

fn files(path: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect();
    files.sort();
    files
}

#[test]
fn a_checkpoint_is_a_database_and_the_target_must_be_free() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("data"), directory.path().join("copy"));
    fill(&path);
    let words = format!("checkpoint {}", copy.display());
    assert_eq!(db(&path, &words).ok(), "");
    db(&path, "delete key00000").ok();
    assert_eq!(db(&copy, "get key00000").ok(), "value 0\n");
    assert_eq!(db(&copy, "get ada --keyspace users").ok(), "1815\n");
    assert!(db(&copy, "verify").ok().contains("all sound"));
    db(&path, &words).fails(1, &["copy", "not an empty directory"]);
    db(&path, &format!("{words} --keyspace users")).fails(2, &["--keyspace", "checkpoint"]);
    db(&directory.path().join("none"), &words).fails(1, &["not a database"]);
    db(&path, "checkpoint").fails(2, &["<TARGET>"]);
}

/// The stored time of a host whose clock was in 2099 stays, and ends with `reset-clock`.
#[test]
fn reset_clock_sets_a_stored_time_of_2099_back() {
    const YEAR_2099_US: u64 = 4_070_908_800_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let ahead = lsmx::env::ManualClock::new(YEAR_2099_US);
    lsmx::Db::open(&path, lsmx::Options::default().clock(ahead)).unwrap().close(None).unwrap();
    let stored_us = || {
        let db = lsmx::Db::open(&path, lsmx::Options::default().read_only(true)).unwrap();
        db.env().database_time_us()
    };
    assert!(stored_us() >= YEAR_2099_US);
    assert!(db(&path, "reset-clock").ok().contains("the database clock is at "));
    assert!(stored_us() < YEAR_2099_US);
    db(&path, "reset-clock --keyspace users").fails(2, &["--keyspace", "reset-clock"]);
    db(&directory.path().join("none"), "reset-clock").fails(1, &["not a database"]);
}

#[test]
fn compact_leaves_one_run_and_drop_keyspace_one_keyspace() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fill(&path);
    for key in 0..5 {
        db(&path, &format!("delete key{key:05}")).ok();
    }
    assert!(db(&path, "compact --from key00000 --to key00003").ok().contains("in tables before"));
    db(&path, "compact").ok();
    let stats: serde_json::Value = serde_json::from_str(&db(&path, "stats --json").ok()).unwrap();
    let levels = stats["keyspaces"]["default"]["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 1);
    assert_eq!((&levels[0]["runs"], &levels[0]["tombstones"]), (&1.into(), &0.into()));
    assert_eq!(levels[0]["entries"], 1_995);
    db(&path, "drop-keyspace users").ok();
    db(&path, "get ada --keyspace users").fails(1, &["users"]);
    db(&path, "drop-keyspace users").fails(1, &["there is no keyspace \"users\""]);
    db(&path, "drop-keyspace default").fails(1, &["cannot be dropped"]);
}

#[test]
fn explain_tells_steps_for_people_and_programs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fill(&path);
    let text = db(&path, "explain key00007").ok();
    assert!(text.contains("Data block") && text.contains("value of 7 bytes"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&db(&path, "explain key00007 --json").ok()).unwrap();
    assert_eq!(json["value_bytes"], 7);
    assert!(db(&path, "explain none").ok().contains("no value"));
}

/// One line for each verb, and nothing is made.
#[test]
fn where_no_database_is_every_verb_but_those_that_make_one_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (none, foreign, plain) = (
        directory.path().join("none"),
        directory.path().join("foreign"),
        directory.path().join("plain"),
    );
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("notes.txt"), "mine").unwrap();
    fs::write(&plain, "mine").unwrap();
    let copy = directory.path().join("copy");
    let checkpoint = format!("checkpoint {}", copy.display());
    let verbs = [
        "get k",
        "delete k",
        "scan",
        "export -",
        "stats",
        "stats --watch 0 --count 1",
        "explain k",
        "verify",
        "dump",
        "compact",
        "drop-keyspace x",
        &checkpoint,
    ];
    for verb in verbs {
        db(&none, verb).fails(1, &["none is not a database: there is no such directory"]);
        db(&foreign, verb).fails(1, &["foreign is not a database"]);
        db(&plain, verb).fails(1, &["plain", "it is not a directory"]);
    }
    db(&foreign, "put k v").fails(1, &["foreign is not a database", "other files"]);
    db(&plain, "put k v").fails(1, &["plain", "it is not a directory"]);
    assert!(!none.exists() && !copy.exists());
    assert_eq!(files(&foreign, "").len(), 1);
}

/// What is cut short is named with its file, by every verb that needs it.
#[test]
fn cut_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    for suffix in [".sst", ".wal", "MANIFEST", "CURRENT"] {
        let _ = fs::remove_dir_all(&path);
        fill(&path);
        let all = files(&path, "");
        let cut = all.iter().find(|file| file.to_str().unwrap().contains(suffix)).unwrap();
        let bytes = fs::read(cut).unwrap();
        fs::write(cut, &bytes[..bytes.len() / 3]).unwrap();
        let name = cut.file_name().unwrap().to_str().unwrap();
        for verb in ["get key00001", "scan", "verify", "stats", "compact", "put a b"] {
            db(&path, verb).fails(1, &[name, "is corrupt at byte"]);
        }
        let said = db(&path, &format!("dump {name}"));
        assert_eq!(said.code, 1, "{name}");
    }
}

/// Reading verbs change no byte, and work where nothing may be written.
#[test]
fn verbs_that_read_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fill(&path);
    let bytes = || {
        let files = files(&path, "").into_iter();
        files.map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = bytes();
    for verb in ["get key00001", "scan", "export -", "stats", "verify", "explain k", "dump"] {
        assert_eq!(db(&path, verb).code, 0, "{verb}");
        assert!(bytes() == before, "{verb} has changed a file");
    }
}

#[test]
fn stats_can_be_watched_while_somebody_else_owns_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fill(&path);
    let owner = lsmx::Db::open(&path, lsmx::Options::default()).unwrap();
    db(&path, "stats").fails(1, &["locked"]);
    let text = db(&path, "stats --watch 0 --count 2").ok();
    assert_eq!(text.matches("manifest ").count(), 2, "{text}");
    assert!(text.contains("[default] leveled") && text.contains("[users]"), "{text}");
    let said = db(&path, "stats --json --watch 0 --count 3 --keyspace users").ok();
    for line in said.lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["keyspaces"].as_object().unwrap().len(), 1);
        assert!(json["wal_bytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(said.lines().count(), 3);
    db(&path, "stats --watch 0 --count 1 --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    db(&path, "stats --count 1").fails(2, &["--watch"]);
    db(&path, "stats --watch -1").fails(2, &["--watch"]);
    let none = directory.path().join("none");
    db(&none, "stats --watch 0 --count 1").fails(1, &["not a database"]);
    owner.close(None).unwrap();
}

#[test]
fn dump_shows_any_file_and_names_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    fill(&path);
    let all = db(&path, "dump").ok();
    for part in ["CURRENT", "LOCK", "MANIFEST-", ".sst", ".wal", "footer", "restart \"key00000\""] {
        assert!(all.contains(part), "{part} is not in {all}");
    }
    let table = files(&path, ".sst").remove(0);
    let name = table.file_name().unwrap().to_str().unwrap().to_owned();
    let by_name = db(&path, &format!("dump {name}")).ok();
    assert_eq!(by_name, db(&path, &format!("dump {}", table.display())).ok());
    assert!(db(&path, &format!("dump {name} --hex")).ok().contains("6b65793030303030"));
    assert_eq!(db(&path, &format!("dump {name} --limit 2")).ok().lines().count(), 3);
    let entries = db(&path, &format!("dump {name} --entries")).ok();
    assert!(entries.lines().count() > 2_000);
    db(&path, "dump nothing.txt").fails(2, &["nothing.txt is no file of a database"]);
    db(&path, "dump 999999.sst").fails(1, &["999999.sst"]);
    // A flipped bit in the middle: the block is named, the others are shown.
    let mut bytes = fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&table, bytes).unwrap();
    let said = lsmx(&["db", path.to_str().unwrap(), "dump", &name]);
    let shown = String::from_utf8(said.stdout.clone()).unwrap();
    assert!(shown.contains("damaged: ") && shown.lines().count() > by_name.lines().count() / 2);
    said.fails(1, &[&name, "corrupt at byte"]);
}
