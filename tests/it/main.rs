//! One integration binary: link time counts on two cores.

mod connect;
mod decode;
mod docs;
mod imports;
mod lab;
mod load;
mod meter;
mod pipe;
mod report;
mod verify;
