//! Requests to a process that serves its statistics.

use crate::place::socket_of;
use crate::protocol::{Answer, Asked, MAX_ANSWER, MAX_DUMP, Question};
use crate::sample::Process;
use seamalloc_socket::{Bounded, SocketError, connect};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for an answer. A request that waits for the GPU may hold the allocator's lock the whole time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the socket of a process of this user in this namespace of processes. [`listed`](crate::listed) returns the
/// sockets of all namespaces.
#[must_use]
pub fn socket(pid: u32) -> PathBuf {
    socket_of(pid)
}

/// Requests the figures of all allocators of a process.
///
/// # Errors
/// [`SocketError::Ask`] if there is no answer in 10 s, [`SocketError::Answer`] if the answer is not of this protocol.
pub fn samples(socket: &Path) -> Result<Process, SocketError> {
    match ask(socket, Question::Samples)? {
        (Answer::Process(process), _) => Ok(process),
        (other, _) => Err(unexpected(socket, other)),
    }
}

/// Requests the history that an allocator's flight recorder has kept: a pickle that PyTorch's viewer and seamalloc's
/// readers load.
///
/// # Errors
/// The errors of [`samples`]; [`SocketError::Answer`] if the process has no allocator with this number.
pub fn flight(socket: &Path, allocator: u32) -> Result<Vec<u8>, SocketError> {
    match ask(socket, Question::Flight { allocator })? {
        (Answer::Flight { .. }, bytes) => Ok(bytes),
        (other, _) => Err(unexpected(socket, other)),
    }
}

fn unexpected(socket: &Path, answer: Answer) -> SocketError {
    let said = match answer {
        Answer::Refused(why) => why,
        _ => "what was not asked for".to_owned(),
    };
    SocketError::Answer { path: socket.to_owned(), said }
}

fn ask(socket: &Path, question: Question) -> Result<(Answer, Vec<u8>), SocketError> {
    let failed = |error| SocketError::Ask { path: socket.to_owned(), error };
    let (line, rest) = exchange(socket, question).map_err(failed)?;
    let read = serde_json::from_slice(&line);
    let answer = read.map_err(|error| SocketError::Answer { path: socket.to_owned(), said: error.to_string() })?;
    Ok((answer, rest))
}

/// Returns the line of the answer and the bytes after it.
fn exchange(socket: &Path, question: Question) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let stream = connect(socket, PATIENCE)?;
    let mut talk = Bounded::new(&stream, PATIENCE);
    let mut asked = serde_json::to_vec(&Asked { ask: question })?;
    asked.push(b'\n');
    talk.write_all(&asked)?;
    let (line, mut rest) = talk.line(MAX_ANSWER)?;
    if let Ok(Answer::Flight { bytes }) = serde_json::from_slice(&line) {
        let left = bytes.checked_sub(rest.len() as u64).filter(|_| bytes <= MAX_DUMP);
        let left = left.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("a dump of {bytes} bytes")))?;
        talk.take(left).read_to_end(&mut rest)?;
        if rest.len() as u64 != bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((line, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_its_socket_in_the_folder_of_its_user() {
        let path = socket(4711);
        assert_eq!(path.parent(), Some(seamalloc_socket::folder().as_path()));
        assert!(path.to_string_lossy().ends_with("4711.sock"), "{}", path.display());
    }
}
