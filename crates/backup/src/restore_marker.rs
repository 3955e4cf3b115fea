//! Content of the file that marks an incomplete restore.

use crate::restore_point::RestorePoint;

/// Content of the marker file: the backup, the requested point, and the last sequence number that was chosen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestoreMarker {
    pub(crate) backup: u64,
    pub(crate) point: RestorePoint,
    pub(crate) through: Option<u64>,
}

impl RestoreMarker {
    /// Returns the number of the backup, and for a restore with the archived log the point and the last sequence number.
    ///
    /// The first and the last word show that the text is complete. A part of a number would be another number.
    pub(crate) fn encode(&self) -> String {
        let RestoreMarker { backup, point, through } = self;
        let point = match point {
            RestorePoint::Backup => return format!("backup {backup} end"),
            RestorePoint::Commit(seq) => format!("commit {seq}"),
            RestorePoint::Time(time_ms) => format!("time {time_ms}"),
            RestorePoint::Newest => "newest 0".to_owned(),
        };
        format!("backup {backup} {point} through {} end", through.unwrap_or_default())
    }

    /// Returns `None` if the text is incomplete or malformed, as after a power loss.
    ///
    /// Also reads the texts of older builds. They have no first word, and a restore without the archived log has no last one.
    pub(crate) fn decode(text: &str) -> Option<RestoreMarker> {
        let words: Vec<_> = text.split(' ').collect();
        let (backup, log) = match &words[..] {
            ["backup", backup, log @ .., "end"] => (backup, log),
            [backup, log @ .., "end"] if !log.is_empty() => (backup, log),
            [backup] => (backup, &[][..]),
            _ => return None,
        };
        let backup = backup.parse().ok()?;
        let (point, through) = match log {
            [] => (RestorePoint::Backup, None),
            [kind, number, "through", through] => {
                let number = number.parse().ok()?;
                let point = match *kind {
                    "commit" => RestorePoint::Commit(number),
                    "time" => RestorePoint::Time(number),
                    "newest" => RestorePoint::Newest,
                    _ => return None,
                };
                (point, Some(through.parse().ok()?))
            }
            _ => return None,
        };
        Some(RestoreMarker { backup, point, through })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: [(RestorePoint, Option<u64>, &str); 4] = [
        (RestorePoint::Backup, None, "12"),
        (RestorePoint::Commit(345), Some(340), "12 commit 345 through 340 end"),
        (RestorePoint::Time(678), Some(340), "12 time 678 through 340 end"),
        (RestorePoint::Newest, Some(340), "12 newest 0 through 340 end"),
    ];

    #[test]
    fn marker_decodes_only_if_it_is_complete() {
        for (point, through, _) in MARKERS {
            let marker = RestoreMarker { backup: 12, point, through };
            let text = marker.encode();
            assert_eq!(RestoreMarker::decode(&text), Some(marker), "{text}");
            for end in 0..text.len() {
                assert_eq!(RestoreMarker::decode(&text[..end]), None, "{}", &text[..end]);
            }
        }
    }

    #[test]
    fn marker_of_an_older_build_decodes() {
        for (point, through, text) in MARKERS {
            let marker = RestoreMarker { backup: 12, point, through };
            assert_eq!(RestoreMarker::decode(text), Some(marker), "{text}");
        }
    }
}
