//! Tests in which options are read, checked and written.

use super::names::names;
use super::values::MIB;
use super::{Config, ConfigError, GuardOptions, StrategyKind, StreamSharing};

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
fn the_policy_that_went_means_the_one_that_took_its_place() {
    let config = Config::parse("sharing:auto").unwrap();
    assert_eq!((config.sharing, &config), (StreamSharing::Wait, &Config::default()));
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
        ("backend:cudamallocasync", &["native", "cudaMallocAsync"]),
        ("sharing:always", &["`always`", "`completed`"]),
        ("split:on", &["`on`", "`last_resort`"]),
        ("backup_cache:64", &["`64`", "32GiB"]),
        ("spill:64GiB", &["`64GiB`", "`host=SIZE`"]),
        ("spill:host=64", &["`host=64`", "64GiB"]),
        ("spill:host=0B", &["`host=0B`"]),
        ("idle_release_s:0", &["`0`", "whole number of seconds of at least 1"]),
        ("flight_recorder:-1", &["`-1`", "whole number of operations"]),
        ("flight_recorder:67108865", &["`67108865`", "up to 67108864, or 0"]),
        ("flight_dump:", &["``", "name of a file"]),
        ("broker:", &["``", "name of a file"]),
        ("broker_guarantee:-1", &["broker_guarantee", "negative", "8GiB"]),
        ("broker_weight:2", &["option `broker_weight` was removed", "a larger `broker_guarantee`"]),
        ("broker_wait_ms:soon", &["`soon`", "whole number of milliseconds"]),
        ("strategy:planned", &["strategy `planned` was removed", "use `stitch`"]),
        ("plan:auto", &["option `plan` was removed", "`strategy:stitch` needs no plan"]),
        ("arenas:off", &["option `arenas` was removed", "leave it out"]),
        ("split:before_growth", &["`before_growth`", "`off`, `last_resort` or `ungated`"]),
        ("memory_fraction:0.5", &["write `per_process_memory_fraction`"]),
        ("flight_dump:[a,b]", &["`[a,b]`", "without commas"]),
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
        ("exact_buffer_mb:1", &["`1`", "at least 2"]),
        ("buddy_capacity_mb:96", &["`96`", "a power of two"]),
        ("FLAGS_free_idle_chunk:yes", &["`yes`", "`True` or `False`"]),
        ("FLAGS_fraction_of_gpu_memory_to_use:0", &["`0`", "above 0"]),
        ("FLAGS_initial_gpu_memory_in_mb:2MiB", &["`2MiB`", "whole number of MiB"]),
        ("FLAGS_free_idle_chunks:1", &["did you mean `FLAGS_free_idle_chunk`"]),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: `{part}` is missing in `{error}`");
        }
    }
}

#[test]
fn every_name_of_an_option_is_known() {
    for option in names() {
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
        "spill:host=1.5GiB",
        "spill:off",
        "backup_cache:0B",
        "backup_cache:1.5GiB",
        "split:last_resort,wait_ms:0,idle_release_s:5",
        "flight_recorder:0",
        "flight_recorder:1024,flight_dump:/tmp/a:b.{device}.seam",
        "broker:auto,broker_guarantee:8GiB,broker_wait_ms:0",
        "max_views:7,max_view_address_space:1.5GiB,memory_limit:80GiB",
        "memory_limit:1000001B",
        "memory_limit:0B",
        "memory_limit:80GiB,headroom:1.5GiB",
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
    for text in ["guard:poison", "guard:canary|streams", "guard:graphs", "guard:pages", "guard_sample:0", "guard:"] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains("guard") && error.contains("expected"), "{text}: {error}");
    }
}
