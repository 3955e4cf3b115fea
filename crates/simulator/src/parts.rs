//! How the engine divides a large merge among threads: an output ends where a part does.
//!
//! A part has an equal share of the bytes and at least a target file's worth. The engine does so even
//! where it has one thread, so that trees look alike (`job/parts.rs` there).

use crate::body::Body;
use crate::numbers::{count, real, whole};

/// Steps that the search for the place of a share of the bytes takes at most.
const STEPS_MAX: usize = 24;
/// As near as the engine's index blocks let it come, about.
const NEAR_ENOUGH: f64 = 4096.0;

/// A file of an input run: what it holds, its bytes, and those of the files before.
#[derive(Clone, Copy, Debug)]
struct Extent<'a> {
    body: &'a Body,
    bytes: f64,
    before: f64,
}

/// The last place of each part but the last one, of a merge of these runs, of so many bytes in all, into
/// files of a size. Their files come with their bytes, in key order.
pub(super) fn ends<'a>(
    runs: impl Iterator<Item = impl Iterator<Item = (&'a Body, f64)>>,
    total: f64,
    parts_max: usize,
    file_bytes: u64,
) -> Vec<u64> {
    let least = real(file_bytes.max(1));
    let fitting = usize::try_from(whole((total / least).floor())).unwrap_or(usize::MAX);
    let parts = parts_max.min(fitting).max(1);
    if parts < 2 {
        return Vec::new();
    }
    let runs: Vec<Vec<Extent<'_>>> = runs
        .map(|files| {
            let mut before = 0.0;
            let extent = |(body, bytes)| {
                before += bytes;
                Extent { body, bytes, before: before - bytes }
            };
            files.map(extent).collect()
        })
        .collect();
    let mut ends = Vec::new();
    let mut done = 0.0;
    while ends.len() + 1 < parts {
        let share = (total - done) / real(count(parts - ends.len()));
        done += share.max(least);
        if total - done < least {
            break;
        }
        ends.push(place_of_bytes(&runs, done));
    }
    ends
}

/// Bytes that lie up to a place. Only the file in which it lies is looked into.
fn bytes_to(runs: &[Vec<Extent<'_>>], place: u64) -> f64 {
    runs.iter()
        .map(|run| {
            let at = run.partition_point(|file| file.body.from <= place);
            let Some(file) = at.checked_sub(1).map(|at| run[at]) else { return 0.0 };
            if file.body.to() <= place {
                return file.before + file.bytes;
            }
            file.before + file.bytes * file.body.share_to(place)
        })
        .sum()
}

/// The place up to which so many bytes lie.
fn place_of_bytes(runs: &[Vec<Extent<'_>>], bytes: f64) -> u64 {
    let first = runs.iter().filter_map(|run| run.first()).map(|file| file.body.from).min();
    let last = runs.iter().filter_map(|run| run.last()).map(|file| file.body.to()).max();
    let (mut low, mut high) = (first.unwrap_or(0), last.unwrap_or(u64::MAX));
    let (mut low_bytes, mut high_bytes) = (0.0, bytes_to(runs, high));
    for step in 0..STEPS_MAX {
        if high - low < 2 {
            break;
        }
        // Bytes lie nearly evenly, so the straight line is a good guess; now and then the middle, in
        // case it is not.
        let guess = if step % 3 == 2 || high_bytes <= low_bytes {
            (high - low) / 2
        } else {
            whole(real(high - low) * (bytes - low_bytes) / (high_bytes - low_bytes))
        };
        let middle = low + guess.clamp(1, high - low - 1);
        let found = bytes_to(runs, middle);
        if (found - bytes).abs() < NEAR_ENOUGH {
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
    use crate::body::Stretch;
    use crate::content::Content;
    use crate::seqs::Seqs;

    const MIB: u64 = 1 << 20;

    /// A file whose bytes lie evenly over a range of places.
    fn even(from: u64, to: u64) -> Body {
        let mut body = Body::starting_at(from);
        let seqs = Seqs { smallest: 1, largest: 1 };
        let content = Content { born: 1.0, ..Content::default() };
        body.push(Stretch { to, spans: 0.0, seqs }, &[content]);
        body
    }

    fn found(runs: &[&[(u64, u64, u64)]], parts: usize) -> Vec<u64> {
        let run = |run: &&[(u64, u64, u64)]| {
            run.iter().map(|&(from, to, n)| (even(from, to), real(n))).collect::<Vec<_>>()
        };
        let runs: Vec<Vec<(Body, f64)>> = runs.iter().map(run).collect();
        let total = runs.iter().flatten().map(|(_, bytes)| bytes).sum();
        let runs = runs.iter().map(|run| run.iter().map(|(body, bytes)| (body, *bytes)));
        ends(runs, total, parts, MIB)
    }

    fn close(found: &[u64], expected: &[u64], within: u64) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= within)
    }

    #[test]
    fn parts_have_equal_bytes_and_a_file_each() {
        let even = [(0, 999_999, 10 * MIB)];
        assert!(close(&found(&[&even], 2), &[500_000], 5000));
        assert!(close(&found(&[&even], 4), &[250_000, 500_000, 750_000], 5000));
        assert!(close(&found(&[&even], 1), &[], 0));
        // Two files' worth make two parts, less than that one.
        assert_eq!(found(&[&[(0, 99, 2 * MIB - 1)]], 9).len(), 0);
        assert_eq!(found(&[&[(0, 999_999, 3 * MIB)]], 9).len(), 2);
    }

    #[test]
    fn all_runs_count() {
        let above = [(0, 499_999, MIB), (500_000, 999_999, 5 * MIB)];
        let below = [(0, 999_999, 2 * MIB)];
        // 2 MiB lie up to 499,999, and 12 to the million from there on.
        let end = 499_999 + 2 * 500_000 / 6;
        assert!(close(&found(&[&above, &below], 2), &[end], 5000));
    }

    #[test]
    fn a_file_that_is_dense_at_one_end_is_divided_there() {
        let mut body = even(0, 99_999);
        let seqs = Seqs { smallest: 1, largest: 1 };
        let nine = Content { born: 9.0, ..Content::default() };
        body.push(Stretch { to: 199_999, spans: 0.0, seqs }, &[nine]);
        let bytes = 20.0 * real(MIB);
        let found = ends(std::iter::once(std::iter::once((&body, bytes))), bytes, 2, MIB);
        // A tenth lies up to 99,999; four ninths of the rest are missing to the half.
        assert!(close(&found, &[144_444], 500), "{found:?}");
    }
}
