//! Tests of `lsmx db PATH … --follower`: the database is open in the process of the test.

use lsmx::KeyspaceOptions;
use lsmx::merge_operator::Append;
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};
use serde_json::Value;

use crate::common::{assert_contains, lsmx};
use crate::db::TestDatabase;

#[test]
fn follower_flag_reads_the_database_of_a_running_owner() {
    let data = TestDatabase::filled();
    let owner = data.open();
    let users = owner.open_keyspace("users", None).unwrap();
    owner.put("new", "value").unwrap();
    owner.delete("key00000").unwrap();
    users.put("alan", "1912").unwrap();
    owner.sync().unwrap();
    assert_eq!(data.run("get new --follower").ok(), "value\n");
    data.run("--follower get key00000").fails(1, &["there is no key"]);
    let scanned = data.run("scan --limit 2 --follower").ok();
    assert_eq!(scanned, "key00001\tvalue 1\nkey00002\tvalue 2\n");
    let exported = data.run("export - --follower --keyspace users").ok();
    assert_eq!(exported, "ada\t1815\nalan\t1912\n");
    assert_contains(&data.run("explain key00007 --follower").ok(), &["value of 7 bytes"]);
    let json: Value = serde_json::from_str(&data.run("stats --json --follower").ok()).unwrap();
    assert_eq!(json["published_seq"].as_u64(), Some(owner.metrics().published_seq));
    assert_contains(&data.run("stats --follower").ok(), &["keyspace default", "keyspace users"]);
    data.run("get k --keyspace x --follower").fails(1, &["there is no keyspace \"x\""]);
    // Each command sees the commits before it, and its files are removed at its end.
    users.put("grace", "1906").unwrap();
    owner.sync().unwrap();
    assert_eq!(data.run("get grace --keyspace users --follower").ok(), "1906\n");
    assert!(!data.path.join("FOLLOWERS").exists());
    owner.close(None).unwrap();
    assert_eq!(data.run("get new --follower").ok(), "value\n");
}

#[test]
fn follower_flag_refuses_keyspace_with_operand_store() {
    let data = TestDatabase::filled();
    let owner = data.open();
    let options = KeyspaceOptions::default()
        .merge_operator(Append::default())
        .operand_store(DeltaStoreFactory::new(DeltaOptions::default()));
    owner.keyspace("operands", options).unwrap();
    data.run("scan --keyspace operands --follower").fails(1, &["operands", "follower"]);
    assert_contains(&data.run("get key00001 --follower").ok(), &["value 1"]);
    owner.close(None).unwrap();
}

#[test]
fn follower_flag_is_refused_where_it_has_no_meaning() {
    let data = TestDatabase::filled();
    for verb in [
        "put k v",
        "delete k",
        "import -",
        "stats --watch 0 --count 1",
        "top --once",
        "verify",
        "repair --dry-run",
        "checkpoint copy",
        "backup repository",
        "backups repository",
        "restore repository",
        "compact",
        "dump",
        "reset-clock",
        "drop-keyspace users",
        "rename-keyspace users people",
        "clone-keyspace users people",
    ] {
        data.run(&format!("{verb} --follower")).fails(2, &["--follower works only with get"]);
    }
    data.run("get k --follower").fails(1, &["there is no key"]);
    let none = lsmx(&format!("db {}/none get k --follower", data.path.display()));
    none.fails(1, &["is not a database"]);
}
