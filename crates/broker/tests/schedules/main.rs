//! Every order in which two or three processes and their broker may act: join, ask, give, return, die, come back; and the broker is killed
//! and begins anew. The broker's state is the real one, without sockets (`seamalloc_broker::state`); processes and device are models.
//!
//! After every step the rules of `world.rs` hold. From every end of an order all is played on fairly: then everyone gets what it asked for,
//! and the broker knows what each holds. Orders that lead to the same state are followed once.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]

mod queue;
mod talks;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use world::Act::{Die, Join, Need, Return};
use world::{Act, Bounds, Step, World};

/// Some step that is taken in the order played.
struct Play {
    seen: HashSet<u64>,
    path: Vec<Step>,
    ends: usize,
    lent: usize,
}

impl Play {
    fn follow(&mut self, world: &World) {
        let mut state = DefaultHasher::new();
        format!("{world:?}").hash(&mut state);
        if !self.seen.insert(state.finish()) {
            return;
        }
        let steps = world.steps();
        for step in &steps {
            let mut next = world.clone();
            self.path.push(*step);
            self.try_it(|| next.take(*step));
            self.follow(&next);
            self.path.pop();
        }
        if steps.is_empty() {
            self.ends += 1;
            let mut end = world.clone();
            self.try_it(|| end.play_on());
            self.lent += usize::from(end.given > 0);
        }
    }

    /// Says by which order a rule was broken.
    fn try_it(&self, act: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err() {
            panic!("after these steps: {:?}", self.path);
        }
    }
}

/// Plays all orders of these scripts on a device of 10 units. Each has a guarantee.
fn play(name: &str, scripts: &[(u64, &[Act])], bounds: Bounds) {
    let mut play = Play { seen: HashSet::new(), path: Vec::new(), ends: 0, lent: 0 };
    play.follow(&World::new(scripts, bounds));
    println!("{name}: {} states, {} ends, in {} others gave", play.seen.len(), play.ends, play.lent);
    assert!(play.ends > 10 && play.lent > 10, "an order without a choice would prove nothing");
}

#[test]
fn two_take_turns_and_one_answers_late() {
    let script = &[Join, Need(7), Return, Need(6), Return];
    play("turns", &[(0, script), (3, script)], Bounds { asks: 2, late: 1, kills: 0 });
}

#[test]
fn a_process_dies_and_comes_back() {
    let scripts = [(0, &[Join, Need(7), Die, Join, Need(5), Return][..]), (0, &[Join, Need(7), Return])];
    play("death", &scripts, Bounds { asks: 2, late: 1, kills: 0 });
}

#[test]
fn the_broker_is_killed_and_begins_anew() {
    let scripts = [(0, &[Join, Need(7), Return][..]), (2, &[Join, Need(7), Return])];
    play("restart", &scripts, Bounds { asks: 2, late: 2, kills: 1 });
}

#[test]
fn the_broker_and_a_process_die() {
    let scripts = [(0, &[Join, Need(7), Return, Die][..]), (0, &[Join, Need(6), Return])];
    play("both", &scripts, Bounds { asks: 1, late: 1, kills: 2 });
}

#[test]
fn three_share_a_device() {
    let script = &[Join, Need(5), Return];
    play("three", &[(0, script), (4, script), (0, script)], Bounds { asks: 2, late: 1, kills: 0 });
}

#[test]
fn one_of_three_dies() {
    let scripts = [(0, &[Join, Need(4), Return, Die][..]), (0, &[Join, Need(4), Return]), (0, &[Join, Need(7), Die])];
    play("three, death", &scripts, Bounds { asks: 1, late: 0, kills: 0 });
}

#[test]
fn three_share_a_device_whose_broker_is_killed() {
    let scripts = [(0, &[Join, Need(8), Return][..]), (0, &[Join, Need(4), Return]), (0, &[Join])];
    play("three, restart", &scripts, Bounds { asks: 1, late: 0, kills: 1 });
}
