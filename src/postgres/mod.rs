//! PostgreSQL as a server we talk to: connecting, the wire protocol, session settings, quoting.
//!
//! | module | what |
//! |---|---|
//! | [`connect`] | one connector for every session: hosts, addresses, TLS, timeouts; SQL sessions |
//! | [`tls`] | libpq's `sslmode` on rustls |
//! | [`certificate`] | host names, validity and channel binding hash of a certificate (pure) |
//! | [`auth`] | trust, password, md5, SCRAM with channel binding (pure) |
//! | [`wire`] | our own client for replication and COPY sessions |
//! | [`frames`] | backend messages cut out of the receive buffer in place (pure) |
//! | [`message`] | the bodies of the few messages that we read ourselves (pure) |
//! | [`settings`] | what every session has pinned |
//! | [`quote`] | identifiers and literals |
//! | [`oid`], [`types`] | built-in types by number; what lies below domains and arrays |

pub mod auth;
pub mod catalog;
pub mod certificate;
pub mod connect;
pub mod error;
pub mod frames;
pub mod message;
pub mod oid;
pub mod quote;
pub mod settings;
pub mod tls;
pub mod types;
pub mod wire;

pub use connect::sql_session;
pub use error::WireError;
pub use wire::{Frame, SessionKind, Wire};
