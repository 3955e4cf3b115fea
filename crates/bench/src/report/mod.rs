//! Reports: a result as text, JSON, CSV or HTML.

pub mod csv;
pub mod html;
pub mod json;
pub mod provenance;
pub mod text;

use serde::Serialize;

use crate::error::Result;
use crate::metric::table::{TableStyleOptions, table};
use crate::metric::{Registry, Row, html as metric_html};
use provenance::Provenance;

/// A result that can be reported.
pub trait Report: Serialize {
    /// Returns the metrics of the result.
    fn registry(&self) -> &'static Registry;

    /// Returns the source of the result.
    fn provenance(&self) -> &Provenance;

    /// Returns the lines above the table: what was measured, with which settings.
    fn head(&self) -> String;

    /// Returns the rows of the table.
    ///
    /// # Errors
    /// If a part of the result cannot be JSON.
    fn rows(&self) -> Result<Vec<Row>>;

    /// Returns the table for a terminal.
    ///
    /// # Errors
    /// If a column is unknown.
    fn text(&self, style: &TableStyleOptions) -> Result<String> {
        Ok(format!(
            "{}\n\n{}",
            self.head().trim_end(),
            table(self.registry(), &self.rows()?, style)?
        ))
    }

    /// Returns header and rows of the CSV file.
    ///
    /// # Errors
    /// If a part of the result cannot be JSON.
    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        Ok(self.registry().csv(&self.rows()?))
    }

    /// Returns a page with plots.
    ///
    /// # Errors
    /// If a part of the result cannot be JSON.
    fn html(&self) -> Result<String> {
        let (registry, rows) = (self.registry(), self.rows()?);
        Ok(metric_html::page_of_rows(registry, &self.head(), self.provenance(), &rows))
    }
}
