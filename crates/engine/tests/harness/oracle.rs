//! Checks that all keyspaces contain the same prefix of the history, and that the prefix includes all commits that
//! must survive.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lsmx::env::Background;
use lsmx::internals::vfs::MemOperationKind;
use lsmx::vfs::CrashImage;
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, Keyspace, Options, VerifyReport, WriteBatch};
use lsmx_testkit::TestRng;
use lsmx_testkit::simple_store::{all_stores, may_be_orphan};
use lsmx_testkit::world::{
    CheckedCursor, CursorMove, Pairs, compare_keyspace, compare_pairs, random_read_options,
};

pub(crate) use lsmx_testkit::world::Trouble;

use super::coverage::Coverage;
use super::history::{
    COUNTER, Commit, History, KEYSPACES, State, advance_to_next_hour, apply, draw_commit, key, keys,
};
use super::recorder::{Crash, Presence, Promises, Recorder, Sampling};
use super::{Outcome, options, passing};

pub(crate) const DIR: &str = "db";

/// Number of random moves of the cursor of a comparison.
const CURSOR_MOVES: u64 = 8;

pub(crate) fn open(disk: &MemVfs, options: Options) -> Outcome<Db> {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    Db::open(DIR, options.vfs(vfs)).map_err(|error| format!("opening fails: {error:?}"))
}

/// Returns the number of commits that a database contains.
pub(crate) fn counter(db: &Db) -> Result<u64, Trouble> {
    let Some(value) = db.get(COUNTER)? else { return Ok(0) };
    let bytes = <[u8; 8]>::try_from(&*value);
    let number = bytes.map(u64::from_le_bytes);
    number.map_err(|_| Trouble::Wrong(format!("the counter has {} bytes", value.len())))
}

/// Compares the contents with the model at the current time of the database clock, by scans, lookups, ranges and moves of a cursor.
pub(crate) fn compare(db: &Db, state: &State, rng: &mut TestRng) -> Result<(), Trouble> {
    let now_us = db.env().now_us();
    for (name, state) in KEYSPACES.iter().zip(state) {
        let keyspace = match db.open_keyspace(name, None) {
            Ok(keyspace) => keyspace,
            Err(_) if state.is_empty() => continue,
            Err(error) => {
                let keys = state.at(now_us).len();
                return Err(Trouble::Wrong(format!("{error}, it has {keys} keys")));
            }
        };
        let pairs = state.at(now_us);
        compare_with_ranges(&keyspace, &pairs, rng).map_err(|trouble| match trouble {
            Trouble::Wrong(what) => Trouble::Wrong(format!("[{name}] {what}")),
            failed => failed,
        })?;
    }
    Ok(())
}

/// Compares a keyspace, and two random ranges of it, with the model.
fn compare_with_ranges(
    keyspace: &Keyspace,
    pairs: &Pairs,
    rng: &mut TestRng,
) -> Result<(), Trouble> {
    compare_keyspace(
        keyspace,
        pairs,
        keys().chain([COUNTER, b"absent", &[0xff; 9]].map(Into::into)),
    )?;
    let (one, other) = (key(rng.next_u64()), key(rng.next_u64()));
    let (low, high) = if one < other { (one, other) } else { (other, one) };
    let range = low.clone()..high.clone();
    compare_pairs("range", keyspace.range(range.clone()), pairs.range(range))?;
    compare_pairs(
        "backward range",
        keyspace.range(low.clone()..=high.clone()).rev(),
        pairs.range(low..=high).rev(),
    )?;
    let prefix = &key(rng.next_u64())[..];
    let prefix = &prefix[..prefix.len().min(rng.below(5))];
    let expected = pairs.iter().filter(|(key, _)| key.starts_with(prefix));
    compare_pairs("prefix", keyspace.prefix(prefix), expected.clone())?;
    compare_pairs("backward prefix", keyspace.prefix(prefix).rev(), expected.rev())?;
    let cursor = keyspace.cursor(&random_read_options(rng))?;
    let mut cursor = CheckedCursor::new(cursor, pairs, |_| true);
    for _ in 0..CURSOR_MOVES {
        let target = key(rng.next_u64());
        cursor.apply(&CursorMove::random(rng, target))?;
    }
    Ok(())
}

/// Contents of a reopened database.
struct Recovered {
    n: u64,
    state: State,
}

/// Opens a disk image and checks it. `history` contains the commits of the run up to this image. Returns the number of
/// checked images.
pub(crate) fn check(crash: &Crash, history: &History, coverage: &Arc<Coverage>) -> Outcome<u64> {
    options::set_stores(crash.promises.stores);
    let mut rng = TestRng::new(crash.image_seed);
    let depth = if rng.is_one_in(4) { Sampling::Chance(20_000) } else { Sampling::NONE };
    let recovery = Recorder::watch(&crash.disk, crash.image_seed, depth, coverage);
    let opened = open_tuned(&crash.disk, &mut rng, coverage)?;
    crash.disk.set_observer(None);
    let recovered = check_recovered(&opened, crash, history, &mut rng)?;
    passing::check(&opened, &crash.promises.passing)?;
    passing::check_clone(&opened, &crash.promises.cloned)?;
    for checkpoint in &crash.promises.checkpoints {
        if !checkpoint.done || rng.is_one_in(3) {
            passing::check_checkpoint(&crash.disk, checkpoint, history, &mut rng)?;
        }
    }
    let smallest = recovery.promises().file_smallest;
    // An open that fails removes the files that it has created, and then the directory. Their numbers are free again.
    let is_cleaned = crash.at.0 == MemOperationKind::Remove && crash.at.1 == Path::new(DIR);
    let opening = if is_cleaned { 0 } else { crash.promises.file_opening };
    let largest = crash.promises.file_largest.max(opening);
    if let Some(number) = smallest
        && number <= largest
    {
        return Err(format!("file number {number} is used again, {largest} was the largest"));
    }
    let mut images = 1;
    if rng.is_one_in(3) {
        images += go_on(opened, &crash.disk, &recovered, &mut rng, coverage)?;
    } else {
        drop(opened);
        verify_clean(&crash.disk)?;
    }
    for nested in recovery.take() {
        check_nested(&nested, &recovered, coverage).map_err(|what| {
            format!(
                "crash in recovery before operation {} ({:?}, {:?}), image {:?} seed {}: {what}",
                nested.index, nested.at.0, nested.at.1, nested.image, nested.image_seed
            )
        })?;
        images += 1;
    }
    Ok(images)
}

fn open_tuned(disk: &MemVfs, rng: &mut TestRng, coverage: &Arc<Coverage>) -> Outcome<Db> {
    let listener = Arc::clone(coverage);
    open(disk, options::draw(rng, Background::Inline).listener(listener))
}

fn check_recovered(
    db: &Db,
    crash: &Crash,
    history: &History,
    rng: &mut TestRng,
) -> Outcome<Recovered> {
    let promises = &crash.promises;
    let n = counter(db)?;
    let (synced, attempted) = (promises.synced, promises.attempted());
    if !(synced..=attempted).contains(&n) {
        return Err(format!("{n} commits are there, {synced} were synced, {attempted} attempted"));
    }
    let mut state = history.state(n.min(promises.committed));
    if n > promises.committed
        && let Some(pending) = &promises.pending
    {
        apply(&mut state, pending);
    }
    compare(db, &state, rng)
        .map_err(|what| format!("after {n} commits: {}", String::from(what)))?;
    let names = db.keyspaces();
    let other = names.iter().any(|name| name == KEYSPACES[1]);
    match promises.other {
        Presence::No if other => return Err("a keyspace that nobody made is there".to_owned()),
        Presence::Yes if !other => return Err("a keyspace that was made is gone".to_owned()),
        _ => {}
    }
    for (name, policies) in KEYSPACES.iter().zip(&promises.policies) {
        if let Ok(keyspace) = db.open_keyspace(name, None)
            && !policies.is_empty()
            && !policies.contains(&keyspace.options().policy.to_string())
        {
            let policy = keyspace.options().policy;
            return Err(format!("[{name}] has policy {policy}, expected one of {policies:?}"));
        }
    }
    let seq = db.snapshot().seq().0;
    if seq < promises.seq_largest {
        let largest = promises.seq_largest;
        return Err(format!("sequence numbers go on after {seq}, {largest} was given before"));
    }
    Ok(Recovered { n, state })
}

/// Verifies a closed database with its operand stores.
pub(crate) fn verify(disk: &MemVfs) -> Result<VerifyReport, Error> {
    let options = Options::default().vfs(Arc::new(disk.clone()));
    lsmx::verify(DIR, &all_stores().into_iter().fold(options, Options::operand_store))
}

/// Verifies the files after a clean close. There must be no orphans and no bytes after the last WAL record.
pub(crate) fn verify_clean(disk: &MemVfs) -> Outcome {
    let report = verify(disk).map_err(|error| format!("verify fails: {error:?}"))?;
    let orphans = report.orphans.iter().any(|orphan| !may_be_orphan(orphan));
    if !orphans && report.wal_tail_bytes == 0 {
        return Ok(());
    }
    Err(format!("after a clean close: {report:?}"))
}

/// Writes more commits to a recovered database. Then takes another disk image, and checks the image and the database.
fn go_on(
    db: Db,
    disk: &MemVfs,
    recovered: &Recovered,
    rng: &mut TestRng,
    coverage: &Arc<Coverage>,
) -> Outcome<u64> {
    let failed = |error: lsmx::Error| format!("writing on fails: {error:?}");
    let keyspaces = db.keyspaces();
    let keyspaces: Result<Vec<_>, _> = KEYSPACES
        .iter()
        .filter(|name| keyspaces.iter().any(|there| there == *name))
        .map(|name| db.open_keyspace(name, None))
        .collect();
    let keyspaces = keyspaces.map_err(failed)?;
    let mut states = vec![recovered.state.clone()];
    let (mut n, mut synced) = (recovered.n, recovered.n);
    for _ in 0..1 + rng.below(8) {
        n += 1;
        let commit = draw_commit(rng, n, keyspaces.len(), db.env().now_us());
        let (kind, sync) = (CommitKind::random(rng), rng.is_one_in(4));
        write(&db, &keyspaces, &commit, kind, sync).map_err(failed)?;
        let mut state = states[states.len() - 1].clone();
        apply(&mut state, &commit);
        states.push(state);
        if rng.is_one_in(16) {
            db.flush().map_err(failed)?;
            synced = n;
        }
        if rng.is_one_in(8) {
            advance_to_next_hour(&db);
        }
        if sync {
            synced = n;
        }
    }
    let image = *rng.choose(&CrashImage::ALL);
    let second = disk.crash(image, rng.next_u64());
    coverage.add("second crashes", super::recorder::image_name(image));
    let seq = db.snapshot().seq().0;
    let describe = |what: String| format!("second crash ({image:?}) after {n} commits: {what}");
    let again = open_tuned(&second, rng, coverage).map_err(describe)?;
    let found = counter(&again).map_err(|what| describe(what.into()))?;
    if !(synced..=n).contains(&found) {
        return Err(describe(format!("{found} commits are there, {synced} were synced")));
    }
    let at = usize::try_from(found - recovered.n).unwrap_or(0);
    compare(&again, &states[at], rng).map_err(|what| describe(what.into()))?;
    if again.snapshot().seq().0 < seq {
        return Err(describe("sequence numbers are used again".to_owned()));
    }
    drop(again);
    verify_clean(&second).map_err(describe)?;
    // The recovered database must still close cleanly.
    compare(&db, &states[states.len() - 1], rng)?;
    db.close(None).map_err(failed)?;
    verify_clean(disk)?;
    Ok(2)
}

/// Checks a disk image that was taken during a recovery. It must contain the same commits as the recovered database.
fn check_nested(crash: &Crash, recovered: &Recovered, coverage: &Arc<Coverage>) -> Outcome {
    let mut rng = TestRng::new(crash.image_seed);
    coverage.add("crashes in recovery", super::recorder::image_name(crash.image));
    let db = open_tuned(&crash.disk, &mut rng, coverage)?;
    let n = counter(&db)?;
    if n != recovered.n {
        return Err(format!("{n} commits are there, were {}", recovered.n));
    }
    compare(&db, &recovered.state, &mut rng)?;
    drop(db);
    verify_clean(&crash.disk)
}

/// How a commit is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitKind {
    Batch,
    Transaction,
    LockingTransaction,
}

impl CommitKind {
    /// Draws a kind. One in three commits is a transaction, and one in three of these locks its keys.
    pub(crate) fn random(rng: &mut TestRng) -> CommitKind {
        match rng.below(9) {
            0 => CommitKind::LockingTransaction,
            1..3 => CommitKind::Transaction,
            _ => CommitKind::Batch,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            CommitKind::Batch => "batch",
            CommitKind::Transaction => "transaction",
            CommitKind::LockingTransaction => "locking transaction",
        }
    }
}

/// Writes a commit. A transaction also reads the counter, which its commit then checks.
pub(crate) fn write(
    db: &Db,
    keyspaces: &[Keyspace],
    commit: &Commit,
    kind: CommitKind,
    sync: bool,
) -> lsmx::Result<()> {
    let durability = if sync { Durability::Sync } else { Durability::Buffered };
    let tx = match kind {
        CommitKind::Batch => {
            let mut batch = WriteBatch::new();
            for (keyspace, change) in commit {
                change.add_to(&mut batch, &keyspaces[*keyspace]);
            }
            return db.write(batch, durability);
        }
        CommitKind::Transaction => db.transaction(),
        CommitKind::LockingTransaction => db.locking_transaction(Duration::from_secs(1)),
    };
    tx.get_for_update(&keyspaces[0], COUNTER)?;
    for (keyspace, change) in commit {
        change.add_to_transaction(&tx, &keyspaces[*keyspace])?;
    }
    tx.commit(durability)
}

/// Returns the error message for a failed image, with the command that repeats the check.
pub(crate) fn tell(run: &str, crash: &Crash, what: &str) -> String {
    let Crash { index, at, image, image_seed, promises, .. } = crash;
    let Promises { synced, .. } = promises;
    format!(
        "crash before operation {index} ({:?} {}), {synced} of {} commits synced: {what}\n\
         replay: LSMX_TEST_REPLAY={run}:{index}:{image:?}:{image_seed} \
         cargo test -p lsmx --test engine crash:: -- --nocapture",
        at.0,
        at.1.display(),
        promises.attempted(),
    )
}

pub(crate) fn dir() -> &'static Path {
    Path::new(DIR)
}
