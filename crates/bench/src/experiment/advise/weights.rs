//! Weights of the four costs of a design.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::numbers;
use crate::workload::phases::Phase;

/// Default weight of space amplification: a second copy of all data costs as much as 0.1 I/Os per operation.
pub const SPACE_DEFAULT: f64 = 0.1;

const NAMES: [&str; 4] = ["writes", "points", "ranges", "space"];

/// Weights of the four costs of a design. Weights are not negative, and at least one is positive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostWeights {
    /// Weight of each block of 4 KiB that flushes and compactions read or write per user write.
    pub writes: f64,
    /// Weight of one I/O per point lookup.
    pub points: f64,
    /// Weight of one I/O per range lookup.
    pub ranges: f64,
    /// Weight of space amplification. Space amplification is 1 if the files contain a single copy of the data.
    pub space: f64,
}

impl CostWeights {
    /// Returns weights equal to the share of each kind of operation in all operations. The weighted sum of the write
    /// and lookup costs is then the mean number of I/Os per operation. The weight of space is [`SPACE_DEFAULT`].
    pub fn from_operations(phases: &[Phase]) -> CostWeights {
        let sum = |count: &dyn Fn(&Phase) -> u64| phases.iter().map(count).sum::<u64>();
        let writes = sum(&Phase::writes);
        let points = sum(&|phase| phase.lookups.iter().map(|lookups| lookups.ops).sum());
        let ranges = sum(&|phase| phase.ranges);
        let share = |ops| numbers::ratio(ops, writes + points + ranges);
        CostWeights {
            writes: share(writes),
            points: share(points),
            ranges: share(ranges),
            space: SPACE_DEFAULT,
        }
    }

    /// Checks that the workload has point lookups and range lookups if the corresponding weight is positive.
    ///
    /// # Errors
    /// The weight of point or range lookups is positive, but the workload has no lookups of this kind.
    pub fn check(&self, phases: &[Phase]) -> Result<()> {
        let points = phases.iter().any(|phase| phase.lookups.iter().any(|it| it.ops > 0));
        let ranges = phases.iter().any(|phase| phase.ranges > 0);
        for (name, weight, there) in
            [("points", self.points, points), ("ranges", self.ranges, ranges)]
        {
            if weight > 0.0 && !there {
                let why = "it has no such lookups to be measured";
                let first = format!("--weights {name}={weight}");
                return Err(Error::contradictory_arguments(first, "the workload", why));
            }
        }
        Ok(())
    }
}

impl FromStr for CostWeights {
    type Err = String;

    /// Parses `writes=W,points=R,ranges=Q,space=S`. Missing weights are 0.
    fn from_str(text: &str) -> std::result::Result<CostWeights, String> {
        let mut values = [None; 4];
        for part in text.split(',').map(str::trim) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} must be NAME=WEIGHT"))?;
            let place = NAMES.iter().position(|known| *known == name.trim());
            let place = place.ok_or_else(|| {
                format!("unknown weight {:?}; known: {}", name.trim(), NAMES.join(", "))
            })?;
            let weight = value.trim().parse::<f64>().ok();
            let weight = weight.filter(|weight| weight.is_finite() && *weight >= 0.0);
            let weight =
                weight.ok_or_else(|| format!("{part}: a weight is a number, 0 or more"))?;
            if values[place].replace(weight).is_some() {
                return Err(format!("{} stands there twice", NAMES[place]));
            }
        }
        let [writes, points, ranges, space] = values.map(|value: Option<f64>| value.unwrap_or(0.0));
        if writes + points + ranges + space <= 0.0 {
            return Err("at least one weight must be above 0".to_owned());
        }
        Ok(CostWeights { writes, points, ranges, space })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::KeyDistribution;
    use crate::workload::phases::LookupGroup;

    fn phases() -> Vec<Phase> {
        let mut load = Phase::new("load", KeyDistribution::Uniform);
        load.inserts = 600;
        load.updates = 200;
        let mut read = Phase::new("read", KeyDistribution::Uniform);
        read.lookups =
            vec![LookupGroup { alpha: 0.0, ops: 50 }, LookupGroup { alpha: 1.0, ops: 50 }];
        read.ranges = 100;
        vec![load, read]
    }

    #[test]
    fn default_weights_are_shares_of_operations() {
        let weights = CostWeights::from_operations(&phases());
        let expected = CostWeights { writes: 0.8, points: 0.1, ranges: 0.1, space: SPACE_DEFAULT };
        assert_eq!(weights, expected);
    }

    #[test]
    fn weights_parse() {
        let weights = "points=2, writes=0.5".parse::<CostWeights>().unwrap();
        assert_eq!(weights, CostWeights { writes: 0.5, points: 2.0, ranges: 0.0, space: 0.0 });
        for (text, part) in [
            ("", "NAME=WEIGHT"),
            ("writes", "NAME=WEIGHT"),
            ("reads=1", "known: writes, points"),
            ("writes=-1", "0 or more"),
            ("writes=inf", "0 or more"),
            ("writes=1,writes=2", "twice"),
            ("writes=0,space=0", "above 0"),
        ] {
            let error = text.parse::<CostWeights>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn weight_without_operations_is_an_error() {
        let load = &phases()[..1];
        let error = CostWeights { points: 1.0, ..CostWeights::default() }.check(load).unwrap_err();
        assert!(error.to_string().contains("points=1"), "{error}");
        assert!(CostWeights { space: 1.0, ..CostWeights::default() }.check(load).is_ok());
        assert!(CostWeights { ranges: 1.0, ..CostWeights::default() }.check(&phases()).is_ok());
    }
}
