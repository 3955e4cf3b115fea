//! The tests are tested: with each deliberate bug switched on, the check that is there for its kind
//! fails; with none, all checks pass.
//!
//! One test, because a bug is switched on for the whole process.

mod arsenal;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arsenal::coverage::Coverage;
use arsenal::recorder::Sampling;
use arsenal::workload::{Faults, Plan, play};
use arsenal::{Chance, Outcome, base_seed, mix, options, oracle};
use lsmx::cache::Cache;
use lsmx::env::Background;
use lsmx::format::filename::FileName;
use lsmx::manifest::Manifest;
use lsmx::sabotage::{self, Bug};
use lsmx::table::{Table, TableIdentity};
use lsmx::vfs::{Errno, Fault, Image, MemVfs, Rule, VfsCall};
use lsmx::{Db, Durability, KeyspaceOptions, Options, WriteBatch};

/// Something that passes where no bug is; the number varies it.
type Check = fn(u64) -> Outcome;

/// How often a check is tried with a bug switched on before the bug counts as missed.
const TRIES: u64 = 200;
/// How often a check must pass without one.
const PASSES: u64 = 6;

/// The check that is there for a bug, and its name.
fn check_for(bug: Bug) -> (&'static str, Check) {
    match bug {
        Bug::WalSyncSkipped
        | Bug::WalOlderSegmentUnsynced
        | Bug::DirectoryNotSynced
        | Bug::EditBeforeTableSync
        | Bug::FlushWithoutWalSync
        | Bug::InputsDeletedEarly
        | Bug::SeqReused
        | Bug::FileNumberReused
        | Bug::EditWithoutWalSync
        | Bug::KeyspaceIdReused
        | Bug::CheckpointUnsynced
        | Bug::TornTailRefused
        | Bug::BufferedNotLogged
        | Bug::ReplaySkipsUnflushed
        | Bug::ReplaySkipsRangeDeletes
        | Bug::TokenNotCommitted
        | Bug::PointerBeforeBytes
        | Bug::SegmentDeletedEarly => ("crashes", crashes),
        Bug::TombstoneDroppedEarly
        | Bug::SnapshotVersionDropped
        | Bug::FilterMissesKey
        | Bug::SpanBehindFilter
        | Bug::SpanIgnoresSnapshot
        | Bug::SpanLostAtCut
        | Bug::SpanLostAtPart
        | Bug::KeyLostAtPart
        | Bug::SpanDroppedEarly
        | Bug::CoveredFileDroppedEarly
        | Bug::OperandsFoldedOverSnapshot
        | Bug::BaseForgottenByJob
        | Bug::FoldedValueStale
        | Bug::AnchorForgotten
        | Bug::LiveBlobDeleted
        | Bug::BatchTorn => ("contents", contents),
        Bug::UpdateWithoutGuard => ("updates", updates),
        Bug::FollowerSyncForgotten | Bug::PublishedEarly => ("writers", several_writers),
        Bug::AppendErrorSwallowed => {
            ("crashes after a failed append", crashes_after_a_failed_append)
        }
        Bug::SyncRetried => ("crashes after a failed sync", crashes_after_a_failed_sync),
        Bug::DoubtForgotten => ("crashes after a failed edit", crashes_after_a_failed_edit),
        Bug::ReadOnlySticks => ("failing writes", failing_writes),
        Bug::ReadErrorIsNotFound => ("failing reads", failing_reads),
        Bug::OpenErrorIsNew => ("failing questions", failing_questions),
        Bug::WalDamageIsTail => ("damage in the log", damage_in_the_log),
        Bug::ChecksumWithoutPlace => ("foreign blocks", foreign_blocks),
    }
}

fn plan(seed: u64, faults: Faults) -> Plan {
    let mut chance = Chance::new(seed);
    Plan {
        name: seed.to_string(),
        seed,
        steps: 80 + chance.below(120),
        reopens: true,
        policy: options::draw_policy(&mut chance),
        background: Background::Inline,
        faults,
        sampling: Sampling::NONE,
    }
}

/// Plays a run and checks some hundred images of it.
fn images(plan: Plan) -> Outcome {
    let coverage = Arc::new(Coverage::default());
    let plan = Plan { sampling: Sampling::Chance(15_000), ..plan };
    let played = play(&plan, &coverage)?;
    for crash in &played.crashes {
        oracle::check(crash, &played.histories[crash.promises.epoch], &coverage)
            .map_err(|what| oracle::tell(&plan.name, crash, &what))?;
    }
    Ok(())
}

fn crashes(seed: u64) -> Outcome {
    images(plan(seed, Faults::None))
}

fn several_writers(seed: u64) -> Outcome {
    arsenal::writers::play(seed).map(drop)
}

fn contents(seed: u64) -> Outcome {
    play(&plan(seed, Faults::None), &Arc::default()).map(drop)
}

/// One of the first calls fails, and power is cut all around it.
fn crashes_after(seed: u64, fault: Fault, call: VfsCall, file: &'static str) -> Outcome {
    let k = Chance::new(seed).below(40);
    images(plan(seed, Faults::By(Rule::new(fault).on(&[call]).path_contains(file).nth(k))))
}

fn crashes_after_a_failed_append(seed: u64) -> Outcome {
    crashes_after(seed, Fault::ShortWrite(Errno::Io), VfsCall::Append, ".wal")
}

fn crashes_after_a_failed_sync(seed: u64) -> Outcome {
    crashes_after(seed, Fault::Error(Errno::Io), VfsCall::Sync, ".wal")
}

fn crashes_after_a_failed_edit(seed: u64) -> Outcome {
    crashes_after(seed, Fault::Error(Errno::Io), VfsCall::Sync, "MANIFEST")
}

/// One call of these fails.
fn failing(seed: u64, calls: &[VfsCall], within: u64) -> Outcome {
    let k = Chance::new(seed).below(within);
    let rule = Rule::new(Fault::Error(Errno::Io)).on(calls).nth(k);
    play(&plan(seed, Faults::By(rule)), &Arc::default()).map(drop)
}

fn failing_writes(seed: u64) -> Outcome {
    failing(seed, &[VfsCall::Append, VfsCall::Sync], 100)
}

fn failing_reads(seed: u64) -> Outcome {
    failing(seed, &[VfsCall::Read], 1_000)
}

fn failing_questions(seed: u64) -> Outcome {
    failing(seed, &[VfsCall::Exists, VfsCall::List], 10)
}

fn failed(error: lsmx::Error) -> String {
    format!("{error:?}")
}

/// A bit of a synced commit is flipped: opening fails, or all that was synced is there.
fn damage_in_the_log(seed: u64) -> Outcome {
    let mut chance = Chance::new(seed);
    let disk = MemVfs::new();
    let db = oracle::open(&disk, options::draw(&mut chance, Background::Inline))?;
    let keyspaces = [db.default_keyspace()];
    let count = 3 + chance.below(5);
    for number in 1..=count {
        let commit = arsenal::history::draw_commit(&mut chance, number, 1);
        oracle::write(&db, &keyspaces, &commit, true).map_err(failed)?;
    }
    // The process is killed. After a power loss the mark behind the last sync may be missing, and
    // then nobody can tell damage there from a commit that was cut short.
    let crashed = disk.crash(Image::Keep, seed);
    let logs: Vec<_> =
        crashed.paths().into_iter().filter(|p| p.to_string_lossy().ends_with(".wal")).collect();
    let path = chance.of(&logs).clone();
    let bytes = crashed.read_all(&path).map_err(|error| error.to_string())?.len() as u64;
    let flipped = crashed.flip(&path, chance.below(bytes), 1 << chance.below(8));
    flipped.map_err(|error| error.to_string())?;
    let before = crashed.snapshot_all();
    match oracle::open(&crashed, options::draw(&mut chance, Background::Inline)) {
        Ok(db) => match oracle::counter(&db)? {
            found if found == count => Ok(()),
            found => Err(format!("{found} of {count} synced commits are there, and no word of it")),
        },
        Err(_) if crashed.snapshot_all() == before => Ok(()),
        Err(_) => Err("an opening that was refused has changed something".to_owned()),
    }
}

/// Threads make a value longer under a schedule, some by updates, one by merges, which come between
/// reading and writing of the updates.
fn updates(seed: u64) -> Outcome {
    const TIMES: usize = 12;
    let disk = MemVfs::new();
    let mut chance = Chance::new(seed);
    let background = Background::Stepped { seed, workers: 1 };
    let db = oracle::open(&disk, options::draw(&mut chance, background))?;
    let keyspace = db.default_keyspace();
    let longer = |old: Option<&[u8]>| [old.unwrap_or_default(), b"u"].concat();
    let env = db.env();
    let threads: Result<Vec<_>, _> = (0..3)
        .map(|thread| {
            let keyspace = keyspace.clone();
            let body = move || {
                for _ in 0..TIMES {
                    match thread {
                        0 => keyspace.merge("n", "m").expect("a merge"),
                        _ => drop(keyspace.fetch_update("n", longer).expect("an update")),
                    }
                }
            };
            env.spawn("lengthener", body)
        })
        .collect();
    for thread in threads.map_err(|error| error.to_string())? {
        env.join(thread).map_err(|_| "a thread panicked".to_owned())?;
    }
    match keyspace.get("n").map_err(failed)? {
        Some(value) if value.len() == 3 * TIMES => Ok(()),
        found => Err(format!("{found:?} after {TIMES} additions by each of three")),
    }
}

/// Two databases alike but for their values; one gets a data block of the other.
fn foreign_blocks(seed: u64) -> Outcome {
    let make = |seed: u64, value: u8| -> Outcome<MemVfs> {
        let disk = MemVfs::new();
        let keyspace = KeyspaceOptions::default().memtable_bytes(1 << 20).block_bytes(128);
        let options = Options::default().background(Background::Inline).seed(seed);
        let db = oracle::open(&disk, options.keyspace_defaults(keyspace))?;
        let mut batch = WriteBatch::new();
        for number in 0..64u8 {
            batch.put(&db.default_keyspace(), [number], [value; 20]);
        }
        db.write(batch, Durability::Sync).map_err(failed)?;
        db.close(None).map_err(failed)?;
        Ok(disk)
    };
    let (disk, other) = (make(seed, b'a')?, make(seed + 1, b'b')?);
    let (path, table) = only_table(&disk)?;
    let data = usize::try_from(table.properties().data_bytes).map_err(|e| e.to_string())?;
    let (foreign_path, _) = only_table(&other)?;
    let read = |disk: &MemVfs, path: &Path| disk.read_all(path).map_err(|e| e.to_string());
    let foreign = read(&other, &foreign_path)?;
    disk.overwrite(&path, 0, &foreign[..data]).map_err(|error| error.to_string())?;
    let db = match oracle::open(&disk, Options::default().background(Background::Inline)) {
        Ok(db) => db,
        Err(_) => return Ok(()),
    };
    match Db::get(&db, [7]) {
        Ok(Some(value)) if value[..] == [b'a'; 20] => Ok(()),
        Ok(_) => Err("a block of another database is taken for one of this".to_owned()),
        Err(_) => Ok(()),
    }
}

/// The only table of a database that is closed.
fn only_table(disk: &MemVfs) -> Outcome<(std::path::PathBuf, Table)> {
    let loaded = Manifest::load(disk, oracle::dir()).map_err(failed)?;
    let files = loaded.state.keyspaces.values().flat_map(|keyspace| keyspace.files());
    let (_, _, file) = files.last().ok_or("there is no table")?;
    let identity =
        TableIdentity { id: file.id, bytes: file.bytes, uid: file.uid, checksum: file.checksum };
    let path = FileName::Table(file.id.0).in_dir(oracle::dir());
    let table = Table::open(disk, &path, &identity, &Cache::new(0)).map_err(failed)?;
    Ok((path, table))
}

/// Tries a check; returns at which try it failed, and how.
fn found(check: Check, seed: u64, tries: u64) -> Option<(u64, String)> {
    (0..tries).find_map(|number| {
        // A panic finds a bug as well: debug assertions are tests, too.
        let tried = std::panic::catch_unwind(|| check(mix(seed, number) >> 16));
        match tried {
            Ok(Ok(())) => None,
            Ok(Err(what)) => Some((number, what)),
            Err(_) => Some((number, "a panic".to_owned())),
        }
    })
}

#[test]
fn every_deliberate_bug_is_found() {
    let seed = base_seed();
    println!("LSMX_TEST_SEED={seed}");
    let mut missed = Vec::new();
    let mut passed = BTreeSet::new();
    for &bug in Bug::ALL {
        let (name, check) = check_for(bug);
        sabotage::arm(Some(bug));
        let caught = found(check, seed, TRIES);
        sabotage::arm(None);
        match caught {
            Some((number, what)) => {
                let what: String = what.chars().take(150).collect();
                println!("{}: at try {number}: {what}", bug.name());
            }
            None => missed.push(bug.name()),
        }
        if passed.insert(name)
            && let Some((_, what)) = found(check, seed, PASSES)
        {
            panic!("the check {name:?} fails without a bug: {what}");
        }
    }
    assert!(missed.is_empty(), "bugs that no check found: {missed:?}");
}
