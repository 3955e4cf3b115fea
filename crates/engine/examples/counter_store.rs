//! Counters and statistics that many writers change without reading them: a merge stores the change
//! alone, and whoever reads adds up.
//!
//! ```sh
//! cargo run --release -p lsmx --example counter_store
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;

use lsmx::merge_operator::Counter;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Update, WriteBatch};
use lsmx::{MergeError, MergeOperator, MergeResult, Options};

/// What is known of a series of measurements: all that matters of them in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Summary {
    count: u64,
    sum: u64,
    least: u64,
    most: u64,
}

impl Summary {
    fn of_one(measured: u64) -> Summary {
        Summary { count: 1, sum: measured, least: measured, most: measured }
    }

    /// Summaries of two series make that of both: so an operand, several operands folded together
    /// and a value all look the same.
    fn and(self, other: Summary) -> Summary {
        Summary {
            count: self.count.wrapping_add(other.count),
            sum: self.sum.wrapping_add(other.sum),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    fn encode(self) -> Vec<u8> {
        [self.count, self.sum, self.least, self.most].map(u64::to_le_bytes).concat()
    }

    fn decode(bytes: &[u8]) -> Option<Summary> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let number = |at: usize| numbers.get(at).map(|bytes| u64::from_le_bytes(*bytes));
        Some(Summary { count: number(0)?, sum: number(1)?, least: number(2)?, most: number(3)? })
    }
}

/// The merge operator of summaries.
#[derive(Debug)]
struct Summarise;

impl MergeOperator for Summarise {
    // The database remembers the name. Whoever changes the encoding changes the name.
    fn name(&self) -> &'static str {
        "example.summary"
    }

    fn full_merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> MergeResult {
        let mut whole: Option<Summary> = None;
        for bytes in base.into_iter().chain(operands.iter().copied()) {
            // Bytes of somebody else's make this key unreadable, and no other; nothing panics.
            let part = Summary::decode(bytes);
            let part = part.ok_or_else(|| MergeError::new("a summary has 32 bytes"))?;
            whole = Some(whole.map_or(part, |whole| whole.and(part)));
        }
        Ok(whole.map(Summary::encode))
    }

    // With this, jobs fold operands without looking for what lies below, so chains stay short.
    fn partial_merge(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        Some(Summary::decode(older)?.and(Summary::decode(newer)?).encode())
    }
}

/// Visits by page, and how long the answers took.
struct Statistics {
    db: Db,
    visits: Keyspace,
    answers: Keyspace,
}

impl Statistics {
    fn open(path: &Path) -> lsmx::Result<Statistics> {
        let db = Db::open(path, Options::default())?;
        // Operators are code, so each run of the program gives them.
        let visits = db.keyspace("visits", KeyspaceOptions::default().merge_operator(Counter))?;
        let answers =
            db.keyspace("answers", KeyspaceOptions::default().merge_operator(Summarise))?;
        Ok(Statistics { db, visits, answers })
    }

    /// Counts a visit and what it took, both or neither. Reads nothing, waits for nobody.
    fn visited(&self, page: &str, took_us: u64) -> lsmx::Result<()> {
        let mut batch = WriteBatch::new();
        batch.merge(&self.visits, page, 1u64.to_le_bytes());
        batch.merge(&self.answers, page, Summary::of_one(took_us).encode());
        self.db.write(batch, Durability::Buffered)
    }

    fn count(&self, page: &str) -> lsmx::Result<u64> {
        Ok(self.visits.get(page)?.map_or(0, |value| number(&value)))
    }

    fn summary(&self, page: &str) -> lsmx::Result<Option<Summary>> {
        Ok(self.answers.get(page)?.and_then(|value| Summary::decode(&value)))
    }

    /// Takes one of a stock, if there is one; returns whether there was.
    ///
    /// A merge could subtract, but it never sees the value, so it cannot refuse, and nobody learns
    /// what it came to. `fetch_update` reads, decides, and writes only if nobody wrote the key
    /// meanwhile; otherwise it decides again. That costs a read for each change, and changes of one
    /// key go one after the other, where merges of one key just pile up.
    fn take(&self, stock: &str) -> lsmx::Result<bool> {
        let before = self.db.default_keyspace().fetch_update(stock, |left| {
            match left.map_or(0, number) {
                0 => Update::Keep,
                left => Update::Put((left - 1).to_le_bytes().to_vec()),
            }
        })?;
        Ok(before.is_some_and(|left| number(&left) > 0))
    }
}

/// The number in these bytes; 0 if they are none of ours.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let statistics = Statistics::open(path)?;
    // Four threads count the same pages; no change is lost, and none waits for another's read.
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let mut threads = Vec::new();
        for thread in 0..4u64 {
            let statistics = &statistics;
            threads.push(scope.spawn(move || {
                (0..1000).try_for_each(|n| {
                    let page = if n % 10 == 0 { "/about" } else { "/" };
                    statistics.visited(page, 100 * thread + n % 7)
                })
            }));
        }
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })?;
    assert_eq!((statistics.count("/")?, statistics.count("/about")?), (3600, 400));
    let summary = statistics.summary("/")?.ok_or("it was visited")?;
    println!("/ was visited {} times: {summary:?}", statistics.count("/")?);
    assert_eq!((summary.count, summary.least, summary.most), (3600, 0, 306));

    // A snapshot keeps its count, whatever is merged into the key later.
    let yesterday = statistics.db.snapshot();
    statistics.visited("/", 5000)?;
    let then = yesterday.get(&statistics.visits, "/")?;
    assert_eq!((then.as_deref().map(number), statistics.count("/")?), (Some(3600), 3601));
    drop(yesterday);

    // Two are left, three want one.
    statistics.db.put("stock/apples", 2u64.to_le_bytes())?;
    let taken = [(); 3].map(|()| statistics.take("stock/apples"));
    assert_eq!(taken.into_iter().collect::<Result<Vec<_>, _>>()?, [true, true, false]);

    // Whoever opens it without the operators cannot merge, nor read a key that still has operands.
    let Statistics { db, .. } = statistics;
    db.close(None)?;
    drop(db);
    let db = Db::open(path, Options::default())?;
    let refused = db.open_keyspace("visits", None)?.merge("/", 1u64.to_le_bytes());
    println!("without its operator: {refused:?}");
    assert!(matches!(refused, Err(lsmx::Error::NoMergeOperator { .. })));
    drop(db);

    // With them it is all there.
    let statistics = Statistics::open(path)?;
    assert_eq!(statistics.count("/")?, 3601);
    assert_eq!(statistics.summary("/")?.map(|summary| summary.most), Some(5000));
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
