//! A cache in front of a slow service: entries with an age limit, least work lost on a restart.
//!
//! ```sh
//! cargo run --release -p lsmx --example cache
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]
#![allow(clippy::disallowed_methods, reason = "the engine's clock is for the engine")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lsmx::{Db, Keyspace, KeyspaceOptions, Options};

/// Where answers are slow to get.
trait Service {
    fn ask(&mut self, question: &str) -> String;
}

/// Keeps answers of a service on disk. Everything is `Buffered`: after a power loss the worst is to
/// ask again.
struct Cache<S> {
    service: S,
    answers: Keyspace,
    age_max: Duration,
}

impl<S: Service> Cache<S> {
    fn open(path: &Path, service: S, age_max: Duration) -> lsmx::Result<Cache<S>> {
        // Entries are written once and looked up often: the default policy, a small memtable.
        let options = KeyspaceOptions::default().memtable_bytes(8 << 20);
        let db = Db::open(path, Options::default().block_cache_bytes(32 << 20))?;
        Ok(Cache { service, answers: db.keyspace("answers", options)?, age_max })
    }

    /// The service's answer, from the cache if it is there and not too old.
    fn ask(&mut self, question: &str) -> lsmx::Result<String> {
        let now = now_ms();
        if let Some(kept) = self.answers.get(question)?
            && let Some((written, answer)) = decode(&kept)
            && self.is_fresh(written, now)
        {
            return Ok(answer.to_owned());
        }
        let answer = self.service.ask(question);
        let mut value = now.to_le_bytes().to_vec();
        value.extend_from_slice(answer.as_bytes());
        self.answers.put(question, value)?;
        Ok(answer)
    }

    fn is_fresh(&self, written: u64, now: u64) -> bool {
        u128::from(now.saturating_sub(written)) < self.age_max.as_millis()
    }

    /// Forgets what is too old; returns how many entries that were.
    fn expire(&self) -> lsmx::Result<usize> {
        let (now, mut expired) = (now_ms(), 0);
        // The iterator sees the keyspace as it is now, so deleting beside it is safe.
        for item in self.answers.iter() {
            let (question, kept) = item?;
            if !decode(&kept).is_some_and(|(written, _)| self.is_fresh(written, now)) {
                self.answers.delete(&question)?;
                expired += 1;
            }
        }
        Ok(expired)
    }
}

/// When an entry was written, and the answer; `None` if the bytes are not an entry of ours.
fn decode(value: &[u8]) -> Option<(u64, &str)> {
    let (written, answer) = value.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*written), std::str::from_utf8(answer).ok()?))
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A service that takes its time, and counts.
struct Slow {
    asked: u32,
}

impl Service for Slow {
    fn ask(&mut self, question: &str) -> String {
        self.asked += 1;
        std::thread::sleep(Duration::from_millis(2));
        format!("{} letters", question.len())
    }
}

fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let hour = Duration::from_secs(3600);
    let mut cache = Cache::open(path, Slow { asked: 0 }, hour)?;
    for question in ["apple", "pear", "apple", "plum", "apple"] {
        let start = Instant::now();
        let answer = cache.ask(question)?;
        println!("{question}: {answer} after {:?}", start.elapsed());
    }
    assert_eq!(cache.service.asked, 3);

    // The next process finds it all there.
    drop(cache);
    let mut cache = Cache::open(path, Slow { asked: 0 }, hour)?;
    assert_eq!(cache.ask("pear")?, "4 letters");
    assert_eq!(cache.service.asked, 0);
    assert_eq!(cache.expire()?, 0);

    cache.age_max = Duration::ZERO;
    println!("{} answers expired", cache.expire()?);
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
