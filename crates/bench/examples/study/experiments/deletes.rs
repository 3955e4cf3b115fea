//! R5: deletes.

use lsmx_bench::experiment::sweep::SweepValue;

use crate::claim::{Claim, Expected, Unit, claim};
use crate::figures::{
    Figures, Measure, along, divide, invalid_share, less, many, more, moved, numbers, one,
    quotients, tombstones,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, Strategy, TIER, TSA33, TSA50, TSD};
use crate::table::{Section, Table};

/// Thousands of tombstones left of ten million operations, at 2, 6 and 10 % deletes.
const TOMBSTONES: [(Strategy, [f64; 3]); 6] = [
    (TIER, [43.0, 141.0, 240.0]),
    (LO1, [33.0, 82.0, 128.0]),
    (FULL, [25.0, 73.0, 97.0]),
    (TSD, [20.0, 50.0, 94.0]),
    (TSA50, [22.0, 41.0, 86.0]),
    (TSA33, [15.0, 24.0, 66.0]),
];
/// Shares of operations.
const SHARES: [f64; 3] = [0.02, 0.06, 0.1];
/// Operations of the study, in thousands.
const OPERATIONS: f64 = 10_000.0;
/// Bytes of invalid entries ÷ bytes of live ones at 10 %.
const SPACE: [f64; 6] = [0.25, 0.18, 0.14, 0.13, 0.10, 0.08];
/// GB moved.
const MOVED_GB: [f64; 6] = [15.5, 44.0, 80.0, 52.0, 53.3, 60.8];

pub(super) fn section(results: &Results) -> Section {
    Section { title: "R5: deletes", tables: vec![table(results)], claims: claims(results) }
}

fn table(results: &Results) -> Table {
    let mut header = vec![String::new()];
    header.extend(SHARES.map(|share| format!("tombstones left, {:.0} % (study)", share * 100.0)));
    header.extend(
        [
            "invalid ÷ live bytes, 10 % (study)",
            "moved ÷ LO+1's, 10 % (study)",
            "oldest tombstone ÷ run, 10 %",
        ]
        .map(str::to_owned),
    );
    let mut table = Table::new("Tombstones as a share of the deletes.", header);
    for (at, (strategy, published)) in TOMBSTONES.iter().enumerate() {
        let left = numbers(figures(results, *strategy, share_left));
        let mut row: Vec<String> = (0..SHARES.len())
            .map(|place| {
                let ours = left.as_ref().and_then(|left| left.get(place).copied());
                let share = published[place] / (OPERATIONS * SHARES[place]);
                format!("{} ({})", super::ours(ours), super::published(Some(&share)))
            })
            .collect();
        let most = |strategy, measure: Measure| {
            results.at("r5", strategy, "deletes", &SweepValue::Real(0.1)).and_then(measure)
        };
        row.push(format!(
            "{} ({})",
            super::ours(most(*strategy, invalid_share)),
            super::published(SPACE.get(at))
        ));
        let by_lo1 = divide(most(*strategy, moved), most(LO1, moved));
        row.push(format!(
            "{} ({})",
            super::ours(by_lo1),
            super::published(Some(&(MOVED_GB[at] / MOVED_GB[1])))
        ));
        row.push(super::ours(most(*strategy, |cell| {
            let persistence = &cell.delete_persistence;
            divide(
                persistence.oldest_age_us.map(crate::figures::float),
                Some(crate::figures::float(persistence.run_us)),
            )
        })));
        table.row(strategy.name, row);
    }
    table
}

fn share_left(cell: &lsmx_bench::experiment::explore::result::Cell) -> Option<f64> {
    divide(tombstones(cell), Some(crate::figures::float(cell.delete_persistence.deletes)))
}

fn figures(results: &Results, strategy: Strategy, measure: Measure) -> Figures {
    along(results, "r5", strategy, "deletes", measure)
}

/// The strategies at 10 % deletes.
fn most_deletes(results: &Results, strategies: &[Strategy], measure: Measure) -> Figures {
    many(strategies.iter().map(|strategy| {
        let cell = results.at("r5", *strategy, "deletes", &SweepValue::Real(0.1));
        (strategy.name, cell.and_then(measure))
    }))
}

fn claims(results: &Results) -> Vec<Claim> {
    let order = [TIER, LO1, FULL, TSD, TSA50, TSA33];
    let moved_more =
        |strategy| more(quotients(figures(results, strategy, moved), figures(results, LO1, moved)));
    let fewer = |strategy, than| {
        less(quotients(figures(results, strategy, tombstones), figures(results, than, tombstones)))
    };
    let mut claims: Vec<Claim> = [
        ("Tombstones left grow with deletes: Tier", TIER),
        ("LO+1", LO1),
        ("TSD", TSD),
        ("TSA33", TSA33),
    ]
    .into_iter()
    .map(|(statement, strategy)| {
        claim(statement, figures(results, strategy, tombstones), Expected::Rising).unit(Unit::Plain)
    })
    .collect();
    claims.extend([
        claim(
            "Order of tombstones left at 10 %: Tier, LO+1, Full, TSD, TSA50, TSA33",
            most_deletes(results, &order, tombstones),
            Expected::Falling,
        )
        .unit(Unit::Plain)
        .why_not(WHY_FULL),
        claim(
            "The delete-aware ones leave fewer than LO+1 at each share: TSD (figure: \
                 27–39 %)",
            fewer(TSD, LO1),
            Expected::Within(0.01, 1.0),
        )
        .unit(Unit::Percent)
        .why_not(WHY_TSD),
        claim("TSA50 (figure: 33–50 %)", fewer(TSA50, LO1), Expected::Within(0.01, 1.0))
            .unit(Unit::Percent)
            .why_not(WHY_TSA_FEW),
        claim("TSA33 (figure: 48–71 %)", fewer(TSA33, LO1), Expected::Within(0.01, 1.0))
            .unit(Unit::Percent)
            .why_not(WHY_TSA_FEW),
        claim(
            "A shorter bound leaves fewer: TSA33 than TSA50",
            fewer(TSA33, TSA50),
            Expected::Within(0.01, 1.0),
        )
        .unit(Unit::Percent)
        .why_not(WHY_TSA_FEW),
        claim(
            "TSA leaves 7–10 % fewer tombstones than TSD: TSA50",
            fewer(TSA50, TSD),
            Expected::Within(0.05, 0.20),
        )
        .unit(Unit::Percent)
        .why_not(WHY_TSA_FEW)
        .note("By the figure −10 to 18 %, TSA33 25 to 54 %."),
        claim(
            "Order of invalid bytes at 10 %: Tier, LO+1, Full, TSD, TSA50, TSA33",
            most_deletes(results, &order, invalid_share),
            Expected::Falling,
        )
        .unit(Unit::Plain)
        .why_not(WHY_FULL),
        claim(
            "Invalid bytes are 0.08 to 0.25 of the live ones at 10 %",
            most_deletes(results, &order, invalid_share),
            Expected::Within(0.05, 0.30),
        )
        .unit(Unit::Plain)
        .why_not(WHY_SPACE),
        claim("TSD moves 18 % more than LO+1", moved_more(TSD), Expected::Within(0.10, 0.26))
            .unit(Unit::Percent)
            .why_not(WHY_TSD),
        claim("TSA50 moves 18 % more than LO+1", moved_more(TSA50), Expected::Within(0.10, 0.26))
            .unit(Unit::Percent)
            .why_not(WHY_TSA),
        claim("TSA33 moves 35 % more than LO+1", moved_more(TSA33), Expected::Within(0.25, 0.45))
            .unit(Unit::Percent)
            .why_not(WHY_TSA),
        claim(
            "Tier moves 0.35 of LO+1",
            quotients(figures(results, TIER, moved), figures(results, LO1, moved)),
            Expected::Within(0.28, 0.50),
        ),
        claim(
            "Every tombstone leaves within the bound: oldest one ÷ run, TSA50",
            one("", oldest(results, TSA50)),
            Expected::Within(0.0, 0.5),
        )
        .note("Lethe's guarantee; TSA of the study."),
        claim("The same, TSA33", one("", oldest(results, TSA33)), Expected::Within(0.0, 0.33)),
    ]);
    claims
}

/// Age of the oldest tombstone at the end, or of one that left late, as a share of the run.
fn oldest(results: &Results, strategy: Strategy) -> Option<f64> {
    let cells = results.swept("r5", strategy);
    let ages = cells.iter().map(|cell| {
        let persistence = &cell.delete_persistence;
        let oldest = persistence.oldest_age_us.unwrap_or(0);
        divide(Some(crate::figures::float(oldest)), Some(crate::figures::float(persistence.run_us)))
    });
    ages.flatten().reduce(f64::max)
}

const WHY_FULL: &str = "Full leaves the most: its L1 of fifty flushes keeps what it has until it \
                 is merged down as a whole, so the number depends on when one looks (at 2 % \
                 it had just been merged). TSD and TSA leave what LO+1 leaves, see below. \
                 Tier against LO+1 is as published.";
const WHY_SPACE: &str = "A tombstone makes one entry invalid at most. The study's own 240 thousand \
                 tombstones of 10 million operations can make no more than 3 % of the data \
                 invalid, so its 25 % must count something else; ours is by the definition \
                 given, invalid ÷ live bytes, and is what the tombstones left can make it.";
const WHY_TSD: &str = "Our TSD acts where a fourth of a file's entries are tombstones (a \
                 threshold that the study does not name), and with at most 10 % deletes, \
                 spread evenly, no file gets there: it is LO+1, byte for byte.";
const WHY_TSA: &str = "LO+1 leaves a few old tombstones behind (one of the first hundredth of the \
                 run is still there at its end), but only a few: most go down with \
                 everything else within a fifth of the run. The rule about age so has \
                 little to do; what it picks, old files next to each other, costs no more \
                 than what LO+1 would have picked. What the study's TSA did for a third \
                 more bytes we cannot tell; its code adds to the score of a level for every \
                 file past its bound, which makes levels due long before they are full.";
const WHY_TSA_FEW: &str = "Tombstones that are left are young: those of the upper levels, which no \
                 bound has reached. The bound itself is kept, see below; LO+1's oldest \
                 tombstone is as old as the run.";
