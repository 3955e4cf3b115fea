//! Runs models under loom.

use loom::thread;

use super::{Arc, Ordering, std_atomic};

/// Runs a model in all interleavings with at most `preemption_bound` preemptions, and prints their number. `None` means
/// no bound. The environment variable `LOOM_MAX_PREEMPTIONS` overrides the bound.
pub fn explore_interleavings(
    preemption_bound: Option<usize>,
    model: impl Fn() + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemption_bound);
    builder.max_branches = builder.max_branches.max(100_000);
    let executions = Arc::new(std_atomic::AtomicUsize::new(0));
    let (count, model) = (Arc::clone(&executions), Arc::new(model));
    #[expect(clippy::disallowed_methods, reason = "measures the checker; the model has no clock")]
    let start = std::time::Instant::now();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let model = Arc::clone(&model);
        spawn(move || model()).join().unwrap();
    });
    let (executions, seconds) = (executions.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
    let bound = builder.preemption_bound.map_or("any".to_owned(), |bound| bound.to_string());
    println!("{executions} interleavings with {bound} preemptions, {seconds:.1} s");
}

/// Starts a thread of a model. Its stack is large enough for the calls of a database.
pub fn spawn<T: 'static + Send>(
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(body).unwrap()
}

/// Stack size of a thread of a model, in words: 1 MiB. Untouched pages take no memory.
const STACK_WORDS: usize = 1 << 17;
