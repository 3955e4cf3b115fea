//! Background work: flushes, compactions, and taking away what nobody needs.

mod around;
pub(crate) mod collect;
pub(crate) mod collect_operands;
pub(crate) mod compact;
mod covered;
pub(crate) mod deliver;
mod division;
pub(crate) mod flush;
pub(crate) mod fold;
pub(crate) mod garbage;
mod gather;
pub(crate) mod governor;
pub(crate) mod install;
pub(crate) mod manual;
pub(crate) mod output;
mod parts;
pub(crate) mod quarantine;
pub(crate) mod queue;
pub(crate) mod retain;
mod spans;
mod values;
pub(crate) mod workers;

pub(crate) use spans::SpanQueue;
