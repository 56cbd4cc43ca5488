//! The replication stream: `START_REPLICATION`, messages in, status updates out.
//!
//! Hazard: naps block the thread (their lengths are below a timer's resolution), so a stream belongs on a thread of its
//! own. Status updates are the caller's duty, on time even while it does not read: the walsender counts silence only.

use std::time::{Duration, Instant};

use super::{
    nap::Nap,
    pgoutput::{DecodeError, Decoder},
};
use crate::{
    change::Event,
    config::SourceEndpoint,
    postgres::{
        WireError,
        quote::{identifier, identifier_list, replication_literal},
        wire::{SessionKind, Wire},
    },
    units::{Lsn, PgMicros},
};

/// What ended a stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("at {lsn}: {error}")]
    Decode { lsn: Lsn, error: DecodeError },
}

/// One message of the stream, borrowed from the receive buffer.
#[derive(Debug)]
pub enum Message<'a> {
    Change {
        /// Of the change's own WAL record; 0 for messages that have none.
        lsn: Lsn,
        event: Event<'a>,
        /// What the event was decoded from.
        raw: &'a [u8],
    },
    /// Everything up to here has been sent.
    Keepalive { wal_end: Lsn, reply_requested: bool },
}

/// Time spent, for the counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadTimes {
    pub napped: Duration,
    pub waited: Duration,
}

/// What to stream.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub slot: &'a str,
    pub publication: &'a str,
    pub from: Lsn,
    /// Values come in binary form where their type has one: a choice for all tables of the stream.
    pub binary: bool,
    /// Large transactions come while they run, in blocks (PostgreSQL 14).
    pub streaming: bool,
    /// Transactions come when they are prepared (PostgreSQL 15). A slot that has it once keeps it.
    pub two_phase: bool,
}

/// A slot being streamed.
pub struct ReplicationStream {
    wire: Wire,
    decoder: Decoder,
    nap: Nap,
    /// Reads until the socket's size is looked up again.
    reads_until_sized: u32,
    times: ReadTimes,
}

/// The first server version whose pgoutput can send prepared transactions.
pub const TWO_PHASE_SINCE: u32 = 150_000;
/// A Unix socket holds about this much of small messages (each takes a kernel buffer of its own).
const UNIX_CAPACITY_BYTES: usize = 64 << 10;
const READS_PER_SIZING: u32 = 64;
const LONGEST_NAP_TCP: Duration = Duration::from_millis(2);
const LONGEST_NAP_UNIX: Duration = Duration::from_micros(300);

impl ReplicationStream {
    /// Streams a slot, with the newest protocol of the server.
    pub async fn start(wire: Wire, start: &Start<'_>) -> Result<Self, WireError> {
        let mut wire = wire;
        wire.begin_copy(&start_command(wire.server_version(), start)).await?;
        let nap = if wire.is_unix() {
            Nap::new(UNIX_CAPACITY_BYTES, LONGEST_NAP_UNIX)
        } else {
            Nap::new(wire.receive_buffer_bytes(), LONGEST_NAP_TCP)
        };
        Ok(ReplicationStream {
            wire,
            decoder: Decoder::default(),
            nap,
            reads_until_sized: 0,
            times: ReadTimes::default(),
        })
    }

    /// A session that can start a stream or make a slot.
    pub async fn connect(endpoint: &SourceEndpoint) -> Result<Wire, WireError> {
        Wire::connect(endpoint, SessionKind::LogicalReplication, "cdcprobe stream").await
    }

    /// The walsender's process on the server.
    pub fn backend_pid(&self) -> i32 {
        self.wire.backend_pid()
    }

    /// The next message that is already here; `None`: [`Self::fill`] first.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, StreamError> {
        let Some(frame) = self.wire.next_frame()? else { return Ok(None) };
        match (frame.tag, frame.body.first()) {
            (b'd', Some(b'w')) => change(&mut self.decoder, &frame.body[1..]).map(Some),
            (b'd', Some(b'k')) => Ok(Some(keepalive(&frame.body[1..])?)),
            (b'c', _) => Err(WireError::Closed.into()),
            (tag, _) => {
                let text = format!("a message `{}` in the replication stream", char::from(tag));
                Err(WireError::Protocol(text).into())
            }
        }
    }

    /// The message taken last is the next one again; before [`Self::fill`] only. Not for messages that change what the
    /// decoder knows.
    pub fn put_back(&mut self) {
        self.wire.put_back();
    }

    /// Naps if the source is ahead, then reads what there is. Cancel-safe.
    pub async fn fill(&mut self) -> Result<usize, WireError> {
        if let Some(nap) = self.nap.before_read() {
            let began = Instant::now();
            std::thread::sleep(nap);
            self.times.napped += began.elapsed();
        }
        let began = Instant::now();
        let bytes = self.wire.fill().await?;
        let waited = began.elapsed();
        self.times.waited += waited;
        self.follow_socket_size();
        self.nap.observe(bytes, waited);
        Ok(bytes)
    }

    /// TCP's receive buffer grows while it is read in large pieces; what counts as full grows with it.
    fn follow_socket_size(&mut self) {
        if self.wire.is_unix() {
            return;
        }
        match self.reads_until_sized.checked_sub(1) {
            Some(left) => self.reads_until_sized = left,
            None => {
                self.reads_until_sized = READS_PER_SIZING;
                self.nap.set_capacity(self.wire.receive_buffer_bytes());
            }
        }
    }

    /// The source had more ready at the last read.
    pub fn is_busy(&self) -> bool {
        self.nap.is_busy()
    }

    pub fn take_times(&mut self) -> ReadTimes {
        std::mem::take(&mut self.times)
    }

    /// Tells the server that everything up to `durable` may be forgotten.
    pub async fn send_status(&mut self, durable: Lsn) -> Result<(), WireError> {
        let mut message = [0u8; 34];
        message[0] = b'r';
        for field in 0..3 {
            message[1 + 8 * field..9 + 8 * field].copy_from_slice(&durable.0.to_be_bytes());
        }
        message[25..33].copy_from_slice(&PgMicros::now().0.to_be_bytes());
        self.wire.send_copy_data(&message).await
    }

    /// Ends the stream in order; the slot is free when this returns.
    pub async fn stop(mut self) -> Result<(), WireError> {
        self.wire.copy_done().await?;
        self.wire.terminate().await;
        Ok(())
    }
}

fn start_command(server_version: u32, start: &Start<'_>) -> String {
    let protocol = match server_version {
        160_000.. => 4,
        150_000.. => 3,
        140_000.. => 2,
        _ => 1,
    };
    let publications = replication_literal(&identifier_list([start.publication]));
    let mut options = format!("proto_version '{protocol}', publication_names {publications}");
    for (option, since, is_wanted) in [
        ("messages 'true'", 140_000, true),
        ("binary 'true'", 140_000, start.binary),
        ("streaming 'parallel'", 160_000, start.streaming),
        ("streaming 'on'", 140_000, start.streaming && server_version < 160_000),
        ("two_phase 'true'", TWO_PHASE_SINCE, start.two_phase),
    ] {
        if is_wanted && server_version >= since {
            options.push_str(", ");
            options.push_str(option);
        }
    }
    format!("START_REPLICATION SLOT {} LOGICAL {} ({options})", identifier(start.slot), start.from)
}

/// XLogData: start LSN, the server's end of WAL, its clock, then the message.
#[inline]
fn change<'a>(decoder: &mut Decoder, body: &'a [u8]) -> Result<Message<'a>, StreamError> {
    let (start, _) = body.split_first_chunk::<8>().ok_or_else(short_message)?;
    let message = body.get(24..).ok_or_else(short_message)?;
    let lsn = Lsn(u64::from_be_bytes(*start));
    let event = decoder.decode(message).map_err(|error| StreamError::Decode { lsn, error })?;
    Ok(Message::Change { lsn, event, raw: message })
}

fn keepalive(body: &[u8]) -> Result<Message<'_>, WireError> {
    let (wal_end, _) = body.split_first_chunk::<8>().ok_or_else(short_message)?;
    let reply = body.get(16).ok_or_else(short_message)?;
    Ok(Message::Keepalive { wal_end: Lsn(u64::from_be_bytes(*wal_end)), reply_requested: *reply != 0 })
}

fn short_message() -> WireError {
    WireError::Protocol("a replication message that is too short".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_for_what_it_has() {
        let start = Start {
            slot: "s",
            publication: "It's \"p\"",
            from: Lsn(0x1_0000_0002),
            binary: true,
            streaming: true,
            two_phase: true,
        };
        let options = |version, start: &Start<'_>| {
            let command = start_command(version, start);
            let (head, options) = command.split_once(" (").unwrap();
            assert_eq!(head, "START_REPLICATION SLOT \"s\" LOGICAL 1/2");
            let (_, rest) = options.split_once("publication_names ").unwrap();
            rest.trim_end_matches(')').to_owned()
        };
        let name = r#"'"It''s ""p"""'"#;
        assert_eq!(options(130_000, &start), name);
        assert_eq!(
            options(140_000, &start),
            format!("{name}, messages 'true', binary 'true', streaming 'on'")
        );
        assert_eq!(
            options(180_000, &start),
            format!("{name}, messages 'true', binary 'true', streaming 'parallel', two_phase 'true'")
        );
        let plain = Start { binary: false, streaming: false, two_phase: false, ..start };
        assert_eq!(options(180_000, &plain), format!("{name}, messages 'true'"));
    }
}
