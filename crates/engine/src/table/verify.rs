//! Checks a whole table against itself.
