//! Guarantee 16, for a process that may have few files open.

use crate::harness::descriptors;
use lsmx_testkit::seed;

#[test]
fn few_descriptors_are_refused_at_open_or_enough() {
    descriptors::few_descriptors_are_refused_or_enough(seed()).unwrap();
}

/// Names the directory in which a process with few descriptors uses a database.
#[cfg(unix)]
const DIR: &str = "LSMX_TEST_FEW_DESCRIPTORS_DIR";

/// As above, with the limit of a process: this test runs itself in processes with limits.
#[cfg(unix)]
#[test]
fn process_with_few_descriptors_is_refused_or_has_enough() {
    if let Ok(dir) = std::env::var(DIR) {
        match descriptors::use_real_files(std::path::Path::new(&dir)) {
            Err(lsmx::Error::TooFewDescriptors { .. }) => println!("the open is refused"),
            done => done.unwrap(),
        }
        return;
    }
    let test = "guarantees::descriptors::process_with_few_descriptors_is_refused_or_has_enough";
    let limited = "ulimit -n \"$0\"; exec \"$1\" --exact \"$2\" --nocapture --test-threads 1";
    let mut outcomes = Vec::new();
    for limit in ["16", "20", "24", "28", "40"] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sh");
        child.args(["-c", limited, limit]).arg(std::env::current_exe().unwrap()).arg(test);
        let output = child.env(DIR, dir.path().join("db")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{limit} descriptors: {text}{errors}");
        assert!(text.contains("1 passed"), "{limit} descriptors: {text}");
        outcomes.push(text.contains("the open is refused"));
    }
    assert_eq!((outcomes[0], outcomes[4]), (true, false), "{outcomes:?}");
}
