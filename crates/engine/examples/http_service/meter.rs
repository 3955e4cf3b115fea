//! How long polls take, how late a wake-up comes.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lsmx::env::Env;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Durations that many tasks note. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Mutex<Histogram<u64>>>);

impl Meter {
    pub(crate) fn new() -> Meter {
        // Three digits, from a nanosecond to a minute.
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        let histogram = histogram.expect("three digits are few enough");
        Meter(Arc::new(Mutex::new(histogram)))
    }

    pub(crate) fn note(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Count, middle, tail and longest, in microseconds.
impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let us = |share| of.value_at_quantile(share) as f64 / 1e3;
        write!(f, "{:>9}", of.len())?;
        for share in [0.5, 0.99, 0.999, 1.0] {
            write!(f, " {:>10.1}", us(share))?;
        }
        Ok(())
    }
}

thread_local! {
    /// Time on a processor that the poll at hand has spent in calls of the database.
    static IN_DATABASE_NS: Cell<u64> = const { Cell::new(0) };
}

/// Calls the database.
pub(crate) fn calling<T>(env: &Env, call: impl FnOnce() -> T) -> T {
    let begun_ns = env.thread_cpu_ns();
    let answer = call();
    let ns = env.thread_cpu_ns().saturating_sub(begun_ns);
    IN_DATABASE_NS.set(IN_DATABASE_NS.get() + ns);
    answer
}

/// Awaits a call of the database.
pub(crate) async fn awaiting<T>(env: &Env, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|task| calling(env, || call.as_mut().poll(task))).await
}

/// Where the time of polls goes.
#[derive(Clone, Debug)]
pub(crate) struct Polls {
    /// By the clock.
    pub(crate) wall: Meter,
    /// By the processor, of which others may have had their share meanwhile.
    pub(crate) processor: Meter,
    /// Of that, what the database took; the rest is HTTP and sockets.
    pub(crate) database: Meter,
}

impl Polls {
    pub(crate) fn new() -> Polls {
        Polls { wall: Meter::new(), processor: Meter::new(), database: Meter::new() }
    }
}

/// A future whose polls are measured.
pub(crate) struct Polled<F> {
    future: Pin<Box<F>>,
    polls: Polls,
    env: Env,
}

impl<F> Polled<F> {
    pub(crate) fn new(future: F, polls: &Polls, env: &Env) -> Polled<F> {
        Polled { future: Box::pin(future), polls: polls.clone(), env: env.clone() }
    }
}

impl<F: Future> Future for Polled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        IN_DATABASE_NS.set(0);
        let (begun, begun_ns) = (Instant::now(), self.env.thread_cpu_ns());
        let polled = self.future.as_mut().poll(task);
        let ns = self.env.thread_cpu_ns().saturating_sub(begun_ns);
        self.polls.wall.note(begun.elapsed());
        self.polls.processor.note(Duration::from_nanos(ns));
        let in_database_ns = IN_DATABASE_NS.get();
        if in_database_ns > 0 {
            self.polls.database.note(Duration::from_nanos(in_database_ns));
        }
        polled
    }
}

/// A task that another thread wakes each millisecond, and that notes how late it comes.
pub(crate) struct Heartbeat {
    stop: Arc<AtomicBool>,
    late: Meter,
    task: JoinHandle<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Heartbeat {
    /// Begins to beat on a runtime.
    pub(crate) fn begin(runtime: &Handle) -> Heartbeat {
        let (late, stop) = (Meter::new(), Arc::new(AtomicBool::new(false)));
        let (beat, mut beats) = mpsc::unbounded_channel::<Instant>();
        let noted = late.clone();
        let task = runtime.spawn(async move {
            while let Some(sent) = beats.recv().await {
                noted.note(sent.elapsed());
            }
        });
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                if beat.send(Instant::now()).is_err() {
                    break;
                }
            }
        });
        Heartbeat { stop, late, task, thread }
    }

    /// Ends it, and tells how late it came.
    pub(crate) async fn end(self) -> Meter {
        self.stop.store(true, Ordering::Relaxed);
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
        let _ = self.task.await;
        self.late
    }
}
