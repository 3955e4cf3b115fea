//! One disturbance per history, after which every call must end and every keyspace must work.

mod disturbance;
mod hang;
mod history;
mod user_code;

use lsmx_testkit::mix_seeds;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::Outcome;
pub(crate) use disturbance::{Kind, Mode};
use user_code::MARK;

/// Deliberate panics would print thousands of messages.
fn hide_deliberate_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = history::text(info.payload());
            let reports = ["the schedule has taken", "deadlock", MARK];
            if !info.payload().is::<lsmx::Error>()
                && !reports.iter().any(|begin| text.starts_with(begin))
            {
                before(info);
            }
        }));
    });
}

/// Plays one history on a thread of its own, for one that hangs cannot be ended.
pub(crate) fn play(kind: Kind, mode: Mode, seed: u64, patience: Duration) -> Outcome<bool> {
    hide_deliberate_panics();
    let (done, waiting) = channel();
    let body = move || {
        let played = catch_unwind(AssertUnwindSafe(|| match kind {
            Kind::Hang { call, file } => hang::play(call, file, seed),
            _ => history::play(kind, mode, seed),
        }));
        let played = played.unwrap_or_else(|panic| {
            Err(format!("a panic reaches the caller: {}", history::text(&*panic)))
        });
        // Nobody waits any more for one that has taken too long.
        let _ = done.send(played);
    };
    std::thread::Builder::new()
        .name("history".to_owned())
        .spawn(body)
        .map_err(|error| error.to_string())?;
    let played = match waiting.recv_timeout(patience) {
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

/// The kind, mode and seed of a history.
pub(crate) fn plan(kinds: &[Kind], base: u64, number: u64) -> (Kind, Mode, u64) {
    let seed = mix_seeds(base, number) >> 16;
    let at = usize::try_from(number).unwrap_or(0);
    let (kind, round) = (kinds[at % kinds.len()], at / kinds.len());
    // Mostly stepped; one of eight inline, few with real threads.
    let mode = match round % 16 {
        1 | 9 => Mode::Inline,
        5 => Mode::Threads,
        _ => Mode::Stepped,
    };
    let mode = if kind.suits(mode) { mode } else { Mode::Stepped };
    (kind, if kind.suits(mode) { mode } else { Mode::Threads }, seed)
}
