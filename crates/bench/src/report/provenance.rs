//! Where a result comes from: version, command and machine.

use std::path::Path;

use serde::Serialize;

/// What one needs to know to run an experiment again and to judge its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Version of lsmx.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Contents of the spec file, where there was one.
    pub spec: Option<String>,
    /// The seed.
    pub seed: u64,
    /// Model of the processor and the number of threads it runs.
    pub cpu: String,
    /// Operating system and kernel.
    pub kernel: String,
    /// File system that held the databases.
    pub file_system: String,
}

/// What stands for something that this system does not tell.
const UNKNOWN: &str = "unknown";

impl Provenance {
    /// What can be told of this machine; `directory` is where the databases lie.
    #[must_use]
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
                cpu_model(&text("/proc/cpuinfo")).unwrap_or(std::env::consts::ARCH)
            ),
            kernel: format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned(),
            file_system: std::path::absolute(directory)
                .ok()
                .and_then(|path| file_system(&text("/proc/self/mountinfo"), &path))
                .unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo.lines().find_map(|line| {
        let (name, model) = line.split_once(':')?;
        (name.trim() == "model name").then(|| model.trim())
    })
}

/// Type of the file system that is mounted closest above `path`; the last mount wins, for it hides
/// the ones before.
fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(mount) = before.split(' ').nth(4) else { continue };
        let Some(kind) = after.split(' ').next() else { continue };
        // Blanks in a mount point are written as octal escapes.
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
    fn the_closest_mount_names_the_file_system() {
        for (path, kind) in [
            ("/home/a", "ext4"),
            ("/data/x", "xfs"),
            ("/database", "ext4"),
            ("/data/with blank/x", "tmpfs"),
        ] {
            assert_eq!(file_system(MOUNTS, Path::new(path)).as_deref(), Some(kind), "{path}");
        }
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn the_model_is_found() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A 9000\n"), Some("A 9000"));
        assert_eq!(cpu_model(""), None);
    }
}
