//! Guarantee 16: if a process has few file descriptors, the open of a database fails, or all calls on the database
//! succeed.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use crate::harness::descriptors::{checks_need_few_descriptors, use_real_files};

/// Environment variable that passes the database directory to a child process.
const DIR: &str = "LSMX_TEST_FEW_DESCRIPTORS_DIR";

/// The test starts itself as child processes with different limits of file descriptors (`ulimit -n`).
#[test]
fn process_with_few_descriptors_is_refused_or_has_enough() {
    if let Ok(dir) = std::env::var(DIR) {
        match use_real_files(Path::new(&dir)) {
            Err(lsmx::Error::TooFewDescriptors { .. }) => println!("the open is refused"),
            done => done.unwrap(),
        }
        return;
    }
    let test = "guarantees::descriptors::process_with_few_descriptors_is_refused_or_has_enough";
    let limited = "ulimit -n \"$0\"; exec \"$1\" --exact \"$2\" --nocapture --test-threads 1";
    let refused = ["16", "20", "24", "28", "40"].map(|limit| {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", limited, limit]).arg(std::env::current_exe().unwrap()).arg(test);
        let output = child.env(DIR, dir.path().join("db")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{limit} descriptors: {text}{errors}");
        assert!(text.contains("1 passed"), "{limit} descriptors: {text}");
        text.contains("the open is refused")
    });
    assert_eq!((refused[0], refused[4]), (true, false), "{refused:?}");
}

#[test]
fn checks_of_many_files_need_few_descriptors() {
    checks_need_few_descriptors();
}
