//! The words of each talk with the broker, and their times by a clock of the test's own.

use seamalloc_broker::state::{Event, GivenBy, Room};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The broker counts as new before this, and may not know all that take part.
const SETTLED: u64 = 1500;

struct Talk {
    room: Room,
    begun: Instant,
    now: Instant,
}

impl Talk {
    /// A broker that has just begun.
    fn new() -> Self {
        let now = Instant::now();
        Self { room: Room::new(now), begun: now, now }
    }

    /// A broker that has been there for long.
    fn settled() -> Self {
        let mut talk = Self::new();
        talk.pass(SETTLED);
        talk
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    fn connect(&mut self, pid: i32, said: &Value) -> u64 {
        let id = self.room.enter(pid, self.now);
        self.tell(id, said);
        id
    }

    fn tell(&mut self, id: u64, said: &Value) -> bool {
        self.room.hear(id, format!("{said}\n").as_bytes(), self.now)
    }

    fn join_on(&mut self, pid: i32, device: &str, guarantee: u64) -> u64 {
        let join = json!({ "version": 1, "device": device, "guarantee": guarantee, "command": "job" });
        let id = self.connect(pid, &json!({ "join": join }));
        assert_eq!(self.hear(id), [json!({ "joined": { "version": 1, "member": id } })]);
        id
    }

    fn join(&mut self, pid: i32) -> u64 {
        self.join_on(pid, "gpu", 0)
    }

    fn ask(&mut self, pid: i32, member: Option<u64>, missing: u64) -> u64 {
        let ask = json!({ "version": 1, "device": "gpu", "member": member, "missing": missing, "held": 2 });
        self.connect(pid, &json!({ "ask": ask }))
    }

    fn status(&mut self) -> u64 {
        self.connect(99, &json!({ "status": { "version": 1 } }))
    }

    /// Returns what was said over a connection.
    fn hear(&mut self, id: u64) -> Vec<Value> {
        self.room.advance(self.now);
        let said = self.room.outbox(id).map(std::mem::take).unwrap_or_default();
        self.room.advance(self.now);
        String::from_utf8(said).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the number of the one question that a member is asked for what it has.
    fn asked(&mut self, member: u64) -> u64 {
        let said = self.hear(member);
        let [question] = &said[..] else { panic!("{said:?}") };
        question["spare"]["number"].as_u64().unwrap_or_else(|| panic!("{said:?}"))
    }

    /// Returns the number of the one question by which a member is asked to give, and the bytes.
    fn give(&mut self, member: u64) -> (u64, u64) {
        let said = self.hear(member);
        let [question] = &said[..] else { panic!("{said:?}") };
        let give = &question["give"];
        assert_eq!(give["within_ms"], 1000, "{said:?}");
        (give["number"].as_u64().unwrap(), give["bytes"].as_u64().unwrap())
    }

    fn has(&mut self, member: u64, number: u64, given: u64, live: u64, free: u64) {
        let has = json!({ "number": number, "given": given, "held": live + free, "live": live, "free": free });
        assert!(self.tell(member, &json!({ "has": has })));
    }

    /// Returns the one answer that a question gets, after which its connection is closed.
    fn answer(&mut self, asker: u64) -> Value {
        let mut said = self.hear(asker);
        assert_eq!((said.len(), self.room.is_open(asker)), (1, false), "{said:?}");
        said.remove(0)
    }

    /// Returns after how many milliseconds something is over.
    fn deadline_ms(&self) -> Option<u128> {
        self.room.next_deadline().map(|at| at.duration_since(self.now).as_millis())
    }
}

#[test]
fn a_request_is_served_by_those_that_hold_most_and_all_is_counted() {
    let mut talk = Talk::settled();
    let [one, two] = [(1, 4), (2, 8)].map(|(pid, guarantee)| talk.join_on(pid, "gpu", guarantee));
    let elsewhere = talk.join_on(3, "another", 0);
    let joined = |member, pid, device: &str, guarantee| Event::Joined { member, pid, device: device.into(), guarantee };
    let events = [joined(one, 1, "gpu", 4), joined(two, 2, "gpu", 8), joined(elsewhere, 3, "another", 0)];
    assert_eq!((talk.room.told(), talk.room.told()), (events.to_vec(), Vec::new()));
    let asker = talk.ask(4, None, 10);
    assert!(talk.hear(asker).is_empty() && talk.hear(elsewhere).is_empty());
    let number = talk.asked(one);
    assert_eq!((talk.asked(two), talk.deadline_ms()), (number, Some(100)));
    talk.pass(7);
    // Of 8 that are free 2 stay for the guarantee.
    talk.has(one, number, 0, 2, 8);
    assert!(talk.hear(two).is_empty(), "not all have answered");
    talk.has(two, number, 0, 5, 15);
    let (gives, bytes) = talk.give(two);
    assert_eq!((bytes, talk.deadline_ms()), (8, Some(2000)), "it keeps 4 beyond its guarantee, as the other");
    let (of_one, bytes) = talk.give(one);
    assert_eq!((of_one, bytes), (gives, 2), "it keeps 4 beyond its guarantee");
    assert!(gives > number, "each question has its own number");
    talk.pass(13);
    talk.has(two, gives, 8, 5, 7);
    talk.has(one, gives, 2, 2, 6);
    let lent = json!({
        "processes": 2, "silent": 0, "given": 10, "held": 20, "live": 7, "guaranteed": 5, "departed": false,
    });
    assert_eq!(talk.answer(asker), json!({ "lent": lent }));
    let by = [(one, 2), (two, 8)].map(|(member, given)| GivenBy { member, asked_for: given, given });
    let event = Event::Lent { device: "gpu".into(), pid: 4, missing: 10, given: 10, by: by.to_vec(), us: 20_000 };
    assert_eq!(talk.room.told(), [event]);
    let known: Vec<_> =
        talk.room.members().iter().map(|of| (of.pid, of.held, of.live, of.free, of.asked_for, of.given)).collect();
    assert_eq!(known, [(1, 8, 2, 6, 2, 2), (2, 12, 5, 7, 8, 8), (3, 0, 0, 0, 0, 0)]);
    assert_eq!((talk.deadline_ms(), talk.room.connections()), (None, 3));
    talk.room.leave(two, talk.now);
    assert_eq!(talk.room.told(), [Event::Left { member: two, pid: 2, held: 12 }]);
    assert!(!talk.room.is_open(two) && !talk.room.is_member(two) && talk.room.is_member(one));
}

/// A member that is short is counted by what others gave for it, and is not asked itself.
#[test]
fn a_member_that_is_short_is_known_as_such() {
    let mut talk = Talk::settled();
    let [short, other] = [1, 2].map(|pid| talk.join(pid));
    for (turn, gives) in [(1, 5), (2, 0)] {
        let asker = talk.ask(1, Some(short), 5);
        assert!(talk.hear(short).is_empty());
        let number = talk.asked(other);
        talk.has(other, number, 0, 1, gives);
        if gives > 0 {
            let (number, bytes) = talk.give(other);
            assert_eq!(bytes, 5);
            talk.has(other, number, 5, 1, 0);
        }
        assert_eq!(talk.answer(asker)["lent"]["given"], gives);
        let known = &talk.room.members()[0];
        assert_eq!((known.was_short, known.received, known.member, known.pid), (turn, 5, short, 1));
        assert_eq!((known.device.as_str(), known.command.as_str(), known.guarantee), ("gpu", "job", 0));
    }
    assert_eq!(talk.room.told().len(), 3, "two have joined, and the second time nobody gave");
}

#[test]
fn each_has_its_time() {
    let mut talk = Talk::settled();
    // A second for the first line.
    let silent = talk.room.enter(1, talk.now);
    assert_eq!(talk.deadline_ms(), Some(1000));
    talk.pass(999);
    talk.room.advance(talk.now);
    assert!(talk.room.is_open(silent));
    talk.pass(1);
    talk.room.advance(talk.now);
    assert!(!talk.room.is_open(silent));
    // Members stay.
    let member = talk.join(2);
    assert_eq!(talk.deadline_ms(), None);
    // A look takes 100 ms, though the member says nothing.
    let look = talk.status();
    assert!(talk.hear(look).is_empty());
    assert_eq!(talk.deadline_ms(), Some(100));
    talk.pass(99);
    assert!(talk.hear(look).is_empty());
    talk.pass(1);
    assert_eq!(talk.answer(look)["members"][0]["member"], member);
    // Five seconds to read an answer.
    let slow = talk.connect(3, &json!({ "status": { "version": 2 } }));
    assert_eq!(talk.deadline_ms(), Some(5000));
    talk.pass(4999);
    talk.room.advance(talk.now);
    assert!(talk.room.is_open(slow));
    talk.pass(1);
    talk.room.advance(talk.now);
    assert_eq!((talk.room.is_open(slow), talk.room.connections()), (false, 1));
}

#[test]
fn who_does_not_answer_is_waited_for_once() {
    let mut talk = Talk::settled();
    let [silent, other] = [1, 2].map(|pid| talk.join(pid));
    let asker = talk.ask(3, None, 5);
    let late = talk.asked(silent);
    let number = talk.asked(other);
    talk.has(other, number, 0, 3, 0);
    talk.pass(99);
    assert!(talk.hear(asker).is_empty());
    talk.pass(1);
    let lent = |processes: u32, silent: u32, live: u32| {
        json!({ "lent": {
            "processes": processes, "silent": silent, "given": 0, "held": live, "live": live, "guaranteed": 0, "departed": false,
        } })
    };
    assert_eq!(talk.answer(asker), lent(2, 1, 3));
    assert_eq!(talk.room.members().iter().map(|of| of.silent).collect::<Vec<_>>(), [1, 0]);
    // It is not asked again, and counts as silent, until it has answered.
    let asker = talk.ask(3, None, 5);
    assert!(talk.hear(silent).is_empty());
    let number = talk.asked(other);
    talk.has(other, number, 0, 3, 0);
    assert_eq!(talk.answer(asker), lent(2, 1, 3));
    assert_eq!(talk.room.members()[0].silent, 1);
    talk.has(silent, late + 1000, 0, 9, 9);
    assert_eq!(talk.room.members()[0].held, 0, "what answers no question is not counted");
    talk.has(silent, late, 0, 4, 0);
    assert_eq!(talk.room.members()[0].held, 4);
    let asker = talk.ask(3, None, 5);
    for (member, live) in [(silent, 4), (other, 3)] {
        let number = talk.asked(member);
        talk.has(member, number, 0, live, 0);
    }
    assert_eq!(talk.answer(asker), lent(2, 0, 7));
}

/// Who is late with what it was asked to give: the answer does not wait, and what it gives later counts for it alone.
#[test]
fn who_gives_too_late_is_not_waited_for() {
    let mut talk = Talk::settled();
    let slow = talk.join(1);
    let asker = talk.ask(2, None, 5);
    let number = talk.asked(slow);
    talk.has(slow, number, 0, 0, 9);
    let (number, bytes) = talk.give(slow);
    assert_eq!(bytes, 5);
    talk.pass(1999);
    assert!(talk.hear(asker).is_empty());
    talk.pass(1);
    let lent = talk.answer(asker);
    assert_eq!(
        (&lent["lent"]["given"], &lent["lent"]["silent"], &lent["lent"]["held"]),
        (&json!(0), &json!(1), &json!(0))
    );
    talk.has(slow, number, 5, 0, 4);
    let known = &talk.room.members()[0];
    assert_eq!((known.given, known.asked_for, known.silent, known.free), (5, 5, 1, 4));
}

/// A member that has left open one of two questions is late until it has answered both.
#[test]
fn who_was_late_is_asked_again_once_nothing_is_open() {
    let mut talk = Talk::settled();
    let member = talk.join(1);
    let look = talk.status();
    let asker = talk.ask(2, None, 5);
    let said = talk.hear(member);
    let numbers: Vec<u64> = said.iter().map(|said| said["spare"]["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), 2);
    talk.pass(100);
    assert_eq!(talk.answer(asker)["lent"]["silent"], 1);
    assert_eq!(talk.answer(look)["members"][0]["silent"], 1);
    for number in numbers {
        let again = talk.ask(2, None, 5);
        assert!(talk.hear(member).is_empty());
        assert_eq!(talk.answer(again)["lent"]["silent"], 1);
        talk.has(member, number, 0, 1, 0);
    }
    let again = talk.ask(2, None, 5);
    talk.asked(member);
    assert!(talk.hear(again).is_empty());
}

/// Sixteen questions at most are open to one member.
#[test]
fn one_that_says_nothing_is_asked_sixteen_times() {
    let mut talk = Talk::settled();
    let member = talk.join(1);
    for _ in 0..16 {
        let look = talk.status();
        assert!(talk.hear(look).is_empty());
    }
    assert_eq!(talk.hear(member).len(), 16);
    let look = talk.status();
    assert!(talk.answer(look)["members"].is_array(), "there is nobody to wait for");
    assert!(talk.hear(member).is_empty());
}

/// Members with something to give are asked three times at most, each time for what is still missing.
#[test]
fn three_rounds_end_a_request() {
    let mut talk = Talk::settled();
    let members = [40, 30, 20, 10].map(|held| (talk.join(held), held as u64));
    let asker = talk.ask(100, None, 5);
    for (member, held) in members {
        let number = talk.asked(member);
        talk.has(member, number, 0, 0, held);
    }
    for (round, (member, held)) in members.into_iter().enumerate().take(3) {
        let (number, bytes) = talk.give(member);
        assert_eq!(bytes, 5, "{round}");
        talk.has(member, number, 0, 0, held);
    }
    assert!(talk.hear(members[3].0).is_empty());
    let lent = talk.answer(asker);
    assert_eq!((&lent["lent"]["given"], &lent["lent"]["held"]), (&json!(0), &json!(100)));
    assert_eq!(talk.room.told().len(), 4, "they have joined; nothing was lent");
}

/// The driver may still be taking back what a process held that has ended; a broker that has just begun does not know all.
#[test]
fn asking_again_may_help_where_somebody_has_just_gone_or_may_come() {
    let mut talk = Talk::new();
    let departed = |talk: &mut Talk| {
        let asker = talk.ask(1, None, 5);
        talk.answer(asker)["lent"]["departed"].as_bool().unwrap()
    };
    assert!(departed(&mut talk));
    talk.pass(SETTLED - 1);
    assert!(departed(&mut talk));
    talk.pass(1);
    assert!(!departed(&mut talk), "it knows all");
    let elsewhere = talk.join_on(2, "another", 0);
    talk.room.leave(elsewhere, talk.now);
    let look = talk.status();
    talk.answer(look);
    assert!(!departed(&mut talk), "none of this device, and no member of it");
    let member = talk.join(3);
    talk.room.leave(member, talk.now);
    talk.pass(2999);
    assert!(departed(&mut talk));
    talk.pass(1);
    assert!(!departed(&mut talk));
    assert_eq!(talk.now, talk.begun + Duration::from_millis(SETTLED + 3000));
    // Of many the last 256 are known.
    let first = talk.join(4);
    talk.room.leave(first, talk.now);
    for turn in 0..256 {
        assert!(departed(&mut talk), "{turn}");
        let other = talk.join_on(5, "another", 0);
        talk.room.leave(other, talk.now);
    }
    assert!(!departed(&mut talk));
    // Those that are long gone make no others forgotten.
    let member = talk.join(6);
    talk.room.leave(member, talk.now);
    talk.pass(3000);
    for turn in 0..256 {
        let member = if turn == 0 { talk.join(7) } else { talk.join_on(7, "another", 0) };
        talk.room.leave(member, talk.now);
    }
    assert!(departed(&mut talk));
}

#[test]
fn what_is_no_question_is_refused_by_name() {
    let mut talk = Talk::settled();
    let join = |version: u32, device: &str| json!({ "join": { "version": version, "device": device, "guarantee": 0 } });
    let ask = |version: u32, device: &str| json!({ "ask": { "version": version, "device": device, "member": null, "missing": 1, "held": 0 } });
    let why = |talk: &mut Talk, said: &Value| {
        let id = talk.connect(1, said);
        talk.answer(id)["refused"].as_str().unwrap().to_owned()
    };
    for said in [join(2, "gpu"), ask(0, "gpu"), json!({ "status": { "version": 3 } })] {
        let why = why(&mut talk, &said);
        assert!(why.starts_with("it speaks version ") && why.ends_with("and this broker 1"), "{why}");
    }
    for device in [String::new(), "x".repeat(513)] {
        for said in [join(1, &device), ask(1, &device)] {
            assert_eq!(why(&mut talk, &said), "a device has a name, of 512 bytes at most");
        }
    }
    assert!(why(&mut talk, &json!({ "give": 1 })).starts_with("this is no question: "));
    talk.join_on(1, &"x".repeat(512), 0);
    // A member that asks something is a member no longer.
    let member = talk.join(2);
    assert!(!talk.tell(member, &json!({ "status": { "version": 1 } })));
    assert!(!talk.room.is_open(member));
    assert!(!talk.tell(member, &json!({ "status": { "version": 1 } })), "it is gone");
}

/// A command line is told without control characters, in 200 bytes at most, and no character is cut.
#[test]
fn a_command_line_is_cut() {
    let mut talk = Talk::settled();
    let cases = [
        ("x".repeat(200), "x".repeat(200)),
        ("x".repeat(201), "x".repeat(200)),
        (format!("{}é", "x".repeat(199)), "x".repeat(199)),
        (format!("{}éé", "x".repeat(198)), format!("{}é", "x".repeat(198))),
        ("a\u{1b}[31m\nb".into(), "a[31mb".into()),
        (String::new(), String::new()),
    ];
    for (command, told) in cases {
        let join = json!({ "version": 1, "device": "gpu", "guarantee": 0, "command": command });
        let id = talk.connect(1, &json!({ "join": join }));
        assert_eq!(talk.room.members()[0].command, told);
        talk.room.leave(id, talk.now);
    }
}

/// Words behind a question are dropped, and its connection is closed with the answer.
#[test]
fn who_has_asked_says_no_more() {
    let mut talk = Talk::settled();
    let member = talk.join(1);
    let asker = talk.ask(2, None, 5);
    for _ in 0..3 {
        assert!(talk.tell(asker, &json!({ "join": { "version": 1, "device": "gpu", "guarantee": 0 } })));
    }
    assert!(!talk.room.is_member(asker) && talk.room.is_open(asker));
    // A member that goes is waited for no more, and is none of those that were asked.
    talk.asked(member);
    talk.room.leave(member, talk.now);
    assert_eq!(talk.answer(asker)["lent"]["held"], 0);
    // Whoever goes has no demand any more.
    let member = talk.join(3);
    let asker = talk.ask(2, None, 5);
    talk.room.leave(asker, talk.now);
    assert!(talk.hear(member).is_empty());
    let (look, gone) = (talk.status(), talk.status());
    assert_eq!(talk.hear(member).len(), 2);
    talk.room.leave(gone, talk.now);
    talk.room.leave(member, talk.now);
    assert_eq!(talk.answer(look), json!({ "members": [] }));
    assert_eq!((talk.room.connections(), talk.deadline_ms()), (0, None));
}

/// A look shows who takes part, as each says itself in the time that it has.
#[test]
fn a_look_shows_what_each_says() {
    let mut talk = Talk::settled();
    let members = [1, 2].map(|pid| talk.join(pid));
    let look = talk.status();
    assert!(talk.hear(look).is_empty());
    for (at, member) in members.into_iter().enumerate() {
        assert!(talk.hear(look).is_empty(), "{at}");
        let number = talk.asked(member);
        talk.has(member, number, 0, 3, 4);
    }
    let shown = |member: u64, pid: i32| {
        json!({
            "member": member, "pid": pid, "command": "job", "device": "gpu", "guarantee": 0, "held": 7, "live": 3,
            "free": 4, "asked_for": 0, "given": 0, "silent": 0, "was_short": 0, "received": 0,
        })
    };
    assert_eq!(talk.answer(look), json!({ "members": [shown(members[0], 1), shown(members[1], 2)] }));
}

/// Half a mebibyte of members is listed.
#[test]
fn a_list_has_an_end() {
    let mut talk = Talk::settled();
    let device = "x".repeat(512);
    for pid in 0..1000 {
        talk.join_on(pid, &device, 0);
    }
    let look = talk.status();
    talk.room.advance(talk.now);
    talk.pass(100);
    talk.room.advance(talk.now);
    let list = talk.room.outbox(look).map(std::mem::take).unwrap();
    let line = serde_json::to_vec(&talk.room.members()[0]).unwrap().len();
    assert!(list.len() <= (512 << 10) + 100 && list.len() > (512 << 10) - 2 * line, "{}", list.len());
}

/// Two devices are served at once, and of one device one after the other.
#[test]
fn requests_of_one_device_are_served_in_turn() {
    let mut talk = Talk::settled();
    let member = talk.join(1);
    let elsewhere = talk.join_on(2, "another", 0);
    let [first, second] = [3, 4].map(|pid| talk.ask(pid, None, 5));
    let third = talk
        .connect(5, &json!({ "ask": { "version": 1, "device": "another", "member": null, "missing": 5, "held": 0 } }));
    let number = talk.asked(elsewhere);
    talk.has(elsewhere, number, 0, 1, 0);
    assert_eq!(talk.answer(third)["lent"]["live"], 1);
    let number = talk.asked(member);
    talk.has(member, number, 0, 2, 0);
    assert_eq!(talk.answer(first)["lent"]["live"], 2);
    assert!(talk.hear(second).is_empty());
    let number = talk.asked(member);
    talk.has(member, number, 0, 3, 0);
    assert_eq!(talk.answer(second)["lent"]["live"], 3);
}

/// Who holds less than its guarantee comes first, but overtakes the same one twice at most.
#[test]
fn a_guarantee_comes_first_twice() {
    let mut talk = Talk::settled();
    let holder = talk.join(1);
    // It holds 2 when it asks.
    let [below, at] = [(2, 3), (3, 2)].map(|(pid, guarantee)| talk.join_on(pid, "gpu", guarantee));
    let plain = talk.join(4);
    let running = talk.ask(9, None, 5);
    talk.room.advance(talk.now);
    let [waits, equal] = [(4, plain), (3, at)].map(|(pid, member)| talk.ask(pid, Some(member), 5));
    let mut order = Vec::new();
    let mut ahead = Vec::new();
    let mut open = vec![("running", running), ("waits", waits), ("equal", equal)];
    for turn in 0..3 {
        ahead.push(talk.ask(2, Some(below), 5));
        open.push((["first", "second", "third"][turn], ahead[turn]));
    }
    while !open.is_empty() {
        for member in [holder, below, at, plain] {
            for said in talk.hear(member) {
                let number = said["spare"]["number"].as_u64().unwrap();
                talk.has(member, number, 0, 1, 0);
            }
        }
        open.retain(|(name, id)| {
            let is_answered = !talk.hear(*id).is_empty();
            if is_answered {
                order.push(*name);
            }
            !is_answered
        });
    }
    assert_eq!(order, ["running", "first", "second", "waits", "equal", "third"]);
}

/// Who is served on another device overtakes nobody.
#[test]
fn requests_of_another_device_overtake_nobody() {
    let mut talk = Talk::settled();
    let holder = talk.join(1);
    let below = talk.join_on(2, "gpu", 3);
    let running = talk.ask(9, None, 5);
    talk.room.advance(talk.now);
    let plain = talk.ask(4, None, 5);
    for _ in 0..3 {
        let ask = json!({ "version": 1, "device": "another", "member": null, "missing": 5, "held": 0 });
        let elsewhere = talk.connect(5, &json!({ "ask": ask }));
        assert_eq!(talk.answer(elsewhere)["lent"]["processes"], 0);
    }
    let first = talk.ask(2, Some(below), 5);
    for answered in [running, first, plain] {
        for member in [holder, below] {
            for said in talk.hear(member) {
                let number = said["spare"]["number"].as_u64().unwrap();
                talk.has(member, number, 0, 1, 0);
            }
        }
        assert_eq!(talk.hear(answered).len(), 1);
    }
}
