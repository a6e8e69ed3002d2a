//! What is said over the socket: lines of JSON, a version in the first of each connection.
//!
//! Owns: the words, and their bounds. `docs/broker.md` shows a talk.
//!
//! A *member* stays connected and is asked. Whoever is short, or wants to look, connects for one question.
//!
//! ```text
//! member   {"join":{"version":1,"device":"0000:3b:00","guarantee":0,"weight":1,"command":"…"}}   broker   {"joined":{"version":1,"member":7}}
//! broker   {"spare":{"number":5}}                              member   {"has":{"number":5,"given":0,"held":…,"live":…,"free":…}}
//! broker   {"give":{"number":6,"bytes":N,"within_ms":1000}}    member   {"has":{"number":6,"given":N,"held":…,"live":…,"free":…}}
//!
//! short    {"ask":{"version":1,"device":"…","member":7,"missing":N,"held":M}}    broker   {"lent":{"processes":1,"given":N,…}}
//! anyone   {"status":{"version":1}}                                               broker   {"members":[…]}
//!                                                                                  broker   {"refused":"why"}
//! ```

use serde::{Deserialize, Serialize};
use std::io;

/// The version that is spoken. Both ends refuse any other.
pub const VERSION: u32 = 1;
/// The longest line, in bytes, but for a list of members.
pub const MAX_LINE: usize = 4 << 10;
/// The longest list of members, in bytes: a thousand take less.
pub(crate) const MAX_LIST: usize = 1 << 20;
/// The longest name of a device, in bytes.
pub(crate) const MAX_DEVICE: usize = 512;
/// The longest command line that is told, in bytes.
pub(crate) const MAX_COMMAND: usize = 200;

/// What a connection begins with.
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
    /// Bytes.
    pub(crate) guarantee: u64,
    pub(crate) weight: u32,
    #[serde(default)]
    pub(crate) command: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) version: u32,
    pub(crate) device: String,
    /// The asker's own number, if it is a member: it is not asked itself.
    pub(crate) member: Option<u64>,
    /// Bytes that the device lacks, and bytes that the asker holds.
    pub(crate) missing: u64,
    pub(crate) held: u64,
}

/// What the broker says.
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
    /// The other processes on the device.
    pub(crate) processes: u32,
    /// Those of them that did not answer in time.
    pub(crate) silent: u32,
    pub(crate) given: u64,
    pub(crate) held: u64,
    pub(crate) live: u64,
    /// Free, and below guarantees.
    pub(crate) guaranteed: u64,
    /// Whether asking again may help although nobody has anything to give: one has ended a moment ago, and the driver may still be taking
    /// its memory back; or the broker has just begun, and others are yet to come.
    pub(crate) departed: bool,
}

/// What a member says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Has(Has),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Has {
    /// Of the question.
    pub(crate) number: u64,
    /// What went for it, in bytes.
    pub(crate) given: u64,
    pub(crate) held: u64,
    pub(crate) live: u64,
    pub(crate) free: u64,
}

/// What the broker knows of a process that takes part. Sizes are bytes; those of memory are as of its last answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its number at the broker.
    pub member: u64,
    /// Its process, 0 if that is unknown: it is outside of the broker's namespace.
    pub pid: i32,
    /// Its command line, cut.
    pub command: String,
    /// The device.
    pub device: String,
    /// What it keeps.
    pub guarantee: u64,
    /// Its share of the rest.
    pub weight: u32,
    /// What it holds.
    pub held: u64,
    /// The part of it that is in use.
    pub live: u64,
    /// The part of it that is free.
    pub free: u64,
    /// How much it was asked for so far.
    pub asked_for: u64,
    /// How much it gave.
    pub given: u64,
    /// How often it did not answer in time.
    pub silent: u64,
    /// How often it was short itself.
    pub was_short: u64,
    /// What others gave for it.
    pub received: u64,
}

/// A message as a line.
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
        let join = Join { version: 1, device: "0000:3b:00".into(), guarantee: 0, weight: 1, command: "x".into() };
        let texts = [
            (
                line(&First::Join(join)),
                r#"{"join":{"version":1,"device":"0000:3b:00","guarantee":0,"weight":1,"command":"x"}}"#,
            ),
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
