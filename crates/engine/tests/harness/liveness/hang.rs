//! Random workloads in which a device call hangs. Keyspaces that do not use the device must continue, `metrics` must
//! return, and `close` must return at its deadline.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Error, Keyspace, KeyspaceOptions, Options};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::SimpleStore;

use super::super::coverage::file_kind;
use super::super::gate::{Gate, nth};
use super::super::small_database::{open_with, policy};
use super::user_code::{FaultyOperator, Trigger};

/// Maximum duration of a call that must return, even on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Value of `stage` for which the device call hangs during `close`. If no constant has the value of `stage`, one of
/// the first device calls of the writer hangs.
const AT_CLOSE: u64 = 0;
const AT_CREATION: u64 = 1;

/// Starts a thread. The thread may hang, so it is not joined.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().spawn(body).unwrap()
}

/// Runs `call` on a new thread. Panics if `call` does not return within [`WATCHDOG`].
fn must_return<T: Send + 'static>(name: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    spawn(move || done.send(call()));
    result
        .recv_timeout(WATCHDOG)
        .unwrap_or_else(|_| panic!("{name} does not return while the device hangs"))
}

fn keyspace_options(has_store: bool, partial_merges: bool) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .policy(policy("leveled(T=3)"))
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .merge_operator(FaultyOperator { trigger: Trigger::default(), partial_merges });
    if has_store {
        options.operand_store(SimpleStore { collect_after: 2, to_tree_one_in: 1, lazy: true })
    } else {
        options
    }
}

fn open(vfs: &FaultVfs, partial_merges: bool) -> Db {
    let wal = WalOptions { segment_bytes: 8 << 10, ..WalOptions::default() };
    let options = Options::default().background(Background::Threads { workers: 1 }).wal(wal);
    open_with(vfs, options.keyspace_defaults(keyspace_options(false, partial_merges))).unwrap()
}

pub(crate) fn play(call: VfsCall, file: &'static str, seed: u64) -> bool {
    let mut rng = TestRng::new(seed);
    let (disk, gate) = (MemVfs::new(), Gate::default());
    // The database keeps a reserve only on a disk of limited size.
    disk.set_capacity(Some(1 << 30));
    let vfs = gate.over(Arc::new(disk), nth(u64::MAX), "");
    let partial_merges = rng.is_one_in(2);
    let db = open(&vfs, partial_merges);
    let busy = db.keyspace("operands", keyspace_options(true, partial_merges)).unwrap();
    let other = db.keyspace("other", keyspace_options(false, partial_merges)).unwrap();
    other.put("before", "x").unwrap();
    gate.shut();
    let opens = gate.open_on_drop();
    let rule = FaultRule::new(Fault::Delay)
        .for_calls(&[call])
        .path_where(move |path| file_kind(path) == file);
    let stage = rng.below(4);
    match stage {
        AT_CLOSE => {}
        AT_CREATION => {
            vfs.add_rule(rule.clone());
            let creating = db.clone();
            spawn(move || drop(creating.keyspace("new", keyspace_options(false, partial_merges))));
        }
        _ => vfs.add_rule(rule.clone().nth(rng.below(3))),
    }
    let (writer_db, writer_keyspace) = (db.clone(), busy.clone());
    let writer = spawn(move || write(&writer_db, &writer_keyspace));
    let join = move || drop(writer.join());
    if stage == AT_CLOSE {
        must_return("the writer", join);
        vfs.add_rule(rule);
        close_within_deadline(&db);
    } else {
        if gate.is_blocked_within(Duration::from_millis(400)) {
            check_blocked(&db, &other, file);
        }
        gate.open();
        must_return("the writer, after the device call has returned,", join);
    }
    let was_blocked = gate.blocked().is_some();
    drop(opens);
    vfs.clear_rules();
    drop((busy, other));
    must_return("close, after the device call has returned,", move || db.close(None)).unwrap();
    let db = open(&vfs, partial_merges);
    let found = db.open_keyspace("other", None).unwrap().get("before").unwrap();
    assert_eq!(found.as_deref(), Some(&b"x"[..]), "a put is lost");
    db.default_keyspace().with_write_options(Durability::Sync).put("after", "z").unwrap();
    db.close(None).unwrap();
    was_blocked
}

/// Writes 600 entries, or fewer if the database is closed meanwhile.
fn write(db: &Db, keyspace: &Keyspace) {
    for number in 0..600u64 {
        let key = format!("k-{:03}", number % 50);
        let done = match number % 3 {
            0 => keyspace.merge(&key, [1; 60]),
            _ => keyspace.put(&key, [2; 60]),
        };
        if matches!(done, Err(Error::Closed | Error::Deadline { .. }))
            || number % 40 == 7 && db.sync().is_err()
            || number % 100 == 99 && matches!(db.flush(), Err(Error::Closed))
        {
            break;
        }
    }
}

/// Makes calls that must return while a call on a file of kind `file` hangs.
fn check_blocked(db: &Db, other: &Keyspace, file: &str) {
    let own = db.clone();
    must_return("metrics", move || drop(own.metrics()));
    // Keyspaces share the log, the manifest and the flush thread. Each keyspace has its own operand store.
    if file == "operands" {
        // These writes exceed the memtable limit, so the keyspace must flush.
        for number in 0..200 {
            let own = other.clone();
            let put = move || own.put(format!("o-{number}"), [3; 200]);
            must_return("a put to another keyspace", put).unwrap();
        }
        let own = other.clone();
        must_return("a get of another keyspace", move || own.get("before")).unwrap();
    }
    close_within_deadline(db);
}

fn close_within_deadline(db: &Db) {
    let own = db.clone();
    let close = move || own.close(Some(Duration::from_millis(50)));
    let closed = must_return("close with a deadline", close);
    assert!(matches!(closed, Ok(()) | Err(Error::Deadline { .. })), "{closed:?}");
}
