//! A listener that records events.

use lsmx::{Event, EventListener};
use lsmx_base::sync::{Arc, Mutex};

/// Records all events of a database. Clones share the records.
#[derive(Clone, Debug, Default)]
pub struct EventLog(Arc<Mutex<Vec<Event>>>);

impl EventListener for EventLog {
    fn on_event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

impl EventLog {
    /// Calls `select` with each event in order, and returns the results that are not `None`.
    pub fn select<T>(&self, select: impl Fn(&Event) -> Option<T>) -> Vec<T> {
        self.0.lock().iter().filter_map(select).collect()
    }

    pub fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().iter().filter(|event| matches(event)).count()
    }
}
