// The table of the options. For each option, the table has its field with the default, its name in text, the syntax of
// its value, and its row of docs/options.md.
//
// To add an option, add a field with its rows here, and use the field. `options.rs` includes this file. From the table,
// the macro in `row.rs` makes the structs, their defaults, and the code that reads, prints and checks the options. The
// test `options_page` makes docs/options.md from the table.
//
// `@section` begins a section of the page. A field is written as in a struct, with its default. The options that set
// the field follow: `"name": syntax`, and then, where needed,
// - `only`: the strategies that heed the option. Without `only`, all strategies heed it.
// - `beside`: the options without which this option has no effect, for the tests. `effect.rs` has the rule.
// - `set`: the function that sets the option from text, if setting the field to the value is not enough.
// - `given`: the condition under which the option is printed. Without `given`, the option is printed if the field
//   differs from the default.
// - `valid`: the range of the field, which is checked after all options are read.
//
// At the end are the form of the value as a user types it, the default as typed, an example with another value, and
// when to change the option. Options are printed and listed in the order of the table. A number with a reason has the
// reason beside it.
options! {
    /// The options of an allocator. The defaults are PyTorch's, except that the strategy is `stitch`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Config at whole, const DEFAULT "The defaults." {
        @section "Which allocator", "";
        /// The strategy: how a request that no free block fits gets memory. `expandable_segments:True` is the same as
        /// [`StrategyKind::Expandable`]. All but `stitch`, `caching` and `expandable` need the feature `baselines`,
        /// which the command, C and Python have.
        strategy: StrategyKind = StrategyKind::Stitch;
        "strategy": StrategyName, set set_strategy,
            given |config| config.insists_on_strategy() && config.strategy != StrategyKind::Expandable,
            typed "a name", default "stitch", example "caching",
            when "to compare, or where the driver has no virtual memory (`caching`)";
        "expandable_segments": Spelled("True"), set set_expandable_segments,
            given |config| config.strategy == StrategyKind::Expandable,
            typed "`True` or `False`", default "False", example "True",
            when "never: PyTorch's name for `strategy:expandable`, so that its settings can be copied";
        "backend": Spelled("cudaMallocAsync"), set set_backend, given |_| false,
            typed "`native` or `cudaMallocAsync`", default "native", example "cudaMallocAsync",
            when "never: PyTorch's name for `strategy:malloc-async`; `native` changes nothing";
        /// Whether the program has chosen the strategy: by its name in text, by [`Self::with_strategy`] or
        /// [`Self::of_strategy`], or by setting this field. Then a device without the virtual memory that the strategy
        /// needs is an error, `Error::NoVirtualMemory`. Otherwise `caching` replaces the default strategy on such a
        /// device, with a warning (`Reports::fallback_from`). Any strategy but the default counts as chosen.
        strategy_named: bool = false;

        @section "PyTorch's own", "As in `PYTORCH_CUDA_ALLOC_CONF`.";
        /// The bytes of the segments that requests from 1 to 10 MiB share, and the unit in which expandable segments of
        /// large requests grow. A multiple of 2 MiB, more than 10 MiB.
        large_segment_size: u64 = LARGE_SEGMENT;
        "large_segment_size_mb": Mib, only &PYTORCH_LIKE, set set_large_segment_size,
            // PyTorch's lower bound: a segment must hold any request that shares one.
            valid |size, _| holds(
                *size > 10 * MIB && size.is_multiple_of(2 * MIB) && *size <= 1 << 40,
                "an even number of MiB above 10, up to 1048576",
            ),
            typed "MiB, even, above 10", default "20", example "64",
            when "rarely: fewer and larger `cudaMalloc`s. With `gmlake` and `stitch` only where plain segments are taken";
        /// Blocks of at least this many bytes are not split, and serve only requests of at least this size. `None`: no
        /// limit. At least [`Config::large_segment_size`]. As in PyTorch, blocks of expandable segments are split all
        /// the same.
        max_split_size: Option<u64> = None;
        "max_split_size_mb": Optional(Mib), only &[Caching, Expandable],
            valid |size, config| size.map_or(Ok(()), |size| at_least_a_segment(size, config)),
            typed "MiB, at least `large_segment_size_mb`", default "None", example "20",
            when "large blocks are cut up by small requests, with `caching`";
        /// By how many bytes an unsplit block of at least `max_split_size` may exceed the request it serves.
        max_non_split_rounding: u64 = LARGE_SEGMENT;
        "max_non_split_rounding_mb": Mib, only &[Caching, Expandable], beside "max_split_size_mb:20",
            given |config| config.max_non_split_rounding != LARGE_SEGMENT.max(config.large_segment_size),
            valid |size, config| at_least_a_segment(*size, config),
            typed "MiB, at least `large_segment_size_mb`", default "20", example "64",
            when "with `max_split_size_mb`, to let large requests take larger blocks";
        /// The number of equal parts between a power of two and the next, for each power from 1 MiB to 32 GiB. A
        /// request is rounded up to the end of a part. 0: off.
        roundup_power2_divisions: RoundupDivisions = [0; ROUNDUP_INTERVALS];
        "roundup_power2_divisions": Divisions, only &PYTORCH_LIKE,
            valid |divisions, _| holds(Divisions::wrong(divisions).is_none(), Divisions::EXPECTED),
            typed "a power of two or 0, or `[256:1,512:2,>:4]` by MiB", default "0", example "4",
            when "sizes differ a little from step to step, and the strategy does not stitch";
        /// While more than this part of the memory limit is held, unused segments older than the average are given back
        /// before a new one is taken. 0 (in text `None`): never. Without effect unless [`Config::memory_fraction`] is
        /// below 1, as in PyTorch.
        garbage_collection_threshold: f64 = 0.0;
        "garbage_collection_threshold": Threshold, only &[Caching], beside "per_process_memory_fraction:0.9",
            given |config| config.garbage_collection_threshold > 0.0,
            valid |part, _| holds(*part == 0.0 || (*part > 0.0 && *part < 1.0), Threshold::EXPECTED),
            typed "above 0, below 1", default "None", example "0.5",
            when "with a memory fraction, to give unused segments back before the limit is reached";

        @section "How much may be held", "";
        /// The part (0 to 1) of the device's memory that the allocator may hold. `None`, or 1: no limit.
        memory_fraction: Option<f64> = None;
        "per_process_memory_fraction": Optional(Fraction),
            valid |part, _| holds(part.is_none_or(|part| (0.0..=1.0).contains(&part)), Fraction::EXPECTED),
            typed "0 to 1", default "None", example "0.5",
            when "as `memory_limit`, where the sizes of GPUs differ";
        /// The most physical memory, in bytes, that the allocator may hold: all that it has taken from the driver and
        /// not given back. `None`: no limit. If `memory_fraction` allows less, the lower limit counts.
        memory_limit: Option<u64> = None;
        "memory_limit": Optional(Bytes("80GiB")),
            typed "a size with a unit, `80GiB`", default "None", example "200MiB",
            when "several programs share the GPU, or room has to be left for NCCL, cuBLAS or a second allocator";
        /// The bytes of the device that stay free for others: NCCL, cuBLAS, other processes. Before memory would grow
        /// into them, free memory is given back; if that is not enough, the request is refused. If others take these
        /// bytes, free memory goes back at a miss, or by `DeviceLending::enforce_headroom`. With `soft=` no request is
        /// refused: while the device has fewer bytes free, a miss gives back memory that no request needed for ten
        /// seconds, with `stitch` only. 0: none.
        headroom: Headroom = Headroom::soft(1 << 30);
        "headroom": HeadroomSize,
            typed "a size with a unit, `4GiB`, or `soft=` before it", default "soft=1GiB", example "350MiB",
            when "NCCL, cuBLAS or another process must find memory on the GPU whatever the rest is used for";

        @section "Stitching and streams", "Of the default strategy. Most programs need none of them.";
        /// The most views (addresses of stitched chunks) there may be, with `stitch`. Each is a reservation of
        /// addresses, and a search for the view unused longest looks at all of them.
        // The number is a quarter of `max_view_mappings`, so that views reach this bound before that of mappings only
        // if they have fewer than four chunks on average. Recorded jobs have some hundred views.
        max_views: usize = 16 << 10;
        "max_views": Whole("views"), only &[Stitch],
            typed "a number", default "16384", example "0",
            when "an out-of-memory report says to; 0 to see what a job is without stitching";
        /// The most bytes of address space that all views together may take, with `stitch`. Home, the permanent
        /// addresses of the chunks, takes up to twice the device's memory in addition. All devices of a process share
        /// one address space.
        // The driver was seen to reserve 64 TiB and no more. The views of eight devices take at most half of this
        // address space.
        max_view_address_space: u64 = 4 << 40;
        "max_view_address_space": Bytes("4TiB"), only &[Stitch],
            typed "a size with a unit", default "4TiB", example "64MiB",
            when "an out-of-memory report says to, or a process has more than eight devices (less)";
        /// The most bytes of a chunk of physical memory, with `stitch`: a multiple of 2 MiB, up to 1 GiB. Smaller
        /// chunks take more time in the driver (about 35 us each) and leave less memory unusable. `None`: 20 MiB, and
        /// more if a request would need over 130 chunks.
        chunk_size: Option<u64> = None;
        "chunk_size_mb": Optional(Mib), only &[Stitch],
            valid |size, _| holds(
                size.is_none_or(|size| (2 * MIB..=1024 * MIB).contains(&size) && size.is_multiple_of(2 * MIB)),
                "an even number of MiB from 2 to 1024",
            ),
            typed "MiB, even, 2 to 1024", default "None", example "2",
            when "growing takes the driver too long (more), or the last percent of memory matters (2)";
        /// The most chunks that all views together may map, with `stitch`. Each costs the host about 4.3 KB in the
        /// driver. At this bound, and at `max_views` and `max_view_address_space`, views unused longest are dropped. If
        /// all views are in use, memory grows in one piece, which needs no view.
        // This many mappings take 0.28 GB of host memory.
        max_view_mappings: usize = 64 << 10;
        "max_view_mappings": Whole("mappings"), only &[Stitch],
            typed "a number", default "65536", example "3",
            when "an out-of-memory report says to; less where the host has little memory";
        /// When memory freed on one stream may serve requests of another stream, with `stitch`.
        sharing: StreamSharing = StreamSharing::Wait;
        "sharing": Sharing, only &[Stitch],
            typed "a name", default "wait", example "never",
            when "ranks communicate in different orders, or streams are to be compared with PyTorch's own: `never`";
        /// Whether chunks that are partly in use are split before a request is refused, so that their free parts serve
        /// it.
        split: Split = Split::LastResort;
        "split": Choice(&Split::ALL, Split::name, "`off`, `last_resort` or `ungated`"), only &[Stitch],
            typed "a name", default "last_resort", example "off",
            when "threads use memory on streams that the allocator does not know, or a network card or disk reaches it: `off`";
        /// The most bytes of host memory for live memory that does not fit the device, with `stitch`. Before a request
        /// is refused, chunks that were not used for long are moved to host memory. Their addresses and contents stay;
        /// kernels that use them take longer. `None`: none.
        ///
        /// While the program allocates, no other thread may launch work that uses memory of the allocator.
        spill: Option<u64> = None;
        "spill": OrOff(HostSize), only &[Stitch],
            typed "`host=` and a size, or `off`", default "off", example "host=64GiB",
            when "what is live does not fit, a slower job is better than none, and no thread launches work while another allocates";
        /// The most bytes of page-locked host memory that are kept while unused, with `stitch`: from backups of tags
        /// (`Backup`) for the next tag that sleeps, and from spilled chunks for the next spill. Page-locking a GiB
        /// takes a third of a second for spilled chunks, and about half of that for backups. 0: none is kept. `None`:
        /// memory of backups is all kept until `Tags::release_backups`; memory of spilled chunks, up to the most that
        /// was spilled at once, until `Allocator::empty_cache`.
        backup_cache: Option<u64> = None;
        "backup_cache": Optional(Bytes("32GiB")), only &[Stitch],
            typed "a size", default "None", example "0B",
            when "the host needs the memory for other things: `0B` keeps none; then each sleep and each spill page-locks it anew";
        /// The longest time, in milliseconds, that one request may wait for freed memory that work on the GPU still
        /// uses, before it is refused, with `stitch`. The request waits for the memory freed first, until it can be
        /// served and an eighth of all such memory is free. `None`: as long as that takes, and in the end for the whole
        /// device. With a number, 0 included, the CPU does not wait for the device: no chunk is split, and ended
        /// private pools keep their memory until `Allocator::empty_cache` or `Allocator::trim`.
        wait_ms: Option<u64> = None;
        "wait_ms": Optional(Whole("milliseconds, or None")), only &[Stitch],
            typed "ms", default "None", example "0",
            when "a request must be refused in time rather than served late, as in serving";
        /// The longest time, in milliseconds, that a request which would be refused waits for memory that others give
        /// back: other threads, other processes on the GPU, and the program's callbacks. 0: no wait. Paddle's
        /// `FLAGS_gpu_allocator_retry_time`.
        retry_ms: u64 = 0;
        "retry_ms": Whole("milliseconds"),
            typed "ms", default "0", example "1000",
            when "others give memory back a moment later: processes that take turns on a GPU, threads of a server";
        /// The number of seconds without an allocation or a free after which the program's free memory goes back to the
        /// driver, with `stitch`, in C and PyTorch; in Rust by `IdleRelease`. The wait is at least 10 s for each GiB of
        /// this memory, a thousand times what the driver takes to give a GiB again. `None`: never.
        idle_release_s: Option<u64> = None;
        "idle_release_s": Optional(AtLeastOne("seconds of at least 1, or None")), only &[Stitch],
            typed "s, at least 1", default "None", example "1",
            when "a server idles, and other processes could use its memory meanwhile";

        @section "The last operations", "What is written for a look at a refusal ([live.md](live.md)).";
        /// How many of the last operations the flight recorder (`Reports::flight`) keeps, at 16 bytes of host memory
        /// each. At most 2^26. 0: none; the recorder then takes 4 KiB.
        // The recorder takes 256 KiB, an eighth or a quarter of a core's L2 cache, so that it drives little other data
        // out of the cache.
        flight_recorder: usize = 16 << 10;
        "flight_recorder": Whole("operations"),
            // 2^26 operations take 1 GiB.
            valid |operations, _| holds(*operations <= 1 << 26, "a whole number of operations up to 67108864, or 0"),
            typed "operations", default "16384", example "100",
            when "a longer history is wanted (more), or the host has little memory (0: none)";
        /// The file to which C and PyTorch write the flight recorder when a request is refused. Rust programs write it
        /// by `seamalloc_trace::FlightDump`. `{pid}` and `{device}` stand for the numbers of the process and of the
        /// device. `None`: no file.
        flight_dump: Option<String> = None;
        "flight_dump": Optional(FileName), valid |path, _| is_file_name(path),
            typed "a file's name, with `{pid}` and `{device}`", default "None", example "oom.pickle",
            when "a job runs out of memory now and then, and nobody is there to look";

        @section "Lending between processes",
            "Free memory for other processes on the device, and theirs for this one ([broker.md](broker.md)).";
        /// The broker by which processes of one user lend each other a device's free memory: its socket (`seamalloc
        /// broker`), or `auto` for `broker.sock` in `$XDG_RUNTIME_DIR/seamalloc` or `/tmp/seamalloc-UID`. When the
        /// device refuses a request, other processes that have opted in are asked to give free memory back, and this
        /// process likewise when they need some. For C and PyTorch; in Rust use `seamalloc_broker::Membership`. While
        /// no broker listens, everything is as with `off` (`None`); one that starts later is found within a second.
        broker: Option<String> = None;
        "broker": OrOff(FileName), valid |path, _| is_file_name(path),
            typed "a file's name, `auto` or `off`", default "off", example "auto",
            when "several processes of one user share a GPU, and their phases take turns";
        /// The bytes that this process keeps, with the option `broker`: others may ask only for memory that it holds
        /// beyond them. Memory goes back in whole pieces, so the process may keep less, by less than one piece (with
        /// `stitch` a chunk). Memory that it does not hold yet is not reserved for it.
        broker_guarantee: u64 = 0;
        "broker_guarantee": Bytes("8GiB"), beside "broker:auto",
            typed "a size with a unit", default "0B", example "1GiB",
            when "a process must not take time to get back what it needs all the time";
        /// The longest time, in milliseconds, that one request may wait for memory of other processes before it is
        /// refused, with the option `broker`. If no other process has opted in, requests do not wait. 0: the others are
        /// asked once.
        // Longer than a phase: training and generation that take turns on a GPU have phases of seconds.
        broker_wait_ms: u64 = 10_000;
        "broker_wait_ms": Whole("milliseconds"), beside "broker:auto",
            typed "ms", default "10000", example "0",
            when "phases of others last longer (more); a request must be refused in time (less)";

        @section "GMLake's", "Of the strategy `gmlake`, under the names of its release.";
        /// `fragLimit`: requests of fewer bytes are not stitched, with `gmlake`. A lower limit saves memory but costs
        /// driver calls.
        // With 2 MiB, every large request may be stitched. The default of GMLake's release is 512 MiB
        // (CUDACachingAllocator.cpp:2715); its tutorial says to lower the limit if too much memory stays fragmented,
        // and to raise it if stitching does not end. With 2 MiB, stitching ends on every recorded job, and two of the
        // jobs reserve a fifth to a third less than with 512 MiB.
        frag_limit: u64 = 2 << 20;
        "fragLimit": Whole("bytes"), only &[Gmlake],
            typed "bytes", default "2097152", example "67108864",
            when "to run it as released: 536870912";
        /// `reuseLimit`: an inactive stitched block may be up to this many times as large as the request that it
        /// serves, with `gmlake`. 1, the least, allows no larger block.
        // The default of GMLake's release, and the value in all of its examples.
        reuse_limit: f64 = 10.0;
        "reuseLimit": Number("a number of at least 1"), only &[Gmlake],
            valid |limit, _| holds(*limit >= 1.0 && limit.is_finite(), "a number of at least 1"),
            typed "at least 1", default "10", example "1",
            when "stitched blocks are much larger than the requests that they serve (less)";
        /// `defragLevel`: when the strategy `gmlake` stitches. 0: if no free block is large enough; 1: only if memory
        /// cannot grow either; 2: only after all cached memory was given back too; 3 and more: never.
        defrag_level: u32 = 0;
        "defragLevel": Whole("attempts to skip"), only &[Gmlake],
            typed "0 to 3", default "0", example "3",
            when "stitching costs too much (more: later)";
        /// `autoGC`: the address space of all stitched blocks, in GiB, above which those unused longest are dropped
        /// after a stitch, with `gmlake`. Blocks in use, or that the GPU may still use, stay even beyond it. Each GiB
        /// costs the host 2.2 MB in the driver (512 mappings of 4.3 KB).
        // The default of GMLake's release (CUDACachingAllocator.cpp:2729): 512,000 mappings, which cost the host 2.2
        // GB. The README of the release sets 80, which holds the same memory with slightly more driver calls.
        auto_gc: u64 = 1000;
        "autoGC": Whole("GiB"), only &[Gmlake],
            typed "GiB", default "1000", example "0",
            when "stitched blocks take the host too much memory (less)";

        @section "Guard mode", "Finds mistakes of the program, slowly: [guard.md](guard.md). Of every strategy.";
        /// Guard mode, which finds mistakes of the program, at a high cost. Off by default, and free of cost then.
        guard: GuardOptions = GuardOptions::OFF;
        "guard": GuardParts, set set_guard, given |config| config.guard.names_parts(),
            valid |guard, _| holds(guard.page || !(guard.canary || guard.poison || guard.graphs), GuardParts::EXPECTED),
            typed "`on`, `off`, `all`, or of `page`, `canary`, `poison`, `streams`, `graphs` some, joined by `|`",
            default "off", example "page",
            when "results are wrong, or an illegal address is reported, and memory is suspected";
        /// The options of the strategies `exact` and `buddy`.
        classic: ClassicOptions = ClassicOptions::DEFAULT;
        /// The flags of the strategies of Paddle.
        paddle: PaddleFlags = PaddleFlags::DEFAULT;
    }

    /// Guard mode, which finds mistakes of the program. Off by default.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GuardOptions at guard, pub const OFF "Guard mode that looks for nothing." {
        @section "Guard mode", "";
        /// `page`: addresses without memory follow each allocation, and freed allocations are unmapped, so that the GPU
        /// reports a use beyond the end or after the free as an illegal address. Each allocation takes at least 2 MiB.
        page: bool = false;
        /// `canary`: the bytes before and behind an allocation are filled, and checked when the allocation is freed.
        /// Needs `page`.
        canary: bool = false;
        /// `poison`: freed memory is filled, and checked when it is unmapped. Needs `page`.
        poison: bool = false;
        /// `streams`: finds frees of memory that another stream still uses, without `record_stream`. Which stream uses
        /// memory is known only as far as the program reports it.
        streams: bool = false;
        /// `graphs`: allocations of a stream capture are guarded too, and stay mapped until their private pool ends.
        /// Their memory serves no second allocation, so a graph takes much more memory. Needs `page`.
        graphs: bool = false;
        /// `guard_sample`: of this many allocations one is guarded, at random. 1: each.
        sample: u64 = 1;
        "guard_sample": Whole("allocations"), beside "guard:page",
            valid |sample, _| holds(*sample > 0, "a whole number from 1"),
            typed "a number, at least 1", default "1", example "2",
            when "guard mode is too slow: one allocation in so many";
        /// `guard_min_size`: smaller allocations, in bytes, are not guarded.
        min_size: u64 = 0;
        "guard_min_size": InBytes(Bytes("1MiB")), beside "guard:page",
            typed "a size with a unit", default "0B", example "1MiB",
            when "guard mode takes too much memory: each guarded allocation takes 2 MiB at least";
        /// `guard_quarantine_mb`, in bytes: the most address space of freed allocations that is kept from reuse. Beyond
        /// it the oldest is given back first.
        // Each allocation takes at least 6 MiB of addresses, so up to 43,690 freed allocations are kept. Each of them
        // costs the driver a reservation, and the host some 200 bytes.
        quarantine: u64 = 256 << 30;
        "guard_quarantine_mb": Mib, beside "guard:page",
            typed "MiB", default "262144", example "64",
            when "a use long after the free is looked for (more), or the host runs short (less)";
    }

    /// The sizes of the pieces in which the strategies `exact` and `buddy` take memory from the driver.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClassicOptions at classic, pub const DEFAULT "The sizes of the tutorial that the strategies follow." {
        @section "Classic strategies", "";
        /// `exact_buffer_mb`, in bytes: the size of the buffers from which the strategy `exact` cuts its blocks.
        /// Smaller if the driver has less memory, larger for a larger request.
        exact_buffer: u64 = 5 << 30;
        "exact_buffer_mb": Mib, only &[Exact], valid |size, _| holds(*size >= 2 * MIB, "at least 2"),
            typed "MiB, at least 2", default "5120", example "64", when "the device is small";
        /// `buddy_capacity_mb`, in bytes: the size of the trees of the strategy `buddy`, a power of two. Smaller if the
        /// driver has less memory, larger for a larger request.
        buddy_capacity: u64 = 4 << 30;
        "buddy_capacity_mb": Mib, only &[Buddy],
            valid |size, _| holds(size.is_power_of_two() && *size >= 2 * MIB, "a power of two, at least 2"),
            typed "MiB, a power of two", default "4096", example "64", when "the device is small";
    }

    /// The flags of the strategies `paddle-…`. In text each flag has the prefix `FLAGS_`, and switches are `True` or
    /// `False`, or 1 or 0. The defaults are Paddle's (`paddle/common/flags.cc`, `auto_growth_best_fit_allocator.cc`),
    /// except for `vmm_v2_…`, whose default was chosen here, and `use_stream_safe_cuda_allocator`, which is off.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PaddleFlags at paddle,
        pub const DEFAULT "Paddle's defaults, but for `vmm_v2_large_pool_handle_size` and `use_stream_safe_cuda_allocator`."
    {
        @section "Flags of Paddle",
            "Under Paddle's names. When to touch them is Paddle's documentation's to say; here they are there to compare.";
        /// `FLAGS_free_idle_chunk`: a chunk goes back to the driver once no block in it is live (`paddle-auto-growth`).
        free_idle_chunk: bool = false;
        "FLAGS_free_idle_chunk": Switch, only &[PaddleAutoGrowth],
            typed "`True` or `False`, 1 or 0", default "False", example "1", when "";
        /// `FLAGS_free_when_no_cache_hit`: all idle chunks go back before a new one is taken (`paddle-auto-growth`).
        free_when_no_cache_hit: bool = false;
        "FLAGS_free_when_no_cache_hit": Switch, only &[PaddleAutoGrowth],
            typed "`True` or `False`, 1 or 0", default "False", example "1", when "";
        /// `FLAGS_auto_growth_chunk_size_in_mb`, in bytes: the least size of a chunk (`paddle-auto-growth`). 0: the
        /// size of the request.
        auto_growth_chunk_size: u64 = 0;
        "FLAGS_auto_growth_chunk_size_in_mb": Mib, only &[PaddleAutoGrowth],
            typed "MiB; 0: as large as the request", default "0", example "64", when "";
        /// `FLAGS_small_pool_size_in_mb`, in bytes: requests of up to this many bytes have chunks of their own, the
        /// small pool (`paddle-auto-growth`). 0: all requests share chunks.
        small_pool_size: u64 = 0;
        "FLAGS_small_pool_size_in_mb": Mib, only &[PaddleAutoGrowth],
            typed "MiB; 0: no such pool", default "0", example "1", when "";
        /// `FLAGS_small_pool_auto_growth_chunk_size_in_mb`, in bytes: the least size of a chunk of the small pool.
        small_pool_auto_growth_chunk_size: u64 = 0;
        "FLAGS_small_pool_auto_growth_chunk_size_in_mb": Mib, only &[PaddleAutoGrowth], beside "FLAGS_small_pool_size_in_mb:1",
            typed "MiB; 0: as large as the request", default "0", example "8", when "";
        /// `FLAGS_large_pool_auto_growth_chunk_size_in_mb`, in bytes: the least size of a chunk for larger requests, if
        /// there is a small pool.
        large_pool_auto_growth_chunk_size: u64 = 0;
        "FLAGS_large_pool_auto_growth_chunk_size_in_mb": Mib, only &[PaddleAutoGrowth], beside "FLAGS_small_pool_size_in_mb:1",
            typed "MiB; 0: as large as the request", default "0", example "64", when "";
        /// `FLAGS_initial_gpu_memory_in_mb`, in bytes: the size of a pool's first chunk. 0:
        /// `FLAGS_fraction_of_gpu_memory_to_use` of the free memory.
        initial_gpu_memory: u64 = 0;
        "FLAGS_initial_gpu_memory_in_mb": Mib, only &[PaddleNaiveBestFit, PaddleThreadLocal],
            typed "MiB; 0: by the fraction", default "0", example "64", when "";
        /// `FLAGS_reallocate_gpu_memory_in_mb`, in bytes: the size of a pool's later chunks. 0:
        /// `FLAGS_fraction_of_gpu_memory_to_use` of the free memory.
        reallocate_gpu_memory: u64 = 0;
        "FLAGS_reallocate_gpu_memory_in_mb": Mib, only &[PaddleNaiveBestFit, PaddleThreadLocal],
            typed "MiB; 0: by the fraction", default "0", example "64", when "";
        /// `FLAGS_use_stream_safe_cuda_allocator`: frees follow the rule of Paddle's `StreamSafeCUDAAllocator` (all
        /// `paddle-…`). An event is recorded when a stream is named, not at the free, so a program must give a stream
        /// its work before naming the stream. A request that finds too little memory does not wait for events. Off by
        /// default, unlike in Paddle: seamalloc's own rule waits for at least as much.
        use_stream_safe_cuda_allocator: bool = false;
        "FLAGS_use_stream_safe_cuda_allocator": Switch, only &StrategyKind::PADDLE,
            typed "`True` or `False`, 1 or 0", default "False", example "1", when "";
        /// `FLAGS_vmm_v2_large_pool_handle_size_in_mb`, in bytes: the size of a piece of physical memory for requests
        /// of 2 MiB and more (`paddle-vmm`).
        vmm_v2_large_pool_handle_size: u64 = 20 * MIB;
        "FLAGS_vmm_v2_large_pool_handle_size_in_mb": Mib, only &[PaddleVmm],
            valid |size, _| holds(
                *size > 0 && size.is_multiple_of(2 * MIB) && *size <= 1 << 40,
                "an even number of MiB from 2 to 1048576",
            ),
            typed "MiB, even", default "20", example "2", when "";
        /// `FLAGS_cuda_malloc_async_pool_memory_throttle_ratio`: `malloc-async` has a stream for frees of memory that
        /// several streams used. While allocated memory and the frees pending there exceed this part (0 to 1) of the
        /// device's memory, a request's stream waits for that stream.
        cuda_malloc_async_pool_memory_throttle_ratio: f64 = 0.8;
        "FLAGS_cuda_malloc_async_pool_memory_throttle_ratio": Fraction, only &[MallocAsync],
            valid |ratio, _| holds((0.0..=1.0).contains(ratio), Fraction::EXPECTED),
            typed "0 to 1", default "0.8", example "0.1", when "";
        /// `FLAGS_fraction_of_gpu_memory_to_use`: the part of the device's free memory that a chunk takes
        /// (`paddle-naive-best-fit`, `paddle-thread-local`).
        fraction_of_gpu_memory_to_use: f64 = 0.92;
        "FLAGS_fraction_of_gpu_memory_to_use": Fraction, only &[PaddleNaiveBestFit, PaddleThreadLocal],
            valid |part, _| holds(*part > 0.0 && *part <= 1.0, "a number above 0, up to 1"),
            typed "above 0, up to 1", default "0.92", example "0.1", when "";
    }
}
