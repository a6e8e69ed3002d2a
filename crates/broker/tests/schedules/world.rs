//! Processes, a device and a broker's state, and what may happen next.
//!
//! Owns: the rules that hold after every step:
//! - all processes together hold no more than the device has;
//! - no one is asked to give what it uses, or what lies below its guarantee, and all together no more than was asked for;
//! - who asks is told of no more than others gave;
//! - who asks is refused only where nobody else takes part, and nothing is on its way back;
//! - who asks is overtaken twice at most.

use seamalloc_broker::state::Room;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Units of memory that the device has.
const CAPACITY: u64 = 10;
/// Within this time after its end a driver has taken back what a process held.
const TAKEN_BACK: Duration = Duration::from_secs(3);
/// Within this time after a broker's begin those of the one before have joined it: they look every half second.
const REJOINED: Duration = Duration::from_millis(1000);
/// So often may one that asked later be answered first.
const MAX_OVERTAKEN: u32 = 2;
const LONG: Duration = Duration::from_secs(60);
/// When all is played on fairly it ends within so many steps.
const MAX_STEPS: usize = 400;

/// An action that a process takes by itself.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Act {
    Join,
    /// Takes so many units, and waits until it has them.
    Need(u64),
    /// Frees all, and keeps it.
    Return,
    Die,
}

/// How much of it may happen before all is played on fairly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Questions of one request.
    pub(crate) asks: u32,
    /// Times that a step of the broker ends before all have answered.
    pub(crate) late: u32,
    /// Times that the broker is killed.
    pub(crate) kills: u32,
}

/// A step that may happen. Processes are named by their place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Acts(usize),
    /// The process answers the broker's oldest question.
    Answers(usize),
    Asks(usize),
    /// After the broker was killed.
    Rejoins(usize),
    /// The driver has what a dead one held.
    TakesBack(usize),
    /// Nobody says anything until a time is over.
    TimePasses,
    BrokerIsKilled,
}

#[derive(Clone, Debug)]
struct Process {
    pid: i32,
    guarantee: u64,
    script: Vec<Act>,
    at: usize,
    /// The process's connection at this broker.
    member: Option<u64>,
    /// The process's number, as it knows it: that of a broker before this one until it has joined again.
    number: Option<u64>,
    questions: Vec<Value>,
    /// The figures that the process told the broker last: held and free.
    told: (u64, u64),
    held: u64,
    live: u64,
    need: u64,
    ask: Option<Asked>,
    asks: u32,
    /// On its way back to the driver, since when.
    going: Option<(u64, Instant)>,
}

/// A question that was not answered yet.
#[derive(Clone, Debug)]
struct Asked {
    connection: u64,
    missing: u64,
    /// In which order they came.
    turn: u64,
    overtaken: u32,
    /// The memory that all processes have given until then.
    given_before: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    room: Room,
    now: Instant,
    begun: Instant,
    processes: Vec<Process>,
    bounds: Bounds,
    turns: u64,
    next_pid: i32,
    /// Units given because the broker asked.
    pub(crate) given: u64,
    status: Option<(u64, Option<Value>)>,
}

impl World {
    pub(crate) fn new(scripts: &[(u64, &[Act])], bounds: Bounds) -> Self {
        let now = Instant::now();
        let processes = scripts.iter().zip(1..).map(|((guarantee, script), pid)| Process {
            pid,
            guarantee: *guarantee,
            script: script.to_vec(),
            at: 0,
            member: None,
            number: None,
            questions: Vec::new(),
            told: (0, 0),
            held: 0,
            live: 0,
            need: 0,
            ask: None,
            asks: 0,
            going: None,
        });
        let processes: Vec<Process> = processes.collect();
        // The first broker has been there for long.
        let (room, now) = (Room::new(now), now + LONG);
        let next_pid = processes.len() as i32 + 1;
        Self { room, now, begun: now, processes, bounds, turns: 0, next_pid, given: 0, status: None }
    }

    /// Returns what may happen next.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, process) in self.processes.iter().enumerate() {
            let is_member = process.number.is_some();
            match process.script.get(process.at) {
                Some(Act::Join) => steps.push(Step::Acts(at)),
                // Also while it waits.
                Some(Act::Die) if is_member => steps.push(Step::Acts(at)),
                Some(_) if is_member && process.need == 0 => steps.push(Step::Acts(at)),
                _ => {}
            }
            if !process.questions.is_empty() {
                steps.push(Step::Answers(at));
            }
            if process.need > 0 && process.ask.is_none() && process.asks < self.bounds.asks {
                steps.push(Step::Asks(at));
            }
            if is_member && process.member.is_none() {
                steps.push(Step::Rejoins(at));
            }
            if process.going.is_some() {
                steps.push(Step::TakesBack(at));
            }
        }
        if self.bounds.late > 0 && self.next_time().is_some() {
            steps.push(Step::TimePasses);
        }
        if self.bounds.kills > 0 {
            steps.push(Step::BrokerIsKilled);
        }
        steps
    }

    /// When a time is over, if what takes a bounded time otherwise is done by then.
    fn next_time(&self) -> Option<Instant> {
        let next = self.room.next_deadline()?;
        let in_time = |process: &Process| {
            let is_back = process.going.is_none_or(|(_, since)| next < since + TAKEN_BACK);
            let has_joined = process.number.is_none() || process.member.is_some() || next < self.begun + REJOINED;
            is_back && has_joined
        };
        self.processes.iter().all(in_time).then_some(next)
    }

    /// Takes a step, and looks at the rules.
    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Acts(at) => self.act(at),
            Step::Answers(at) => self.answer(at),
            Step::Asks(at) => self.ask(at),
            Step::Rejoins(at) => self.join(at),
            Step::TakesBack(at) => self.processes[at].going = None,
            Step::TimePasses => {
                self.bounds.late = self.bounds.late.saturating_sub(1);
                self.now = self.next_time().unwrap();
            }
            Step::BrokerIsKilled => {
                self.bounds.kills -= 1;
                (self.room, self.begun) = (Room::new(self.now), self.now);
                for process in &mut self.processes {
                    (process.member, process.ask) = (None, None);
                    process.questions.clear();
                }
            }
        }
        self.deliver();
        let held: u64 = self.processes.iter().map(|process| process.held).sum();
        assert!(held + self.going() <= CAPACITY);
        for process in &self.processes {
            assert!(process.live <= process.held);
            assert!(process.ask.as_ref().is_none_or(|ask| ask.overtaken <= MAX_OVERTAKEN), "it is overtaken for ever");
            assert!(process.member.is_none_or(|id| self.room.is_member(id)), "the broker has put it out");
        }
    }

    fn going(&self) -> u64 {
        self.processes.iter().filter_map(|process| process.going).map(|(bytes, _)| bytes).sum()
    }

    fn free(&self) -> u64 {
        CAPACITY - self.going() - self.processes.iter().map(|process| process.held).sum::<u64>()
    }

    fn say(&mut self, connection: u64, said: &Value) {
        assert!(self.room.hear(connection, format!("{said}\n").as_bytes(), self.now));
    }

    fn act(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let act = process.script[process.at];
        process.at += 1;
        match act {
            Act::Join => self.join(at),
            Act::Need(need) => {
                (process.need, process.asks) = (need, 0);
                if !self.get(at) {
                    self.ask(at);
                }
            }
            Act::Return => process.live = 0,
            Act::Die => {
                let connections = [process.member.take(), process.ask.take().map(|ask| ask.connection)];
                process.going = Some((process.held, self.now));
                (process.held, process.live, process.need, process.number) = (0, 0, 0, None);
                process.questions.clear();
                // Another process takes its place.
                process.pid = self.next_pid;
                self.next_pid += 1;
                connections.into_iter().flatten().for_each(|id| self.room.leave(id, self.now));
            }
        }
    }

    fn join(&mut self, at: usize) {
        let Process { pid, guarantee, .. } = self.processes[at];
        let id = self.room.enter(pid, self.now);
        let join = json!({ "version": 1, "device": "gpu", "guarantee": guarantee });
        self.say(id, &json!({ "join": join }));
        self.processes[at].member = Some(id);
    }

    /// Gets the units that are needed, if the device has what the process lacks.
    fn get(&mut self, at: usize) -> bool {
        let free = self.free();
        let process = &mut self.processes[at];
        let missing = (process.live + process.need).saturating_sub(process.held);
        if missing > free {
            return false;
        }
        process.held += missing;
        process.live += process.need;
        process.need = 0;
        true
    }

    fn ask(&mut self, at: usize) {
        if self.get(at) {
            return;
        }
        let (free, now) = (self.free(), self.now);
        let Process { pid, number, held, live, need, .. } = self.processes[at];
        let missing = live + need - held - free;
        let connection = self.room.enter(pid, now);
        let ask = json!({ "version": 1, "device": "gpu", "member": number, "missing": missing, "held": held });
        self.say(connection, &json!({ "ask": ask }));
        self.turns += 1;
        let asked = Asked { connection, missing, turn: self.turns, overtaken: 0, given_before: self.given };
        let process = &mut self.processes[at];
        (process.ask, process.asks) = (Some(asked), process.asks + 1);
    }

    fn answer(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let question = process.questions.remove(0);
        let (number, bytes) = match (&question["spare"], &question["give"]) {
            (Value::Null, give) => (&give["number"], give["bytes"].as_u64().unwrap()),
            (spare, _) => (&spare["number"], 0),
        };
        let given = bytes.min(process.held - process.live);
        process.held -= given;
        self.given += given;
        let (held, live, free) = (process.held, process.live, process.held - process.live);
        process.told = (held, free);
        let has = json!({ "number": number, "given": given, "held": held, "live": live, "free": free });
        let member = process.member.unwrap();
        self.say(member, &json!({ "has": has }));
    }

    /// Lets the broker do what is due, and hands over what it says.
    fn deliver(&mut self) {
        let connections: Vec<u64> = self
            .processes
            .iter()
            .flat_map(|process| [process.member, process.ask.as_ref().map(|ask| ask.connection)])
            .chain([self.status.as_ref().map(|(id, _)| *id)])
            .flatten()
            .collect();
        // As the broker itself, which goes on until there is no more to send.
        loop {
            self.room.advance(self.now);
            let mut all = Vec::new();
            for id in &connections {
                let said = self.room.outbox(*id).map(std::mem::take).unwrap_or_default();
                all.extend(String::from_utf8(said).unwrap().lines().map(|line| (*id, line.to_owned())));
            }
            if all.is_empty() {
                break;
            }
            self.look_at_gives(&all);
            for (id, line) in all {
                self.hear(id, serde_json::from_str(&line).unwrap());
            }
        }
    }

    fn hear(&mut self, id: u64, said: Value) {
        if let Some((status, answer)) = &mut self.status
            && *status == id
        {
            *answer = Some(said);
        } else if let Some(process) = self.processes.iter_mut().find(|process| process.member == Some(id)) {
            match said["joined"]["member"].as_u64() {
                Some(number) => process.number = Some(number),
                None => process.questions.push(said),
            }
        } else if let Some(at) =
            self.processes.iter().position(|of| of.ask.as_ref().is_some_and(|ask| ask.connection == id))
        {
            self.answered(at, &said["lent"]);
        }
    }

    fn answered(&mut self, at: usize, lent: &Value) {
        assert!(lent.is_object(), "it is refused: {lent}");
        let ask = self.processes[at].ask.take().unwrap();
        let told = lent["given"].as_u64().unwrap();
        assert!(told <= self.given - ask.given_before, "it is told of more than was given");
        for other in self.processes.iter_mut().filter_map(|process| process.ask.as_mut()) {
            other.overtaken += u32::from(other.turn < ask.turn);
        }
        if !self.get(at) && lent["processes"] == 0 && lent["departed"] == false {
            let others = self.processes.iter().enumerate().filter(|(other, _)| *other != at);
            let takes_part = |process: &Process| process.number.is_some() || process.going.is_some();
            let left: Vec<_> = others.filter(|(_, process)| takes_part(process)).collect();
            assert!(left.is_empty(), "{at} is refused, although there are others: {left:?}");
        }
    }

    fn look_at_gives(&self, said: &[(u64, String)]) {
        let mut asked: BTreeMap<u64, u64> = BTreeMap::new();
        for (id, line) in said {
            let give: Value = serde_json::from_str(line).unwrap();
            let Some(bytes) = give["give"]["bytes"].as_u64() else { continue };
            let process = self.processes.iter().find(|process| process.member == Some(*id)).unwrap();
            let (held, free) = process.told;
            assert!(bytes <= free, "it is asked for {bytes} of {free} that it said are free");
            assert!(held - bytes >= process.guarantee, "its guarantee of {} is not kept", process.guarantee);
            *asked.entry(give["give"]["number"].as_u64().unwrap()).or_default() += bytes;
        }
        let most = self.processes.iter().filter_map(|process| process.ask.as_ref()).map(|ask| ask.missing).max();
        for sum in asked.values() {
            assert!(*sum <= most.unwrap_or(0), "{sum} are asked for where {most:?} are missing");
        }
    }

    /// Goes on, each in its turn, until nobody has anything to do: then everyone has had what it needed, and the broker knows what each holds.
    pub(crate) fn play_on(&mut self) {
        self.bounds = Bounds { asks: u32::MAX, late: 0, kills: 0 };
        for turn in 0.. {
            assert!(turn < MAX_STEPS, "somebody waits for ever: {:?}", self.processes);
            let steps = self.steps();
            match steps.get(turn % steps.len().max(1)) {
                Some(step) => self.take(*step),
                None => break,
            }
        }
        assert_eq!(self.room.next_deadline(), None, "one that is gone is waited for");
        for process in &self.processes {
            assert_eq!((process.at, process.need), (process.script.len(), 0), "it did not get what it needed");
        }
        self.look();
    }

    /// The broker says who takes part, and what each holds.
    fn look(&mut self) {
        let id = self.room.enter(i32::MAX, self.now);
        self.status = Some((id, None));
        self.say(id, &json!({ "status": { "version": 1 } }));
        self.deliver();
        while let Some(at) = self.processes.iter().position(|process| !process.questions.is_empty()) {
            self.take(Step::Answers(at));
        }
        let (_, answer) = self.status.take().unwrap();
        let members = answer.unwrap()["members"].clone();
        let known: BTreeMap<i64, u64> = members
            .as_array()
            .unwrap()
            .iter()
            .map(|member| (member["pid"].as_i64().unwrap(), member["held"].as_u64().unwrap()))
            .collect();
        let there: BTreeMap<i64, u64> = self
            .processes
            .iter()
            .filter(|process| process.number.is_some())
            .map(|process| (process.pid.into(), process.held))
            .collect();
        assert_eq!(known, there, "what the broker knows, and what is so");
    }
}
