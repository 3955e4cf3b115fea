//! The ratios that say whether the engine plays in the study's league.

use lsmx_bench::experiment::explore::result::Cell;

use crate::claim::{Expected, Unit, claim};
use crate::figures::{
    Figures, base_by_each, divide, each, each_by, jobs, less, many, moved, of, put_max_ms,
};
use crate::results::Results;
use crate::strategy::{
    FULL, FULL_PRESET, LEVELED_ONES, LO1, LO1_PRESET, PREEMPTIVE, PREEMPTIVE_PRESET, TEXTBOOK_FULL,
    TIER, TIGHT_TIER,
};
use crate::table::Section;

pub(super) fn section(results: &Results) -> Section {
    let less_than = |base, strategies: &[_]| less(each_by(results, "r1", strategies, base, moved));
    Section {
        title: "Reference ratios",
        tables: vec![],
        claims: vec![
            claim(
                "LO+1 moves 34–56 % less than Full as the study ran it, level by level",
                less_than(FULL, &[LO1]),
                Expected::Within(0.34, 0.56),
            )
            .unit(Unit::Percent)
            .note(
                "Full's L1 holds T²/2 flushes here, which is what the study's jobs tell of: \
                 108 of them wrote 400 MB each.",
            ),
            claim(
                "What a preemptive Full gives instead: LO+1 moves so much less than it",
                less_than(PREEMPTIVE, &[LO1]),
                Expected::Anything,
            )
            .unit(Unit::Percent)
            .note(
                "Negative: more. With an L1 of T flushes a preemptive Full moves less than \
                 any policy that moves files, as the closed forms say: L(T−1)/2 against \
                 L(T+1)/2.",
            ),
            claim(
                "The same for a Full that goes level by level, but with an L1 of T flushes",
                less_than(TEXTBOOK_FULL, &[LO1]),
                Expected::Anything,
            )
            .unit(Unit::Percent)
            .note(
                "Going level by level costs a tenth more than preempting, not twice as \
                 much; so it does not explain the study's Full.",
            ),
            claim(
                "The same among the presets as they come",
                many([
                    ("`full`", preset_less(results, FULL_PRESET)),
                    ("`full-preemptive`", preset_less(results, PREEMPTIVE_PRESET)),
                ]),
                Expected::Anything,
            )
            .unit(Unit::Percent)
            .note(
                "Presets count an L1 in memtables. A memtable counts what entries take in \
                 memory, here 1.77 times what it flushes, so `full` has an L1 of 88 flushes \
                 in place of 50.",
            ),
            claim(
                "Merges of LO+1 are 3–4 times Full's",
                each_by(results, "r1", &[LO1], FULL, jobs),
                Expected::Within(3.0, 4.0),
            ),
            claim(
                "Universal moves at most 0.45 of what LO+1 moves",
                each_by(results, "r1", &[TIER], LO1, moved),
                Expected::Within(0.0, 0.45),
            ),
            claim(
                "When writes run into the hard stop, Universal's longest write delay is the \
                 largest of all",
                base_by_each(results, "t1", TIER, &LEVELED_ONES, put_max_ms),
                Expected::Within(1.0, super::ANY),
            )
            .why_not(super::load_times::WHY_TAIL)
            .note("Universal's ÷ that of each."),
            claim(
                "The same where Universal too stops as soon as a merge is due, at 5 runs in \
                 place of 20",
                tight_tail(results),
                Expected::Within(1.0, super::ANY),
            )
            .why_not(
                "Longer than that of every strategy that moves files, but not than Full's: \
                 that waits for the merge of all of L1 (50 flushes) and L2, which is as \
                 large as Universal's largest, and meets it oftener.",
            )
            .note("Universal's ÷ that of each."),
            claim(
                "With lsmx's own write control no preset has a write of more than 100 ms",
                longest_writes(results),
                Expected::Within(0.0, 100.0),
            )
            .unit(Unit::Ms)
            .note(
                "Writes are paced so that the last memtable that fits is full when the \
                 merge that makes room ends; a pause is 10 ms at most.",
            ),
            claim(
                "The same, on what the engine itself counts as time that a write waited",
                longest_stalls(results),
                Expected::Within(0.0, 100.0),
            )
            .unit(Unit::Ms),
            claim(
                "Data moved, for the record",
                each(results, "r1", &[FULL, LO1, TIER], moved),
                Expected::Anything,
            ),
        ],
    }
}

fn preset_less(results: &Results, preset: crate::strategy::Strategy) -> Option<f64> {
    let preset = of(results, "r1", preset, moved)?;
    Some(1.0 - of(results, "r1", LO1_PRESET, moved)? / preset)
}

fn longest_writes(results: &Results) -> Figures {
    of_all(results, put_max_ms)
}

fn longest_stalls(results: &Results) -> Figures {
    of_all(results, |cell| Some(crate::figures::float(cell.stalls.max_us) / 1e3))
}

fn tight_tail(results: &Results) -> Figures {
    let tight = of(results, "t1-stop", TIGHT_TIER, put_max_ms);
    many(LEVELED_ONES.map(|at| (at.name, divide(tight, of(results, "t1", at, put_max_ms)))))
}

/// The measure of every preset under lsmx's own write control.
fn of_all(results: &Results, measure: fn(&Cell) -> Option<f64>) -> Figures {
    let cells = results.part("ours");
    if cells.is_empty() {
        return None;
    }
    many(cells.iter().map(|cell| (cell.policy.as_str(), measure(cell))))
}
