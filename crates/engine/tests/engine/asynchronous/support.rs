//! Helpers for runtimes, blocking file systems and polls of futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::MemVfs;
use lsmx::{Event, EventListener};
use tokio::runtime::{Builder, Runtime};

/// Returns current-thread and multi-thread runtimes, each with a blocking pool of 1 and of 64 threads.
pub(crate) fn runtimes() -> Vec<Runtime> {
    let mut runtimes = Vec::new();
    for blocking_threads in [1, 64] {
        runtimes.push(current_thread(blocking_threads));
        runtimes.push(multi_thread(blocking_threads));
    }
    runtimes
}

pub(crate) fn current_thread(blocking_threads: usize) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().max_blocking_threads(blocking_threads).build().unwrap()
}

/// Returns a runtime for whose blocking pool the operating system creates no thread, because the stack is too large.
pub(crate) fn without_pool_threads() -> Runtime {
    Builder::new_current_thread().enable_time().thread_stack_size(1 << 60).build().unwrap()
}

pub(crate) fn multi_thread(blocking_threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_time().max_blocking_threads(blocking_threads).build().unwrap()
}

/// Runs a test on a runtime. Panics after five minutes.
pub(crate) fn run<T>(runtime: &Runtime, test: impl Future<Output = T>) -> T {
    let limited = async { tokio::time::timeout(Duration::from_secs(300), test).await };
    runtime.block_on(limited).expect("the test hangs")
}

/// Polls a future once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future at most `left` times.
pub(crate) struct Polls<F> {
    pub(crate) future: Pin<Box<F>>,
    pub(crate) left: u64,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(task) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // After the last poll nothing wakes the task, so the future must be ready now.
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "threads of the test wait for threads of the engine")]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute passed without: {what}");
}

/// Returns a file system and a gate. While the gate is `true`, calls of kind `call` wait if the path of their file
/// contains `file`.
pub(crate) fn gated(call: VfsCall, file: &str) -> (FaultVfs, Arc<AtomicBool>) {
    let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
    let shut = Arc::new(AtomicBool::new(false));
    disk.add_rule(
        FaultRule::new(Fault::Delay).for_calls(&[call]).path_contains(file).from_then_on(),
    );
    let gate = Arc::clone(&shut);
    disk.set_delay_hook(Some(Arc::new(move |_, _| {
        until("the gate opens", || !gate.load(Ordering::Acquire));
    })));
    (disk, shut)
}

/// A listener that counts how many stalls have begun and ended.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    pub(crate) begun: AtomicUsize,
    pub(crate) ended: AtomicUsize,
}

impl Stalls {
    /// Returns the number of writes that are stalled.
    pub(crate) fn standing(&self) -> usize {
        // `ended` is read first, so the difference is never negative.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun.load(Ordering::Acquire) - ended
    }
}

impl EventListener for Stalls {
    fn on_event(&self, event: &Event) {
        match event {
            Event::StallBegin(_) => self.begun.fetch_add(1, Ordering::AcqRel),
            Event::Stalled(_) => self.ended.fetch_add(1, Ordering::AcqRel),
            _ => 0,
        };
    }
}

/// Keeps the only thread of the blocking pool of a runtime busy until it is dropped.
pub(crate) struct Taken(std::sync::mpsc::Sender<()>);

impl Taken {
    pub(crate) fn take(runtime: &Runtime) -> Taken {
        let (here, there) = std::sync::mpsc::channel();
        let (begun, begin) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            begun.send(()).unwrap();
            there.recv()
        });
        begin.recv().unwrap();
        Taken(here)
    }

    pub(crate) fn free(self) {
        self.0.send(()).unwrap();
    }
}

/// Opens a database that another thread is closing. Retries while the database is locked.
pub(crate) fn reopen(disk: &MemVfs, options: impl Fn() -> lsmx::Options) -> lsmx::Db {
    let mut db = None;
    until("the database is closed", || {
        match lsmx::Db::open("db", options().vfs(Arc::new(disk.clone()))) {
            Ok(opened) => db = Some(opened),
            Err(lsmx::Error::Locked { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        db.is_some()
    });
    db.unwrap()
}
