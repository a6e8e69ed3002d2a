//! PyTorch's syntax of options (`key:value,key:[a:b,c:d]`), read and written.
//!
//! Owns: the names of the options, and the text form of each value. `options.rs` checks the ranges. The syntax is that
//! of `PYTORCH_CUDA_ALLOC_CONF`, so that a setting can be copied as it is.

use super::guard::VALUES;
use super::options::{Arenas, Config, ConfigError, MIB, OPTIONS, Split, StrategyKind, StreamSharing, WITHOUT_EFFECT};
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
    /// `memory_limit:80GiB`, those of stitching: `sharing`, `max_view_mappings`, `max_views`
    /// and `max_view_address_space`, and those of guard mode: `guard`, `guard_sample`, `guard_min_size` and
    /// `guard_quarantine_mb`.
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

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            "strategy" => self.strategy = value.parse()?,
            "sharing" => {
                let policy = StreamSharing::ALL.into_iter().find(|policy| policy.name() == value);
                self.sharing = policy.ok_or_else(|| bad_value(key, value, "`never`, `completed`, `wait` or `auto`"))?;
            }
            "sharing_threshold" => self.sharing_threshold = Some(fraction(key, value)?),
            "arenas" => {
                let choice = Arenas::ALL.into_iter().find(|choice| choice.name() == value);
                self.arenas = choice.ok_or_else(|| bad_value(key, value, "`auto`, `always` or `off`"))?;
            }
            "split" => {
                let choice = Split::ALL.into_iter().find(|choice| choice.name() == value);
                self.split = choice.ok_or_else(|| bad_value(key, value, "`off` or `last_resort`"))?;
            }
            "wait_ms" => self.wait_ms = Some(whole(key, value, "milliseconds, or None")?),
            "chunk_size_mb" => self.chunk_size = Some(mib(key, value)?),
            "max_view_mappings" => self.max_view_mappings = whole(key, value, "mappings")?,
            "fragLimit" => self.frag_limit = whole(key, value, "bytes")?,
            "reuseLimit" => {
                self.reuse_limit = value.parse().map_err(|_| bad_value(key, value, "a number of at least 1"))?;
            }
            "max_views" => self.max_views = whole(key, value, "views")?,
            "max_view_address_space" => self.max_view_address_space = bytes(key, value, "4TiB")?,
            "memory_limit" => self.memory_limit = Some(bytes(key, value, "80GiB")?),
            "defragLevel" => self.defrag_level = whole(key, value, "attempts to skip")?,
            "guard" => self.guard.set(value).ok_or_else(|| bad_value(key, value, VALUES))?,
            "guard_sample" => self.guard.sample = whole(key, value, "allocations")?,
            "guard_min_size" => self.guard.min_size = bytes(key, value, "1MiB")?,
            "guard_quarantine_mb" => self.guard.quarantine = mib(key, value)?,
            "autoGC" => self.auto_gc = whole(key, value, "GiB")?,
            "backend" => match value {
                "native" => {}
                _ => return Err(bad_value(key, value, "`native` (cudaMallocAsync is not a strategy of seamalloc)")),
            },
            "expandable_segments" => match value {
                "True" => self.strategy = StrategyKind::Expandable,
                "False" if self.strategy == StrategyKind::Expandable => self.strategy = StrategyKind::default(),
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
            "per_process_memory_fraction" | "memory_fraction" => self.memory_fraction = Some(fraction(key, value)?),
            _ if WITHOUT_EFFECT.contains(&key) => {
                tracing::warn!(option = key, "this option of PyTorch has no effect here")
            }
            _ => return Err(unknown(key)),
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
            StrategyKind::Stitch => {}
            StrategyKind::Expandable => parts.push(format_args!("expandable_segments:True"))?,
            kind @ (StrategyKind::Caching | StrategyKind::Gmlake) => parts.push(format_args!("strategy:{kind}"))?,
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
        if let Some(threshold) = self.sharing_threshold {
            parts.push(format_args!("sharing_threshold:{threshold}"))?;
        }
        if self.arenas != default.arenas {
            parts.push(format_args!("arenas:{}", self.arenas.name()))?;
        }
        if self.split != default.split {
            parts.push(format_args!("split:{}", self.split.name()))?;
        }
        if let Some(most) = self.wait_ms {
            parts.push(format_args!("wait_ms:{most}"))?;
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

/// The names of all options.
fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.into_iter().chain(WITHOUT_EFFECT)
}

fn is_known(key: &str) -> bool {
    names().any(|name| name == key)
}

fn unknown(key: &str) -> ConfigError {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GuardOptions;

    #[test]
    fn pytorchs_options_are_read_as_pytorch_reads_them() {
        let config = Config::parse(
            "backend:native,max_split_size_mb:512, max_non_split_rounding_mb:64,garbage_collection_threshold:0.8,\
             per_process_memory_fraction:0.5,pinned_num_register_threads:8",
        )
        .unwrap();
        assert_eq!(config.max_split_size, Some(512 * MIB));
        assert_eq!(config.max_non_split_rounding, 64 * MIB);
        assert_eq!(config.garbage_collection_threshold, 0.8);
        assert_eq!(config.memory_fraction, Some(0.5));
        assert_eq!(config.strategy, StrategyKind::Stitch);
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse("large_segment_size_mb:32").unwrap().large_segment_size, 32 * MIB);
    }

    #[test]
    fn none_is_the_value_of_an_option_that_is_not_given() {
        for option in names() {
            assert_eq!(Config::parse(&format!("{option}:None")), Ok(Config::default()), "{option}");
        }
        let base = Config::parse("memory_limit:80GiB,strategy:gmlake").unwrap();
        assert_eq!(base.clone().overlaid("memory_limit:None,strategy:None"), Ok(base));
    }

    #[test]
    fn divisions_by_interval_follow_pytorchs_parser() {
        let parse = |text: &str| Config::parse(text).unwrap().roundup_power2_divisions;
        assert_eq!(parse("roundup_power2_divisions:4"), [4; 16]);
        let listed = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
        assert_eq!(&listed[..10], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(&listed[10..], &[8; 6], "`>` begins at the last interval named");
        let gap = parse("roundup_power2_divisions:[2:4,16:8]");
        assert_eq!(&gap[..6], &[4, 4, 0, 0, 8, 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, parts) in [
            ("max_split_sizemb:3", &["max_split_sizemb", "did you mean `max_split_size_mb`"] as &[_]),
            ("max_split_size_mb:2", &["max_split_size_mb", "`2`", "large_segment_size_mb (20)"]),
            ("max_split_size_mb:-5", &["`-5`", "whole number of MiB"]),
            ("max_split_size_mb:99999999999999999999", &["whole number"]),
            ("max_split_size_mb:18446744073709", &["whole number"]),
            ("expandable_segments:true", &["`true`", "`True` or `False`"]),
            ("expandable_segments", &["key:value", "byte 0"]),
            ("garbage_collection_threshold:1.5", &["1.5", "below 1"]),
            ("garbage_collection_threshold:0", &["above 0"]),
            ("garbage_collection_threshold:nan", &["nan"]),
            ("per_process_memory_fraction:2", &["from 0 to 1"]),
            ("roundup_power2_divisions:3", &["power of two"]),
            ("roundup_power2_divisions:[3:2]", &["`3`", "power of two of MiB"]),
            ("roundup_power2_divisions:[256:2", &["closing `]`"]),
            ("large_segment_size_mb:10", &["above 10"]),
            ("strategy:expandabel", &["expandabel", "did you mean `expandable`", "`caching`"]),
            ("strategy:zzz", &["unknown strategy `zzz`; there are `caching`"]),
            ("backend:cudaMallocAsync", &["native"]),
            ("sharing:always", &["`always`", "`completed`"]),
            ("split:on", &["`on`", "`last_resort`"]),
            ("wait_ms:1.5", &["`1.5`", "whole number of milliseconds, or None"]),
            ("chunk_size_mb:3", &["`3`", "even number of MiB"]),
            ("chunk_size_mb:0", &["`0`", "from 2"]),
            ("max_view_mappings:-1", &["whole number of mappings"]),
            ("max_views:many", &["`many`", "whole number of views"]),
            ("max_view_address_space:1PB", &["`1PB`", "unit is unknown", "4TiB"]),
            ("memory_limit:-1", &["memory_limit", "negative", "80GiB"]),
            ("memory_limit:80", &["`80`", "a size with a unit, such as 80GiB, or None", "no unit"]),
            ("memory_limit:0", &["`0`", "or None", "no unit"]),
            ("max_view_address_space:4398046511104", &["such as 4TiB", "no unit"]),
            ("memory_limits:1", &["did you mean `memory_limit`"]),
            ("memory_limits:None", &["did you mean `memory_limit`"]),
            ("memory_limit:none", &["`none`"]),
            ("fragLimit:512MiB", &["fragLimit", "`512MiB`", "whole number of bytes"]),
            ("fraglimit:5", &["did you mean `fragLimit`"]),
            ("reuseLimit:0.5", &["0.5", "at least 1"]),
            ("reuseLimit:inf", &["`inf`", "at least 1"]),
            ("defragLevel:-1", &["whole number"]),
            ("autoGC:1.5", &["whole number of GiB"]),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{text}: `{part}` is missing in `{error}`");
            }
        }
    }

    /// Names every field, so that a new one does not compile before it is here.
    #[test]
    fn every_option_is_printed_and_read_back() {
        let config = Config {
            strategy: StrategyKind::Gmlake,
            max_split_size: Some(256 << 20),
            max_non_split_rounding: 128 << 20,
            large_segment_size: 64 << 20,
            roundup_power2_divisions: [4; ROUNDUP_INTERVALS],
            garbage_collection_threshold: 0.6,
            memory_fraction: Some(0.25),
            memory_limit: Some(80 << 30),
            sharing: StreamSharing::Never,
            arenas: Arenas::Off,
            split: Split::LastResort,
            wait_ms: Some(250),
            sharing_threshold: Some(0.8),
            chunk_size: Some(2 << 20),
            max_view_mappings: 9,
            max_views: 7,
            max_view_address_space: 1 << 40,
            frag_limit: 1 << 28,
            reuse_limit: 2.5,
            defrag_level: 1,
            auto_gc: 80,
            guard: GuardOptions {
                page: true,
                canary: true,
                poison: false,
                streams: false,
                graphs: true,
                sample: 5,
                min_size: 77,
                quarantine: 3 << 30,
            },
        };
        let text = config.to_string();
        assert_eq!(Config::parse(&text).as_ref(), Ok(&config), "{text}");
        let default = Config::default();
        assert_eq!(Config::parse(&default.to_string()).as_ref(), Ok(&default));
    }

    #[test]
    fn every_name_of_an_option_is_known() {
        for option in OPTIONS.into_iter().chain(WITHOUT_EFFECT) {
            let unknown = matches!(Config::parse(&format!("{option}:?")), Err(ConfigError::UnknownOption { .. }));
            assert!(!unknown, "{option}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for text in [
            "",
            "expandable_segments:True",
            "strategy:stitch,max_view_mappings:9,sharing:never,chunk_size_mb:2",
            "sharing:wait",
            "sharing_threshold:0.5",
            "split:last_resort,arenas:off,wait_ms:0",
            "max_views:7,max_view_address_space:1.5GiB,memory_limit:80GiB",
            "memory_limit:1000001B",
            "memory_limit:0B",
            "strategy:gmlake,fragLimit:268435456,reuseLimit:2.5,defragLevel:1,autoGC:80",
            "large_segment_size_mb:64,max_split_size_mb:256,max_non_split_rounding_mb:128",
            "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.6,per_process_memory_fraction:0.25",
        ] {
            let config = Config::parse(text).unwrap();
            assert_eq!(Config::parse(&config.to_string()).unwrap(), config, "{config}");
        }
    }

    #[test]
    fn guard_mode_is_read_and_printed() {
        let guard = |text: &str| Config::parse(text).map(|config| config.guard);
        assert_eq!(guard(""), Ok(GuardOptions::OFF));
        assert!(!GuardOptions::OFF.is_on());
        for (text, printed) in [
            ("guard:True", "guard:on"),
            ("guard:1", "guard:on"),
            ("guard:all", "guard:all"),
            ("guard:on,guard:off", ""),
            ("guard:streams", "guard:streams"),
            ("guard:poison | page", "guard:page|poison"),
            ("guard:page|canary|poison|streams", "guard:on"),
            ("guard_sample:7,guard:page,guard_min_size:1MiB", "guard:page,guard_sample:7,guard_min_size:1048576B"),
            ("guard_quarantine_mb:64", "guard_quarantine_mb:64"),
        ] {
            let config = Config::parse(text).unwrap();
            assert_eq!(config.to_string(), printed, "{text}");
            assert_eq!(Config::parse(printed).as_ref(), Ok(&config), "{text}");
            assert_eq!(config.guard.is_on(), printed.contains("guard:"), "{text}");
        }
        for text in ["guard:poison", "guard:canary|streams", "guard:graphs", "guard:pages", "guard_sample:0", "guard:"]
        {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains("guard") && error.contains("expected"), "{text}: {error}");
        }
    }
}
