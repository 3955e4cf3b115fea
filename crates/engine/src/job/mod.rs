//! Background work: flushes, compactions, and taking away what nobody needs.

pub(crate) mod collect;
pub(crate) mod compact;
pub(crate) mod flush;
pub(crate) mod install;
pub(crate) mod manual;
pub(crate) mod output;
pub(crate) mod queue;
pub(crate) mod retain;
