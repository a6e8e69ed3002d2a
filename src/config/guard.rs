//! Guard mode: which mistakes of programs are looked for, and what that may cost.
//!
//! Owns: [`GuardOptions`], their defaults and their text. `docs/guard.md` says what each finds.

use std::fmt;

/// Guard mode, which finds mistakes of the program. Off by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardOptions {
    /// `page`: allocations end at addresses without memory, and freed ones are unmapped, so that a use beyond the end or
    /// after the free is an illegal address at once. Each takes at least 2 MiB.
    pub page: bool,
    /// `canary`: the bytes before and behind an allocation are filled, and looked at when it is freed. Needs `page`.
    pub canary: bool,
    /// `poison`: freed memory is filled until it is unmapped, and looked at then. Needs `page`.
    pub poison: bool,
    /// `streams`: frees of memory that another stream still uses, without `record_stream`, are found. Streams are known by
    /// what the program says of them.
    pub streams: bool,
    /// `graphs`: what a stream capture allocates is guarded too, and stays mapped until its private pool ends. Nothing of it
    /// is used twice, so a graph takes much more memory. Needs `page`.
    pub graphs: bool,
    /// `guard_sample`: one allocation in so many is guarded, at random. 1: each.
    pub sample: u64,
    /// `guard_min_size`: smaller allocations, in bytes, are not guarded.
    pub min_size: u64,
    /// `guard_quarantine_mb`, in bytes: the most address space of freed allocations that is kept from reuse. Beyond it the
    /// oldest goes first.
    pub quarantine: u64,
}

/// In bytes. Each allocation takes 6 MiB of addresses at least, so this is up to 43,690 freed ones; each costs the driver a
/// reservation and the host some 200 bytes.
const QUARANTINE: u64 = 256 << 30;

/// The values that the option `guard` takes.
pub(super) const VALUES: &str = "`on`, `off`, `all`, or of `page`, `canary`, `poison`, `streams` and `graphs` those wanted, \
                                 joined by `|`; `canary`, `poison` and `graphs` need `page`";

impl GuardOptions {
    /// Guard mode that looks for nothing.
    pub const OFF: Self = Self {
        page: false,
        canary: false,
        poison: false,
        streams: false,
        graphs: false,
        sample: 1,
        min_size: 0,
        quarantine: QUARANTINE,
    };
    /// What `guard:on` switches on: all but `graphs`.
    pub const ON: Self = Self { page: true, canary: true, poison: true, streams: true, ..Self::OFF };

    /// Returns whether it looks for anything.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.page || self.streams
    }

    /// Reads the value of the option `guard` over these options: `off`, `on`, `all`, or names joined by `|`. Returns `None`
    /// for any other value.
    pub(super) fn set(&mut self, value: &str) -> Option<()> {
        let of =
            |base: Self| Self { sample: self.sample, min_size: self.min_size, quarantine: self.quarantine, ..base };
        *self = match value {
            "off" | "False" | "0" => of(Self::OFF),
            "on" | "True" | "1" => of(Self::ON),
            "all" => of(Self { graphs: true, ..Self::ON }),
            list => {
                let mut chosen = of(Self::OFF);
                for name in list.split('|') {
                    *chosen.part(name.trim())? = true;
                }
                chosen
            }
        };
        Some(())
    }

    fn part(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "page" => &mut self.page,
            "canary" => &mut self.canary,
            "poison" => &mut self.poison,
            "streams" => &mut self.streams,
            "graphs" => &mut self.graphs,
            _ => return None,
        })
    }

    /// Returns whether every part that is on has a meaning: some have none without `page`.
    pub(super) const fn is_whole(&self) -> bool {
        self.page || !(self.canary || self.poison || self.graphs)
    }

    /// Adds the options that differ from the defaults, as text.
    pub(super) fn write(&self, part: &mut dyn FnMut(fmt::Arguments<'_>) -> fmt::Result) -> fmt::Result {
        let same = |other: Self| Self { sample: 1, min_size: 0, quarantine: QUARANTINE, ..*self } == other;
        if !same(Self::OFF) {
            part(format_args!("guard:{self}"))?;
        }
        if self.sample != 1 {
            part(format_args!("guard_sample:{}", self.sample))?;
        }
        if self.min_size != 0 {
            part(format_args!("guard_min_size:{}B", self.min_size))?;
        }
        if self.quarantine != QUARANTINE {
            part(format_args!("guard_quarantine_mb:{}", self.quarantine >> 20))?;
        }
        Ok(())
    }
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self::OFF
    }
}

/// Prints what it looks for, as the value of the option `guard`.
impl fmt::Display for GuardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, canary, poison, streams, graphs, .. } = *self;
        match [page, canary, poison, streams, graphs] {
            [false, false, false, false, false] => f.write_str("off"),
            [true, true, true, true, false] => f.write_str("on"),
            [true, true, true, true, true] => f.write_str("all"),
            parts => {
                let names = ["page", "canary", "poison", "streams", "graphs"].into_iter().zip(parts);
                let chosen = names.filter_map(|(name, is_on)| is_on.then_some(name));
                chosen.enumerate().try_for_each(|(at, name)| write!(f, "{}{name}", if at > 0 { "|" } else { "" }))
            }
        }
    }
}
