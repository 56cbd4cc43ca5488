//! This machine: the one way to start a child process, accounts to run it as, and what processes use.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | start, signal, wait for and clean up a child process |
//! | [`account`] | the unprivileged account that servers run as when we are root |
//! | [`port`] | free loopback TCP ports |
//! | [`usage`] | CPU seconds and resident bytes of processes; cores, memory, kernel |
//!
//! Linux only: pidfds, `PR_SET_PDEATHSIG` and /proc have no portable counterpart.

pub mod account;
pub mod port;
pub mod process;
pub mod usage;
