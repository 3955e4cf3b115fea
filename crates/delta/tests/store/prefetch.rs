//! Lookups give the file system read-ahead hints for buckets before they read tables.

use std::io;
use std::path::Path;

use crate::common::{Driver, Write, store_context};
use lsmx::SeqNo;
use lsmx::internals::vfs::{FileHint, FileLayer, OpenMode, VfsLayer};
use lsmx::operand_store::{OperandReadTier, OperandStoreFactory, OperandView, StoreContext};
use lsmx::vfs::{File, MemVfs, Vfs};
use lsmx_base::sync::{Arc, Mutex};
use lsmx_delta::{DeltaOptions, DeltaStoreFactory};

/// What a file was asked, from where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Told(u64, u64),
    Read(u64, u64),
    Forgot(u64, u64),
}

type Calls = Arc<Mutex<Vec<Call>>>;

#[derive(Clone, Debug)]
struct Watched {
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
            FileHint::WillNeed { offset, bytes } => Call::Told(offset, offset + bytes),
            FileHint::DropCachedPages { offset, bytes } => Call::Forgot(offset, offset + bytes),
            FileHint::EnablePreallocation | FileHint::DisablePreallocation => return false,
        };
        self.calls.lock().push(call);
        matches!(call, Call::Told(..))
    }
}

impl VfsLayer for Watched {
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

/// A key of the same bucket that is not there.
fn absent(number: u64) -> Vec<u8> {
    [&key(number)[..], b"x"].concat()
}

/// What a lookup calls that says first what it will need: these calls, and those of the lookup itself.
fn look_up(view: &dyn OperandView, calls: &Calls, key: &[u8]) -> (Vec<Call>, Vec<Call>) {
    calls.lock().clear();
    view.prefetch(key, SeqNo::MAX);
    let told = std::mem::take(&mut *calls.lock());
    view.read_operands(key, SeqNo::MAX, OperandReadTier::Storage, &mut Vec::new()).unwrap();
    (told, std::mem::take(&mut *calls.lock()))
}

#[test]
fn lookup_prefetches_pages_and_direct_reads_drop_them() {
    let mem = MemVfs::new();
    mem.create_dir(Path::new("db")).unwrap();
    let calls = Calls::default();
    let disk = Watched { inner: mem.clone(), calls: Arc::clone(&calls) };
    let options = DeltaOptions::default().bucket_bytes(16 << 10).cache_bytes(1 << 20);
    let mut driver = Driver::on(mem, Arc::new(disk), options);
    for round in 0..60 {
        let write = |number| Write::Operand { key: key(number), bytes: 30 };
        let writes: Vec<Write> = (0..60).map(|number| write((number * 7 + round) % 200)).collect();
        driver.flush(&writes);
        driver.collect(None).unwrap();
    }
    let place = |direct_reads| StoreContext {
        direct_reads,
        read_only: true,
        ..store_context(&driver.files, &driver.counts)
    };
    for direct_reads in [false, true] {
        let store =
            DeltaStoreFactory::new(options).open(place(direct_reads), driver.token).unwrap();
        let view = store.view();
        // The first lookups read what the buckets have about their pages, too.
        for number in 0..200 {
            look_up(&*view, &calls, &absent(number));
        }
        let mut read_at_all = 0;
        for number in 0..200 {
            let (told, done) = look_up(&*view, &calls, &key(number));
            let reads: Vec<_> = done.iter().filter(|call| matches!(call, Call::Read(..))).collect();
            read_at_all += reads.len();
            assert_eq!(told.len(), reads.len(), "{told:?} {done:?}");
            for (told, read) in told.iter().zip(reads) {
                let (Call::Told(a, b), Call::Read(from, to)) = (*told, *read) else {
                    panic!("{told:?} {read:?}")
                };
                assert_eq!((a, b), (from, to));
                // Whole pages, or the system keeps those at the ends.
                let pages = (from - from % 4_096, to.next_multiple_of(4_096));
                let forgot = done.contains(&Call::Forgot(pages.0, pages.1));
                assert_eq!(forgot, direct_reads, "{done:?}");
            }
            // Now it is in the cache.
            assert_eq!(look_up(&*view, &calls, &key(number)), (Vec::new(), Vec::new()));
            // Of an absent key nothing is read, but for false answers of a filter.
            let (told, done) = look_up(&*view, &calls, &absent(number));
            assert!(told.len() <= 1 && done.len() <= 2, "{told:?} {done:?}");
        }
        assert!(read_at_all > 150, "{read_at_all}");
    }
}
