//! HTML pages that load nothing from the network and are readable without JavaScript.
//!
//! Templates escape all text. The modules of `plot` do not depend on experiments. The module `page` of each experiment
//! writes the sections about the experiment.

pub mod figure;
pub(crate) mod latency;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod value;
