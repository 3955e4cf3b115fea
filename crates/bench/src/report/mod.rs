//! Reports: a result as a table for people or as JSON for programs, with its provenance.

pub mod json;
pub mod provenance;
pub mod text;
