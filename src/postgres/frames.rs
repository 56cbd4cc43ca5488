//! Backend messages, cut out of the receive buffer in place.
//!
//! A backend message is a tag byte, a big-endian `i32` length that counts itself, and the body (PostgreSQL manual,
//! "Message Formats"). One large read holds thousands of them during replication, so nothing is copied: a message is a
//! range of the buffer. What is left of an incomplete message at the buffer's end moves to the front before the next
//! read. Hazard: a length field is the server's word only; memory grows with bytes received, never with that word.

use std::ops::Range;

use super::WireError;

/// Tag and length.
const HEADER_BYTES: usize = 5;

/// A buffer that one huge message has blown up to more than this many times its read size is given back.
const KEEP_READS: usize = 8;

/// Bytes received and not yet taken as messages.
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Where the next message starts in `bytes`.
    start: usize,
    /// Where the one taken last started.
    taken: usize,
    read_bytes: usize,
}

impl FrameBuffer {
    /// A buffer with room for at least `read_bytes` at every read.
    pub fn new(read_bytes: usize) -> Self {
        FrameBuffer { bytes: Vec::with_capacity(read_bytes), start: 0, taken: 0, read_bytes }
    }

    /// From the next read on, room for at least `read_bytes`.
    pub fn set_read_bytes(&mut self, read_bytes: usize) {
        self.read_bytes = read_bytes;
    }

    /// The next complete message as its tag and the range of its body; `None`: more bytes are needed.
    ///
    /// Errors: a length below 4, after which the stream cannot be read on.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<(u8, Range<usize>)>, WireError> {
        let Some((&[tag, a, b, c, d], _)) = self.bytes[self.start..].split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let length = i32::from_be_bytes([a, b, c, d]);
        if length < 4 {
            return Err(bad_length(tag, length));
        }
        let end = self.start + 1 + length as usize;
        if end > self.bytes.len() {
            return Ok(None);
        }
        let body = self.start + HEADER_BYTES..end;
        self.taken = self.start;
        self.start = end;
        Ok(Some((tag, body)))
    }

    /// The message taken last is the next one again; before [`Self::spare`] only.
    pub fn put_back(&mut self) {
        self.start = self.taken;
    }

    /// The bytes of a range from [`Self::next_frame`]; valid until [`Self::spare`] is called.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// The vector to append received bytes to, with room for a read. Moves at most what is not taken yet.
    pub fn spare(&mut self) -> &mut Vec<u8> {
        if self.start == self.bytes.len() {
            self.restart();
        } else if self.start > 0 && self.room() < self.read_bytes {
            self.bytes.copy_within(self.start.., 0);
            self.bytes.truncate(self.bytes.len() - self.start);
            self.start = 0;
        }
        self.taken = self.start;
        if self.room() < self.read_bytes {
            self.bytes.reserve(self.read_bytes);
        }
        &mut self.bytes
    }

    /// Bytes that are waiting to be taken as messages.
    pub fn pending_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Everything was taken: start at the front again, and give back what a huge message needed.
    fn restart(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if self.bytes.capacity() > KEEP_READS * self.read_bytes {
            self.bytes = Vec::with_capacity(self.read_bytes);
        }
    }

    fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }
}

#[cold]
fn bad_length(tag: u8, length: i32) -> WireError {
    WireError::Protocol(format!("message `{}` claims a length of {length}, below its own 4", char::from(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn taken(buffer: &mut FrameBuffer) -> Vec<(u8, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some((tag, body)) = buffer.next_frame().expect("a valid stream") {
            frames.push((tag, buffer.slice(body).to_vec()));
        }
        frames
    }

    fn sample() -> Vec<(u8, Vec<u8>)> {
        (0..200u32).map(|n| (b'a' + (n % 26) as u8, vec![n as u8; (n * n % 977) as usize])).collect()
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same_messages() {
        let expected = sample();
        let stream: Vec<u8> = expected.iter().flat_map(|(tag, body)| frame(*tag, body)).collect();
        for piece in [1, 2, 3, 4, 5, 6, 7, 64, 1000, 4096, stream.len()] {
            let mut buffer = FrameBuffer::new(64);
            let mut frames = Vec::new();
            for part in stream.chunks(piece) {
                buffer.spare().extend_from_slice(part);
                frames.extend(taken(&mut buffer));
            }
            assert_eq!(frames, expected, "pieces of {piece} bytes");
            assert_eq!(buffer.pending_bytes(), 0);
        }
    }

    #[test]
    fn frames_left_in_the_buffer_survive_the_next_read() {
        let mut buffer = FrameBuffer::new(16);
        buffer.spare().extend_from_slice(&[frame(b'x', b"one"), frame(b'y', b"two")].concat());
        assert_eq!(buffer.next_frame().unwrap().unwrap().0, b'x');
        buffer.spare().extend_from_slice(&frame(b'z', &[7; 100]));
        assert_eq!(taken(&mut buffer), [(b'y', b"two".to_vec()), (b'z', vec![7; 100])]);
    }

    #[test]
    fn a_message_can_be_put_back_until_the_next_read() {
        let mut buffer = FrameBuffer::new(16);
        let bytes: Vec<u8> = sample().iter().flat_map(|(tag, body)| frame(*tag, body)).collect();
        buffer.spare().extend_from_slice(&bytes);
        let first = buffer.next_frame().unwrap();
        buffer.put_back();
        assert_eq!(buffer.next_frame().unwrap(), first);
        buffer.spare();
        buffer.put_back();
        assert_eq!(taken(&mut buffer), sample()[1..], "after a read there is nothing to put back");
    }

    #[test]
    fn a_lying_length_allocates_nothing() {
        let mut buffer = FrameBuffer::new(1024);
        buffer.spare().extend_from_slice(&[b'd', 0x7F, 0xFF, 0xFF, 0xFF, 1, 2, 3]);
        assert!(buffer.next_frame().unwrap().is_none());
        assert!(buffer.spare().capacity() <= 4096);
    }

    #[test]
    fn memory_follows_bytes_received_and_is_given_back() {
        let body = vec![9; 300_000];
        let mut buffer = FrameBuffer::new(1024);
        for part in frame(b'd', &body).chunks(1000) {
            let held = buffer.pending_bytes();
            assert!(buffer.spare().capacity() <= 2 * held + 4096, "{held} bytes held");
            buffer.spare().extend_from_slice(part);
        }
        assert_eq!(taken(&mut buffer), [(b'd', body)]);
        assert!(buffer.spare().capacity() <= 4096);
    }

    #[test]
    fn a_length_below_four_is_refused() {
        for length in [3, 0, -1, i32::MIN] {
            let mut buffer = FrameBuffer::new(64);
            buffer.spare().push(b'd');
            buffer.spare().extend_from_slice(&i32::to_be_bytes(length));
            assert!(matches!(buffer.next_frame(), Err(WireError::Protocol(_))), "{length}");
        }
    }

    #[test]
    fn an_empty_body_is_a_message() {
        let mut buffer = FrameBuffer::new(64);
        buffer.spare().extend_from_slice(&frame(b'c', b""));
        assert_eq!(taken(&mut buffer), [(b'c', Vec::new())]);
    }
}
