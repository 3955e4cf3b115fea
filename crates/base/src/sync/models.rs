//! Models of [`Signal`], and what all models are played with.

use std::task::Wake;

use loom::thread;

use super::*;

/// Plays a model in all interleavings with at most so many preemptions, or in all that there are;
/// prints how many these were. `LOOM_MAX_PREEMPTIONS` sets another bound.
pub fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.max_branches = builder.max_branches.max(100_000);
    let played = Arc::new(statics::AtomicUsize::new(0));
    let (count, model) = (Arc::clone(&played), Arc::new(model));
    #[expect(clippy::disallowed_methods, reason = "it is the model that has no clock")]
    let start = std::time::Instant::now();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let model = Arc::clone(&model);
        spawn(move || model()).join().unwrap();
    });
    let (played, seconds) = (played.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
    let bound = builder.preemption_bound.map_or("any".to_owned(), |bound| bound.to_string());
    println!("{played} interleavings with {bound} preemptions, {seconds:.1} s");
}

/// Starts a thread of a model, with room for what a database has on its stack.
pub fn spawn<T: 'static + Send>(
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(body).unwrap()
}

/// Stack of a thread of a model: 1 MiB, of which what is not touched takes none.
const STACK_WORDS: usize = 1 << 17;

/// Wakes a thread of a model that polls a task.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Something to wait for. Stored and loaded without an order of its own: the signal gives it one.
#[derive(Clone, Default)]
struct Told {
    signal: Signal,
    count: Arc<AtomicUsize>,
}

impl Told {
    fn tell(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.signal.notify();
    }

    fn sleep_until(&self, count: usize) {
        loop {
            let seen = self.signal.generation();
            if self.count.load(Ordering::Relaxed) >= count {
                return;
            }
            self.signal.sleep_while(seen, None);
        }
    }

    fn await_until(&self, count: usize) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let slot = self.signal.slot();
        loop {
            let seen = self.signal.generation();
            if self.count.load(Ordering::Relaxed) >= count {
                return;
            }
            if slot.arm(seen, &waker) {
                thread::park();
            }
        }
    }

    fn assert_nobody_sleeps(&self) {
        assert_eq!(self.signal.0.word.load(Ordering::Relaxed) & SLEEPER_MASK, 0);
    }
}

/// A notification between the look at the condition and the sleep is lost, or is seen without what
/// was changed before it: the thread sleeps for ever.
#[test]
fn a_thread_is_woken() {
    explore(None, || {
        let told = Told::default();
        let other = told.clone();
        let sleeper = spawn(move || other.sleep_until(1));
        told.tell();
        sleeper.join().unwrap();
        told.assert_nobody_sleeps();
    });
}

/// A notification wakes one of two sleepers, or the one that leaves takes the other's count along and
/// the next notifier finds nobody to wake.
#[test]
fn two_threads_are_woken_by_two_notifications() {
    explore(Some(2), || {
        let told = Told::default();
        let sleepers = [1, 2].map(|count| {
            let told = told.clone();
            spawn(move || told.sleep_until(count))
        });
        told.tell();
        told.tell();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        told.assert_nobody_sleeps();
    });
}

/// A notifier that finds a sleeper counted finds no waker yet, or none is counted for a waker that is in
/// place: the task is never polled again.
#[test]
fn a_task_is_woken() {
    explore(None, || {
        let told = Told::default();
        let other = told.clone();
        let task = spawn(move || other.await_until(2));
        told.tell();
        told.tell();
        task.join().unwrap();
        told.assert_nobody_sleeps();
    });
}

/// A task and a thread wait for the same: all tasks together count as one sleeper, and who wakes them
/// takes that off while the thread comes or goes.
#[test]
fn a_task_and_a_thread_are_woken() {
    explore(Some(3), || {
        let told = Told::default();
        let (first, second) = (told.clone(), told.clone());
        let waiting = [spawn(move || first.await_until(1)), spawn(move || second.sleep_until(1))];
        told.tell();
        for waiting in waiting {
            waiting.join().unwrap();
        }
        told.assert_nobody_sleeps();
    });
}

/// A task gives up while it is notified: its place is taken off twice or never, or the one that stays
/// is not woken.
#[test]
fn a_task_that_gives_up_takes_its_place_along_and_no_other() {
    explore(Some(3), || {
        let told = Told::default();
        let (leaving, staying) = (told.clone(), told.clone());
        let leaving = spawn(move || {
            let waker = Waker::noop();
            let slot = leaving.signal.slot();
            let _ = slot.arm(leaving.signal.generation(), waker);
        });
        let staying = spawn(move || staying.await_until(1));
        told.tell();
        leaving.join().unwrap();
        staying.join().unwrap();
        told.assert_nobody_sleeps();
    });
}
