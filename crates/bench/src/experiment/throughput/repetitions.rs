//! Combines the measurements of all repetitions.

use super::columns::cells_of_step;
use super::result::{RatioInterval, ThroughputCell};
use crate::peers::EngineKind;

/// Selects the repetition with the median rate for each engine and workload. For an even number of repetitions, the
/// repetition with the lower of the two middle rates is selected. The returned results also contain the rates of all
/// repetitions.
pub(super) fn median_repetitions(repetitions: &[Vec<ThroughputCell>]) -> Vec<ThroughputCell> {
    let cells = repetitions.first().map_or(0, Vec::len);
    (0..cells)
        .filter_map(|place| {
            let mut runs: Vec<(u64, &ThroughputCell)> =
                (1..).zip(repetitions.iter().filter_map(|cells| cells.get(place))).collect();
            let rates: Vec<f64> = runs.iter().map(|(_, cell)| cell.ops_per_s).collect();
            runs.sort_by(|(_, a), (_, b)| a.ops_per_s.total_cmp(&b.ops_per_s));
            let (slowest, fastest) = (runs.first()?.1.ops_per_s, runs.last()?.1.ops_per_s);
            let (repetition, median) = runs[(runs.len() - 1) / 2];
            let mut cell = median.clone();
            cell.repetition = repetition;
            cell.ops_per_s_runs = rates;
            cell.ops_per_s_interval = [slowest, fastest];
            cell.best_peer_ratio = best_peer_ratio(repetitions, place);
            Some(cell)
        })
        .collect()
}

/// Compares lsmx with the fastest other engine in each repetition. Returns the median, the lowest and the highest ratio
/// of their rates. Returns `None` if the result at `place` is not a result of lsmx, if there is no other engine, or if
/// there is only one repetition.
fn best_peer_ratio(repetitions: &[Vec<ThroughputCell>], place: usize) -> Option<RatioInterval> {
    let is_lsmx = |cell: &&ThroughputCell| cell.engine == EngineKind::Lsmx.name();
    if repetitions.len() < 2 || !repetitions.iter().all(|cells| is_lsmx(&&cells[place])) {
        return None;
    }
    let ratio = |cells: &Vec<ThroughputCell>| {
        let step = cells[..place].iter().filter(is_lsmx).count();
        let others = cells_of_step(cells, step).into_iter().filter(|cell| !is_lsmx(cell));
        let best = others.map(|cell| cell.ops_per_s).max_by(f64::total_cmp)?;
        (best > 0.0).then(|| cells[place].ops_per_s / best)
    };
    let mut ratios: Vec<f64> = repetitions.iter().map(ratio).collect::<Option<_>>()?;
    ratios.sort_by(f64::total_cmp);
    let median = ratios[(ratios.len() - 1) / 2];
    Some(RatioInterval { median, min: *ratios.first()?, max: *ratios.last()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(engine: &str, ops_per_s: f64) -> ThroughputCell {
        ThroughputCell { engine: engine.to_owned(), ops_per_s, ..ThroughputCell::default() }
    }

    #[test]
    fn ratio_interval_compares_rates_of_the_same_repetition() {
        // Two workloads on three engines. The fastest other engine differs between the repetitions.
        let repetition = |rates: [f64; 6]| -> Vec<ThroughputCell> {
            let engines = ["lsmx", "rocksdb", "fjall"].into_iter().cycle();
            engines.zip(rates).map(|(engine, rate)| cell(engine, rate)).collect()
        };
        let repetitions = [
            repetition([8.0, 4.0, 2.0, 1.0, 1.0, 1.0]),
            repetition([6.0, 2.0, 6.0, 2.0, 1.0, 1.0]),
            repetition([9.0, 2.0, 3.0, 4.0, 1.0, 1.0]),
        ];
        let cells = median_repetitions(&repetitions);
        let first = RatioInterval { median: 2.0, min: 1.0, max: 3.0 };
        let second = RatioInterval { median: 2.0, min: 1.0, max: 4.0 };
        let ratios: Vec<_> = cells.iter().map(|cell| cell.best_peer_ratio).collect();
        assert_eq!(ratios, [Some(first), None, None, Some(second), None, None]);
        let single = median_repetitions(&repetitions[..1]);
        assert!(single.iter().all(|cell| cell.best_peer_ratio.is_none()));
        let alone = [vec![cell("lsmx", 1.0)], vec![cell("lsmx", 2.0)]];
        assert_eq!(median_repetitions(&alone)[0].best_peer_ratio, None);
    }
}
