//! Running jobs, and files that new jobs must not use.

use std::collections::HashSet;

use crate::error::Error;
use crate::ids::FileId;
use crate::job::{Job, JobKind, JobReason};
use crate::shape::TreeShape;

/// Running jobs of one tree, with their input files and the blocked files.
#[derive(Clone, Debug, Default)]
pub struct RunningJobs {
    /// Busy files: the input files of running jobs and the blocked files. New jobs must not use them.
    pub files: HashSet<FileId>,
    /// Running jobs, each with the number of bytes that it still has to write.
    pub jobs: Vec<(Job, u64)>,
    /// Files blocked by [`RunningJobs::block_file`]. Subset of `files`.
    blocked: HashSet<FileId>,
}

impl RunningJobs {
    /// Returns whether the file is an input of a running job or is blocked.
    #[must_use]
    pub fn is_file_busy(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Returns whether at least one of the files is busy.
    pub fn is_any_file_busy(&self, files: impl IntoIterator<Item = FileId>) -> bool {
        !self.files.is_empty() && files.into_iter().any(|file| self.is_file_busy(file))
    }

    /// Returns whether a running job moves files from L0 to a deeper level.
    fn has_l0_job(&self) -> bool {
        self.jobs.iter().any(|(job, _)| job.is_from_l0())
    }

    /// Adds a job that will write `write_bytes`.
    pub fn start(&mut self, job: Job, write_bytes: u64) {
        self.files.extend(job.input_files());
        self.jobs.push((job, write_bytes));
    }

    /// Sets the number of bytes that a running job still has to write. Does nothing if the job is not running.
    pub fn set_bytes_left(&mut self, job: &Job, write_bytes_left: u64) {
        if let Some((_, left)) = self.jobs.iter_mut().find(|(running, _)| running == job) {
            *left = write_bytes_left;
        }
    }

    /// Removes a job that succeeded or failed. Returns false if the job is not running.
    pub fn finish(&mut self, job: &Job) -> bool {
        // Running jobs have no files in common, so they all differ.
        let Some(index) = self.jobs.iter().position(|(running, _)| running == job) else {
            return false;
        };
        let (job, _) = self.jobs.remove(index);
        for file in job.input_files().filter(|file| !self.blocked.contains(file)) {
            self.files.remove(&file);
        }
        true
    }

    /// Makes a file busy until [`RunningJobs::unblock_file`].
    pub fn block_file(&mut self, file: FileId) {
        self.blocked.insert(file);
        self.files.insert(file);
    }

    /// Unblocks a file after [`RunningJobs::block_file`]. The file stays busy if a running job uses it.
    pub fn unblock_file(&mut self, file: FileId) {
        self.blocked.remove(&file);
        if !self.jobs.iter().any(|(job, _)| job.input_files().any(|input| input == file)) {
            self.files.remove(&file);
        }
    }

    /// Returns the running jobs and their inputs, without the blocked files.
    #[must_use]
    pub fn without_blocked_files(&self) -> RunningJobs {
        let files = self.jobs.iter().flat_map(|(job, _)| job.input_files()).collect();
        RunningJobs { files, jobs: self.jobs.clone(), blocked: HashSet::new() }
    }

    /// Returns the running jobs and the busy files, without manual compactions and their inputs.
    #[must_use]
    pub fn without_manual_jobs(&self) -> RunningJobs {
        let mut others = self.clone();
        for (job, _) in self.jobs.iter().filter(|(job, _)| job.reason == JobReason::Manual) {
            others.finish(job);
        }
        others
    }

    /// Returns whether `job` can run at the same time as the running jobs.
    ///
    /// 1. None of its files may be busy.
    /// 2. No running job may write to an overlapping key range of the same level.
    /// 3. At most one job at a time may move files from L0 to a deeper level.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::NoSuchRun`], [`Error::NoSuchFile`] or [`Error::NoInputs`] if an input of `job` is not in the
    /// tree.
    pub fn can_run_job(&self, job: &Job, shape: &TreeShape) -> Result<bool, Error> {
        let range = job.input_key_range(shape)?;
        if self.is_any_file_busy(job.input_files()) || (job.is_from_l0() && self.has_l0_job()) {
            return Ok(false);
        }
        if job.kind == JobKind::Drop {
            return Ok(true);
        }
        for (running, _) in &self.jobs {
            let writes = running.kind != JobKind::Drop;
            if writes && running.target.level == job.target.level {
                // Inputs stay in the tree until their job ends. If an input is missing, the running job has just ended
                // but is not removed from `jobs` yet. It still counts as a conflict.
                if running.input_key_range(shape).map_or(true, |other| other.overlaps(&range)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns `job` if its inputs are in the tree and it [can run](Self::can_run_job) now.
    #[must_use]
    pub fn admit_job(&self, job: Job, shape: &TreeShape) -> Option<Job> {
        self.can_run_job(&job, shape).is_ok_and(|can_run| can_run).then_some(job)
    }

    /// Returns the number of bytes that running jobs still have to write. Includes only the jobs for which `counts`
    /// returns true.
    pub(crate) fn unwritten_bytes(&self, counts: impl Fn(&Job) -> bool) -> u64 {
        let counted = self.jobs.iter().filter(|(job, _)| counts(job));
        counted.map(|(_, left)| *left).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Level, RunId};
    use crate::job::{JobInput, OutputTarget, SplitRule};

    fn job(files: &[u64]) -> Job {
        let files = files.iter().copied().map(FileId).collect();
        Job {
            kind: JobKind::Drop,
            inputs: vec![JobInput { level: Level(1), run: RunId(1), files }],
            target: OutputTarget::oldest_run(Level(1)),
            split: SplitRule::by_size(1),
            reason: JobReason::Manual,
        }
    }

    #[test]
    fn blocked_file_is_busy_until_unblocked_and_job_ends() {
        let mut running = RunningJobs::default();
        running.start(job(&[1, 2]), 0);
        running.block_file(FileId(2));
        assert!(running.finish(&job(&[1, 2])));
        assert_eq!([1, 2].map(|id| running.is_file_busy(FileId(id))), [false, true]);
        assert!(!running.without_blocked_files().is_file_busy(FileId(2)));
        running.unblock_file(FileId(2));
        assert!(!running.is_file_busy(FileId(2)));

        running.block_file(FileId(3));
        running.start(job(&[3]), 0);
        running.unblock_file(FileId(3));
        assert!(running.is_file_busy(FileId(3)));
        assert!(running.finish(&job(&[3])));
        assert!(!running.is_file_busy(FileId(3)));
    }
}
