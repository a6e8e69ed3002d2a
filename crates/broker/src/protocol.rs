//! The protocol over the socket: lines of JSON. The first line of each connection has the version.
//!
//! Owns: the messages, and their bounds. `docs/broker.md` shows an exchange.
//!
//! A *member* stays connected and answers questions. A process that is short of memory, or wants a list, connects for
//! one question.
//!
//! ```text
//! member   {"join":{"version":1,"device":"0000:3b:00","guarantee":0,"command":"…"}}             broker   {"joined":{"version":1,"member":7}}
//! broker   {"spare":{"number":5}}                              member   {"has":{"number":5,"given":0,"held":…,"live":…,"free":…}}
//! broker   {"give":{"number":6,"bytes":N,"within_ms":1000}}    member   {"has":{"number":6,"given":N,"held":…,"live":…,"free":…}}
//!
//! short    {"ask":{"version":1,"device":"…","member":7,"missing":N,"held":M}}    broker   {"lent":{"processes":1,"given":N,…}}
//! anyone   {"status":{"version":1}}                                               broker   {"members":[…]}
//!                                                                                  broker   {"refused":"why"}
//! ```

use serde::{Deserialize, Serialize};
use std::io;

/// The protocol's version. Both ends refuse any other version.
pub const VERSION: u32 = 1;
/// The longest line, in bytes, except for a list of members.
pub const MAX_LINE: usize = 4 << 10;
/// The longest list of members, in bytes. A thousand members take less.
pub(crate) const MAX_LIST: usize = 1 << 20;
/// The longest name of a device, in bytes.
pub(crate) const MAX_DEVICE: usize = 512;
/// The longest command line in a message, in bytes.
pub(crate) const MAX_COMMAND: usize = 200;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum First {
    Join(Join),
    Ask(Ask),
    Status { version: u32 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) version: u32,
    /// [`seamalloc::driver::DeviceProperties::identity`].
    pub(crate) device: String,
    /// The guarantee in bytes.
    pub(crate) guarantee: u64,
    #[serde(default)]
    pub(crate) command: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) version: u32,
    pub(crate) device: String,
    /// The asker's own number, if it is a member. The broker does not ask the asker to give.
    pub(crate) member: Option<u64>,
    /// The bytes that the device lacks, and the bytes that the asker holds.
    pub(crate) missing: u64,
    pub(crate) held: u64,
}

/// A message of the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Joined { version: u32, member: u64 },
    Spare { number: u64 },
    Give { number: u64, bytes: u64, within_ms: u64 },
    Lent(LentSaid),
    Members(Vec<MemberStatus>),
    Refused(String),
}

/// The answer to [`Ask`]. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LentSaid {
    /// The number of other processes on the device.
    pub(crate) processes: u32,
    /// The number of these processes that did not answer in time.
    pub(crate) silent: u32,
    pub(crate) given: u64,
    pub(crate) held: u64,
    pub(crate) live: u64,
    /// The free bytes that processes keep for their guarantees.
    pub(crate) guaranteed: u64,
    /// Whether asking again may help although no process has anything to give. Either a process has just ended, and the
    /// driver may still be reclaiming its memory; or the broker has just started, and some members have not connected
    /// yet.
    pub(crate) departed: bool,
}

/// An answer of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Has(Has),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Has {
    /// The number of the question.
    pub(crate) number: u64,
    /// The bytes released for the question.
    pub(crate) given: u64,
    pub(crate) held: u64,
    pub(crate) live: u64,
    pub(crate) free: u64,
}

/// The broker's record of a member. Sizes are bytes. The figures of memory are those of the member's last answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The member's number at the broker.
    pub member: u64,
    /// The member's process number. 0 if unknown, because the process is outside of the broker's namespace.
    pub pid: i32,
    /// The member's command line, cut to a limit.
    pub command: String,
    /// The device.
    pub device: String,
    /// The bytes that the member keeps in any case.
    pub guarantee: u64,
    /// The bytes that the member holds.
    pub held: u64,
    /// The bytes in use among those held.
    pub live: u64,
    /// The free bytes among those held.
    pub free: u64,
    /// The bytes that the member was asked for so far.
    pub asked_for: u64,
    /// The bytes that the member gave so far.
    pub given: u64,
    /// How often the member did not answer in time.
    pub silent: u64,
    /// How often the member asked for memory itself.
    pub was_short: u64,
    /// The bytes that other members gave for this one.
    pub received: u64,
}

/// Returns a message as a line.
pub(crate) fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_the_page_shows_them() {
        let join = Join { version: 1, device: "0000:3b:00".into(), guarantee: 0, command: "x".into() };
        let texts = [
            (line(&First::Join(join)), r#"{"join":{"version":1,"device":"0000:3b:00","guarantee":0,"command":"x"}}"#),
            (
                line(&Said::Give { number: 6, bytes: 5, within_ms: 4 }),
                r#"{"give":{"number":6,"bytes":5,"within_ms":4}}"#,
            ),
            (line(&First::Status { version: 1 }), r#"{"status":{"version":1}}"#),
            (
                line(&Answer::Has(Has { number: 6, given: 5, held: 4, live: 3, free: 1 })),
                r#"{"has":{"number":6,"given":5,"held":4,"live":3,"free":1}}"#,
            ),
        ];
        for (written, expected) in texts {
            assert_eq!(String::from_utf8(written.unwrap()).unwrap().trim_end(), expected);
        }
    }
}
