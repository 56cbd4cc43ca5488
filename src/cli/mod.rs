//! To be written.

pub mod lab;
