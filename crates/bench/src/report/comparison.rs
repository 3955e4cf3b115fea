//! A comparison as a table for people.

use super::compare::{Comparison, Difference, Meaning, Pair};
use super::text::grid;

/// A table for each pair of cells, and a line for what has no counterpart. Of the numbers that differ
/// those are shown that are costs or rates, or changed beyond noise; with `all` every one.
#[must_use]
pub fn table(comparison: &Comparison, all: bool) -> String {
    let mut text = String::new();
    for pair in &comparison.pairs {
        text.push_str(&pair_table(pair, all));
        text.push('\n');
    }
    for (cells, which) in [(&comparison.only_old, "first"), (&comparison.only_new, "second")] {
        for cell in cells {
            text.push_str(&format!("only in the {which}: {cell}\n"));
        }
    }
    text
}

fn pair_table(pair: &Pair, all: bool) -> String {
    let shown = |difference: &&Difference| {
        all || difference.beyond_noise
            || (difference.meaning != Meaning::Neutral
                && !difference.metric.contains("blocks_read"))
    };
    let rows: Vec<&Difference> = pair.differences.iter().filter(shown).collect();
    let hidden = pair.differences.len() - rows.len();
    let mut head = format!("{}: {} numbers equal", pair.cell, pair.equal);
    if hidden > 0 {
        head.push_str(&format!(", {hidden} differ within noise"));
    }
    match pair.same_digest {
        Some(true) => head.push_str(", the same digest"),
        Some(false) => head.push_str(", another digest"),
        None => {}
    }
    if !pair.missing.is_empty() {
        head.push_str(&format!(", {} in one alone", pair.missing.len()));
    }
    if rows.is_empty() {
        return format!("{head}\n");
    }
    let header = ["metric", "old", "new", "ratio", "old values", "new values", ""];
    let rows = rows.into_iter().map(|difference| {
        vec![
            difference.metric.clone(),
            number(difference.old),
            number(difference.new),
            difference.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            interval(difference.old_interval),
            interval(difference.new_interval),
            verdict(difference).to_owned(),
        ]
    });
    format!("{head}\n{}\n", grid(header.map(str::to_owned).into(), rows))
}

fn verdict(difference: &Difference) -> &'static str {
    match (difference.beyond_noise, difference.meaning, difference.noise_unknown) {
        (false, ..) => "",
        (true, Meaning::Better, false) => "better",
        (true, Meaning::Better, true) => "better?",
        (true, Meaning::Worse, false) => "worse",
        (true, Meaning::Worse, true) => "worse?",
        (true, Meaning::Neutral, false) => "changed",
        (true, Meaning::Neutral, true) => "changed?",
    }
}

fn number(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e15 {
        format!("{x:.0}")
    } else if x.abs() >= 1000.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.4}")
    }
}

fn interval(ends: Option<[f64; 2]>) -> String {
    ends.map(|[low, high]| format!("{}–{}", number(low), number(high))).unwrap_or_default()
}
