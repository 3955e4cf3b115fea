//! Read-ahead hints to the file system, for lookups and cursors.

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
                // The hint to drop cached bytes covers whole pages, because the system ignores it for partial pages.
                let pages = (from - from % 4_096, to.next_multiple_of(4_096));
                let is_dropped = done_calls.contains(&Call::Drop(pages.0, pages.1));
                assert_eq!(is_dropped, direct_reads, "{done_calls:?}");
            }
            // The second lookup reads from the cache.
            assert_eq!(look_up(&*view, &calls, &key(number)), (Vec::new(), Vec::new()));
            // A lookup of an absent key reads only after a false positive of a filter.
            let (hints, done_calls) = look_up(&*view, &calls, &absent(number));
            assert!(hints.len() <= 1 && done_calls.len() <= 2, "{hints:?} {done_calls:?}");
        }
        assert!(read_at_all > 150, "{read_at_all}");
    }
}

/// Start and end offset in a file.
type Span = (u64, u64);

/// Removes the recorded calls. Returns the hints to read ahead, and the reads.
fn take(calls: &Calls) -> (Vec<Span>, Vec<Span>) {
    let done = std::mem::take(&mut *calls.lock());
    let hints = done.iter().filter_map(|call| match call {
        Call::Hint(start, end) => Some((*start, *end)),
        _ => None,
    });
    let reads = done.iter().filter_map(|call| match call {
        Call::Read(start, end) => Some((*start, *end)),
        _ => None,
    });
    (hints.collect(), reads.collect())
}

#[test]
fn cursor_prefetches_its_first_bucket_and_later_the_next_ones() {
    let (mem, calls) = (disk(), Calls::default());
    let watched = WatchedVfs { inner: mem.clone(), calls: Arc::clone(&calls) };
    let options = DeltaOptions::default().bucket_bytes(16 << 10);
    let mut driver = Driver::on(mem, Arc::new(watched), options);
    driver.fill_buckets(0..60);
    let context = StoreContext { read_only: true, ..store_context(&driver.files, &driver.counts) };
    let store = DeltaStoreFactory::new(options).open(context, driver.token).unwrap();
    let first = key(100);
    for backward in [false, true] {
        take(&calls);
        let open = |tier, first_key| store.view().cursor(SeqNo::MAX, tier, first_key);
        drop(open(OperandReadTier::Memory, Some(&first[..])));
        drop(open(OperandReadTier::Storage, None));
        assert_eq!(take(&calls), (vec![], vec![]));

        let mut cursor = open(OperandReadTier::Storage, Some(&first[..]));
        let (hints, reads) = take(&calls);
        assert!(!hints.is_empty() && reads.is_empty(), "{hints:?} {reads:?}");
        match backward {
            false => cursor.seek(&first, SeqNo::MAX).unwrap(),
            true => cursor.seek_before(&first, SeqNo::MAX).unwrap(),
        }
        let (later_hints, reads) = take(&calls);
        assert_eq!(later_hints, vec![]);
        assert!(reads.ends_with(&hints), "{hints:?} {reads:?}");

        // Hints of the bucket that is read next, once the cursor has left two buckets.
        let (mut expected, mut hinted_buckets, mut read_buckets) = (Vec::new(), 0, 0);
        while cursor.valid() {
            if backward {
                cursor.prev().unwrap()
            } else {
                cursor.next().unwrap()
            }
            let (hints, reads) = take(&calls);
            if reads.is_empty() {
                continue;
            }
            read_buckets += 1;
            assert!(expected.is_empty() || reads.ends_with(&expected), "{expected:?} {reads:?}");
            assert!(read_buckets > 1 || hints.is_empty(), "{hints:?}");
            hinted_buckets += usize::from(!hints.is_empty());
            expected = hints;
        }
        assert!(read_buckets > 3 && hinted_buckets >= read_buckets - 2, "{read_buckets}");
        assert_eq!(expected, vec![]);
    }
}
