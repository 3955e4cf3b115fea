//! Memory control groups of Linux. A group limits the memory of its processes together with the page cache of the files
//! that they read and write.
//!
//! Version 1 of control groups has one hierarchy of groups per resource. Version 2 has one hierarchy for all resources.
//! A hierarchy is a mounted file system whose directories are the groups. `/proc/self/mountinfo` lists the mounts.
//! `/proc/self/cgroup` lists, for each hierarchy, the group that contains this process.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use crate::clock::sleep_ns;
use crate::process::read_proc_field;

/// Prefix of the name of each group. The prefix is followed by the process ID of the creator and a number.
const NAME_PREFIX: &str = "lsmx-bench-";
/// Maximum number of attempts to remove a group, and the pause between two attempts. The kernel may keep a group busy
/// for a short time after its last process has ended.
const REMOVAL_TRIES: u32 = 100;
const REMOVAL_PAUSE_NS: u64 = 10_000_000;

/// Version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupVersion {
    V1,
    V2,
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupVersion::V1 => "cgroup v1",
            GroupVersion::V2 => "cgroup v2",
        })
    }
}

/// A control group with a memory limit and without swap. Dropping the handle removes the group. All processes in the
/// group must have ended before.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
    version: GroupVersion,
}

impl MemoryGroup {
    /// Creates a group that limits memory to `limit_bytes`, and moves the process `process` into the group. Memory that
    /// the process allocated earlier does not count toward the limit.
    ///
    /// Three parents for the new group are tried in order: the group of this process, the parent of that group, and the
    /// root group. Groups that ended processes have left in these parents are removed first.
    ///
    /// # Errors
    /// No group can be created. The error text contains the reason for each parent.
    pub fn create_for(process: u32, limit_bytes: u64) -> Result<MemoryGroup, String> {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let hierarchies =
            find_hierarchies(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        let mut reasons = Vec::new();
        for Hierarchy { version, parents } in hierarchies {
            for parent in parents {
                remove_abandoned_groups(&parent);
                match MemoryGroup::create_in(&parent, version, process, limit_bytes) {
                    Ok(group) => return Ok(group),
                    Err(error) => reasons.push(format!("{}: {error}", parent.display())),
                }
            }
        }
        match reasons.is_empty() {
            true => Err("this system has no hierarchy of memory control groups".to_owned()),
            false => Err(reasons.join("; ")),
        }
    }

    fn create_in(
        parent: &Path,
        version: GroupVersion,
        process: u32,
        limit_bytes: u64,
    ) -> io::Result<MemoryGroup> {
        let name = format!("{NAME_PREFIX}{}-{process}", std::process::id());
        let directory = parent.join(name);
        fs::create_dir(&directory)?;
        // If a later step fails, dropping the group removes the directory.
        let group = MemoryGroup { directory, version };
        let limit = limit_bytes.to_string();
        match version {
            GroupVersion::V1 => {
                group.write("memory.limit_in_bytes", &limit)?;
                // This file limits memory plus swap. The file is missing if the kernel does not count swap.
                if !group.write_if_present("memory.memsw.limit_in_bytes", &limit)? {
                    group.write("memory.swappiness", "0")?;
                }
            }
            GroupVersion::V2 => {
                if !group.directory.join("memory.max").exists() {
                    write_control_file(&parent.join("cgroup.subtree_control"), "+memory")?;
                }
                group.write("memory.max", &limit)?;
                group.write_if_present("memory.swap.max", "0")?;
            }
        }
        group.write("cgroup.procs", &process.to_string())?;
        Ok(group)
    }

    pub fn version(&self) -> GroupVersion {
        self.version
    }

    /// Returns whether the kernel has killed a process because the group reached its limit.
    pub fn has_killed(&self) -> bool {
        let file = match self.version {
            GroupVersion::V1 => "memory.oom_control",
            GroupVersion::V2 => "memory.events",
        };
        read_proc_field(self.directory.join(file), "oom_kill ").is_some_and(|kills| kills > 0)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        write_control_file(&self.directory.join(file), text)
    }

    fn write_if_present(&self, file: &str, text: &str) -> io::Result<bool> {
        let is_present = self.directory.join(file).exists();
        if is_present {
            self.write(file, text)?;
        }
        Ok(is_present)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVAL_TRIES {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    sleep_ns(REMOVAL_PAUSE_NS);
                }
                _ => return,
            }
        }
    }
}

/// Writes to a file of the cgroup file system.
fn write_control_file(path: &Path, text: &str) -> io::Result<()> {
    let failed = |error: io::Error| {
        let name = path.file_name().unwrap_or_default().display();
        io::Error::new(error.kind(), format!("cannot write {name}: {error}"))
    };
    let mut file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// Removes groups whose creator process has ended, for example groups of a killed process. Ignores groups that cannot
/// be removed.
fn remove_abandoned_groups(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let creator = name.to_str().and_then(|name| {
            let (creator, _) = name.strip_prefix(NAME_PREFIX)?.split_once('-')?;
            creator.parse::<u32>().ok()
        });
        if creator.is_some_and(|creator| !Path::new(&format!("/proc/{creator}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A hierarchy of groups.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: GroupVersion,
    /// Possible parents of a new group: the group of this process, the parent of that group, and the root of the
    /// mounted part of the hierarchy. Each group is listed once.
    parents: Vec<PathBuf>,
}

/// Returns the mounted hierarchies that may limit memory, version 1 first. `cgroup` and `mountinfo` are the texts of
/// the files with these names in `/proc/self`.
fn find_hierarchies(cgroup: &str, mountinfo: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for version in [GroupVersion::V1, GroupVersion::V2] {
        let own = cgroup.lines().find_map(|line| parse_own_group(line, version));
        let mount = mountinfo.lines().find_map(|line| parse_mount(line, version));
        if let Some((own, (root, mount))) = own.zip(mount) {
            found.push(Hierarchy { version, parents: candidate_parents(own, &root, &mount) });
        }
    }
    found
}

/// Parses a line of `/proc/self/cgroup`: number of the hierarchy, resources, and path of the group that contains this
/// process. Returns the path if the hierarchy has this version and includes memory.
fn parse_own_group(line: &str, version: GroupVersion) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (number, resources, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_wanted = match version {
        GroupVersion::V1 => resources.split(',').any(|resource| resource == "memory"),
        GroupVersion::V2 => number == "0" && resources.is_empty(),
    };
    is_wanted.then_some(path)
}

/// Parses a line of `/proc/self/mountinfo`. Returns the directory of the hierarchy that is mounted, and the mount
/// point. Returns `None` if the mount is not a hierarchy of this version that includes memory.
fn parse_mount(line: &str, version: GroupVersion) -> Option<(PathBuf, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    let mut fields = after.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let is_wanted = match version {
        GroupVersion::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        GroupVersion::V2 => kind == "cgroup2",
    };
    // The kernel writes a space in a path as `\040`.
    let path = |text: &str| PathBuf::from(text.replace("\\040", " "));
    is_wanted.then(|| (path(root), path(mount)))
}

/// Returns the directories of three groups: the group that contains this process, its parent, and the root of the
/// mount. Omits groups outside `root`.
///
/// `own` is the path of the first group in the hierarchy. `root` is the mounted directory of the hierarchy, and `mount`
/// is the mount point.
fn candidate_parents(own: &str, root: &Path, mount: &Path) -> Vec<PathBuf> {
    // In a container, the group of this process can be outside the mounted directory.
    let below_root = Path::new(own)
        .strip_prefix(root)
        .ok()
        .filter(|path| path.components().all(|part| matches!(part, Component::Normal(_))));
    let own = below_root.map(|path| mount.join(path));
    let parent = own.as_deref().and_then(Path::parent).filter(|parent| parent.starts_with(mount));
    let mut parents: Vec<PathBuf> = Vec::new();
    for candidate in [own.as_deref(), parent, Some(mount)].into_iter().flatten() {
        if !parents.iter().any(|known| known == candidate) {
            parents.push(candidate.to_owned());
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory
";
    const V2_MOUNT: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn hierarchy(version: GroupVersion, parents: &[&str]) -> Hierarchy {
        Hierarchy { version, parents: parents.iter().map(PathBuf::from).collect() }
    }

    #[test]
    fn version_1_hierarchy_has_own_group_parent_and_root() {
        let cgroup = "9:name=systemd:/\n4:memory:/user.slice/a b:c\n1:cpu:/x\n";
        let memory = "/sys/fs/cgroup/memory";
        let parents =
            [&format!("{memory}/user.slice/a b:c"), &format!("{memory}/user.slice"), memory];
        let expected = hierarchy(GroupVersion::V1, &parents);
        assert_eq!(find_hierarchies(cgroup, V1_MOUNTS), [expected]);
        // Several resources can share one hierarchy.
        let (cgroup, mounts) = (
            cgroup.replace("memory", "cpu,memory"),
            V1_MOUNTS.replace("rw,memory", "rw,cpu,memory"),
        );
        assert_eq!(find_hierarchies(&cgroup, &mounts)[0].parents[2], Path::new(memory));
    }

    #[test]
    fn version_2_hierarchy_has_own_group_parent_and_root() {
        let mount = V2_MOUNT.replace("/unified", "");
        let found = find_hierarchies("0::/user.slice/session-1.scope\n", &mount);
        let parents = [
            "/sys/fs/cgroup/user.slice/session-1.scope",
            "/sys/fs/cgroup/user.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(found, [hierarchy(GroupVersion::V2, &parents)]);
        let found = find_hierarchies("0::/\n", &mount);
        assert_eq!(found, [hierarchy(GroupVersion::V2, &["/sys/fs/cgroup"])]);
    }

    #[test]
    fn hybrid_system_has_both_hierarchies() {
        let mounts = format!("{V2_MOUNT}{V1_MOUNTS}");
        let found = find_hierarchies("4:memory:/a\n0::/\n", &mounts);
        let expected = [
            hierarchy(GroupVersion::V1, &["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]),
            hierarchy(GroupVersion::V2, &["/sys/fs/cgroup/unified"]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn own_group_is_relative_to_the_mounted_directory() {
        let mount = "50 31 0:32 /docker/1 /mnt/c\\040g ro shared:1 - cgroup2 cgroup rw\n";
        for (own, parents) in [
            ("/docker/1", &["/mnt/c g"][..]),
            ("/docker/1/a", &["/mnt/c g/a", "/mnt/c g"]),
            ("/docker/2/a", &["/mnt/c g"]),
            ("/docker/1/../2", &["/mnt/c g"]),
        ] {
            let found = find_hierarchies(&format!("0::{own}\n"), mount);
            assert_eq!(found, [hierarchy(GroupVersion::V2, parents)], "{own}");
        }
    }

    #[test]
    fn malformed_or_other_lines_are_skipped() {
        for (cgroup, mounts) in [
            ("", ""),
            ("4:memory:/", ""),
            ("", V1_MOUNTS),
            ("1:cpu:/x\n", V1_MOUNTS),
            ("4:memory", V1_MOUNTS),
            ("4:memory:/\n0::/\n", "35 31 - cgroup\n35 31 0:32 / - cgroup2 x\n x - \n"),
        ] {
            assert_eq!(find_hierarchies(cgroup, mounts), [], "{cgroup:?} {mounts:?}");
        }
    }

    #[test]
    fn directory_without_control_files_gets_no_group() {
        let parent = tempfile::tempdir().unwrap();
        for version in [GroupVersion::V1, GroupVersion::V2] {
            let error = MemoryGroup::create_in(parent.path(), version, 1, 1 << 20).unwrap_err();
            assert!(error.to_string().starts_with("cannot write "), "{error}");
            assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        }
        let missing = parent.path().join("missing");
        let error = MemoryGroup::create_in(&missing, GroupVersion::V1, 1, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_groups_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        // Process numbers are below 2²².
        let ended = format!("{NAME_PREFIX}4294967295-7");
        let kept = [format!("{NAME_PREFIX}{}-7", std::process::id()), format!("{NAME_PREFIX}x-7")];
        for name in kept.iter().chain([&ended]) {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        remove_abandoned_groups(parent.path());
        assert!(!parent.path().join(ended).exists());
        assert!(kept.iter().all(|name| parent.path().join(name).exists()));
    }
}
