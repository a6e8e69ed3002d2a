//! The sentences of a verdict: a headline, the reasons with figures, one next step.
//!
//! Owns: the words. The refusal of a running program (`seamalloc::out_of_memory`) uses the same ones for the same causes.

use super::figures::{EXPANDABLE_SETTING, Figures, Judgement, Need, OWNERS, OfPyTorch, SEAMALLOC_COMMAND, Verdict};
use super::rules::{FEW_PERCENT, saving};
use seamalloc::units::format_bytes as bytes;

/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
/// Examples of devices, for a job whose device is unknown.
const DEVICES: &str =
    "--device sim:rtx4090 (24 GiB), sim:a100-40gb, sim:l40s (48), sim:h100 (80), sim:h200,capacity=44GiB";

/// The verdict in at most 100 characters.
pub(super) fn headline(found: &Judgement) -> String {
    let figures = &found.figures;
    let device = bytes(figures.capacity.unwrap_or(0));
    match found.verdict {
        Verdict::TooMuchLive { by: 0 } => {
            format!("Nearly too much is live: {} of {device}. No allocator helps.", bytes(figures.live))
        }
        Verdict::TooMuchLive { .. } if figures.is_of_refusal() => {
            let live = bytes(figures.live);
            format!("Too much is live: {live} of the {device} that PyTorch could have. No allocator helps.")
        }
        Verdict::TooMuchLive { .. } => {
            format!("Too much is live: {} of {device}. No allocator helps.", bytes(figures.live))
        }
        Verdict::Others { missing } => {
            let others = bytes(figures.others.unwrap_or(0));
            format!("Others hold the memory: {others} of {device}; {} are missing.", bytes(missing))
        }
        Verdict::PyTorchIsEnough { allocator, .. } => enough(figures, allocator),
        Verdict::Streams { apart, is_saved } => {
            let whose = if is_saved { "seamalloc shares it" } else { "no allocator can reuse it yet" };
            format!("Streams keep memory apart: {}, and {whose}.", bytes(apart))
        }
        Verdict::SeamallocHelps { saves: None, .. } => {
            format!("seamalloc helps: it runs the job on {device}, PyTorch's allocators do not.")
        }
        Verdict::SeamallocHelps { saves: Some(saves), waits } => {
            let other = figures.best_of_pytorch().map_or("native", |(allocator, _)| name(allocator));
            match waits {
                0 => format!("seamalloc helps: it holds {} less than {other}.", bytes(saves)),
                waits => format!("seamalloc helps: it never waits for memory, {other} {}.", times(waits)),
            }
        }
    }
}

/// The headline where an allocator of PyTorch's is enough.
fn enough(figures: &Figures, allocator: OfPyTorch) -> String {
    let Figures { native, expandable, .. } = figures;
    match (allocator, native.reserved, expandable.reserved) {
        (OfPyTorch::Expandable, Some(_), _) if native.waits > expandable.waits => {
            format!("PyTorch's expandable segments are enough: native waits for memory {}.", times(native.waits))
        }
        (OfPyTorch::Expandable, Some(held), Some(less)) => {
            let saves = bytes(held.saturating_sub(less));
            format!("PyTorch's expandable segments are enough: they hold {saves} less than native.")
        }
        (OfPyTorch::Expandable, ..) => {
            "PyTorch's expandable segments are enough: they run the job, native does not.".to_owned()
        }
        (OfPyTorch::Native, ..) if saving(native.reserved.unwrap_or(0), figures.stitch.reserved).is_some() => {
            "PyTorch's native allocator is enough: it leaves room on the device.".to_owned()
        }
        (OfPyTorch::Native, ..) => {
            format!("PyTorch's native allocator is enough: no other holds {FEW_PERCENT}% less.")
        }
    }
}

/// The reasons, in one or two sentences.
pub(super) fn reasons(found: &Judgement) -> String {
    let figures = &found.figures;
    let mut said = Vec::new();
    match found.verdict {
        Verdict::TooMuchLive { by } => {
            said.push(match by {
                0 => format!("{}. With what rounding takes, no allocator fits it in.", demand(figures)),
                by if figures.is_of_refusal() => {
                    format!("{}, {} more than PyTorch could have when it ran out.", demand(figures), bytes(by))
                }
                by => format!("{}, {} more than the device has.", demand(figures), bytes(by)),
            });
            if figures.is_of_refusal() {
                said.push(match figures.free_beyond_limit {
                    Some(free) => format!("A limit refused the request: the device had {} free.", bytes(free)),
                    None => "If the GPU has more, others held the rest: see `nvidia-smi`.".to_owned(),
                });
            }
            said.extend(owners(figures));
        }
        Verdict::Others { .. } => said.push(format!(
            "{}. The job {}, and others hold {} of the device (other processes, libraries, CUDA contexts).",
            demand(figures),
            needs(figures),
            bytes(figures.others.unwrap_or(0)),
        )),
        Verdict::PyTorchIsEnough { allocator, has_room } => {
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
            said.push(beyond(figures, allocator, has_room));
        }
        Verdict::Streams { is_saved, .. } => {
            let need = figures.best_of_pytorch().map_or(figures.expandable, |(of, _)| *figures.need(of));
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
            let apart = kept_apart(&need);
            said.push(if is_saved {
                format!("PyTorch's allocators keep {apart}; seamalloc passes it on behind waits on the GPU.")
            } else {
                format!("Of the memory held, {apart}.")
            });
        }
        Verdict::SeamallocHelps { .. } => {
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
        }
    }
    said.extend(recorded_elsewhere(figures));
    if figures.capacity.is_none() {
        said.push("The recording does not say how much memory its GPU has.".to_owned());
        if matches!(found.verdict, Verdict::PyTorchIsEnough { allocator: OfPyTorch::Expandable, .. }) {
            said.push(format!("The setting is {EXPANDABLE_SETTING}."));
        }
    }
    said.join(" ")
}

/// The live memory, with the request that was refused.
fn demand(figures: &Figures) -> String {
    let live = bytes(figures.live);
    let persistent = match figures.persistent {
        Some(persistent) if persistent > 0 => {
            format!(", {} of it persistent (weights, optimizer state)", bytes(persistent))
        }
        _ => String::new(),
    };
    match figures.refused {
        0 => format!("At most {live} are live{persistent}"),
        refused => format!("{live} are live with the refused request of {}{persistent}", bytes(refused)),
    }
}

/// The memory that PyTorch could have while the job was recorded, where that is less than the device has.
fn recorded_elsewhere(figures: &Figures) -> Option<String> {
    let (capacity, available) = (figures.capacity?, figures.available?);
    let others = capacity.checked_sub(available).filter(|others| *others > 0 && figures.others.is_none())?;
    let why = match figures.free_beyond_limit {
        Some(_) => "a limit kept the rest from it".to_owned(),
        None => format!("if that was on this device, others held {} (see `nvidia-smi`)", bytes(others)),
    };
    Some(format!("PyTorch could have {} when it ran out: {why}.", bytes(available)))
}

/// The needs under each allocator: `needs 6.05 GiB with native, 5.50 GiB with expandable segments, …`.
fn needs(figures: &Figures) -> String {
    let Figures { native, expandable, stitch, .. } = figures;
    let each = [("native", native), ("expandable segments", expandable), ("seamalloc", stitch)];
    let (mut held, mut refused) = (Vec::new(), Vec::new());
    for (name, need) in each {
        match need.reserved {
            Some(reserved) if need.waits > 0 => {
                held.push(format!("{} with {name} ({} of the CPU)", bytes(reserved), waits(need.waits)));
            }
            Some(reserved) => held.push(format!("{} with {name}", bytes(reserved))),
            None => refused.push(name),
        }
    }
    let device = figures.capacity.map_or_else(String::new, |capacity| format!(" on {}", bytes(capacity)));
    let refused = match refused[..] {
        [] => String::new(),
        _ => format!("runs out of memory{device} with {}", refused.join(" and ")),
    };
    match (held.is_empty(), refused.is_empty()) {
        (true, _) => refused,
        (false, true) => format!("needs {}", held.join(", ")),
        (false, false) => format!("needs {}, and {refused}", held.join(", ")),
    }
}

/// The gain of seamalloc beyond an allocator of PyTorch's that is enough.
fn beyond(figures: &Figures, allocator: OfPyTorch, has_room: bool) -> String {
    let need = figures.need(allocator);
    let reserved = need.reserved.unwrap_or(0);
    let more = match figures.stitch.reserved {
        Some(own) if own < reserved => format!("seamalloc would save {} more", bytes(reserved - own)),
        Some(_) => "seamalloc would save nothing more".to_owned(),
        None => "seamalloc would not run the job".to_owned(),
    };
    let left = figures.capacity.map(|capacity| bytes(capacity.saturating_sub(reserved)));
    match left {
        Some(left) if has_room => format!("{left} of the device stay free; {more}."),
        Some(left) => format!("Only {left} of the device stay free, but {more}."),
        None => format!("{more}."),
    }
}

/// The largest owners, with their shares.
fn owners(figures: &Figures) -> Option<String> {
    let of = |bytes: u64| 100.0 * bytes as f64 / figures.live.max(1) as f64;
    let named = figures.owners.iter().take(OWNERS);
    let named: Vec<_> =
        named.map(|owner| format!("{} {} ({:.0}%)", owner.name, bytes(owner.bytes), of(owner.bytes))).collect();
    (!named.is_empty()).then(|| format!("The largest owners: {}.", named.join(", ")))
}

/// The memory that streams keep apart, by its kind.
fn kept_apart(need: &Need) -> String {
    let elsewhere = format!("{} free on other streams", bytes(need.elsewhere));
    let pending = format!("{} freed but still used by other streams (record_stream)", bytes(need.pending));
    match (need.elsewhere, need.pending) {
        (_, 0) => elsewhere,
        (0, _) => pending,
        _ => format!("{elsewhere} and {pending}"),
    }
}

/// The one next step.
pub(super) fn next_step(found: &Judgement) -> String {
    let figures = &found.figures;
    match found.verdict {
        Verdict::TooMuchLive { by } => less(figures, by),
        _ if figures.capacity.is_none() => format!("Name the GPU for a verdict on it: {DEVICES}."),
        Verdict::Others { .. } => {
            "Find the others with `nvidia-smi`, and end them or give each process a limit (memory_limit).".to_owned()
        }
        Verdict::PyTorchIsEnough { allocator: OfPyTorch::Expandable, .. } if figures.is_expandable_set => {
            format!("Keep {EXPANDABLE_SETTING}, which the job was recorded with.")
        }
        Verdict::PyTorchIsEnough { allocator: OfPyTorch::Expandable, .. } => format!("Set {EXPANDABLE_SETTING}."),
        Verdict::PyTorchIsEnough { has_room: true, .. } => "Keep PyTorch's allocator as it is.".to_owned(),
        Verdict::PyTorchIsEnough { .. } => {
            "Keep PyTorch's allocator; a smaller batch leaves room where num_alloc_retries rises.".to_owned()
        }
        Verdict::Streams { is_saved: false, .. } => {
            "Free on the stream that used the memory last: TORCH_NCCL_AVOID_RECORD_STREAMS=1, no record_stream."
                .to_owned()
        }
        Verdict::Streams { .. } | Verdict::SeamallocHelps { .. } => {
            format!("Run it with seamalloc: {SEAMALLOC_COMMAND}.")
        }
    }
}

/// The next step where too much is live.
fn less(figures: &Figures, by: u64) -> String {
    let persistent = figures.persistent.unwrap_or(0);
    if figures.capacity.is_some_and(|capacity| persistent > capacity) {
        return "Shard or offload weights and optimizer state (FSDP, CPU offload): they alone exceed the device."
            .to_owned();
    }
    if figures.is_of_refusal() && figures.free_beyond_limit.is_some() {
        return "Raise the limit (set_per_process_memory_fraction), or reduce the batch size.".to_owned();
    }
    let spill = format!("spill:host={}GiB", by.div_ceil(GIB).max(1));
    let batch = match figures.live.saturating_sub(persistent) {
        _ if by == 0 => "Reduce the batch size a little".to_owned(),
        rest if persistent > 0 && rest > 0 => {
            let part = (u128::from(by) * 100).div_ceil(u128::from(rest));
            format!("Reduce the batch size by at least {part}%")
        }
        _ => format!("Reduce the batch size, until {} less are live", bytes(by)),
    };
    format!(
        "{batch}; or recompute or offload activations; or let seamalloc spill: SEAMALLOC_CONF={spill} {SEAMALLOC_COMMAND}."
    )
}

/// How often, in words.
fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// A number of waits, in words.
fn waits(count: u64) -> String {
    if count == 1 { "1 wait".to_owned() } else { format!("{count} waits") }
}

impl Figures {
    /// Returns whether the capacity is the memory that PyTorch could have when a request was refused.
    fn is_of_refusal(&self) -> bool {
        self.capacity.is_some() && self.capacity == self.available
    }
}

/// The name in a sentence.
fn name(allocator: OfPyTorch) -> &'static str {
    match allocator {
        OfPyTorch::Native => "native",
        OfPyTorch::Expandable => "expandable segments",
    }
}
