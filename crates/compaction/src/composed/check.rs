//! Rejects combinations of primitives in which a part has no effect or the tree never settles.

use crate::composed::fluid::RunLimits;
use crate::composed::primitives::{L0, Primitives, Rule};
use crate::error::Error;
use crate::file_picker::FilePicker;
use crate::granularity::Granularity;
use crate::layout::Layout;
use crate::trigger::Trigger;

/// Maximum number of tiered levels. With more, no level number would be left for leveled levels.
const TIERED_LEVELS_MAX: usize = 32;

/// Checks that every primitive has an effect and that the tree settles.
///
/// # Errors
///
/// [`Error::InvalidCombination`] with the reason.
pub fn check_primitives(primitives: &Primitives) -> Result<(), Error> {
    let layout = primitives.layout.name();
    for (index, rule) in primitives.rules.iter().enumerate() {
        let name = rule.trigger.name();
        if primitives.rules[..index].iter().any(|other| other.trigger.name() == name) {
            return invalid(format!("the second rule with trigger {name} has no effect"));
        }
        check_rule(primitives, rule)?;
    }
    let has = |name: &str| primitives.rules.iter().any(|rule| rule.trigger.name() == name);
    let required: &[&str] = match primitives.layout {
        Layout::Leveling { .. } => &["level-full", "run-count"],
        Layout::Fluid { .. } => &["too-many-runs"],
        Layout::RunList { .. } => &["run-count"],
        Layout::Fifo => &[],
    };
    if let Some(missing) = required.iter().find(|name| !has(name)) {
        return invalid(format!("layout {layout} needs a rule with trigger {missing}"));
    }
    match &primitives.layout {
        Layout::Fifo if !has("total-bytes") && !has("file-staleness") => {
            invalid(format!("layout {layout} needs trigger total-bytes or file-staleness"))
        }
        Layout::Leveling { tiered } if tiered.len() > TIERED_LEVELS_MAX => {
            invalid(format!("at most {TIERED_LEVELS_MAX} levels can be tiered"))
        }
        Layout::Leveling { tiered } if tiered.contains(&0) => {
            invalid("a tiered level must allow at least one run".to_owned())
        }
        Layout::Fluid { upper, last, .. }
            if upper.is_empty() || upper.contains(&0) || *last == 0 =>
        {
            invalid("a level of layout fluid must allow at least one run".to_owned())
        }
        _ => check_stop_runs(primitives),
    }
}

fn invalid(reason: String) -> Result<(), Error> {
    Err(Error::InvalidCombination { reason })
}

/// Checks that writes stop only when a merge is due.
fn check_stop_runs(primitives: &Primitives) -> Result<(), Error> {
    let (runs, wait) = match &primitives.layout {
        Layout::Fluid { upper, last, size_ratio } => {
            let limits = RunLimits { upper, last: *last, size_ratio: *size_ratio };
            (limits.runs_max(L0, false) + 1, 0)
        }
        _ => primitives.run_counts().unwrap_or((0, 0)),
    };
    let stop = primitives.stop_runs;
    if !primitives.can_drop_data() && stop <= runs {
        return invalid(format!("writes stop at {stop} runs, but no merge is due before {runs}"));
    }
    if wait >= stop && wait > runs {
        return invalid(format!("merges of L0 wait for {wait} runs, but writes stop at {stop}"));
    }
    Ok(())
}

fn check_rule(primitives: &Primitives, rule: &Rule) -> Result<(), Error> {
    let Rule { trigger, granularity, movement } = rule;
    let (name, layout) = (trigger.name(), primitives.layout.name());
    if let Some(why) = trigger_conflict(trigger, &primitives.layout) {
        return invalid(format!("trigger {name} cannot be used with layout {layout}: {why}"));
    }
    let granularity_name = granularity.name();
    let is_leveling = matches!(primitives.layout, Layout::Leveling { .. });
    if !is_leveling && *granularity != Granularity::Runs {
        return invalid(format!(
            "granularity {granularity_name} cannot be used with layout {layout}, which takes whole runs"
        ));
    }
    let takes_levels = |granularity: &Granularity| {
        matches!(granularity, Granularity::Preemptive | Granularity::Partition { .. })
    };
    let full = primitives.full_rule().map(|(rule, _)| rule.granularity).filter(takes_levels);
    if let Some(full) = full.map(Granularity::name) {
        if !matches!(trigger, Trigger::LevelFull(_) | Trigger::RunCount { .. }) {
            return invalid(format!("trigger {name} has no effect with granularity {full}"));
        }
        if matches!(&primitives.layout, Layout::Leveling { tiered } if !tiered.is_empty()) {
            return invalid(format!("tiered levels cannot be used with granularity {full}"));
        }
    }
    if takes_levels(granularity) && !matches!(trigger, Trigger::LevelFull(_)) {
        return invalid(format!(
            "granularity {granularity_name} needs trigger level-full, not {name}"
        ));
    }
    if matches!(granularity, Granularity::RunFiles { count: 0 }) {
        return invalid("granularity files needs at least one file".to_owned());
    }
    check_movement(rule, *movement)
}

/// Returns why a trigger has no effect in a layout; `None` if it has one.
fn trigger_conflict(trigger: &Trigger, layout: &Layout) -> Option<&'static str> {
    let is_for_fifo = matches!(trigger, Trigger::TotalBytes { .. } | Trigger::FileStaleness { .. });
    Some(match (layout, trigger) {
        (Layout::Fifo, _) if is_for_fifo => return None,
        (Layout::Fifo, _) => "it merges nothing",
        (_, Trigger::TotalBytes { .. }) => "only layout queue drops data by size",
        (Layout::RunList { .. }, Trigger::SizeRatio { .. }) => return None,
        (_, Trigger::SizeRatio { .. }) => "only layout run-list compares sizes of runs",
        (Layout::Fluid { .. }, Trigger::TooManyRuns) => return None,
        (_, Trigger::TooManyRuns) => "it does not limit the runs of a level",
        (Layout::Fluid { .. } | Layout::RunList { .. }, Trigger::LevelFull(_)) => {
            "its levels have no capacity"
        }
        (Layout::Fluid { .. }, Trigger::RunCount { .. }) => "it limits the runs of a level itself",
        _ => return None,
    })
}

fn check_movement(rule: &Rule, movement: FilePicker) -> Result<(), Error> {
    let (name, granularity) = (rule.trigger.name(), rule.granularity);
    let movement_name = movement.name();
    if rule.trigger.is_about_files() {
        let compares_levels = !matches!(
            movement,
            FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent | FilePicker::RoundRobin
        );
        return match compares_levels {
            true => Ok(()),
            false => invalid(format!(
                "movement {movement_name} compares files of one level, but trigger {name} those of all levels"
            )),
        };
    }
    let takes_runs = matches!(rule.trigger, Trigger::RunCount { .. });
    let chooses = granularity.is_by_file() && !takes_runs;
    match (chooses, movement) {
        (true, FilePicker::All) => invalid(format!(
            "granularity {} needs a movement that chooses files",
            granularity.name()
        )),
        (false, movement) if movement != FilePicker::All => {
            let why = match takes_runs {
                true => "trigger run-count takes all runs of a level".to_owned(),
                false => format!("granularity {} takes all files", granularity.name()),
            };
            invalid(format!("movement {movement_name} has no files to choose from: {why}"))
        }
        _ => Ok(()),
    }
}
