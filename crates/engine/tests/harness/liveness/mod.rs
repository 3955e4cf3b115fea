//! Random workloads into which one fault is injected. Afterwards every call must return and every keyspace must be
//! usable.

mod disturbance;
mod hang;
mod history;
pub(crate) mod user_code;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use lsmx_testkit::mix_seeds;

use super::Outcome;
pub(crate) use disturbance::{Kind, Mode};
use user_code::MARK;

/// Hides the messages of thousands of deliberate panics.
fn hide_deliberate_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = panic_text(info.payload());
            let hidden = ["the schedule has taken", "deadlock", MARK];
            let is_hidden = hidden.iter().any(|start| text.starts_with(start));
            if !info.payload().is::<lsmx::Error>() && !is_hidden {
                before(info);
            }
        }));
    });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Runs one random workload. Returns whether the fault occurred.
///
/// The workload runs on its own thread. If it hangs, the test reports a failure and abandons the thread.
pub(crate) fn play(kind: Kind, mode: Mode, seed: u64, patience: Duration) -> Outcome<bool> {
    hide_deliberate_panics();
    let (done, result) = channel();
    let body = move || {
        let played = catch_unwind(AssertUnwindSafe(|| match kind {
            Kind::Hang { call, file } => hang::play(call, file, seed),
            _ => history::play(kind, mode, seed),
        }));
        // After the time limit, the receiver is dropped and the result is ignored.
        let _ = done.send(played.map_err(|panic| panic_text(&*panic)));
    };
    let thread = std::thread::Builder::new().name("history".to_owned());
    thread.spawn(body).map_err(|error| error.to_string())?;
    let played = match result.recv_timeout(patience) {
        Ok(played) => played,
        Err(RecvTimeoutError::Timeout) => Err("a call hangs".to_owned()),
        Err(RecvTimeoutError::Disconnected) => Err("the history ends without a result".to_owned()),
    };
    played.map_err(|what| {
        format!(
            "{kind} under {mode:?}: {what}\nreplay: LSMX_TEST_REPLAY={kind}:{mode:?}:{seed} \
             cargo test -p lsmx --test engine liveness:: -- --nocapture"
        )
    })
}

/// Returns the fault, the background mode and the seed of workload number `number`.
pub(crate) fn plan(kinds: &[Kind], base: u64, number: u64) -> (Kind, Mode, u64) {
    let seed = mix_seeds(base, number) >> 16;
    let at = usize::try_from(number).unwrap_or(0);
    let (kind, round) = (kinds[at % kinds.len()], at / kinds.len());
    // Of 16 workloads with the same fault, 13 run background work in steps, two run it inline, and one uses real
    // threads.
    let mode = match round % 16 {
        1 | 9 => Mode::Inline,
        5 => Mode::Threads,
        _ => Mode::Stepped,
    };
    let modes = [mode, Mode::Stepped, Mode::Threads];
    (kind, modes.into_iter().find(|mode| kind.suits(*mode)).unwrap_or(Mode::Threads), seed)
}
