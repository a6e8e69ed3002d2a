//! What a broker tells whoever runs it.

use serde::Serialize;
use std::fmt;

/// Something that happened. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Event {
    /// A process takes part.
    Joined {
        /// Its number.
        member: u64,
        /// Its process, 0 if that is unknown: it is outside of the broker's namespace.
        pid: i32,
        /// Its device.
        device: String,
        /// What it keeps.
        guarantee: u64,
        /// Its share of the rest.
        weight: u32,
    },
    /// It does no more.
    Left {
        /// Its number.
        member: u64,
        /// Its process.
        pid: i32,
        /// What it held when it last said.
        held: u64,
    },
    /// A process was short.
    Lent {
        /// The device.
        device: String,
        /// The process.
        pid: i32,
        /// What it lacked.
        missing: u64,
        /// What others gave.
        given: u64,
        /// Those that were asked.
        by: Vec<GivenBy>,
        /// From its question to the answer, in microseconds.
        us: u64,
    },
}

/// What one process gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GivenBy {
    /// Its number.
    pub member: u64,
    /// What it was asked for.
    pub asked_for: u64,
    /// What it gave.
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
            Self::Joined { member, pid, device, guarantee, weight } => {
                let keeps = bytes(*guarantee);
                write!(f, "{} joined as {member} on {device}: guarantee {keeps}, weight {weight}", process(pid))
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
