//! A follower in another process, which is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use lsmx::env::Background;
use lsmx::{Db, Options};

/// Environment variable with the directory of the database for the child process.
const DIR: &str = "LSMX_TEST_FOLLOWED_DIR";

fn options() -> Options {
    Options::default().background(Background::Inline)
}

/// The child process. It opens a follower, holds an iterator, and confirms each line of its input with a catch-up.
#[test]
fn following_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    lsmx_testkit::seed();
    let follower = Db::open_follower(dir, options()).unwrap();
    let mut entries = follower.view().default_keyspace().iter();
    entries.next().unwrap().unwrap();
    let mut out = std::io::stdout().lock();
    for line in std::iter::once(Ok(String::new())).chain(std::io::stdin().lock().lines()) {
        line.unwrap();
        follower.catch_up().unwrap();
        let value = follower.view().get("key").unwrap().unwrap();
        writeln!(out, "\nshows {}", String::from_utf8_lossy(&value)).unwrap();
    }
}

fn table_count(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".sst")).count()
}

/// Writes a value and compacts, so that all earlier tables are obsolete.
fn replace_all_tables(owner: &Db, value: &str) {
    owner.put("key", value).unwrap();
    owner.flush().unwrap();
    owner.default_keyspace().compact_range::<&str>(..).unwrap();
}

#[test]
fn killed_follower_releases_its_files() {
    let _alone = lsmx_testkit::run_alone();
    lsmx_testkit::seed();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let owner = Db::open(&path, options()).unwrap();
    replace_all_tables(&owner, "first");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "followers::following_process", "--nocapture", "--test-threads=1"])
        .env(DIR, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next_shown =
        || lines.find_map(|line| line.unwrap().strip_prefix("shows ").map(str::to_owned)).unwrap();
    assert_eq!(next_shown(), "first");
    replace_all_tables(&owner, "second");
    assert_eq!(table_count(&path), 2, "the iterator of the follower uses the first table");
    writeln!(child.stdin.as_ref().unwrap(), "catch up").unwrap();
    assert_eq!(next_shown(), "second");
    replace_all_tables(&owner, "third");
    assert_eq!(table_count(&path), 3, "the view of the follower uses the second table");
    child.kill().unwrap();
    child.wait().unwrap();
    replace_all_tables(&owner, "fourth");
    assert_eq!(table_count(&path), 1);
    assert!(!path.join("FOLLOWERS").exists());
    owner.close(None).unwrap();
}
