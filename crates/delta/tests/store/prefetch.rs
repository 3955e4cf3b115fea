//! Checks that prefetching gives read-ahead hints for exactly those parts of bucket files that a lookup or a cursor reads.

use std::io;
use std::path::Path;

use crate::common::{Driver, disk, read_operands, store_context};
use lsmx::SeqNo;
use lsmx::internals::vfs::{FileHint, FileLayer, OpenMode, VfsLayer};
use lsmx::operand_store::{OperandReadTier, OperandStoreFactory, OperandView, StoreContext};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx_base::sync::{Arc, Mutex};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

/// A file system call with the start and end offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Hint(u64, u64),
    Read(u64, u64),
    Drop(u64, u64),
}

type Calls = Arc<Mutex<Vec<Call>>>;

#[derive(Clone, Debug)]
struct WatchedVfs {
    inner: MemVfs,
    calls: Calls,
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn File>,
    calls: Calls,
}

impl FileLayer for WatchedFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn intercept_read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.calls.lock().push(Call::Read(offset, offset + buffer.len() as u64));
        self.inner.read_at(buffer, offset)
    }

    fn intercept_hint(&self, hint: FileHint) -> bool {
        let call = match hint {
            FileHint::WillNeed { offset, bytes } => Call::Hint(offset, offset + bytes),
            FileHint::DropCachedPages { offset, bytes } => Call::Drop(offset, offset + bytes),
            FileHint::EnablePreallocation | FileHint::DisablePreallocation => return false,
        };
        self.calls.lock().push(call);
        matches!(call, Call::Hint(..))
    }
}

impl VfsLayer for WatchedVfs {
    fn inner(&self) -> &dyn Vfs {
        &self.inner
    }

    fn intercept_open(&self, mode: OpenMode, path: &Path) -> io::Result<Arc<dyn File>> {
        let inner = mode.open(&self.inner, path)?;
        Ok(Arc::new(WatchedFile { inner, calls: Arc::clone(&self.calls) }))
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

/// Returns a key that is absent and belongs to the same bucket as key `number`.
fn absent(number: u64) -> Vec<u8> {
    [&key(number)[..], b"x"].concat()
}

/// Prefetches and looks up a key. Returns the file system calls of each step.
fn look_up(view: &dyn OperandView, calls: &Calls, key: &[u8]) -> (Vec<Call>, Vec<Call>) {
    calls.lock().clear();
    view.prefetch(key, SeqNo::MAX);
    let hints = std::mem::take(&mut *calls.lock());
    read_operands(view, key, SeqNo::MAX).unwrap();
    (hints, std::mem::take(&mut *calls.lock()))
}

#[test]
fn lookup_prefetches_pages_and_direct_reads_drop_them() {
    let (mem, calls) = (disk(), Calls::default());
    let watched = WatchedVfs { inner: mem.clone(), calls: Arc::clone(&calls) };
    let options = DeltaOptions::default().bucket_bytes(16 << 10).cache_bytes(1 << 20);
    let mut driver = Driver::on(mem, Arc::new(watched), options);
    driver.fill_buckets(0..60);
    let context = |direct_reads| StoreContext {
        direct_reads,
        read_only: true,
        ..store_context(&driver.files, &driver.counts)
    };
    for direct_reads in [false, true] {
        let store =
            DeltaStoreFactory::new(options).open(context(direct_reads), driver.token).unwrap();
        let view = store.view();
        // The first lookups also read the indexes of the buckets, so they are not counted.
        for number in 0..200 {
            look_up(&*view, &calls, &absent(number));
        }
        let mut read_at_all = 0;
        for number in 0..200 {
            let (hints, done_calls) = look_up(&*view, &calls, &key(number));
            let reads: Vec<_> =
                done_calls.iter().filter(|call| matches!(call, Call::Read(..))).collect();
            read_at_all += reads.len();
            assert_eq!(hints.len(), reads.len(), "{hints:?} {done_calls:?}");
            for (hints, read) in hints.iter().zip(reads) {
                let (Call::Hint(a, b), Call::Read(from, to)) = (*hints, *read) else {
                    panic!("{hints:?} {read:?}")
                };
                assert_eq!((a, b), (from, to));
                // The store drops whole pages from the page cache, because the system ignores partial pages.
                let pages = (from - from % 4_096, to.next_multiple_of(4_096));
                let is_dropped = done_calls.contains(&Call::Drop(pages.0, pages.1));
                assert_eq!(is_dropped, direct_reads, "{done_calls:?}");
            }
            // The second lookup reads from the cache.
            assert_eq!(look_up(&*view, &calls, &key(number)), (Vec::new(), Vec::new()));
            // A lookup of an absent key reads a file only if a filter returns a false positive.
            let (hints, done_calls) = look_up(&*view, &calls, &absent(number));
            assert!(hints.len() <= 1 && done_calls.len() <= 2, "{hints:?} {done_calls:?}");
        }
        assert!(read_at_all > 150, "{read_at_all}");
    }
}

/// Returns the offsets of the calls that `select` accepts.
fn offsets(calls: &[Call], select: fn(&Call) -> Option<(u64, u64)>) -> Vec<(u64, u64)> {
    calls.iter().filter_map(select).collect()
}

fn hint(call: &Call) -> Option<(u64, u64)> {
    match call {
        Call::Hint(from, to) => Some((*from, *to)),
        _ => None,
    }
}

fn read(call: &Call) -> Option<(u64, u64)> {
    match call {
        Call::Read(from, to) => Some((*from, *to)),
        _ => None,
    }
}

#[test]
fn cursor_prefetches_first_window_of_seek_and_windows_of_long_scan() {
    let (mem, calls) = (disk(), Calls::default());
    let watched = WatchedVfs { inner: mem.clone(), calls: Arc::clone(&calls) };
    let options = DeltaOptions::default().bucket_bytes(16 << 10).cache_bytes(0);
    let mut driver = Driver::on(mem, Arc::new(watched), options);
    driver.fill_buckets(0..60);
    let view = driver.store.view();
    let cursor = || Arc::clone(&view).cursor(SeqNo::MAX, OperandReadTier::Storage);
    let take_calls = || std::mem::take(&mut *calls.lock());

    // The first scan also reads the indexes of the buckets.
    let mut all = cursor();
    all.first().unwrap();
    while all.valid() {
        all.next().unwrap();
    }
    let mut read_at_all = 0;
    for number in 0..200 {
        take_calls();
        view.prefetch_seek(&key(number));
        let hints = offsets(&take_calls(), hint);
        let mut cursor = cursor();
        cursor.seek(&key(number), SeqNo::MAX).unwrap();
        assert_eq!(cursor.key().user_key, key(number));
        let done_calls = take_calls();
        assert_eq!(offsets(&done_calls, read), hints);
        // A scan that ends in its first window prefetches nothing.
        assert_eq!(offsets(&done_calls, hint), []);
        read_at_all += hints.len();
    }
    assert!(read_at_all > 150, "{read_at_all}");

    for backward in [false, true] {
        let mut cursor = cursor();
        match backward {
            false => cursor.first().unwrap(),
            true => cursor.last().unwrap(),
        }
        while cursor.valid() {
            match backward {
                false => cursor.next().unwrap(),
                true => cursor.prev().unwrap(),
            }
        }
        let done_calls = take_calls();
        let (hints, reads) = (offsets(&done_calls, hint), offsets(&done_calls, read));
        // The first two windows are read without hints.
        let hinted = reads.iter().filter(|read| hints.contains(read)).count();
        assert_eq!(hinted, hints.len(), "{done_calls:?}");
        assert!(hinted > 2 && hinted + 4 > reads.len(), "{done_calls:?}");
    }
}
