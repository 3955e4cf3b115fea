//! Metrics, text and CSV rows of `lsmx advise`.

use std::fmt::Write as _;

use super::page;
use super::{Advice, RankedDesign};
use crate::error::Result;
use crate::experiment::explore::columns::SPACE_AMPLIFICATION;
use crate::metric::table::{TableStyleOptions, format_table};
use crate::metric::{Metric, MetricRegistry, ResultRow, Unit, build_union_table, metric};
use crate::report::Report;
use crate::report::provenance::Provenance;
use crate::report::text::format_bytes;

#[rustfmt::skip]
const DESIGN: &[Metric] = &[
    metric("policy", "policy", Unit::Text, "compaction policy with its parameters"),
    metric("memtable_bytes", "memtable", Unit::Bytes, "size of a memtable; there are two"),
    metric("block_cache_bytes", "cache", Unit::Bytes, "size of the block cache"),
    metric("spec", "spec", Unit::Text, "the policy as `--policy` accepts it"),
    metric("cost", "cost", Unit::Cost, "weighted sum of the four costs; the simulated cost, corrected by measurements").cost(),
    metric("simulated.cost", "simulated", Unit::Cost, "weighted cost, by the simulator").cost(),
    metric("measured.cost", "measured", Unit::Cost, "weighted cost, measured on the engine").cost(),
    metric("costs.writes", "writes", Unit::Cost, "blocks of 4 KiB that compaction moves per write").cost(),
    metric("costs.points", "I/Os get", Unit::Cost, "blocks read per point lookup").cost(),
    metric("costs.ranges", "I/Os range", Unit::Cost, "blocks read per range lookup").cost(),
    metric("costs.space", "space amp", Unit::Cost, SPACE_AMPLIFICATION).cost(),
    metric("simulated.costs.*", "simulated {}", Unit::Cost, "the four costs, by the simulator").cost(),
    metric("measured.entries", "measured writes", Unit::Count, "writes of the measured run; memory is scaled with them"),
    metric("measured.costs.*", "measured {}", Unit::Cost, "the four costs, measured on the engine").cost(),
    metric("measured.simulated.*", "simulation of measured {}", Unit::Cost, "the four costs of the measured run, by the simulator").cost(),
    metric("reason", "reason", Unit::Text, "reason for the place in the ranking"),
    metric("pareto", "Pareto", Unit::Text, "whether no other design is as good in all four costs and better in one"),
];

/// Metrics of the ranked designs.
pub const RANKED: MetricRegistry = MetricRegistry {
    command: "advise",
    metrics: &[DESIGN],
    identity: &["policy"],
    shown: &[
        "memtable_bytes",
        "block_cache_bytes",
        "cost",
        "simulated.cost",
        "measured.cost",
        "costs.writes",
        "costs.points",
        "costs.ranges",
        "costs.space",
        "pareto",
    ],
};

/// Metrics of the presets that `--presets` measures.
pub const PRESETS: MetricRegistry = MetricRegistry {
    command: "advise --presets",
    metrics: RANKED.metrics,
    identity: &["policy"],
    shown: &["memtable_bytes", "measured.cost", "measured.costs.*"],
};

impl Report for Advice {
    fn registry(&self) -> &'static MetricRegistry {
        &RANKED
    }

    fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    fn head(&self) -> String {
        describe_question(self)
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        self.ranked.iter().map(build_ranked_row).collect()
    }

    fn text(&self, style: &TableStyleOptions) -> Result<String> {
        let mut text =
            format!("{}\n{}\n", self.head(), format_table(&RANKED, &self.rows()?, style)?);
        for (index, ranked) in self.ranked.iter().enumerate() {
            if ranked.measured.is_some() {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{}. {}: {}.", index + 1, ranked.policy, ranked.reason);
            }
        }
        if let Some(presets) = &self.presets {
            let rows =
                presets.cells.iter().map(ResultRow::new).collect::<serde_json::Result<Vec<_>>>()?;
            // `--columns` applies to the ranking only.
            let style = TableStyleOptions { columns: Vec::new(), ..style.clone() };
            let ratio = presets.advice_to_best.map(|ratio| {
                format!(" The first design above costs {ratio:.3} × the cheapest preset.")
            });
            let _ = writeln!(
                text,
                "\nEvery preset, measured on the engine.{}\n\n{}",
                ratio.unwrap_or_default(),
                format_table(&PRESETS, &rows, &style)?
            );
        }
        if let Some(best) = self.ranked.first() {
            let _ = write!(text, "\n{}", format_usage(best));
        }
        Ok(text)
    }

    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let rows = self.ranked.iter().map(|ranked| Ok(serde_json::to_value(ranked)?));
        Ok(build_union_table(&rows.collect::<Result<Vec<_>>>()?))
    }

    fn html(&self) -> Result<String> {
        page::advice_page(self)
    }
}

pub(super) fn build_ranked_row(ranked: &RankedDesign) -> Result<ResultRow> {
    let pareto = if ranked.pareto { "yes" } else { "" };
    Ok(ResultRow::new(ranked)?
        .with_value("policy", shorten_policy(&ranked.policy, &ranked.spec))
        .with_value("pareto", pareto))
}

/// Returns a text with the workload, the memory budget, the weights, and the numbers of searched and measured designs.
pub(super) fn describe_question(advice: &Advice) -> String {
    let (asked, searched) = (&advice.asked, &advice.searched);
    let weights = &asked.weights;
    let rounds: Vec<String> = searched.rounds.iter().map(ToString::to_string).collect();
    let sizes: Vec<u64> =
        advice.ranked.iter().filter_map(|it| it.measured.map(|it| it.entries)).collect();
    let confirmed = match sizes.first() {
        Some(entries) => format!("{} measured on the engine with {entries} writes", sizes.len()),
        None => "none measured".to_owned(),
    };
    format!(
        "{} writes of {} + {} B, memory {}; weights: writes {:.3}, point lookups {:.3}, ranges {:.3}, space {:.3}\n\
         {} designs, {} simulations of trees of {} writes, {confirmed}\n",
        asked.entries,
        asked.key_len,
        asked.value_len,
        format_bytes(asked.memory_bytes),
        weights.writes,
        weights.points,
        weights.ranges,
        weights.space,
        searched.designs,
        searched.simulations,
        rounds.join(", "),
    )
}

/// Returns the policy with its parameters. If the parameters are a JSON object, which is too long for a table, returns
/// only the name of the policy.
pub(super) fn shorten_policy(policy: &str, spec: &str) -> String {
    if spec.starts_with('{') { policy.to_owned() } else { spec.to_owned() }
}

/// Returns Rust code and a command line that use the given design.
pub(super) fn format_usage(best: &RankedDesign) -> String {
    let RankedDesign { spec, memtable_bytes, block_cache_bytes, .. } = best;
    let literal = if spec.contains('"') { format!("r#\"{spec}\"#") } else { format!("{spec:?}") };
    format!(
        "To use it:

  let keyspace = lsmx::KeyspaceOptions::default()
      .policy({literal}.parse::<PolicySpec>()?)
      .memtable_bytes({memtable_bytes})
      .table_bytes({memtable_bytes});
  let options = lsmx::Options::default().keyspace_defaults(keyspace).block_cache_bytes({block_cache_bytes});

To measure it:

  lsmx explore --policy '{spec}' --memtable {memtable_bytes} --block-cache {block_cache_bytes}
"
    )
}
