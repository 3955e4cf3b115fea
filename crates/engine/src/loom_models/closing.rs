//! Closing: who is inside is waited for, nobody enters after.

use lsmx_base::sync::loom_model::{explore, spawn};
use lsmx_base::sync::{Arc, AtomicUsize, Ordering};

use crate::Error;
use crate::background_error::BackgroundErrorState;
use crate::deferred_drop::DeferredDrop;
use crate::loom_models::{open, open_on};

/// A write comes while the database is closed: it is acknowledged and gone after the next opening, or
/// refused and there; or one of the two waits for the other for ever.
#[test]
fn a_write_during_a_close_is_kept_or_refused() {
    explore(Some(1), || {
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
        let again = open_on(&disk);
        assert_eq!(again.get("a").unwrap().is_some(), written);
    });
}

/// Two close at once: one of them returns while the lock is still taken.
#[test]
fn whoever_returns_from_a_close_finds_the_lock_free() {
    explore(Some(1), || {
        let (disk, db) = open();
        let other = db.clone();
        let closing = spawn(move || other.close(None).unwrap());
        db.close(None).unwrap();
        drop(open_on(&disk));
        closing.join().unwrap();
    });
}

/// Counts how often it is freed.
struct Thing(Arc<AtomicUsize>);

impl Drop for Thing {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A reader lets something go while the threads that free for it end: it is never freed.
#[test]
fn what_is_let_go_during_a_close_is_freed() {
    explore(None, || {
        let (deferred_drop, freed) = (DeferredDrop::default(), Arc::new(AtomicUsize::new(0)));
        deferred_drop.start();
        let (reader, thing) = (deferred_drop.clone(), Thing(Arc::clone(&freed)));
        let reader = spawn(move || reader.drop_later(thing));
        deferred_drop.stop();
        reader.join().unwrap();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

/// Two errors at once: both are told as the first, or a write sees that something failed and not what, and
/// goes on.
#[test]
fn one_error_is_the_first_and_everybody_is_told_it() {
    explore(None, || {
        let error_state = Arc::new(BackgroundErrorState::default());
        let fail = |error_state: &BackgroundErrorState, name: &str| {
            let (told, first) =
                error_state.set_read_only(Error::UnknownKeyspace { name: name.to_owned() });
            assert!(error_state.check_writable().is_err());
            (told.to_string(), first)
        };
        let other = Arc::clone(&error_state);
        let failing = spawn(move || fail(&other, "a"));
        let (told, first) = fail(&error_state, "b");
        let (told_other, first_other) = failing.join().unwrap();
        assert_eq!(told, told_other);
        assert!(first != first_other);
    });
}
