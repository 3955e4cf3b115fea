//! `lsmx db`, run as a user runs it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and works on files of its own"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{db, db_with_input, lsmx};
use lsmx_bench::workload::record::{Format, encode};

#[test]
fn what_is_put_is_got_until_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    assert_eq!(db(&path, "put k v1").ok(), "");
    assert_eq!(db(&path, "put k v2").ok(), "");
    assert_eq!(db(&path, "get k").ok(), "v2\n");
    assert_eq!(db(&path, "--hex get 6b").ok(), "7632\n");
    assert_eq!(db(&path, "put --hex 00ff 0a").ok(), "");
    assert_eq!(db(&path, "get 00ff --hex").ok(), "0a\n");
    assert_eq!(db(&path, "delete k").ok(), "");
    assert_eq!(db(&path, "delete k").ok(), "");
    db(&path, "get k").fails(1, &["there is no key \"k\""]);
    db(&path, "get --hex 6").fails(2, &["invalid key with --hex", "\"6\" is not hexadecimal"]);
}

#[test]
fn scan_goes_both_ways_between_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let records: String = ["a", "b1", "b2", "c"].map(|key| format!("{key}\t{key}v\n")).concat();
    db_with_input(&path, "import -", records.as_bytes()).ok();
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
        let said = db(&path, words).ok();
        let expected: String =
            keys.split_whitespace().map(|key| format!("{key}\t{key}v\n")).collect();
        assert_eq!(said, expected, "{words}");
    }
    assert_eq!(db(&path, "scan --hex --limit 1").ok(), "61\t6176\n");
}

#[test]
fn import_and_export_give_back_every_byte() {
    let directory = tempfile::tempdir().unwrap();
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
        let source = directory.path().join(format!("source.{name}"));
        fs::write(&source, &text).unwrap();
        let path = directory.path().join(name);
        let said = db(&path, &format!("import {}", source.display())).ok();
        assert_eq!(said, "1536 records imported\n");
        let target = directory.path().join(format!("target.{name}"));
        let said = db(&path, &format!("export {}", target.display())).ok();
        assert_eq!(said, "1536 records exported\n");
        assert!(fs::read(&target).unwrap() == text, "{name}: the file differs");
        let said = db(&path, &format!("export - --format {name}"));
        assert!(said.code == 0 && said.stdout == text, "{name}: standard output differs");
    }
}

#[test]
fn the_last_of_two_records_of_a_key_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let mut input = String::new();
    for round in 0..3 {
        for key in 0..900 {
            input.push_str(&format!("{key}\t{round}\n"));
        }
    }
    db_with_input(&path, "import -", input.as_bytes()).ok();
    let said = db(&path, "scan").ok();
    assert_eq!(said.lines().count(), 900);
    assert!(said.lines().all(|line| line.ends_with("\t2")));
}

#[test]
fn a_malformed_line_is_named_and_what_stands_before_it_stays() {
    let directory = tempfile::tempdir().unwrap();
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
        let path = directory.path().join(what);
        let file = directory.path().join("records");
        fs::write(&file, format!("{good}{line}\n{good}")).unwrap();
        let said = lsmx(&[
            "db".as_ref(),
            path.as_os_str(),
            "import".as_ref(),
            file.as_os_str(),
            "--format".as_ref(),
            format.as_ref(),
        ]);
        said.fails(1, &["records, line 2501 is malformed", what]);
        let said = lsmx(&["db".as_ref(), path.as_os_str(), "scan".as_ref()]).ok();
        assert_eq!(said.lines().count(), 2500);
    }
}

#[test]
fn keyspaces_are_apart_and_made_by_put_and_import_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    db(&path, "put k default").ok();
    for verb in ["get k", "delete k", "scan", "export -", "stats"] {
        db(&path, &format!("--keyspace users {verb}")).fails(1, &["no keyspace \"users\""]);
    }
    db(&path, "--keyspace users put k user").ok();
    db_with_input(&path, "import - --keyspace other", b"k\tother\n").ok();
    assert_eq!(db(&path, "get k").ok(), "default\n");
    assert_eq!(db(&path, "--keyspace users get k").ok(), "user\n");
    assert_eq!(db(&path, "get k --keyspace other").ok(), "other\n");
}

#[test]
fn what_is_no_database_is_told_apart_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "dear").unwrap();
    for verb in ["get k", "delete k", "scan", "export -", "stats", "verify"] {
        for path in [&missing, &empty, &foreign] {
            let name = path.file_name().unwrap().to_str().unwrap();
            db(path, verb).fails(1, &["not a database", name]);
        }
    }
    assert!(!missing.exists());
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    let said = db(&file, "get k").fails(1, &["file"]);
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn an_unreadable_source_or_target_is_named_and_makes_no_database() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    db(&path, "import no/such/file.tsv").fails(1, &["cannot open no/such/file.tsv"]);
    assert!(!path.exists());
    db(&path, "put k v").ok();
    db(&path, "export no/such/file.tsv").fails(1, &["cannot create no/such/file.tsv"]);
}

#[test]
fn a_locked_database_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let open = lsmx::Db::open(&path, lsmx::Options::default()).unwrap();
    for verb in ["put k v", "get k", "scan", "verify"] {
        db(&path, verb).fails(1, &["locked"]);
    }
    open.close(None).unwrap();
    drop(open);
    db(&path, "put k v").ok();
}

/// The database's table files.
fn tables(path: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "sst") {
            files.push(file);
        }
    }
    files
}

fn with_tables(path: &Path) {
    let options = lsmx::Options::default();
    let open = lsmx::Db::open(path, options).unwrap();
    for i in 0..1000u32 {
        open.put(i.to_be_bytes(), [7; 100]).unwrap();
    }
    open.flush().unwrap();
    open.close(None).unwrap();
    assert!(!tables(path).is_empty());
}

#[test]
fn verify_is_content_with_a_sound_database_and_names_a_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    with_tables(&path);
    db(&path, "verify").ok();
    let table = tables(&path).remove(0);
    let mut bytes = fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&table, bytes).unwrap();
    let name = table.file_name().unwrap().to_str().unwrap();
    db(&path, "verify").fails(1, &[name]);
}

#[test]
fn a_database_of_a_newer_format_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    db(&path, "put k v").ok();
    let current = fs::read_to_string(path.join("CURRENT")).unwrap();
    let newer = current.replacen("lsmx 1 ", "lsmx 99 ", 1);
    assert_ne!(current, newer);
    fs::write(path.join("CURRENT"), newer).unwrap();
    for verb in ["put k v", "get k", "verify"] {
        let said = db(&path, verb).fails(1, &["CURRENT", "format version 99", "up to 1"]);
        assert!(!said.contains("not a database"), "{said}");
    }
}

#[test]
fn a_missing_table_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    with_tables(&path);
    let table = tables(&path).remove(0);
    fs::remove_file(&table).unwrap();
    let name = table.file_name().unwrap().to_str().unwrap();
    db(&path, "get k").fails(1, &[name, "missing"]);
}

#[test]
fn stats_print_levels_for_people_and_counters_for_programs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    with_tables(&path);
    assert!(db(&path, "stats").ok().contains("level"));
    let json: serde_json::Value = serde_json::from_str(&db(&path, "stats --json").ok()).unwrap();
    assert_eq!(json["keyspaces"]["default"]["levels"][0]["entries"], 1000);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let records: String = (0..50_000).map(|i| format!("key{i}\tvalue\n")).collect();
    db_with_input(&path, "import -", records.as_bytes()).ok();
    for verb in [&["scan"][..], &["export", "-"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lsmx"))
            .arg("db")
            .arg(&path)
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
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    db(&path, "repair").fails(1, &["is not a database", "no such directory"]);
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    db(&file, "repair").fails(1, &["is not a database", "it is not a directory"]);
    let records: String = (0..5_000).map(|key| format!("key{key:04}\tvalue{key}\n")).collect();
    db_with_input(&path, "import -", records.as_bytes()).ok();
    db(&path, "compact").ok();
    assert!(db(&path, "repair").ok().ends_with("all is sound, nothing was done\n"));

    let table = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let table =
        table.filter(|path| path.extension().is_some_and(|end| end == "sst")).max().unwrap();
    let mut bytes = fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&table, &bytes).unwrap();
    db(&path, "verify").fails(1, &[table.to_str().unwrap(), "checksum"]);
    let would = db(&path, "repair --dry-run").loses_data();
    assert!(would.contains("readable entries were written to a new table"), "{would}");
    assert!(would.contains("lost: entries of ") && would.contains("this was a dry run"), "{would}");
    db(&path, "verify").fails(1, &[table.to_str().unwrap()]);

    let did: serde_json::Value =
        serde_json::from_str(&db(&path, "repair --json").loses_data()).unwrap();
    assert_eq!(did["tables_rewritten"], 1);
    let key = |end: &str| {
        let bytes = did["lost"][0][end].as_array().unwrap().iter();
        String::from_utf8(bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect())
            .unwrap()
    };
    let (from, to) = (key("from"), key("to"));
    assert!(*"key0000" < *from && from < to && *to < *"key4999", "{from} {to}");
    assert!(
        path.join(did["set_aside"].as_str().unwrap()).join(table.file_name().unwrap()).exists()
    );
    assert!(db(&path, "verify").ok().contains("all sound"));
    let left = db(&path, "scan").ok();
    // All but what lies between, with the block's bounds still there.
    let expected: String = records
        .lines()
        .filter(|line| line[..7] <= *from || line[..7] >= *to)
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(left, expected);

    fs::remove_file(path.join("CURRENT")).unwrap();
    db(&path, "get key0000").fails(1, &["is not a database", "CURRENT is missing"]);
    assert!(db(&path, "repair").ok().contains("is intact and replaces it"));
    assert_eq!(db(&path, "scan").ok(), expected);
    db(&path, "repair --keyspace x").fails(2, &["--keyspace contradicts repair"]);
}

/// The report did not say how far a keyspace is complete.
#[test]
fn repair_of_a_damaged_log_reports_the_end_of_each_keyspace() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let records: String = (0..9).map(|key| format!("key{key}\tvalue{key}\n")).collect();
    db_with_input(&path, "import -", records.as_bytes()).ok();
    let log = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|end| end == "wal")).max().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let fourth = bytes.windows(4).position(|window| window == b"key3").unwrap();
    bytes[fourth] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let would: serde_json::Value =
        serde_json::from_str(&db(&path, "repair --dry-run --json").loses_data()).unwrap();
    let through = would["complete_through"]["default"].as_u64().unwrap();
    let prefix = db(&path, "repair --dry-run --common-prefix").loses_data();
    assert!(prefix.contains("keyspace default is complete"), "{prefix}");
    let did = db(&path, "repair").loses_data();
    let line = format!("keyspace default is complete through sequence number {through}\n");
    assert!(did.contains(&line), "{did}");
    let left = db(&path, "scan").ok();
    assert_eq!(u64::try_from(left.lines().count()).unwrap(), through);
}

/// A repair leaves the directory of another program as it is.
#[test]
fn repair_of_a_foreign_directory_is_refused_unless_forced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("foreign");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("000001.sst"), "a text\n").unwrap();
    for verb in ["repair", "repair --dry-run"] {
        db(&path, verb).fails(1, &["is not a database", "magic number"]);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "{verb}");
    }
    db(&path, "repair --force").loses_data();
}

/// A command that cannot open its directory used to leave a `LOCK` there.
#[test]
fn failed_open_of_a_foreign_directory_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("foreign");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("CURRENT"), "MANIFEST-000004\n").unwrap();
    for verb in ["put k v", "get k", "delete k", "repair", "repair --dry-run"] {
        db(&path, verb).fails(1, &[path.to_str().unwrap()]);
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["CURRENT"], "{verb}");
    }
}

/// The error used to be "cannot lock dangling/LOCK".
#[cfg(unix)]
#[test]
fn open_of_a_dangling_symlink_names_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("dangling");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    for verb in ["put k v", "get k", "dump", "verify", "repair", "repair --dry-run"] {
        db(&link, verb).fails(1, &["dangling", "a symbolic link to a directory that does not"]);
    }
    db(&link.join("below"), "put k v").fails(1, &["dangling is not", "a symbolic link to a"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
