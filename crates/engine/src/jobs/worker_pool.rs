//! Which workers have a job, and the parts of merges that the others may take.
//!
//! A worker first looks for a job of its own; one that finds none takes a part of a merge that another
//! one runs. Parts that nobody takes are run by who has the merge, so an offer is a hint and nothing
//! ever waits for a worker to come.

use lsmx_base::sync::{Arc, AtomicUsize, Mutex, Ordering};

use crate::env::{Background, WORKERS_DEFAULT};
use crate::error::Result;
use crate::jobs::compaction::subcompactions::{By, Division, Merged};
use crate::state::{DbState, Work};

/// Workers of one database that compact.
#[derive(Debug)]
pub(crate) struct Workers {
    /// How many there are.
    count: usize,
    /// Most parts of one merge; `None`: as many as there may be threads.
    parts_max: Option<usize>,
    /// Those that have a job or a part of one. A hint: pairs with nothing.
    occupied: AtomicUsize,
    /// Merges with parts that may be taken, oldest first.
    offers: Mutex<Vec<Arc<Division>>>,
}

/// A worker that has something to do, until it is dropped.
#[derive(Debug)]
pub(crate) struct Occupied<'a>(&'a AtomicUsize);

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// The workers of an environment.
    pub(crate) fn new(background: Background, parts_max: Option<usize>) -> Workers {
        let count = match background {
            Background::Inline => 0,
            Background::Threads { workers } | Background::Stepped { workers, .. } => workers.max(1),
        };
        let occupied = AtomicUsize::new(0);
        Workers { count, parts_max, occupied, offers: Mutex::default() }
    }

    /// How many there are; 0 where callers do the work.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Counts the calling worker as one that has something to do.
    pub(crate) fn occupy(&self) -> Occupied<'_> {
        self.occupied.fetch_add(1, Ordering::Relaxed);
        Occupied(&self.occupied)
    }

    /// Into how many parts a job that begins now is divided at most: one for the calling thread, and
    /// one for each worker that has nothing to do. Where callers do the work, as many as if the
    /// default workers did: a tree then looks as theirs.
    pub(crate) fn parts_max(&self) -> usize {
        if self.count == 0 {
            return self.parts_max.unwrap_or(WORKERS_DEFAULT);
        }
        let free = self.count.saturating_sub(self.occupied.load(Ordering::Relaxed));
        // Where the caller is no worker, as in `compact_range`, all of them may be free.
        (free + 1).min(self.parts_max.unwrap_or(usize::MAX))
    }

    /// Runs all parts of a merge, with the help of those that have nothing else to do.
    ///
    /// # Errors
    /// Why the first of the parts failed that did; what they wrote is gone then.
    pub(crate) fn run(&self, store: &DbState, division: Division) -> Result<Merged> {
        let division = Arc::new(division);
        let offered = self.count > 0 && division.count() > 1;
        if offered {
            self.offers.lock().push(Arc::clone(&division));
            store.progress.notify();
        }
        while division.run_next(store, By::Owner) {}
        if offered {
            self.offers.lock().retain(|offer| !Arc::ptr_eq(offer, &division));
        }
        division.finish(store)
    }

    /// Whether a part may be taken.
    pub(crate) fn has_offer(&self) -> bool {
        self.offers.lock().iter().any(|division| division.has_waiting())
    }

    /// Takes a part and runs it; false if there is none, or work is not to begin. What becomes of it is
    /// told to who has the merge.
    pub(crate) fn help(&self, store: &DbState) -> bool {
        if !self.has_offer() || !store.begin_look(Work::Compaction) {
            return false;
        }
        let offer = {
            let offers = self.offers.lock();
            offers.iter().find(|division| division.has_waiting()).cloned()
        };
        let occupied = self.occupy();
        let helped = offer.is_some_and(|division| division.run_next(store, By::Helper));
        drop(occupied);
        store.looked(Work::Compaction);
        helped
    }
}
