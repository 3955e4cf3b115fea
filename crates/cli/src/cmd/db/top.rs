//! Implements the command `lsmx db PATH top`: a live view of a database that another process has open.
//!
//! The view shows the metrics file of the database. Without this file it shows the manifest and the file sizes.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue};
use lsmx::metrics::{
    FollowerFileMetrics, KeyspaceMetrics, LatencyMetrics, LevelMetrics, Metrics, TransactionMetrics,
};
use lsmx::{MetricsReading, Observation, Options};
use lsmx_bench::report::text::format_bytes;

use crate::args::{DbArgs, TopArgs};
use crate::failure::Failure;
use crate::output;

/// Time between two views.
const REFRESH: Duration = Duration::from_secs(1);
/// A reading is out of date if its age exceeds this number of intervals of the metrics file.
const INTERVALS_MAX: u64 = 5;

pub(super) fn run(arguments: &DbArgs, top: &TopArgs) -> Result<(), Failure> {
    if top.once {
        let view = View::read(arguments)?;
        return output::stdout(view.text(None).as_bytes());
    }
    if !io::stdout().is_terminal() {
        let line = "standard output is not a terminal: use top --once";
        return Err(Failure::Usage(line.to_owned()));
    }
    // Fails before the terminal is changed if there is no database.
    let mut view = View::read(arguments)?;
    let _terminal = Terminal::enter().map_err(Failure::stdout)?;
    let mut previous: Option<Box<MetricsReading>> = None;
    loop {
        draw(&view.text(previous.as_deref())).map_err(Failure::stdout)?;
        if is_quit_requested().map_err(|error| Failure::file("read from", "the terminal", error))? {
            return Ok(());
        }
        let next = View::read(arguments)?;
        if let View::Metrics(reading) = view
            && !next.is_same_reading(&reading)
        {
            previous = Some(reading);
        }
        view = next;
    }
}

/// The state of a database at one moment.
enum View {
    /// Contents of the metrics file.
    Metrics(Box<MetricsReading>),
    /// The database has no metrics file.
    Observation(Box<Observation>),
}

impl View {
    fn read(arguments: &DbArgs) -> Result<View, Failure> {
        let (path, options) = (&arguments.path, Options::default());
        let (view, has_keyspace) = match lsmx::read_metrics_file(path, &options)? {
            Some(mut reading) => {
                let keyspaces = &mut reading.metrics.keyspaces;
                keyspaces.retain(|name, _| arguments.keyspace.as_ref().is_none_or(|it| it == name));
                let has_keyspace = !keyspaces.is_empty();
                (View::Metrics(Box::new(reading)), has_keyspace)
            }
            None => {
                let mut observation = lsmx::observe(path, &options)?;
                let keyspaces = &mut observation.keyspaces;
                keyspaces.retain(|name, _| arguments.keyspace.as_ref().is_none_or(|it| it == name));
                let has_keyspace = !keyspaces.is_empty();
                (View::Observation(Box::new(observation)), has_keyspace)
            }
        };
        match &arguments.keyspace {
            Some(name) if !has_keyspace => {
                Err(lsmx::Error::UnknownKeyspace { name: name.to_owned() }.into())
            }
            _ => Ok(view),
        }
    }

    fn is_same_reading(&self, other: &MetricsReading) -> bool {
        matches!(self, View::Metrics(reading) if reading.time_us == other.time_us)
    }

    /// Returns the view as text. Rates are averages since `previous`. Without a comparable previous reading, they are
    /// averages since the open.
    fn text(&self, previous: Option<&MetricsReading>) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = match self {
            View::Metrics(reading) => {
                // The counters restart at zero when the database is reopened, so a reading from before the reopen is
                // ignored.
                let previous = previous.filter(|it| it.open_us == reading.open_us);
                write_reading(&mut text, reading, previous)
            }
            View::Observation(observation) => write_observation(&mut text, observation),
        };
        text
    }
}

fn write_observation(text: &mut String, observation: &Observation) -> fmt::Result {
    if !observation.clean_close {
        writeln!(
            text,
            "The option metrics_file is off, so only the manifest and file sizes are known:"
        )?;
    }
    write!(text, "{observation}")
}

/// Computes rates from two readings of a counter.
struct Rates {
    seconds: f64,
}

impl Rates {
    fn per_second(&self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }

    fn count(&self, now: u64, before: u64) -> String {
        let rate = self.per_second(now, before);
        if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
    }

    fn bytes(&self, now: u64, before: u64) -> String {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is positive and far below 2^64 bytes per second"
        )]
        let rate = self.per_second(now, before) as u64;
        format!("{}/s", format_bytes(rate))
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Returns a line that states the age of a reading, if its process has not written the metrics file for too long.
pub(super) fn outdated_line(reading: &MetricsReading) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the command has no environment")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let age_us = now_us.saturating_sub(reading.time_us);
    let age_us_max = reading.interval_us.saturating_mul(INTERVALS_MAX).max(1_000_000);
    (age_us > age_us_max).then(|| {
        let age = seconds(age_us);
        format!("out of date: {age:.0} s old; the process was killed or cannot write")
    })
}

fn write_reading(
    text: &mut String,
    reading: &MetricsReading,
    previous: Option<&MetricsReading>,
) -> fmt::Result {
    let MetricsReading { process_id, open_us, time_us, metrics, .. } = reading;
    let open = seconds(time_us.saturating_sub(*open_us));
    writeln!(text, "process {process_id}, open for {open:.0} s")?;
    if let Some(line) = outdated_line(reading) {
        writeln!(text, "{line}")?;
    }
    match &metrics.read_only {
        Some(cause) => writeln!(text, "read-only: {cause}")?,
        None => writeln!(text, "writable, last sequence number {}", metrics.published_seq)?,
    }
    let (before, since_us, since) = match previous {
        Some(previous) => (Some(&previous.metrics), previous.time_us, "last reading"),
        None => (None, *open_us, "open"),
    };
    let elapsed = seconds(time_us.saturating_sub(since_us));
    let rates = Rates { seconds: elapsed.max(1e-6) };
    let nothing = Metrics::default();
    let before = before.unwrap_or(&nothing);
    writeln!(text, "rates since the {since}, {elapsed:.1} s:")?;
    write_operations(text, metrics, before, &rates)?;
    for (name, keyspace) in &metrics.keyspaces {
        let nothing = KeyspaceMetrics::default();
        let before = before.keyspaces.get(name).unwrap_or(&nothing);
        write_keyspace(text, name, (keyspace, before), &rates)?;
    }
    write_database(text, metrics, before, &rates)
}

fn write_operations(
    text: &mut String,
    metrics: &Metrics,
    before: &Metrics,
    rates: &Rates,
) -> fmt::Result {
    writeln!(
        text,
        "{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>13} {:>13}",
        "keyspace", "puts", "deletes", "merges", "gets", "found", "scanned", "written", "got"
    )?;
    let nothing = KeyspaceMetrics::default();
    for (name, keyspace) in &metrics.keyspaces {
        let before = before.keyspaces.get(name).unwrap_or(&nothing);
        let (now, then) = (&keyspace.operations, &before.operations);
        let [puts, deletes, merges, gets, found, scanned] = [
            (now.puts, then.puts),
            (now.deletes + now.range_deletes, then.deletes + then.range_deletes),
            (now.merges, then.merges),
            (keyspace.gets, before.gets),
            (now.gets_found, then.gets_found),
            (now.scan_entries, then.scan_entries),
        ]
        .map(|(now, before)| rates.count(now, before));
        let written = rates.bytes(keyspace.ingested_bytes, before.ingested_bytes);
        let read = rates.bytes(now.get_bytes + now.scan_bytes, then.get_bytes + then.scan_bytes);
        writeln!(
            text,
            "{name:<16} {puts:>9} {deletes:>9} {merges:>9} {gets:>9} {found:>9} {scanned:>9} {written:>13} {read:>13}"
        )?;
    }
    Ok(())
}

fn write_keyspace(
    text: &mut String,
    name: &str,
    (keyspace, before): (&KeyspaceMetrics, &KeyspaceMetrics),
    rates: &Rates,
) -> fmt::Result {
    writeln!(text, "keyspace {name} ({})", keyspace.policy)?;
    writeln!(text, " level  runs  files       bytes    entries       written")?;
    let mut write_level = |name: &str, level: &LevelMetrics, written_before: u64| {
        let LevelMetrics { runs, files, entries, .. } = level;
        let bytes = format_bytes(level.bytes);
        let written = rates.bytes(level.flow.written_bytes, written_before);
        writeln!(text, "{name:>6} {runs:>5} {files:>6} {bytes:>11} {entries:>10} {written:>13}")
    };
    for level in &keyspace.levels {
        let same = before.levels.iter().find(|it| it.level == level.level);
        let written_before = same.map_or(0, |it| it.flow.written_bytes);
        write_level(&format!("L{}", level.level), level, written_before)?;
    }
    write_level("total", &keyspace.total(), before.total().flow.written_bytes)?;
    let (jobs, stalls) = (&keyspace.running_jobs, &keyspace.stalls);
    writeln!(
        text,
        "  memtables {} ({} sealed); running: {} flushes, {} compactions with {} left",
        format_bytes(keyspace.memtable_bytes),
        keyspace.memtables_sealed,
        jobs.flushes,
        jobs.compactions,
        format_bytes(jobs.compaction_bytes_left)
    )?;
    let waited = seconds(stalls.us_total.saturating_sub(before.stalls.us_total));
    let throttled =
        seconds(stalls.throttle_us_total.saturating_sub(before.stalls.throttle_us_total));
    writeln!(
        text,
        "  stalls: {} writes waited {waited:.1} s, throttled for {throttled:.1} s; {} since the open",
        stalls.count.saturating_sub(before.stalls.count),
        stalls.count
    )?;
    let compaction = &keyspace.compaction;
    if compaction.failures + compaction.quarantined_files > 0 {
        let (failures, files) = (compaction.failures, compaction.quarantined_files);
        writeln!(text, "  {failures} failed jobs, {files} files in quarantine")?;
    }
    Ok(())
}

fn write_database(
    text: &mut String,
    metrics: &Metrics,
    before: &Metrics,
    rates: &Rates,
) -> fmt::Result {
    let sums = |metrics: &Metrics| {
        let caches = metrics.cache.values();
        caches.fold((0, 0), |(hits, misses), it| (hits + it.hits, misses + it.misses))
    };
    let ((hits, misses), (hits_before, misses_before)) = (sums(metrics), sums(before));
    let (hits, misses) = (hits.saturating_sub(hits_before), misses.saturating_sub(misses_before));
    let rate = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
    let memory = &metrics.memory;
    let [data, metadata, cache_max, memtables, memtables_max, total] = [
        memory.data_blocks,
        memory.metadata_blocks,
        memory.block_cache_bytes_max,
        memory.memtables_active + memory.memtables_sealed,
        memory.memtable_bytes_max,
        memory.total(),
    ]
    .map(format_bytes);
    writeln!(
        text,
        "cache: {rate:.1} % hits of {}/s, data {data}, metadata {metadata}, of {cache_max}",
        rates.count(hits + misses, 0)
    )?;
    writeln!(text, "memory: {total}, memtables {memtables} of {memtables_max}")?;
    let wal = &metrics.wal;
    writeln!(
        text,
        "log: {} segments, {}, {} written, {} syncs/s, {} commits/s",
        wal.segments,
        format_bytes(wal.live_bytes),
        rates.bytes(wal.written_bytes, before.wal.written_bytes),
        rates.count(wal.syncs, before.wal.syncs),
        rates.count(metrics.commits.requests, before.commits.requests)
    )?;
    write_transactions(text, &metrics.transactions, &before.transactions, rates)?;
    let disk = &metrics.disk;
    let [tables, blobs, reserve] =
        [disk.table_bytes, disk.blob_bytes, disk.reserve_bytes].map(format_bytes);
    writeln!(text, "disk: tables {tables}, blob files {blobs}, reserve {reserve}")?;
    let (io, io_before) = (&metrics.background_io, &before.background_io);
    let flushes = rates.bytes(io.flush.bytes, io_before.flush.bytes);
    let compactions = rates.bytes(io.compaction.bytes, io_before.compaction.bytes);
    let limit = io.rate.map_or("none".to_owned(), |rate| format!("{}/s", format_bytes(rate)));
    writeln!(text, "background I/O: flushes {flushes}, compactions {compactions}, limit {limit}")?;
    let held = &metrics.held;
    let age = seconds(held.oldest_snapshot_age_us);
    writeln!(
        text,
        "snapshots: {}, oldest {age:.0} s; {} obsolete files of {} held; {} of {} descriptors",
        held.snapshots,
        held.files,
        format_bytes(held.file_bytes),
        metrics.descriptors.open,
        metrics.descriptors.max
    )?;
    let FollowerFileMetrics { followers, files, file_bytes, .. } = metrics.followers;
    if followers > 0 {
        let bytes = format_bytes(file_bytes);
        writeln!(text, "followers: {followers}; {files} obsolete files of {bytes} kept")?;
    }
    let latency = &metrics.operation_latency;
    for (operation, latency) in [
        ("get", &latency.get_ns),
        ("multi_get", &latency.multi_get_ns),
        ("commit", &latency.commit_ns),
        ("scan step", &latency.scan_step_ns),
        ("update", &latency.update_ns),
    ] {
        write_latency(text, operation, latency)?;
    }
    Ok(())
}

/// Writes one line, if the database has had transactions.
fn write_transactions(
    text: &mut String,
    now: &TransactionMetrics,
    before: &TransactionMetrics,
    rates: &Rates,
) -> fmt::Result {
    if now.begun == 0 {
        return Ok(());
    }
    let [committed, conflicts, waits, timeouts, deadlocks] = [
        (now.committed, before.committed),
        (now.conflicts, before.conflicts),
        (now.lock_waits, before.lock_waits),
        (now.lock_timeouts, before.lock_timeouts),
        (now.lock_deadlocks, before.lock_deadlocks),
    ]
    .map(|(now, before)| rates.count(now, before));
    let waited = seconds(now.lock_wait_us_total.saturating_sub(before.lock_wait_us_total));
    writeln!(
        text,
        "transactions: {committed} commits/s, {conflicts} conflicts/s; {} locked keys, {waits} lock waits/s of {waited:.1} s, {timeouts} timeouts/s, {deadlocks} deadlocks/s",
        now.locks_held
    )
}

fn write_latency(text: &mut String, operation: &str, latency: &LatencyMetrics) -> fmt::Result {
    if latency.count == 0 {
        return Ok(());
    }
    let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(|ns| ns as f64 / 1e3);
    let count = latency.count;
    writeln!(text, "{operation}: p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us of {count}")
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

/// Draws the lines that fit the terminal.
fn draw(text: &str) -> io::Result<()> {
    let (columns, rows) = size()?;
    let mut out = io::stdout().lock();
    queue!(out, cursor::MoveTo(0, 0), Clear(ClearType::All))?;
    let lines = text.lines().chain(["q: quit"]).take(usize::from(rows));
    for (row, line) in (0..rows).zip(lines) {
        let line: String = line.chars().take(usize::from(columns)).collect();
        queue!(out, cursor::MoveTo(0, row))?;
        out.write_all(line.as_bytes())?;
    }
    out.flush()
}

/// Waits until the next view is due. Returns whether the user pressed `q` or Ctrl-C.
fn is_quit_requested() -> io::Result<bool> {
    if !event::poll(REFRESH)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => is_control,
        _ => false,
    })
}
