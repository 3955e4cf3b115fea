//! Claims of a published study, and whether measured figures confirm the claims.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::figures::Figures;

/// Texts of the claims of all experiments, from `claims.toml`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClaimTexts {
    /// Explanations that several claims share. A claim refers to an explanation by `@name`.
    reasons: BTreeMap<String, String>,
    #[serde(flatten)]
    experiments: BTreeMap<String, ExperimentText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExperimentText {
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) claims: Vec<ClaimText>,
}

/// A claim of the study and its expected figures.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimText {
    statement: String,
    /// Lower and upper bound of each figure.
    range: Option<(f64, f64)>,
    order: Option<FigureOrder>,
    #[serde(default)]
    unit: FigureUnit,
    #[serde(default)]
    kind: ClaimKind,
    /// Reason why the figures of the study and of lsmx cannot be compared. Empty if they can be compared.
    #[serde(default)]
    not_comparable: String,
    /// Reason that is printed if a figure of the claim was not measured.
    #[serde(default)]
    not_measured: String,
    /// Explanation that is printed if the claim does not hold.
    #[serde(default)]
    why_not: String,
    /// Remark that is always printed.
    #[serde(default)]
    note: String,
}

/// How a claim counts in the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClaimKind {
    /// A claim of the study.
    #[default]
    Study,
    /// A claim of the study that was used to choose a setting, so the figures cannot confirm it.
    Fitted,
    /// A claim of this project.
    Own,
}

/// Expected order of the figures of a claim. Consecutive figures may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FigureOrder {
    Rising,
    Falling,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FigureUnit {
    Plain,
    #[default]
    Times,
    /// A fraction from 0 to 1, printed as a percentage.
    Percent,
    Ms,
}

/// Whether the measured figures confirm a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    DoesNotHold,
    /// The claim was used to choose a setting.
    Fitted,
    NotComparable,
    /// The results lack at least one figure of the claim.
    NotMeasured,
    /// The claim specifies neither a range nor an order, so figures cannot confirm it.
    Undecided,
}

#[derive(Clone, Debug)]
pub(crate) struct Claim {
    text: ClaimText,
    figures: Figures,
}

impl ClaimTexts {
    pub(crate) fn read() -> Result<ClaimTexts, toml::de::Error> {
        let mut texts: ClaimTexts = toml::from_str(include_str!("claims.toml"))?;
        for claim in texts.experiments.values_mut().flat_map(|it| &mut it.claims) {
            for text in [&mut claim.why_not, &mut claim.not_comparable, &mut claim.not_measured] {
                if let Some(name) = text.strip_prefix('@') {
                    *text = texts.reasons.get(name).cloned().unwrap_or_default();
                }
            }
        }
        Ok(texts)
    }

    pub(crate) fn experiment(&self, name: &str) -> Option<&ExperimentText> {
        self.experiments.get(name)
    }
}

impl Claim {
    pub(crate) fn new(text: &ClaimText, figures: Figures) -> Claim {
        Claim { text: text.clone(), figures }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let Some(figures) = self.figures.as_ref().filter(|figures| !figures.is_empty()) else {
            return Verdict::NotMeasured;
        };
        if self.text.range.is_none() && self.text.order.is_none() {
            return Verdict::Undecided;
        }
        if !self.text.not_comparable.is_empty() {
            return Verdict::NotComparable;
        }
        if self.text.kind == ClaimKind::Fitted {
            return Verdict::Fitted;
        }
        let mut pairs = figures.windows(2).map(|pair| (pair[0].1, pair[1].1));
        let holds = match (self.text.range, self.text.order) {
            (Some((low, high)), _) => figures.iter().all(|(_, value)| (low..=high).contains(value)),
            (None, Some(FigureOrder::Rising)) => pairs.all(|(before, after)| after >= before),
            _ => pairs.all(|(before, after)| after <= before),
        };
        if holds { Verdict::Holds } else { Verdict::DoesNotHold }
    }

    pub(crate) fn kind(&self) -> ClaimKind {
        self.text.kind
    }

    /// Returns the statement if `claims.toml` contains no reason for the verdict.
    pub(crate) fn unexplained(&self) -> Option<&str> {
        let is_missing = match self.verdict() {
            Verdict::DoesNotHold => self.text.why_not.is_empty(),
            Verdict::NotMeasured => self.text.not_measured.is_empty(),
            _ => false,
        };
        is_missing.then_some(self.text.statement.as_str())
    }

    /// Returns a table row: statement, expected figures, measured figures, verdict and explanation.
    pub(crate) fn table_row(&self) -> Vec<String> {
        let (verdict, why) = match self.verdict() {
            Verdict::Holds => ("holds", ""),
            Verdict::DoesNotHold => ("**does not hold**", self.text.why_not.as_str()),
            Verdict::Fitted => ("fitted", ""),
            Verdict::NotComparable => ("not comparable", self.text.not_comparable.as_str()),
            Verdict::NotMeasured => ("not measured", self.text.not_measured.as_str()),
            Verdict::Undecided => ("–", ""),
        };
        let (expected, measured) = (self.expected_text(), self.measured_text());
        let why = format!("{why} {}", self.text.note).trim().to_owned();
        vec![self.text.statement.clone(), expected, measured, verdict.to_owned(), why]
    }

    fn expected_text(&self) -> String {
        match (self.text.range, self.text.order) {
            (Some((low, high)), _) if high.is_infinite() => format!("≥ {}", self.format(low)),
            (Some((low, high)), _) if low <= 0.0 && self.text.unit != FigureUnit::Percent => {
                format!("≤ {}", self.format(high))
            }
            (Some((low, high)), _) => format!("{} to {}", self.format(low), self.format(high)),
            (None, Some(FigureOrder::Rising)) => "rising".to_owned(),
            (None, Some(FigureOrder::Falling)) => "falling".to_owned(),
            (None, None) => "–".to_owned(),
        }
    }

    fn measured_text(&self) -> String {
        let Some(figures) = &self.figures else { return "–".to_owned() };
        let texts = figures.iter().map(|(label, value)| {
            let gap = if label.is_empty() { "" } else { " " };
            format!("{label}{gap}{}", self.format(*value))
        });
        texts.collect::<Vec<_>>().join(", ")
    }

    fn format(&self, value: f64) -> String {
        match self.text.unit {
            FigureUnit::Plain => format_significant(value),
            FigureUnit::Times => format!("{} ×", format_significant(value)),
            FigureUnit::Percent => format!("{:.0} %", value * 100.0),
            FigureUnit::Ms => format!("{} ms", format_significant(value)),
        }
    }
}

/// Formats a number with about three digits.
pub(crate) fn format_significant(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(values: &[f64], range: Option<(f64, f64)>, order: Option<FigureOrder>) -> Claim {
        let text = ClaimText {
            statement: "statement".to_owned(),
            range,
            order,
            why_not: "reason".to_owned(),
            note: "note".to_owned(),
            ..ClaimText::default()
        };
        let figures = values.iter().map(|value| ("x".to_owned(), *value)).collect();
        Claim::new(&text, Some(figures))
    }

    #[test]
    fn verdict_compares_every_figure() {
        let (range, rising, falling) =
            (Some((1.0, 2.0)), Some(FigureOrder::Rising), Some(FigureOrder::Falling));
        for (values, range, order, verdict) in [
            (&[1.0, 1.5, 2.0][..], range, None, Verdict::Holds),
            (&[1.0, 2.01], range, None, Verdict::DoesNotHold),
            (&[f64::NAN], range, None, Verdict::DoesNotHold),
            (&[1.0, 1.0, 3.0], None, rising, Verdict::Holds),
            (&[1.0, 3.0, 2.0], None, rising, Verdict::DoesNotHold),
            (&[3.0, 2.0, 2.0], None, falling, Verdict::Holds),
            (&[], None, rising, Verdict::NotMeasured),
            (&[1.0], None, None, Verdict::Undecided),
        ] {
            assert_eq!(claim(values, range, order).verdict(), verdict, "{values:?}");
        }
        let with = |kind, why: &str| {
            let mut claim = claim(&[5.0], range, None);
            (claim.text.kind, claim.text.not_comparable) = (kind, why.to_owned());
            claim.verdict()
        };
        assert_eq!(with(ClaimKind::Own, ""), Verdict::DoesNotHold);
        assert_eq!(with(ClaimKind::Fitted, ""), Verdict::Fitted);
        assert_eq!(with(ClaimKind::Study, "other unit"), Verdict::NotComparable);
        let missing = Claim { figures: None, ..claim(&[], range, None) };
        assert_eq!(missing.verdict(), Verdict::NotMeasured);
    }

    #[test]
    fn reason_is_printed_only_if_the_claim_does_not_hold() {
        let row = claim(&[1.25], Some((0.0, 2.0)), None).table_row();
        assert_eq!(row, ["statement", "≤ 2.00 ×", "x 1.25 ×", "holds", "note"]);
        let row = claim(&[12.5], Some((0.0, 2.0)), None).table_row();
        assert_eq!(row[2..], ["x 12.5 ×", "**does not hold**", "reason note"]);
    }

    #[test]
    fn every_shared_reason_exists_and_is_used() {
        let text = include_str!("claims.toml");
        let texts = ClaimTexts::read().unwrap();
        for name in texts.reasons.keys() {
            assert!(text.contains(&format!("\"@{name}\"")), "{name}");
        }
        let used = text.split("\"@").skip(1).filter_map(|rest| rest.split('"').next());
        assert!(used.into_iter().all(|name| texts.reasons.contains_key(name)));
    }
}
