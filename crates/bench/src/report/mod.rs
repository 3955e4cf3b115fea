//! Reports: a result as text, JSON, CSV or HTML.

pub mod csv;
pub mod html;
pub mod json;
pub mod provenance;
pub mod text;

use serde::Serialize;

use crate::error::Result;
use crate::metric::table::TableStyleOptions;

/// A result that can be reported.
pub trait Report: Serialize {
    /// Returns tables for a terminal.
    ///
    /// # Errors
    /// If a column is unknown.
    fn text(&self, style: &TableStyleOptions) -> Result<String>;

    /// Returns header and rows of the CSV file.
    ///
    /// # Errors
    /// If a part of the result cannot be JSON.
    fn csv(&self) -> Result<(Vec<String>, Vec<Vec<String>>)>;

    /// Returns a page with plots.
    ///
    /// # Errors
    /// If a part of the result cannot be JSON.
    fn html(&self) -> Result<String>;
}
