//! What running jobs hold.

use std::collections::HashSet;

use crate::{Error, FileId, Job, JobKind, TreeShape};

/// Files that running jobs hold, with the jobs themselves.
#[derive(Clone, Debug, Default)]
pub struct BusyFiles {
    /// Inputs of running jobs, and withheld files.
    pub files: HashSet<FileId>,
    /// Running jobs, with the bytes that each has still to write.
    pub jobs: Vec<(Job, u64)>,
    /// Files of [`BusyFiles::files`] that no job may take, whether or not one runs.
    withheld: HashSet<FileId>,
}

impl BusyFiles {
    /// Whether a running job holds the file, or it is withheld.
    #[must_use]
    pub fn is_busy(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Whether a running job holds one of the files.
    pub fn any_busy(&self, files: impl IntoIterator<Item = FileId>) -> bool {
        !self.files.is_empty() && files.into_iter().any(|file| self.is_busy(file))
    }

    /// Whether a job that takes files from L0 to a deeper level is running.
    #[must_use]
    pub fn l0_leaving(&self) -> bool {
        self.jobs.iter().any(|(job, _)| job.leaves_l0())
    }

    /// Notes that a job has started, which will write `write_bytes`.
    pub fn start(&mut self, job: Job, write_bytes: u64) {
        self.files.extend(job.input_files());
        self.jobs.push((job, write_bytes));
    }

    /// Notes how many bytes a running job has still to write. Unknown jobs are passed over.
    pub fn progress(&mut self, job: &Job, write_bytes_left: u64) {
        if let Some((_, left)) = self.jobs.iter_mut().find(|(running, _)| running == job) {
            *left = write_bytes_left;
        }
    }

    /// Notes that a job has ended, well or not, and sets its files free. Returns whether it ran.
    pub fn finish(&mut self, job: &Job) -> bool {
        // No two running jobs are equal: they would share their files.
        let Some(index) = self.jobs.iter().position(|(running, _)| running == job) else {
            return false;
        };
        let (job, _) = self.jobs.remove(index);
        for file in job.input_files().filter(|file| !self.withheld.contains(file)) {
            self.files.remove(&file);
        }
        true
    }

    /// Makes a file busy until [`BusyFiles::restore`], whether or not a job takes it.
    pub fn withhold(&mut self, file: FileId) {
        self.withheld.insert(file);
        self.files.insert(file);
    }

    /// Ends [`BusyFiles::withhold`]. A running job that has the file keeps it.
    pub fn restore(&mut self, file: FileId) {
        self.withheld.remove(&file);
        if !self.jobs.iter().any(|(job, _)| job.input_files().any(|input| input == file)) {
            self.files.remove(&file);
        }
    }

    /// The same without the files that are busy only because they are withheld.
    #[must_use]
    pub fn without_withheld(&self) -> BusyFiles {
        let files = self.jobs.iter().flat_map(|(job, _)| job.input_files()).collect();
        BusyFiles { files, jobs: self.jobs.clone(), withheld: HashSet::new() }
    }

    /// Returns whether `job` may run beside the running jobs:
    ///
    /// 1. no file of it is held by another job,
    /// 2. no running job writes keys of its range into the same level,
    /// 3. at most one job at a time takes files from L0 to a deeper level.
    ///
    /// # Errors
    ///
    /// If an input of `job` is not in the tree.
    pub fn admits(&self, job: &Job, shape: &TreeShape) -> Result<bool, Error> {
        let range = job.range(shape)?;
        if self.any_busy(job.input_files()) || (job.leaves_l0() && self.l0_leaving()) {
            return Ok(false);
        }
        if job.kind == JobKind::Drop {
            return Ok(true);
        }
        for (running, _) in &self.jobs {
            let writes = running.kind != JobKind::Drop;
            if writes && running.target.level == job.target.level {
                // Inputs of a running job stay in the tree until it ends. One that is gone has
                // ended, and only its end has not been noted yet: it counts as in the way.
                if running.range(shape).map_or(true, |other| other.overlaps(&range)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The job, if it is one of this tree and may run beside the running ones.
    #[must_use]
    pub fn admitted(&self, job: Job, shape: &TreeShape) -> Option<Job> {
        self.admits(&job, shape).is_ok_and(|admitted| admitted).then_some(job)
    }

    /// Bytes still to be written by the running jobs that `counts` picks out.
    pub(crate) fn bytes_left(&self, counts: impl Fn(&Job) -> bool) -> u64 {
        let counted = self.jobs.iter().filter(|(job, _)| counts(job));
        counted.map(|(_, left)| *left).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CutRule, JobInput, Level, Placement, Reason, RunId, Target};

    fn job(files: &[u64]) -> Job {
        let files = files.iter().copied().map(FileId).collect();
        Job {
            kind: JobKind::Drop,
            inputs: vec![JobInput { level: Level(1), run: RunId(1), files }],
            target: Target { level: Level(1), placement: Placement::NewRun { before: None } },
            cut: CutRule { file_bytes: 1, grandparent: None, boundaries: Vec::new() },
            reason: Reason::Manual,
        }
    }

    #[test]
    fn withheld_file_stays_busy_until_restored_and_while_a_job_has_it() {
        let mut busy = BusyFiles::default();
        busy.start(job(&[1, 2]), 0);
        busy.withhold(FileId(2));
        assert!(busy.finish(&job(&[1, 2])));
        assert_eq!([1, 2].map(|id| busy.is_busy(FileId(id))), [false, true]);
        assert!(!busy.without_withheld().is_busy(FileId(2)));
        busy.restore(FileId(2));
        assert!(!busy.is_busy(FileId(2)));

        busy.withhold(FileId(3));
        busy.start(job(&[3]), 0);
        busy.restore(FileId(3));
        assert!(busy.is_busy(FileId(3)));
        assert!(busy.finish(&job(&[3])));
        assert!(!busy.is_busy(FileId(3)));
    }
}
