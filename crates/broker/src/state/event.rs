//! The events that a broker reports.

use serde::Serialize;
use std::fmt;

/// An event of the broker. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Event {
    /// A process has joined.
    Joined {
        /// The member's number.
        member: u64,
        /// The member's process number. 0 if unknown, because the process is outside of the broker's namespace.
        pid: i32,
        /// The member's device.
        device: String,
        /// The bytes that the member keeps in any case.
        guarantee: u64,
    },
    /// A process has left.
    Left {
        /// The member's number.
        member: u64,
        /// The member's process number.
        pid: i32,
        /// The bytes that the member held at its last answer.
        held: u64,
    },
    /// A demand was served.
    Lent {
        /// The device.
        device: String,
        /// The number of the process that asked.
        pid: i32,
        /// The bytes that the process lacked.
        missing: u64,
        /// The bytes that other members gave.
        given: u64,
        /// The members that were asked to give.
        by: Vec<GivenBy>,
        /// The time from the question to the answer, in microseconds.
        us: u64,
    },
}

/// The bytes that one process gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GivenBy {
    /// The member's number.
    pub member: u64,
    /// The bytes that the member was asked to give.
    pub asked_for: u64,
    /// The bytes that the member gave.
    pub given: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use seamalloc::units::format_bytes as bytes;
        let process = |pid: &i32| match pid {
            0 => "a process of another namespace".to_owned(),
            pid => format!("process {pid}"),
        };
        match self {
            Self::Joined { member, pid, device, guarantee } => {
                let keeps = bytes(*guarantee);
                write!(f, "{} joined as {member} on {device}: guarantee {keeps}", process(pid))
            }
            Self::Left { member, pid, held } => {
                write!(f, "{} ({member}) left; it held {}", process(pid), bytes(*held))
            }
            Self::Lent { device, pid, missing, given, by, us } => {
                let (missing, given) = (bytes(*missing), bytes(*given));
                let ms = *us as f64 / 1e3;
                let (process, others) = (process(pid), by.len());
                write!(f, "{process} lacked {missing} on {device}; {others} others gave {given} in {ms:.1} ms")
            }
        }
    }
}
