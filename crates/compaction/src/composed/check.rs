//! Which combinations of primitives mean something, and why others do not.

use super::fluid::Limits;
use super::{L0, Primitives, Rule};
use crate::Error;
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::movement::Movement;
use crate::trigger::Trigger;

/// Tiered levels at the top of a leveled tree. More would leave no level to be leveled.
const TIERED_LEVELS_MAX: usize = 32;

impl Primitives {
    /// Verifies that every part has an effect, and that the tree comes to rest.
    ///
    /// # Errors
    ///
    /// [`Error::Combination`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Combination { reason });
        let layout = self.layout.name();
        for (index, rule) in self.rules.iter().enumerate() {
            let name = rule.trigger.name();
            let same = |other: &Rule| other.trigger.name() == name;
            if self.rules[..index].iter().any(same) {
                return refuse(format!(
                    "two rules with trigger {name}: the second would never act"
                ));
            }
            self.check_rule(rule)?;
        }
        let has = |name: &str| self.rules.iter().any(|rule| rule.trigger.name() == name);
        let needed: &[&str] = match self.layout {
            Layout::Leveling { .. } => &["level-full", "run-count"],
            Layout::Fluid { .. } => &["too-many-runs"],
            Layout::RunList { .. } => &["run-count"],
            Layout::Queue => &[],
        };
        if let Some(missing) = needed.iter().find(|name| !has(name)) {
            return refuse(format!("layout {layout} needs a rule with trigger {missing}"));
        }
        match &self.layout {
            Layout::Queue if !has("total-bytes") && !has("file-staleness") => {
                return refuse("layout queue needs a rule that says what leaves it".to_owned());
            }
            Layout::Leveling { tiered } if tiered.len() > TIERED_LEVELS_MAX => {
                return refuse(format!("at most {TIERED_LEVELS_MAX} levels can be tiered"));
            }
            Layout::Leveling { tiered } if tiered.contains(&0) => {
                return refuse("a tiered level that may hold no run".to_owned());
            }
            Layout::Fluid { upper, last, .. }
                if upper.is_empty() || upper.contains(&0) || *last == 0 =>
            {
                return refuse("layout fluid with a level that may hold no run".to_owned());
            }
            _ => {}
        }
        let (runs, wait) = match &self.layout {
            Layout::Fluid { upper, last, size_ratio } => {
                let limits = Limits { upper, last: *last, size_ratio: *size_ratio };
                (limits.runs_max(L0, false) + 1, 0)
            }
            _ => self.run_counts().unwrap_or((0, 0)),
        };
        if !self.drops_data() && self.stop_runs <= runs {
            let stop = self.stop_runs;
            return refuse(format!(
                "writes stop at {stop} runs, where no merge is due before {runs}"
            ));
        }
        if wait >= self.stop_runs && wait > runs {
            let stop = self.stop_runs;
            return refuse(format!(
                "L0 may wait until it has {wait} runs, but writes stop at {stop}"
            ));
        }
        Ok(())
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), Error> {
        let Rule { trigger, granularity, movement } = rule;
        let (name, layout) = (trigger.name(), self.layout.name());
        let refuse = |reason: String| Err(Error::Combination { reason });
        let fits = match self.layout {
            Layout::Leveling { .. } => {
                let others = matches!(trigger, Trigger::SizeRatio { .. } | Trigger::TooManyRuns);
                !others && !matches!(trigger, Trigger::TotalBytes { .. })
            }
            Layout::Fluid { .. } => {
                let space = matches!(trigger, Trigger::SpaceAmplification { .. });
                space || *trigger == Trigger::TooManyRuns || trigger.is_about_files()
            }
            Layout::RunList { .. } => {
                let others = matches!(trigger, Trigger::LevelFull(_) | Trigger::TooManyRuns);
                !others && !matches!(trigger, Trigger::TotalBytes { .. })
            }
            Layout::Queue => {
                matches!(trigger, Trigger::TotalBytes { .. } | Trigger::FileStaleness { .. })
            }
        };
        if !fits {
            let why = match trigger {
                Trigger::LevelFull(_) if layout != "queue" => "its levels have no capacity",
                Trigger::SizeRatio { .. } => "only a run list looks for runs of like size",
                Trigger::TotalBytes { .. } => "only a queue lets data go by size",
                Trigger::TooManyRuns => "its levels may hold any number of runs",
                Trigger::RunCount { .. } if layout == "fluid" => {
                    "it says itself how many runs a level may hold"
                }
                _ => "a queue merges nothing",
            };
            return refuse(format!("trigger {name} does not go with layout {layout}: {why}"));
        }
        let leveled = matches!(self.layout, Layout::Leveling { .. });
        if !leveled && *granularity != Granularity::Runs {
            let granularity = granularity.name();
            return refuse(format!(
                "granularity {granularity} does not go with layout {layout}, which takes whole runs"
            ));
        }
        let full = self.full_rule().map(|(rule, _)| rule.granularity);
        let whole_passes =
            matches!(full, Some(Granularity::Preemptive | Granularity::Partition { .. }));
        if whole_passes && !matches!(trigger, Trigger::LevelFull(_) | Trigger::RunCount { .. }) {
            let full = full.map_or("", Granularity::name);
            return refuse(format!("trigger {name} has no effect beside granularity {full}"));
        }
        if whole_passes && matches!(&self.layout, Layout::Leveling { tiered } if !tiered.is_empty())
        {
            let full = full.map_or("", Granularity::name);
            return refuse(format!("tiered levels do not go with granularity {full}"));
        }
        if matches!(granularity, Granularity::Preemptive | Granularity::Partition { .. })
            && !matches!(trigger, Trigger::LevelFull(_))
        {
            let granularity = granularity.name();
            return refuse(format!(
                "granularity {granularity} is for trigger level-full, not for {name}"
            ));
        }
        if matches!(granularity, Granularity::Files { count: 0 }) {
            return refuse("granularity files of no file".to_owned());
        }
        self.check_movement(rule, *movement)
    }

    fn check_movement(&self, rule: &Rule, movement: Movement) -> Result<(), Error> {
        let (name, granularity) = (rule.trigger.name(), rule.granularity);
        let refuse = |reason: String| Err(Error::Combination { reason });
        if rule.trigger.is_about_files() {
            let ranks = !matches!(
                movement,
                Movement::LeastOverlap | Movement::LeastOverlapGrandparent | Movement::RoundRobin
            );
            if !ranks {
                let movement = movement.name();
                return refuse(format!(
                    "movement {movement} compares files of one level, trigger {name} those of all"
                ));
            }
            return Ok(());
        }
        let chooses = granularity.chooses() && !matches!(rule.trigger, Trigger::RunCount { .. });
        match (chooses, movement) {
            (true, Movement::All) => refuse(format!(
                "granularity {} needs a movement that chooses among files",
                granularity.name()
            )),
            (false, movement) if movement != Movement::All => refuse(format!(
                "movement {} has nothing to choose from: {}",
                movement.name(),
                match rule.trigger {
                    Trigger::RunCount { .. } => "all runs of a level go together".to_owned(),
                    _ => format!("granularity {} takes all", granularity.name()),
                }
            )),
            _ => Ok(()),
        }
    }
}
