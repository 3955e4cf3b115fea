//! Estimates the memory that the page cache can use on Linux.

use std::fs;
use std::path::Path;

/// Returns the bytes of memory that the page cache can use: the available memory of the machine, or less if a control
/// group (cgroup) limits the memory of this process. `root` is the root directory of the system.
pub(super) fn page_cache_bytes(root: &Path) -> Option<u64> {
    let kib = named_number(&root.join("proc/meminfo"), "MemAvailable:")?;
    let available = kib.saturating_mul(1024);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // Each line has the form `hierarchy-number:controllers:path`.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) =
            (fields.next()?, Path::new(fields.next()?.trim_start_matches('/')));
        match controllers {
            "" => limit_of_group(&root.join("sys/fs/cgroup"), path),
            _ if controllers.split(',').any(|name| name == "memory") => {
                limit_of_group_v1(&root.join("sys/fs/cgroup/memory"), path)
            }
            _ => None,
        }
    });
    limits.chain([available]).min()
}

/// Returns the bytes that the page cache can use in a cgroup of version 2.
///
/// Computes the memory limit minus the anonymous memory for the group and for each of its ancestors, and returns the
/// smallest result. Anonymous memory counts towards the limit but cannot be used by the page cache.
fn limit_of_group(mount: &Path, path: &Path) -> Option<u64> {
    // In a container, the path may belong to a parent namespace and may not exist. The limit of the container is then
    // that of the root group, which is the last ancestor.
    let limits = path.ancestors().filter_map(|path| {
        let group = mount.join(path);
        let limit: u64 = fs::read_to_string(group.join("memory.max")).ok()?.trim().parse().ok()?;
        let used = named_number(&group.join("memory.stat"), "anon").unwrap_or(0);
        Some(limit.saturating_sub(used))
    });
    limits.min()
}

/// Like [`limit_of_group`], for cgroups of version 1. `hierarchical_memory_limit` includes the limits of ancestors.
fn limit_of_group_v1(mount: &Path, path: &Path) -> Option<u64> {
    let statistics = [mount.join(path), mount.to_owned()].map(|group| group.join("memory.stat"));
    statistics.iter().find_map(|path| {
        let limit = named_number(path, "hierarchical_memory_limit")?;
        Some(limit.saturating_sub(named_number(path, "total_rss")?))
    })
}

/// Returns the number that follows `name` in a file with one name and number per line.
fn named_number(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) -> io::Result<()> {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            #[expect(clippy::disallowed_methods, reason = "files of a simulated system")]
            fs::write(path, text)?;
        }
        Ok(())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1000 kB\n");

    #[test]
    fn page_cache_bytes_without_group_is_available_memory() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        assert_eq!(page_cache_bytes(root.path()), None);
        write(root.path(), &[MEMINFO])?;
        assert_eq!(page_cache_bytes(root.path()), Some(1_024_000));
        write(
            root.path(),
            &[("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/memory.max", "max\n")],
        )?;
        assert_eq!(page_cache_bytes(root.path()), Some(1_024_000));
        Ok(())
    }

    #[test]
    fn page_cache_bytes_of_group_is_smallest_limit_without_anonymous_memory() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let group = |name: &str, limit: &str, anon: &str| {
            let files = [("memory.max", limit), ("memory.stat", anon)];
            files.into_iter().try_for_each(|(file, text)| {
                write(root.path(), &[(&format!("sys/fs/cgroup/{name}/{file}"), text)])
            })
        };
        write(root.path(), &[MEMINFO, ("proc/self/cgroup", "0::/a/b\n")])?;
        group("a/b", "500000\n", "file 7\nanon 100000\n")?;
        assert_eq!(page_cache_bytes(root.path()), Some(400_000));
        group("a", "350000\n", "anon 150000\n")?;
        assert_eq!(page_cache_bytes(root.path()), Some(200_000));
        Ok(())
    }

    #[test]
    fn page_cache_bytes_of_version_1_group_uses_its_statistics() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let statistics = "total_rss 100\nhierarchical_memory_limit 1000\n";
        write(root.path(), &[MEMINFO, ("proc/self/cgroup", "3:cpu:/\n4:memory,x:/a/b\n")])?;
        write(root.path(), &[("sys/fs/cgroup/memory/memory.stat", statistics)])?;
        assert_eq!(page_cache_bytes(root.path()), Some(900));
        let own = "total_rss 300\nhierarchical_memory_limit 800\n";
        write(root.path(), &[("sys/fs/cgroup/memory/a/b/memory.stat", own)])?;
        assert_eq!(page_cache_bytes(root.path()), Some(500));
        Ok(())
    }
}
