//! Merges and atomic updates: changing a value without racing anybody, with or without reading it.
