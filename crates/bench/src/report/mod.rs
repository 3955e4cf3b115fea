//! Reports: a result as a table for people, as JSON for programs with its provenance, as flat rows,
//! or as a page with plots.

pub mod advice;
pub mod compare;
pub mod comparison;
pub mod csv;
pub mod estimates;
pub mod flat;
pub mod html;
pub mod iocost;
pub mod json;
pub mod provenance;
pub mod rmw;
pub mod rows;
pub mod text;
pub mod throughput;
pub mod tuning;
