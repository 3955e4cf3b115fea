//! Sketch of the expiry times of a table. It computes an approximate median in bounded memory.
//!
//! 1. Expiry times are added to the buffer of level 0, which has room for [`BUFFER_TIMES`] times. Each of them
//!    represents one entry.
//! 2. When a buffer is full, it is sorted, and every second time moves to the buffer of the next level. The other times
//!    are dropped. A time of level *n* represents 2^*n* entries. Even and odd positions are moved alternately, so that
//!    the errors of a level mostly cancel each other out.
//! 3. The median is the weighted median of the times in all buffers.
//!
//! The result depends only on the times and their order. It is exact for fewer than [`BUFFER_TIMES`] entries. Emptying
//! a full buffer of level *n* changes the rank of a time by at most 2^*n*. With N entries, each level adds an error of
//! at most N / [`BUFFER_TIMES`] ranks. With 2^30 entries there are 20 levels, so the error is less than 2 % of the
//! entries.
//!
//! Source: Manku, Rajagopalan, Lindsay, "Approximate medians and other quantiles in one pass and with limited memory",
//! SIGMOD 1998.

use lsmx_compaction::ExpirySummary;

/// Number of times in the buffer of a level.
const BUFFER_TIMES: usize = 1024;

/// Collects the expiry times of the entries of a table.
#[derive(Debug, Default)]
pub(super) struct ExpirySketch {
    entries: u64,
    earliest_us: u64,
    latest_us: u64,
    levels: Vec<SketchLevel>,
}

#[derive(Debug, Default)]
struct SketchLevel {
    times: Vec<u64>,
    /// True if the next full buffer moves the times at odd positions. Otherwise, it moves the times at even positions.
    is_odd_next: bool,
}

impl ExpirySketch {
    /// Adds the expiry time of an entry in microseconds.
    pub(super) fn add(&mut self, expiry_us: u64) {
        if self.entries == 0 {
            (self.earliest_us, self.latest_us) = (expiry_us, expiry_us);
        }
        self.entries += 1;
        self.earliest_us = self.earliest_us.min(expiry_us);
        self.latest_us = self.latest_us.max(expiry_us);
        if self.levels.is_empty() {
            self.levels.push(SketchLevel::default());
        }
        self.levels[0].times.push(expiry_us);
        let mut full = 0;
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

    /// Returns the summary of all expiry times, or `None` if there are none.
    pub(super) fn summary(&self) -> Option<ExpirySummary> {
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
        let (entries, earliest_us, latest_us) = (self.entries, self.earliest_us, self.latest_us);
        let &(median_us, _) = median?;
        Some(ExpirySummary { entries, earliest_us, median_us, latest_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summarize(times: impl IntoIterator<Item = u64>) -> ExpirySummary {
        let mut sketch = ExpirySketch::default();
        times.into_iter().for_each(|time| sketch.add(time));
        sketch.summary().unwrap()
    }

    #[test]
    fn median_of_few_times_is_exact() {
        assert_eq!(ExpirySketch::default().summary(), None);
        for count in 1..20 {
            let expected = ExpirySummary {
                entries: count,
                earliest_us: 1,
                median_us: count.div_ceil(2),
                latest_us: count,
            };
            assert_eq!(summarize((1..=count).rev()), expected);
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
