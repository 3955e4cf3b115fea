//! Checks of calls while a device call hangs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use lsmx::WalOptions;
use lsmx::internals::vfs::VfsCall;
use lsmx::merge_operator::Append;
use lsmx::{Durability, Error, KeyspaceOptions, Options, WriteOptions};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

use super::Outcome;
use super::gate::{self, Gate, each, returns_while_blocked};
use super::small_database::open_with;

/// A deadline that passes while a device call is blocked.
pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// Blocks appends to the log of an operand store by some threads. Meanwhile a flush of another keyspace must end.
///
/// `thread` selects the threads to block. `lsmx-compact` runs the collections of the store. `lsmx-flush` writes
/// operands to the store. Both lock the store before they append.
pub(crate) fn flushes_while_store_hangs(thread: &'static str) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Append], ".operands"), thread);
    let db = open_with(&disk, Options::default().wal_bytes_max(1 << 30)).unwrap();
    let keyspace =
        || KeyspaceOptions::default().memtable_bytes(1 << 10).merge_operator(Append::default());
    let buckets = DeltaOptions::default().bucket_bytes(512).log_bytes_max(2 << 10);
    let store = keyspace().operand_store(DeltaStoreFactory::new(buckets));
    let operands = db.keyspace("operands", store).unwrap();
    let other = db.keyspace("other", keyspace()).unwrap();
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    let filled = AtomicBool::new(false);
    let hanging = || {
        // Writes until further writes would stall. A flush of the keyspace is then pending.
        let full = |n: u64| {
            operands.with_write_options(at_once).merge((n % 50).to_be_bytes(), [7; 50]).is_err()
        };
        (0..).find(|n| full(*n) && gate.blocked().is_some());
        filled.store(true, Ordering::Relaxed);
    };
    let sealed = || db.metrics().keyspaces["operands"].memtables_sealed;
    returns_while_blocked(&gate, hanging, || {
        while sealed() == 0 && !filled.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        // These writes exceed the memtable limit of the keyspace.
        for n in 0..200u64 {
            other.put(n.to_be_bytes(), [1; 100]).map_err(|error| error.to_string())?;
        }
        match db.metrics().keyspaces["other"].flushes {
            0 => Err("the other keyspace was not flushed".to_owned()),
            _ => Ok(()),
        }
    })?
}

/// Blocks the delivery of a flush to an operand store. Writes to other keyspaces must succeed meanwhile. The memtables of
/// these keyspaces together exceed the memory limit, but none of them is full.
///
/// Bug: no memtable was flushed early while a flush to an operand store was running.
pub(crate) fn early_flushes_while_delivery_hangs(_: u64) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Append], ".operands"), "lsmx-flush");
    let keyspace = |memtable_bytes| {
        let options = KeyspaceOptions::default().memtable_bytes(memtable_bytes);
        options.merge_operator(Append::default())
    };
    let options = Options::default().wal_bytes_max(1 << 30).memtable_bytes_max(64 << 10);
    let db = open_with(&disk, options.keyspace_defaults(keyspace(16 << 10))).unwrap();
    let store = DeltaStoreFactory::new(DeltaOptions::default());
    let operands = db.keyspace("operands", keyspace(1 << 10).operand_store(store)).unwrap();
    let others: Vec<_> = (0..6)
        .map(|number| db.keyspace(&format!("other {number}"), keyspace(16 << 10)).unwrap())
        .collect();
    let at_once = WriteOptions { no_slowdown: true, ..WriteOptions::default() };
    // Operands of absent keys would not be delivered.
    (0..50u64).for_each(|key| operands.put(key.to_be_bytes(), "value").unwrap());
    db.flush().unwrap();
    let fill = || {
        // Writes until further writes would stall. All sealed memtables then wait for the store.
        let merge =
            |n: u64| operands.with_write_options(at_once).merge((n % 50).to_be_bytes(), [7; 100]);
        (0..).find(|n| merge(*n).is_err());
    };
    returns_while_blocked(&gate, fill, || {
        while db.metrics().keyspaces["operands"].memtables_sealed < 4 {
            std::thread::yield_now();
        }
        for (number, keyspace) in (0..600u64).zip(others.iter().cycle()) {
            keyspace.put(number.to_be_bytes(), [1; 100]).map_err(|error| error.to_string())?;
        }
        Ok(())
    })?
}

/// Closes a database with a deadline while the creation of a keyspace hangs in a sync of the manifest.
pub(crate) fn close_keeps_deadline(_: u64) -> Outcome {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], "MANIFEST"), "");
    let db = open_with(&disk, Options::default()).unwrap();
    let hanging = || drop(db.keyspace("new", KeyspaceOptions::default()));
    let closed = returns_while_blocked(&gate, hanging, || db.close(Some(SHORT)))?;
    assert!(matches!(closed, Err(Error::Deadline { .. })), "{closed:?}");
    Ok(())
}

/// A commit with a deadline joins a commit group. The leader of the group is another thread, which hangs in an append.
pub(crate) fn follower_keeps_deadline(_: u64) -> Outcome {
    for attempt in 0..8 {
        match follower_result(SHORT * (1 << attempt))? {
            Err(Error::Undecided { .. }) => return Ok(()),
            // The deadline passed before the leader of the commit group included the write.
            Err(Error::Deadline { .. }) => {}
            other => panic!("a follower whose deadline has passed returns {other:?}"),
        }
    }
    panic!("no write joined a group before its deadline")
}

fn follower_result(patience: Duration) -> Outcome<lsmx::Result<()>> {
    let gate = Gate::default();
    let disk = gate.disk(each(&[VfsCall::Sync], ".wal"), "");
    // Turns periodic syncs off, so that only commits sync.
    let wal = WalOptions { sync_every_us: u64::MAX, ..WalOptions::default() };
    let db = open_with(&disk, Options::default().wal(wal)).unwrap();
    let main = db.default_keyspace();
    let behind_sync = || db.metrics().commits.behind_sync;
    gate.shut();
    let result = std::thread::scope(|scope| {
        let _opens = gate.open_on_drop();
        scope.spawn(|| main.with_write_options(Durability::Sync).put("first", "1"));
        gate.wait_until_blocked(1);
        scope.spawn(|| main.put("leader", "2"));
        while behind_sync() < 1 {
            std::thread::yield_now();
        }
        let (send, answer) = channel();
        let follower = WriteOptions { deadline: Some(patience), ..WriteOptions::default() };
        let main = &main;
        scope.spawn(move || send.send(main.with_write_options(follower).put("follower", "3")));
        while behind_sync() < 2 {
            std::thread::yield_now();
        }
        disk.add_rule(each(&[VfsCall::Append], ".wal"));
        // Releases the sync of the first thread, and then the append of its sync mark. After that, the leader of the
        // group appends.
        for blocked in [2, 3] {
            gate.release_one();
            gate.wait_until_blocked(blocked);
        }
        let result = answer.recv_timeout(gate::patience());
        result.map_err(|_| "a follower waits past its deadline".to_owned())
    })?;
    // All threads have ended, so it is now certain whether the write was committed.
    let exists = db.get("follower").unwrap().is_some();
    assert_eq!(exists, !matches!(result, Err(Error::Deadline { .. })), "after {result:?}");
    Ok(result)
}
