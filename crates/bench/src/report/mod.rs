//! Reports: a result as text, JSON, CSV or HTML.

pub mod csv;
pub mod file;
pub mod html;
pub mod json;
pub mod provenance;
pub mod text;

use serde::Serialize;

use crate::error::Result;
use crate::metric::table::{TableStyleOptions, format_table};
use crate::metric::{MetricRegistry, ResultRow, html as metric_html};
use provenance::Provenance;

/// A result that can be reported.
pub trait Report: Serialize {
    fn registry(&self) -> &'static MetricRegistry;

    fn provenance(&self) -> &Provenance;

    /// Returns the text above the table: the measured workload and the settings.
    fn head(&self) -> String;

    /// Returns the rows of the table. Fails if the result cannot be converted to JSON.
    fn rows(&self) -> Result<Vec<ResultRow>>;

    /// Returns notes about the rows, which are printed below the table.
    fn notes(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Returns the table for a terminal. Fails if a column is unknown.
    fn text(&self, style: &TableStyleOptions) -> Result<String> {
        let table = format_table(self.registry(), &self.rows()?, style)?;
        let mut text = format!("{}\n\n{table}", self.head().trim_end());
        if style.legend {
            for note in self.notes() {
                text.push_str(&format!("\nnote: {note}\n"));
            }
        }
        Ok(text)
    }

    /// Returns the header and the rows of a CSV file.
    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        Ok(self.registry().csv(&self.rows()?))
    }

    /// Returns an HTML page with tables and plots.
    fn html(&self) -> Result<String> {
        let (registry, rows) = (self.registry(), self.rows()?);
        Ok(metric_html::render_rows_page(registry, &self.head(), self.provenance(), &rows))
    }
}
