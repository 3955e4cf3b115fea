//! Implements the command `lsmx db PATH top`: a live view of a database that another process has open.
//!
//! The view shows the metrics file of the database. Without this file it shows the manifest and the file sizes.

mod view;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};
use lsmx::MetricsReading;

use self::view::view_text;
use crate::args::{DbArgs, TopArgs};
use crate::cmd::db::observed_state::ObservedState;
use crate::failure::Failure;
use crate::output;

/// Time between two views.
const REFRESH: Duration = Duration::from_secs(1);

pub(super) fn run(arguments: &DbArgs, top: &TopArgs) -> Result<(), Failure> {
    if !top.once && !io::stdout().is_terminal() {
        let line = "standard output is not a terminal: use top --once";
        return Err(Failure::Usage(line.to_owned()));
    }
    let state = ObservedState::read(arguments)?;
    if top.once {
        return output::stdout(view_text(&state, None).as_bytes());
    }
    show_live(arguments, state, &mut Terminal::enter().map_err(Failure::stdout)?)
}

/// Screen and keyboard of the live view.
trait Console: Write {
    /// Returns the number of columns and rows.
    fn size(&self) -> io::Result<(u16, u16)>;
    /// Waits for an event. Returns `None` when the next view is due.
    fn wait_for_event(&mut self) -> io::Result<Option<Event>>;
}

/// Draws `state` and all following states until the user ends the command.
fn show_live(
    arguments: &DbArgs,
    mut state: ObservedState,
    console: &mut impl Console,
) -> Result<(), Failure> {
    let mut previous: Option<Box<MetricsReading>> = None;
    let mut first_line = 0;
    loop {
        let text = view_text(&state, previous.as_deref());
        draw(console, &text, &mut first_line).map_err(Failure::stdout)?;
        let event = console.wait_for_event();
        let event = event.map_err(|error| Failure::file("read from", "the terminal", error))?;
        if let Some(Event::Key(key)) = event {
            if is_quit(key) {
                return Ok(());
            }
            let rows = console.size().map_err(Failure::stdout)?.1;
            first_line = scrolled(first_line, key.code, usize::from(rows.saturating_sub(2)));
        }
        let next = ObservedState::read(arguments)?;
        if let ObservedState::Metrics(reading) = state
            && !next.is_same_reading(&reading)
        {
            previous = Some(reading);
        }
        state = next;
    }
}

/// Draws the lines from `first_line` on that fit the screen. The last row lists the keys. Lowers `first_line` if the
/// screen has room for more lines than follow it.
fn draw(console: &mut impl Console, text: &str, first_line: &mut usize) -> io::Result<()> {
    let (columns, rows) = console.size()?;
    queue!(console, cursor::MoveTo(0, 0), Clear(ClearType::All))?;
    let lines: Vec<&str> = text.lines().collect();
    let shown = usize::from(rows).saturating_sub(1);
    *first_line = (*first_line).min(lines.len().saturating_sub(shown));
    let keys = "q: quit, up and down: scroll";
    let lines = lines.into_iter().skip(*first_line).take(shown).chain([keys]);
    for (row, line) in (0..rows).zip(lines) {
        let line: String = line.chars().take(usize::from(columns)).collect();
        queue!(console, cursor::MoveTo(0, row))?;
        console.write_all(line.as_bytes())?;
    }
    console.flush()
}

/// Returns the first line of the view after a key. `page` is the number of lines of a page.
fn scrolled(first_line: usize, key: KeyCode, page: usize) -> usize {
    match key {
        KeyCode::Up | KeyCode::Char('k') => first_line.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => first_line.saturating_add(1),
        KeyCode::PageUp => first_line.saturating_sub(page),
        KeyCode::PageDown | KeyCode::Char(' ') => first_line.saturating_add(page),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => first_line,
    }
}

/// Returns whether the key is `q`, Escape or Ctrl-C.
fn is_quit(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// The terminal in raw mode with an alternate screen. Dropping it restores the terminal.
struct Terminal;

impl Terminal {
    fn enter() -> io::Result<Terminal> {
        enable_raw_mode()?;
        let terminal = Terminal;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Errors are ignored, because the process is about to end.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl Console for Terminal {
    fn size(&self) -> io::Result<(u16, u16)> {
        size()
    }

    fn wait_for_event(&mut self) -> io::Result<Option<Event>> {
        if event::poll(REFRESH)? { event::read().map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "replaces files of the database, as its owner does")]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::path::Path;

    use lsmx::metrics::{KeyspaceMetrics, Metrics};
    use lsmx::{Db, Options};
    use tempfile::TempDir;

    use super::*;
    use crate::args::Verb;

    /// Times of readings of a live owner: far in the future, so that a reading is never out of date.
    const NOW_US: u64 = u64::MAX / 2;
    const SECOND_US: u64 = 1_000_000;

    type Step<'a> = Box<dyn FnMut() -> Option<Event> + 'a>;

    /// Console that executes one step per wait, and records each view.
    struct ScriptedConsole<'a> {
        steps: VecDeque<Step<'a>>,
        screen: Vec<u8>,
        /// Text of each view.
        views: Vec<String>,
        size: (u16, u16),
    }

    impl<'a> ScriptedConsole<'a> {
        /// The user presses `q` after the steps.
        fn new(steps: Vec<Step<'a>>) -> ScriptedConsole<'a> {
            let mut steps = VecDeque::from(steps);
            steps.push_back(Box::new(|| Some(press(KeyCode::Char('q'), KeyModifiers::NONE))));
            ScriptedConsole { steps, screen: Vec::new(), views: Vec::new(), size: (200, 100) }
        }
    }

    impl Write for ScriptedConsole<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.screen.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.views.push(String::from_utf8(std::mem::take(&mut self.screen)).unwrap());
            Ok(())
        }
    }

    impl Console for ScriptedConsole<'_> {
        fn size(&self) -> io::Result<(u16, u16)> {
            Ok(self.size)
        }

        fn wait_for_event(&mut self) -> io::Result<Option<Event>> {
            let mut step = self.steps.pop_front().expect("the loop ends at the key q");
            Ok(step())
        }
    }

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    fn tick<'a>(mut change: impl FnMut() + 'a) -> Step<'a> {
        Box::new(move || {
            change();
            None
        })
    }

    fn arguments(path: &Path) -> DbArgs {
        DbArgs {
            path: path.to_owned(),
            keyspace: None,
            hex: false,
            follower: false,
            verb: Verb::Top(TopArgs { once: false }),
        }
    }

    /// Returns a directory with a database that no process has open.
    fn closed_database() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::default()).unwrap();
        db.put("key", "value").unwrap();
        db.close(None).unwrap();
        dir
    }

    /// Returns a metrics file of time `time_us` with `puts` puts since the open one second after the epoch.
    fn metrics_file(time_us: u64, puts: u64) -> Vec<u8> {
        let mut keyspace = KeyspaceMetrics::default();
        keyspace.operations.puts = puts;
        let mut metrics = Metrics::default();
        metrics.keyspaces.insert("default".to_owned(), keyspace);
        let mut reading = MetricsReading::default();
        (reading.process_id, reading.open_us) = (4711, SECOND_US);
        (reading.time_us, reading.interval_us, reading.metrics) = (time_us, SECOND_US, metrics);
        serde_json::to_vec(&reading).unwrap()
    }

    /// Writes the file under another name and renames it, as the engine does.
    fn replace(dir: &Path, contents: &[u8]) {
        fs::write(dir.join("METRICS.tmp"), contents).unwrap();
        fs::rename(dir.join("METRICS.tmp"), dir.join("METRICS")).unwrap();
    }

    /// Runs the live view with the steps and returns all views.
    fn views(dir: &Path, steps: Vec<Step<'_>>) -> Vec<String> {
        let arguments = arguments(dir);
        let mut console = ScriptedConsole::new(steps);
        let state = ObservedState::read(&arguments).unwrap();
        show_live(&arguments, state, &mut console).unwrap();
        assert!(console.steps.is_empty() && console.screen.is_empty());
        console.views
    }

    #[track_caller]
    fn assert_contains(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn live_view_is_redrawn_with_rates_of_the_replaced_metrics_file() {
        let dir = closed_database();
        let dir = dir.path();
        let write = |seconds, puts| replace(dir, &metrics_file(NOW_US + seconds * SECOND_US, puts));
        write(0, 1_000);
        let views =
            views(dir, vec![tick(|| write(2, 1_500)), tick(|| ()), tick(|| write(3, 1_507))]);
        let [first, second, same, third] = &views[..] else { panic!("{views:?}") };
        assert_contains(first, &["process 4711", "rates since the open", "q: quit"]);
        assert_contains(second, &["rates since the last reading, 2.0 s", " 250 "]);
        // A file that has not changed keeps its rates.
        assert_eq!(same, second);
        assert_contains(third, &["rates since the last reading, 1.0 s", " 7.0 "]);
        assert!(!views.concat().contains("out of date"), "{views:?}");
    }

    #[test]
    fn live_view_ends_only_at_quit_keys() {
        let dir = closed_database();
        let arguments = arguments(dir.path());
        let control = KeyModifiers::CONTROL;
        let others = [
            press(KeyCode::Char('c'), KeyModifiers::NONE),
            press(KeyCode::Char('x'), control),
            Event::Resize(10, 10),
        ];
        let quits = [
            press(KeyCode::Char('q'), KeyModifiers::NONE),
            press(KeyCode::Esc, KeyModifiers::NONE),
            press(KeyCode::Char('c'), control),
        ];
        for quit in quits {
            let events = others.into_iter().chain([quit]);
            let steps = events.map(|event| Box::new(move || Some(event)) as Step<'_>);
            let mut console = ScriptedConsole::new(steps.collect());
            let state = ObservedState::read(&arguments).unwrap();
            show_live(&arguments, state, &mut console).unwrap();
            assert_eq!((console.views.len(), console.steps.len()), (4, 1), "{quit:?}");
        }
    }

    #[test]
    fn live_view_without_owner_states_it() {
        let dir = closed_database();
        let dir = dir.path();
        let remove = || fs::remove_file(dir.join("METRICS")).unwrap();
        replace(dir, &metrics_file(NOW_US, 1));
        let views =
            views(dir, vec![tick(|| replace(dir, &metrics_file(61 * SECOND_US, 1))), tick(remove)]);
        let [live, old, missing] = &views[..] else { panic!("{views:?}") };
        assert!(!live.contains("out of date"), "{live}");
        assert_contains(old, &["process 4711, open for 60 s", "out of date: "]);
        assert_contains(old, &["s old; the process was killed or cannot write"]);
        assert_contains(missing, &["manifest ", ", closed;"]);
        assert!(!missing.contains("process 4711"), "{missing}");
    }

    /// Each prefix of a metrics file counts as no file. The next complete file is shown, with rates since the last one.
    #[test]
    fn live_view_continues_after_torn_metrics_files() {
        let dir = closed_database();
        let dir = dir.path();
        let file = metrics_file(NOW_US, 10);
        replace(dir, &file);
        let torn = (0..file.len()).step_by(97).chain([file.len() - 1]);
        let mut steps: Vec<_> = torn
            .map(|bytes| {
                let part = &file[..bytes];
                tick(move || fs::write(dir.join("METRICS"), part).unwrap())
            })
            .collect();
        steps.push(tick(|| fs::write(dir.join("METRICS"), [0xff; 100]).unwrap()));
        steps.push(tick(|| replace(dir, &metrics_file(NOW_US + SECOND_US, 20))));
        let views = views(dir, steps);
        let [first, torn @ .., last] = &views[..] else { panic!("{views:?}") };
        assert_contains(first, &["process 4711"]);
        assert!(torn.len() > 10, "{}", torn.len());
        for view in torn {
            assert_contains(view, &["manifest ", ", closed;"]);
        }
        assert_contains(last, &["process 4711", "rates since the last reading, 1.0 s", " 10 "]);
    }

    #[test]
    fn draw_writes_only_lines_and_columns_that_fit() {
        let mut console = ScriptedConsole::new(Vec::new());
        console.size = (4, 3);
        draw(&mut console, "première\nsecond\nthird", &mut 0).unwrap();
        let view = &console.views[0];
        assert!(view.contains("prem") && view.contains("seco") && view.contains("q: q"), "{view}");
        assert!(!view.contains("premi") && !view.contains("secon") && !view.contains("thir"));
        console.size = (80, 0);
        draw(&mut console, "first", &mut 0).unwrap();
        assert!(!console.views[1].contains("first"));
    }

    #[test]
    fn live_view_scrolls_within_its_lines() {
        let dir = closed_database();
        replace(dir.path(), &metrics_file(NOW_US, 1));
        let arguments = arguments(dir.path());
        let keys = [
            KeyCode::Down,
            KeyCode::PageDown,
            KeyCode::End,
            KeyCode::Down,
            KeyCode::Up,
            KeyCode::PageUp,
            KeyCode::Home,
            KeyCode::Up,
        ];
        let steps = keys.map(|key| Box::new(move || Some(press(key, KeyModifiers::NONE))) as _);
        let mut console = ScriptedConsole::new(steps.into());
        console.size = (200, 6);
        let state = ObservedState::read(&arguments).unwrap();
        let text = view_text(&state, None);
        show_live(&arguments, state, &mut console).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.len() - 5;
        let expected = [0, 1, 5, last, last, last - 1, last - 5, 0, 0];
        assert_eq!(console.views.len(), expected.len());
        for (view, first) in console.views.iter().zip(expected) {
            assert_contains(view, &lines[first..first + 5]);
            assert_contains(view, &["q: quit"]);
            let hidden = lines[..first].iter().chain(&lines[first + 5..]);
            for line in hidden {
                assert!(!view.contains(line), "{line}: {view}");
            }
        }
    }

    #[test]
    fn live_view_ends_with_error_when_database_is_removed() {
        let dir = closed_database();
        let arguments = arguments(dir.path());
        let remove = || {
            for file in fs::read_dir(dir.path()).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        };
        let mut console = ScriptedConsole::new(vec![tick(remove)]);
        let state = ObservedState::read(&arguments).unwrap();
        let error = show_live(&arguments, state, &mut console).unwrap_err();
        assert!(format!("{error:?}").contains("NotADatabase"), "{error:?}");
    }
}
