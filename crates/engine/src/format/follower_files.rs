//! List of the files that a follower uses. The file `FOLLOWERS/000001.files` is a text with one line per file, followed
//! by a line with a checksum.
//!
//! ```text
//! 7                          number of a table or blob file, in ascending order
//! 12
//! end 1a2b3c4d5e6f7081       checksum of all lines before, 16 hexadecimal digits
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;

use lsmx_base::checksum::xxh3;

/// Start of the last line.
const END: &str = "end ";

/// Encodes the numbers of files.
pub(crate) fn encode_follower_files(numbers: &BTreeSet<u64>) -> String {
    let mut text = String::new();
    for number in numbers {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{number}");
    }
    let checksum = xxh3(text.as_bytes());
    let _ = writeln!(text, "{END}{checksum:016x}");
    text
}

/// Decodes the numbers of files. Returns `None` if the text is damaged.
pub(crate) fn decode_follower_files(text: &[u8]) -> Option<BTreeSet<u64>> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let start = text.rfind('\n').map_or(0, |at| at + 1);
    let (lines, last) = text.split_at(start);
    if last.strip_prefix(END)? != format!("{:016x}", xxh3(lines.as_bytes())) {
        return None;
    }
    lines.lines().map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follower_files_round_trip() {
        for numbers in [vec![], vec![7], vec![7, 12, 1 << 55]] {
            let numbers: BTreeSet<u64> = numbers.into_iter().collect();
            let text = encode_follower_files(&numbers);
            assert_eq!(decode_follower_files(text.as_bytes()), Some(numbers));
        }
        let text = encode_follower_files(&BTreeSet::from([7, 12]));
        assert_eq!(text, "7\n12\nend 9ffb6ff85a15f45f\n");
    }

    #[test]
    fn follower_files_truncated_or_changed_is_damaged() {
        let text = encode_follower_files(&BTreeSet::from([7, 12, 300])).into_bytes();
        for end in 0..text.len() {
            assert_eq!(decode_follower_files(&text[..end]), None, "{end} bytes");
        }
        for bit in 0..text.len() * 8 {
            let mut changed = text.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_follower_files(&changed), None, "bit {bit}");
        }
    }
}
