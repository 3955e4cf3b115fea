//! How long polls take, how late a wake-up comes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
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

/// A future whose polls are measured.
pub(crate) struct Polled<F> {
    future: Pin<Box<F>>,
    /// By the clock.
    wall: Meter,
    /// By the processor, of which others may have had their share meanwhile.
    processor: Meter,
    env: lsmx::env::Env,
}

impl<F> Polled<F> {
    pub(crate) fn new(
        future: F,
        (wall, processor): (&Meter, &Meter),
        env: &lsmx::env::Env,
    ) -> Polled<F> {
        let (wall, processor) = (wall.clone(), processor.clone());
        Polled { future: Box::pin(future), wall, processor, env: env.clone() }
    }
}

impl<F: Future> Future for Polled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        let (begun, begun_ns) = (Instant::now(), self.env.thread_cpu_ns());
        let polled = self.future.as_mut().poll(task);
        let ns = self.env.thread_cpu_ns().saturating_sub(begun_ns);
        self.wall.note(begun.elapsed());
        self.processor.note(Duration::from_nanos(ns));
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
