//! Tests of clocks, waits and schedules.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lsmx_base::sync::{AtomicBool, AtomicUsize};

use super::*;
use crate::env::clock::advance_clock_offset;

fn stepped(seed: u64) -> Env {
    Env::new(Background::Stepped { seed, workers: 2 }, None)
}

fn threads() -> Env {
    Env::new(Background::Threads { workers: 2 }, Some(1))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text")
}

#[test]
fn database_clock_after_a_backward_step_follows_the_monotonic_clock() {
    let offset = AtomicU64::new(0);
    assert_eq!(advance_clock_offset(&offset, 1_000_000, 10), 1_000_000);
    assert_eq!(advance_clock_offset(&offset, 1_000_005, 15), 1_000_005);
    // The wall clock steps back by almost a second.
    assert_eq!(advance_clock_offset(&offset, 10, 20), 1_000_010);
    assert_eq!(advance_clock_offset(&offset, 40, 50), 1_000_040);
    // The wall clock steps ahead.
    assert_eq!(advance_clock_offset(&offset, 9_000_000, 60), 9_000_000);
    assert_eq!(advance_clock_offset(&offset, 70, 70), 9_000_010);
    // Extreme values saturate.
    assert_eq!(advance_clock_offset(&offset, u64::MAX, 80), u64::MAX);
    assert_eq!(advance_clock_offset(&offset, 0, 90), u64::MAX);
}

#[test]
fn system_clock_ignores_advance() {
    let env = threads();
    let (wall, since) = (env.now_us(), env.monotonic_ns());
    assert!(wall > 1_600_000_000_000_000, "microseconds since 1970");
    env.advance_us(1 << 50);
    env.pause_us(1_000);
    assert!((wall + 1_000..wall + (1 << 49)).contains(&env.now_us()));
    assert!(env.monotonic_ns() >= since + 1_000_000);
}

#[test]
fn virtual_clock_moves_by_advance_and_pause() {
    for env in [Env::new(Background::Inline, Some(1)), stepped(1)] {
        assert_eq!(env.now_us(), 1_000_000);
        assert_eq!(env.monotonic_ns(), 1_000_000_000);
        env.advance_us(5);
        env.pause_us(10);
        assert_eq!(env.now_us(), 1_000_015);
        assert_eq!(env.now_us(), 1_000_015);
    }
}

#[test]
fn random_numbers_are_determined_by_the_seed() {
    let draw = |env: Env| [env.random_u64(), env.random_u64()];
    assert_eq!(draw(threads()), draw(Env::new(Background::Inline, Some(1))));
    assert_eq!(draw(stepped(4)), draw(stepped(4)));
    assert_ne!(draw(stepped(4)), draw(stepped(5)));
    assert_ne!(draw(Env::default()), draw(Env::default()));
}

#[test]
fn wait_ends_when_condition_holds_or_deadline_passes() {
    for env in [threads(), Env::new(Background::Inline, None), stepped(1)] {
        let signal = Signal::new();
        let mut checks = 0;
        assert!(env.wait(WaitCause::Flush, &signal, Some(0), &mut || {
            checks += 1;
            true
        }));
        assert_eq!(checks, 1, "the condition is checked after the deadline");
        let deadline = env.now_us() + 2_000;
        assert!(!env.wait(WaitCause::Flush, &signal, Some(deadline), &mut || false));
        assert!(env.now_us() >= deadline, "{:?}", env.background());
        let done = Arc::new(AtomicBool::new(false));
        let (thread_done, thread_signal) = (done.clone(), signal.clone());
        let thread = env
            .spawn("setter", move || {
                thread_done.store(true, Ordering::Release);
                thread_signal.notify();
            })
            .unwrap();
        let mut condition = || done.load(Ordering::Acquire);
        assert!(env.wait(WaitCause::Flush, &signal, None, &mut condition));
        env.join(thread).unwrap();
    }
}

#[test]
fn join_of_a_panicked_thread_returns_the_payload() {
    for env in [threads(), stepped(1)] {
        let thread = env.spawn("unlucky", || panic!("on purpose")).unwrap();
        assert_eq!(panic_text(&*env.join(thread).unwrap_err()), "on purpose");
        env.yield_point(YieldKind::JobStep);
    }
}

#[test]
#[cfg(debug_assertions)]
fn lock_held_at_a_yield_point_or_wait_panics() {
    for env in [threads(), stepped(1)] {
        let lock = Mutex::new(());
        let held = |body: &dyn Fn()| {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let _guard = lock.lock();
                body();
            }));
            assert!(panic_text(&*result.unwrap_err()).contains("a lock is held"));
        };
        held(&|| env.yield_point(YieldKind::Commit));
        held(&|| {
            env.wait(WaitCause::Flush, &Signal::new(), None, &mut || true);
        });
        held(&|| env.pause_us(1));
    }
}

/// Runs threads that alternate, sleep and contend. Returns the order of their steps and the trace hash.
fn run_contending_threads(seed: u64) -> (Vec<usize>, u64) {
    const THREADS: usize = 4;
    let env = stepped(seed);
    let log = Arc::new(Mutex::new(Vec::new()));
    let running = Arc::new(AtomicUsize::new(0));
    let turn = Arc::new(AtomicUsize::new(0));
    let signal = Signal::new();
    let threads: Vec<JoinHandle> = (0..THREADS)
        .map(|me| {
            let (own, log, running) = (env.clone(), log.clone(), running.clone());
            let (turn, signal) = (turn.clone(), signal.clone());
            let body = move || {
                for round in 0..10 {
                    // Between two yield points no other thread runs.
                    assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0);
                    std::thread::yield_now();
                    log.lock().push(me);
                    assert_eq!(running.fetch_sub(1, Ordering::Relaxed), 1);
                    own.yield_point(YieldKind::CompactionBlock);
                    if own.random_u64().is_multiple_of(3) {
                        own.pause_us(own.random_u64() % 50);
                    }
                    let mine = |turn: usize| turn % THREADS == me;
                    let mut condition = || mine(turn.load(Ordering::Relaxed));
                    let reached = own.wait(WaitCause::CommitAhead, &signal, None, &mut condition);
                    assert!(reached, "round {round}");
                    turn.fetch_add(1, Ordering::Relaxed);
                    signal.notify();
                    own.yield_point(YieldKind::UserOperation);
                }
            };
            env.spawn(&format!("worker {me}"), body).unwrap()
        })
        .collect();
    for thread in threads {
        env.join(thread).unwrap();
    }
    assert_eq!(turn.load(Ordering::Relaxed), THREADS * 10);
    let log = log.lock().clone();
    (log, env.trace_hash())
}

#[test]
fn equal_seeds_give_equal_schedules() {
    let mut hashes = std::collections::BTreeSet::new();
    let mut logs = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (log, hash) = run_contending_threads(seed);
        assert_eq!(run_contending_threads(seed), (log.clone(), hash), "seed {seed}");
        hashes.insert(hash);
        logs.insert(log);
    }
    assert_eq!(hashes.len(), 20, "different seeds give different schedules");
    assert!(logs.len() > 15, "different seeds give different orders");
}

#[test]
fn yielding_thread_does_not_starve() {
    for seed in 0..20 {
        let env = stepped(seed);
        let stop = Arc::new(AtomicBool::new(false));
        let busy = (0..3).map(|_| {
            let (own, stop) = (env.clone(), stop.clone());
            let body = move || {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    own.yield_point(YieldKind::CompactionBlock);
                    rounds += 1;
                    assert!(rounds < 10_000, "the stopping thread was never selected");
                }
            };
            env.spawn("busy", body).unwrap()
        });
        let busy: Vec<JoinHandle> = busy.collect();
        env.yield_point(YieldKind::UserOperation);
        stop.store(true, Ordering::Relaxed);
        for thread in busy {
            env.join(thread).unwrap();
        }
    }
}

#[test]
fn virtual_clock_advances_to_the_nearest_deadline_when_all_threads_wait() {
    for seed in 0..20 {
        let env = stepped(seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers = [700, 300, 500].map(|us| {
            let (own, order) = (env.clone(), order.clone());
            let body = move || {
                own.pause_us(us);
                let now_us = own.now_us();
                order.lock().push((us, now_us));
            };
            env.spawn("sleeper", body).unwrap()
        });
        for sleeper in sleepers {
            env.join(sleeper).unwrap();
        }
        let expected = [(300, 1_000_300), (500, 1_000_500), (700, 1_000_700)];
        assert_eq!(*order.lock(), expected, "seed {seed}");
    }
}

#[test]
fn deadlock_panics_every_thread_with_a_report() {
    for seed in 0..20 {
        let env = stepped(seed);
        let unwound = Arc::new(AtomicBool::new(false));
        let (own, mark) = (env.clone(), unwound.clone());
        let body = move || {
            /// Waits in its destructor during unwinding, like a database handle.
            struct WaitsInDrop(Env, Arc<AtomicBool>);
            impl Drop for WaitsInDrop {
                fn drop(&mut self) {
                    let closed = self.0.wait(WaitCause::Close, &Signal::new(), None, &mut || false);
                    self.0.yield_point(YieldKind::JobStep);
                    self.1.store(!closed, Ordering::Release);
                }
            }
            let _waits_in_drop = WaitsInDrop(own.clone(), mark);
            own.wait(WaitCause::Compaction, &Signal::new(), None, &mut || false);
        };
        let thread = env.spawn("worker", body).unwrap();
        let mut never = || false;
        let result = catch_unwind(AssertUnwindSafe(|| {
            env.wait(WaitCause::MemtablesFull, &Signal::new(), None, &mut never)
        }));
        let report = result.unwrap_err();
        let report = panic_text(&*report);
        assert!(report.contains("deadlock"), "{report}");
        assert!(report.contains("waits for a free memtable"), "{report}");
        assert!(report.contains("`worker` waits for a compaction"), "{report}");
        let other = thread.thread.join().unwrap_err();
        assert!(panic_text(&*other).contains("deadlock"));
        assert!(unwound.load(Ordering::Acquire));
    }
}

#[test]
fn join_of_a_thread_that_never_ends_is_a_deadlock() {
    let env = stepped(1);
    let own = env.clone();
    let body = move || {
        own.wait(WaitCause::Work, &Signal::new(), None, &mut || false);
    };
    let thread = env.spawn("worker", body).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| env.join(thread)));
    let report = result.unwrap_err();
    assert!(
        panic_text(&*report).contains("waits for the end of `worker`"),
        "{}",
        panic_text(&*report)
    );
}

#[test]
fn change_without_notification_is_a_lost_wake_up() {
    for seed in 0..20 {
        let env = stepped(seed);
        let done = Arc::new(AtomicBool::new(false));
        let (own, set) = (env.clone(), done.clone());
        let body = move || {
            // During the pause the other thread evaluates its condition and starts to wait.
            own.pause_us(100);
            set.store(true, Ordering::Release);
            own.pause_us(100);
        };
        let thread = env.spawn("forgetful", body).unwrap();
        let mut condition = || done.load(Ordering::Acquire);
        let result = catch_unwind(AssertUnwindSafe(|| {
            env.wait(WaitCause::Flush, &Signal::new(), None, &mut condition)
        }));
        let report = result.unwrap_err();
        assert!(panic_text(&*report).contains("lost wake-up"), "{}", panic_text(&*report));
        assert!(thread.thread.join().is_err());
    }
}

#[test]
fn unregistered_thread_gets_a_slot_and_leaves_it() {
    let env = stepped(3);
    let done = Arc::new(AtomicBool::new(false));
    let signal = Signal::new();
    let (own, set, set_signal) = (env.clone(), done.clone(), signal.clone());
    #[expect(
        clippy::disallowed_methods,
        reason = "the test needs a thread unknown to the environment"
    )]
    let unregistered = std::thread::spawn(move || {
        own.yield_point(YieldKind::UserOperation);
        set.store(true, Ordering::Release);
        set_signal.notify();
    });
    // The unregistered thread may reach its first yield point late, so this thread yields until `done` is set.
    let arrived = || done.load(Ordering::Acquire);
    while !arrived() {
        env.yield_point(YieldKind::UserOperation);
        std::thread::yield_now();
    }
    unregistered.join().unwrap();
    // The slot of the ended thread is free. Otherwise the scheduler would select it, and no thread would run.
    for _ in 0..100 {
        env.yield_point(YieldKind::UserOperation);
    }
    assert!(env.wait(WaitCause::Flush, &signal, None, &mut || arrived()));
}

#[test]
fn wait_with_real_threads_loses_no_wake_up() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 3_000 };
    let env = threads();
    let signal = Signal::new();
    let turn = Arc::new(AtomicUsize::new(0));
    let players: Vec<JoinHandle> = (0..3)
        .map(|me| {
            let (own, signal, turn) = (env.clone(), signal.clone(), turn.clone());
            let body = move || {
                for _ in 0..ROUNDS {
                    let mut condition = || turn.load(Ordering::Acquire) % 3 == me;
                    own.wait(WaitCause::CommitAhead, &signal, None, &mut condition);
                    turn.fetch_add(1, Ordering::AcqRel);
                    signal.notify();
                }
            };
            env.spawn("player", body).unwrap()
        })
        .collect();
    for player in players {
        env.join(player).unwrap();
    }
    assert_eq!(turn.load(Ordering::Acquire), 3 * ROUNDS);
}

#[test]
fn database_clock_starts_at_the_stored_time() {
    let (jump_us_max, confirmation_us) = (0, 60_000_000);
    let rules = ClockRules { jump_us_max, confirmation_us, follows_all_readings: false };
    for background in [Background::default(), Background::Inline] {
        let env = Env::new(background, None);
        let far = env.now_us() + 1_000_000_000;
        assert_eq!(env.start_database_clock(far, rules), far);
        assert!(env.database_time_us() >= far);
    }
}
