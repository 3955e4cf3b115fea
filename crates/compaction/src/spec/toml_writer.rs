//! Writes compositions as TOML.

use crate::composed::{CompactionRule, PolicyPrimitives};
use crate::granularity::JobGranularity;
use crate::layout::TreeLayout;
use crate::parameter::{PolicyParameter, format_share};
use crate::spec::composition::PolicyComposition;
use crate::trigger::{LevelCapacity, Trigger};

/// Returns a composition as an inline table. The table has every field, so that it does not depend on defaults.
pub(super) fn to_inline_toml(composition: &PolicyComposition) -> String {
    let rules = composition.primitives.rules.iter();
    let rules: Vec<_> = rules.map(|rule| format!("{{{}}}", rule_fields(rule).join(", "))).collect();
    let fields = policy_fields(composition).join(", ");
    format!("{{{fields}, rule = [{}]}}", rules.join(", "))
}

/// Returns a composition as the text of a TOML file.
#[must_use]
pub fn to_toml(composition: &PolicyComposition) -> String {
    let mut out = policy_fields(composition).join("\n") + "\n";
    for rule in &composition.primitives.rules {
        out += &format!("\n[[rule]]\n{}\n", rule_fields(rule).join("\n"));
    }
    out
}

/// Returns the fields of a composition as `name = value`, without its rules.
fn policy_fields(composition: &PolicyComposition) -> Vec<String> {
    let PolicyComposition { name, primitives } = composition;
    let PolicyPrimitives { layout, stop_runs, file_tables, grandparent_files, .. } = primitives;
    let mut fields = vec![format!("name = \"{name}\""), format!("layout = \"{}\"", layout.name())];
    match layout {
        TreeLayout::Leveling { tiered } if tiered.is_empty() => {}
        TreeLayout::Leveling { tiered } => fields.push(format!("tiered = {tiered:?}")),
        TreeLayout::Fluid { upper, last, size_ratio } => fields.extend([
            format!("runs = {upper:?}"),
            format!("last-runs = {last}"),
            format!("size-ratio = {size_ratio}"),
        ]),
        TreeLayout::RunList { bottom } => fields.push(format!("bottom = {}", bottom.0)),
        TreeLayout::Fifo => {}
    }
    fields.extend([
        format!("stop = {stop_runs}"),
        format!("tables = {file_tables}"),
        format!("grandparents = {grandparent_files}"),
    ]);
    fields
}

/// Returns the fields of a rule as `name = value`.
fn rule_fields(rule: &CompactionRule) -> Vec<String> {
    let mut fields = vec![format!("trigger = \"{}\"", rule.trigger.name())];
    let text = |name: &str, like: PolicyParameter, value: u64| {
        format!("{name} = \"{}\"", like.format(value))
    };
    match &rule.trigger {
        Trigger::LevelFull(LevelCapacity::FromTop { l1_memtables, size_ratio }) => fields.extend([
            "capacity = \"from-top\"".to_owned(),
            format!("l1 = {l1_memtables}"),
            format!("size-ratio = {size_ratio}"),
        ]),
        Trigger::LevelFull(LevelCapacity::FromBottom { last, base_memtables, size_ratio }) => {
            fields.extend([
                "capacity = \"from-bottom\"".to_owned(),
                format!("last = {}", last.0),
                format!("base = {base_memtables}"),
                format!("size-ratio = {size_ratio}"),
            ])
        }
        Trigger::RunCount { runs, wait } => {
            fields.extend([format!("runs = {runs}"), format!("wait = {wait}")]);
        }
        Trigger::TooManyRuns => {}
        Trigger::SpaceAmplification { percent } => fields.push(format!("percent = {percent}")),
        Trigger::SizeRatio { percent, runs_min, runs_max } => fields.extend([
            format!("percent = {percent}"),
            format!("runs-min = {runs_min}"),
            format!("runs-max = {runs_max}"),
        ]),
        Trigger::TombstoneDensity { ppm } => fields.push(format!("share = {}", format_share(*ppm))),
        Trigger::TombstoneTtl { bound_us, size_ratio } => fields.extend([
            text("bound", PolicyParameter::Ttl, *bound_us),
            format!("size-ratio = {size_ratio}"),
        ]),
        Trigger::FileStaleness { ttl_us } => {
            fields.push(text("ttl", PolicyParameter::Ttl, *ttl_us))
        }
        Trigger::TotalBytes { bytes } => fields.push(text("bytes", PolicyParameter::Bytes, *bytes)),
    }
    fields.push(format!("granularity = \"{}\"", rule.granularity.name()));
    match rule.granularity {
        JobGranularity::Partition { above } => fields.push(format!("above = {above}")),
        JobGranularity::Files { count } => fields.push(format!("files = {count}")),
        _ => {}
    }
    fields.push(format!("movement = \"{}\"", rule.movement.name()));
    fields
}
