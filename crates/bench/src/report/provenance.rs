//! Origin of a result: version, command and machine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Report;
use crate::experiment::distinct_items;

/// Information that is needed to repeat an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub version: String,
    /// Command line that produced the result.
    pub command: String,
    /// Content of the spec file. `None` if the experiment has no spec file.
    pub spec: Option<String>,
    pub seed: u64,
    /// Model of the processor and number of hardware threads.
    pub cpu: String,
    /// Operating system and kernel version.
    pub kernel: String,
    /// Type of the file system that contains the databases. The text is `unknown` if the operating system does not
    /// report the type.
    pub file_system: String,
}

impl Provenance {
    /// Creates the provenance of a result of this machine. `directory` contains the databases.
    pub fn new(command: String, spec: Option<String>, seed: u64, directory: &Path) -> Provenance {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let release = text("/proc/sys/kernel/osrelease");
        Provenance {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            spec,
            seed,
            cpu: format!(
                "{} x {threads}",
                parse_cpu_model(&text("/proc/cpuinfo")).unwrap_or(std::env::consts::ARCH)
            ),
            kernel: format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned(),
            file_system: std::path::absolute(directory)
                .ok()
                .and_then(|path| find_file_system(&text("/proc/self/mountinfo"), &path))
                .unwrap_or_else(|| "unknown".to_owned()),
        }
    }

    /// Replaces the properties of this machine by the distinct properties of the machines that measured `parts`.
    pub(crate) fn with_machines_of(self, parts: &[impl Report]) -> Provenance {
        let join = |property: fn(&Provenance) -> &str| {
            distinct_items(parts.iter().map(|part| property(part.provenance()))).join("; ")
        };
        Provenance {
            cpu: join(|part| &part.cpu),
            kernel: join(|part| &part.kernel),
            file_system: join(|part| &part.file_system),
            ..self
        }
    }
}

fn parse_cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find_map(|line| {
        let (name, model) = line.split_once(':')?;
        (name.trim() == "model name").then(|| model.trim())
    })
}

/// Returns the type of the file system that contains `path`. If several file systems are mounted at the same directory,
/// the last mount hides the earlier mounts.
fn find_file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(mount) = before.split(' ').nth(4) else { continue };
        let Some(kind) = after.split(' ').next() else { continue };
        // The kernel writes a space in a mount point as `\040`.
        let mount = mount.replace("\\040", " ");
        let depth = Path::new(&mount).components().count();
        if path.starts_with(&mount) && best.is_none_or(|(deepest, _)| depth >= deepest) {
            best = Some((depth, kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:20 / /data rw - xfs /dev/sdb rw
31 30 0:21 / /data/with\\040blank rw shared:2 - tmpfs tmpfs rw
";

    #[test]
    fn file_system_is_that_of_the_longest_mount_point() {
        for (path, kind) in [
            ("/home/a", "ext4"),
            ("/data/x", "xfs"),
            ("/database", "ext4"),
            ("/data/with blank/x", "tmpfs"),
        ] {
            assert_eq!(find_file_system(MOUNTS, Path::new(path)).as_deref(), Some(kind), "{path}");
        }
        assert_eq!(find_file_system("", Path::new("/")), None);
    }

    #[test]
    fn cpu_model_is_the_value_of_model_name() {
        assert_eq!(parse_cpu_model("processor\t: 0\nmodel name\t: A 9000\n"), Some("A 9000"));
        assert_eq!(parse_cpu_model(""), None);
    }
}
