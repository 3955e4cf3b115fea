//! A claim of the study: what it says, what we see, whether that agrees.

use crate::figures::Figures;

/// What the figures of a claim are to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// Each of them within these bounds.
    Within(f64, f64),
    /// Each no smaller than the one before.
    Rising,
    /// Each no larger than the one before.
    Falling,
    /// Nothing: they are told, and decide nothing.
    Anything,
}

/// Whether a claim holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Here too.
    Holds,
    /// Not here.
    DoesNotHold,
    /// What it asks for is not among the results.
    NotMeasured,
    /// There is no range to hold it against.
    Told,
}

/// How figures are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    /// As they are.
    Plain,
    /// As a factor.
    Times,
    /// Shares, in per cent.
    Percent,
    /// Milliseconds.
    Ms,
}

/// One statement.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    statement: &'static str,
    figures: Figures,
    expected: Expected,
    unit: Unit,
    why_not: &'static str,
    note: &'static str,
}

/// A claim: the statement as published, what it is about, how it is decided.
pub(crate) fn claim(statement: &'static str, figures: Figures, expected: Expected) -> Claim {
    Claim { statement, figures, expected, unit: Unit::Times, why_not: "", note: "" }
}

impl Claim {
    pub(crate) fn unit(mut self, unit: Unit) -> Claim {
        self.unit = unit;
        self
    }

    /// Why it does not hold; printed only then.
    pub(crate) fn why_not(mut self, why: &'static str) -> Claim {
        self.why_not = why;
        self
    }

    /// What is to be said in any case.
    pub(crate) fn note(mut self, note: &'static str) -> Claim {
        self.note = note;
        self
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let Some(figures) = self.figures.as_ref().filter(|figures| !figures.is_empty()) else {
            return Verdict::NotMeasured;
        };
        let mut pairs = figures.windows(2).map(|pair| (pair[0].1, pair[1].1));
        let holds = match self.expected {
            Expected::Within(low, high) => {
                figures.iter().all(|(_, value)| (low..=high).contains(value))
            }
            Expected::Rising => pairs.all(|(before, after)| after >= before),
            Expected::Falling => pairs.all(|(before, after)| after <= before),
            Expected::Anything => return Verdict::Told,
        };
        if holds { Verdict::Holds } else { Verdict::DoesNotHold }
    }

    /// A row: statement, what decides, what we see, verdict, why.
    pub(crate) fn row(&self) -> Vec<String> {
        let verdict = self.verdict();
        let word = match verdict {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "**does not hold**",
            Verdict::NotMeasured => "not measured",
            Verdict::Told => "–",
        };
        let why = if verdict == Verdict::DoesNotHold { self.why_not } else { "" };
        let texts: Vec<&str> =
            [why, self.note].into_iter().filter(|text| !text.is_empty()).collect();
        vec![
            self.statement.to_owned(),
            self.expected_text(),
            self.measured_text(),
            word.to_owned(),
            texts.join(" "),
        ]
    }

    fn expected_text(&self) -> String {
        match self.expected {
            Expected::Within(low, high) if high.is_infinite() => format!("≥ {}", self.show(low)),
            Expected::Within(low, high) if low <= 0.0 => format!("≤ {}", self.show(high)),
            Expected::Within(low, high) => format!("{} to {}", self.show(low), self.show(high)),
            Expected::Rising => "rising".to_owned(),
            Expected::Falling => "falling".to_owned(),
            Expected::Anything => "–".to_owned(),
        }
    }

    fn measured_text(&self) -> String {
        let Some(figures) = &self.figures else { return "–".to_owned() };
        let shown = figures.iter().map(|(label, value)| {
            let gap = if label.is_empty() { "" } else { " " };
            format!("{label}{gap}{}", self.show(*value))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    fn show(&self, value: f64) -> String {
        match self.unit {
            Unit::Plain => digits(value),
            Unit::Times => format!("{} ×", digits(value)),
            Unit::Percent => format!("{:.0} %", value * 100.0),
            Unit::Ms => format!("{} ms", digits(value)),
        }
    }
}

/// Three digits or so.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(values: &[f64], expected: Expected) -> Claim {
        let figures = values.iter().map(|value| ("x".to_owned(), *value)).collect();
        claim("it is so", Some(figures), expected).why_not("because").note("besides")
    }

    #[test]
    fn every_figure_has_to_lie_in_the_range() {
        let range = Expected::Within(1.0, 2.0);
        assert_eq!(about(&[1.0, 1.5, 2.0], range).verdict(), Verdict::Holds);
        assert_eq!(about(&[1.0, 2.01], range).verdict(), Verdict::DoesNotHold);
        assert_eq!(about(&[f64::NAN], range).verdict(), Verdict::DoesNotHold);
    }

    #[test]
    fn an_order_is_one_of_neighbours() {
        assert_eq!(about(&[1.0, 1.0, 3.0], Expected::Rising).verdict(), Verdict::Holds);
        assert_eq!(about(&[1.0, 3.0, 2.0], Expected::Rising).verdict(), Verdict::DoesNotHold);
        assert_eq!(about(&[3.0, 2.0, 2.0], Expected::Falling).verdict(), Verdict::Holds);
    }

    #[test]
    fn what_is_missing_neither_holds_nor_fails() {
        let missing = claim("it is so", None, Expected::Rising);
        assert_eq!(missing.verdict(), Verdict::NotMeasured);
        assert_eq!(about(&[], Expected::Rising).verdict(), Verdict::NotMeasured);
        assert_eq!(about(&[1.0], Expected::Anything).verdict(), Verdict::Told);
    }

    #[test]
    fn why_not_is_said_only_where_it_does_not_hold() {
        let range = Expected::Within(0.0, 2.0);
        let row = about(&[1.25], range).row();
        assert_eq!(row, ["it is so", "≤ 2.00 ×", "x 1.25 ×", "holds", "besides"]);
        let row = about(&[12.5], range).row();
        assert_eq!(row[2..], ["x 12.5 ×", "**does not hold**", "because besides"]);
    }
}
