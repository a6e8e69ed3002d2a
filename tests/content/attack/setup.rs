//! The device, the options and the habits of a random program: everything may be combined with everything.

use super::dice::Dice;
use seamalloc::StrategyKind;
use std::fmt;

pub(super) const MIB: u64 = 1 << 20;

/// One program's surroundings. Each field is drawn by itself, so that a shortened program can leave some out.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) capacity: u64,
    /// Bytes of host memory that the device may use.
    pub(super) host: u64,
    pub(super) options: Vec<String>,
    pub(super) streams: u64,
    /// Driver calls fail now and then.
    pub(super) faulty: bool,
    pub(super) pressure: bool,
    pub(super) sleep_callback: bool,
    pub(super) lender: bool,
    pub(super) odd_policy: bool,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, host, streams, faulty, pressure, sleep_callback, lender, odd_policy, .. } = self;
        let options = self.options.join(",");
        write!(f, "{options}\n  a device of {} MiB, the machine has {} MiB, ", capacity / MIB, host / MIB)?;
        write!(
            f,
            "{streams} streams, faulty {faulty}, callbacks for pressure {pressure} and sleep {sleep_callback}, "
        )?;
        write!(f, "a lender {lender}, an odd policy {odd_policy}")
    }
}

impl Setup {
    pub(super) fn random(seed: u64, dice: &mut Dice) -> Self {
        let capacity = MIB * dice.pick(&[48, 64, 64, 256, 256, 1024]);
        Self {
            seed,
            capacity,
            host: MIB * dice.pick(&[8, 128, 4096]),
            options: options(capacity, dice),
            streams: dice.pick(&[1, 2, 5, 30]),
            faulty: dice.one_in(2),
            pressure: dice.one_in(2),
            sleep_callback: dice.one_in(3),
            lender: dice.one_in(3),
            odd_policy: dice.one_in(4),
        }
    }
}

fn options(capacity: u64, dice: &mut Dice) -> Vec<String> {
    // A third of the programs is about memory that is exchanged under live addresses.
    let exchanges = dice.one_in(3);
    let others = !exchanges && dice.one_in(3);
    let strategy = if others { dice.pick(&StrategyKind::ALL) } else { StrategyKind::Stitch };
    let mut options = vec![format!("strategy:{strategy}")];
    let mut add = |one_in: u64, option: &mut dyn FnMut(&mut Dice) -> String, dice: &mut Dice| {
        let option = option(dice);
        if dice.one_in(one_in) {
            options.push(option);
        }
    };
    let of = |name: &'static str, values: &'static [&'static str]| {
        move |dice: &mut Dice| format!("{name}:{}", dice.pick(values))
    };
    add(2, &mut of("sharing", &["never", "completed", "wait", "wait", "wait"]), dice);
    let (often, never) = if exchanges { (1, u64::MAX) } else { (2, 12) };
    add(2, &mut of("spill", &["host=2MiB", "host=16MiB", "host=64MiB", "host=300MiB", "host=2000MiB"]), dice);
    add(3, &mut of("backup_cache", &["0B", "4MiB", "64MiB"]), dice);
    let splits: &[&str] = if exchanges { &["last_resort", "ungated"] } else { &["off", "last_resort", "ungated"] };
    add(often, &mut of("split", splits), dice);
    add(5, &mut of("wait_ms", &["0", "1", "50"]), dice);
    add(5, &mut of("idle_release_s", &["1", "5"]), dice);
    add(3, &mut of("flight_recorder", &["0", "1", "100", "20000"]), dice);
    let chunks: &[&str] = if exchanges { &["6", "16", "32", "64"] } else { &["2", "4", "6", "16", "20", "64"] };
    add(often, &mut of("chunk_size_mb", chunks), dice);
    add(5, &mut |dice| format!("max_view_mappings:{}", dice.below(60)), dice);
    add(5, &mut |dice| format!("max_views:{}", dice.below(8)), dice);
    add(6, &mut |dice| format!("max_view_address_space:{}MiB", 2 * dice.below(300) + 2), dice);
    add(3, &mut of("headroom", &["1MiB", "2MiB", "8MiB", "20MiB"]), dice);
    add(4, &mut |dice| format!("memory_limit:{}B", capacity / 2 + dice.below(capacity)), dice);
    add(5, &mut of("per_process_memory_fraction", &["0.5", "0.9", "1"]), dice);
    add(6, &mut of("garbage_collection_threshold", &["0.1", "0.6", "0.99"]), dice);
    add(6, &mut of("roundup_power2_divisions", &["4", "[256:1,512:2,>:4]"]), dice);
    add(6, &mut of("max_split_size_mb", &["24", "40"]), dice);
    add(6, &mut of("large_segment_size_mb", &["12", "24"]), dice);
    add(8, &mut of("fragLimit", &["33554432,defragLevel:1,autoGC:0", "2097152,reuseLimit:1"]), dice);
    add(10, &mut of("FLAGS_free_idle_chunk", &["True"]), dice);
    add(never, &mut of("guard", &["on", "all", "page", "canary|poison"]), dice);
    add(12, &mut of("guard_sample", &["2", "7"]), dice);
    add(12, &mut of("guard_quarantine_mb", &["2", "64"]), dice);
    options
}
