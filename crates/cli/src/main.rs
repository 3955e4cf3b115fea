//! The command line of lsmx.
fn main() {}
