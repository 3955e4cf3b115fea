//! Tests of `lsmx db`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lsmx::merge_operator::Append;
use lsmx::{Db, Durability, KeyspaceOptions, MetricsReading, Options};
use lsmx_bench::workload::record::{RecordFormat, encode_record};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use serde_json::Value;

use crate::common::{CliOutput, TestDir, assert_contains, command, list, lsmx};

/// Database in the subdirectory `data` of a temporary directory. The first write creates the database.
pub(crate) struct TestDatabase {
    dir: TestDir,
    pub(crate) path: PathBuf,
}

impl TestDatabase {
    pub(crate) fn new() -> TestDatabase {
        let dir = TestDir::on_disk();
        let path = dir.root().join("data");
        TestDatabase { dir, path }
    }

    /// Creates a database with the keys `key00000` to `key01999` in tables, and a second keyspace whose only entry is
    /// in the WAL.
    pub(crate) fn filled() -> TestDatabase {
        let data = TestDatabase::new();
        let db = data.open();
        for i in 0..2_000 {
            db.put(format!("key{i:05}"), format!("value {i}")).unwrap();
        }
        db.flush().unwrap();
        let users = db.keyspace("users", KeyspaceOptions::default()).unwrap();
        users.put("ada", "1815").unwrap();
        db.close(None).unwrap();
        data
    }

    pub(crate) fn open(&self) -> Db {
        Db::open(&self.path, Options::default()).unwrap()
    }

    /// Runs `lsmx db` on this database with arguments separated by spaces.
    #[track_caller]
    pub(crate) fn run(&self, words: &str) -> CliOutput {
        db(&self.path, words)
    }

    /// Imports records from standard input.
    fn import(&self, records: &str, flags: &str) {
        let mut import = command(&format!("db {} import - {flags}", self.path.display()));
        let mut child = import.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(records.as_bytes()).unwrap();
        CliOutput::new(child.wait_with_output().unwrap()).ok();
    }

    /// Returns the first file whose name contains `part`.
    fn file(&self, part: &str) -> PathBuf {
        files(&self.path).into_iter().find(|path| name_of(path).contains(part)).unwrap()
    }

    /// Flips a bit in the middle of the first table file. Returns the path of that file.
    pub(crate) fn damage_table(&self) -> PathBuf {
        let table = self.file(".sst");
        change(&table, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        table
    }
}

fn db(path: &Path, words: &str) -> CliOutput {
    lsmx(&format!("db {} {words}", path.display()))
}

/// Returns the files of a directory, sorted.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn name_of(file: &Path) -> &str {
    file.file_name().unwrap().to_str().unwrap()
}

fn change(file: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

/// Only `put` and `import` create a database. No subcommand changes a directory that holds other files.
#[test]
fn verbs_on_a_path_without_a_database_fail_and_create_nothing() {
    let data = TestDatabase::new();
    let [none, empty, foreign, plain, current, text] =
        ["none", "empty", "foreign", "plain", "current", "text"]
            .map(|name| data.dir.root().join(name));
    for directory in [&empty, &foreign, &current, &text] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(foreign.join("notes.txt"), "mine").unwrap();
    fs::write(current.join("CURRENT"), "MANIFEST-000004\n").unwrap();
    fs::write(&plain, "mine").unwrap();
    let checkpoint = format!("checkpoint {}", data.dir.path("copy"));
    let backup = format!("backup {}", data.dir.path("repository"));
    for verb in [
        "get k",
        "delete k",
        "scan",
        "export -",
        "stats",
        "stats --watch 0 --count 1",
        "top --once",
        "explain k",
        "verify",
        "dump",
        "compact",
        "reset-clock",
        "drop-keyspace x",
        "rename-keyspace x y",
        "clone-keyspace x y",
        "repair",
        "repair --dry-run",
        &checkpoint,
        &backup,
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
    assert_eq!(data.dir.names(), ["current", "empty", "foreign", "plain", "text"]);
    assert_eq!((files(&empty).len(), files(&foreign).len()), (0, 1));
    assert_eq!(files(&current), [current.join("CURRENT")]);
    fs::write(text.join("000001.sst"), "a text\n").unwrap();
    for verb in ["repair", "repair --dry-run"] {
        db(&text, verb).fails(1, &["is not a database", "magic number"]);
        assert_eq!(files(&text).len(), 1, "{verb}");
    }
    db(&text, "repair --force").exits(3);
}

/// Regression test: the error was "cannot lock dangling/LOCK", which does not name the cause.
#[cfg(unix)]
#[test]
fn open_of_a_dangling_symlink_names_the_cause() {
    let dir = TestDir::new();
    let link = dir.root().join("dangling");
    std::os::unix::fs::symlink(dir.path("nowhere"), &link).unwrap();
    for verb in ["put k v", "get k", "dump", "verify", "repair", "repair --dry-run"] {
        db(&link, verb).fails(1, &["dangling", "a symbolic link to a directory that does not"]);
    }
    db(&link.join("below"), "put k v").fails(1, &["dangling is not", "a symbolic link to a"]);
    assert_eq!(dir.names(), ["dangling"]);
}

#[test]
fn put_value_is_returned_by_get_until_delete() {
    let data = TestDatabase::new();
    for (words, output) in [
        ("put k v1", ""),
        ("put k v2", ""),
        ("get k", "v2\n"),
        ("--hex get 6b", "7632\n"),
        ("put --hex 00ff 0a", ""),
        ("get 00ff --hex", "0a\n"),
        ("delete k", ""),
        ("delete k", ""),
    ] {
        assert_eq!(data.run(words).ok(), output, "{words}");
    }
    data.run("get k").fails(1, &["there is no key \"k\""]);
}

#[test]
fn scan_returns_keys_within_bounds_in_both_directions() {
    let data = TestDatabase::new();
    data.import(&["a", "b1", "b2", "c"].map(|key| format!("{key}\t{key}v\n")).concat(), "");
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
        let expected: String =
            keys.split_whitespace().map(|key| format!("{key}\t{key}v\n")).collect();
        assert_eq!(data.run(words).ok(), expected, "{words}");
    }
    assert_eq!(data.run("scan --hex --limit 1").ok(), "61\t6176\n");
}

#[test]
fn exported_records_equal_imported_ones() {
    let dir = TestDir::new();
    for (format, name) in [(RecordFormat::Tsv, "tsv"), (RecordFormat::Jsonl, "jsonl")] {
        let mut text = Vec::new();
        // The records are in key order, like the records of an export. An import splits the records into several
        // batches.
        for byte in 0..=255u8 {
            for low in [0, 9, 10, 13, 92, 200] {
                let value = [byte, b'\\', b't', low, b'\n'].repeat(usize::from(low % 4));
                encode_record(format, &[byte, low], &value, &mut text);
            }
        }
        let source = dir.write(&format!("source.{name}"), &text);
        let (path, target) = (dir.root().join(name), dir.path(&format!("target.{name}")));
        let import = db(&path, &format!("import {source}")).ok();
        assert_eq!(import, "1536 records imported\n");
        let export = db(&path, &format!("export {target}")).ok();
        assert_eq!(export, "1536 records exported\n");
        assert!(fs::read(&target).unwrap() == text, "{name}: the file differs");
        let export = db(&path, &format!("export - --format {name}"));
        assert!(export.code == 0 && export.stdout == text, "{name}: standard output differs");
        db(&path, "export no/such/file.tsv").fails(1, &["cannot write no/such/file.tsv"]);
    }
}

/// Regression test: an export could replace engine files, truncated the old file before it read the first entry, and
/// failed after it had written a pipe or a device.
#[cfg(unix)]
#[test]
fn export_keeps_engine_files_and_the_old_file_and_accepts_devices() {
    let data = TestDatabase::filled();
    let (table, files_before) = (data.file(".sst"), files(&data.path));
    for path in [&table, &data.path.join("999999.sst"), &data.path.join("LOCK")] {
        let words = format!("export {}", path.display());
        data.run(&words).fails(1, &["has the name of an engine file in a database directory"]);
    }
    assert_eq!(files(&data.path), files_before);
    assert_eq!(data.run("export /dev/null").ok(), "2000 records exported\n");
    let target = data.dir.path("a.tsv");
    data.run(&format!("export {target}")).ok();
    let (exported, names) = (fs::read(&target).unwrap(), data.dir.names());
    data.damage_table();
    data.run(&format!("export {target}")).fails(1, &["corrupt at byte"]);
    assert!(fs::read(&target).unwrap() == exported, "the old file differs");
    assert_eq!(data.dir.names(), names);
}

/// Regression test: an export to a full disk ended with a part of a record, which an import would have read as a record
/// with a shorter value.
#[cfg(unix)]
#[test]
fn export_in_place_ends_with_a_complete_record_if_a_write_fails() {
    let data = TestDatabase::new();
    let records: String = (0..1300).map(|i| format!("key{i:04}\t{}\n", "v".repeat(995))).collect();
    data.import(&records, "");
    let target = data.dir.root().join("a.tsv");
    // Writes beyond 1000 blocks fail with an error. A block has 512 or 1024 bytes.
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" db \"$1\" export /dev/stdout > \"$2\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_lsmx")]).args([&data.path, &target]);
    CliOutput::new(shell.output().unwrap()).fails(1, &["cannot write /dev/stdout: "]);
    let exported = fs::read_to_string(&target).unwrap();
    assert!(records.starts_with(&exported) && exported.ends_with('\n'), "{}", exported.len());
}

#[test]
fn import_keeps_the_last_record_of_a_key() {
    let data = TestDatabase::new();
    let record = |i: u32| format!("{}\t{}\n", i % 900, i / 900);
    data.import(&(0..2700).map(record).collect::<String>(), "");
    let scan = data.run("scan").ok();
    assert_eq!(scan.lines().count(), 900);
    assert!(scan.lines().all(|line| line.ends_with("\t2")), "{scan}");
}

#[test]
fn bulk_import_loads_the_last_record_of_each_key_or_nothing() {
    let data = TestDatabase::new();
    let record = |i: u32| format!("{}\t{}\n", i % 900, i / 900);
    let records: String = (0..2700).map(record).collect();
    data.import(&records, "--bulk --sort-memory 64KiB");
    let scan = data.run("scan").ok();
    assert_eq!(scan.lines().count(), 900);
    assert!(scan.lines().all(|line| line.ends_with("\t2")), "{scan}");
    data.run("verify").ok();
    let sorted: String = (0..500).map(|i| format!("sorted{i:04}\tv\n")).collect();
    data.import(&sorted, "--bulk --sorted");
    assert_eq!(data.run("scan --prefix sorted").ok().lines().count(), 500);
    let dir = TestDir::new();
    let file = dir.write("records", format!("{sorted}no tab\n"));
    let import = format!("import {file} --format tsv");
    let before = data.run("scan").ok();
    data.run(&format!("{import} --bulk")).fails(1, &["records, line 501 is malformed"]);
    let small = format!("{import} --bulk --sort-memory 1KiB");
    data.run(&small).fails(2, &["--sort-memory", "must be at least 64KiB"]);
    let unsorted = dir.write("unsorted", "b\t1\na\t2\n");
    let import = format!("import {unsorted} --format tsv --bulk --sorted");
    data.run(&import).fails(1, &["key \"a\"", "is not after the key before it"]);
    assert_eq!(data.run("scan").ok(), before);
    data.run("verify").ok();
}

#[test]
fn import_stops_at_a_malformed_line_and_keeps_earlier_records() {
    let dir = TestDir::new();
    let tsv = |i: u32| format!("key{i:04}\tv\n");
    let jsonl = |i: u32| format!("{{\"key\":\"key{i:04}\",\"value\":\"v\"}}\n");
    for (name, format, record, line, what) in [
        ("one", "tsv", tsv as fn(u32) -> String, "no tab", "there is no tab"),
        ("two", "tsv", tsv, "a\\q\tb", "unknown escape \\q"),
        ("three", "jsonl", jsonl, "{\"key\":1}", "not a JSON object of a record"),
    ] {
        let good: String = (0..2500).map(record).collect();
        let file = dir.write("records", format!("{good}{line}\n{good}"));
        let path = dir.root().join(name);
        db(&path, &format!("import {file} --format {format}"))
            .fails(1, &["records, line 2501 is malformed", what]);
        assert_eq!(db(&path, "scan").ok().lines().count(), 2500);
    }
}

#[test]
fn keyspaces_are_created_by_put_and_import_alone() {
    let data = TestDatabase::new();
    data.run("put k default").ok();
    for verb in ["get k", "delete k", "scan", "export -", "stats"] {
        data.run(&format!("--keyspace users {verb}")).fails(1, &["no keyspace \"users\""]);
    }
    data.run("--keyspace users put k user").ok();
    data.import("k\tother\n", "--keyspace other");
    assert_eq!(data.run("get k").ok(), "default\n");
    assert_eq!(data.run("--keyspace users get k").ok(), "user\n");
    assert_eq!(data.run("get k --keyspace other").ok(), "other\n");
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let data = TestDatabase::new();
    data.import(&(0..50_000).map(|i| format!("key{i}\tvalue\n")).collect::<String>(), "");
    for verb in ["scan", "export -"] {
        let mut child = command(&format!("db {} {verb}", data.path.display())).spawn().unwrap();
        drop(child.stdout.take());
        CliOutput::new(child.wait_with_output().unwrap()).ok();
    }
}

/// Function that damages the file at a path.
type Damage<'a> = &'a dyn Fn(&Path);

/// A command that needs a damaged or missing file names that file in its error.
#[test]
fn damaged_and_missing_files_are_named() {
    let cut = |file: &Path| change(file, |bytes| bytes.truncate(bytes.len() / 3));
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    let newer = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("lsmx 2 "), "{text}");
        fs::write(file, text.replacen("lsmx 2 ", "lsmx 99 ", 1)).unwrap();
    };
    let at_byte = &["is corrupt at byte"][..];
    let cases: [(&str, Damage, &[&str]); 6] = [
        (".sst", &cut, at_byte),
        (".wal", &cut, at_byte),
        ("MANIFEST", &cut, at_byte),
        ("CURRENT", &cut, at_byte),
        ("CURRENT", &newer, &["format version 99", "up to 2"]),
        (".sst", &remove, &["missing"]),
    ];
    for (part, damage, parts) in cases {
        let data = TestDatabase::filled();
        let file = data.file(part);
        damage(&file);
        let name = name_of(&file);
        for verb in ["get key00001", "scan", "verify", "stats", "compact", "put a b"] {
            let error = data.run(verb).fails(1, &[&[name], parts].concat());
            assert!(!error.contains("not a database"), "{error}");
        }
        if parts == at_byte {
            assert_eq!(data.run(&format!("dump {name}")).code, 1, "{name}");
        }
    }
}

#[test]
fn repair_salvages_a_damaged_table_and_reports_the_loss() {
    let data = TestDatabase::new();
    let records: String = (0..5_000).map(|key| format!("key{key:04}\tvalue{key}\n")).collect();
    data.import(&records, "");
    data.run("compact").ok();
    data.run("verify").ok();
    assert!(data.run("repair").ok().ends_with("no damage was found, nothing was changed\n"));

    let table = data.damage_table();
    let damaged = [table.to_str().unwrap(), "checksum"];
    data.run("verify").fails(1, &damaged);
    let dry_run = data.run("repair --dry-run").exits(3);
    assert_contains(
        &dry_run,
        &["readable entries were written to a new table", "lost: entries of ", "dry run"],
    );
    data.run("verify").fails(1, &damaged);

    let report: Value = serde_json::from_str(&data.run("repair --json").exits(3)).unwrap();
    assert_eq!(report["tables_rewritten"], 1);
    let [from, to]: [String; 2] = ["from", "to"]
        .map(|end| serde_json::from_value(report["lost"][0][end].clone()).unwrap())
        .map(|bytes: Vec<u8>| String::from_utf8(bytes).unwrap());
    assert!(*"key0000" < *from && from < to && *to < *"key4999", "{from} {to}");
    assert!(data.path.join(report["set_aside"].as_str().unwrap()).join(name_of(&table)).exists());
    assert_contains(&data.run("verify").ok(), &["no damage was found"]);
    // The repair keeps all entries up to the key `from` and all entries from the key `to` on.
    let expected: String = records
        .lines()
        .filter(|line| line[..7] <= *from || line[..7] >= *to)
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(data.run("scan").ok(), expected);

    fs::remove_file(data.path.join("CURRENT")).unwrap();
    data.run("get key0000").fails(1, &["is not a database", "CURRENT is missing"]);
    assert_contains(&data.run("repair").ok(), &["is intact and replaces it"]);
    assert_eq!(data.run("scan").ok(), expected);
}

/// Regression test: the report did not state the sequence number through which a keyspace is complete.
#[test]
fn repair_of_a_damaged_log_reports_the_end_of_each_keyspace() {
    let data = TestDatabase::new();
    data.import(&(0..9).map(|key| format!("key{key}\tvalue{key}\n")).collect::<String>(), "");
    change(&data.file(".wal"), |bytes| {
        let at = bytes.windows(4).position(|window| window == b"key3").unwrap();
        bytes[at] ^= 1;
    });
    let report: Value =
        serde_json::from_str(&data.run("repair --dry-run --json").exits(3)).unwrap();
    let seq = &report["complete_through"]["default"];
    let prefix = data.run("repair --dry-run --common-prefix").exits(3);
    assert_contains(&prefix, &["keyspace default is complete"]);
    let repaired = data.run("repair").exits(3);
    let line = format!("keyspace default is complete through sequence number {seq}\n");
    assert_contains(&repaired, &[&line]);
    assert_eq!(data.run("scan").ok().lines().count().to_string(), seq.to_string());
}

#[test]
fn checkpoint_is_a_database_and_needs_a_free_target() {
    let data = TestDatabase::filled();
    let copy = data.dir.root().join("copy");
    let words = format!("checkpoint {}", copy.display());
    assert_eq!(data.run(&words).ok(), "");
    data.run("delete key00000").ok();
    assert_eq!(db(&copy, "get key00000").ok(), "value 0\n");
    assert_eq!(db(&copy, "get ada --keyspace users").ok(), "1815\n");
    db(&copy, "verify").ok();
    data.run(&words).fails(1, &["copy", "not an empty directory"]);
}

/// The database clock advances with a host clock in the year 2099. Only `reset-clock` sets the database clock back.
#[test]
fn reset_clock_sets_a_stored_time_of_2099_back() {
    const YEAR_2099_US: u64 = 4_070_908_800_000_000;
    let data = TestDatabase::new();
    let ahead = lsmx::env::ManualClock::new(YEAR_2099_US);
    Db::open(&data.path, Options::default().clock(ahead)).unwrap().close(None).unwrap();
    let stored_us = || {
        let db = Db::open(&data.path, Options::default().read_only(true)).unwrap();
        db.env().database_time_us()
    };
    assert!(stored_us() >= YEAR_2099_US);
    assert_contains(&data.run("reset-clock").ok(), &["the database clock is at "]);
    assert!(stored_us() < YEAR_2099_US);
}

#[test]
fn compact_leaves_one_run_and_drop_keyspace_one_keyspace() {
    let data = TestDatabase::filled();
    for key in 0..5 {
        data.run(&format!("delete key{key:05}")).ok();
    }
    let compact = data.run("compact --from key00000 --to key00003").ok();
    assert_contains(&compact, &["in tables before"]);
    data.run("compact").ok();
    assert_contains(&data.run("stats").ok(), &[" level  runs"]);
    let stats: Value = serde_json::from_str(&data.run("stats --json").ok()).unwrap();
    let levels = list(&stats, "/keyspaces/default/levels");
    assert_eq!(levels.len(), 1);
    assert_eq!((&levels[0]["runs"], &levels[0]["tombstones"]), (&1.into(), &0.into()));
    assert_eq!(levels[0]["entries"], 1_995);
    data.run("drop-keyspace users").ok();
    data.run("get ada --keyspace users").fails(1, &["users"]);
    data.run("drop-keyspace users").fails(1, &["there is no keyspace \"users\""]);
    data.run("drop-keyspace default").fails(1, &["cannot be dropped"]);
}

#[test]
fn rename_keyspace_keeps_entries() {
    let data = TestDatabase::filled();
    let ada = data.run("get ada --keyspace users").ok();
    data.run("rename-keyspace users people").ok();
    assert_eq!(data.run("get ada --keyspace people").ok(), ada);
    data.run("get ada --keyspace users").fails(1, &["there is no keyspace \"users\""]);
    data.run("rename-keyspace people people").ok();
    data.run("rename-keyspace users x").fails(1, &["there is no keyspace \"users\""]);
    data.run("rename-keyspace people default").fails(1, &["keyspace \"default\" exists"]);
    data.run("rename-keyspace default x").fails(1, &["cannot be dropped or renamed"]);
}

#[test]
fn clone_keyspace_copies_entries() {
    let data = TestDatabase::filled();
    let users = data.run("scan --keyspace users").ok();
    data.run("clone-keyspace users draft").ok();
    assert_eq!(data.run("scan --keyspace draft").ok(), users);
    data.run("delete ada --keyspace draft").ok();
    assert_eq!(data.run("scan --keyspace users").ok(), users);
    data.run("clone-keyspace users draft").fails(1, &["keyspace \"draft\" exists"]);
    data.run("clone-keyspace missing x").fails(1, &["there is no keyspace \"missing\""]);
}

#[test]
fn backups_are_listed_verified_removed_and_restored() {
    let data = TestDatabase::filled();
    let repository = data.dir.path("backups");
    let first = data.run(&format!("backup {repository}")).ok();
    assert_contains(&first, &["backup 1: ", " files, ", " uploaded"]);
    data.run("put key00000 new").ok();
    let second = data.run(&format!("backup {repository} --rate 100M --files 2")).ok();
    assert_contains(&second, &["backup 2: "]);
    assert_eq!(data.dir.names(), ["backups", "data"]);

    let list = data.run(&format!("backups {repository} --verify --contents")).ok();
    assert_contains(&list, &["database", "Z", " data\n", "2 backups verified"]);
    let json = data.run(&format!("backups {repository} --json")).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["id"], &json[1]["writer"]), (&1.into(), &"data".into()));

    let restored = data.dir.root().join("restored");
    let output = db(&restored, &format!("restore {repository} --id 1")).ok();
    assert_contains(&output, &["restored backup 1 of 20", "restored: "]);
    assert_eq!(db(&restored, "get key00000").ok(), "value 0\n");
    db(&restored, &format!("restore {repository}")).fails(1, &["is not empty: it contains"]);

    let other = format!("backup {repository} --writer other");
    assert_contains(&db(&restored, &other).ok(), &["backup 3: "]);
    let copy = data.dir.root().join("copy");
    let restore = format!("restore {repository}");
    db(&copy, &restore).fails(2, &["--id or --writer is required", "data, other"]);
    db(&copy, &format!("{restore} --writer data")).ok();
    assert_eq!(db(&copy, "get key00000").ok(), "new\n");

    let pruned = data.run(&format!("backups {repository} --keep 1")).ok();
    assert_contains(&pruned, &["1 backups removed", "objects deleted"]);
    let all = data.run(&format!("backups {repository} --all --json")).ok();
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!((&all[0]["id"], &all[1]["id"]), (&2.into(), &3.into()));
    data.run(&format!("backups {repository} --verify --contents")).ok();
}

/// Backs up a database, writes `key` three times, and archives each commit. Returns the sequence numbers of the commits.
fn archive_three_commits(data: &TestDatabase, repository: &str) -> Vec<u64> {
    use lsmx_backup::{ArchiveOptions, Archiver, BackupOptions, BackupRepository};
    fs::create_dir(repository).unwrap();
    let db = lsmx::Db::open(data.dir.root().join("data"), lsmx::Options::default()).unwrap();
    let backup = BackupOptions::new(data.dir.root().join("staging")).writer("data");
    let mut archiver = Archiver::new(&db, ArchiveOptions::new(backup));
    let repository = BackupRepository::at(repository).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut commits = Vec::new();
    runtime.block_on(archiver.run_once(&repository)).unwrap();
    for value in ["one", "two", "three"] {
        db.put("key", value).unwrap();
        db.sync().unwrap();
        commits.push(runtime.block_on(archiver.run_once(&repository)).unwrap().last_seq);
    }
    commits
}

#[test]
fn archived_log_is_listed_and_restored_to_commits_and_times() {
    let data = TestDatabase::filled();
    let repository = data.dir.path("backups");
    let commits = archive_three_commits(&data, &repository);
    let list = data.run(&format!("backups {repository} --verify --contents")).ok();
    assert_contains(&list, &["commit", "log to", "log time", &commits[2].to_string()]);
    let json = data.run(&format!("backups {repository} --json")).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let archived = &json[0]["archived"];
    assert_eq!((&archived["chunks"], &archived["last_seq"]), (&3.into(), &commits[2].into()));

    let restore = |name: &str, flags: &str| {
        let target = data.dir.root().join(name);
        (db(&target, &format!("restore {repository} {flags}")), target)
    };
    let to_commit = format!("--to-commit {}", commits[1]);
    for (name, flags, value) in [
        ("commit", to_commit.as_str(), "two\n"),
        ("commit-of-id", &format!("{to_commit} --id 1"), "two\n"),
        ("newest", "--newest-log", "three\n"),
        ("time", "--to-time 2100-01-01T00:00:00Z", "three\n"),
    ] {
        let (output, target) = restore(name, flags);
        assert_contains(
            &output.ok(),
            &["restored backup 1 of 20", "restored the log through commit"],
        );
        assert_eq!(db(&target, "get key").ok(), value);
    }
    let (output, target) = restore("backup", "");
    assert!(!output.ok().contains("the log"));
    db(&target, "get key").fails(1, &["key"]);
    let late = format!("--to-commit {}", commits[2] + 1);
    let expected = ["cannot be restored", "the nearest restorable commits are"];
    restore("late", &late).0.fails(1, &expected);
    let early = "--to-time 2000-01-01T00:00:00Z";
    let expected = ["contains only commits before 2000-01-01 00:00:00.000Z"];
    restore("early", early).0.fails(1, &expected);
    restore("x", "--to-time yesterday").0.fails(2, &["must be a time in UTC"]);
    restore("x", "--newest-log --to-commit 1").0.fails(2, &["cannot be used with"]);
}

#[test]
fn backup_and_restore_accept_relative_paths() {
    let data = TestDatabase::filled();
    let run = |words: &str| {
        let mut command = command(words);
        command.current_dir(data.dir.root());
        CliOutput::new(command.output().unwrap()).ok()
    };
    run("db data backup backups");
    run("db restored restore backups");
    assert_eq!(run("db restored get key00000"), "value 0\n");
}

/// Regression test: `import --hex` and `export --hex` ignored the flag.
#[test]
fn import_and_export_with_hex_read_and_write_hexadecimal_digits() {
    let data = TestDatabase::new();
    data.import("00FF\t0a\n6b\t\n", "--hex");
    assert_eq!(data.run("get --hex 00ff").ok(), "0a\n");
    let exported = data.run("export --hex -").ok();
    assert_eq!(exported, "00ff\t0a\n6b\t\n");
    assert_eq!(data.run("scan --hex").ok(), exported);
    let file = data.dir.write("a.tsv", &exported);
    let copy = data.dir.root().join("copy");
    for flags in ["", "--bulk"] {
        db(&copy, &format!("import --hex {flags} {file}")).ok();
        assert_eq!(db(&copy, "scan --hex").ok(), exported);
    }
    let bad = data.dir.write("bad.tsv", "6b\t00\nxy\t00\n");
    data.run(&format!("import --hex {bad}")).fails(1, &["line 2", "\"xy\" is not hexadecimal"]);
    for words in ["import --hex a.jsonl", "export --hex a.jsonl", "export --hex - --format jsonl"] {
        data.run(words).fails(2, &["--hex contradicts the format jsonl"]);
    }
}

/// Regression test: the name of each database with the path `.` was `.`, so `--keep` removed backups of other databases.
#[test]
fn backup_of_the_current_directory_has_the_name_of_the_directory() {
    let dir = TestDir::on_disk();
    let run = |directory: &str, words: &str| {
        let mut command = command(words);
        command.current_dir(dir.root().join(directory));
        CliOutput::new(command.output().unwrap())
    };
    for name in ["one", "two"] {
        db(&dir.root().join(name), &format!("put k {name}")).ok();
    }
    run("one", "db . backup ../backups").ok();
    fs::create_dir(dir.root().join("two/below")).unwrap();
    run("two/below", "db .. backup ../../backups").ok();
    assert_eq!(dir.names(), ["backups", "one", "two"]);
    assert!(!fs::exists(dir.root().join("two/.backup")).unwrap());

    let kept = run("two", "db . backups ../backups --keep 1").ok();
    assert_contains(&kept, &["     2  ", " two\n", "0 backups removed"]);
    assert_contains(&run("one", "db ./ backups ../backups").ok(), &["     1  ", " one\n"]);
    run("", "db new restore backups").fails(2, &["--id or --writer is required", "one, two"]);

    let unnamed = run("", "db / backups backups");
    unnamed.fails(2, &["--writer is required: the directory / has no name in UTF-8"]);
    assert_contains(&run("", "db / backups backups --writer one").ok(), &["     1  ", " one\n"]);
}

#[test]
fn backup_errors_name_the_repository_and_the_flag() {
    let data = TestDatabase::filled();
    let missing = data.dir.path("missing");
    data.run(&format!("backups {missing}")).fails(1, &["cannot use the repository", "missing"]);
    data.run("backup nonsense://x").fails(1, &["cannot use the repository nonsense://x"]);
    let empty = data.dir.path("");
    let copy = data.dir.root().join("copy");
    db(&copy, &format!("restore {empty}")).fails(1, &["the repository has no backups"]);
    db(&copy, &format!("restore {empty} --id 7")).fails(1, &["the repository has no backup 7"]);
    data.run(&format!("backup {empty} --rate 0")).fails(2, &["--rate"]);
    data.run(&format!("backups {empty} --keep 0")).fails(2, &["--keep"]);
    data.run(&format!("backups {empty} --contents")).fails(2, &["--verify"]);
    data.run(&format!("backups {empty} --keyspace users")).fails(2, &["--keyspace"]);
}

#[test]
fn explain_prints_steps_as_text_and_json() {
    let data = TestDatabase::filled();
    let text = data.run("explain key00007").ok();
    assert_contains(&text, &["Data block", "value of 7 bytes"]);
    let json: Value = serde_json::from_str(&data.run("explain key00007 --json").ok()).unwrap();
    assert_eq!(json["value_bytes"], 7);
    assert_contains(&data.run("explain none").ok(), &["no value"]);
}

#[test]
fn reading_verbs_change_no_file() {
    let data = TestDatabase::filled();
    let bytes = || {
        let files = files(&data.path).into_iter();
        files.map(|file| (fs::read(&file).unwrap(), file)).collect::<Vec<_>>()
    };
    let before = bytes();
    for verb in ["get key00001", "scan", "export -", "stats", "verify", "explain k", "dump"] {
        data.run(verb).ok();
        assert!(bytes() == before, "{verb} has changed a file");
    }
}

/// Opens the database with a metrics file, and waits until the file has the counters of the caller's operations.
fn open_with_metrics_file(data: &TestDatabase, operations: impl Fn(&Db)) -> Db {
    let options = Options::default().metrics_file(Duration::from_millis(1));
    let owner = Db::open(&data.path, options).unwrap();
    operations(&owner);
    let expected = owner.metrics().keyspaces["default"].operations;
    loop {
        let reading = lsmx::read_metrics_file(&data.path, &Options::default()).unwrap();
        let read = reading.map(|reading| reading.metrics.keyspaces["default"].operations);
        if read == Some(expected) {
            return owner;
        }
        std::thread::yield_now();
    }
}

/// Opens the database without a metrics file. Also returns the contents of a metrics file after one put. A test that
/// writes this file sets its time, so the age of the file does not depend on the speed of the machine.
fn open_with_reading(data: &TestDatabase) -> (Db, MetricsReading) {
    let owner = open_with_metrics_file(data, |db| db.put("new", "value").unwrap());
    let reading = lsmx::read_metrics_file(&data.path, &Options::default()).unwrap().unwrap();
    owner.close(None).unwrap();
    (data.open(), reading)
}

fn write_metrics_file(data: &TestDatabase, reading: &MetricsReading) {
    fs::write(data.path.join("METRICS"), serde_json::to_vec(reading).unwrap()).unwrap();
}

#[test]
fn top_shows_the_metrics_file_of_the_owner() {
    let data = TestDatabase::filled();
    let owner = open_with_metrics_file(&data, |db| {
        db.put("new", "value").unwrap();
        assert!(db.get("new").unwrap().is_some() && db.get("absent").unwrap().is_none());
        let tx = db.locking_transaction(Duration::ZERO);
        tx.put(&db.default_keyspace(), "locked", "value").unwrap();
        let other = db.locking_transaction(Duration::ZERO);
        other.put(&db.default_keyspace(), "locked", "other").unwrap_err();
        tx.commit(Durability::Buffered).unwrap();
    });
    let text = data.run("top --once").ok();
    let process = format!("process {}, open for", std::process::id());
    let parts = ["writable", "rates since the open", "keyspace default (leveled)", "total"];
    assert_contains(&text, &parts);
    assert_contains(&text, &[&process, "running: ", "stalls: 0 writes"]);
    assert_contains(&text, &["cache: ", "memory: ", "log: ", "reserve", "snapshots: 0"]);
    assert_contains(&text, &["transactions: ", " 0 conflicts/s; 0 locked keys", "deadlocks/s"]);
    assert!(text.contains("keyspace users"), "{text}");
    let users = data.run("top --once --keyspace users").ok();
    assert!(!users.contains("keyspace default") && users.contains("keyspace users"), "{users}");
    data.run("top --once --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    // The standard output of the test is no terminal.
    data.run("top").fails(2, &["--once"]);
    owner.close(None).unwrap();
}

#[test]
fn top_without_metrics_file_shows_sizes() {
    let data = TestDatabase::filled();
    let owner = data.open();
    let text = data.run("top --once").ok();
    assert_contains(&text, &["No metrics file: ", "manifest ", "[default] leveled"]);
    owner.close(None).unwrap();
    let text = data.run("top --once").ok();
    assert!(text.contains(", closed;") && !text.contains("metrics_file"), "{text}");
}

#[test]
fn stats_prints_the_metrics_file_of_the_owner() {
    let data = TestDatabase::filled();
    let (owner, mut reading) = open_with_reading(&data);
    reading.time_us = u64::MAX;
    write_metrics_file(&data, &reading);
    let json: Value = serde_json::from_str(&data.run("stats --json").ok()).unwrap();
    let operations = &json["keyspaces"]["default"]["operations"];
    assert_eq!((operations["puts"].as_u64(), operations["deletes"].as_u64()), (Some(1), Some(0)));
    assert!(json["commits"]["requests"].as_u64().unwrap() > 0);
    let text = data.run("stats --keyspace default").ok();
    assert_contains(&text, &["keyspace default (leveled)", "puts 1  deletes 0", "commits "]);
    assert!(!text.contains("keyspace users"), "{text}");
    data.run("stats --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    owner.close(None).unwrap();
    // The counters start at zero again and are omitted.
    let json: Value = serde_json::from_str(&data.run("stats --json").ok()).unwrap();
    assert!(json["keyspaces"]["default"].get("operations").is_none());
}

/// Regression test: `stats` printed the metrics of a process that had ended without a remark.
#[test]
fn stats_states_that_a_metrics_file_is_out_of_date() {
    let data = TestDatabase::filled();
    let owner = open_with_metrics_file(&data, |db| db.put("new", "value").unwrap());
    let file = data.file("METRICS");
    let metrics = fs::read(&file).unwrap();
    owner.close(None).unwrap();
    let owner = data.open();
    fs::write(&file, metrics).unwrap();
    // A reading is out of date after one second.
    let stats = loop {
        let stats = data.run("stats --json");
        if !stats.stderr.is_empty() {
            break stats;
        }
        std::thread::yield_now();
    };
    assert_contains(&stats.stderr, &["note: out of date: ", " s old; the process was killed"]);
    let json: Value = serde_json::from_slice(&stats.stdout).unwrap();
    assert_eq!(json["keyspaces"]["default"]["operations"]["puts"], 1);
    assert_contains(&data.run("stats").stderr, &["note: out of date: "]);
    owner.close(None).unwrap();
}

/// Regression test: `stats --watch` ignored the metrics file of the process that had the database open.
#[test]
fn stats_watch_prints_the_metrics_file_of_the_owner() {
    let data = TestDatabase::filled();
    let (owner, mut reading) = open_with_reading(&data);
    let mut write_file = |time_us| {
        reading.time_us = time_us;
        write_metrics_file(&data, &reading);
    };
    write_file(u64::MAX);
    let lines = data.run("stats --json --watch 0 --count 2 --keyspace default").ok();
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let json: Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["keyspaces"]["default"]["operations"]["puts"], 1);
        assert_eq!(json["keyspaces"].as_object().unwrap().len(), 1);
    }
    let text = data.run("stats --watch 0 --count 2").ok();
    assert_eq!(text.matches("puts 1  deletes 0").count(), 2, "{text}");
    data.run("stats --watch 0 --count 1 --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    // An old file and a torn file count as none.
    write_file(1);
    let old = data.run("stats --watch 0 --count 2");
    assert_eq!(old.stderr.matches("note: out of date: ").count(), 2, "{}", old.stderr);
    let text = String::from_utf8(old.stdout).unwrap();
    assert!(text.matches("manifest ").count() == 2 && !text.contains("puts"), "{text}");
    fs::write(data.path.join("METRICS"), "{\"process_id\": 7").unwrap();
    let text = data.run("stats --watch 0 --count 1").ok();
    assert!(text.contains("manifest ") && !text.contains("puts"), "{text}");
    owner.close(None).unwrap();
}

#[test]
fn locked_database_is_rejected_but_can_be_watched() {
    let data = TestDatabase::filled();
    let owner = data.open();
    for verb in ["get k", "scan", "export -", "explain k", "stats"] {
        data.run(verb).fails(1, &["LOCK is locked", "; --follower reads"]);
    }
    for verb in ["put k v", "verify", "compact"] {
        let error = data.run(verb).fails(1, &["LOCK is locked"]);
        assert!(!error.contains("--follower"), "{error}");
    }
    let text = data.run("stats --watch 0 --count 2").ok();
    assert_eq!(text.matches("manifest ").count(), 2, "{text}");
    assert_contains(&text, &["[default] leveled", "[users]"]);
    let lines = data.run("stats --json --watch 0 --count 3 --keyspace users").ok();
    for line in lines.lines() {
        let json: Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["keyspaces"].as_object().unwrap().len(), 1);
        assert!(json["wal_bytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(lines.lines().count(), 3);
    data.run("stats --watch 0 --count 1 --keyspace x").fails(1, &["there is no keyspace \"x\""]);
    owner.close(None).unwrap();
    data.run("put k v").ok();
}

#[test]
fn dump_prints_each_kind_of_file_and_names_damage() {
    let data = TestDatabase::filled();
    let kinds = ["CURRENT", "LOCK", "MANIFEST-", ".sst", ".wal", "footer", "restart \"key00000\""];
    assert_contains(&data.run("dump").ok(), &kinds);
    let table = data.file(".sst");
    let name = name_of(&table);
    let dump = |flags: &str| data.run(&format!("dump {name} {flags}")).ok();
    let by_name = dump("");
    assert_eq!(by_name, data.run(&format!("dump {}", table.display())).ok());
    assert_contains(&dump("--hex"), &["6b65793030303030"]);
    assert_eq!(dump("--limit 2").lines().count(), 3);
    let entries = dump("--all-entries");
    assert_eq!(dump("--entries"), entries, "old flag name");
    assert!(entries.lines().count() > 2_000);
    data.run("dump 999999.sst").fails(1, &["999999.sst"]);
    // The dump names the damaged block and prints the other blocks.
    data.damage_table();
    let damaged = data.run(&format!("dump {name}"));
    let printed = String::from_utf8_lossy(&damaged.stdout).into_owned();
    assert!(printed.contains("damaged: "), "{printed}");
    assert!(printed.lines().count() > by_name.lines().count() / 2, "{printed}");
    damaged.fails(1, &[name, "corrupt at byte"]);
}

/// Regression test: an unknown file ended the dump before the files after it, and the dump of a file of an operand store
/// ignored all flags.
#[test]
fn dump_continues_after_an_unknown_file_and_limits_operand_files() {
    let data = TestDatabase::filled();
    let dumped = data.run("dump nothing.txt CURRENT");
    assert_contains(&String::from_utf8_lossy(&dumped.stdout), &["current manifest"]);
    dumped.fails(2, &["nothing.txt is no file of a database"]);

    let db = data.open();
    let options = KeyspaceOptions::default()
        .merge_operator(Append::default())
        .operand_store(DeltaStoreFactory::new(DeltaOptions::default()));
    let keyspace = db.keyspace("operands", options).unwrap();
    // The flush combines an operand with no older value, so that the store gets no operand.
    keyspace.put("key", "value").unwrap();
    db.flush().unwrap();
    keyspace.merge("key", "operand").unwrap();
    db.flush().unwrap();
    db.close(None).unwrap();
    let log = data.file(".operands");
    let dump = |flags: &str| data.run(&format!("dump {} {flags}", log.display()));
    let all = dump("").ok();
    assert!(all.lines().count() > 1, "{all}");
    let first = dump("--limit 1").ok();
    assert_eq!(first, format!("{}\n…\n", all.lines().next().unwrap()));
    assert_eq!(dump("--limit 1000000").ok(), all);
    dump("--hex").fails(2, &["--hex contradicts"]);
    dump("--all-entries").fails(2, &["--all-entries contradicts"]);
    data.run("dump --hex").ok();
}

#[test]
fn verify_no_trace_of_reports_each_remaining_entry() {
    let data = TestDatabase::filled();
    let clear = data.run("verify --no-trace-of key02000").ok();
    assert_contains(&clear, &["searched", "0 operand stores: no trace"]);
    let found = data.run("verify --no-trace-of key00007").exits(4);
    assert_contains(&found, &[".sst, at ", ": value at sequence number 8, keyspace \"default\""]);
    data.run("delete key00007").ok();
    let found = data.run("verify --no-trace-of key00007").exits(4);
    assert_contains(&found, &[": value at ", ": tombstone at ", " entries"]);
    data.run("compact").ok();
    data.run("put another key").ok();
    data.run("verify --no-trace-of key00007").ok();

    let json = data.run("verify --no-trace-of 616461 --hex --json").exits(4);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["entries"][0]["keyspace"], "users");
    assert_eq!(report["entries"][0]["kind"], "value");
    data.run("verify --no-trace-of ada --keyspace default").ok();
    data.run("verify --no-trace-of ada --keyspace users").exits(4);
    data.run("verify --no-trace-of ada --keyspace x").fails(1, &["no keyspace \"x\""]);
}
