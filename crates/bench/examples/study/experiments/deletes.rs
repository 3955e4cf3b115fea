//! R5: deletes.

use lsmx_bench::experiment::sweep::SweepValue;

use crate::figures::{
    Figures, Measure, along, divide, invalid_share, less, many, more, moved, numbers, one,
    quotients, tombstones,
};
use crate::results::Results;
use crate::strategy::{FULL, LO1, Strategy, TIER, TSA33, TSA50, TSD};
use crate::table::{Measurements, Table};

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

pub(super) fn measure(results: &Results) -> Measurements {
    Measurements { tables: vec![table(results)], figures: claimed(results) }
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

fn claimed(results: &Results) -> Vec<Figures> {
    let order = [TIER, LO1, FULL, TSD, TSA50, TSA33];
    let moved_more =
        |strategy| more(quotients(figures(results, strategy, moved), figures(results, LO1, moved)));
    let fewer = |strategy, than| {
        less(quotients(figures(results, strategy, tombstones), figures(results, than, tombstones)))
    };
    vec![
        figures(results, TIER, tombstones),
        figures(results, LO1, tombstones),
        figures(results, TSD, tombstones),
        figures(results, TSA33, tombstones),
        most_deletes(results, &order, tombstones),
        fewer(TSD, LO1),
        fewer(TSA50, LO1),
        fewer(TSA33, LO1),
        fewer(TSA33, TSA50),
        fewer(TSA50, TSD),
        most_deletes(results, &order, invalid_share),
        most_deletes(results, &order, invalid_share),
        moved_more(TSD),
        moved_more(TSA50),
        moved_more(TSA33),
        quotients(figures(results, TIER, moved), figures(results, LO1, moved)),
        one("", oldest(results, TSA50)),
        one("", oldest(results, TSA33)),
    ]
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
