//! Measures the rate at which the device reads single pages. This rate is an upper bound for the rate at which any
//! engine can read values from the device.

use std::path::Path;
use std::sync::Arc;

use lsmx::vfs::{File, OsVfs, Vfs as _};

use super::result::ThroughputCell;
use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::latency::Latencies;
use crate::numbers::{to_f64, to_u64};
use crate::workload::random::Random;

/// Length of a read, in bytes.
const PAGE_BYTES: usize = 4096;
/// Queue depths to measure. A queue depth is the number of threads, because each thread has one read in progress.
pub(super) const QUEUE_DEPTHS: [u64; 2] = [1, 2];
/// Duration of the reads for a queue depth, in seconds.
const DURATION_S: f64 = 2.0;
/// Name of the workload and of the engine in results.
const WORKLOAD: &str = "page reads";
const ENGINE: &str = "device";
/// Purpose of the random number generator. It differs from the purposes of the workloads, so the random numbers are
/// different.
const PURPOSE: u64 = 0x6465_7669_6365;

/// Measures reads of random pages from the tables and blob files of an lsmx database. For each queue depth, pages are
/// read with direct I/O for two seconds.
///
/// Returns one result per queue depth. Returns `None` if the file system does not support direct I/O, or if the
/// database has neither tables nor blob files.
pub(super) fn measure_device(
    database: &Path,
    seed: u64,
    progress: &mut dyn Progress,
) -> Result<Option<Vec<ThroughputCell>>> {
    let Some(pages) = TablePages::open(database)? else { return Ok(None) };
    progress.begin_phase("page reads of the device", 0);
    let cells = QUEUE_DEPTHS.into_iter().map(|queue_depth| pages.measure(queue_depth, seed));
    let cells = cells.collect::<Result<_>>()?;
    progress.end_phase();
    Ok(Some(cells))
}

/// Pages of all tables and blob files, numbered across the files. Each element is a pair: the page number at which a
/// file ends, and the file. Page `n` belongs to the first file whose end is above `n`.
struct TablePages {
    files: Vec<(u64, Arc<dyn File>)>,
}

impl TablePages {
    /// Opens all tables and blob files. Other files are excluded, because a read of their preallocated space may not
    /// reach the device.
    fn open(database: &Path) -> Result<Option<TablePages>> {
        let mut files = Vec::new();
        let mut end = 0;
        for name in OsVfs.list(database).map_err(Error::io("read", database))? {
            if !(name.ends_with(".sst") || name.ends_with(".blob")) {
                continue;
            }
            let path = database.join(name);
            let file = match OsVfs.open_direct(&path) {
                Ok(file) => file,
                Err(error) if is_unsupported(&error) => return Ok(None),
                Err(error) => return Err(Error::io("open", &path)(error)),
            };
            end += file.len().map_err(Error::io("read", &path))? / to_u64(PAGE_BYTES);
            files.push((end, file));
        }
        Ok((end > 0).then_some(TablePages { files }))
    }

    fn count(&self) -> u64 {
        self.files.last().map_or(0, |(end, _)| *end)
    }

    fn read(&self, page: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let place = self.files.partition_point(|(end, _)| *end <= page);
        let start = place.checked_sub(1).map_or(0, |before| self.files[before].0);
        self.files[place].1.read_at(buffer, (page - start) * to_u64(PAGE_BYTES)).map(drop)
    }

    fn measure(&self, queue_depth: u64, seed: u64) -> Result<ThroughputCell> {
        let watch = Stopwatch::start();
        let read_pages = |thread: u64| -> std::io::Result<Latencies> {
            let mut random = Random::new(seed, PURPOSE.wrapping_add(queue_depth << 8 | thread));
            let mut latencies = Latencies::new();
            let mut buffer = [0; PAGE_BYTES];
            while watch.elapsed_s() < DURATION_S {
                let read = Stopwatch::start();
                self.read(random.next_below(self.count()), &mut buffer)?;
                latencies.record_ns(read.elapsed_ns());
            }
            Ok(latencies)
        };
        let read_pages = &read_pages;
        let all = std::thread::scope(|scope| -> std::io::Result<Latencies> {
            let threads: Vec<_> =
                (0..queue_depth).map(|thread| scope.spawn(move || read_pages(thread))).collect();
            let mut all = Latencies::new();
            for thread in threads {
                let latencies =
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.merge(&latencies?);
            }
            Ok(all)
        });
        let all = all.map_err(Error::io("read pages of", Path::new("the tables")))?;
        let elapsed_s = watch.elapsed_s();
        let rate = to_f64(all.count()) / elapsed_s;
        Ok(ThroughputCell {
            workload: WORKLOAD.to_owned(),
            engine: ENGINE.to_owned(),
            threads: queue_depth,
            ops: all.count(),
            ops_per_s: rate,
            ops_per_s_unsettled: rate,
            elapsed_s,
            latency_us: all.summary(),
            device_read_bytes_per_op: Some(to_f64(to_u64(PAGE_BYTES))),
            device_reads_per_op: Some(1.0),
            ops_per_s_runs: vec![rate],
            ops_per_s_interval: [rate; 2],
            ..ThroughputCell::default()
        })
    }
}

fn is_unsupported(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::Unsupported | std::io::ErrorKind::InvalidInput)
}
