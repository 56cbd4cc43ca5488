//! Lines out of a stream of chunks, wherever the chunks were cut.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Chunks in, lines out. A line that lies within one chunk is a slice of it, not a copy.
#[derive(Debug, Default)]
pub struct LineBuffer {
    chunks: VecDeque<Bytes>,
    /// Chunks at the front that are known to hold no line end.
    searched: usize,
}

impl LineBuffer {
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// The next whole line without its line end, or `None` until more is pushed.
    pub fn next_line(&mut self) -> Option<Bytes> {
        while let Some(chunk) = self.chunks.get(self.searched) {
            if let Some(end) = memchr::memchr(b'\n', chunk) {
                return Some(self.take(end));
            }
            self.searched += 1;
        }
        None
    }

    /// Bytes of a last line that never ended. Not empty at the end of a stream means that the stream was cut.
    pub fn rest(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// The line that ends at `end` of the chunk just searched.
    fn take(&mut self, end: usize) -> Bytes {
        let mut joined = BytesMut::new();
        for chunk in self.chunks.drain(..self.searched) {
            joined.extend_from_slice(&chunk);
        }
        self.searched = 0;
        let last = self.chunks.front_mut().expect("the chunk just searched");
        let mut line = last.split_to(end + 1);
        line.truncate(end);
        if last.is_empty() {
            self.chunks.pop_front();
        }
        if joined.is_empty() {
            return line;
        }
        joined.extend_from_slice(&line);
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn lines_do_not_depend_on_the_cuts(text in "[ab\n]{0,60}", cuts in prop::collection::vec(0..60usize, 0..8)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut buffer = LineBuffer::default();
            let mut lines = Vec::new();
            for pair in cuts.windows(2) {
                buffer.push(Bytes::copy_from_slice(&text.as_bytes()[pair[0]..pair[1]]));
                while let Some(line) = buffer.next_line() {
                    lines.push(String::from_utf8(line.to_vec()).expect("letters"));
                }
            }
            let (whole, rest) = text.rsplit_once('\n').map_or(("", text.as_str()), |(whole, rest)| (whole, rest));
            let expected: Vec<&str> = if text.contains('\n') { whole.split('\n').collect() } else { vec![] };
            prop_assert_eq!(lines, expected);
            prop_assert_eq!(buffer.rest(), rest.len());
        }
    }
}
