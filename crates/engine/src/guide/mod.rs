//! How to use what is not told in a line: a page for each.

pub mod merges;
