//! R4: updates.

use lsmx_bench::experiment::explore::result::Cell;

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Figures, Measure, along, growth, job_max_ms, job_mean_ms, less, moved, numbers, one, quotients,
    spread, write_amplification,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, LO2, RR, Strategy, TIER};
use crate::table::{Section, Table};

/// Updates per insert.
const RATIOS: [&str; 4] = ["0", "1", "4", "8"];
/// Bytes that compaction wrote ÷ unique data.
const WRITE_AMPLIFICATION: [(Strategy, [f64; 4]); 4] = [
    (FULL, [35.0, 28.0, 58.0, 91.0]),
    (LO1, [18.0, 28.0, 58.0, 91.0]),
    (LO2, [16.0, 19.0, 38.0, 60.0]),
    (TIER, [6.4, 6.5, 8.2, 7.7]),
];

pub(super) fn section(results: &Results) -> Section {
    let mut header = vec![String::new()];
    header.extend(RATIOS.map(|ratio| format!("{ratio} (study)")));
    let mut table =
        Table::new("Bytes that compaction wrote ÷ unique data, by updates per insert.", header);
    let published = |strategy| WRITE_AMPLIFICATION.iter().find(|(at, _)| *at == strategy);
    for strategy in [FULL, LO1, LO2, RR, TIER] {
        let ours = numbers(figures(results, strategy, write_amplification));
        let row = (0..RATIOS.len()).map(|at| {
            let ours = super::ours(ours.as_ref().and_then(|ours| ours.get(at).copied()));
            let published = published(strategy).map(|(_, figures)| &figures[at]);
            format!("{ours} ({})", super::published(published))
        });
        table.row(strategy.name, row);
    }
    Section { title: "R4: updates", tables: vec![table], claims: claims(results) }
}

fn figures(results: &Results, strategy: Strategy, measure: Measure) -> Figures {
    along(results, "r4", strategy, "updates", measure)
}

fn by_clock(results: &Results, strategy: Strategy, measure: fn(&Cell) -> Option<f64>) -> Figures {
    along(results, "t4", strategy, "updates", measure)
}

fn claims(results: &Results) -> Vec<Claim> {
    let amplification = |strategy| figures(results, strategy, write_amplification);
    let moved = |strategy| figures(results, strategy, moved);
    vec![
        claim(
            "Write amplification of LO+1 grows with updates (18, 28, 58, 91)",
            amplification(LO1),
            Expected::Rising,
        )
        .note("It is divided by unique data, which updates make less of."),
        claim(
            "By how much: from none to 8 per insert (figure: 5.1)",
            one("LO+1", growth(amplification(LO1))),
            Expected::Within(4.0, 6.5),
        )
        .why_not(
            "Versions that meet are dropped, and with a ninth of the keys the tree ends \
                 a level lower: less is rewritten per write than in the study, whose LO+1 \
                 writes 10 bytes per byte at a ratio of 8 as at a ratio of 4.",
        ),
        claim(
            "The same of Full (figure: 2.6)",
            one("Full", growth(amplification(FULL))),
            Expected::Within(2.0, 3.5),
        )
        .why_not(
            "Full's L1 of 50 flushes holds all the unique data here, so every flush \
                 rewrites all of it, and less of it is no gain.",
        ),
        claim(
            "Full is LO+1's equal once there are updates (28, 58, 91 both): Full ÷ LO+1",
            tail(quotients(amplification(FULL), amplification(LO1))),
            Expected::Within(0.95, 1.05),
        )
        .why_not(
            "Equal to two digits at three ratios, in a study where Full costs twice as \
                 much without updates, looks like one row of the figure drawn twice. Here \
                 Full stays dearer.",
        ),
        claim(
            "Tier's hardly changes (6.4–8.2): most ÷ least",
            one("", spread(amplification(TIER))),
            Expected::Within(1.0, 1.4),
        )
        .why_not(
            "With eight updates per insert it writes a third of the bytes per write \
                 that it writes without (2.0 against 5.7 per byte ingested), but is divided \
                 by a ninth of the data. The study's 7.7 are 0.86 bytes per byte ingested: \
                 there most flushes were merged once at most, which a limit of four runs \
                 does not allow here.",
        ),
        claim(
            "LO+2 moves about 20 % less than other leveled picks: than LO+1",
            less(quotients(moved(LO2), moved(LO1))),
            Expected::Within(0.10, 0.35),
        )
        .unit(Unit::Percent)
        .why_not("As without updates (R1): LO+2 moves no less than LO+1 here."),
        claim("Than RR", less(quotients(moved(LO2), moved(RR))), Expected::Within(0.05, 0.35))
            .unit(Unit::Percent)
            .why_not("As without updates (R1)."),
        claim(
            "Tier's mean merge gets shorter with updates (0.44, 0.21, 0.11, 0.06 s)",
            by_clock(results, TIER, job_mean_ms),
            Expected::Falling,
        )
        .unit(Unit::Ms)
        .why_not("Times on a shared machine."),
        claim(
            "LO+1's mean merge stays as it is (0.52, 0.54, 0.56, 0.51 s): most ÷ least",
            one("", spread(by_clock(results, LO1, job_mean_ms))),
            Expected::Within(1.0, 1.3),
        )
        .why_not("A merge into a smaller last level finds less to overlap."),
        claim(
            "Tier's longest merge is 6 times Full's without updates",
            one(
                "",
                first(quotients(
                    by_clock(results, TIER, job_max_ms),
                    by_clock(results, FULL, job_max_ms),
                )),
            ),
            Expected::Within(3.0, 9.0),
        )
        .why_not("See R1 by the clock: Full's largest merge is as large as Tier's."),
        claim(
            "And 1.2 times at 8 updates per insert",
            one(
                "",
                last(quotients(
                    by_clock(results, TIER, job_max_ms),
                    by_clock(results, FULL, job_max_ms),
                )),
            ),
            Expected::Within(0.9, 1.6),
        )
        .why_not("See R1 by the clock."),
        claim(
            "LO+1 against Full, data moved: less",
            less(quotients(moved(LO1), moved(FULL))),
            Expected::Anything,
        )
        .unit(Unit::Percent),
    ]
}

/// Without the first.
fn tail(figures: Figures) -> Figures {
    Some(figures?.into_iter().skip(1).collect())
}

fn first(figures: Figures) -> Option<f64> {
    numbers(figures)?.first().copied()
}

fn last(figures: Figures) -> Option<f64> {
    numbers(figures)?.last().copied()
}
