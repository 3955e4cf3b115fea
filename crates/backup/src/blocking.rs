//! Calls that block, on the threads of the runtime for such calls.

use crate::error::Error;

/// Runs `work` on a thread for blocking calls. A panic of `work` continues in the caller.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    if cfg!(test) {
        // Tests are deterministic.
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(lsmx::Error::RuntimeEnded.into()),
        },
    }
}
