//! Explanation of a policy decision: scores, candidates and the picked job.

use std::cell::RefCell;
use std::fmt;

use crate::ids::Level;
use crate::job::Job;

/// Maximum number of file candidates in an explanation.
pub(crate) const CANDIDATES_MAX: usize = 5;

/// Facts that led to a decision of a policy. The text form has a few lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Scores of the levels, from L0 downward.
    pub scores: Vec<LevelScore>,
    /// Files or runs from which the policy chose, one line each. The best candidate is first.
    pub candidates: Vec<String>,
    /// The picked job and its reason.
    pub picked: Option<Job>,
}

/// Urgency of a job that takes data from one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelScore {
    /// The level.
    pub level: Level,
    /// Name of the trigger, as written in a spec.
    pub trigger: &'static str,
    /// Current value divided by the threshold of the trigger, in thousandths. A job is due at 1000 or more. `u64::MAX`
    /// means that the level does not fit the layout.
    pub score_milli: u64,
}

impl fmt::Display for LevelScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LevelScore { level, trigger, score_milli } = self;
        if *score_milli == u64::MAX {
            return write!(f, "{level} {trigger} does not fit the layout");
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

/// Collects the facts of an [`Explanation`] while a policy decides. The default value records nothing.
#[derive(Debug, Default)]
pub(crate) struct ExplanationBuilder(Option<RefCell<Explanation>>);

impl ExplanationBuilder {
    /// Returns a builder that records.
    pub(crate) fn new_recording() -> ExplanationBuilder {
        ExplanationBuilder(Some(RefCell::default()))
    }

    /// Returns whether the builder records.
    pub(crate) fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn add_score(&self, level: Level, trigger: &'static str, score_milli: u64) {
        if let Some(explanation) = &self.0 {
            explanation.borrow_mut().scores.push(LevelScore { level, trigger, score_milli });
        }
    }

    /// Adds candidates. Calls `lines` only if the builder records.
    pub(crate) fn add_candidates(&self, lines: impl FnOnce() -> Vec<String>) {
        if let Some(explanation) = &self.0 {
            let lines = lines();
            explanation.borrow_mut().candidates.extend(lines);
        }
    }

    /// Returns the collected explanation for the picked job.
    pub(crate) fn finish(self, picked: Option<Job>) -> Explanation {
        let mut explanation = self.0.map(RefCell::into_inner).unwrap_or_default();
        explanation.scores.sort_by_key(|score| score.level);
        explanation.picked = picked;
        explanation
    }
}
