//! A global allocator that counts allocated bytes.
#![expect(unsafe_code, reason = "a global allocator; it leaves all work to that of the system")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// `LIVE` is the number of bytes that this thread allocated minus the bytes that it freed. `PEAK` is the maximum of
    /// `LIVE` since the start of the thread or of the last `peak_in_thread` call.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that the process and each thread allocate.
#[derive(Debug)]
pub struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
    total: AtomicUsize,
}

impl CountingAllocator {
    /// Returns an allocator for a `static` with the attribute `#[global_allocator]`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default cannot be made in a `static`")]
    pub const fn new() -> CountingAllocator {
        CountingAllocator {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
        }
    }

    pub fn live_bytes(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns the maximum of [`CountingAllocator::live_bytes`] since the start of the process.
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the total size of all allocations since the start of the process. Freed memory is included.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed) as u64
    }

    /// Runs `work`. Returns its result, and the maximum growth of the live memory of this thread during `work`, in
    /// bytes.
    pub fn peak_in_thread<T>(&self, work: impl FnOnce() -> T) -> (T, isize) {
        let before = LIVE.get();
        PEAK.set(before);
        let result = work();
        (result, PEAK.get() - before)
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
        let live = LIVE.get() + bytes.cast_signed();
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
    }

    fn subtract(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
        LIVE.set(LIVE.get() - bytes.cast_signed());
    }
}

// SAFETY: each call is forwarded to the allocator of the system with its arguments unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.subtract(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.add(new_size.saturating_sub(layout.size()));
        self.subtract(layout.size().saturating_sub(new_size));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
