//! Text that explains the rank of a design.

use lsmx_compaction::PolicySpec;
use lsmx_compaction::layout::TreeLayout;
use lsmx_compaction::trigger::Trigger;

use super::costs::DesignCosts;
use super::weights::CostWeights;

/// The text does not mention a relative difference between two costs that is smaller than this fraction.
const ALIKE: f64 = 0.02;

/// Describes the layout of the policy, the largest weighted cost, and the differences to the costs of another design.
/// The costs of both designs must have the same origin: both measured, or both simulated.
pub(super) fn explain_design(
    spec: &PolicySpec,
    costs: &DesignCosts,
    (other_name, other): (&str, &DesignCosts),
    weights: &CostWeights,
) -> String {
    let layout = describe_layout(spec);
    let decisive = describe_largest_cost(costs, weights);
    if spec.to_string() == other_name {
        return format!("{layout}; {decisive}; the default of the engine");
    }
    let differences = describe_differences(costs, other);
    format!("{layout}; {decisive}; against {other_name}: {differences}")
}

fn describe_layout(spec: &PolicySpec) -> String {
    let primitives = spec.primitives();
    let runs_of_l0 = primitives.rules.iter().find_map(|rule| match rule.trigger {
        Trigger::RunCount { runs, .. } => Some(runs),
        _ => None,
    });
    match &primitives.layout {
        TreeLayout::Leveling { tiered } if !tiered.is_empty() => {
            let runs: Vec<String> = tiered.iter().map(ToString::to_string).collect();
            let l0 = runs_of_l0.unwrap_or(1);
            format!("L0 in {l0} runs and {} more at the top, leveled below", runs.join(" and "))
        }
        TreeLayout::Leveling { .. } => match runs_of_l0 {
            Some(runs) if runs > 1 => format!("{runs} runs at the top, leveled below"),
            _ => "leveled throughout".to_owned(),
        },
        TreeLayout::Fluid { upper, last, .. } => {
            let most = upper.iter().max().copied().unwrap_or(1);
            format!("up to {most} runs in upper levels, {last} in the last")
        }
        TreeLayout::RunList { .. } => {
            format!("one list of runs, merged by size from {} runs on", runs_of_l0.unwrap_or(2))
        }
        TreeLayout::Fifo => "a queue".to_owned(),
    }
}

/// Returns a text with the largest weighted cost, and its percentage of the sum of weighted costs.
fn describe_largest_cost(costs: &DesignCosts, weights: &CostWeights) -> String {
    let parts = costs.weighted_costs(weights);
    let all: f64 = parts.iter().sum();
    let names = ["writes", "point lookups", "range lookups", "space"];
    let most = names.iter().zip(parts).max_by(|(_, a), (_, b)| a.total_cmp(b));
    match most {
        Some((name, part)) if all > 0.0 => {
            format!("{:.0} % of its cost is {name}", part / all * 100.0)
        }
        _ => "it costs nothing".to_owned(),
    }
}

fn describe_differences(costs: &DesignCosts, other: &DesignCosts) -> String {
    let compared = [
        ("moved by writes", costs.writes, other.writes),
        ("read by point lookups", costs.points, other.points),
        ("read by range lookups", costs.ranges, other.ranges),
        ("space", costs.space, other.space),
    ];
    let differences: Vec<String> = compared
        .into_iter()
        .filter_map(|(what, own, other)| {
            let by = if other > 0.0 { own / other - 1.0 } else { return None };
            let more = if by > 0.0 { "more" } else { "less" };
            (by.abs() >= ALIKE).then(|| format!("{:.0} % {more} {what}", by.abs() * 100.0))
        })
        .collect();
    if differences.is_empty() { "no difference".to_owned() } else { differences.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: CostWeights = CostWeights { writes: 1.0, points: 1.0, ranges: 0.0, space: 0.1 };

    #[test]
    fn reason_has_advantages_and_disadvantages() {
        let spec: PolicySpec = "tiering(T=4)".parse().unwrap();
        let own = DesignCosts { writes: 0.5, points: 1.5, ranges: 8.0, space: 1.1 };
        let other = DesignCosts { writes: 1.0, points: 1.0, ranges: 4.0, space: 1.1 };
        let reason = explain_design(&spec, &own, ("leveled", &other), &EVEN);
        for part in [
            "up to 3 runs in upper levels, 3 in the last",
            "71 % of its cost is point lookups",
            "against leveled: 50 % less moved by writes, 50 % more read by point lookups",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        assert!(!reason.contains("space"), "{reason}");
    }

    #[test]
    fn default_design_is_not_compared_with_itself() {
        let spec = PolicySpec::default();
        let costs = DesignCosts { writes: 1.0, ..DesignCosts::default() };
        let reason = explain_design(&spec, &costs, ("leveled", &costs), &EVEN);
        assert!(reason.ends_with("the default of the engine"), "{reason}");
    }
}
