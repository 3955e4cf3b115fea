//! Divides a large merge into subcompactions.
//!
//! An output ends where a subcompaction ends. Each subcompaction gets an equal share of the bytes, which is at least
//! the target size of one file. The engine divides merges even if it has a single worker, so that the tree does not
//! depend on the number of workers.

use crate::histogram::Histogram;
use crate::math::{len_to_u64, round_to_u64, to_f64};

/// Maximum number of steps of the search for a position.
const SEARCH_STEPS_MAX: usize = 24;
/// Accepted error of the search, in bytes. It is about the precision of the engine's index blocks.
const SEARCH_ERROR_BYTES: f64 = 4096.0;

/// A file of an input run, its size, and the size of the files before it in the run.
#[derive(Clone, Copy, Debug)]
struct InputFile<'a> {
    contents: &'a Histogram,
    bytes: f64,
    bytes_before: f64,
}

/// Returns the last position of each subcompaction except the last subcompaction.
///
/// `runs` yields the files of each input run in key order, with their sizes in bytes. `total_bytes` is the sum of these
/// sizes. `file_bytes` is the target size of an output.
pub(crate) fn subcompaction_ends<'a>(
    runs: impl Iterator<Item = impl Iterator<Item = (&'a Histogram, f64)>>,
    total_bytes: f64,
    subcompactions_max: usize,
    file_bytes: u64,
) -> Vec<u64> {
    let least = to_f64(file_bytes.max(1));
    let fitting = usize::try_from(round_to_u64((total_bytes / least).floor()));
    let count = subcompactions_max.min(fitting.unwrap_or(usize::MAX)).max(1);
    if count < 2 {
        return Vec::new();
    }
    let runs: Vec<Vec<InputFile<'_>>> = runs
        .map(|files| {
            let mut sum = 0.0;
            let file = |(contents, bytes)| {
                sum += bytes;
                InputFile { contents, bytes, bytes_before: sum - bytes }
            };
            files.map(file).collect()
        })
        .collect();
    let mut ends = Vec::new();
    let mut done = 0.0;
    while ends.len() + 1 < count {
        let share = (total_bytes - done) / to_f64(len_to_u64(count - ends.len()));
        done += share.max(least);
        if total_bytes - done < least {
            break;
        }
        ends.push(position_of_bytes(&runs, done));
    }
    ends
}

/// Returns the number of bytes at or before a position.
fn bytes_up_to(runs: &[Vec<InputFile<'_>>], position: u64) -> f64 {
    runs.iter()
        .map(|run| {
            let after = run.partition_point(|file| file.contents.start <= position);
            let Some(file) = after.checked_sub(1).map(|at| run[at]) else { return 0.0 };
            if file.contents.end_position() <= position {
                return file.bytes_before + file.bytes;
            }
            file.bytes_before + file.bytes * file.contents.entry_share_up_to(position)
        })
        .sum()
}

/// Returns the position up to which the runs have about `bytes` bytes.
fn position_of_bytes(runs: &[Vec<InputFile<'_>>], bytes: f64) -> u64 {
    let first = runs.iter().filter_map(|run| run.first()).map(|file| file.contents.start).min();
    let last =
        runs.iter().filter_map(|run| run.last()).map(|file| file.contents.end_position()).max();
    let (mut low, mut high) = (first.unwrap_or(0), last.unwrap_or(u64::MAX));
    let (mut low_bytes, mut high_bytes) = (0.0, bytes_up_to(runs, high));
    for step in 0..SEARCH_STEPS_MAX {
        if high - low < 2 {
            break;
        }
        // Bytes are distributed nearly evenly, so interpolation is fast. Every third step bisects the interval instead,
        // which limits the number of steps if the bytes are distributed unevenly.
        let guess = if step % 3 == 2 || high_bytes <= low_bytes {
            (high - low) / 2
        } else {
            round_to_u64(to_f64(high - low) * (bytes - low_bytes) / (high_bytes - low_bytes))
        };
        let middle = low + guess.clamp(1, high - low - 1);
        let found = bytes_up_to(runs, middle);
        if (found - bytes).abs() < SEARCH_ERROR_BYTES {
            return middle;
        }
        if found < bytes {
            (low, low_bytes) = (middle, found);
        } else {
            (high, high_bytes) = (middle, found);
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_counts::EntryCounts;
    use crate::histogram::HistogramBin;
    use crate::seq_range::SeqRange;

    const MIB: u64 = 1 << 20;

    fn push(file: &mut Histogram, end: u64, inserted: f64) {
        let seqs = SeqRange { smallest: 1, largest: 1 };
        let counts = EntryCounts { inserted, ..EntryCounts::default() };
        file.push(HistogramBin { end, range_tombstones: 0.0, seqs }, &[counts]);
    }

    /// Returns a file whose bytes are evenly distributed over `start..=end`.
    fn even_file(start: u64, end: u64) -> Histogram {
        let mut file = Histogram::with_start(start);
        push(&mut file, end, 1.0);
        file
    }

    /// Returns the ends of subcompactions for runs of evenly filled files, which are given as (start, end, bytes).
    fn ends_of(runs: &[&[(u64, u64, u64)]], subcompactions: usize) -> Vec<u64> {
        let run = |run: &&[(u64, u64, u64)]| {
            let files =
                run.iter().map(|&(start, end, bytes)| (even_file(start, end), to_f64(bytes)));
            files.collect::<Vec<_>>()
        };
        let runs: Vec<Vec<(Histogram, f64)>> = runs.iter().map(run).collect();
        let total = runs.iter().flatten().map(|(_, bytes)| bytes).sum();
        let runs = runs.iter().map(|run| run.iter().map(|(file, bytes)| (file, *bytes)));
        subcompaction_ends(runs, total, subcompactions, MIB)
    }

    fn is_close(found: &[u64], expected: &[u64], within: u64) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= within)
    }

    #[test]
    fn subcompactions_have_equal_bytes_and_one_file_at_least() {
        let even = [(0, 999_999, 10 * MIB)];
        assert!(is_close(&ends_of(&[&even], 2), &[500_000], 5000));
        assert!(is_close(&ends_of(&[&even], 4), &[250_000, 500_000, 750_000], 5000));
        assert!(is_close(&ends_of(&[&even], 1), &[], 0));
        // Two subcompactions need at least the bytes of two files.
        assert_eq!(ends_of(&[&[(0, 99, 2 * MIB - 1)]], 9).len(), 0);
        assert_eq!(ends_of(&[&[(0, 999_999, 3 * MIB)]], 9).len(), 2);
    }

    #[test]
    fn subcompactions_divide_the_bytes_of_all_runs() {
        let newer = [(0, 499_999, MIB), (500_000, 999_999, 5 * MIB)];
        let older = [(0, 999_999, 2 * MIB)];
        // 2 MiB are at or before 499,999, and 6 MiB after it.
        let end = 499_999 + 2 * 500_000 / 6;
        assert!(is_close(&ends_of(&[&newer, &older], 2), &[end], 5000));
    }

    #[test]
    fn subcompactions_of_uneven_file_follow_its_density() {
        let mut file = even_file(0, 99_999);
        push(&mut file, 199_999, 9.0);
        let bytes = 20.0 * to_f64(MIB);
        let run = std::iter::once((&file, bytes));
        let found = subcompaction_ends(std::iter::once(run), bytes, 2, MIB);
        // A tenth of the bytes are at or before 99,999. The second bin adds four ninths of its bytes, which gives half
        // of all bytes.
        assert!(is_close(&found, &[144_444], 500), "{found:?}");
    }
}
