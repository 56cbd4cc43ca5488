//! libpq's `sslmode` on rustls.
