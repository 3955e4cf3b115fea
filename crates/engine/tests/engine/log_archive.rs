//! Archives of the log.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lsmx::env::Background;
use lsmx::internals::vfs::{CrashImage, Errno, Fault, FaultRule, FaultVfs, VfsCall, VfsLayer};
use lsmx::vfs::{MemVfs, Vfs};
use lsmx::{Db, Durability, Error, LogArchiveEnd, LogExtender, Options, SeqNo, WriteBatch};
use lsmx_testkit::case_seeds;

use crate::harness::database::inline;
use crate::harness::log_archives;
use crate::harness::small_database::{self, files};

fn open(vfs: &MemVfs) -> Db {
    small_database::open(vfs)
}

/// Writes commits until the log has retired several segments.
fn fill(db: &Db, round: u8) {
    for key in 0..40_u8 {
        db.write(
            {
                let mut batch = WriteBatch::new();
                batch.put(&db.default_keyspace(), [round, key], [b'v'; 100]);
                batch
            },
            Durability::Buffered,
        )
        .unwrap();
    }
    db.flush().unwrap();
}

fn ended(error: &Error) -> &LogArchiveEnd {
    match error {
        Error::LogArchiveEnded { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn log_archive_histories_equal_the_model() {
    for seed in case_seeds(&[], 25) {
        log_archives::history_equals_the_model(seed).unwrap();
    }
}

#[test]
fn archiver_keeps_segments_until_it_has_returned_them() {
    let vfs = MemVfs::new();
    let db = open(&vfs);
    fill(&db, 0);
    let live = files(&vfs, ".wal").len();
    let mut archiver = db.archive_log(1 << 20).unwrap();
    fill(&db, 1);
    fill(&db, 2);
    let held = files(&vfs, ".wal").len();
    assert!(held > live + 5, "{held} files");
    // The held segments are not part of the log.
    assert!(db.metrics().wal.segments <= live as u64 + 1, "{:?}", db.metrics().wal);
    db.checkpoint("copy").unwrap();
    assert!(files(&vfs, ".wal").len() <= held + live + 1);
    let mut last = 0;
    while let Some(chunk) = archiver.next_chunk(1).unwrap() {
        assert!(chunk.first_seq.0 == last + 1 || last == 0, "{chunk:?}");
        last = chunk.last_seq.0;
    }
    assert_eq!(last, db.snapshot().seq().0);
    db.wait_idle().unwrap();
    fill(&db, 3);
    drop(archiver);
    db.wait_idle().unwrap();
    let segments = files(&vfs, ".wal");
    let of_db = segments.iter().filter(|path| path.starts_with("db")).count();
    assert!(of_db <= live + 1, "{segments:?}");
}

#[test]
fn archiver_beyond_its_limit_ends_and_releases_the_segments() {
    let vfs = MemVfs::new();
    let db = open(&vfs);
    let live = files(&vfs, ".wal").len();
    let mut archiver = db.archive_log(2_000).unwrap();
    fill(&db, 0);
    db.wait_idle().unwrap();
    assert!(files(&vfs, ".wal").len() <= live + 1, "{:?}", files(&vfs, ".wal"));
    assert!(matches!(archiver.end(), Some(LogArchiveEnd::HeldBytesExceeded { .. })));
    for _ in 0..2 {
        let error = archiver.next_chunk(1 << 20).unwrap_err();
        assert!(
            matches!(ended(&error), LogArchiveEnd::HeldBytesExceeded { limit: 2_000, .. }),
            "{error}"
        );
    }
    // A new archiver is independent of the old one.
    let mut second = db.archive_log(1 << 20).unwrap();
    db.put("key", "value").unwrap();
    db.sync().unwrap();
    assert!(second.next_chunk(1).unwrap().is_some());
}

#[test]
fn archiver_returns_only_commits_on_stable_storage() {
    let db = open(&MemVfs::new());
    let mut archiver = db.archive_log(1 << 20).unwrap();
    db.put("a", "1").unwrap();
    assert_eq!(archiver.next_chunk(1 << 20).unwrap(), None);
    db.sync().unwrap();
    let chunk = archiver.next_chunk(1 << 20).unwrap().unwrap();
    assert_eq!(chunk.last_seq, db.snapshot().seq());
    assert_eq!(archiver.next_chunk(1 << 20).unwrap(), None);
}

#[test]
fn archiver_returns_the_commits_before_a_change_of_the_structure() {
    let db = open(&MemVfs::new());
    let mut archiver = db.archive_log(1 << 20).unwrap();
    db.put("before", "1").unwrap();
    let before = db.snapshot().seq();
    let users = db.keyspace("users", small_database::keyspace_options("default")).unwrap();
    users.put("after", "2").unwrap();
    db.sync().unwrap();
    assert_eq!(archiver.end(), Some(LogArchiveEnd::StructureChanged));
    let chunk = archiver.next_chunk(1 << 20).unwrap().unwrap();
    assert_eq!(chunk.last_seq, before);
    let error = archiver.next_chunk(1 << 20).unwrap_err();
    assert_eq!(*ended(&error), LogArchiveEnd::StructureChanged);
    assert_eq!(
        error.to_string(),
        format!(
            "the log archiver ended after commit {}: the next change of the database is not in the log",
            before.0
        )
    );
}

#[test]
fn archiver_of_a_closed_or_read_only_database_is_refused() {
    let vfs = MemVfs::new();
    let db = open(&vfs);
    let mut archiver = db.archive_log(1 << 20).unwrap();
    fill(&db, 0);
    db.close(None).unwrap();
    assert!(archiver.next_chunk(1).is_err());
    assert!(matches!(db.archive_log(1), Err(Error::Closed)));
    // The held segments were deleted.
    assert!(files(&vfs, ".wal").len() <= 2, "{:?}", files(&vfs, ".wal"));
    drop((archiver, db));
    let db = Db::open("db", inline().vfs(Arc::new(vfs)).read_only(true)).unwrap();
    assert!(matches!(db.archive_log(1), Err(Error::OpenedReadOnly)));
}

#[test]
fn extender_refuses_gaps_damage_and_opened_checkpoints() {
    let vfs = MemVfs::new();
    let db = open(&vfs);
    let mut archiver = db.archive_log(1 << 20).unwrap();
    db.checkpoint("copy").unwrap();
    let options = || Options::default().vfs(Arc::new(vfs.clone()));
    let current = |vfs: &MemVfs| {
        let mut text = vec![0; 256];
        let file = vfs.open("copy/CURRENT".as_ref()).unwrap();
        let read = file.read_at(&mut text, 0).unwrap();
        text.truncate(read);
        text
    };
    let mut chunks = Vec::new();
    for key in ["a", "b", "c"] {
        db.put(key, "value").unwrap();
        db.sync().unwrap();
        chunks.push(archiver.next_chunk(1).unwrap().unwrap());
    }
    let mut extender = LogExtender::new("copy", &options(), &current(&vfs)).unwrap();
    let before = extender.last_seq();
    let gap = extender.add_chunk(&chunks[1].bytes, SeqNo::MAX).unwrap_err();
    assert!(matches!(gap, Error::LogChunkGap { .. }), "{gap}");
    extender.add_chunk(&chunks[0].bytes, SeqNo::MAX).unwrap();
    // A chunk that was added before has no effect.
    extender.add_chunk(&chunks[0].bytes, SeqNo::MAX).unwrap();
    assert_eq!(extender.last_seq(), chunks[0].last_seq);
    let mut damaged = chunks[1].bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = extender.add_chunk(&damaged, SeqNo::MAX).unwrap_err();
    assert!(matches!(damaged, Error::MalformedLogChunk { .. }), "{damaged}");
    drop(extender);
    // The checkpoint has not changed, and an open does not find the commits.
    let interrupted = vfs.crash(CrashImage::Keep, 0);
    let interrupted = Db::open("copy", inline().vfs(Arc::new(interrupted))).unwrap();
    assert_eq!(interrupted.get("a").unwrap(), None);
    let extender = LogExtender::new("copy", &options(), &current(&vfs)).unwrap();
    assert_eq!(extender.last_seq(), before);
    assert_eq!(extender.finish().unwrap(), current(&vfs));
    // The first open ends without a close, the second one with it.
    for is_closed in [false, true] {
        let copy = vfs.crash(CrashImage::Keep, 0);
        let db = Db::open("copy", inline().vfs(Arc::new(copy.clone()))).unwrap();
        db.put("key", "value").unwrap();
        db.sync().unwrap();
        if is_closed {
            db.close(None).unwrap();
        }
        let options = Options::default().vfs(Arc::new(copy.crash(CrashImage::Keep, 0)));
        let old = LogExtender::new("copy", &options, &current(&vfs));
        assert!(old.is_err(), "the manifest of the checkpoint was replaced");
        // Without this error, no commit was added.
        let new = LogExtender::new("copy", &options, &current(&copy)).unwrap_err();
        assert!(matches!(new, Error::NotADatabase { .. }), "{new}");
    }
}

/// The archiver returned an error about a damaged log after an edit of the manifest had failed, although the log was intact.
#[test]
fn archiver_after_a_failed_edit_of_the_manifest_returns_read_only() {
    let disk = MemVfs::new();
    let vfs = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = Db::open("db", small_database::options(Background::Inline).vfs(Arc::new(vfs.clone())));
    let db = db.unwrap();
    let mut archiver = db.archive_log(1 << 20).unwrap();
    // Each flush writes an edit that lists tables, and one that removes segments. The second one fails.
    for failing in 0..10 {
        for key in 0..40_u8 {
            db.put([key], [b'v'; 100]).unwrap();
        }
        let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Sync]);
        vfs.add_rule(rule.path_contains("MANIFEST").nth(failing));
        let flushed = db.flush();
        vfs.clear_rules();
        match (flushed, archiver.next_chunk(1 << 20)) {
            (Ok(()), Ok(_)) => {}
            (Err(_), Err(Error::ReadOnly { .. })) => {
                db.resume().unwrap();
                let ended = archiver.next_chunk(1 << 20).unwrap_err();
                assert!(matches!(
                    ended,
                    Error::LogArchiveEnded { reason: LogArchiveEnd::Resumed, .. }
                ));
                archiver = db.archive_log(1 << 20).unwrap();
            }
            other => panic!("{failing}: {other:?}"),
        }
    }
}

/// The archiver opened segments of the log whose commits it had returned. A flush deleted them meanwhile, and the archiver
/// returned an error of the file system.
#[test]
fn archiver_opens_only_segments_with_commits_that_it_has_not_returned() {
    let disk = MemVfs::new();
    let vfs = FaultVfs::new(Arc::new(disk.clone()), 1);
    let db = Db::open("db", small_database::options(Background::Inline).vfs(Arc::new(vfs.clone())));
    let db = db.unwrap();
    let put = |key: u8| db.put([key], [b'v'; 100]).unwrap();
    (0..10).for_each(put);
    db.sync().unwrap();
    let mut archiver = db.archive_log(1 << 20).unwrap();
    for first in [10, 20] {
        // A failed open stands for a file that was deleted after the list was taken.
        for path in files(&disk, ".wal") {
            let rule = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Open]);
            vfs.add_rule(rule.path_contains(path.to_str().unwrap()));
        }
        assert!(db.metrics().wal.segments > 2);
        assert_eq!(archiver.next_chunk(1 << 20).unwrap(), None);
        vfs.clear_rules();
        (first..first + 8).for_each(put);
        db.sync().unwrap();
        let chunk = archiver.next_chunk(1 << 20).unwrap().unwrap();
        assert_eq!(chunk.last_seq, db.snapshot().seq());
    }
}

/// A file system on which the opens of segments fail after a flush of the database.
#[derive(Debug)]
struct FlushBeforeOpen {
    disk: MemVfs,
    db: OnceLock<Db>,
}

impl VfsLayer for FlushBeforeOpen {
    fn inner(&self) -> &dyn Vfs {
        &self.disk
    }

    fn before_call(&self, call: VfsCall, path: &Path) -> io::Result<()> {
        if let (VfsCall::Open, Some("wal"), Some(db)) =
            (call, path.extension().and_then(|it| it.to_str()), self.db.get())
        {
            db.flush().unwrap();
        }
        Ok(())
    }
}

/// The archiver returned an error of the file system if the held segments were deleted while it opened them.
#[test]
fn archiver_beyond_its_limit_during_a_read_returns_the_end() {
    let vfs = Arc::new(FlushBeforeOpen { disk: MemVfs::new(), db: OnceLock::new() });
    let db = Db::open("db", small_database::options(Background::Inline).vfs(vfs.clone())).unwrap();
    let mut archiver = db.archive_log(500).unwrap();
    for key in 0..10_u8 {
        db.put([key], [b'v'; 100]).unwrap();
    }
    db.sync().unwrap();
    vfs.db.set(db).unwrap();
    let error = archiver.next_chunk(1 << 20).unwrap_err();
    assert!(matches!(ended(&error), LogArchiveEnd::HeldBytesExceeded { .. }), "{error}");
}
