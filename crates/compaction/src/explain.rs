//! A decision of a policy, laid open: scores, candidates, what was picked and why.

use std::cell::RefCell;
use std::fmt;

use crate::{Job, Level};

/// Candidates that an explanation shows.
pub(crate) const CANDIDATES_SHOWN: usize = 5;

/// What a policy looked at before it picked a job, or none. Prints as a few lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// How near each level is to a job, in the order of the levels.
    pub scores: Vec<Score>,
    /// The files or runs among which there was a choice, first choice first; the first few, a line
    /// each.
    pub candidates: Vec<String>,
    /// What was picked; its reason is a part of it.
    pub picked: Option<Job>,
}

/// How near a level is to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Score {
    /// The level.
    pub level: Level,
    /// The trigger that was asked, by its name in a spec.
    pub trigger: &'static str,
    /// What the level holds over what makes a job due, in thousandths: due from 1000 on.
    pub score_milli: u64,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Score { level, trigger, score_milli } = self;
        if *score_milli == u64::MAX {
            return write!(f, "{level} {trigger} foreign");
        }
        write!(f, "{level} {trigger} {}.{:03}", score_milli / 1000, score_milli % 1000)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scores")?;
        for (index, score) in self.scores.iter().enumerate() {
            write!(f, "{} {score}", if index > 0 { "," } else { "" })?;
        }
        if self.scores.is_empty() {
            f.write_str(" none")?;
        }
        for candidate in &self.candidates {
            write!(f, "\n  candidate {candidate}")?;
        }
        match &self.picked {
            Some(job) => write!(f, "\n  picked {job}"),
            None => f.write_str("\n  picked nothing"),
        }
    }
}

/// Takes notes while a policy decides, if somebody wants them.
#[derive(Debug, Default)]
pub(crate) struct Notes(Option<RefCell<Explanation>>);

impl Notes {
    /// Notes that are kept.
    pub(crate) fn kept() -> Notes {
        Notes(Some(RefCell::default()))
    }

    /// Whether they are kept: else nothing need be worked out for them.
    pub(crate) fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn score(&self, level: Level, trigger: &'static str, score_milli: u64) {
        if let Some(notes) = &self.0 {
            notes.borrow_mut().scores.push(Score { level, trigger, score_milli });
        }
    }

    pub(crate) fn candidates(&self, lines: impl FnOnce() -> Vec<String>) {
        if let Some(notes) = &self.0 {
            let lines = lines();
            notes.borrow_mut().candidates.extend(lines);
        }
    }

    /// The explanation of what was picked in the end.
    pub(crate) fn explain(self, picked: Option<Job>) -> Explanation {
        let mut explanation = self.0.map(RefCell::into_inner).unwrap_or_default();
        explanation.scores.sort_by_key(|score| score.level);
        explanation.picked = picked;
        explanation
    }
}
