//! Power losses while several threads write under a random schedule.
//!
//! If one commit was acknowledged before another commit began, it precedes the other commit. If the later commit
//! survives a crash, the earlier commit must survive too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::vfs::MemVfs;
use lsmx::{Db, Durability, Keyspace, Slice, WriteBatch};
use lsmx_testkit::{TestRng, mix_seeds};

use super::history::KEYSPACES;
use super::{Outcome, options, oracle};

const WRITERS: usize = 3;

/// Number of commits of each writer.
type Counts = [u64; WRITERS];

/// The number of commits of each writer that were attempted, acknowledged and synced at a point in time.
#[derive(Clone, Debug, Default)]
struct Board {
    attempted: Counts,
    acknowledged: Counts,
    synced: Counts,
    /// For each commit of each writer, the numbers of commits that were acknowledged when this commit began.
    before: [Vec<Counts>; WRITERS],
}

fn raise(counts: &mut Counts, to: &Counts) {
    for (count, to) in counts.iter_mut().zip(to) {
        *count = (*count).max(*to);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    board: Mutex<Board>,
    crashes: Mutex<Vec<(u64, CrashImage, MemVfs, Board)>>,
    failure: Mutex<Outcome>,
}

/// Runs one schedule and checks the disk images taken during it. Returns the number of images.
pub(crate) fn play(seed: u64) -> Outcome<u64> {
    let failed = |error: lsmx::Error| format!("{error:?}");
    let mut rng = TestRng::new(seed);
    let disk = MemVfs::new();
    let background = Background::Stepped { seed, workers: 1 };
    let db = oracle::open(&disk, options::draw(&mut rng, background))?;
    let other = db.keyspace(KEYSPACES[1], options::draw_keyspace(&mut rng)).map_err(failed)?;
    let keyspaces = [db.default_keyspace(), other];
    let shared = Arc::new(Shared {
        board: Mutex::default(),
        crashes: Mutex::default(),
        failure: Mutex::new(Ok(())),
    });
    let watching = Arc::clone(&shared);
    disk.set_observer(Some(Arc::new(
        move |disk: &MemVfs, operation: lsmx::internals::vfs::MemOperation<'_>| {
            let mut rng = TestRng::new(mix_seeds(seed, operation.index));
            if rng.is_one_in(6) {
                let image = *rng.choose(&CrashImage::ALL);
                let board = lock(&watching.board).clone();
                let crashed = disk.crash(image, rng.next_u64());
                lock(&watching.crashes).push((operation.index, image, crashed, board));
            }
        },
    )));
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let env = db.env().clone();
        let (db, keyspaces, shared) = (db.clone(), keyspaces.clone(), Arc::clone(&shared));
        let body = move || {
            let rng = TestRng::new(mix_seeds(seed, writer as u64));
            if let Err(what) = write(&db, &keyspaces, writer, rng, &shared.board) {
                *lock(&shared.failure) = Err(what);
            }
        };
        let thread = env.spawn(&name(writer), body);
        threads.push(thread.map_err(|error| error.to_string())?);
    }
    for thread in threads {
        db.env().join(thread).map_err(|_| "a writer panicked".to_owned())?;
    }
    disk.set_observer(None);
    drop((keyspaces, db));
    std::mem::replace(&mut *lock(&shared.failure), Ok(()))?;
    let crashes = std::mem::take(&mut *lock(&shared.crashes));
    for (index, image, disk, board) in &crashes {
        check(disk, board, &mut rng)
            .map_err(|what| format!("crash before operation {index}, {image:?}: {what}"))?;
    }
    Ok(crashes.len() as u64)
}

fn name(writer: usize) -> String {
    format!("writer-{writer}")
}

/// Commits batches to both keyspaces, some with a sync. Reads each batch after its commit.
fn write(
    db: &Db,
    keyspaces: &[Keyspace; 2],
    writer: usize,
    mut rng: TestRng,
    board: &Mutex<Board>,
) -> Outcome {
    let failed = |error: lsmx::Error| format!("{error:?}");
    for number in 1..=12 + rng.below(20) {
        let before = {
            let mut board = lock(board);
            board.attempted[writer] = number;
            let before = board.acknowledged;
            board.before[writer].push(before);
            before
        };
        let mut batch = WriteBatch::new();
        for keyspace in keyspaces {
            batch.put(keyspace, name(writer), number.to_le_bytes());
            let len = rng.below(200);
            batch.put(keyspace, [u8::try_from(number % 7).unwrap_or(0)], rng.bytes(len));
        }
        let sync = rng.is_one_in(3);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        db.write(batch, durability).map_err(failed)?;
        let mut synced = before;
        synced[writer] = number;
        {
            let mut board = lock(board);
            board.acknowledged[writer] = number;
            if sync {
                raise(&mut board.synced, &synced);
            }
        }
        // A snapshot never changes, and contains each batch completely or not at all.
        let snapshot = db.snapshot();
        let views = [0, 1, 0].map(|at: usize| counts(|key| snapshot.get(&keyspaces[at], key)));
        if views[0] != views[1] || views[0] != views[2] {
            return Err(format!("one snapshot shows {views:?}"));
        }
        // A read of a writer returns its last commit and all commits that were acknowledged before this commit began.
        let seen = counts(|key| keyspaces[1].get(key))?;
        if seen.iter().zip(&synced).any(|(seen, known)| seen < known) {
            return Err(format!("writer {writer} sees {seen:?}, {synced:?} was acknowledged"));
        }
    }
    Ok(())
}

/// Returns the number of visible commits of each writer.
fn counts(get: impl Fn(String) -> lsmx::Result<Option<Slice>>) -> Outcome<Counts> {
    let mut counts = Counts::default();
    for (writer, count) in counts.iter_mut().enumerate() {
        let value = get(name(writer)).map_err(|error| format!("{error:?}"))?;
        let bytes = value.map_or(Ok([0; 8]), |value| <[u8; 8]>::try_from(&*value));
        *count = u64::from_le_bytes(bytes.map_err(|_| "a counter of another length")?);
    }
    Ok(counts)
}

fn check(disk: &MemVfs, board: &Board, rng: &mut TestRng) -> Outcome {
    let db = oracle::open(disk, options::draw(rng, Background::Inline))?;
    let shown = counts(|key| db.get(key))?;
    let other = db.open_keyspace(KEYSPACES[1], None).map_err(|error| format!("{error:?}"))?;
    let elsewhere = counts(|key| other.get(key))?;
    if elsewhere != shown {
        return Err(format!("{shown:?} commits in one keyspace, {elsewhere:?} in the other"));
    }
    for writer in 0..WRITERS {
        let (synced, attempted) = (board.synced[writer], board.attempted[writer]);
        if !(synced..=attempted).contains(&shown[writer]) {
            return Err(format!("writer {writer}: {shown:?}, synced {:?}", board.synced));
        }
        let Some(last) = usize::try_from(shown[writer]).ok().and_then(|n| n.checked_sub(1)) else {
            continue;
        };
        let before = board.before[writer][last];
        if before.iter().zip(&shown).any(|(before, shown)| before > shown) {
            return Err(format!("{shown:?} are there, {before:?} came before writer {writer}'s"));
        }
    }
    drop((other, db));
    oracle::verify_clean(disk)
}
