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
    pub(crate) fn encode(&self) -> String {
        let RestoreMarker { backup, point, through } = self;
        let point = match point {
            RestorePoint::Backup => return backup.to_string(),
            RestorePoint::Commit(seq) => format!("commit {seq}"),
            RestorePoint::Time(time_ms) => format!("time {time_ms}"),
            RestorePoint::Newest => "newest 0".to_owned(),
        };
        format!("{backup} {point} through {} end", through.unwrap_or_default())
    }

    /// Returns `None` if the text is incomplete or malformed, as after a power loss.
    pub(crate) fn decode(text: &str) -> Option<RestoreMarker> {
        let words: Vec<_> = text.split(' ').collect();
        let (backup, point, through) = match words[..] {
            [backup] => (backup, RestorePoint::Backup, None),
            [backup, kind, number, "through", through, "end"] => {
                let number = number.parse().ok()?;
                let point = match kind {
                    "commit" => RestorePoint::Commit(number),
                    "time" => RestorePoint::Time(number),
                    "newest" => RestorePoint::Newest,
                    _ => return None,
                };
                (backup, point, Some(through.parse().ok()?))
            }
            _ => return None,
        };
        Some(RestoreMarker { backup: backup.parse().ok()?, point, through })
    }
}
