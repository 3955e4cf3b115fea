//! Counters of the operating system for this process and its disk. Functions return `None` on systems without the
//! counter.

use std::path::Path;

/// Number of clock ticks per second. Files in `/proc` contain times in clock ticks. The number is the same on every
/// Linux kernel.
const TICKS_PER_S: f64 = 100.0;

/// Processor time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CpuTimes {
    /// Processor time in user mode.
    pub user_s: f64,
    /// Processor time in kernel mode.
    pub system_s: f64,
}

impl CpuTimes {
    pub fn since(self, before: CpuTimes) -> CpuTimes {
        CpuTimes { user_s: self.user_s - before.user_s, system_s: self.system_s - before.system_s }
    }

    pub fn plus(self, other: CpuTimes) -> CpuTimes {
        CpuTimes { user_s: self.user_s + other.user_s, system_s: self.system_s + other.system_s }
    }
}

/// Returns the processor time of all threads of this process, with a resolution of 10 ms.
pub fn process_cpu_times() -> Option<CpuTimes> {
    parse_cpu_times(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Returns the processor time of the calling thread, with a resolution of 10 ms.
pub fn thread_cpu_times() -> Option<CpuTimes> {
    parse_cpu_times(&std::fs::read_to_string("/proc/thread-self/stat").ok()?)
}

/// Returns the bytes that this process has passed to `write` calls on any file.
///
/// Does not use the kernel counter `write_bytes`, which counts a whole page for each small append.
pub fn process_written_bytes() -> Option<u64> {
    read_proc_field("/proc/self/io", "wchar:")
}

/// Returns the bytes that this process has read from storage. Excludes reads from the page cache.
pub fn process_storage_read_bytes() -> Option<u64> {
    read_proc_field("/proc/self/io", "read_bytes:")
}

/// Returns the bytes that this process has received from `read` calls on any file, including data in the page cache.
pub fn process_read_bytes() -> Option<u64> {
    read_proc_field("/proc/self/io", "rchar:")
}

/// Returns the resident memory of this process, in bytes.
pub fn process_resident_bytes() -> Option<u64> {
    read_proc_field("/proc/self/status", "VmRSS:").map(|kib| kib * 1024)
}

/// I/O that a block device has completed for all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceIo {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

impl DeviceIo {
    pub fn since(self, before: DeviceIo) -> DeviceIo {
        DeviceIo {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

/// Returns the number of reads that the block device of `path` has completed.
pub fn device_read_count(path: &Path) -> Option<u64> {
    device_io(path).map(|io| io.reads)
}

/// Returns the I/O that the block device of `path` has completed.
pub fn device_io(path: &Path) -> Option<DeviceIo> {
    let (major, minor) = find_device_number(path)?;
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    parse_device_stat(&stat)
}

fn parse_device_stat(stat: &str) -> Option<DeviceIo> {
    /// Length of a sector in the disk statistics of the kernel. The length does not depend on the device.
    const SECTOR_BYTES: u64 = 512;
    let mut fields = stat.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let mut field = |skipped: usize| fields.nth(skipped).flatten();
    // Order of the fields: reads, merged reads, sectors read, read time in milliseconds, then the same four fields for
    // writes.
    let (reads, read) = (field(0)?, field(1)?);
    let (writes, written) = (field(1)?, field(1)?);
    Some(DeviceIo {
        reads,
        read_bytes: read * SECTOR_BYTES,
        writes,
        written_bytes: written * SECTOR_BYTES,
    })
}

/// Returns the major and minor number of the block device of `path`.
#[cfg(target_os = "linux")]
fn find_device_number(path: &Path) -> Option<(u64, u64)> {
    use std::os::linux::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.st_dev();
    let major = (device >> 8 & 0xfff) | (device >> 32 & 0xffff_f000);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    Some((major, minor))
}

#[cfg(not(target_os = "linux"))]
fn find_device_number(_: &Path) -> Option<(u64, u64)> {
    None
}

fn parse_cpu_times(stat: &str) -> Option<CpuTimes> {
    // The second field, the program name, is in parentheses and may contain spaces and parentheses.
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let mut seconds = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(crate::numbers::to_f64(ticks) / TICKS_PER_S)
    };
    Some(CpuTimes { user_s: seconds()?, system_s: seconds()? })
}

/// Reads a file of the kernel. Returns the number that follows `name` in the first line that starts with `name`.
pub(crate) fn read_proc_field(path: impl AsRef<Path>, name: &str) -> Option<u64> {
    parse_proc_field(&std::fs::read_to_string(path).ok()?, name)
}

fn parse_proc_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the disk space that the files in a directory tree occupy. Ignores files that cannot be read.
pub fn directory_disk_bytes(directory: &Path) -> u64 {
    sum_file_sizes(directory, allocated_bytes)
}

/// Returns the total length of the files in a directory tree. Ignores files that cannot be read.
pub fn directory_file_bytes(directory: &Path) -> u64 {
    sum_file_sizes(directory, std::fs::Metadata::len)
}

fn sum_file_sizes(directory: &Path, bytes: fn(&std::fs::Metadata) -> u64) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let of_entry = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().ok()?;
        let is_dir = metadata.is_dir();
        Some(if is_dir { sum_file_sizes(&entry.path(), bytes) } else { bytes(&metadata) })
    };
    entries.flatten().filter_map(of_entry).sum()
}

#[cfg(unix)]
fn allocated_bytes(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    /// Length of a block in `st_blocks`. The length does not depend on the file system.
    const BLOCK_BYTES: u64 = 512;
    metadata.blocks() * BLOCK_BYTES
}

#[cfg(not(unix))]
fn allocated_bytes(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_program_name_with_parentheses_is_skipped() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 25 17 0 0 20 0 3 0 99";
        let cpu = parse_cpu_times(stat).unwrap();
        assert_eq!(cpu, CpuTimes { user_s: 0.25, system_s: 0.17 });
        assert_eq!(cpu.plus(cpu).since(cpu), cpu);
        assert_eq!(parse_cpu_times("7 (a"), None);
    }

    #[test]
    fn device_stat_has_reads_and_writes() {
        let io = parse_device_stat(" 10 1 16 5  20 2 48 7  0 1 2\n").unwrap();
        let expected = DeviceIo { reads: 10, read_bytes: 8192, writes: 20, written_bytes: 24_576 };
        assert_eq!(io, expected);
        assert_eq!(io.since(io), DeviceIo::default());
        assert_eq!(parse_device_stat("10 1 16"), None);
    }

    #[test]
    fn field_is_found_by_its_whole_name() {
        assert_eq!(parse_proc_field("VmHWM:\t  9 kB\nVmRSS:\t  1234 kB\n", "VmRSS:"), Some(1234));
        assert_eq!(
            parse_proc_field("rchar: 1\nwchar: 23\nwrite_bytes: 4096\n", "wchar:"),
            Some(23)
        );
        assert_eq!(parse_proc_field("VmHWM: 9 kB", "VmRSS:"), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of the test")]
    fn disk_bytes_include_subdirectories() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(directory_disk_bytes(directory.path()), 0);
        std::fs::create_dir(directory.path().join("a")).unwrap();
        std::fs::write(directory.path().join("a/b"), vec![1; 10_000]).unwrap();
        std::fs::write(directory.path().join("c"), vec![1; 10_000]).unwrap();
        assert!(directory_disk_bytes(directory.path()) >= 20_000);
        assert_eq!(directory_file_bytes(directory.path()), 20_000);
        assert_eq!(directory_disk_bytes(&directory.path().join("none")), 0);
    }
}
