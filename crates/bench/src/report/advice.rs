//! An answer of `lsmx advise` as text: what was asked, a table, the reasons, what to paste.

use std::fmt::Write as _;

use crate::experiment::advise::{Advice, Costs, Preset, Ranked};
use crate::report::text::{bytes, grid};

/// The answer for a terminal.
#[must_use]
pub fn text(advice: &Advice) -> String {
    let mut text = asked(advice);
    text.push('\n');
    text.push_str(&table(advice));
    text.push('\n');
    for (at, ranked) in advice.ranked.iter().enumerate().filter(|(_, it)| it.measured.is_some()) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}. {}: {}.", at + 1, ranked.policy, ranked.reason);
    }
    if let Some(presets) = &advice.presets {
        let _ = writeln!(
            text,
            "\nEvery preset on the engine; the advice costs {:.3} of the best of them:",
            presets.advice_to_best
        );
        text.push_str(&preset_table(&presets.cells));
        text.push('\n');
    }
    if let Some(best) = advice.ranked.first() {
        text.push('\n');
        text.push_str(&paste(best));
    }
    text
}

/// What was asked and how it was looked for.
pub(super) fn asked(advice: &Advice) -> String {
    let asked = &advice.asked;
    let weights = &asked.weights;
    let searched = &advice.searched;
    let rounds: Vec<String> = searched.rounds.iter().map(ToString::to_string).collect();
    let confirmed = advice.ranked.iter().filter_map(|it| it.measured.map(|it| it.entries));
    let sizes: Vec<u64> = confirmed.collect();
    let confirmed = match sizes.first() {
        Some(entries) => format!("{} confirmed on the engine with {entries} writes", sizes.len()),
        None => "none confirmed".to_owned(),
    };
    format!(
        "{} writes of {} + {} B, memory {}; writes count {:.3}, point lookups {:.3}, ranges {:.3}, space \
         {:.3}\n{} designs, {} simulations of trees of {} writes, {confirmed}\n",
        asked.entries,
        asked.key_len,
        asked.value_len,
        bytes(asked.memory_bytes),
        weights.writes,
        weights.points,
        weights.ranges,
        weights.space,
        searched.designs,
        searched.simulations,
        rounds.join(", "),
    )
}

fn table(advice: &Advice) -> String {
    let header = [
        "policy",
        "memtable",
        "cache",
        "cost",
        "simulated",
        "measured",
        "moved/write",
        "I/Os/get",
        "I/Os/range",
        "space",
        "Pareto",
    ];
    let rows = advice.ranked.iter().map(|it| {
        let mut row = vec![short(&it.policy, &it.spec), bytes(it.memtable_bytes)];
        row.push(bytes(it.block_cache_bytes));
        row.push(format!("{:.3}", it.cost));
        row.push(format!("{:.3}", it.simulated.cost));
        row.push(it.measured.map_or("–".to_owned(), |it| format!("{:.3}", it.cost)));
        row.extend(costs(&it.costs));
        row.push(if it.pareto { "yes" } else { "" }.to_owned());
        row
    });
    grid(header.map(str::to_owned).to_vec(), rows)
}

fn preset_table(presets: &[Preset]) -> String {
    let header = ["policy", "memtable", "cost", "moved/write", "I/Os/get", "I/Os/range", "space"];
    let rows = presets.iter().map(|it| {
        let mut row = vec![it.policy.clone(), bytes(it.memtable_bytes)];
        row.push(format!("{:.3}", it.measured.cost));
        row.extend(costs(&it.measured.costs));
        row
    });
    grid(header.map(str::to_owned).to_vec(), rows)
}

fn costs(costs: &Costs) -> [String; 4] {
    [costs.writes, costs.points, costs.ranges, costs.space].map(|cost| format!("{cost:.3}"))
}

/// The policy with its parameters, or its name where it is composed of more than fits a table.
pub(super) fn short(policy: &str, spec: &str) -> String {
    if spec.starts_with('{') { policy.to_owned() } else { spec.to_owned() }
}

/// The best design, for a program and for the explorer.
pub(super) fn paste(best: &Ranked) -> String {
    let Ranked { spec, memtable_bytes, block_cache_bytes, .. } = best;
    let literal = if spec.contains('"') { format!("r#\"{spec}\"#") } else { format!("{spec:?}") };
    format!(
        "To use it:

  let keyspace = lsmx::KeyspaceOptions::default()
      .policy({literal}.parse::<PolicySpec>()?)
      .memtable_bytes({memtable_bytes})
      .table_bytes({memtable_bytes});
  let options = lsmx::Options::default().keyspace_defaults(keyspace).block_cache_bytes({block_cache_bytes});

To look at it:

  lsmx explore --policy '{spec}' --memtable {memtable_bytes} --block-cache {block_cache_bytes}
"
    )
}
