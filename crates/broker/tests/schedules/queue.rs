//! Who asks while others keep asking that come first.

use seamalloc_broker::state::Room;
use serde_json::{Value, json};
use std::time::Instant;

struct Queue {
    room: Room,
    now: Instant,
}

impl Queue {
    fn say(&mut self, pid: i32, said: &Value) -> u64 {
        let id = self.room.enter(pid, self.now);
        self.room.hear(id, format!("{said}\n").as_bytes(), self.now);
        id
    }

    fn join(&mut self, pid: i32, guarantee: u64) -> u64 {
        let join = json!({ "version": 1, "device": "gpu", "guarantee": guarantee });
        let id = self.say(pid, &json!({ "join": join }));
        self.hear(id);
        id
    }

    fn ask(&mut self, pid: i32, member: u64) -> u64 {
        let ask = json!({ "version": 1, "device": "gpu", "member": member, "missing": 5, "held": 0 });
        self.say(pid, &json!({ "ask": ask }))
    }

    /// Returns what was said over a connection.
    fn hear(&mut self, id: u64) -> Vec<Value> {
        self.room.advance(self.now);
        let said = self.room.outbox(id).map(std::mem::take).unwrap_or_default();
        self.room.advance(self.now);
        String::from_utf8(said).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Two that hold less than their guarantees, which others have in use, ask again as soon as they have an answer.
#[test]
fn who_has_no_guarantee_gets_its_turn_although_others_ask_without_end() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let holder = queue.join(9, 0);
    let guaranteed = [queue.join(1, 8), queue.join(2, 8)];
    let plain = queue.join(3, 0);
    let mut asks = [queue.ask(1, guaranteed[0]), queue.ask(2, guaranteed[1])];
    queue.room.advance(now);
    let last = queue.ask(3, plain);
    let members = [holder, guaranteed[0], guaranteed[1], plain];
    for round in 0..40 {
        for member in members {
            for said in queue.hear(member) {
                let number = said["spare"]["number"].as_u64().unwrap();
                let has = json!({ "number": number, "given": 0, "held": 9, "live": 9, "free": 0 });
                queue.room.hear(member, format!("{}\n", json!({ "has": has })).as_bytes(), now);
            }
        }
        if !queue.hear(last).is_empty() {
            assert!(round > 0, "others came first");
            return;
        }
        for at in 0..2 {
            if !queue.hear(asks[at]).is_empty() {
                asks[at] = queue.ask(at as i32 + 1, guaranteed[at]);
            }
        }
    }
    panic!("it waits for ever");
}

/// A number of the broker before may be another's here.
#[test]
fn a_number_of_the_broker_before_hides_nobody() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let first = queue.join(1, 0);
    // Another process has this number from the broker before, and has not joined yet.
    let ask = queue.ask(2, first);
    assert!(queue.hear(ask).is_empty(), "nobody was asked");
    let question = queue.hear(first);
    let number = question[0]["spare"]["number"].as_u64().unwrap();
    let has = json!({ "number": number, "given": 0, "held": 9, "live": 9, "free": 0 });
    queue.room.hear(first, format!("{}\n", json!({ "has": has })).as_bytes(), now);
    assert_eq!(queue.hear(ask)[0]["lent"]["processes"], 1);
    // Its own number hides itself.
    let own = queue.ask(1, first);
    assert_eq!(queue.hear(own)[0]["lent"]["processes"], 0);
    assert_eq!(queue.room.members()[0].was_short, 1);
}

/// Memory that one process did not give is asked of the others, and no more than that.
#[test]
fn what_was_given_is_not_asked_for_again() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let [one, other] = [1, 2].map(|pid| queue.join(pid, 0));
    queue.ask(3, 0);
    let mut asked_for = Vec::new();
    for _ in 0..3 {
        for (member, most) in [(one, 1), (other, 10)] {
            for said in queue.hear(member) {
                let (number, bytes) = match said["give"]["bytes"].as_u64() {
                    Some(bytes) => (&said["give"]["number"], bytes),
                    None => (&said["spare"]["number"], 0),
                };
                asked_for.push(bytes);
                let has = json!({ "number": number, "given": bytes.min(most), "held": 10, "live": 0, "free": 10 });
                queue.room.hear(member, format!("{}\n", json!({ "has": has })).as_bytes(), now);
            }
        }
    }
    // Of 5 one was asked for a part and gave 1.
    assert_eq!((&asked_for[..2], asked_for[2] + asked_for[3]), (&[0, 0][..], 5), "{asked_for:?}");
    assert_eq!(asked_for[4..], [5 - 1 - asked_for[3]], "{asked_for:?}");
}

impl Queue {
    /// Answers all questions to a member. It says each time that it has 10, free, and gave so much of what it was asked for. Returns what it
    /// was asked to give.
    fn answer(&mut self, member: u64, gives: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut asked_for = Vec::new();
        for said in self.hear(member) {
            let (number, given) = match said["give"]["bytes"].as_u64() {
                Some(bytes) => {
                    asked_for.push(bytes);
                    (&said["give"]["number"], gives(bytes))
                }
                None => (&said["spare"]["number"], 0),
            };
            let has = json!({ "number": number, "given": given, "held": 10, "live": 0, "free": 10 });
            self.room.hear(member, format!("{}\n", json!({ "has": has })).as_bytes(), self.now);
        }
        asked_for
    }
}

/// Whoever says that it gave more than it was asked for is believed to a piece beyond that: 1 GiB, the largest chunk.
#[test]
fn what_was_given_is_bounded_by_what_was_asked_for() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let liar = queue.join(1, 0);
    let ask = queue.ask(2, 0);
    assert!(queue.answer(liar, |_| 0).is_empty());
    assert_eq!(queue.answer(liar, |_| u64::MAX), [5]);
    assert_eq!(queue.hear(ask)[0]["lent"]["given"], 5 + (1 << 30));
}

/// Whoever gives less than its share has no more to give, whatever it says.
#[test]
fn who_gave_less_than_its_share_is_not_asked_again() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let [liar, other] = [1, 2].map(|pid| queue.join(pid, 0));
    let ask = queue.ask(3, 0);
    let (mut of_liar, mut of_other) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        of_liar.extend(queue.answer(liar, |_| 0));
        of_other.extend(queue.answer(other, |bytes| bytes));
    }
    assert_eq!((of_liar.len(), of_other.len()), (1, 2), "{of_liar:?} {of_other:?}");
    assert_eq!(of_other.iter().sum::<u64>(), 5, "the other gives what the first did not");
    assert_eq!(queue.hear(ask)[0]["lent"]["given"], 5);
}

/// Processes of other namespaces have no number here.
#[test]
fn who_has_no_number_is_taken_at_its_word_for_a_member_of_its_device() {
    let now = Instant::now();
    let mut queue = Queue { room: Room::new(now), now };
    let [known, unknown] = [1, 0].map(|pid| queue.join(pid, 0));
    // The process names itself: only the other one is asked.
    let ask = queue.ask(0, unknown);
    queue.answer(known, |_| 0);
    assert!(queue.hear(unknown).is_empty());
    queue.answer(known, |bytes| bytes);
    assert_eq!(queue.hear(ask)[0]["lent"]["processes"], 1);
    // It cannot be one whose number is known: both are asked.
    queue.ask(0, known);
    queue.room.advance(now);
    assert!(queue.room.outbox(known).is_some_and(|said| !said.is_empty()));
    assert!(queue.room.outbox(unknown).is_some_and(|said| !said.is_empty()));
}
