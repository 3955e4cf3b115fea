//! Loom models of closing a database during other operations.

use lsmx_base::sync::loom_model::{explore_interleavings, spawn};
use lsmx_base::sync::{Arc, AtomicUsize, Ordering};

use crate::background_error::BackgroundErrorState;
use crate::deferred_drop::DeferredDrop;
use crate::error::Error;
use crate::loom_models::{open, open_on_vfs};

/// A write that runs while the database closes is either acknowledged and stored, or fails and is not stored. The write
/// and the close do not deadlock.
#[test]
fn write_during_close_is_stored_or_refused() {
    explore_interleavings(Some(1), || {
        let (disk, db) = open();
        let other = db.clone();
        let writer = spawn(move || match other.put("a", "1") {
            Ok(()) => true,
            Err(Error::Closed) => false,
            Err(error) => panic!("{error}"),
        });
        db.close(None).unwrap();
        assert!(matches!(db.put("b", "2"), Err(Error::Closed)));
        let written = writer.join().unwrap();
        drop(db);
        let again = open_on_vfs(&disk);
        assert_eq!(again.get("a").unwrap().is_some(), written);
    });
}

/// Two threads call `close` concurrently. Both calls return only after the lock file is released.
#[test]
fn concurrent_closes_release_the_lock() {
    explore_interleavings(Some(1), || {
        let (disk, db) = open();
        let other = db.clone();
        let closing = spawn(move || other.close(None).unwrap());
        db.close(None).unwrap();
        drop(open_on_vfs(&disk));
        closing.join().unwrap();
    });
}

/// A value that counts its drops.
struct DropCounter(Arc<AtomicUsize>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A value that is queued for a deferred drop is freed exactly once, even if the background thread stops concurrently.
#[test]
fn deferred_drop_during_close_frees_the_value() {
    explore_interleavings(None, || {
        let (deferred_drop, drops) = (DeferredDrop::default(), Arc::new(AtomicUsize::new(0)));
        deferred_drop.start();
        let (reader, value) = (deferred_drop.clone(), DropCounter(Arc::clone(&drops)));
        let reader = spawn(move || reader.drop_later(value));
        deferred_drop.stop();
        reader.join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    });
}

/// If two background errors occur concurrently, exactly one is reported as the first error, and both threads see the
/// same cause. After an error no write is allowed.
#[test]
fn concurrent_errors_have_one_first_cause() {
    explore_interleavings(None, || {
        let error_state = Arc::new(BackgroundErrorState::default());
        let fail = |error_state: &BackgroundErrorState, name: &str| {
            let (cause, is_first) =
                error_state.set_read_only(Error::UnknownKeyspace { name: name.to_owned() });
            assert!(error_state.check_writable().is_err());
            (cause.to_string(), is_first)
        };
        let other = Arc::clone(&error_state);
        let failing = spawn(move || fail(&other, "a"));
        let (cause, is_first) = fail(&error_state, "b");
        let (cause_other, is_first_other) = failing.join().unwrap();
        assert_eq!(cause, cause_other);
        assert!(is_first != is_first_other);
    });
}
