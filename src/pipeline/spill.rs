//! The changes of one transaction whose end is not known yet: in memory while they are few, then in a file.
//!
//! The file has no name: nothing is left of it when the process ends, however it ends. It need not be durable, for the
//! slot sends again what was not confirmed.
//!
//! A record is framed like a message of the server (tag, length), so that reading goes through the same buffer: the
//! LSN, then the message.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Read, Seek, Write},
    path::Path,
};

use crate::{
    change::Event,
    postgres::frames::FrameBuffer,
    source::pgoutput::{DecodeError, Decoder},
    units::Lsn,
};

/// The file is read in pieces of this size.
const READ_BYTES: usize = 1 << 20;
const TAG: u8 = b'd';

/// Where changes are kept.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub folder: &'a Path,
    /// This much stays in memory.
    pub memory_bytes: usize,
}

/// Collects.
#[derive(Debug, Default)]
pub struct Spill {
    memory: Vec<u8>,
    file: Option<File>,
    file_bytes: u64,
    /// Subtransactions that were rolled back: what they changed does not count.
    aborted: HashSet<u32>,
}

impl Spill {
    /// Appends a message; what is kept goes to a file in the folder once it is as large as the place. Errors: the file
    /// cannot be written.
    pub fn add(&mut self, place: Place<'_>, lsn: Lsn, message: &[u8]) -> io::Result<()> {
        let length = i32::try_from(message.len() + 12)
            .map_err(|_| io::Error::other("a message of over 2 GiB cannot be kept"))?;
        self.memory.push(TAG);
        self.memory.extend_from_slice(&length.to_be_bytes());
        self.memory.extend_from_slice(&lsn.0.to_be_bytes());
        self.memory.extend_from_slice(message);
        if self.memory.len() >= place.memory_bytes { self.write_out(place.folder) } else { Ok(()) }
    }

    fn write_out(&mut self, folder: &Path) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(tempfile::tempfile_in(folder)?),
        };
        file.write_all(&self.memory)?;
        self.file_bytes += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }

    /// A subtransaction was rolled back.
    pub fn abort(&mut self, subxid: u32) {
        self.aborted.insert(subxid);
    }

    pub fn bytes(&self) -> u64 {
        self.file_bytes + self.memory.len() as u64
    }

    /// Everything from the first message on. `streamed`: the messages carry their subtransaction's number.
    pub fn replay(mut self, streamed: bool) -> io::Result<Replay> {
        let mut frames = FrameBuffer::new(READ_BYTES);
        match &mut self.file {
            Some(file) => {
                file.write_all(&self.memory)?;
                file.rewind()?;
            }
            None => frames.spare().extend_from_slice(&self.memory),
        }
        Ok(Replay {
            frames,
            file: self.file,
            decoder: Decoder::inside_stream(streamed),
            aborted: self.aborted,
        })
    }
}

/// Gives back what a [`Spill`] has kept, in order.
pub struct Replay {
    frames: FrameBuffer,
    file: Option<File>,
    decoder: Decoder,
    aborted: HashSet<u32>,
}

/// Why kept messages cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("what was kept of a transaction is not what was written")]
    Damaged,
    #[error("at {lsn}: {error}")]
    Decode { lsn: Lsn, error: DecodeError },
}

impl Replay {
    /// The next message that is in memory and counts; `None`: [`Self::fill`] first.
    pub fn next_message(&mut self) -> Result<Option<(Lsn, Event<'_>)>, ReplayError> {
        let body = loop {
            let Some((_, body)) = self.frames.next_frame().map_err(|_| ReplayError::Damaged)? else {
                return Ok(None);
            };
            let (_, message) = record(self.frames.slice(body.clone())).ok_or(ReplayError::Damaged)?;
            if !self.decoder.subxid(message).is_some_and(|xid| self.aborted.contains(&xid)) {
                break body;
            }
        };
        let (lsn, message) = record(self.frames.slice(body)).ok_or(ReplayError::Damaged)?;
        let event = self.decoder.decode(message).map_err(|error| ReplayError::Decode { lsn, error })?;
        Ok(Some((lsn, event)))
    }

    /// Reads on; false when nothing is left.
    pub fn fill(&mut self) -> Result<bool, ReplayError> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let read = file.take(READ_BYTES as u64).read_to_end(self.frames.spare())?;
        if read == 0 && self.frames.pending_bytes() > 0 {
            return Err(ReplayError::Damaged);
        }
        Ok(read > 0)
    }

    /// The message taken last is the next one again; before [`Self::fill`] only.
    pub fn put_back(&mut self) {
        self.frames.put_back();
    }
}

fn record(body: &[u8]) -> Option<(Lsn, &[u8])> {
    let (lsn, message) = body.split_first_chunk::<8>()?;
    Some((Lsn(u64::from_be_bytes(*lsn)), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELATION: u32 = 7;
    const MEMORY_BYTES: usize = 1 << 20;

    fn place(folder: &str) -> Place<'_> {
        Place { folder: Path::new(folder), memory_bytes: MEMORY_BYTES }
    }

    /// An insert of a row without columns, as it stands inside a stream block or outside of one.
    fn insert(xid: Option<u32>) -> Vec<u8> {
        let mut message = vec![b'I'];
        message.extend(xid.iter().flat_map(|xid| xid.to_be_bytes()));
        message.extend(RELATION.to_be_bytes());
        message.extend(b"N\0\0");
        message
    }

    fn large(xid: u32, bytes: u32) -> Vec<u8> {
        let mut message = insert(Some(xid));
        message.pop();
        message.push(1);
        message.push(b't');
        message.extend(bytes.to_be_bytes());
        message.resize(message.len() + bytes as usize, b'x');
        message
    }

    fn read(mut replay: Replay) -> Vec<(u64, Option<u32>)> {
        let mut found = Vec::new();
        loop {
            while let Some((lsn, event)) = replay.next_message().unwrap() {
                let Event::Insert { xid, relation, .. } = event else { panic!("{event:?}") };
                assert_eq!(relation.0, RELATION);
                found.push((lsn.0, xid));
            }
            if !replay.fill().unwrap() {
                return found;
            }
        }
    }

    #[test]
    fn what_was_kept_comes_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (count, bytes) in [(0, 0), (3, 10), (2_000, 900), (3, 3 << 20)] {
            let mut spill = Spill::default();
            for n in 0..count {
                spill.add(place(folder.path().to_str().unwrap()), Lsn(n), &large(n as u32, bytes)).unwrap();
            }
            assert_eq!(spill.file.is_some(), count * u64::from(bytes) > MEMORY_BYTES as u64);
            assert!(spill.memory.len() < MEMORY_BYTES);
            let expected: Vec<_> = (0..count).map(|n| (n, Some(n as u32))).collect();
            assert_eq!(read(spill.replay(true).unwrap()), expected);
            assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the file has no name");
        }
    }

    #[test]
    fn rolled_back_subtransactions_are_left_out() {
        let mut spill = Spill::default();
        for (lsn, xid) in [(1, 10), (2, 11), (3, 10), (4, 12), (5, 11)] {
            spill.add(place("/no/such/folder"), Lsn(lsn), &insert(Some(xid))).unwrap();
        }
        spill.abort(11);
        assert_eq!(read(spill.replay(true).unwrap()), [(1, Some(10)), (3, Some(10)), (4, Some(12))]);
    }

    #[test]
    fn messages_of_a_prepared_transaction_have_no_number() {
        let mut spill = Spill::default();
        spill.add(place("/no/such/folder"), Lsn(1), &insert(None)).unwrap();
        assert_eq!(read(spill.replay(false).unwrap()), [(1, None)]);
    }

    #[test]
    fn a_message_put_back_comes_again() {
        let mut spill = Spill::default();
        spill.add(place("/no/such/folder"), Lsn(1), &insert(Some(5))).unwrap();
        let mut replay = spill.replay(true).unwrap();
        for _ in 0..2 {
            assert!(replay.next_message().unwrap().is_some());
            assert!(replay.next_message().unwrap().is_none());
            replay.put_back();
        }
    }

    #[test]
    fn a_folder_that_takes_no_file_is_an_error() {
        let mut spill = Spill::default();
        let error = spill.add(place("/no/such/folder"), Lsn(1), &large(1, 2 << 20));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
