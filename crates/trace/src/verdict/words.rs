//! The sentences of a verdict: a headline, the reasons with figures, and one next step.
//!
//! Owns: the words. The report on a refused request in a running program (`seamalloc::out_of_memory`) uses the same
//! words for the same causes.

use super::amounts::{needed, spare};
use super::figures::{
    CONTEXT_BYTES, Choice, EXPANDABLE_SETTING, Figures, Judgement, Need, OWNERS, SEAMALLOC_COMMAND, Shortage, Verdict,
};
use super::rules::{FEW_BYTES, FEW_PERCENT, NEAR_PERCENT, near, saving};
use crate::whatif::DeviceFrom;
use seamalloc::Split;
use seamalloc::units::format_bytes as bytes;

/// The variable with PyTorch's options.
const SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF=";
/// The names of devices, for a job with an unknown device.
const DEVICES: &str =
    "--device sim:rtx4090 (24 GiB); of any other GPU say the memory: --device sim:h200,capacity=44GiB";

/// Returns the verdict in at most 100 characters.
pub(super) fn headline(found: &Judgement) -> String {
    let figures = &found.figures;
    let (live, room) = (bytes(figures.live), bytes(figures.capacity.unwrap_or(0)));
    match found.verdict {
        Verdict::TooMuchLive { by: 0 } => {
            format!("Nearly too much is live: {live} of {room}. No allocator tried runs it.")
        }
        Verdict::TooMuchLive { .. } if figures.is_of_refusal() => {
            format!("Too much is live: {live} of the {room} that PyTorch could have. No allocator helps.")
        }
        Verdict::TooMuchLive { .. } => format!("Too much is live: {live} of {room}. No allocator helps."),
        Verdict::Others { missing } if figures.is_little_elsewhere() => {
            let (device, missing) = (bytes(figures.device.unwrap_or(0)), needed(missing));
            format!("Libraries and the CUDA context leave {room} of {device}; {missing} are missing.")
        }
        Verdict::Others { missing } => {
            let condition = if figures.device_from == Some(DeviceFrom::Noted) { "" } else { ", if this is its GPU" };
            let (others, device) = (bytes(figures.others().unwrap_or(0)), bytes(figures.device.unwrap_or(0)));
            format!("Others hold the memory{condition}: {others} of {device}; {} are missing.", needed(missing))
        }
        Verdict::Limit { to } => {
            format!("A limit is too low: at least {room} may be held under it, and {} are needed.", needed(to))
        }
        Verdict::PyTorchIsEnough { allocator, has_room } => enough(figures, allocator, has_room),
        Verdict::Streams { apart, is_saved } => {
            let whose = if is_saved { "seamalloc shares it" } else { "no allocator can reuse it yet" };
            format!("Streams keep memory apart: {}, and {whose}.", bytes(apart))
        }
        Verdict::SeamallocHelps { saves: None, .. } => {
            let with = figures.remedy().map_or_else(String::new, |options| format!("with {options} "));
            format!("seamalloc helps: {with}it runs the job on {room}, PyTorch's allocators do not.")
        }
        Verdict::SeamallocHelps { saves: Some(saves), waits } => {
            let other = figures.best_of_pytorch().map_or("native", |(best, _)| name(best));
            match (saves, waits) {
                (0, waits) if figures.stitch.waits == 0 => {
                    format!("seamalloc helps: it never waits for memory, {other} {}.", times(waits))
                }
                (0, waits) => {
                    let own = figures.stitch.waits;
                    let [own, all] = [own, own.saturating_add(waits)].map(times);
                    format!("seamalloc helps: it waits for memory {own}, {other} {all}.")
                }
                (saves, 0) => format!("seamalloc helps: it holds {} less than {other}.", spare(saves)),
                (saves, _) => {
                    let waits = if figures.stitch.waits == 0 { "never waits for memory" } else { "waits less" };
                    format!("seamalloc helps: it holds {} less than {other}, and {waits}.", spare(saves))
                }
            }
        }
    }
}

/// Returns the headline if one of PyTorch's allocators is enough for the job.
fn enough(figures: &Figures, allocator: Choice, has_room: bool) -> String {
    let [first, ..] = figures.by_effort();
    let (own, other) = (figures.need(allocator), figures.need(first));
    let held = own.reserved.unwrap_or(0);
    let who = match allocator {
        Choice::Native => "PyTorch's native allocator is",
        _ => "PyTorch's expandable segments are",
    };
    match other.reserved {
        _ if allocator == first && has_room => {
            let capacity = figures.capacity.unwrap_or(0);
            let (left, of) = (spare(capacity.saturating_sub(held)), bytes(capacity));
            format!("Nothing to do: with {}, {left} of {of} stay free.", name(allocator))
        }
        _ if allocator == first && figures.is_least(allocator) => {
            format!("{who} enough: no other holds {} and {FEW_PERCENT}% less.", bytes(FEW_BYTES))
        }
        _ if allocator == first => format!("{who} enough: no other runs it with fewer waits for memory."),
        None => format!("{who} enough: the job runs, and with {} it does not.", name(first)),
        Some(_) if other.waits > own.waits => {
            format!("{who} enough: {} waits for memory {}.", name(first), times(other.waits))
        }
        Some(more) => {
            format!("{who} enough: they hold {} less than {}.", spare(more.saturating_sub(held)), name(first))
        }
    }
}

/// Returns the reasons, in one or two sentences.
pub(super) fn reasons(found: &Judgement) -> String {
    let figures = &found.figures;
    let mut said = Vec::new();
    match found.verdict {
        Verdict::TooMuchLive { by } => {
            let room = if figures.is_of_refusal() { "PyTorch could have when it ran out" } else { "the device has" };
            said.push(match by {
                0 => format!("{}. The job {}.", demand(figures), needs(figures)),
                by => format!("{}, {} more than {room}.", demand(figures), needed(by)),
            });
            said.extend(figures.shortage.as_ref().map(|shortage| with_enough(figures, shortage)));
            said.extend(owners(figures));
        }
        Verdict::Others { .. } | Verdict::Limit { .. } => {
            let all = Choice::ALL.map(name);
            let room = bytes(figures.capacity.unwrap_or(0));
            said.push(format!("{}. On {room} the job runs out of memory with {}.", demand(figures), listed(&all)));
            said.extend(figures.shortage.as_ref().map(|shortage| with_enough(figures, shortage)));
        }
        Verdict::PyTorchIsEnough { allocator, has_room } => {
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
            said.push(beyond(figures, allocator, has_room));
        }
        Verdict::Streams { is_saved, .. } => {
            let best = figures.best_of_pytorch().map_or(Choice::Expandable, |(best, _)| best);
            let need = if is_saved { best } else { figures.recommended().unwrap_or(best) };
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
            let need = figures.need(need);
            let apart = kept_apart(need);
            // This moment differs from the moment at which most memory is live.
            let when = if need.reserved.is_some() { "most is held" } else { "memory runs out" };
            said.push(if is_saved {
                format!(
                    "When {when}, PyTorch's allocators keep {apart}; seamalloc passes it on behind waits on the GPU."
                )
            } else {
                format!("When {when}, that includes {apart}.")
            });
        }
        Verdict::SeamallocHelps { .. } => {
            said.push(format!("{}. The job {}.", demand(figures), needs(figures)));
            said.extend(room_left(figures));
        }
    }
    said.extend(recorded(found));
    if figures.capacity.is_none() {
        said.push(format!(
            "The recording does not say how much memory its GPU has. This is the verdict where memory is short; where \
             native leaves {NEAR_PERCENT}% of it free, nothing is to do."
        ));
        if matches!(found.verdict, Verdict::PyTorchIsEnough { allocator: Choice::Expandable, .. }) {
            said.push(format!("The setting is {}.", setting(figures)));
        }
    }
    said.join(" ")
}

/// Returns the words for the live memory, including the refused request.
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

/// Returns the words for the memory that PyTorch could have when a request was refused, if that is less than the
/// device's memory, or if the device's memory is not known.
fn recorded(found: &Judgement) -> Option<String> {
    let figures = &found.figures;
    let had = bytes(figures.available.filter(|_| figures.is_of_refusal())?);
    Some(match (figures.free_beyond_limit, found.verdict) {
        (Some(free), _) => {
            format!("PyTorch held {had} when a limit refused the request, and its GPU had {} free.", bytes(free))
        }
        (None, Verdict::Others { .. }) if figures.is_little_elsewhere() => {
            let rest = figures.device.unwrap_or(0).saturating_sub(figures.available.unwrap_or(0));
            let (device, rest) = (bytes(figures.device.unwrap_or(0)), bytes(rest));
            format!("PyTorch could have {had} of {device} when it ran out: its CUDA context and libraries held {rest}.")
        }
        (None, Verdict::Others { .. }) => {
            let [device, others] = [figures.device, figures.others()].map(|size| bytes(size.unwrap_or(0)));
            let condition = match figures.device_from {
                Some(DeviceFrom::Noted) => "",
                _ => ", if this is the GPU that it was recorded on; on another one of this size the job runs",
            };
            format!(
                "PyTorch could have {had} of the {device} when it ran out: its CUDA context takes about {}, and others \
                 (processes, libraries) held {others}{condition}.",
                bytes(CONTEXT_BYTES)
            )
        }
        (None, _) => {
            format!(
                "PyTorch could have {had} when it ran out. If the GPU has more, others held the rest: see `nvidia-smi`."
            )
        }
    })
}

/// Returns the words for the memory that each allocator holds: `holds 6.05 GiB with native, 5.50 GiB with expandable
/// segments, …`.
fn needs(figures: &Figures) -> String {
    let Figures { native, expandable, stitch, options, .. } = figures;
    let ours = match &*options.seamalloc {
        "" => "seamalloc".to_owned(),
        options => format!("seamalloc ({options})"),
    };
    let each = [(name(Choice::Native), native), (name(Choice::Expandable), expandable), (&*ours, stitch)];
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
    let refused = match &refused[..] {
        [] => String::new(),
        names => format!("runs out of memory{device} with {}", listed(names)),
    };
    match (held.is_empty(), refused.is_empty()) {
        (true, _) => refused,
        (false, true) => format!("holds {}", held.join(", ")),
        (false, false) => format!("holds {}, and {refused}", held.join(", ")),
    }
}

/// Returns the words for the memory that the job holds if it has enough, and for the least memory that the chosen
/// allocator needs.
fn with_enough(figures: &Figures, shortage: &Shortage) -> String {
    let held = Choice::ALL.into_iter().zip(shortage.enough);
    let held: Vec<_> = held.filter_map(|(by, held)| Some(format!("{} with {}", bytes(held?), name(by)))).collect();
    let place = match figures.device.filter(|_| shortage.runs_on_device) {
        Some(device) => format!("On {}", bytes(device)),
        None => "Where memory is plenty".to_owned(),
    };
    let least = match shortage.needs {
        0 => String::new(),
        needs => format!(", and needs {} with {}, rounding and holes included", needed(needs), name(shortage.choice)),
    };
    format!("{place} it holds {}{least}.", held.join(", "))
}

/// Returns the words for seamalloc's gain over an allocator of PyTorch's that is enough for the job.
fn beyond(figures: &Figures, allocator: Choice, has_room: bool) -> String {
    let reserved = figures.need(allocator).reserved.unwrap_or(0);
    let more = match figures.stitch.reserved {
        Some(own) if own < reserved => format!("seamalloc would hold {} less", spare(reserved - own)),
        Some(_) => "seamalloc would hold no less".to_owned(),
        None => "seamalloc would not run the job".to_owned(),
    };
    match figures.capacity {
        Some(capacity) if has_room => {
            let (left, enough) = (spare(capacity.saturating_sub(reserved)), needed(near(capacity)));
            format!("{left} of the device stay free, and {enough} ({NEAR_PERCENT}%) are enough; {more}.")
        }
        Some(capacity) => {
            let little = match saving(reserved, figures.stitch.reserved) {
                Some(_) => format!(", and wait for memory {}", times(figures.stitch.waits)),
                None if figures.stitch.reserved.is_some_and(|own| own < reserved) => {
                    ", too little to act on".to_owned()
                }
                None => String::new(),
            };
            format!("Only {} of the device stay free; {more}{little}.", spare(capacity.saturating_sub(reserved)))
        }
        None => format!("{more}."),
    }
}

/// Returns the words for the memory that PyTorch's allocators leave free on the device, and for how much free memory
/// would be enough to run without waits.
fn room_left(figures: &Figures) -> Option<String> {
    let (best, reserved) = figures.best_of_pytorch()?;
    let capacity = figures.capacity?;
    let (left, enough) = (spare(capacity.saturating_sub(reserved)), needed(near(capacity)));
    Some(format!(
        "With {} {left} of the device stay free; {enough} ({NEAR_PERCENT}%) without waits for memory would be enough.",
        name(best)
    ))
}

/// Returns the largest owners, with their shares.
fn owners(figures: &Figures) -> Option<String> {
    let of = |bytes: u64| 100.0 * bytes as f64 / figures.live.max(1) as f64;
    let named = figures.owners.iter().take(OWNERS);
    let named: Vec<_> =
        named.map(|owner| format!("{} {} ({:.0}%)", owner.name, bytes(owner.bytes), of(owner.bytes))).collect();
    (!named.is_empty()).then(|| format!("The largest owners: {}.", named.join(", ")))
}

/// Returns the words for the memory that streams keep from one another: free on other streams, or still used by them.
fn kept_apart(need: &Need) -> String {
    let elsewhere = format!("{} free on other streams", bytes(need.elsewhere));
    let pending = format!("{} freed but still used by other streams (record_stream)", bytes(need.pending));
    match (need.elsewhere, need.pending) {
        (_, 0) => elsewhere,
        (0, _) => pending,
        _ => format!("{elsewhere} and {pending}"),
    }
}

/// Returns the next step.
pub(super) fn next_step(found: &Judgement) -> String {
    let figures = &found.figures;
    match found.verdict {
        Verdict::TooMuchLive { by } => less(figures, by),
        Verdict::Limit { to } => {
            let choice = figures.shortage.as_ref().map_or(Choice::Native, |shortage| shortage.choice);
            let to = needed(to);
            format!("Raise the limit to {to} or more (set_per_process_memory_fraction){}.", with(figures, choice))
        }
        Verdict::Others { .. } => others(figures),
        _ if figures.capacity.is_none() => format!("Name the GPU for a verdict on it: {DEVICES}."),
        Verdict::PyTorchIsEnough { allocator, has_room } => pytorch(figures, allocator, has_room),
        Verdict::Streams { is_saved: false, .. } => {
            "Free on the stream that used the memory last: TORCH_NCCL_AVOID_RECORD_STREAMS=1, no record_stream."
                .to_owned()
        }
        Verdict::Streams { .. } | Verdict::SeamallocHelps { .. } => {
            let options = joined(&figures.options.seamalloc, figures.remedy().unwrap_or_default());
            match needs_one_thread(&options) {
                true => format!("If one thread launches all work, run it with seamalloc: {}.", command(&options)),
                false => format!("Run it with seamalloc: {}.", command(&options)),
            }
        }
    }
}

/// Returns the next step if one of PyTorch's allocators is enough for the job.
fn pytorch(figures: &Figures, allocator: Choice, has_room: bool) -> String {
    match allocator {
        Choice::Native if figures.is_expandable_set => format!("Run it without {EXPANDABLE_SETTING}."),
        Choice::Native if !figures.options.native.is_empty() => format!("Set {SETTING}{}.", figures.options.native),
        Choice::Native if has_room => "Keep PyTorch's allocator as it is.".to_owned(),
        Choice::Native => {
            "Keep PyTorch's allocator; a smaller batch leaves room where num_alloc_retries rises.".to_owned()
        }
        _ if figures.is_expandable_set => format!("Keep {}, which the job was recorded with.", setting(figures)),
        _ => format!("Set {}.", setting(figures)),
    }
}

/// Returns the next step if others hold the missing memory.
fn others(figures: &Figures) -> String {
    let Some(shortage) = &figures.shortage else { return String::new() };
    let with = with(figures, shortage.choice);
    match shortage.smaller {
        Some(percent) if figures.is_little_elsewhere() => {
            format!("Reduce the batch size by at least {percent}%{with}.")
        }
        _ => format!(
            "Find the others with `nvidia-smi`, and end or limit them, until PyTorch can have {}{with}.",
            needed(shortage.needs)
        ),
    }
}

/// Returns the next step if too much is live.
fn less(figures: &Figures, by: u64) -> String {
    let Some(shortage) = &figures.shortage else {
        return format!("Reduce the batch size, until {} less are live.", needed(by.max(1)));
    };
    let with = with(figures, shortage.choice);
    let first = match (shortage.smaller, figures.persistent) {
        (Some(percent), _) => format!("Reduce the batch size by at least {percent}%{with}"),
        (None, Some(persistent)) if persistent > 0 => {
            return format!(
                "Shard or offload weights and optimizer state (FSDP, CPU offload): their {} alone are too much.",
                bytes(persistent)
            );
        }
        (None, _) => {
            let less = needed(shortage.needs.saturating_sub(figures.capacity.unwrap_or(0)));
            format!("Reduce the batch size, until {less} less are live{with}")
        }
    };
    let spill = shortage
        .spill
        .as_ref()
        .map(|options| format!("; or let seamalloc spill: {}", command(&joined(&figures.options.seamalloc, options))));
    format!("{first}; or recompute or offload activations{}.", spill.unwrap_or_default())
}

/// Returns the part of the next step that names the allocator to use; empty if the job was recorded with this
/// allocator, or if it is native.
fn with(figures: &Figures, choice: Choice) -> String {
    match choice {
        Choice::Native => String::new(),
        Choice::Expandable if figures.is_expandable_set => String::new(),
        Choice::Expandable => format!(", and set {}", setting(figures)),
        Choice::Seamalloc => {
            let options = &figures.options.seamalloc;
            let condition = if needs_one_thread(options) { ", if one thread launches all work," } else { "" };
            format!(", and{condition} run it with seamalloc: {}", command(options))
        }
    }
}

/// Returns the environment variable that sets expandable segments and those options of the replays that PyTorch has
/// too.
fn setting(figures: &Figures) -> String {
    joined(EXPANDABLE_SETTING, &figures.options.expandable)
}

/// Returns the command that runs a program with seamalloc and these options.
fn command(options: &str) -> String {
    if options.is_empty() {
        SEAMALLOC_COMMAND.to_owned()
    } else {
        format!("SEAMALLOC_CONF={options} {SEAMALLOC_COMMAND}")
    }
}

/// Returns whether chunks may be split while no gate holds other threads' work.
fn needs_one_thread(options: &str) -> bool {
    let ungated = format!("split:{}", Split::Ungated.name());
    options.split(',').any(|option| option == ungated)
}

/// Returns the options with `more` added. An option of `more` replaces the option with the same name.
fn joined(options: &str, more: &str) -> String {
    let name = |option: &str| option.split(':').next().map(str::to_owned);
    let replaced = |option: &str| more.split(',').any(|other| name(other) == name(option));
    let kept = options.trim().split(',').filter(|option| !replaced(option));
    kept.chain(more.trim().split(',')).filter(|option| !option.is_empty()).collect::<Vec<_>>().join(",")
}

/// Returns names as a list, such as "a, b and c".
fn listed(names: &[&str]) -> String {
    match names {
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        names => names.concat(),
    }
}

/// Returns a count in words, such as "3 times".
fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Returns a number of waits in words.
fn waits(count: u64) -> String {
    if count == 1 { "1 wait".to_owned() } else { format!("{count} waits") }
}

impl Figures {
    /// Returns whether the capacity is the memory that PyTorch could have when a request was refused.
    fn is_of_refusal(&self) -> bool {
        self.capacity.is_some() && self.capacity == self.available
    }

    /// Returns the options with which seamalloc runs the job if it does not run with the options of the replays.
    fn remedy(&self) -> Option<&str> {
        self.shortage.as_ref()?.remedy.as_deref()
    }

    /// Returns whether no other allocator holds notably less than `choice`.
    fn is_least(&self, choice: Choice) -> bool {
        let held = self.need(choice).reserved.unwrap_or(0);
        self.by_effort().iter().all(|other| saving(held, self.need(*other).reserved).is_none())
    }

    /// Returns whether others hold no more of the device than libraries and a CUDA context do. The memory of libraries
    /// and contexts never becomes free.
    pub(super) fn is_little_elsewhere(&self) -> bool {
        self.others().zip(self.device).is_some_and(|(others, device)| others < near(device))
    }
}

/// Returns the allocator's name in a sentence.
fn name(choice: Choice) -> &'static str {
    match choice {
        Choice::Native => "native",
        Choice::Expandable => "expandable segments",
        Choice::Seamalloc => "seamalloc",
    }
}
