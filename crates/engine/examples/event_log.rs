//! An event log: events of many streams in the order of time, the last few of a stream at once, and
//! old ones deleted by the range, whatever their number.
//!
//! ```sh
//! cargo run --release -p lsmx --example event_log
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;

use lsmx::metrics::BlockKind;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, Slice, WriteBatch};

/// Events by stream, time and, among those of the same microsecond, the order they came in.
struct EventLog {
    db: Db,
    events: Keyspace,
}

/// When it happened, in microseconds, and what.
type Event = (u64, Slice);

impl EventLog {
    fn open(path: &Path) -> lsmx::Result<EventLog> {
        let db = Db::open(path, Options::default())?;
        // Small tables, because this example is small: a range delete frees whole tables unread, and
        // only the two at its ends have to be written again. The default, at least 8 MiB, suits gigabytes.
        let options = KeyspaceOptions::default().memtable_bytes(256 << 10).table_bytes(64 << 10);
        let events = db.keyspace("events", options)?;
        Ok(EventLog { db, events })
    }

    /// Appends events of one moment to a stream, all or none.
    fn append(&self, stream: &str, time_us: u64, events: &[&[u8]]) -> lsmx::Result<()> {
        let mut batch = WriteBatch::new();
        for (number, event) in (0..).zip(events) {
            let mut key = key(stream, time_us);
            key.extend_from_slice(&u32::to_be_bytes(number));
            batch.put(&self.events, key, event);
        }
        self.db.write(batch, Durability::Buffered)
    }

    /// All events of a stream, oldest first.
    fn of_stream(&self, stream: &str) -> impl Iterator<Item = lsmx::Result<Event>> {
        self.events.prefix(prefix(stream)).map(|entry| entry.map(event))
    }

    /// The last events of a stream, newest first: the iterator starts at the end, so it does not
    /// matter how many there are before.
    fn last(&self, stream: &str, count: u64) -> lsmx::Result<Vec<Event>> {
        let newest_first = self.events.prefix(prefix(stream)).limit(count).rev();
        newest_first.map(|entry| entry.map(event)).collect()
    }

    /// Forgets what happened in a stream before this time: one record in the log, however many
    /// events that are.
    fn forget(&self, stream: &str, before_us: u64) -> lsmx::Result<()> {
        self.events.delete_range(prefix(stream)..key(stream, before_us))
    }

    /// Data blocks that readers have asked for so far, from memory or from storage.
    fn blocks_read(&self) -> u64 {
        let cache = self.db.metrics().cache;
        cache.get(&BlockKind::Data).map_or(0, |blocks| blocks.hits + blocks.misses)
    }

    /// Bytes of the keyspace's tables.
    fn bytes(&self) -> u64 {
        self.db.metrics().keyspaces.get("events").map_or(0, |events| events.total().bytes)
    }
}

/// Stream and a byte that no stream has: so no stream's prefix begins another's.
fn prefix(stream: &str) -> Vec<u8> {
    [stream.as_bytes(), &[0]].concat()
}

/// Numbers in big-endian order sort as bytes do.
fn key(stream: &str, time_us: u64) -> Vec<u8> {
    [&prefix(stream)[..], &time_us.to_be_bytes()].concat()
}

fn event((key, what): (Slice, Slice)) -> Event {
    // The time stands before the last four bytes; every key here was made by `append`.
    let time = key.len().checked_sub(12).and_then(|at| key[at..].first_chunk());
    (time.map_or(0, |bytes| u64::from_be_bytes(*bytes)), what)
}

const STREAMS: [&str; 3] = ["doors", "lamps", "lifts"];
/// Moments at which something happens in every stream.
const MOMENTS: u64 = 20_000;

fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let log = EventLog::open(path)?;
    for moment in 0..MOMENTS {
        for stream in STREAMS {
            let what = format!("{stream}: event number {moment:06}, and some words about it");
            log.append(stream, 1000 * moment, &[what.as_bytes()])?;
        }
    }
    // Two at the same moment keep their order.
    log.append("doors", 1000 * MOMENTS, &[b"opened", b"closed"])?;
    log.db.flush()?;
    log.db.wait_idle()?;

    let last = log.last("doors", 3)?;
    for (time, what) in &last {
        println!("{time} µs: {}", what.escape_ascii());
    }
    assert_eq!((&*last[0].1, &*last[1].1), (&b"closed"[..], &b"opened"[..]));
    assert_eq!(last[2].0, 1000 * (MOMENTS - 1));

    let (bytes_full, blocks) = (log.bytes(), log.blocks_read());
    assert_eq!(log.of_stream("lamps").count() as u64, MOMENTS);
    let blocks_full = log.blocks_read() - blocks;

    // Retention: of each stream the last hundred moments stay. A snapshot taken before goes on seeing
    // all of it, so until it is let go no file can go either.
    let before = log.db.snapshot();
    for stream in STREAMS {
        log.forget(stream, 1000 * (MOMENTS - 100))?;
    }
    log.db.flush()?;
    log.db.wait_idle()?;
    let (bytes_held, blocks) = (log.bytes(), log.blocks_read());
    // The deleted events are still in their files, and a scan leaps over them without a look.
    assert_eq!(log.of_stream("lamps").count(), 100);
    let blocks_left = log.blocks_read() - blocks;
    println!("a scan of a stream asked for {blocks_full} blocks before, for {blocks_left} after");
    assert!(blocks_full > 200 && blocks_left <= 20, "{blocks_full} and {blocks_left} blocks");
    assert_eq!(before.prefix(&log.events, prefix("lamps")).count() as u64, MOMENTS);

    // Without the snapshot, files with deleted events only are dropped unread. Files that contain both events and their
    // deletion remain until the next compaction.
    drop(before);
    log.db.wait_idle()?;
    let bytes_left = log.bytes();
    println!("tables: {bytes_full} bytes, with a snapshot {bytes_held}, without {bytes_left}");
    assert!(bytes_held > bytes_full / 2 && bytes_left < bytes_full / 3);
    assert_eq!(
        log.of_stream("lifts").next().transpose()?.map(|(time, _)| time),
        Some(1000 * (MOMENTS - 100))
    );
    assert_eq!(log.of_stream("doors").count(), 102);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let home = tempfile::tempdir()?;
    run(home.path())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}
