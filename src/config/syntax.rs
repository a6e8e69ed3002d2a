//! PyTorch's syntax of options (`key:value,key:[a:b,c:d]`), read and written.
//!
//! Owns: the names of the options, and the text form of each value. `options.rs` checks the ranges. The syntax is that
//! of `PYTORCH_CUDA_ALLOC_CONF`, so that a setting can be copied as it is.

use super::effect;
use super::error::ConfigError;
use super::guard::VALUES;
use super::names::{OF_PYTORCH, REMOVED, WITHOUT_EFFECT, names, option_list};
use super::options::{Config, MIB, Split, StreamSharing};
use super::paddle::{PaddleFlags, THROTTLE_RATIO};
use super::strategy_kind::StrategyKind;
use crate::config::rounding::{ROUNDUP_INTERVALS, RoundupDivisions};
use crate::nearest::near;
use crate::units::{Exactly, parse_bytes_with_unit};
use std::fmt;
use std::str::FromStr;

/// The value of an option that is not given, as programs in Python write it.
const NOT_GIVEN: &str = "None";

impl Config {
    /// Reads options in PyTorch's syntax over the defaults: `max_split_size_mb:512,expandable_segments:True`.
    ///
    /// Besides PyTorch's keys there are `strategy:NAME`, `memory_fraction`, short for `per_process_memory_fraction`,
    /// `memory_limit:80GiB`, `headroom:4GiB`, those of stitching: `sharing`, `max_view_mappings`, `max_views`
    /// and `max_view_address_space`, and those of guard mode: `guard`, `guard_sample`, `guard_min_size` and
    /// `guard_quarantine_mb`. The strategies `exact` and `buddy` have `exact_buffer_mb` and `buddy_capacity_mb`, those of Paddle
    /// its flags, such as `FLAGS_free_idle_chunk:True` ([`PaddleFlags`]).
    ///
    /// The value `None` is that of an option that is not given. Sizes have a unit, except where the option's name has
    /// it (`_mb`) or where another allocator's option counts bytes (`fragLimit`).
    ///
    /// ```
    /// use seamalloc::{Config, StrategyKind};
    /// let config = Config::parse("max_split_size_mb:512,roundup_power2_divisions:[256:1,512:2,>:4]")?;
    /// assert_eq!(config.max_split_size, Some(512 << 20));
    /// assert_eq!(Config::parse("expandable_segments:True")?.strategy, StrategyKind::Expandable);
    /// # Ok::<(), seamalloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// The error names the option and its values; for an unknown name, it suggests the nearest one that exists.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::default().overlaid(text)
    }

    /// Returns these options, changed by those of `text`.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn overlaid(mut self, text: &str) -> Result<Self, ConfigError> {
        for (key, value) in split_options(text)? {
            if value != NOT_GIVEN {
                self.set(key, value)?;
            } else if !is_known(key) {
                return Err(unknown(key));
            }
        }
        self.validated()
    }

    /// The names of all options that have an effect, as [`Config::parse`] reads them. `docs/options.md` has a row for each.
    ///
    /// ```
    /// assert!(seamalloc::Config::option_names().any(|name| name == "max_split_size_mb"));
    /// ```
    pub fn option_names() -> impl Iterator<Item = &'static str> {
        option_list()
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            "strategy" => (self.strategy, self.strategy_named) = (value.parse()?, true),
            "sharing" => {
                let policy = StreamSharing::ALL.into_iter().find(|policy| policy.name() == value);
                let policy = policy.or_else(|| replaced(value));
                self.sharing = policy.ok_or_else(|| bad_value(key, value, "`never`, `completed` or `wait`"))?;
            }
            "split" => {
                let choice = Split::ALL.into_iter().find(|choice| choice.name() == value);
                self.split = choice.ok_or_else(|| bad_value(key, value, "`off` or `last_resort`"))?;
            }
            "backup_cache" => self.backup_cache = Some(bytes(key, value, "32GiB")?),
            "spill" => self.spill = spill(value).ok_or_else(|| bad_value(key, value, SPILL))?,
            "wait_ms" => self.wait_ms = Some(whole(key, value, "milliseconds, or None")?),
            "idle_release_s" => {
                let seconds = whole(key, value, "seconds of at least 1, or None")?;
                self.idle_release_s = Some(seconds).filter(|seconds| *seconds > 0);
                self.idle_release_s
                    .ok_or_else(|| bad_value(key, value, "a whole number of seconds of at least 1, or None"))?;
            }
            "flight_recorder" => self.flight_recorder = whole(key, value, "operations")?,
            "flight_dump" => self.flight_dump = Some(value.to_owned()),
            "broker" => self.broker = Some(value.to_owned()).filter(|value| value != "off"),
            "broker_guarantee" => self.broker_guarantee = bytes(key, value, "8GiB")?,
            "broker_weight" => self.broker_weight = whole(key, value, "shares")?,
            "broker_wait_ms" => self.broker_wait_ms = whole(key, value, "milliseconds")?,
            "chunk_size_mb" => self.chunk_size = Some(mib(key, value)?),
            "max_view_mappings" => self.max_view_mappings = whole(key, value, "mappings")?,
            "fragLimit" => self.frag_limit = whole(key, value, "bytes")?,
            "reuseLimit" => {
                self.reuse_limit = value.parse().map_err(|_| bad_value(key, value, "a number of at least 1"))?;
            }
            "max_views" => self.max_views = whole(key, value, "views")?,
            "max_view_address_space" => self.max_view_address_space = bytes(key, value, "4TiB")?,
            "memory_limit" => self.memory_limit = Some(bytes(key, value, "80GiB")?),
            "headroom" => self.headroom = bytes(key, value, "4GiB")?,
            "defragLevel" => self.defrag_level = whole(key, value, "attempts to skip")?,
            "guard" => self.guard.set(value).ok_or_else(|| bad_value(key, value, VALUES))?,
            "guard_sample" => self.guard.sample = whole(key, value, "allocations")?,
            "guard_min_size" => self.guard.min_size = bytes(key, value, "1MiB")?,
            "guard_quarantine_mb" => self.guard.quarantine = mib(key, value)?,
            "autoGC" => self.auto_gc = whole(key, value, "GiB")?,
            "backend" => match value {
                "native" => {}
                "cudaMallocAsync" => (self.strategy, self.strategy_named) = (StrategyKind::MallocAsync, true),
                _ => return Err(bad_value(key, value, "`native` or `cudaMallocAsync`")),
            },
            "expandable_segments" => match value {
                "True" => (self.strategy, self.strategy_named) = (StrategyKind::Expandable, true),
                "False" if self.strategy == StrategyKind::Expandable => {
                    (self.strategy, self.strategy_named) = (StrategyKind::default(), false);
                }
                "False" => {}
                _ => return Err(bad_value(key, value, "`True` or `False`")),
            },
            "max_split_size_mb" => self.max_split_size = Some(mib(key, value)?),
            "max_non_split_rounding_mb" => self.max_non_split_rounding = mib(key, value)?,
            "large_segment_size_mb" => {
                let size = mib(key, value)?;
                // The default of the other option follows, because it may not be smaller.
                self.max_non_split_rounding = self.max_non_split_rounding.max(size);
                self.large_segment_size = size;
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = divisions(key, value)?,
            "garbage_collection_threshold" => {
                let threshold = fraction(key, value)?;
                if threshold == 0.0 {
                    return Err(bad_value(key, value, "a number above 0 and below 1"));
                }
                self.garbage_collection_threshold = threshold;
            }
            "per_process_memory_fraction" => self.memory_fraction = Some(fraction(key, value)?),
            _ if WITHOUT_EFFECT.contains(&key) => effect::tell(key, OF_PYTORCH),
            _ => self.set_family(key, value)?,
        }
        Ok(())
    }

    /// Sets an option of a family of strategies.
    fn set_family(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        if let Some(size) = self.classic.field(key).or_else(|| self.paddle.size(key)) {
            *size = mib(key, value)?;
        } else if let Some(switch) = self.paddle.switch(key) {
            let on = PaddleFlags::read_switch(value);
            *switch = on.ok_or_else(|| bad_value(key, value, "`True` or `False`, or 1 or 0"))?;
        } else if key == "FLAGS_fraction_of_gpu_memory_to_use" {
            self.paddle.fraction_of_gpu_memory_to_use = fraction(key, value)?;
        } else if key == THROTTLE_RATIO {
            self.paddle.cuda_malloc_async_pool_memory_throttle_ratio = fraction(key, value)?;
        } else {
            return Err(unknown(key));
        }
        Ok(())
    }
}

/// Prints the options that differ from the defaults, in PyTorch's syntax; [`Config::parse`] reads them back.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut parts = Parts { f, written: false };
        match self.strategy {
            StrategyKind::Stitch if !self.strategy_named => {}
            StrategyKind::Expandable => parts.push(format_args!("expandable_segments:True"))?,
            kind => parts.push(format_args!("strategy:{kind}"))?,
        }
        if self.large_segment_size != default.large_segment_size {
            parts.push(format_args!("large_segment_size_mb:{}", self.large_segment_size / MIB))?;
        }
        if let Some(size) = self.max_split_size {
            parts.push(format_args!("max_split_size_mb:{}", size / MIB))?;
        }
        if self.max_non_split_rounding != default.max_non_split_rounding.max(self.large_segment_size) {
            parts.push(format_args!("max_non_split_rounding_mb:{}", self.max_non_split_rounding / MIB))?;
        }
        if self.roundup_power2_divisions != default.roundup_power2_divisions {
            parts.push(format_args!("roundup_power2_divisions:["))?;
            for (interval, divisions) in self.roundup_power2_divisions.iter().enumerate() {
                let comma = if interval > 0 { "," } else { "" };
                write!(parts.f, "{comma}{}:{divisions}", 1u64 << interval)?;
            }
            parts.f.write_str("]")?;
        }
        if self.garbage_collection_threshold > 0.0 {
            parts.push(format_args!("garbage_collection_threshold:{}", self.garbage_collection_threshold))?;
        }
        if let Some(fraction) = self.memory_fraction {
            parts.push(format_args!("per_process_memory_fraction:{fraction}"))?;
        }
        if let Some(limit) = self.memory_limit {
            parts.push(format_args!("memory_limit:{}", Exactly(limit)))?;
        }
        if self.headroom != default.headroom {
            parts.push(format_args!("headroom:{}", Exactly(self.headroom)))?;
        }
        if self.max_views != default.max_views {
            parts.push(format_args!("max_views:{}", self.max_views))?;
        }
        if self.max_view_address_space != default.max_view_address_space {
            parts.push(format_args!("max_view_address_space:{}", Exactly(self.max_view_address_space)))?;
        }
        if let Some(size) = self.chunk_size {
            parts.push(format_args!("chunk_size_mb:{}", size / MIB))?;
        }
        if self.max_view_mappings != default.max_view_mappings {
            parts.push(format_args!("max_view_mappings:{}", self.max_view_mappings))?;
        }
        if self.sharing != default.sharing {
            parts.push(format_args!("sharing:{}", self.sharing.name()))?;
        }
        if self.split != default.split {
            parts.push(format_args!("split:{}", self.split.name()))?;
        }
        if let Some(bytes) = self.spill {
            parts.push(format_args!("spill:host={}", Exactly(bytes)))?;
        }
        if let Some(bytes) = self.backup_cache {
            parts.push(format_args!("backup_cache:{}", Exactly(bytes)))?;
        }
        if let Some(most) = self.wait_ms {
            parts.push(format_args!("wait_ms:{most}"))?;
        }
        if let Some(seconds) = self.idle_release_s {
            parts.push(format_args!("idle_release_s:{seconds}"))?;
        }
        if self.flight_recorder != default.flight_recorder {
            parts.push(format_args!("flight_recorder:{}", self.flight_recorder))?;
        }
        if let Some(path) = &self.flight_dump {
            parts.push(format_args!("flight_dump:{path}"))?;
        }
        if let Some(path) = &self.broker {
            parts.push(format_args!("broker:{path}"))?;
        }
        if self.broker_guarantee != default.broker_guarantee {
            parts.push(format_args!("broker_guarantee:{}", Exactly(self.broker_guarantee)))?;
        }
        if self.broker_weight != default.broker_weight {
            parts.push(format_args!("broker_weight:{}", self.broker_weight))?;
        }
        if self.broker_wait_ms != default.broker_wait_ms {
            parts.push(format_args!("broker_wait_ms:{}", self.broker_wait_ms))?;
        }
        if self.frag_limit != default.frag_limit {
            parts.push(format_args!("fragLimit:{}", self.frag_limit))?;
        }
        if self.reuse_limit != default.reuse_limit {
            parts.push(format_args!("reuseLimit:{}", self.reuse_limit))?;
        }
        if self.defrag_level != default.defrag_level {
            parts.push(format_args!("defragLevel:{}", self.defrag_level))?;
        }
        if self.auto_gc != default.auto_gc {
            parts.push(format_args!("autoGC:{}", self.auto_gc))?;
        }
        self.classic.write(&mut |part| parts.push(part))?;
        self.paddle.write(&mut |part| parts.push(part))?;
        self.guard.write(&mut |part| parts.push(part))
    }
}

/// Options that are written one behind the other, with commas between them.
struct Parts<'a, 'f> {
    f: &'a mut fmt::Formatter<'f>,
    written: bool,
}

impl Parts<'_, '_> {
    fn push(&mut self, part: fmt::Arguments<'_>) -> fmt::Result {
        if std::mem::replace(&mut self.written, true) {
            self.f.write_str(",")?;
        }
        self.f.write_fmt(part)
    }
}

fn is_known(key: &str) -> bool {
    names().any(|name| name == key)
}

fn unknown(key: &str) -> ConfigError {
    if let Some((option, instead)) = REMOVED.into_iter().find(|(option, _)| *option == key) {
        return ConfigError::Removed { what: "option", name: option, instead };
    }
    ConfigError::UnknownOption { found: key.to_owned(), nearest: near(key, names()) }
}

fn bad_value(option: &str, found: &str, expected: &str) -> ConfigError {
    ConfigError::BadValue { option: option.to_owned(), found: found.to_owned(), expected: expected.to_owned() }
}

fn whole<T: FromStr>(option: &str, value: &str, unit: &str) -> Result<T, ConfigError> {
    value.parse().map_err(|_| bad_value(option, value, &format!("a whole number of {unit}")))
}

fn mib(option: &str, value: &str) -> Result<u64, ConfigError> {
    let number = value.parse::<u64>().ok().and_then(|n| n.checked_mul(MIB)).filter(|n| *n <= 1 << 60);
    number.ok_or_else(|| bad_value(option, value, "a whole number of MiB"))
}

fn bytes(option: &str, value: &str, example: &str) -> Result<u64, ConfigError> {
    parse_bytes_with_unit(value).map_err(|error| {
        let expected = format!("a size with a unit, such as {example}, or None ({})", error.problem);
        bad_value(option, value, &expected)
    })
}

/// Returns the policy that took the place of one of earlier versions, and warns.
fn replaced(sharing: &str) -> Option<StreamSharing> {
    (sharing == "auto").then(|| {
        tracing::warn!("`sharing:auto` means `sharing:wait`: streams share freed memory at any time");
        StreamSharing::Wait
    })
}

/// What the value of `spill` may be.
const SPILL: &str = "`off`, or `host=SIZE` with a size such as 64GiB";

/// Reads `off`, or `host=64GiB`.
fn spill(value: &str) -> Option<Option<u64>> {
    match value.strip_prefix("host=") {
        Some(size) => parse_bytes_with_unit(size.trim()).ok().map(Some).filter(|size| *size != Some(0)),
        None => (value == "off").then_some(None),
    }
}

fn fraction(option: &str, value: &str) -> Result<f64, ConfigError> {
    value.parse::<f64>().ok().filter(|x| x.is_finite()).ok_or_else(|| bad_value(option, value, "a number from 0 to 1"))
}

/// Reads `4`, or `[256:1,512:2,>:4]`: the divisions from each power of two (in MiB) on. As in PyTorch, sizes below the
/// first named interval take its divisions, `>` applies from the last named interval on, and an interval between two
/// named ones stays off.
fn divisions(option: &str, value: &str) -> Result<RoundupDivisions, ConfigError> {
    let parse = |text: &str| {
        let number = text.parse::<u32>().ok().filter(|n| *n == 0 || n.is_power_of_two());
        number.ok_or_else(|| bad_value(option, text, "a power of two, or 0 for off"))
    };
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok([parse(value)?; ROUNDUP_INTERVALS]);
    };
    let mut out = [0; ROUNDUP_INTERVALS];
    let mut last = None;
    for pair in list.split(',') {
        let Some((interval, count)) = pair.split_once(':') else {
            return Err(bad_value(option, pair, "INTERVAL:DIVISIONS, the interval a power of two of MiB or `>`"));
        };
        let count = parse(count.trim())?;
        if interval.trim() == ">" {
            out[last.unwrap_or(0)..].fill(count);
            continue;
        }
        let Some(mib) = interval.trim().parse::<u64>().ok().filter(|n| n.is_power_of_two()) else {
            return Err(bad_value(option, interval, "a power of two of MiB, or `>`"));
        };
        let index = (mib.ilog2() as usize).min(ROUNDUP_INTERVALS - 1);
        if last.is_none() {
            out[..index].fill(count);
        }
        out[index] = count;
        last = Some(index);
    }
    Ok(out)
}

/// Splits `key:value,key:[a:b,c:d]` at the commas outside of brackets.
fn split_options(text: &str) -> Result<Vec<(&str, &str)>, ConfigError> {
    let syntax = |at, expected| ConfigError::Syntax { text: text.to_owned(), at, expected };
    let mut out = Vec::new();
    let mut depth = 0u32;
    let mut start = 0;
    for (at, ch) in text.char_indices().chain([(text.len(), ',')]) {
        match ch {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or_else(|| syntax(at, "no `]` without a `[`"))?,
            ',' if depth == 0 => {
                let part = &text[start..at];
                if !part.trim().is_empty() {
                    let Some((key, value)) = part.split_once(':') else { return Err(syntax(start, "`key:value`")) };
                    out.push((key.trim(), value.trim()));
                }
                start = at + ch.len_utf8();
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(syntax(text.len(), "a closing `]`"));
    }
    Ok(out)
}
