//! Writes compositions as TOML.

use std::fmt::Write as _;

use crate::composed::{CompactionRule, PolicyPrimitives};
use crate::granularity::JobGranularity;
use crate::layout::TreeLayout;
use crate::parameter::{PolicyParameter, format_share};
use crate::spec::composition::PolicyComposition;
use crate::trigger::{LevelCapacity, Trigger};

/// Returns a composition as an inline table. It has every field, so that changed defaults do not affect it.
pub(super) fn to_inline_toml(composition: &PolicyComposition) -> String {
    let PolicyComposition { name, primitives } = composition;
    let mut out = format!("{{name = \"{name}\", layout = \"{}\"", primitives.layout.name());
    write_layout(&mut out, &primitives.layout, ", ");
    let PolicyPrimitives { stop_runs, file_tables, grandparent_files, .. } = primitives;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        ", stop = {stop_runs}, tables = {file_tables}, grandparents = {grandparent_files}"
    );
    let rules: Vec<_> = primitives
        .rules
        .iter()
        .map(|rule| format!("{{{}}}", rule_fields(rule).join(", ")))
        .collect();
    let _ = write!(out, ", rule = [{}]}}", rules.join(", "));
    out
}

/// Returns a composition as the text of a TOML file.
#[must_use]
pub fn to_toml(composition: &PolicyComposition) -> String {
    let PolicyComposition { name, primitives } = composition;
    let mut out = format!("name = \"{name}\"\nlayout = \"{}\"", primitives.layout.name());
    write_layout(&mut out, &primitives.layout, "\n");
    let PolicyPrimitives { stop_runs, file_tables, grandparent_files, .. } = primitives;
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\nstop = {stop_runs}\ntables = {file_tables}\ngrandparents = {grandparent_files}\n"
    );
    for rule in &primitives.rules {
        let _ = write!(out, "\n[[rule]]\n{}\n", rule_fields(rule).join("\n"));
    }
    out
}

/// Appends the fields of a layout, each after `separator`.
fn write_layout(out: &mut String, layout: &TreeLayout, separator: &str) {
    let fields = match layout {
        TreeLayout::Leveling { tiered } if tiered.is_empty() => Vec::new(),
        TreeLayout::Leveling { tiered } => vec![format!("tiered = {tiered:?}")],
        TreeLayout::Fluid { upper, last, size_ratio } => vec![
            format!("runs = {upper:?}"),
            format!("last-runs = {last}"),
            format!("size-ratio = {size_ratio}"),
        ],
        TreeLayout::RunList { bottom } => vec![format!("bottom = {}", bottom.0)],
        TreeLayout::Fifo => Vec::new(),
    };
    for field in fields {
        *out += separator;
        *out += &field;
    }
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
