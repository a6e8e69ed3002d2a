//! The messages that a broker gets: by processes that take part, that ask, that look, that say anything, that read
//! nothing and that go.
//!
//! Owns: how bytes become lines and times, and what must hold of the answers. The broker is its state, without sockets; nobody is honest.

use seamalloc_broker::state::Room;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Operations of an input at most.
const MAX_OPERATIONS: usize = 400;
/// Connections of an input at most.
const MAX_CONNECTIONS: usize = 40;
/// Numbers that messages have.
const NUMBERS: [u64; 8] = [0, 1, 7, 100, 1 << 30, 3 << 30, 1 << 63, u64::MAX];
/// In bytes: no outbox is longer, however little its process reads.
const MAX_OUTBOX: usize = (1 << 20) + (4 << 10);
/// Each connection and each question has a few times at which it is over.
const DEADLINES: usize = 12;

/// Says it all, and then nothing until every time is over.
///
/// # Panics
/// A rule does not hold.
pub fn run(data: &[u8]) {
    let mut talk = Talk::new(data);
    for _ in 0..MAX_OPERATIONS {
        let Some(operation) = talk.byte() else { break };
        talk.operate(operation);
        talk.settle();
    }
    talk.end();
}

/// The messages that the broker has received and sent over a connection.
#[derive(Default)]
struct Connection {
    id: u64,
    guarantee: u64,
    /// Whether it reads nothing.
    is_deaf: bool,
    /// Numbers of questions, the oldest first.
    questions: Vec<u64>,
    /// Held and free, as it ever said.
    said: BTreeSet<(u64, u64)>,
    asks: bool,
    answers: u32,
}

struct Talk<'a> {
    bytes: std::slice::Iter<'a, u8>,
    room: Room,
    now: Instant,
    connections: Vec<Connection>,
    most_missing: u64,
    /// Of each question, what all together were asked to give for it.
    asked_for: BTreeMap<u64, u64>,
}

impl<'a> Talk<'a> {
    fn new(data: &'a [u8]) -> Self {
        let now = Instant::now();
        let bytes = data.iter();
        Self { bytes, room: Room::new(now), now, connections: Vec::new(), most_missing: 0, asked_for: BTreeMap::new() }
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes.next().copied()
    }

    /// The next byte, 0 at the end.
    fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        let byte = self.small();
        let number = NUMBERS[usize::from(byte) % NUMBERS.len()];
        number.saturating_add(u64::from(byte / 8))
    }

    fn chosen(&mut self) -> Option<usize> {
        let byte = usize::from(self.small());
        (!self.connections.is_empty()).then(|| byte % self.connections.len())
    }

    fn operate(&mut self, operation: u8) {
        if operation.is_multiple_of(10) || self.connections.is_empty() {
            if self.connections.len() < MAX_CONNECTIONS {
                let pid = i32::from(self.small() % 4);
                let id = self.room.enter(pid, self.now);
                self.connections.push(Connection { id, ..Connection::default() });
            }
            return;
        }
        let Some(at) = self.chosen() else { return };
        match operation % 10 {
            1 => {
                let length = usize::from(self.small());
                let text: Vec<u8> = self.bytes.by_ref().take(length).copied().collect();
                self.hear(at, &text);
            }
            2 | 3 => self.join(at),
            4 => self.ask(at),
            5 => self.say(at, &json!({ "status": { "version": 1 } })),
            6 | 7 => self.has(at),
            8 if self.small().is_multiple_of(2) => self.room.leave(self.connections[at].id, self.now),
            8 => self.connections[at].is_deaf ^= true,
            _ => {
                let exponent = self.small() % 14;
                self.now += Duration::from_millis(1 << exponent);
            }
        }
    }

    fn hear(&mut self, at: usize, bytes: &[u8]) {
        let id = self.connections[at].id;
        let stays = self.room.hear(id, bytes, self.now);
        assert_eq!(stays, self.room.is_open(id));
    }

    fn say(&mut self, at: usize, said: &Value) {
        self.hear(at, format!("{said}\n").as_bytes());
    }

    fn device(&mut self) -> &'static str {
        ["gpu", "gpu", "gpu", "other"][usize::from(self.small() % 4)]
    }

    fn join(&mut self, at: usize) {
        let (device, guarantee) = (self.device(), self.number());
        let was_member = self.room.is_member(self.connections[at].id);
        self.say(at, &json!({ "join": { "version": 1, "device": device, "guarantee": guarantee } }));
        if !was_member && self.room.is_member(self.connections[at].id) {
            self.connections[at].guarantee = guarantee;
        }
    }

    fn ask(&mut self, at: usize) {
        let (device, member, missing, held) = (self.device(), self.small(), self.number(), self.number());
        let ask = json!({ "version": 1, "device": device, "member": member, "missing": missing, "held": held });
        let connection = &mut self.connections[at];
        connection.asks |= self.room.is_open(connection.id) && !self.room.is_member(connection.id);
        self.most_missing = self.most_missing.max(missing);
        self.say(at, &json!({ "ask": ask }));
    }

    fn has(&mut self, at: usize) {
        let which = self.small();
        let connection = &mut self.connections[at];
        let oldest = (!connection.questions.is_empty()).then(|| connection.questions.remove(0));
        let number = if which.is_multiple_of(16) { u64::from(which) } else { oldest.unwrap_or(u64::from(which)) };
        let (given, held, live, free) = (self.number(), self.number(), self.number(), self.number());
        self.connections[at].said.insert((held, free.min(held)));
        let has = json!({ "number": number, "given": given, "held": held, "live": live, "free": free });
        self.say(at, &json!({ "has": has }));
    }

    /// Lets the broker do what is due, reads what it says, and looks at the rules.
    fn settle(&mut self) {
        loop {
            self.room.advance(self.now);
            let mut is_quiet = true;
            for at in 0..self.connections.len() {
                let connection = &self.connections[at];
                let Some(outbox) = self.room.outbox(connection.id) else { continue };
                assert!(outbox.len() <= MAX_OUTBOX, "{} bytes for one that does not read", outbox.len());
                if connection.is_deaf || outbox.is_empty() {
                    continue;
                }
                is_quiet = false;
                let said = std::mem::take(outbox);
                said.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.listen(at, line));
            }
            if is_quiet {
                break;
            }
        }
        assert!(self.room.next_deadline().is_none_or(|next| next > self.now), "a time that is over is not over");
        assert!(self.room.members().len() <= self.room.connections());
        for event in self.room.told() {
            assert!(!event.to_string().is_empty());
        }
    }

    fn listen(&mut self, at: usize, line: &[u8]) {
        let said: Value = serde_json::from_slice(line).expect("a whole line of JSON");
        let connection = &mut self.connections[at];
        if let Some(number) = said["spare"]["number"].as_u64() {
            connection.questions.push(number);
        } else if let Some(bytes) = said["give"]["bytes"].as_u64() {
            let number = said["give"]["number"].as_u64().expect("a number");
            connection.questions.push(number);
            let can = |(held, free): &(u64, u64)| bytes <= *free && held - bytes >= connection.guarantee;
            assert!(bytes > 0 && connection.said.iter().any(can), "{bytes} bytes that it never said it could give");
            let all = self.asked_for.entry(number).or_default();
            *all = all.checked_add(bytes).expect("no more than is missing");
            assert!(*all <= self.most_missing, "{all} are asked for of {} that were missing", self.most_missing);
        } else if said["lent"].is_object() {
            assert!(connection.asks, "it did not ask");
            connection.answers += 1;
        } else {
            let keys = ["joined", "members", "refused"];
            assert!(keys.iter().any(|key| !said[*key].is_null()), "{said}");
        }
        assert!(self.connections[at].answers <= 1, "a question was answered twice");
    }

    /// Nobody says anything more. Whoever waits has an answer in the end, or is closed.
    fn end(mut self) {
        self.settle();
        let most = DEADLINES * (self.connections.len() + 1);
        for _ in 0..most {
            let Some(next) = self.room.next_deadline() else { break };
            self.now = next;
            self.settle();
        }
        assert_eq!(self.room.next_deadline(), None, "somebody is waited for after {most} times");
        for connection in &self.connections {
            let is_member = self.room.is_member(connection.id);
            assert!(is_member || !self.room.is_open(connection.id), "one that is no member stays");
        }
        assert_eq!(self.room.members().len(), self.room.connections());
    }
}
