//! What processes and this machine use and have, from /proc.

use std::fs;

use anyhow::{Context, Result};
use procfs::{Current, process::Process};
use serde::Serialize;

/// CPU seconds, user and system, that process `pid` has used in all its threads, living and gone.
/// Its children are not included. Resolution: one clock tick, 10 ms. Error: no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = stat(pid)?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// Bytes of process `pid` in memory now, shared pages included. Error: no such process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    Ok(stat(pid)?.rss * procfs::page_size())
}

/// When process `pid` started, in clock ticks since boot: with the pid it names a process for good, since pids come
/// round again. `None`: no such process, or only its exit status is left.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = stat(pid).ok()?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.starttime)
}

/// Pids of the living children of all of `pid`'s threads. Error: no such process.
pub fn children(pid: u32) -> Result<Vec<u32>> {
    let process = Process::new(pid as i32).with_context(|| format!("read /proc/{pid}"))?;
    let mut children = Vec::new();
    for task in process.tasks().with_context(|| format!("read /proc/{pid}/task"))?.flatten() {
        children.extend(task.children().unwrap_or_default());
    }
    Ok(children)
}

fn stat(pid: u32) -> Result<procfs::process::Stat> {
    let read = || Process::new(pid as i32)?.stat();
    read().with_context(|| format!("read /proc/{pid}/stat"))
}

/// This process's pid, for the functions above.
pub fn own_pid() -> u32 {
    std::process::id()
}

/// What a run's manifest says of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct HostFacts {
    pub hostname: String,
    pub kernel: String,
    pub architecture: &'static str,
    /// Usable by this process (affinity and cgroup limits considered).
    pub cores: usize,
    pub memory_bytes: u64,
    pub cpu_model: Option<String>,
}

impl HostFacts {
    pub fn gather() -> Result<HostFacts> {
        Ok(HostFacts {
            hostname: kernel_value("hostname")?,
            kernel: kernel_value("osrelease")?,
            architecture: std::env::consts::ARCH,
            cores: cores(),
            memory_bytes: memory_bytes()?,
            cpu_model: procfs::CpuInfo::current().ok().and_then(|cpu| cpu.model_name(0).map(str::to_owned)),
        })
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// The machine's memory, in bytes.
pub fn memory_bytes() -> Result<u64> {
    Ok(procfs::Meminfo::current().context("read /proc/meminfo")?.mem_total)
}

fn kernel_value(name: &str) -> Result<String> {
    let path = format!("/proc/sys/kernel/{name}");
    Ok(fs::read_to_string(&path).with_context(|| format!("read {path}"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn busy_work_shows_up_as_cpu_seconds() {
        let before = cpu_seconds(own_pid()).unwrap();
        let began = Instant::now();
        while cpu_seconds(own_pid()).unwrap() < before + 0.05 {
            assert!(began.elapsed() < Duration::from_secs(30), "busy for 30 s, and it does not count");
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(cpu_seconds(u32::MAX >> 1).unwrap_err().to_string().contains("/proc/2147483647/stat"));
        assert_eq!(start_ticks(u32::MAX >> 1), None);
    }

    #[test]
    fn the_machine_has_cores_memory_and_a_name() {
        let facts = HostFacts::gather().unwrap();
        assert!(facts.cores >= 1 && facts.memory_bytes > 64 << 20);
        assert!(!facts.hostname.is_empty() && !facts.kernel.contains('\n'));
        assert!(resident_bytes(own_pid()).unwrap() > 1 << 20);
    }
}
