//! Golden files: a database of format version 1 with an operand store. Every later version must open, read and write
//! it.
#![expect(clippy::disallowed_methods, reason = "golden files belong to the repository")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmx::env::Background;
use lsmx::merge_operator::Append;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, KeyspaceOptions, Options, verify};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

fn factory() -> DeltaStoreFactory {
    DeltaStoreFactory::new(DeltaOptions::default().bucket_bytes(1024).log_bytes_max(4096))
}

fn open(disk: &MemVfs, kept_apart: bool) -> Db {
    let keyspace = KeyspaceOptions::default().merge_operator(Append::default());
    let keyspace = if kept_apart { keyspace.operand_store(factory()) } else { keyspace };
    let options = Options::default()
        .background(Background::Inline)
        .operand_store(factory())
        .seed(11)
        .keyspace_defaults(keyspace);
    Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Executes a fixed sequence of puts, deletes, range deletes and merges.
fn write(db: &Db, model: &mut Model, round: u32) {
    for at in 0..40 {
        let number = (round * 40 + at) * 7919 % 61;
        let key = format!("key{number:02}");
        match (round + at) % 17 {
            3 => {
                db.put(&key, format!("put {round}")).unwrap();
                model.insert(key.into(), format!("put {round}").into());
            }
            9 => {
                db.delete(&key).unwrap();
                model.remove(key.as_bytes());
            }
            _ => {
                let operand = format!(" {round}.{at}");
                db.default_keyspace().merge(&key, &operand).unwrap();
                model.entry(key.into()).or_default().extend_from_slice(operand.as_bytes());
            }
        }
    }
    if round % 3 == 2 {
        db.default_keyspace().delete_range("key10".."key14").unwrap();
        model.retain(|key, _| !(&b"key10"[..]..&b"key14"[..]).contains(&&**key));
    }
}

const ROUNDS: u32 = 12;

type Files = BTreeMap<String, Vec<u8>>;

/// Writes the database of the golden files. The last round is only in the WAL, as after a crash of the process.
fn written() -> Files {
    let (disk, mut model) = (MemVfs::new(), Model::new());
    let db = open(&disk, true);
    for round in 0..ROUNDS / 2 {
        write(&db, &mut model, round);
        db.flush().unwrap();
    }
    db.close(None).unwrap();
    let db = open(&disk, true);
    for round in ROUNDS / 2..ROUNDS - 1 {
        write(&db, &mut model, round);
        db.flush().unwrap();
    }
    write(&db, &mut model, ROUNDS - 1);
    let dir = Path::new("db");
    let names = disk.list(dir).unwrap().into_iter().filter(|name| name != "LOCK");
    names.map(|name| (name.clone(), disk.read_all(&dir.join(name)).unwrap())).collect()
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store-v1")
}

fn golden() -> Files {
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") && !golden_dir().exists() {
        fs::create_dir_all(golden_dir()).unwrap();
        for (name, bytes) in written() {
            fs::write(golden_dir().join(name), bytes).unwrap();
        }
    }
    let entries = fs::read_dir(golden_dir()).unwrap().map(Result::unwrap);
    let file =
        |it: fs::DirEntry| (it.file_name().into_string().unwrap(), fs::read(it.path()).unwrap());
    entries.map(file).collect()
}

fn check(db: &Db, model: &Model) {
    for number in 0..61 {
        let key = format!("key{number:02}");
        let value = db.get(&key).unwrap();
        assert_eq!(value.as_deref(), model.get(key.as_bytes()).map(Vec::as_slice), "{key}");
    }
    let all = db.default_keyspace().iter().map(|entry| entry.unwrap());
    let all: Vec<_> = all.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(model.iter()));
}

#[test]
fn golden_database_opens_and_continues() {
    let files = golden();
    let kinds = |kind: &str| files.keys().filter(|name| name.ends_with(kind)).count();
    assert!(kinds(".bucket") > 2 && kinds(".operands") == 1 && kinds(".wal") > 0);
    for kept_apart in [true, false] {
        let disk = MemVfs::new();
        disk.create_dir(Path::new("db")).unwrap();
        for (name, bytes) in &files {
            disk.write_all(&Path::new("db").join(name), bytes).unwrap();
        }
        verify(
            "db",
            &Options::default().vfs(Arc::new(disk.clone())).operand_store(Arc::new(factory())),
        )
        .unwrap();
        let mut model = Model::new();
        // Repeats the writes of the golden database to build the model.
        let scratch = open(&MemVfs::new(), false);
        (0..ROUNDS).for_each(|round| write(&scratch, &mut model, round));
        let db = open(&disk, kept_apart);
        check(&db, &model);
        for round in ROUNDS..ROUNDS + 4 {
            write(&db, &mut model, round);
            db.flush().unwrap();
        }
        check(&db, &model);
        db.close(None).unwrap();
        check(&open(&disk, kept_apart), &model);
        verify("db", &Options::default().vfs(Arc::new(disk)).operand_store(Arc::new(factory())))
            .unwrap();
    }
}

#[test]
fn dump_of_golden_files_prints_all_frame_kinds() {
    let disk = MemVfs::new();
    let mut text = Vec::new();
    for (name, bytes) in golden() {
        if name.ends_with(".bucket") || name.ends_with(".operands") {
            let path = PathBuf::from(name);
            disk.write_all(&path, &bytes).unwrap();
            lsmx_delta::dump(&disk, &path, &mut text).unwrap();
        }
    }
    let text = String::from_utf8(text).unwrap();
    let kinds = [
        "sorted page",
        "index",
        "filter",
        "unsorted page",
        "keyspace",
        "snapshot",
        "bucket",
        "end of snapshot",
        "records",
        "range delete markers",
        "end of delivery",
        "collection",
    ];
    for kind in kinds {
        assert!(text.contains(kind), "{kind} in {text}");
    }
}
