//! A device call that does not return: other keyspaces go on where nothing of theirs needs the device, observation
//! returns, and `close` returns at its deadline.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::env::Background;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, KeyspaceOptions, Options};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::SimpleStore;

use super::super::Outcome;
use super::super::coverage::file_kind;
use super::user_code::{Operator, Trigger, lock};

/// How long a call that must return may take on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(20);

/// Stages of a history at which the call hangs; at the others the first calls of the writer do.
const AT_CLOSE: u64 = 0;
const AT_CREATION: u64 = 1;

/// Holds a call until it is released.
#[derive(Default)]
struct Gate {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Gate {
    fn hold(&self) {
        let mut state = lock(&self.state);
        state.0 += 1;
        self.changed.notify_all();
        while !state.1 {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    fn release(&self) {
        lock(&self.state).1 = true;
        self.changed.notify_all();
    }

    /// Waits until a call is held, or the time is over.
    fn is_held(&self, time: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, time, |state| state.0 == 0);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.0 > 0
    }
}

/// Starts a thread that may hang.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().spawn(body).expect("a thread")
}

/// Makes a call on a thread of its own, which must return while the device hangs.
fn must_return<T: Send + 'static>(
    what: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    let (done, waiting) = channel();
    spawn(move || done.send(call()));
    waiting.recv_timeout(WATCHDOG).map_err(|_| format!("{what} waits for the device"))
}

fn tuning(operands: bool, partially: bool) -> KeyspaceOptions {
    let options = KeyspaceOptions::default()
        .policy("leveled(T=3)".parse::<lsmx::PolicySpec>().expect("a policy"))
        .memtable_bytes(4 << 10)
        .table_bytes(4 << 10)
        .merge_operator(Operator { trigger: Trigger::default(), partially });
    if operands {
        options.operand_store(SimpleStore { collect_after: 2, to_tree_one_in: 1, lazy: true })
    } else {
        options
    }
}

fn options(partially: bool) -> Options {
    let wal = WalOptions { segment_bytes: 8 << 10, ..WalOptions::default() };
    Options::default()
        .background(Background::Threads { workers: 1 })
        .wal(wal)
        .keyspace_defaults(tuning(false, partially))
}

/// Whether writes to other keyspaces continue while a call on such a file hangs. All keyspaces share the log, the
/// manifest and the thread that flushes.
fn others_go_on(file: &str) -> bool {
    file == "operands"
}

/// Plays one history; returns whether a call was held.
pub(crate) fn play(call: VfsCall, file: &'static str, seed: u64) -> Outcome<bool> {
    let failed = |what: &'static str| move |error: Error| format!("{what} fails: {error:?}");
    let mut rng = TestRng::new(seed);
    let (disk, gate) = (MemVfs::new(), Arc::new(Gate::default()));
    // Without a bound it can keep no room in reserve.
    disk.set_capacity(Some(1 << 30));
    let vfs = FaultVfs::new(Arc::new(disk.clone()), seed);
    let partially = rng.is_one_in(2);
    let open = |vfs: &FaultVfs| {
        Db::open("db", options(partially).vfs(Arc::new(vfs.clone()) as Arc<dyn Vfs>))
    };
    let db = open(&vfs).map_err(failed("opening"))?;
    let busy = db.keyspace("operands", tuning(true, partially)).map_err(failed("a keyspace"))?;
    let other = db.keyspace("other", tuning(false, partially)).map_err(failed("a keyspace"))?;
    other.put("before", "x").map_err(failed("a put"))?;
    let held = Arc::clone(&gate);
    vfs.set_delay_hook(Some(Arc::new(move |_, _: &Path| held.hold())));
    let rule = FaultRule::new(Fault::Delay)
        .for_calls(&[call])
        .path_where(move |path| file_kind(path) == file);
    let stage = rng.below(4);
    match stage {
        AT_CLOSE => {}
        AT_CREATION => {
            vfs.add_rule(rule.clone());
            let creating = db.clone();
            spawn(move || drop(creating.keyspace("new", tuning(false, partially))));
        }
        _ => vfs.add_rule(rule.clone().nth(rng.below(3))),
    }
    // Writes until the call hangs, or for long enough.
    let (writer_db, writer_keyspace) = (db.clone(), busy.clone());
    let writer = spawn(move || {
        for number in 0..600u64 {
            let key = format!("k-{:03}", number % 50);
            let done = match number % 3 {
                0 => writer_keyspace.merge(&key, [1; 60]),
                _ => writer_keyspace.put(&key, [2; 60]),
            };
            if matches!(done, Err(Error::Closed | Error::Deadline { .. })) {
                break;
            }
            if number % 40 == 7 && writer_db.sync().is_err() {
                break;
            }
            if number % 100 == 99 && matches!(writer_db.flush(), Err(Error::Closed)) {
                break;
            }
        }
    });
    let join = move || drop(writer.join());
    let probed = if stage == AT_CLOSE {
        must_return("the writer", join)?;
        vfs.add_rule(rule);
        close_within_deadline(&db)
    } else {
        let held = gate.is_held(Duration::from_millis(400));
        let probed = if held { probe(&db, &other, file) } else { Ok(()) };
        gate.release();
        probed.and(must_return("the writer, after the device call has returned,", join))
    };
    let held = gate.is_held(Duration::ZERO);
    gate.release();
    vfs.clear_rules();
    probed?;
    drop((busy, other));
    must_return("close, after the device call has returned,", move || db.close(None))?
        .map_err(failed("close"))?;
    let db = open(&vfs).map_err(failed("opening"))?;
    let there = db.open_keyspace("other", None).and_then(|other| other.get("before"));
    if there.map_err(failed("a read"))?.as_deref() != Some(b"x") {
        return Err("a put is lost".to_owned());
    }
    db.put_synced("after")?;
    db.close(None).map_err(failed("close"))?;
    Ok(held)
}

/// What must return while a call hangs.
fn probe(db: &Db, other: &lsmx::Keyspace, file: &str) -> Outcome {
    let own = db.clone();
    must_return("metrics", move || drop(own.metrics()))?;
    if others_go_on(file) {
        // So many that its memtables must be flushed meanwhile.
        for number in 0..200 {
            let own = other.clone();
            let put = move || own.put(format!("o-{number}"), [3; 200]);
            must_return("a put to another keyspace", put)?
                .map_err(|error| format!("a put to another keyspace fails: {error:?}"))?;
        }
        let own = other.clone();
        let read = must_return("a get of another keyspace", move || own.get("before"))?;
        read.map_err(|error| format!("a get of another keyspace fails: {error:?}"))?;
    }
    close_within_deadline(db)
}

fn close_within_deadline(db: &Db) -> Outcome {
    let own = db.clone();
    let closed =
        must_return("close with a deadline", move || own.close(Some(Duration::from_millis(50))))?;
    match closed {
        Ok(()) | Err(Error::Deadline { .. }) => Ok(()),
        Err(error) => Err(format!("close with a deadline fails: {error:?}")),
    }
}

trait PutSynced {
    fn put_synced(&self, key: &str) -> Outcome;
}

impl PutSynced for Db {
    fn put_synced(&self, key: &str) -> Outcome {
        let mut batch = lsmx::WriteBatch::new();
        batch.put(&self.default_keyspace(), key, "z");
        self.write(batch, Durability::Sync).map_err(|error| format!("a put fails: {error:?}"))
    }
}
