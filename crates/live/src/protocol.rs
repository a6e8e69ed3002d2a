//! The protocol over the socket: a line of JSON each way, then the bytes of a file if one was requested.
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
/// The longest line of an answer: a thousand allocators take less.
pub(crate) const MAX_ANSWER: usize = 4 << 20;
/// The most bytes of a dump: enough for a full recorder of the largest sensible size.
pub(crate) const MAX_DUMP: u64 = 1 << 30;

/// A question.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Question {
    Samples,
    Flight { allocator: u32 },
}

/// The line of a client.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) ask: Question,
}

/// The line of an answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Process(Process),
    Flight { bytes: u64 },
    Refused(String),
}
