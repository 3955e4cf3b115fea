//! Renames and clones of keyspaces by tasks.

use lsmx::{Error, KeyspaceOptions, Options};

use super::open;
use super::support::{poll_once, run, runtimes, until};

#[test]
fn task_renames_and_clones_a_keyspace() {
    for runtime in runtimes() {
        run(&runtime, async {
            let db = open(Options::default()).await;
            let users = db.keyspace("users", KeyspaceOptions::default()).await.unwrap();
            users.put("ada", "1815").await.unwrap();
            db.rename_keyspace("users", "people").await.unwrap();
            assert_eq!(users.as_blocking().name(), "people");
            let clone = db.clone_keyspace("people", "users", KeyspaceOptions::default());
            let clone = clone.await.unwrap();
            clone.put("ada", "1816").await.unwrap();
            assert_eq!(users.get("ada").await.unwrap().as_deref(), Some(&b"1815"[..]));
            let refused = db.rename_keyspace("people", "users").await;
            assert!(matches!(refused, Err(Error::KeyspaceExists { .. })), "{refused:?}");
            // A call that has begun completes, even if its future is dropped.
            let options = KeyspaceOptions::default();
            let mut dropped = Box::pin(db.clone_keyspace("users", "second", options));
            // A fast call is complete after the first poll.
            drop(poll_once(dropped.as_mut()));
            drop(dropped);
            until("the clone exists", || db.as_blocking().keyspace_exists("second"));
        });
    }
}
