//! One insert of one Native block, and what its failure means.

use bytes::Bytes;
use clickhouse::{Client, error::Error};

use super::encode::Sealed;
use crate::{config::TargetEndpoint, sink::SinkError};

/// Pieces larger than this are sent (and compressed) in parts.
const PIECE_BYTES: usize = 1 << 20;

/// Sends a sealed block and waits until the server has it. The same block has the same deduplication token each time.
pub async fn native(
    client: &Client,
    target: &str,
    sealed: &Sealed,
    endpoint: &TargetEndpoint,
) -> Result<(), SinkError> {
    let timeout = Some(endpoint.timeout);
    let mut insert = client
        .insert_formatted_with(format!("insert into {target} format Native"))
        .with_setting("async_insert", "0")
        .with_setting("insert_deduplicate", "1")
        .with_setting("insert_deduplication_token", &sealed.token)
        // The block is one part already: no squashing, no splitting, no thread pool for one block.
        .with_setting("max_insert_threads", "1")
        .with_timeouts(timeout, timeout);
    for piece in &sealed.pieces {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let part: Bytes = rest.split_to(rest.len().min(PIECE_BYTES));
            insert.send(part).await.map_err(sort_error)?;
        }
    }
    insert.end().await.map_err(sort_error)
}

/// Codes that may go away by themselves: overload, limits that merges relieve, restarts, failovers.
/// Source: ClickHouse, src/Common/ErrorCodes.cpp.
const RETRYABLE_CODES: [u32; 15] = [
    159, // TIMEOUT_EXCEEDED
    201, // QUOTA_EXCEEDED
    202, // TOO_MANY_SIMULTANEOUS_QUERIES
    209, // SOCKET_TIMEOUT
    210, // NETWORK_ERROR
    236, // ABORTED
    241, // MEMORY_LIMIT_EXCEEDED
    242, // TABLE_IS_READ_ONLY
    243, // NOT_ENOUGH_SPACE
    252, // TOO_MANY_PARTS
    285, // TOO_FEW_LIVE_REPLICAS
    319, // UNKNOWN_STATUS_OF_INSERT
    394, // QUERY_WAS_CANCELLED
    425, // SYSTEM_ERROR
    999, // KEEPER_EXCEPTION
];

/// Retryable or not. What we cannot read we retry only when it is the network.
pub fn sort_error(error: Error) -> SinkError {
    let text = match &error {
        Error::Network(cause) => {
            return SinkError::Retryable(format!("network: {}", super::innermost(cause.as_ref())));
        }
        Error::TimedOut => return SinkError::Retryable("the insert timed out".to_owned()),
        Error::BadResponse(text) => text.trim(),
        other => return SinkError::Permanent(other.to_string()),
    };
    match exception_code(text) {
        Some(code) if RETRYABLE_CODES.contains(&code) => SinkError::Retryable(text.to_owned()),
        Some(_) => SinkError::Permanent(text.to_owned()),
        // A proxy's or a dying server's answer, not ClickHouse's.
        None => SinkError::Retryable(if text.is_empty() {
            "an empty error response".to_owned()
        } else {
            text.to_owned()
        }),
    }
}

/// 252 from `Code: 252. DB::Exception: …`.
pub fn exception_code(text: &str) -> Option<u32> {
    let rest = text.get(text.find("Code: ")? + 6..)?;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_code() {
        let bad = |text: &str| sort_error(Error::BadResponse(text.to_owned()));
        assert!(matches!(bad("Code: 252. DB::Exception: Too many parts"), SinkError::Retryable(_)));
        assert!(matches!(bad("Code: 60. DB::Exception: Unknown table"), SinkError::Permanent(_)));
        assert!(matches!(bad("503 Service Unavailable"), SinkError::Retryable(_)));
        assert!(matches!(sort_error(Error::TimedOut), SinkError::Retryable(_)));
    }

    #[test]
    fn codes_are_read_from_the_text() {
        assert_eq!(exception_code("x Code: 516. DB::Exception"), Some(516));
        assert_eq!(exception_code("Code: "), None);
        assert_eq!(exception_code("teapot"), None);
    }
}
