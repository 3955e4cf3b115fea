//! Sketch of the expiry times of a table. It computes approximate medians in bounded memory.
//!
//! 1. A time has a weight: one entry, or the bytes of its entry. A time in a buffer of level *n* represents the weight
//!    2^*n*. A new time is added to the buffer of each level whose bit is set in its weight.
//! 2. When a buffer has [`BUFFER_TIMES`] times, it is sorted, and every second time moves to the buffer of the next
//!    level. The other times are dropped. Even and odd positions are moved alternately, so that the errors of a level
//!    mostly cancel each other out.
//! 3. The median is the weighted median of the times in all buffers.
//!
//! The result depends only on the times and their order. It is exact for fewer than [`BUFFER_TIMES`] entries. Emptying
//! a full buffer of level *n* changes the rank of a time by at most 2^*n*. With a total weight of W, each level adds an
//! error of at most W / [`BUFFER_TIMES`] ranks. With 2^30 entries there are 20 levels with full buffers, so the error is
//! less than 2 % of the entries. With 2^40 bytes there are 30 such levels, so the error is less than 3 % of the bytes.
//!
//! Source: Manku, Rajagopalan, Lindsay, "Approximate medians and other quantiles in one pass and with limited memory",
//! SIGMOD 1998.

use lsmx_compaction::{ExpiringBytes, ExpirySummary};

/// Number of times in the buffer of a level.
const BUFFER_TIMES: usize = 1024;

/// Collects the expiry times of the entries of a table.
#[derive(Debug, Default)]
pub(super) struct ExpirySketch {
    entries: u64,
    bytes: u64,
    earliest_us: u64,
    latest_us: u64,
    /// Times weighted by entries.
    by_entries: MedianSketch,
    /// Times weighted by bytes.
    by_bytes: MedianSketch,
}

impl ExpirySketch {
    /// Adds the expiry time of an entry in microseconds. `bytes` is the size of the entry.
    pub(super) fn add(&mut self, expiry_us: u64, bytes: u64) {
        if self.entries == 0 {
            (self.earliest_us, self.latest_us) = (expiry_us, expiry_us);
        }
        self.entries += 1;
        self.bytes += bytes;
        self.earliest_us = self.earliest_us.min(expiry_us);
        self.latest_us = self.latest_us.max(expiry_us);
        self.by_entries.add(expiry_us, 1);
        self.by_bytes.add(expiry_us, bytes);
    }

    /// Returns the summary of all expiry times, or `None` if there are none. `total` is the size of all entries of the
    /// table in bytes.
    pub(super) fn summary(&self, total: u64) -> Option<ExpirySummary> {
        let median_us = self.by_entries.median()?;
        let bytes = self.by_bytes.median().map(|median_us| ExpiringBytes {
            expiring: self.bytes,
            total,
            median_us,
        });
        let (entries, earliest_us, latest_us) = (self.entries, self.earliest_us, self.latest_us);
        Some(ExpirySummary { entries, earliest_us, median_us, latest_us, bytes })
    }
}

/// Sketch of weighted times.
#[derive(Debug, Default)]
struct MedianSketch {
    levels: Vec<SketchLevel>,
}

#[derive(Debug, Default)]
struct SketchLevel {
    times: Vec<u64>,
    /// True if the next full buffer moves the times at odd positions. Otherwise, it moves the times at even positions.
    is_odd_next: bool,
}

impl MedianSketch {
    fn add(&mut self, time: u64, weight: u64) {
        let (mut rest, mut level) = (weight, 0);
        while rest > 0 {
            if rest & 1 == 1 {
                self.add_to_level(time, level);
            }
            (rest, level) = (rest >> 1, level + 1);
        }
    }

    fn add_to_level(&mut self, time: u64, level: usize) {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, SketchLevel::default);
        }
        self.levels[level].times.push(time);
        let mut full = level;
        while self.levels[full].times.len() >= BUFFER_TIMES {
            let SketchLevel { times, is_odd_next } = &mut self.levels[full];
            times.sort_unstable();
            let first = usize::from(std::mem::replace(is_odd_next, !*is_odd_next));
            let moved: Vec<u64> = times.drain(..).skip(first).step_by(2).collect();
            full += 1;
            if self.levels.len() == full {
                self.levels.push(SketchLevel::default());
            }
            self.levels[full].times.extend(moved);
        }
    }

    /// Returns the weighted median, or `None` if there are no times.
    fn median(&self) -> Option<u64> {
        let weighted = self.levels.iter().zip(0u32..).flat_map(|(level, number)| {
            level.times.iter().map(move |time| (*time, 1u64 << number.min(63)))
        });
        let mut weighted: Vec<(u64, u64)> = weighted.collect();
        weighted.sort_unstable();
        let total: u64 = weighted.iter().map(|(_, weight)| weight).sum();
        let mut below = 0;
        let median = weighted.iter().find(|(_, weight)| {
            below += weight;
            below >= total.div_ceil(2)
        });
        median.map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summarize(times: impl IntoIterator<Item = u64>) -> ExpirySummary {
        let mut sketch = ExpirySketch::default();
        times.into_iter().for_each(|time| sketch.add(time, 1));
        sketch.summary(u64::MAX).unwrap()
    }

    #[test]
    fn median_of_few_times_is_exact() {
        assert_eq!(ExpirySketch::default().summary(0), None);
        for count in 1..20 {
            let expected = ExpirySummary {
                entries: count,
                earliest_us: 1,
                median_us: count.div_ceil(2),
                latest_us: count,
                bytes: Some(ExpiringBytes {
                    expiring: count,
                    total: u64::MAX,
                    median_us: count.div_ceil(2),
                }),
            };
            assert_eq!(summarize((1..=count).rev()), expected);
        }
    }

    /// Entries that expire later have more bytes.
    #[test]
    fn median_of_bytes_is_weighted_by_bytes() {
        for count in [10, 1_000, 100_000u64] {
            let mut sketch = ExpirySketch::default();
            let mut sizes: Vec<(u64, u64)> = (0..count).map(|time| (time, 1 + time * 37)).collect();
            let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
            let mut below = 0;
            let exact = sizes.iter().find(|(_, bytes)| {
                below += bytes;
                below >= total.div_ceil(2)
            });
            let exact = exact.unwrap().0;
            sizes.sort_by_key(|(time, _)| time * 7_919 % count);
            sizes.iter().for_each(|(time, bytes)| sketch.add(*time, *bytes));
            let bytes = sketch.summary(2 * total).unwrap().bytes.unwrap();
            assert_eq!((bytes.expiring, bytes.total), (total, 2 * total));
            let error = bytes.median_us.abs_diff(exact);
            assert!(if count < 1_024 { error == 0 } else { error < count / 30 }, "{error}");
        }
    }

    #[test]
    fn median_of_many_times_is_near_the_exact_one_in_every_order() {
        let count = 300_000;
        let orders: [&dyn Fn(u64) -> u64; 4] =
            [&|n| n, &|n| count - 1 - n, &|n| n * 7_919 % count, &|n| {
                if n % 2 == 0 { n / 2 } else { count - 1 - n / 2 }
            }];
        for (index, order) in orders.iter().enumerate() {
            let summary = summarize((0..count).map(order));
            assert_eq!((summary.entries, summary.earliest_us), (count, 0), "order {index}");
            assert_eq!(summary.latest_us, count - 1, "order {index}");
            let error = summary.median_us.abs_diff(count / 2);
            assert!(error < count / 50, "order {index}: {error}");
        }
    }
}
