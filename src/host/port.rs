//! Free loopback TCP ports, confirmed by the kernel.
//!
//! Not port 0: that yields a port of the ephemeral range, and a server that has to come back on it after a kill could
//! find it taken by somebody's outgoing connection; worse, a client that retries a closed ephemeral port can connect
//! to itself. So the port is picked below that range, and a successful bind says that it is free.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
};

use anyhow::{Result, bail};
use rand::RngExt;

const FLOOR: u16 = 10_000;
const DEFAULT_EPHEMERAL_START: u16 = 32_768;
const ATTEMPTS: u32 = 1_000;

/// A port that nobody listens on at 127.0.0.1 now. Not reserved: bind it soon.
pub fn free() -> Result<u16> {
    let range = candidates(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default());
    let mut rng = rand::rng();
    for _ in 0..ATTEMPTS {
        let port = rng.random_range(range.clone());
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free loopback port among {} in {ATTEMPTS} attempts", range.len())
}

fn candidates(local_port_range: &str) -> Range<u16> {
    let start = local_port_range.split_whitespace().next().and_then(|text| text.parse().ok());
    let end = start.unwrap_or(DEFAULT_EPHEMERAL_START);
    if end > FLOOR + 1_000 { FLOOR..end } else { FLOOR..DEFAULT_EPHEMERAL_START }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_stay_below_the_ephemeral_range() {
        assert_eq!(candidates("32768\t60999\n"), 10_000..32_768);
        assert_eq!(candidates("20000 30000"), 10_000..20_000);
        assert_eq!(candidates("1024 65535"), 10_000..32_768, "no room below: take the usual range");
        assert_eq!(candidates(""), 10_000..32_768);
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
