//! The list of a broker's members.

use crate::protocol::{First, MAX_LIST, MemberStatus, Said, VERSION, line};
use seamalloc_socket::{Bounded, SocketError, connect};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a broker for its members.
///
/// # Errors
/// [`SocketError::Ask`] if no broker answers within 5 s, or if the answer cannot be read. [`SocketError::Answer`] if
/// the broker refuses, or answers another question.
pub fn members(socket: &Path) -> Result<Vec<MemberStatus>, SocketError> {
    let path = socket.to_owned();
    match exchange(socket, &First::Status { version: VERSION }, PATIENCE, MAX_LIST) {
        Ok(Said::Members(members)) => Ok(members),
        Ok(Said::Refused(said)) => Err(SocketError::Answer { path, said }),
        Ok(_) => Err(SocketError::Answer { path, said: "what was not asked for".to_owned() }),
        Err(error) => Err(SocketError::Ask { path, error }),
    }
}

/// Asks one question, over a connection of its own.
pub(crate) fn exchange(socket: &Path, first: &First, patience: Duration, most: usize) -> io::Result<Said> {
    let stream = connect(socket, patience)?;
    let mut talk = Bounded::new(&stream, patience);
    talk.write_all(&line(first)?)?;
    let (said, _) = talk.line(most)?;
    Ok(serde_json::from_slice(&said)?)
}
