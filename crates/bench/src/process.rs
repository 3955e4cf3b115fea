//! What the system tells of this process. All of it is absent where the system does not tell.

use std::path::Path;

/// Ticks of a second in the times of `/proc`; the interface fixes it, whatever the kernel's own.
const TICKS_PER_S: f64 = 100.0;

/// Seconds of a processor, by what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cpu {
    /// In the program.
    pub user_s: f64,
    /// In the system, for it.
    pub system_s: f64,
}

impl Cpu {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu { user_s: self.user_s - before.user_s, system_s: self.system_s - before.system_s }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Cpu) -> Cpu {
        Cpu { user_s: self.user_s + other.user_s, system_s: self.system_s + other.system_s }
    }
}

/// Processor time that all threads of this process took so far, in steps of a hundredth of a second.
#[must_use]
pub fn cpu() -> Option<Cpu> {
    cpu_times(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Processor time that the calling thread took so far, in steps of a hundredth of a second.
#[must_use]
pub fn cpu_of_this_thread() -> Option<Cpu> {
    cpu_times(&std::fs::read_to_string("/proc/thread-self/stat").ok()?)
}

/// Bytes that this process handed to the system to write so far, by any call on any file.
///
/// The system's `write_bytes` would count each page that an append touches anew; this counts what
/// was handed over.
#[must_use]
pub fn written_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/io").ok()?, "wchar:")
}

/// Bytes that storage gave this process so far; what the page cache had is not among them.
#[must_use]
pub fn storage_read_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/io").ok()?, "read_bytes:")
}

/// Bytes that this process got from the system by calls for reading so far, of any file, from the page
/// cache or not.
#[must_use]
pub fn read_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/io").ok()?, "rchar:")
}

/// Bytes of memory that this process occupies now.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    resident_kib(&status).map(|kib| kib * 1024)
}

fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// What the block device below a path has done so far, for everybody on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceIo {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl DeviceIo {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: DeviceIo) -> DeviceIo {
        DeviceIo {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

/// Reads that the block device below a path has completed so far, for everybody on the machine.
#[must_use]
pub fn device_reads(path: &Path) -> Option<u64> {
    device_io(path).map(|io| io.reads)
}

/// What the block device below a path has done so far.
#[must_use]
pub fn device_io(path: &Path) -> Option<DeviceIo> {
    let (major, minor) = device_of(path)?;
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    device_stat(&stat)
}

fn device_stat(stat: &str) -> Option<DeviceIo> {
    /// Unit of the kernel's counts, whatever the device's own.
    const SECTOR_BYTES: u64 = 512;
    let mut fields = stat.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let mut field = |skipped: usize| fields.nth(skipped).flatten();
    // Reads, merged reads, sectors, milliseconds; then the same of writes.
    let (reads, read) = (field(0)?, field(1)?);
    let (writes, written) = (field(1)?, field(1)?);
    Some(DeviceIo {
        reads,
        read_bytes: read * SECTOR_BYTES,
        writes,
        written_bytes: written * SECTOR_BYTES,
    })
}

/// Major and minor number of the device that a path lies on, as Linux packs them.
#[cfg(target_os = "linux")]
fn device_of(path: &Path) -> Option<(u64, u64)> {
    use std::os::linux::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.st_dev();
    let major = (device >> 8 & 0xfff) | (device >> 32 & 0xffff_f000);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    Some((major, minor))
}

#[cfg(not(target_os = "linux"))]
fn device_of(_: &Path) -> Option<(u64, u64)> {
    None
}

fn cpu_times(stat: &str) -> Option<Cpu> {
    // The name of the program stands in brackets and may hold blanks and brackets itself.
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let mut seconds = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(crate::numbers::float(ticks) / TICKS_PER_S)
    };
    Some(Cpu { user_s: seconds()?, system_s: seconds()? })
}

fn field(io: &str, name: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Returns the bytes that the files below a directory occupy. Files that cannot be read or disappear do not count.
#[must_use]
pub fn disk_bytes(directory: &Path) -> u64 {
    sum_of_files(directory, occupied)
}

/// Returns the lengths of the files below a directory. Files that cannot be read or disappear do not count.
#[must_use]
pub fn file_bytes(directory: &Path) -> u64 {
    sum_of_files(directory, std::fs::Metadata::len)
}

fn sum_of_files(directory: &Path, bytes: fn(&std::fs::Metadata) -> u64) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let of_entry = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().ok()?;
        let is_dir = metadata.is_dir();
        Some(if is_dir { sum_of_files(&entry.path(), bytes) } else { bytes(&metadata) })
    };
    entries.flatten().filter_map(of_entry).sum()
}

#[cfg(unix)]
fn occupied(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    /// Unit of the count of blocks, whatever the file system's own.
    const BLOCK_BYTES: u64 = 512;
    metadata.blocks() * BLOCK_BYTES
}

#[cfg(not(unix))]
fn occupied(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_program_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 25 17 0 0 20 0 3 0 99";
        let cpu = cpu_times(stat).unwrap();
        assert_eq!(cpu, Cpu { user_s: 0.25, system_s: 0.17 });
        assert_eq!(cpu.and(cpu).since(cpu), cpu);
        assert_eq!(cpu_times("7 (a"), None);
    }

    #[test]
    fn counts_of_the_device_stand_at_their_places() {
        let io = device_stat(" 10 1 16 5  20 2 48 7  0 1 2\n").unwrap();
        let expected = DeviceIo { reads: 10, read_bytes: 8192, writes: 20, written_bytes: 24_576 };
        assert_eq!(io, expected);
        assert_eq!(io.since(io), DeviceIo::default());
        assert_eq!(device_stat("10 1 16"), None);
    }

    #[test]
    fn resident_memory_is_found_among_the_others() {
        assert_eq!(resident_kib("VmHWM:\t  9 kB\nVmRSS:\t  1234 kB\n"), Some(1234));
        assert_eq!(resident_kib("VmHWM: 9 kB"), None);
    }

    #[test]
    fn written_bytes_are_those_handed_over() {
        let io = "rchar: 1\nwchar: 23\nsyscr: 4\nwrite_bytes: 4096\n";
        assert_eq!(field(io, "wchar:"), Some(23));
        assert_eq!(field("", "wchar:"), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of the test")]
    fn files_below_a_directory_are_added_up() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(disk_bytes(directory.path()), 0);
        std::fs::create_dir(directory.path().join("a")).unwrap();
        std::fs::write(directory.path().join("a/b"), vec![1; 10_000]).unwrap();
        std::fs::write(directory.path().join("c"), vec![1; 10_000]).unwrap();
        assert!(disk_bytes(directory.path()) >= 20_000);
        assert_eq!(disk_bytes(&directory.path().join("none")), 0);
    }
}
