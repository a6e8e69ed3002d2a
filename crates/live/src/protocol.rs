//! The protocol over the socket: a line of JSON in each direction, then the bytes of a file if the client requested
//! one.
//!
//! Owns: the messages, and their bounds.
//!
//! ```text
//! client   {"ask":"samples"}                     server   {"process":{"pid":7,"allocators":[...]}}
//! client   {"ask":{"flight":{"allocator":0}}}    server   {"flight":{"bytes":N}} and N bytes, a pickle
//!                                                server   {"refused":"why"}
//! ```
//! Each connection has one question.

use crate::sample::Process;
use serde::{Deserialize, Serialize};

/// The longest question, in bytes.
pub(crate) const MAX_QUESTION: usize = 4 << 10;
/// The longest line of an answer, in bytes. A thousand allocators take less.
pub(crate) const MAX_ANSWER: usize = 4 << 20;
/// The most bytes of a flight recorder's dump. They are enough for a full recorder of the largest sensible size.
pub(crate) const MAX_DUMP: u64 = 1 << 30;

/// A question.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    Samples,
    Flight { allocator: u32 },
}

/// The message of a client.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) ask: Question,
}

/// The message of an answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Process(Process),
    Flight { bytes: u64 },
    Refused(String),
}
