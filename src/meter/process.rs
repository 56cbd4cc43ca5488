//! A process of this machine: `cpu_s` (user and system, since it began), `rss_bytes`, `pid`.

use anyhow::{Context, Result};

use super::{Meter, values};
use crate::{host::usage, metric::Values};

/// Finds the pid again at each reading: a process that came back has another.
type FindPid = Box<dyn Fn() -> Option<u32> + Send>;

pub struct ProcessMeter {
    name: String,
    find: FindPid,
}

impl ProcessMeter {
    /// Reads process `pid`; samples go under `name`.
    pub fn new(name: &str, pid: u32) -> Self {
        Self::following(name, move || Some(pid))
    }

    /// Reads whatever process `find` names at the time.
    pub fn following(name: &str, find: impl Fn() -> Option<u32> + Send + 'static) -> Self {
        ProcessMeter { name: name.to_owned(), find: Box::new(find) }
    }

    /// This program itself.
    pub fn own(name: &str) -> Self {
        Self::new(name, usage::own_pid())
    }

    fn read(&self) -> Result<Values> {
        let pid = (self.find)().with_context(|| format!("there is no process of {} now", self.name))?;
        Ok(values([
            ("pid", Some(f64::from(pid))),
            ("cpu_s", Some(usage::cpu_seconds(pid)?)),
            ("rss_bytes", Some(usage::resident_bytes(pid)? as f64)),
        ]))
    }
}

impl Meter for ProcessMeter {
    fn name(&self) -> &str {
        &self.name
    }

    async fn sample(&mut self) -> Result<Values> {
        self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_this_process() {
        let mut meter = ProcessMeter::own("cdcprobe");
        let before = meter.sample().await.unwrap();
        assert!(before["rss_bytes"] > 1e6);
        let begun = std::time::Instant::now();
        // Ticks are 10 ms long: work until one has passed, which a broken meter never sees.
        while meter.sample().await.unwrap()["cpu_s"] <= before["cpu_s"] {
            assert!(begun.elapsed().as_secs() < 30, "CPU time stands still");
        }
    }

    #[tokio::test]
    async fn a_process_that_is_gone_is_an_error() {
        assert!(ProcessMeter::following("walsender", || None).sample().await.is_err());
    }
}
