//! Rejects combinations of primitives in which a primitive has no effect, or with which a tree never settles. A tree
//! settles if the policy stops picking jobs while no data is written.

use crate::composed::fluid::FluidRunLimits;
use crate::composed::primitives::{CompactionRule, L0, PolicyPrimitives};
use crate::error::Error;
use crate::file_picker::FilePicker;
use crate::granularity::JobGranularity;
use crate::layout::TreeLayout;
use crate::trigger::{LevelCapacity, Trigger};

/// Maximum number of tiered levels. It leaves enough level numbers for leveled levels.
const TIERED_LEVELS_MAX: usize = 32;

/// Reason why primitives cannot be combined, and the part of the spec that is at fault.
pub(crate) struct PrimitiveConflict {
    /// Index of the rule at fault. `None` if the fault is not in a rule.
    pub(crate) rule: Option<usize>,
    /// Name of the field at fault, in the rule or in the spec.
    pub(crate) field: &'static str,
    /// Reason.
    pub(crate) reason: String,
}

/// Checks that no primitive is without effect, and that compactions end when writes end.
///
/// # Errors
///
/// Fails with [`Error::InvalidCombination`], which contains the reason.
pub fn check_primitives(primitives: &PolicyPrimitives) -> Result<(), Error> {
    match find_conflict(primitives) {
        Some(conflict) => Err(Error::InvalidCombination { reason: conflict.reason }),
        None => Ok(()),
    }
}

/// Returns the first conflict between primitives.
pub(crate) fn find_conflict(primitives: &PolicyPrimitives) -> Option<PrimitiveConflict> {
    for (index, rule) in primitives.rules.iter().enumerate() {
        let name = rule.trigger.name();
        let is_repeated = primitives.rules[..index].iter().any(|it| it.trigger.name() == name);
        let conflict = match is_repeated {
            true => Err(("trigger", format!("the second rule with trigger {name} has no effect"))),
            false => check_rule(primitives, rule),
        };
        if let Err((field, reason)) = conflict {
            return Some(PrimitiveConflict { rule: Some(index), field, reason });
        }
    }
    let rule = primitives.rules.iter().position(|it| it.trigger.name() == "run-count");
    let (rule, (field, reason)) = match check_layout(primitives) {
        Err(conflict) => (None, conflict),
        Ok(()) => (rule, check_write_stop(primitives).err()?),
    };
    Some(PrimitiveConflict { rule, field, reason })
}

/// Replaces values without effect, which earlier versions stored, by allowed values.
///
/// The picked jobs stay the same, with two exceptions. Merges of the granularity `partition` with capacities from the top
/// split their outputs. A file granularity of the trigger run-count no longer limits the overlap of outputs.
pub(crate) fn remove_ignored_values(primitives: &mut PolicyPrimitives) {
    let has_waiting_merges = has_waiting_merges(primitives);
    for rule in &mut primitives.rules {
        if is_partition_from_top(rule) {
            rule.granularity = JobGranularity::Preemptive;
        }
        if let Trigger::RunCount { runs, wait } = &mut rule.trigger {
            if !has_waiting_merges {
                *wait = (*wait).min(*runs);
            }
            rule.granularity = JobGranularity::Runs;
        }
    }
}

/// Returns whether merges of L0 may wait for the number of runs `wait`.
fn has_waiting_merges(primitives: &PolicyPrimitives) -> bool {
    let full = primitives.level_full_rule().map(|(rule, _)| rule.granularity);
    matches!(&primitives.layout, TreeLayout::Leveling { tiered } if tiered.is_empty())
        && !full.is_some_and(takes_levels)
}

/// Returns whether one job may take more than two levels.
fn takes_levels(granularity: JobGranularity) -> bool {
    granularity == JobGranularity::Preemptive || granularity.is_partitioned()
}

/// Returns whether a rule partitions levels, but has no last level. All merges would then be preemptive, into levels of
/// a single file.
fn is_partition_from_top(rule: &CompactionRule) -> bool {
    rule.granularity.is_partitioned()
        && matches!(rule.trigger, Trigger::LevelFull(LevelCapacity::FromTop { .. }))
}

/// Name of the field at fault, and the reason.
type FieldConflict = (&'static str, String);

fn conflict(field: &'static str, reason: String) -> Result<(), FieldConflict> {
    Err((field, reason))
}

fn check_layout(primitives: &PolicyPrimitives) -> Result<(), FieldConflict> {
    let layout = primitives.layout.name();
    let has = |name: &str| primitives.rules.iter().any(|rule| rule.trigger.name() == name);
    let required: &[&str] = match primitives.layout {
        TreeLayout::Leveling { .. } => &["level-full", "run-count"],
        TreeLayout::Fluid { .. } => &["too-many-runs"],
        TreeLayout::RunList { .. } => &["run-count"],
        TreeLayout::Fifo => &[],
    };
    if let Some(missing) = required.iter().find(|name| !has(name)) {
        return Err(("layout", format!("layout {layout} needs a rule with trigger {missing}")));
    }
    match &primitives.layout {
        TreeLayout::Fifo if !has("total-bytes") && !has("file-staleness") => {
            Err(("layout", format!("layout {layout} needs trigger total-bytes or file-staleness")))
        }
        TreeLayout::Leveling { tiered } if tiered.len() > TIERED_LEVELS_MAX => {
            Err(("tiered", format!("at most {TIERED_LEVELS_MAX} levels can be tiered")))
        }
        TreeLayout::Leveling { tiered } if tiered.contains(&0) => {
            Err(("tiered", "a tiered level must allow at least one run".to_owned()))
        }
        TreeLayout::Fluid { upper, last, .. }
            if upper.is_empty() || upper.contains(&0) || *last == 0 =>
        {
            Err(("runs", "a level of layout fluid must allow at least one run".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Checks that a merge is due whenever writes stop.
fn check_write_stop(primitives: &PolicyPrimitives) -> Result<(), FieldConflict> {
    let (runs, wait) = match &primitives.layout {
        TreeLayout::Fluid { upper, last, size_ratio } => {
            let limits = FluidRunLimits { upper, last: *last, size_ratio: *size_ratio };
            (limits.runs_max(L0, false).saturating_add(1), 0)
        }
        _ => primitives.run_counts().unwrap_or((0, 0)),
    };
    let stop = primitives.stop_runs;
    if !primitives.can_drop_data() && stop <= runs {
        return conflict(
            "runs",
            format!("writes stop at {stop} runs, but no merge is due before {runs}"),
        );
    }
    if wait >= stop && wait > runs {
        return conflict(
            "wait",
            format!("merges of L0 wait for {wait} runs, but writes stop at {stop}"),
        );
    }
    Ok(())
}

fn check_rule(primitives: &PolicyPrimitives, rule: &CompactionRule) -> Result<(), FieldConflict> {
    let CompactionRule { trigger, granularity, movement } = rule;
    let (name, layout) = (trigger.name(), primitives.layout.name());
    if let Some(why) = trigger_conflict(trigger, &primitives.layout) {
        return conflict(
            "trigger",
            format!("trigger {name} cannot be used with layout {layout}: {why}"),
        );
    }
    let granularity_name = granularity.name();
    let is_leveling = matches!(primitives.layout, TreeLayout::Leveling { .. });
    if !is_leveling && *granularity != JobGranularity::Runs {
        return conflict(
            "granularity",
            format!(
                "granularity {granularity_name} cannot be used with layout {layout}, which takes whole runs"
            ),
        );
    }
    let full = primitives.level_full_rule().map(|(rule, _)| rule.granularity);
    let full = full.filter(|granularity| takes_levels(*granularity));
    if let Some(full) = full.map(JobGranularity::name) {
        if !matches!(trigger, Trigger::LevelFull(_) | Trigger::RunCount { .. }) {
            return conflict(
                "trigger",
                format!("trigger {name} has no effect with granularity {full}"),
            );
        }
        if matches!(&primitives.layout, TreeLayout::Leveling { tiered } if !tiered.is_empty()) {
            return conflict(
                "tiered",
                format!("tiered levels cannot be used with granularity {full}"),
            );
        }
    }
    if takes_levels(*granularity) && !matches!(trigger, Trigger::LevelFull(_)) {
        return conflict(
            "granularity",
            format!("granularity {granularity_name} needs trigger level-full, not {name}"),
        );
    }
    if is_partition_from_top(rule) {
        return conflict(
            "capacity",
            format!("granularity {granularity_name} needs capacity from-bottom"),
        );
    }
    if matches!(granularity, JobGranularity::Files { count: 0 }) {
        return conflict("files", "granularity files needs at least one file".to_owned());
    }
    if let Trigger::RunCount { runs, wait } = trigger {
        if *granularity != JobGranularity::Runs {
            return conflict(
                "granularity",
                format!("granularity {granularity_name} has no effect with trigger {name}"),
            );
        }
        if wait > runs && !has_waiting_merges(primitives) {
            return conflict(
                "wait",
                format!("wait = {wait} has no effect, because these merges never wait"),
            );
        }
    }
    check_file_picker(rule, *movement)
}

/// Returns the reason why a trigger has no effect in a layout. Returns `None` if the trigger has an effect.
fn trigger_conflict(trigger: &Trigger, layout: &TreeLayout) -> Option<&'static str> {
    let is_for_fifo = matches!(trigger, Trigger::TotalBytes { .. } | Trigger::FileStaleness { .. });
    Some(match (layout, trigger) {
        (TreeLayout::Fifo, _) if is_for_fifo => return None,
        (TreeLayout::Fifo, _) => "it merges nothing",
        (_, Trigger::TotalBytes { .. }) => "only layout queue drops data by size",
        (TreeLayout::RunList { .. }, Trigger::SizeRatio { .. }) => return None,
        (_, Trigger::SizeRatio { .. }) => "only layout run-list compares sizes of runs",
        (TreeLayout::Fluid { .. }, Trigger::TooManyRuns) => return None,
        (_, Trigger::TooManyRuns) => "it does not limit the runs of a level",
        (TreeLayout::Fluid { .. } | TreeLayout::RunList { .. }, Trigger::LevelFull(_)) => {
            "its levels have no capacity"
        }
        (TreeLayout::Fluid { .. }, Trigger::RunCount { .. }) => {
            "it limits the runs of a level itself"
        }
        _ => return None,
    })
}

fn check_file_picker(rule: &CompactionRule, movement: FilePicker) -> Result<(), FieldConflict> {
    let (name, granularity) = (rule.trigger.name(), rule.granularity);
    let movement_name = movement.name();
    if rule.trigger.is_file_trigger() {
        let compares_levels = !matches!(
            movement,
            FilePicker::LeastOverlap | FilePicker::LeastOverlapGrandparent | FilePicker::RoundRobin
        );
        return match compares_levels {
            true => Ok(()),
            false => conflict(
                "movement",
                format!(
                    "movement {movement_name} compares files of one level, but trigger {name} those of all levels"
                ),
            ),
        };
    }
    let takes_runs = matches!(rule.trigger, Trigger::RunCount { .. });
    match (granularity.is_file_granular(), movement) {
        (true, FilePicker::All) => conflict(
            "movement",
            format!("granularity {} needs a movement that chooses files", granularity.name()),
        ),
        (false, movement) if movement != FilePicker::All => {
            let why = match takes_runs {
                true => "trigger run-count takes all runs of a level".to_owned(),
                false => format!("granularity {} takes all files", granularity.name()),
            };
            conflict(
                "movement",
                format!("movement {movement_name} has no files to choose from: {why}"),
            )
        }
        _ => Ok(()),
    }
}
