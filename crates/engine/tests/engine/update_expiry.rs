//! Updates that set or keep the expiry time of a value.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lsmx::merge_operator::Append;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Error, Keyspace, Update, ValueSeparation};
use lsmx_testkit::simple_store::SimpleStore;

use crate::harness::database::{assert_clean, inline, open, small, without_jobs};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the time `after` from now.
fn time(db: &Db, after: Duration) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(db.env().now_us()) + after
}

fn advance(db: &Db, by: Duration) {
    db.env().advance_us(u64::try_from(by.as_micros()).unwrap());
}

fn get(keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = keyspace.get(key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// Appends `+` to the value and keeps its expiry time.
fn append_and_keep(old: Option<&[u8]>) -> Update {
    Update::PutKeepExpiry([old.unwrap_or_default(), b"+"].concat())
}

#[test]
fn update_sets_or_keeps_expiry_time() {
    for is_flushed in [false, true] {
        let disk = MemVfs::new();
        let db = open(&disk, inline().keyspace_defaults(without_jobs()));
        let keyspace = db.default_keyspace();
        let flush = || {
            if is_flushed {
                db.flush().unwrap()
            }
        };
        for key in ["keep", "put", "ttl", "until", "kept", "delete"] {
            keyspace.put_with_ttl(key, "old", MINUTE * 10).unwrap();
        }
        keyspace.put("without", "old").unwrap();
        flush();
        let value = || b"new".to_vec();
        let until = time(&db, MINUTE * 30);
        let before = keyspace.fetch_update("ttl", |_| Update::PutWithTtl(value(), MINUTE * 20));
        assert_eq!(before.unwrap().unwrap(), b"old");
        let after = keyspace.update_fetch("until", |_| Update::PutUntil(value(), until));
        assert_eq!(after.unwrap().unwrap(), b"new");
        let after = keyspace.update_fetch("kept", append_and_keep);
        assert_eq!(after.unwrap().unwrap(), b"old+");
        keyspace.fetch_update("keep", |_| Update::Keep).unwrap();
        keyspace.fetch_update("put", |_| Update::Put(value())).unwrap();
        keyspace.fetch_update("delete", |_| Update::Delete).unwrap();
        keyspace.fetch_update("without", append_and_keep).unwrap();
        keyspace.fetch_update("missing", append_and_keep).unwrap();
        flush();

        let states = [
            (MINUTE * 9, ["old", "new", "new", "new", "old+", "old+", "+"]),
            (MINUTE * 2, ["", "new", "new", "new", "", "old+", "+"]),
            (MINUTE * 10, ["", "new", "", "new", "", "old+", "+"]),
            (MINUTE * 10, ["", "new", "", "", "", "old+", "+"]),
            (Duration::from_secs(1 << 32), ["", "new", "", "", "", "old+", "+"]),
        ];
        for (passed, expected) in states {
            advance(&db, passed);
            let keys = ["keep", "put", "ttl", "until", "kept", "without", "missing"];
            let values = keys.map(|key| get(&keyspace, key).unwrap_or_default());
            assert_eq!(values, expected, "flushed: {is_flushed}");
            assert_eq!(get(&keyspace, "delete"), None);
        }
        // The value is written even if its expiry time has passed.
        let past = Update::PutUntil(value(), SystemTime::UNIX_EPOCH - MINUTE);
        let after = keyspace.update_fetch("put", |_| past.clone()).unwrap();
        assert_eq!((after.as_deref(), get(&keyspace, "put")), (Some(&b"new"[..]), None));
        db.close(None).unwrap();
        assert_clean(&disk);
    }
}

#[test]
fn put_keep_expiry_ignores_default_ttl_unless_key_has_no_value() {
    let db = open(&MemVfs::new(), inline().keyspace_defaults(without_jobs()));
    let keyspace = db.default_keyspace();
    keyspace.put("without", "old").unwrap();
    keyspace.set_options(|options| options.default_ttl(MINUTE * 10)).unwrap();
    keyspace.put_with_ttl("long", "old", MINUTE * 60).unwrap();
    keyspace.put_with_ttl("expired", "old", MINUTE).unwrap();
    advance(&db, MINUTE * 2);
    for key in ["without", "long", "expired", "missing"] {
        keyspace.fetch_update(key, append_and_keep).unwrap();
    }
    let values = || {
        ["without", "long", "expired", "missing"].map(|key| get(&keyspace, key).unwrap_or_default())
    };
    advance(&db, MINUTE * 9);
    assert_eq!(values(), ["old+", "old+", "+", "+"]);
    advance(&db, MINUTE * 2);
    assert_eq!(values(), ["old+", "old+", "", ""]);
    advance(&db, MINUTE * 60);
    assert_eq!(values(), ["old+", "", "", ""]);
}

#[test]
fn put_keep_expiry_of_combined_value_keeps_expiry_of_base() {
    for is_flushed in [false, true] {
        let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
        let options = without_jobs().merge_operator(Append::default());
        let options = options.value_separation(separation);
        let db = open(&MemVfs::new(), inline().keyspace_defaults(options));
        let keyspace = db.default_keyspace();
        let base = "x".repeat(300);
        keyspace.put_with_ttl("k", &base, MINUTE * 10).unwrap();
        keyspace.put_with_ttl("expired", &base, MINUTE).unwrap();
        if is_flushed {
            db.flush().unwrap();
        }
        advance(&db, MINUTE * 2);
        keyspace.merge("k", "1").unwrap();
        keyspace.merge("expired", "1").unwrap();
        keyspace.fetch_update("k", append_and_keep).unwrap();
        keyspace.fetch_update("expired", append_and_keep).unwrap();
        assert_eq!(get(&keyspace, "k").unwrap(), format!("{base}1+"));
        advance(&db, MINUTE * 10);
        assert_eq!(get(&keyspace, "k"), None);
        // The operand had no base, so its value did not expire.
        assert_eq!(get(&keyspace, "expired").as_deref(), Some("1+"));
    }
}

#[test]
fn put_keep_expiry_retried_keeps_newer_expiry_time() {
    let db = open(&MemVfs::new(), inline().keyspace_defaults(without_jobs()));
    let keyspace = db.default_keyspace();
    keyspace.put_with_ttl("k", "old", MINUTE).unwrap();
    let mut calls = 0;
    let update = |old: Option<&[u8]>| {
        calls += 1;
        if calls == 1 {
            keyspace.put_with_ttl("k", "other", MINUTE * 10).unwrap();
        }
        append_and_keep(old)
    };
    let after = keyspace.update_fetch("k", update).unwrap();
    assert_eq!((after.as_deref(), calls), (Some(&b"other+"[..]), 2));
    advance(&db, MINUTE * 9);
    assert_eq!(get(&keyspace, "k").as_deref(), Some("other+"));
    advance(&db, MINUTE * 2);
    assert_eq!(get(&keyspace, "k"), None);
}

#[test]
fn update_with_expiry_in_keyspace_with_operand_store_is_refused() {
    let db = open(&MemVfs::new(), inline());
    let options = small().merge_operator(Append::default()).operand_store(SimpleStore::default());
    let counters = db.keyspace("counters", options).unwrap();
    counters.put("k", "old").unwrap();
    let expires = time(&db, MINUTE);
    for update in
        [Update::PutWithTtl(b"new".to_vec(), MINUTE), Update::PutUntil(b"new".to_vec(), expires)]
    {
        let refused = counters.fetch_update("k", |_| update.clone()).unwrap_err();
        assert!(matches!(refused, Error::ExpiryRefused { .. }), "{refused}");
        assert_eq!(get(&counters, "k").as_deref(), Some("old"));
    }
    counters.fetch_update("k", append_and_keep).unwrap();
    assert_eq!(get(&counters, "k").as_deref(), Some("old+"));
}

#[test]
fn asynchronous_update_sets_or_keeps_expiry_time() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let options = inline().keyspace_defaults(without_jobs()).vfs(Arc::new(MemVfs::new()));
        let db = lsmx::tokio::Db::open("db", options).await.unwrap();
        let keyspace = db.default_keyspace();
        keyspace.put_with_ttl("kept", "old", MINUTE * 10).await.unwrap();
        keyspace.put_with_ttl("ttl", "old", MINUTE * 10).await.unwrap();
        db.run_blocking(Db::flush).await.unwrap();
        let after = keyspace.update_fetch("kept", append_and_keep).await.unwrap();
        assert_eq!(after.unwrap(), b"old+");
        let update = |_: Option<&[u8]>| Update::PutWithTtl(b"new".to_vec(), MINUTE * 20);
        keyspace.fetch_update("ttl", update).await.unwrap();
        let until = time(db.as_blocking(), MINUTE * 30);
        let update = |_: Option<&[u8]>| Update::PutUntil(b"new".to_vec(), until);
        keyspace.fetch_update("until", update).await.unwrap();
        for expected in [["old+", "new", "new"], ["", "new", "new"], ["", "", "new"], [""; 3]] {
            let values = ["kept", "ttl", "until"]
                .map(|key| get(keyspace.as_blocking(), key).unwrap_or_default());
            assert_eq!(values, expected);
            advance(db.as_blocking(), MINUTE * 11);
        }
        db.close(None).await.unwrap();
    });
}
