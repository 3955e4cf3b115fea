//! `lsmx db`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lsmx_bench::workload::record::{Format, encode};
use tempfile::TempDir;

use crate::common::{Said, assert_contains, db, db_with_input};

/// Directory with a database in its subdirectory `data`, which is created by the first write.
struct Database {
    directory: TempDir,
    path: PathBuf,
}

impl Database {
    fn new() -> Database {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        Database { directory, path }
    }

    /// Returns a database with tables, a log and two keyspaces.
    fn filled() -> Database {
        let data = Database::new();
        let records: String = (0..2_000).map(|i| format!("key{i:05}\tvalue {i}\n")).collect();
        data.import(&records);
        data.run("put ada 1815 --keyspace users").ok();
        data
    }

    /// Runs `lsmx db` with these words.
    fn run(&self, words: &str) -> Said {
        db(&self.path, words)
    }

    /// Imports records from standard input.
    fn import(&self, records: &str) {
        db_with_input(&self.path, "import -", records.as_bytes()).ok();
    }

    /// Returns another path in the directory.
    fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns the files of a directory whose names end with `suffix`, in order of their names.
fn files(path: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect();
    files.sort();
    files
}

/// Returns the name of a file.
fn name_of(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

/// Flips a bit of a file.
fn damage(file: &Path, offset: impl Fn(&[u8]) -> usize) {
    let mut bytes = fs::read(file).unwrap();
    let offset = offset(&bytes);
    bytes[offset] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn with_tables(path: &Path) {
    let open = lsmx::Db::open(path, lsmx::Options::default()).unwrap();
    for i in 0..1000u32 {
        open.put(i.to_be_bytes(), [7; 100]).unwrap();
    }
    open.flush().unwrap();
    open.close(None).unwrap();
    assert!(!files(path, ".sst").is_empty());
}

/// No verb creates a file where there is no database, except for those that create a database.
#[test]
fn verbs_on_a_path_without_a_database_fail_and_create_nothing() {
    let data = Database::new();
    let [none, empty, foreign, plain, current] =
        ["none", "empty", "foreign", "plain", "current"].map(|name| data.beside(name));
    for directory in [&empty, &foreign, &current] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(foreign.join("notes.txt"), "mine").unwrap();
    fs::write(current.join("CURRENT"), "MANIFEST-000004\n").unwrap();
    fs::write(&plain, "mine").unwrap();
    let checkpoint = format!("checkpoint {}", data.beside("copy").display());
    for verb in [
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
        "reset-clock",
        "drop-keyspace x",
        "repair",
        "repair --dry-run",
        &checkpoint,
    ] {
        db(&none, verb).fails(1, &["none is not a database: there is no such directory"]);
        db(&plain, verb).fails(1, &["plain", "it is not a directory"]);
        db(&empty, verb).fails(1, &["empty is not a database"]);
        db(&foreign, verb).fails(1, &["foreign is not a database"]);
        if verb != "dump" {
            db(&current, verb).fails(1, &[current.to_str().unwrap()]);
        }
    }
    db(&foreign, "put k v").fails(1, &["foreign is not a database", "other files"]);
    db(&current, "put k v").fails(1, &[current.to_str().unwrap()]);
    db(&plain, "put k v").fails(1, &["plain", "it is not a directory"]);
    assert!(!none.exists() && !data.beside("copy").exists());
    assert_eq!((files(&empty, "").len(), files(&foreign, "").len()), (0, 1));
    assert_eq!(files(&current, ""), [current.join("CURRENT")]);
    let text = data.beside("text");
    fs::create_dir(&text).unwrap();
    fs::write(text.join("000001.sst"), "a text\n").unwrap();
    for verb in ["repair", "repair --dry-run"] {
        db(&text, verb).fails(1, &["is not a database", "magic number"]);
        assert_eq!(files(&text, "").len(), 1, "{verb}");
    }
    db(&text, "repair --force").loses_data();
}

#[test]
fn what_is_put_is_got_until_it_is_deleted() {
    let data = Database::new();
    assert_eq!(data.run("put k v1").ok(), "");
    assert_eq!(data.run("put k v2").ok(), "");
    assert_eq!(data.run("get k").ok(), "v2\n");
    assert_eq!(data.run("--hex get 6b").ok(), "7632\n");
    assert_eq!(data.run("put --hex 00ff 0a").ok(), "");
    assert_eq!(data.run("get 00ff --hex").ok(), "0a\n");
    assert_eq!(data.run("delete k").ok(), "");
    assert_eq!(data.run("delete k").ok(), "");
    data.run("get k").fails(1, &["there is no key \"k\""]);
    data.run("get --hex 6").fails(2, &["invalid key with --hex", "\"6\" is not hexadecimal"]);
}

#[test]
fn scan_goes_both_ways_between_bounds() {
    let data = Database::new();
    let records: String = ["a", "b1", "b2", "c"].map(|key| format!("{key}\t{key}v\n")).concat();
    data.import(&records);
    for (words, keys) in [
        ("scan", "a b1 b2 c"),
        ("scan --reverse", "c b2 b1 a"),
        ("scan --from b1 --to c", "b1 b2"),
        ("scan --from b1 --to c --reverse", "b2 b1"),
        ("scan --prefix b", "b1 b2"),
        ("scan --prefix b --reverse --limit 1", "b2"),
        ("scan --from x", ""),
        ("scan --from c --to a", ""),
        ("scan --limit 0", ""),
        ("scan --limit 2", "a b1"),
    ] {
        let said = data.run(words).ok();
        let expected: String =
            keys.split_whitespace().map(|key| format!("{key}\t{key}v\n")).collect();
        assert_eq!(said, expected, "{words}");
    }
    assert_eq!(data.run("scan --hex --limit 1").ok(), "61\t6176\n");
}

#[test]
fn import_and_export_give_back_every_byte() {
    let data = Database::new();
    for format in [Format::Tsv, Format::Jsonl] {
        let name = if format == Format::Tsv { "tsv" } else { "jsonl" };
        let mut text = Vec::new();
        // In key order, as an export gives them; more than a batch of an import.
        for byte in 0..=255u8 {
            for low in [0, 9, 10, 13, 92, 200] {
                let value = [byte, b'\\', b't', low, b'\n'].repeat(usize::from(low % 4));
                encode(format, &[byte, low], &value, &mut text);
            }
        }
        let source = data.beside(&format!("source.{name}"));
        fs::write(&source, &text).unwrap();
        let path = data.beside(name);
        let said = db(&path, &format!("import {}", source.display())).ok();
        assert_eq!(said, "1536 records imported\n");
        let target = data.beside(&format!("target.{name}"));
        let said = db(&path, &format!("export {}", target.display())).ok();
        assert_eq!(said, "1536 records exported\n");
        assert!(fs::read(&target).unwrap() == text, "{name}: the file differs");
        let said = db(&path, &format!("export - --format {name}"));
        assert!(said.code == 0 && said.stdout == text, "{name}: standard output differs");
    }
}

#[test]
fn the_last_of_two_records_of_a_key_wins() {
    let data = Database::new();
    let mut input = String::new();
    for round in 0..3 {
        for key in 0..900 {
            input.push_str(&format!("{key}\t{round}\n"));
        }
    }
    data.import(&input);
    let said = data.run("scan").ok();
    assert_eq!(said.lines().count(), 900);
    assert!(said.lines().all(|line| line.ends_with("\t2")));
}

#[test]
fn a_malformed_line_is_named_and_what_stands_before_it_stays() {
    let data = Database::new();
    let good: String = (0..2500).map(|i| format!("key{i:04}\tv\n")).collect();
    for (format, line, what) in [
        ("tsv", "no tab", "there is no tab"),
        ("tsv", "a\\q\tb", "unknown escape \\q"),
        ("jsonl", "{\"key\":1}", "not a JSON object of a record"),
    ] {
        let good = if format == "tsv" {
            good.clone()
        } else {
            (0..2500).map(|i| format!("{{\"key\":\"key{i:04}\",\"value\":\"v\"}}\n")).collect()
        };
        let path = data.beside(&what.replace([' ', '\\'], "-"));
        let file = data.beside("records");
        fs::write(&file, format!("{good}{line}\n{good}")).unwrap();
        let said = db(&path, &format!("import {} --format {format}", file.display()));
        said.fails(1, &["records, line 2501 is malformed", what]);
        assert_eq!(db(&path, "scan").ok().lines().count(), 2500);
    }
}

#[test]
fn keyspaces_are_apart_and_made_by_put_and_import_alone() {
    let data = Database::new();
    data.run("put k default").ok();
    for verb in ["get k", "delete k", "scan", "export -", "stats"] {
        data.run(&format!("--keyspace users {verb}")).fails(1, &["no keyspace \"users\""]);
    }
    data.run("--keyspace users put k user").ok();
    db_with_input(&data.path, "import - --keyspace other", b"k\tother\n").ok();
    assert_eq!(data.run("get k").ok(), "default\n");
    assert_eq!(data.run("--keyspace users get k").ok(), "user\n");
    assert_eq!(data.run("get k --keyspace other").ok(), "other\n");
}

#[test]
fn an_unreadable_source_or_target_is_named_and_makes_no_database() {
    let data = Database::new();
    data.run("import no/such/file.tsv").fails(1, &["cannot open no/such/file.tsv"]);
    assert!(!data.path.exists());
    data.run("put k v").ok();
    data.run("export no/such/file.tsv").fails(1, &["cannot create no/such/file.tsv"]);
}

#[test]
fn a_locked_database_says_so() {
    let data = Database::new();
    let open = lsmx::Db::open(&data.path, lsmx::Options::default()).unwrap();
    for verb in ["put k v", "get k", "scan", "verify"] {
        data.run(verb).fails(1, &["locked"]);
    }
    open.close(None).unwrap();
    drop(open);
    data.run("put k v").ok();
}

#[test]
fn verify_is_content_with_a_sound_database_and_names_a_damaged_file() {
    let data = Database::new();
    with_tables(&data.path);
    data.run("verify").ok();
    let table = files(&data.path, ".sst").remove(0);
    damage(&table, |bytes| bytes.len() / 2);
    let name = name_of(&table);
    data.run("verify").fails(1, &[name]);
}

#[test]
fn a_database_of_a_newer_format_says_so() {
    let data = Database::new();
    data.run("put k v").ok();
    let current = fs::read_to_string(data.path.join("CURRENT")).unwrap();
    let newer = current.replacen("lsmx 1 ", "lsmx 99 ", 1);
    assert_ne!(current, newer);
    fs::write(data.path.join("CURRENT"), newer).unwrap();
    for verb in ["put k v", "get k", "verify"] {
        let said = data.run(verb).fails(1, &["CURRENT", "format version 99", "up to 1"]);
        assert!(!said.contains("not a database"), "{said}");
    }
}

#[test]
fn a_missing_table_is_named() {
    let data = Database::new();
    with_tables(&data.path);
    let table = files(&data.path, ".sst").remove(0);
    fs::remove_file(&table).unwrap();
    let name = name_of(&table);
    data.run("get k").fails(1, &[name, "missing"]);
}

#[test]
fn stats_print_levels_for_people_and_counters_for_programs() {
    let data = Database::new();
    with_tables(&data.path);
    assert!(data.run("stats").ok().contains("level"));
    let json = data.run("stats --json").json();
    assert_eq!(json["keyspaces"]["default"]["levels"][0]["entries"], 1000);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let data = Database::new();
    let records: String = (0..50_000).map(|i| format!("key{i}\tvalue\n")).collect();
    data.import(&records);
    for verb in [&["scan"][..], &["export", "-"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lsmx"))
            .arg("db")
            .arg(&data.path)
            .args(verb)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{verb:?}");
        assert!(output.stderr.is_empty(), "{verb:?}");
    }
}

#[test]
fn a_damaged_database_is_repaired_and_what_is_lost_is_told() {
    let data = Database::new();
    let records: String = (0..5_000).map(|key| format!("key{key:04}\tvalue{key}\n")).collect();
    data.import(&records);
    data.run("compact").ok();
    assert!(data.run("repair").ok().ends_with("all is sound, nothing was done\n"));

    let table = files(&data.path, ".sst").pop().unwrap();
    damage(&table, |bytes| bytes.len() / 2);
    data.run("verify").fails(1, &[table.to_str().unwrap(), "checksum"]);
    let would = data.run("repair --dry-run").loses_data();
    assert!(would.contains("readable entries were written to a new table"), "{would}");
    assert!(would.contains("lost: entries of ") && would.contains("this was a dry run"), "{would}");
    data.run("verify").fails(1, &[table.to_str().unwrap()]);

    let did: serde_json::Value =
        serde_json::from_str(&data.run("repair --json").loses_data()).unwrap();
    assert_eq!(did["tables_rewritten"], 1);
    let key = |end: &str| {
        let bytes = did["lost"][0][end].as_array().unwrap().iter();
        String::from_utf8(bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect())
            .unwrap()
    };
    let (from, to) = (key("from"), key("to"));
    assert!(*"key0000" < *from && from < to && *to < *"key4999", "{from} {to}");
    assert!(data.path.join(did["set_aside"].as_str().unwrap()).join(name_of(&table)).exists());
    assert!(data.run("verify").ok().contains("all sound"));
    let left = data.run("scan").ok();
    // All but what lies between, with the block's bounds still there.
    let expected: String = records
        .lines()
        .filter(|line| line[..7] <= *from || line[..7] >= *to)
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(left, expected);

    fs::remove_file(data.path.join("CURRENT")).unwrap();
    data.run("get key0000").fails(1, &["is not a database", "CURRENT is missing"]);
    assert!(data.run("repair").ok().contains("is intact and replaces it"));
    assert_eq!(data.run("scan").ok(), expected);
    data.run("repair --keyspace x").fails(2, &["--keyspace contradicts repair"]);
}

/// The report did not say how far a keyspace is complete.
#[test]
fn repair_of_a_damaged_log_reports_the_end_of_each_keyspace() {
    let data = Database::new();
    let records: String = (0..9).map(|key| format!("key{key}\tvalue{key}\n")).collect();
    data.import(&records);
    let log = files(&data.path, ".wal").pop().unwrap();
    damage(&log, |bytes| bytes.windows(4).position(|window| window == b"key3").unwrap());
    let would: serde_json::Value =
        serde_json::from_str(&data.run("repair --dry-run --json").loses_data()).unwrap();
    let through = would["complete_through"]["default"].as_u64().unwrap();
    let prefix = data.run("repair --dry-run --common-prefix").loses_data();
    assert!(prefix.contains("keyspace default is complete"), "{prefix}");
    let did = data.run("repair").loses_data();
    let line = format!("keyspace default is complete through sequence number {through}\n");
    assert!(did.contains(&line), "{did}");
    let left = data.run("scan").ok();
    assert_eq!(u64::try_from(left.lines().count()).unwrap(), through);
}

/// The error used to be "cannot lock dangling/LOCK".
#[cfg(unix)]
#[test]
fn open_of_a_dangling_symlink_names_the_cause() {
    let data = Database::new();
    let link = data.beside("dangling");
    std::os::unix::fs::symlink(data.beside("nowhere"), &link).unwrap();
    for verb in ["put k v", "get k", "dump", "verify", "repair", "repair --dry-run"] {
        db(&link, verb).fails(1, &["dangling", "a symbolic link to a directory that does not"]);
    }
    db(&link.join("below"), "put k v").fails(1, &["dangling is not", "a symbolic link to a"]);
    assert_eq!(files(data.directory.path(), "").len(), 1);
}

#[test]
fn a_checkpoint_is_a_database_and_the_target_must_be_free() {
    let data = Database::filled();
    let copy = data.beside("copy");
    let words = format!("checkpoint {}", copy.display());
    assert_eq!(data.run(&words).ok(), "");
    data.run("delete key00000").ok();
    assert_eq!(db(&copy, "get key00000").ok(), "value 0\n");
    assert_eq!(db(&copy, "get ada --keyspace users").ok(), "1815\n");
    assert!(db(&copy, "verify").ok().contains("all sound"));
    data.run(&words).fails(1, &["copy", "not an empty directory"]);
    data.run(&format!("{words} --keyspace users")).fails(2, &["--keyspace", "checkpoint"]);
    db(&data.beside("none"), &words).fails(1, &["not a database"]);
    data.run("checkpoint").fails(2, &["<TARGET>"]);
}

/// The stored time of a host whose clock was in 2099 stays, and ends with `reset-clock`.
#[test]
fn reset_clock_sets_a_stored_time_of_2099_back() {
    const YEAR_2099_US: u64 = 4_070_908_800_000_000;
    let data = Database::new();
    let ahead = lsmx::env::ManualClock::new(YEAR_2099_US);
    lsmx::Db::open(&data.path, lsmx::Options::default().clock(ahead)).unwrap().close(None).unwrap();
    let stored_us = || {
        let db = lsmx::Db::open(&data.path, lsmx::Options::default().read_only(true)).unwrap();
        db.env().database_time_us()
    };
    assert!(stored_us() >= YEAR_2099_US);
    assert!(data.run("reset-clock").ok().contains("the database clock is at "));
    assert!(stored_us() < YEAR_2099_US);
    data.run("reset-clock --keyspace users").fails(2, &["--keyspace", "reset-clock"]);
    db(&data.beside("none"), "reset-clock").fails(1, &["not a database"]);
}

#[test]
fn compact_leaves_one_run_and_drop_keyspace_one_keyspace() {
    let data = Database::filled();
    for key in 0..5 {
        data.run(&format!("delete key{key:05}")).ok();
    }
    assert!(data.run("compact --from key00000 --to key00003").ok().contains("in tables before"));
    data.run("compact").ok();
    let stats = data.run("stats --json").json();
    let levels = stats["keyspaces"]["default"]["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 1);
    assert_eq!((&levels[0]["runs"], &levels[0]["tombstones"]), (&1.into(), &0.into()));
    assert_eq!(levels[0]["entries"], 1_995);
    data.run("drop-keyspace users").ok();
    data.run("get ada --keyspace users").fails(1, &["users"]);
    data.run("drop-keyspace users").fails(1, &["there is no keyspace \"users\""]);
    data.run("drop-keyspace default").fails(1, &["cannot be dropped"]);
}

#[test]
fn explain_tells_steps_for_people_and_programs() {
    let data = Database::filled();
    let text = data.run("explain key00007").ok();
    assert!(text.contains("Data block") && text.contains("value of 7 bytes"), "{text}");
    let json = data.run("explain key00007 --json").json();
    assert_eq!(json["value_bytes"], 7);
    assert!(data.run("explain none").ok().contains("no value"));
}

/// Every command that needs a cut file names it in its error.
#[test]
fn cut_files_are_named() {
    for suffix in [".sst", ".wal", "MANIFEST", "CURRENT"] {
        let data = Database::filled();
        let all = files(&data.path, "");
        let cut = all.iter().find(|file| file.to_str().unwrap().contains(suffix)).unwrap();
        let bytes = fs::read(cut).unwrap();
        fs::write(cut, &bytes[..bytes.len() / 3]).unwrap();
        let name = name_of(cut);
        for verb in ["get key00001", "scan", "verify", "stats", "compact", "put a b"] {
            data.run(verb).fails(1, &[name, "is corrupt at byte"]);
        }
        let said = data.run(&format!("dump {name}"));
        assert_eq!(said.code, 1, "{name}");
    }
}

/// Reading verbs change no byte, and work where nothing may be written.
#[test]
fn verbs_that_read_change_nothing() {
    let data = Database::filled();
    let bytes = || {
        let files = files(&data.path, "").into_iter();
        files.map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = bytes();
    for verb in ["get key00001", "scan", "export -", "stats", "verify", "explain k", "dump"] {
        assert_eq!(data.run(verb).code, 0, "{verb}");
        assert!(bytes() == before, "{verb} has changed a file");
    }
}

#[test]
fn stats_can_be_watched_while_somebody_else_owns_the_database() {
    let data = Database::filled();
    let owner = lsmx::Db::open(&data.path, lsmx::Options::default()).unwrap();
    data.run("stats").fails(1, &["locked"]);
    let text = data.run("stats --watch 0 --count 2").ok();
    assert_eq!(text.matches("manifest ").count(), 2, "{text}");
    assert!(text.contains("[default] leveled") && text.contains("[users]"), "{text}");
    let said = data.run("stats --json --watch 0 --count 3 --keyspace users").ok();
    for line in said.lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["keyspaces"].as_object().unwrap().len(), 1);
        assert!(json["wal_bytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(said.lines().count(), 3);
    data.run("stats --watch 0 --count 1 --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    data.run("stats --count 1").fails(2, &["--watch"]);
    data.run("stats --watch -1").fails(2, &["--watch"]);
    let none = data.beside("none");
    db(&none, "stats --watch 0 --count 1").fails(1, &["not a database"]);
    owner.close(None).unwrap();
}

#[test]
fn dump_shows_any_file_and_names_damage() {
    let data = Database::filled();
    let all = data.run("dump").ok();
    assert_contains(
        &all,
        &["CURRENT", "LOCK", "MANIFEST-", ".sst", ".wal", "footer", "restart \"key00000\""],
    );
    let table = files(&data.path, ".sst").remove(0);
    let name = name_of(&table).to_owned();
    let by_name = data.run(&format!("dump {name}")).ok();
    assert_eq!(by_name, data.run(&format!("dump {}", table.display())).ok());
    assert!(data.run(&format!("dump {name} --hex")).ok().contains("6b65793030303030"));
    assert_eq!(data.run(&format!("dump {name} --limit 2")).ok().lines().count(), 3);
    let entries = data.run(&format!("dump {name} --all-entries")).ok();
    assert_eq!(data.run(&format!("dump {name} --entries")).ok(), entries, "the old name");
    assert!(entries.lines().count() > 2_000);
    data.run("dump nothing.txt").fails(2, &["nothing.txt is no file of a database"]);
    data.run("dump 999999.sst").fails(1, &["999999.sst"]);
    // A flipped bit in the middle: the block is named, the others are shown.
    damage(&table, |bytes| bytes.len() / 2);
    let said = data.run(&format!("dump {name}"));
    let shown = String::from_utf8(said.stdout.clone()).unwrap();
    assert!(shown.contains("damaged: ") && shown.lines().count() > by_name.lines().count() / 2);
    said.fails(1, &[&name, "corrupt at byte"]);
}
