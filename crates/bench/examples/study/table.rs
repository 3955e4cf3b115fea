//! Markdown tables and sections of the report.

use std::fmt::Write as _;

use crate::claim::{Claim, ExperimentText};
use crate::figures::Figures;

#[derive(Clone, Debug)]
pub(crate) struct MarkdownTable {
    pub(crate) caption: &'static str,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// The report of an experiment: tables and claims.
#[derive(Clone, Debug)]
pub(crate) struct ReportSection {
    pub(crate) title: String,
    pub(crate) tables: Vec<MarkdownTable>,
    pub(crate) claims: Vec<Claim>,
}

impl MarkdownTable {
    pub(crate) fn new<H: Into<String>>(
        caption: &'static str,
        header: impl IntoIterator<Item = H>,
    ) -> MarkdownTable {
        let header = header.into_iter().map(Into::into).collect();
        MarkdownTable { caption, header, rows: Vec::new() }
    }

    pub(crate) fn add_row(&mut self, first: &str, others: impl IntoIterator<Item = String>) {
        let mut row = vec![first.to_owned()];
        row.extend(others);
        self.rows.push(row);
    }

    pub(crate) fn to_markdown(&self) -> String {
        let mut text = String::new();
        if !self.caption.is_empty() {
            text.push_str(&format!("{}\n\n", self.caption));
        }
        push_table_line(&mut text, &self.header);
        push_table_line(&mut text, &vec!["---".to_owned(); self.header.len()]);
        for row in &self.rows {
            push_table_line(&mut text, row);
        }
        text
    }
}

impl ReportSection {
    pub(crate) fn new(
        text: &ExperimentText,
        tables: Vec<MarkdownTable>,
        figures: Vec<Figures>,
    ) -> ReportSection {
        let claims = text.claims.iter().zip(figures);
        let claims = claims.map(|(text, figures)| Claim::new(text, figures)).collect();
        ReportSection { title: text.title.clone(), tables, claims }
    }

    pub(crate) fn to_markdown(&self) -> String {
        let mut text = format!("\n## {}\n", self.title);
        for table in &self.tables {
            text.push('\n');
            text.push_str(&table.to_markdown());
        }
        if !self.claims.is_empty() {
            let header = ["claim", "expected", "measured", "verdict", "reason"];
            let mut claims = MarkdownTable::new("", header);
            claims.rows = self.claims.iter().map(Claim::table_row).collect();
            text.push('\n');
            text.push_str(&claims.to_markdown());
        }
        text
    }
}

/// Appends a row of a Markdown table. Escapes `|` in the texts.
fn push_table_line(text: &mut String, cells: &[String]) {
    for cell in cells {
        // Writing to a string cannot fail.
        let _ = write!(text, "| {} ", cell.replace('|', "\\|"));
    }
    text.push_str("|\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_dash_per_column() {
        let mut table = MarkdownTable::new("what", ["", "a"]);
        table.add_row("x", ["1|2".to_owned()]);
        assert_eq!(table.to_markdown(), "what\n\n|  | a |\n| --- | --- |\n| x | 1\\|2 |\n");
    }
}
