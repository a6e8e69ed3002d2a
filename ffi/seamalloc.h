// seamalloc: a GPU memory allocator that stitches physical CUDA memory into contiguous addresses.
//
// Generated from ffi/src: change it there. docs/c-api.md is a page about it.
//
// What all functions have in common:
// - They return SEAM_STATUS_OK or an error; seam_last_error_text says what it was, in words. None aborts, throws or exits.
// - Addresses are those of the device; the library never follows one. NULL is no memory, and is freed by doing nothing.
// - A pointer to a result must be valid, or NULL, which is refused where the result is needed. Results are zero where a
//   function fails. Texts end in a NUL and are UTF-8; names of files need not be.
// - Any thread may call any function at any time, also those that destroy what others use; but filters and sources of
//   private pools, and observers, may call none.
// - In a process that was forked from one with allocators every function answers SEAM_STATUS_FORKED and touches nothing.
//   Only fork() is noticed, not a bare clone().


#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The version of the binary interface that this header describes; `seam_abi_version` answers that of the library. The
// number is in the library's soname too. It grows with every change that would break a compiled program; what is
// added (a function, a field at the end of a struct that begins with its size, a status) leaves it as it is.
#define SEAM_ABI_VERSION 1

// As a limit: none.
#define SEAM_NO_LIMIT UINT64_MAX

// For `flags` of `seam_pool_begin_*`: a stream capture is under way from begin to end, so that the allocator makes no call
// that a capture forbids, in any thread. Begin before the capture does, end after its end.
#define SEAM_POOL_CAPTURING 1

// For `backup` of `seam_pool_sleep`: what live blocks hold is kept in host memory.
#define SEAM_BACKUP_HOST 0

// The contents of live blocks are lost: the blocks keep their addresses, and hold anything after waking.
#define SEAM_BACKUP_DISCARD 1

// The contents of live blocks are kept in a file, which must not exist.
#define SEAM_BACKUP_FILE 2

// The contents of live blocks are kept in page-locked host memory, which is copied to and from at the speed of
// the link, and kept for the next sleep.
#define SEAM_BACKUP_PINNED 3

// For `stage` of `seam_sleep_notice`: a tag is about to sleep.
#define SEAM_SLEEP_BEFORE 0

// The tag sleeps: it fell asleep, or waking it failed.
#define SEAM_SLEEP_ASLEEP 1

// The tag is about to wake.
#define SEAM_SLEEP_BEFORE_WAKE 2

// The tag is awake: it woke, or sleeping failed.
#define SEAM_SLEEP_AWAKE 3

// For `flags` of `seam_pool_open_with`: each segment is one block, and what a request leaves of it serves no other. PyTorch's
// `no_split`.
#define SEAM_POOL_UNSPLIT 2

// For `advice` of `seam_advise`: the allocation is not used for a while, and is spilled first.
#define SEAM_ADVICE_COLD 0

// No access advice has been given for the allocation.
#define SEAM_ADVICE_NORMAL 1

// The allocation is used all the time: it is spilled last, and comes back to the device at once if there is room.
#define SEAM_ADVICE_HOT 2

// The result of a function. After anything but `SEAM_STATUS_OK` nothing has changed for live allocations, and
// `seam_last_error_text` says more.
typedef enum {
    // The function did what was asked.
    SEAM_STATUS_OK = 0,
    // An argument is NULL that may not be, a text is not UTF-8, a struct says a size that it cannot have.
    SEAM_STATUS_INVALID_ARGUMENT = 1,
    // No allocator has this handle: it was destroyed, or never created.
    SEAM_STATUS_INVALID_HANDLE = 2,
    // Too little memory. Free some and try again; the text is a report.
    SEAM_STATUS_OUT_OF_MEMORY = 3,
    // No device has as much memory as was asked for.
    SEAM_STATUS_REQUEST_TOO_LARGE = 4,
    // No live allocation of this allocator starts at the address: freed twice, or of another allocator.
    SEAM_STATUS_INVALID_ADDRESS = 5,
    // The stream is one that memory cannot be ordered by (`cudaStreamPerThread`).
    SEAM_STATUS_INVALID_STREAM = 6,
    // There is no such private pool, or nobody uses it any more.
    SEAM_STATUS_UNKNOWN_POOL = 7,
    // Requests are routed to the private pool already.
    SEAM_STATUS_POOL_ROUTED = 8,
    // No requests are routed to the private pool.
    SEAM_STATUS_POOL_NOT_ROUTED = 9,
    // An option is unknown, or has a value that it cannot take.
    SEAM_STATUS_OPTIONS = 10,
    // The device's name is none, there is no such device, or it cannot be opened.
    SEAM_STATUS_DEVICE = 11,
    // The strategy needs virtual memory management, or pools of stream-ordered memory, which the device does not have;
    // `strategy:caching` does not.
    SEAM_STATUS_NO_VIRTUAL_MEMORY = 12,
    // A driver call failed otherwise than for want of memory. `seam_last_driver_status` has its `CUresult`.
    SEAM_STATUS_DRIVER = 13,
    // A file could not be read or written, or the recorded history does not make a trace.
    SEAM_STATUS_FILE = 14,
    // The buffer is too small; the length that is needed was stored.
    SEAM_STATUS_BUFFER_TOO_SMALL = 15,
    // The process is a fork of the one that used the library: it can use none of the parent's memory.
    SEAM_STATUS_FORKED = 16,
    // A callback that runs under the allocator's lock (a filter or a source of a private pool, an observer) called the
    // library.
    SEAM_STATUS_REENTRANT = 17,
    // As many allocators exist as can (1,024).
    SEAM_STATUS_TOO_MANY_ALLOCATORS = 18,
    // A rule that always holds inside the library did not. Please report it.
    SEAM_STATUS_INTERNAL = 19,
    // A block of a private pool cannot be handed out again where it was.
    SEAM_STATUS_NOT_RESTORABLE = 20,
    // The private pool has memory already, or segments of its own: they are chosen once, before it has any.
    SEAM_STATUS_POOL_IN_USE = 21,
    // The source of a private pool failed otherwise than for want of memory, or gave an address that cannot be.
    SEAM_STATUS_SOURCE = 22,
    // Memory cannot be shared with other processes, or what one shared cannot be opened: a bad handle, a process that is
    // gone, memory that it has freed; or with other devices, where the strategy's memory is the driver's (`malloc-async`).
    SEAM_STATUS_IPC = 23,
    // The host, not the device, has too little memory: for the library's tables, or for the text of an error.
    SEAM_STATUS_HOST_MEMORY = 24,
    // The private pool sleeps: it must wake before memory of it is asked for, or shared.
    SEAM_STATUS_POOL_ASLEEP = 25,
    // The private pool cannot sleep, or not now; the text says why.
    SEAM_STATUS_NOT_SLEEPABLE = 26,
    // An allocation cannot grow in place, or not now, or what is asked cannot be done with one that does; the text says why.
    SEAM_STATUS_NOT_GROWABLE = 27,
    // An allocation was to grow beyond the addresses that were reserved for it.
    SEAM_STATUS_BEYOND_CAPACITY = 28,
} seam_status;

// The kind of an event. Names and meanings are those of PyTorch's memory snapshots.
typedef enum {
    // A block was handed out; bytes as requested.
    SEAM_ACTION_ALLOC = 0,
    // The program freed a block; bytes as requested.
    SEAM_ACTION_FREE_REQUESTED = 1,
    // Every stream has finished with a freed block; bytes as requested.
    SEAM_ACTION_FREE_COMPLETED = 2,
    // A segment was taken from the driver.
    SEAM_ACTION_SEGMENT_ALLOC = 3,
    // A segment was given back to the driver.
    SEAM_ACTION_SEGMENT_FREE = 4,
    // Physical memory was mapped into a segment.
    SEAM_ACTION_SEGMENT_MAP = 5,
    // Physical memory was unmapped from a segment and given back.
    SEAM_ACTION_SEGMENT_UNMAP = 6,
    // A request could not be met. The address holds the device's free bytes.
    SEAM_ACTION_OOM = 7,
    // Memory left a segment for another, of which the next `SEAM_ACTION_SEGMENT_JOINED` tell: a stitched block, which is a
    // segment of its own as long as it is live, took it or gave it back, or it serves other requests. To the driver
    // nothing changed; PyTorch's snapshots call it `segment_unmap`.
    SEAM_ACTION_SEGMENT_LEFT = 8,
    // Memory that had left other segments is part of this one; PyTorch's snapshots call it `segment_map`.
    SEAM_ACTION_SEGMENT_JOINED = 9,
    // Memory of live blocks was spilled: a range at home has host memory from now on. PyTorch's snapshots have neither this
    // nor the next three.
    SEAM_ACTION_SPILLED = 10,
    // A range that was spilled has memory of the device again.
    SEAM_ACTION_RETURNED = 11,
    // A private pool fell asleep, and this range of it has no memory from now on.
    SEAM_ACTION_ASLEEP = 12,
    // A range that slept has memory again.
    SEAM_ACTION_AWAKE = 13,
} seam_action;

// The state of a block.
typedef enum {
    // Free.
    SEAM_BLOCK_STATE_INACTIVE = 0,
    // Handed out.
    SEAM_BLOCK_STATE_ACTIVE_ALLOCATED = 1,
    // Freed by the program, still used by other streams.
    SEAM_BLOCK_STATE_ACTIVE_PENDING_FREE = 2,
} seam_block_state;

// An allocator: a number, not a pointer. It is never given twice, so that one that was destroyed is refused
// (`SEAM_STATUS_INVALID_HANDLE`). 0 is none.
typedef uint64_t seam_allocator;

// A CUDA stream, `cudaStream_t` or `CUstream`. NULL and `cudaStreamLegacy` are the default stream.
// `cudaStreamPerThread` is refused: the handle means a different stream in each thread, and the allocator orders the
// reuse of memory by stream. Any other value must be a live stream of the allocator's device. The library cannot check
// this. The stream must stay alive until `seam_forget_stream`, or until the allocator is destroyed. On a simulated
// device every value is a stream.
typedef void *seam_stream;

// A request for which there is too little memory, as a callback is told of it. Bytes.
typedef struct {
    // Of this struct, in the library: fields beyond it are not there.
    size_t size;
    // The bytes that the program asked for.
    uint64_t requested;
    // The stream it is for.
    seam_stream stream;
    // The bytes that the allocator holds of the device.
    uint64_t reserved;
    // Of `reserved`, in blocks that the program has not freed.
    uint64_t allocated;
    // The most bytes that the allocator may hold, or `SEAM_NO_LIMIT`.
    uint64_t limit;
} seam_memory_pressure;

// Frees what the program can do without, and answers whether it did. Called by the thread whose request it is, without
// a lock of the library: it may call every function. It may be called by several threads at once. It must return (no
// exception, no longjmp).
typedef bool (*seam_pressure_callback)(const seam_memory_pressure *pressure, void *user);

// One figure over time.
typedef struct {
    // Now.
    uint64_t current;
    // The most at any time since `seam_reset_peak_stats`.
    uint64_t peak;
    // All that was ever added, since `seam_reset_accumulated_stats`.
    uint64_t allocated;
    // All that was ever taken away, since then.
    uint64_t freed;
} seam_stat;

// One figure for all memory, for requests of up to 1 MiB, and for larger ones.
typedef struct {
    // Both together.
    seam_stat all;
    // Small requests.
    seam_stat small_pool;
    // Large requests.
    seam_stat large_pool;
} seam_stat_by_pool;

// The statistics of an allocator: its operations so far, and the memory that it holds. Fields that end in `_bytes`
// are bytes, in `_ns` nanoseconds, others count. As far as PyTorch has them (`torch.cuda.memory_stats`), names and
// meanings are its.
typedef struct {
    // Of this struct: set it to `sizeof(seam_stats)` before the call. It comes back as what was filled in.
    size_t size;
    // Blocks handed out and not freed by the program.
    seam_stat_by_pool allocation;
    // Segments taken whole from the device (strategy `caching`).
    seam_stat_by_pool segment;
    // Blocks handed out, or freed and waiting for other streams.
    seam_stat_by_pool active;
    // Free blocks of a segment that has others in it (strategy `caching`).
    seam_stat_by_pool inactive_split;
    // Bytes of the blocks in `allocation`.
    seam_stat_by_pool allocated_bytes;
    // Bytes held of the device.
    seam_stat_by_pool reserved_bytes;
    // Bytes of the blocks in `active`.
    seam_stat_by_pool active_bytes;
    // Bytes of the blocks in `inactive_split`.
    seam_stat_by_pool inactive_split_bytes;
    // Bytes as requested, before rounding, of the blocks in `active`.
    seam_stat_by_pool requested_bytes;
    // Blocks of at least `max_split_size`.
    seam_stat oversize_allocations;
    // Segments of at least `max_split_size`.
    seam_stat oversize_segments;
    // Requests for which all cached memory was given back before they were tried once more.
    uint64_t num_alloc_retries;
    // Requests that could not be met.
    uint64_t num_ooms;
    // How often the CPU waited for all streams.
    uint64_t num_sync_all_streams;
    // How often memory was taken from the device.
    uint64_t num_device_alloc;
    // How often memory was given back to the device.
    uint64_t num_device_free;
    // Mappings of physical chunks that exist now.
    uint64_t mappings;
    // Of these, the ones in views.
    uint64_t view_mappings;
    // Views that exist now.
    uint64_t views;
    // Bytes of address space that they take.
    uint64_t view_address_space_bytes;
    // Views built by stitching.
    uint64_t views_built;
    // Requests served by a view that was there already.
    uint64_t views_reused;
    // Views unmapped again.
    uint64_t views_dropped;
    // GPU-side waits of a stream for work of another on freed memory.
    uint64_t stream_waits;
    // Bytes of free memory handed from one stream to another behind such waits.
    uint64_t stream_wait_bytes;
    // Bytes of freed memory that recorded streams still used, handed out behind such waits.
    uint64_t recorded_wait_bytes;
    // Bytes by which memory grew rather than make a stream wait for work of the present round.
    uint64_t overlap_growth_bytes;
    // Bytes of host memory that the allocator's tables take, about.
    uint64_t host_bytes;
    // Operations that made a driver call.
    uint64_t stalls;
    // Time of them in the driver, all together.
    uint64_t stall_total_ns;
    // The longest, since `seam_reset_peak_stats`.
    uint64_t stall_worst_ns;
    // With `split:last_resort`: chunks that were split.
    uint64_t splits;
    // The chunks that they became.
    uint64_t split_parts;
    // Bytes that were copied for that.
    uint64_t split_copied_bytes;
    // Requests for which the CPU waited until work on the GPU was done with freed memory (see the option `wait_ms`).
    uint64_t pending_waits;
    // For how many events they did.
    uint64_t pending_wait_events;
    // How often they waited for all work of the device, at last.
    uint64_t pending_wait_device;
    // How many of them ended at the bound.
    uint64_t pending_wait_expired;
    // The time that they waited, all together.
    uint64_t pending_wait_total_ns;
    // The longest that one of them waited, since `seam_reset_peak_stats`.
    uint64_t pending_wait_worst_ns;
    // With the option `headroom`: how often the device was asked how much is free, to give memory back where that is too little.
    uint64_t headroom_looks;
    // How often it was too little.
    uint64_t headroom_short;
    // How often memory went back for it.
    uint64_t headroom_yields;
    // The bytes that went back.
    uint64_t headroom_yielded_bytes;
    // How often a tag fell asleep.
    uint64_t sleeps;
    // How often one woke.
    uint64_t wakes;
    // Bytes that waking all tags that sleep takes from the device.
    uint64_t asleep_bytes;
    // Page-locked host memory for backups of tags.
    uint64_t page_locked_bytes;
    // With `spill:host=SIZE`: bytes of host memory in which live memory lies. No part of `reserved_bytes`.
    seam_stat spilled_bytes;
    // Requests that were served only because memory was spilled for them.
    uint64_t spill_requests;
    // Pieces of memory that were spilled.
    uint64_t spills;
    // Pieces that came back to the device.
    uint64_t spill_returns;
    // Bytes of them.
    uint64_t spill_returned_bytes;
    // The time in the driver that both took. A part of `stall_total_ns`.
    uint64_t spill_total_ns;
    // Bytes of host memory that are kept for the next spill, beside `spilled_bytes`. `seam_empty_cache` gives them back.
    uint64_t spill_kept_bytes;
    // Bytes that were spilled to memory which was kept of an earlier spill.
    uint64_t spill_reused_bytes;
} seam_stats;

// A private pool: two numbers, as PyTorch's `MempoolId_t`. Both 0 are none.
typedef struct {
    // PyTorch numbers the pools of graphs here.
    uint64_t first;
    // And those of users here, as `seam_pool_create` does.
    uint64_t second;
} seam_pool;

// One thing that happened in an allocator.
typedef struct {
    // Of this struct, in the library: fields beyond it are not there.
    size_t size;
    // The kind of the event.
    seam_action action;
    // Where.
    uint64_t address;
    // How many bytes.
    uint64_t bytes;
    // On which stream.
    seam_stream stream;
    // Of which private pool; both 0 of none.
    seam_pool pool;
} seam_event;

// Is told what happens. Called under the allocator's lock, by the thread whose call it is: it must be quick, call nothing
// of this library (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
typedef void (*seam_observer)(const seam_event *event, void *user);

// Is told what `seamalloc_malloc` and `seamalloc_free` could not do. The text is valid during the call only. Called by the
// thread whose call failed, without a lock of the allocators; it must return (no exception, no longjmp).
typedef void (*seam_message_handler)(seam_status status, const char *text, void *user);

// Says whether requests of the calling thread on `stream` go to the pool. Called for every request while it is routed,
// by any thread, under the allocator's lock: it must be quick, call nothing of this library (`SEAM_STATUS_REENTRANT`), and
// return (no exception, no longjmp).
typedef bool (*seam_pool_filter)(seam_stream stream, void *user);

// A live block of a private pool. Sizes are bytes.
typedef struct {
    // First byte.
    uint64_t address;
    // With rounding.
    uint64_t size;
    // As asked for.
    uint64_t requested;
} seam_pool_block;

// The statistics of a private pool.
typedef struct {
    // Of this struct: set it to `sizeof(seam_pool_stats)` before the call. It comes back as what was filled in.
    size_t size;
    // Uses that were not released; 0 while its memory waits for the device.
    uint64_t uses;
    // 1 while requests are routed to it.
    uint64_t routed;
    // 1 if a block of it was handed out in a stream capture, so that a graph may use its memory.
    uint64_t captured;
    // Blocks handed out and not freed by the program.
    uint64_t allocations;
    // Bytes of these blocks, rounding included.
    uint64_t allocated_bytes;
    // Bytes of blocks that are handed out, or freed and waiting for other streams.
    uint64_t active_bytes;
    // Bytes held for the pool: active ones, and free ones that serve only it.
    uint64_t reserved_bytes;
    // Bytes that the pool holds again when it wakes; 0 while it is awake.
    uint64_t asleep_bytes;
} seam_pool_stats;

// A contiguous range of memory that an allocator holds. A stitched block is a segment of its own, and its bytes are part
// of no other.
typedef struct {
    // Of this struct, in the library: fields beyond it are not there.
    size_t size;
    // First byte.
    uint64_t address;
    // Bytes.
    uint64_t total_size;
    // The stream whose requests it serves; the default stream where memory goes from stream to stream.
    seam_stream stream;
    // The private pool that it serves; both 0 if it serves all.
    seam_pool pool;
    // Whether it serves requests of up to 1 MiB.
    bool is_small;
    // Whether it is mapped memory, not one `cudaMalloc`.
    bool is_expandable;
} seam_segment;

// A block of a segment. Sizes are bytes.
typedef struct {
    // First byte.
    uint64_t address;
    // With rounding.
    uint64_t size;
    // As requested; of a free block those of its last use, or 0.
    uint64_t requested;
    // The state of the block.
    seam_block_state state;
    // Whether it is part of a private pool that sleeps: it has no memory at present.
    bool is_asleep;
    // Bytes of it that are spilled: their memory is the machine's.
    uint64_t spilled;
} seam_block;

// Is shown a segment and its blocks, which tile it in the order of addresses. All of it is valid during the call only.
// It must return (no exception, no longjmp).
typedef void (*seam_segment_visitor)(const seam_segment *segment, const seam_block *blocks, size_t count, void *user);

// The message about a tag that a callback gets.
typedef struct {
    // Of this struct.
    size_t size;
    // `SEAM_SLEEP_*`.
    uint32_t stage;
    // The tag.
    seam_pool tag;
    // The physical memory that it has while it is awake.
    uint64_t bytes;
} seam_sleep_notice;

// Is told of a tag, and answers whether it agrees to what is about to be done; its answer does not count afterwards. Called without
// a lock of the library, in the thread that makes the change. It must return (no exception, no longjmp).
typedef bool (*seam_sleep_callback)(const seam_sleep_notice *notice, void *user);

// Gives a private pool a segment of `bytes`: 2 MiB, the option `large_segment_size_mb` (20 MiB), or a multiple of 2 MiB.
// `*address` gets its first byte, a multiple of 512, where no memory lies that the allocator has already. Answers 0; where
// it has too little memory `SEAM_STATUS_OUT_OF_MEMORY`, or 0 with NULL, upon which the allocator gives back what it can and
// asks again; any other number where it failed.
//
// Called by the thread whose request it is, under the allocator's lock, during a stream capture in relaxed mode: it may
// call CUDA, but nothing of this library (`SEAM_STATUS_REENTRANT`), and must not wait for a thread that may. It must return
// (no exception, no longjmp).
typedef int32_t (*seam_segment_alloc)(size_t bytes, void **address, void *user);

// Takes back a whole segment that it gave, and that nothing uses any more. Answers 0, or any other number where it failed:
// the segment is kept then, and offered again when memory is next given back. Called as `seam_segment_alloc` is.
typedef int32_t (*seam_segment_free)(void *address, size_t bytes, void *user);

// The source is called no more. Called as `seam_segment_alloc` is.
typedef void (*seam_source_end)(void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// `SEAM_ABI_VERSION` of the library that is loaded.
uint32_t seam_abi_version(void);

// The version of the library that is loaded, such as "0.1.0".
const char *seam_version(void);

// A new allocator, which holds nothing yet.
//
// `device` is "cuda:0", host memory, "host:4GiB" (Linux; without a size, a quarter of what is available),
// or a simulated device that has no memory behind its addresses: "sim:h200,capacity=80GiB". "pinned:0" is page-locked host
// memory, on the NUMA node nearest to device 0 or on another one ("pinned:0,node=1"), for `seam_host_malloc`.
// `options` is a list in the syntax of PYTORCH_CUDA_ALLOC_CONF, "strategy:stitch,memory_limit:80GiB"; NULL and "" are
// the defaults. `*allocator` is set to 0 where this fails.
seam_status seam_create(const char *device,
                        const char *options,
                        seam_allocator *allocator);

// Options, as `seam_create` takes them, in the library's own words: each that differs from its default, once. "" if none
// does. `SEAM_STATUS_OPTIONS` where they cannot be read. No allocator is made, so that a process may look at options and
// fork then. The buffer is as in `seam_stats_json`.
seam_status seam_read_options(const char *options,
                              char *buffer,
                              size_t capacity,
                              size_t *length);

// Ends an allocator. Its handle is refused from now on. Free memory goes back to the device, after a wait for the
// streams that still use some; blocks that are live stay valid, and are lost to the device until the process ends.
// Where other threads are in a call with the allocator, or this is called from a callback of it, the last such call does
// the work.
seam_status seam_destroy(seam_allocator allocator);

// `size` bytes for work on `stream`, at a multiple of 512. 0 bytes are NULL, which is no error. `*address` is set to
// NULL where this fails.
seam_status seam_malloc(seam_allocator allocator, size_t size, seam_stream stream, void **address);

// `size` bytes that the CPU uses too, at a multiple of 512: of an allocator of "pinned:0", "host:4GiB", or a simulated device. Work on
// a stream may use it once `seam_record_stream` has named the stream. Once freed by `seam_free`, it serves again when each stream
// that was named has passed all it was given until then, and not before: the CPU is in no stream's order. 0 bytes are NULL, which
// is no error. `*address` is set to NULL where this fails; `SEAM_STATUS_INVALID_ARGUMENT` for memory of a GPU, and with options
// that look at contents (`guard`, `spill`, `split:ungated`).
seam_status seam_host_malloc(seam_allocator allocator,
                             size_t size,
                             void **address);

// Frees an allocation, in the order of the stream that it was allocated for: later requests of that stream may have its
// memory at once. NULL is ignored.
seam_status seam_free(seam_allocator allocator, void *address);

// As `seam_free`, by a program that names the stream of the last use. Where that is not the one that the memory was
// allocated for, it waits for both.
seam_status seam_free_on(seam_allocator allocator, void *address, seam_stream stream);

// As `seam_free`, by a program that has a current stream, as PyTorch's: work on it may use the memory although nobody named
// it with `seam_record_stream`. The memory serves its own stream at once; other streams, and the device, get it once
// `stream` too has passed all that it was given so far.
seam_status seam_free_under(seam_allocator allocator,
                            void *address,
                            seam_stream stream);

// Says that work on `stream` uses an allocation: once freed, its memory waits for that stream too. NULL is ignored.
seam_status seam_record_stream(seam_allocator allocator, void *address, seam_stream stream);

// The program is about to destroy `stream`: it is waited for, and never named to the device again. Its free memory serves
// others. Blocks that were allocated for it stay valid and are of no stream: where other streams use them on, say so with
// `seam_record_stream`. The same handle later means a new stream. Refused while a stream is being captured.
seam_status seam_forget_stream(seam_allocator allocator,
                               seam_stream stream);

// Tells the allocator of a stream that may use its memory and that no request, free or `seam_record_stream` names. While chunks are
// split under live addresses (the option `split`), the stream stands still. `seam_forget_stream` before it is destroyed.
seam_status seam_announce_stream(seam_allocator allocator,
                                 seam_stream stream);

// Says that `stream` belongs to someone who may destroy it without a word. From now on only calls that name it, which they must
// do while it is live, name it to the device: a request for it, `seam_free_under` with it as the current stream, and the free of what
// `seam_record_stream` named it for. What is freed otherwise, or while it is being captured, serves other streams only after a wait
// for the device. `seam_forget_stream` ends that.
seam_status seam_set_borrowed(seam_allocator allocator,
                              seam_stream stream);

// Lets the device with this ordinal read and write all memory of the allocator, what it holds and what it will get.
seam_status seam_enable_peer_access(seam_allocator allocator, uint32_t ordinal);

// How many bytes may be used of the allocation that starts at `address`: rounding included, but in guard mode.
seam_status seam_size_of(seam_allocator allocator, void *address, size_t *size);

// Gives all free memory back to the device that can be, after a wait for the streams that still use some. `given` gets
// the bytes given back; it may be NULL.
seam_status seam_empty_cache(seam_allocator allocator, uint64_t *given);

// Gives free memory back to the device until `bytes` were given back, and hardly more; the stream's work is waited for
// only where that is needed. `given` gets the bytes given back, fewer only where not as much is free; it may be NULL.
seam_status seam_trim(seam_allocator allocator, uint64_t bytes, uint64_t *given);

// Gives free memory back to the device until the bytes of the option `headroom` (1 GiB by default) are free again, or
// nothing more can go without a wait. `given` gets the bytes given back; it may be NULL. Requests that find no free block
// look now and then. A program without such requests calls this function before others need memory. With `headroom:0B`,
// and during a stream capture, the call does nothing.
seam_status seam_keep_headroom(seam_allocator allocator,
                               uint64_t *given);

// Limits the physical bytes that the allocator may hold at any moment; `SEAM_NO_LIMIT` lifts the limit. Free memory
// beyond it is given back at once.
seam_status seam_set_memory_limit(seam_allocator allocator, uint64_t bytes);

// Limits what the allocator may hold to a part (0 to 1) of the device's memory, counted as PyTorch counts it; 1 lifts
// the limit.
seam_status seam_set_memory_fraction(seam_allocator allocator, double fraction);

// The part of the device's memory that the allocator may hold at most, as `seam_set_memory_fraction` or the options have set
// it; 1 is no limit.
seam_status seam_get_memory_fraction(seam_allocator allocator,
                                     double *fraction);

// Walks every table of the allocator and checks every rule that always holds: for tests, slow. `SEAM_STATUS_INTERNAL` where
// one is broken.
seam_status seam_check(seam_allocator allocator);

// From now on `callback` is called when a request finds too little memory, before cached memory is given back for it;
// where it answers true, the request is tried again. Callbacks are called in the order in which they were added. `id`
// gets a number to remove it by; it may be NULL.
seam_status seam_on_memory_pressure(seam_allocator allocator,
                                    seam_pressure_callback callback,
                                    void *user,
                                    uint64_t *id);

// Removes a callback. Another thread may still be in it. `SEAM_STATUS_INVALID_ARGUMENT` if there is none of that number.
seam_status seam_remove_memory_callback(seam_allocator allocator,
                                        uint64_t id);

// Fills in the statistics of an allocator: its operations so far, and the memory that it holds now.
seam_status seam_get_stats(seam_allocator allocator, seam_stats *stats);

// Sets every peak to the present value.
seam_status seam_reset_peak_stats(seam_allocator allocator);

// Sets every accumulated figure to 0.
seam_status seam_reset_accumulated_stats(seam_allocator allocator);

// The statistics as JSON: the fields of `seam_stats` by their names, the device, the options in force, the driver calls by
// name with their number and time, a histogram of the stalls (below 1 us, 2 us, 4 us, ...), and what guard mode holds and
// has found.
//
// At most `capacity` bytes are written to `buffer`, the NUL at the end included, or nothing where they do not suffice
// (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of the text, without the NUL; it may be NULL. With a capacity
// of 0, `buffer` may be NULL too. The length may differ from call to call.
seam_status seam_stats_json(seam_allocator allocator,
                            char *buffer,
                            size_t capacity,
                            size_t *length);

// The largest request, in bytes, that some stream could be given of what is held free, stitched where that is allowed.
// Walks over all free ranges.
seam_status seam_largest_free(seam_allocator allocator, uint64_t *bytes);

// The largest request, in bytes, that some stream could be given now: of what is held free, and of what the device and the
// limits leave; of both together where the strategy joins them. Walks over all free ranges, and asks the driver.
seam_status seam_largest_request(seam_allocator allocator,
                                 uint64_t *bytes);

// The memory of the allocator's device in bytes, whoever holds it: free, and in all. Either may be NULL.
seam_status seam_memory_info(seam_allocator allocator, uint64_t *free, uint64_t *total);

// How the memory is divided up now, as JSON: what is free for whom, in how many ranges, and how much of it one request
// could have, as it lies and by stitching. Walks over all free ranges. The buffer is as in `seam_stats_json`.
seam_status seam_fragmentation_json(seam_allocator allocator, char *buffer, size_t capacity, size_t *length);

// Logs what an allocator has done so far, at the level `info`: on standard error, where the environment variable
// SEAMALLOC_LOG asks for it.
seam_status seam_log_summary(seam_allocator allocator);

// Reserves `capacity` bytes of addresses for an allocation that grows in place, for work on `stream`. It has no memory yet:
// `seam_grow` gives it some, `seam_shrink` takes it back, and `seam_free`, or another function that frees, ends it.
// `seam_record_stream` is as for any allocation, and holds for what it will get too. Only with the strategy `stitch`,
// and not in guard mode (`SEAM_STATUS_NOT_GROWABLE`). `*address` is set to NULL where this fails.
seam_status seam_reserve(seam_allocator allocator,
                         size_t capacity,
                         seam_stream stream,
                         void **address);

// As `seam_reserve`, for an allocation of a private pool, such as a tag that sleeps and wakes.
seam_status seam_pool_reserve(seam_allocator allocator,
                              seam_pool pool,
                              size_t capacity,
                              seam_stream stream,
                              void **address);

// Grows an allocation of `seam_reserve`, so that at least its first `size` bytes can be used, in the order of its stream. Its
// address and contents stay; a smaller size than it has changes nothing. Once its stream was forgotten it grows no more. Where it has that much memory already, the device is not
// called. `SEAM_STATUS_OUT_OF_MEMORY` and `SEAM_STATUS_BEYOND_CAPACITY` leave it as it was.
seam_status seam_grow(seam_allocator allocator,
                      void *address,
                      size_t size);

// Gives back memory behind the first `size` bytes of an allocation of `seam_reserve`, as `seam_free` does, in whole chunks. The
// rest keeps its address and contents; a larger size than it has changes nothing.
seam_status seam_shrink(seam_allocator allocator,
                        void *address,
                        size_t size);

// Grows or shrinks an allocation of `seam_reserve` to `size` bytes: what TensorRT asks of `IGpuAllocator::reallocate` for memory
// that it allocated as `kRESIZABLE`.
seam_status seam_resize(seam_allocator allocator,
                        void *address,
                        size_t size);

// How much of an allocation of `seam_reserve` is in use, as last asked for (`len`), has memory (`mapped`), and is reserved
// (`capacity`), in bytes. Each may be NULL.
seam_status seam_extent(seam_allocator allocator,
                        void *address,
                        size_t *len,
                        size_t *mapped,
                        size_t *capacity);

// Describes an address, as a sentence: the allocation that it lies in, live or freed, or at whose edge; its size,
// streams and number. "" where that is not known, or guard mode is off. Works after an illegal address was used, when
// every call of CUDA fails. The buffer is as in `seam_stats_json`.
seam_status seam_explain(seam_allocator allocator, const void *address, char *buffer, size_t capacity, size_t *length);

// The mistakes of the program that guard mode has found, the first 1000, oldest first, as a JSON array of objects: `kind`
// (`double_free`, `wrong_free`, `overrun`, `underrun`, `write_after_free`, `missing_record_stream`), `text`, and of the
// allocation its `address`, `size` in bytes, `number` and `stream`. The buffer is as in `seam_stats_json`.
seam_status seam_findings_json(seam_allocator allocator,
                               char *buffer,
                               size_t capacity,
                               size_t *length);

// Waits for the device, and looks for bytes that were written around live allocations, and in freed memory. `findings` gets
// how many mistakes were found so far; it may be NULL. Without guard mode it does nothing.
seam_status seam_check_guards(seam_allocator allocator,
                              uint64_t *findings);

// Says that the work which was given to `stream` last uses the allocations in which these `count` addresses lie. Guard mode
// then finds a free before that work ends, if neither `seam_record_stream` named the stream nor the allocation's own stream
// waits for it. Addresses of no live allocation are ignored. Without guard mode it does nothing.
seam_status seam_note_uses(seam_allocator allocator,
                           const void *const *addresses,
                           size_t count,
                           seam_stream stream);

// Says that the program recorded an event on `stream`. `event` is whatever number the program has for it; recording it again
// forgets the earlier record.
seam_status seam_note_event(seam_allocator allocator,
                            uint64_t event,
                            seam_stream stream);

// Says that the program lets later work of `stream` wait for an event of `seam_note_event`.
seam_status seam_note_wait(seam_allocator allocator, seam_stream stream, uint64_t event);

// For `set_record_stream_fn`: work on `stream` uses an allocation of `seamalloc_malloc`, of whichever device.
void seamalloc_record_stream(void *address, seam_stream stream);

// For `set_reset_fn`, which `torch.cuda.empty_cache` calls: gives back all free memory of every device, as
// `seam_empty_cache`.
void seamalloc_empty_cache(void);

// For `set_memory_fraction_fn`: as `seam_set_memory_fraction`.
void seamalloc_set_memory_fraction(double fraction, int device);

// For `set_begin_allocate_to_pool`: all requests for the device go to the private pool, in every thread, as if a stream
// were captured, until `seamalloc_end_pool`. PyTorch passes the pool as a pair, which comes as two numbers, and behind it
// a `std::function`, which is not looked at.
void seamalloc_begin_pool(int device,
                          uint64_t first,
                          uint64_t second,
                          const void *filter);

// For `set_end_allocate_to_pool_fn`: ends what `seamalloc_begin_pool` began.
void seamalloc_end_pool(int device, uint64_t first, uint64_t second);

// For `set_release_pool`: ends one use of the private pool, as `seam_pool_release`.
void seamalloc_release_pool(int device, uint64_t first, uint64_t second);

// Tells other processes of the same user what the allocators of this one do, those that come later too, from now on: a thread of the
// library answers at a Unix socket. `seamalloc top` asks there. `path` is the socket's name, which must not exist; NULL is
// NAMESPACE-PID.sock in $XDG_RUNTIME_DIR/seamalloc or /tmp/seamalloc-UID, where `seamalloc top` finds it. The socket goes when the process ends
// by exit. The environment variable SEAMALLOC_SERVE asks for the same: 1, or a socket's name, when the first allocator is
// made. Does nothing if the process serves already. `SEAM_STATUS_FILE` where the socket cannot be made.
seam_status seam_serve(const char *path);

// Ends what `seam_serve` began. Does nothing if the process does not serve.
seam_status seam_serve_stop(void);

// Writes the metrics of all allocators of the process, as the text that Prometheus reads (docs/metrics.md). Needs no
// `seam_serve`. The buffer is as in `seam_stats_json`.
seam_status seam_metrics(char *buffer, size_t capacity, size_t *length);

// Writes the last operations of the allocator, which its flight recorder has kept (the option `flight_recorder`), and what it holds:
// as a trace where the file's name ends in .seam, .csv or .csv.gz, else as a pickle that PyTorch's viewer opens and `seamalloc
// replay` reads. How many operations were overwritten stands in it. The option `flight_dump` has the same written when a request is
// refused. The file appears only when it is complete.
seam_status seam_flight_write(seam_allocator allocator,
                              const char *path);

// From now on `observer` is told of everything that changes, beside the recorder; NULL ends that. Once this returns, the
// observer before is called no more.
seam_status seam_observe(seam_allocator allocator,
                         seam_observer observer,
                         void *user);

// `size` bytes of a CUDA device for work on `stream`: the allocating half of PyTorch's pluggable signature.
//
// Each device has an allocator of its own, made on first use with the options in the environment variable SEAMALLOC_CONF
// (SEAMALLOC_GUARD=1 is short for `guard:on` there), and kept until the process ends; `seam_plugged` answers its handle.
// With SEAMALLOC_DEVICE=sim:h200 (or another simulated device, or host:4GiB) every device is such a one.
//
// NULL for 0 bytes, and where this fails: the last error of the thread says why, and so does a message
// (`seam_set_message_handler`). Where the allocator cannot be made at all, options that cannot be read included, every
// call fails, and one message says so. In a forked child every call fails, and no message says so.
void *seamalloc_malloc(size_t size,
                       int device,
                       seam_stream stream);

// Frees what `seamalloc_malloc` gave for the same device: the freeing half of PyTorch's pluggable signature. `size` is
// not looked at. Where `stream` is not the one that the memory was allocated for, it waits for both. NULL is ignored.
//
// What fails (freed twice, of another device or allocator) changes nothing, becomes the last error of the thread, and a
// message. In a forked child, which holds copies of its parent's pointers, it does nothing.
void seamalloc_free(void *address, size_t size, int device, seam_stream stream);

// The allocator behind `seamalloc_malloc` for a device, made now if it is not there yet: for statistics, limits, pools.
// It cannot be destroyed.
seam_status seam_plugged(int device, seam_allocator *allocator);

// Options for the allocators behind `seamalloc_malloc` where SEAMALLOC_CONF does not say otherwise; those of an
// earlier call are forgotten. Pass "sharing:never" for a program that calls `seamalloc_free` and uses an allocation on
// other streams without naming them, as PyTorch's users do. Refused once an allocator was asked for.
seam_status seam_plugged_defaults(const char *options);

// The device whose allocator has the live allocation that starts at `address`, among those of `seamalloc_malloc`; -1 if none
// has. Opens no device.
seam_status seam_plugged_owner(const void *address,
                               int *device);

// The part of a device's memory that an allocator of `seamalloc_malloc` may hold once it is made, by the options; 1 is no
// limit. Opens no device.
seam_status seam_plugged_memory_fraction(double *fraction);

// Which devices have an allocator behind `seamalloc_malloc`: bit `n` is device `n`. Makes none, as `seam_plugged` would.
seam_status seam_plugged_devices(uint64_t *devices);

// From now on messages go to `handler` instead of a line on standard error; NULL puts that back. Another thread may
// still be in the handler before.
seam_status seam_set_message_handler(seam_message_handler handler, void *user);

// A new private pool, used once: `seam_pool_release` ends that use. Its memory serves only requests made for it, and the
// addresses that it handed out stay mapped until nobody uses it any more.
seam_status seam_pool_create(seam_allocator allocator,
                             seam_pool *pool);

// Uses the private pool of that name once more, or makes it: for programs that name pools themselves, as PyTorch does.
seam_status seam_pool_open(seam_allocator allocator, seam_pool pool);

// Uses a private pool once more.
seam_status seam_pool_retain(seam_allocator allocator, seam_pool pool);

// Ends one use of a private pool. With the last use the pool's memory goes back to all; memory that a graph may use
// goes back once the device has passed everything. Live allocations stay valid. No graph that was captured with the
// pool may be launched afterwards.
seam_status seam_pool_release(seam_allocator allocator, seam_pool pool);

// As `seam_malloc`, from a private pool, whatever is routed where. `seam_free` takes it back.
seam_status seam_pool_malloc(seam_allocator allocator, seam_pool pool, size_t size, seam_stream stream, void **address);

// Routes requests on these streams to a private pool from now on, until `seam_pool_end`. Of several routes that cover a
// request, the one begun last takes it. `flags` is 0 or `SEAM_POOL_CAPTURING`.
seam_status seam_pool_begin_streams(seam_allocator allocator,
                                    seam_pool pool,
                                    const seam_stream *streams,
                                    size_t count,
                                    uint32_t flags);

// As `seam_pool_begin_streams`, for all requests of the calling thread, whatever their stream.
seam_status seam_pool_begin_thread(seam_allocator allocator, seam_pool pool, uint32_t flags);

// As `seam_pool_begin_streams`, for all requests of all threads that no other route covers. Other routes go first, whether they
// were begun before or after this one. PyTorch's backward passes run in threads of their own, which this route covers.
seam_status seam_pool_begin_other_threads(seam_allocator allocator,
                                          seam_pool pool);

// As `seam_pool_begin_streams`, for the requests that `filter` says.
seam_status seam_pool_begin_filter(seam_allocator allocator,
                                   seam_pool pool,
                                   seam_pool_filter filter,
                                   void *user,
                                   uint32_t flags);

// Ends one route to a private pool: the last one of `seam_pool_begin_thread` in the calling thread, or else the last one of
// `seam_pool_begin_other_threads`, or else the pool's only route.
seam_status seam_pool_end(seam_allocator allocator,
                          seam_pool pool);

// The live blocks of a private pool, by address: a checkpoint of it. At most `capacity` are written to `blocks`, or none
// where they do not suffice (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*count` gets how many there are; it may be NULL. With a
// capacity of 0, `blocks` may be NULL too. Walks all blocks.
seam_status seam_pool_blocks(seam_allocator allocator,
                             seam_pool pool,
                             seam_pool_block *blocks,
                             size_t capacity,
                             size_t *count);

// Frees every live block of a private pool, then hands out those of a checkpoint (`seam_pool_blocks`) again, at the same
// addresses and over the same memory: for what a graph's launch has filled, though it was freed when the graph was
// captured. `SEAM_STATUS_NOT_RESTORABLE` where a block cannot be had, and always with another strategy than `stitch`; the
// blocks before it in the list may be live then, large ones first. May wait for the streams on which the pool's memory
// was freed.
seam_status seam_pool_restore(seam_allocator allocator,
                              seam_pool pool,
                              const seam_pool_block *blocks,
                              size_t count);

// Fills in the statistics of a private pool. Walks all blocks.
seam_status seam_pool_get_stats(seam_allocator allocator, seam_pool pool, seam_pool_stats *stats);

// Writes what the allocator holds, and the recorded history if there is one, as a memory snapshot that PyTorch's viewer
// reads (pytorch.org/memory_viz): a pickle. The file appears only when it is complete.
seam_status seam_snapshot(seam_allocator allocator, const char *path);

// Records events from now on, and keeps the last `max_entries`. An event takes 56 bytes of memory. An allocation or a
// free makes one or two events. Earlier records are forgotten.
seam_status seam_record_start(seam_allocator allocator, size_t max_entries);

// Makes every allocator that is created from now on record from its beginning, as by `seam_record_start`; 0 ends this. For
// a program that does not know yet which devices it will use, and must not touch a device before.
seam_status seam_record_new(size_t max_entries);

// Stops recording, and forgets what was recorded.
seam_status seam_record_stop(seam_allocator allocator);

// Writes what was recorded as a trace that `seamalloc replay` reads; the name of the file tells the format: .seam, .csv or
// .csv.gz. Recording goes on. `SEAM_STATUS_INVALID_ARGUMENT` if nothing is recorded.
seam_status seam_record_write(seam_allocator allocator,
                              const char *path);

// Writes how strategies would have served the jobs that a file holds, a PyTorch snapshot with its history or a trace:
// a JSON list, of each job and strategy what the strategy would have held (`peak_reserved`, null where the device is
// too small), what PyTorch held (`recorded_reserved`, null where that is not known; `reserved_before` of it from
// before the recording), the bytes of weights and optimizer state that stay from step to step (`persistent`), and how
// many times as large all else could be, 8 at most (`largest_step`, null where not even a hundredth of it fits, where
// it frees nothing: `grows`, or where the device is unknown: `sought`). Beside each stands what PyTorch's own
// allocators make of the job on the same device: `native_reserved`, `native_step`, `expandable_reserved`,
// `expandable_step`. Of a snapshot without a history there is an entry for each device with memory, with `layout`
// true: what `seamalloc whatif --json` says of it but `owners`.
//
// The device is a simulated one, `sim:h200,capacity=80GiB`. "" is an H200 with the memory of the device that the job was
// recorded on; `device_from` says how that is known ("noted", "refusal": what was held and free when memory ran
// out) or that it is not ("unknown"). The strategy is that of `options`; where they name none, there is an entry for each.
// Replays the job several times: seconds for each million of operations. The buffer is as in `seam_stats_json`.
seam_status seam_whatif_json(const char *path,
                             const char *device,
                             const char *options,
                             char *buffer,
                             size_t capacity,
                             size_t *length);

// Shows what the allocator holds at this moment, the segments by address. The visitor is called without a lock of the
// library.
seam_status seam_visit_segments(seam_allocator allocator, seam_segment_visitor visitor, void *user);

// Names a live allocation so that another process can open it with `seam_open_shared`. The handle is bytes, to be sent as
// they are: some dozens, and 16 for each chunk of the memory; at most `capacity` are written to `handle`, or none where
// they do not suffice (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets how many there are. `*offset` gets where in the
// opened memory the allocation begins, in bytes. With a capacity of 0, `handle` may be NULL.
//
// The allocation must stay live until everyone who got the handle has closed it. The first time, a thread is started that
// gives the memory away, to processes of the same user (and root) which have the handle. A shared allocation costs an open
// file descriptor for each chunk that it touches (allocations in one chunk have one between them), until the last of them
// is freed. A call that fails costs none.
seam_status seam_share(seam_allocator allocator,
                       void *address,
                       void *handle,
                       size_t capacity,
                       size_t *length,
                       uint64_t *offset);

// Keeps the physical memory of a live allocation as long as it is held: with the option `split:last_resort`, it is not
// exchanged for other memory under the same addresses. For memory that is registered by more than its addresses, as with NCCL
// or for RDMA. What is shared with other processes is kept anyway.
seam_status seam_fix_memory(seam_allocator allocator,
                            void *address);

// Opens memory that a process shares, by the handle of `seam_share`: the address at which it begins here. The device
// may read and write it, on any stream; the order of that with the other process is the program's to see to. Opening
// it twice gives two addresses, or the same one twice (memory of `cudaMalloc`); either way it is closed twice.
// `SEAM_STATUS_IPC` for a bad handle, a process that is gone or has not sent everything within 10 seconds of the call,
// whatever it does instead, or memory that it has freed.
seam_status seam_open_shared(seam_allocator allocator, const void *handle, size_t length, void **address);

// Closes what `seam_open_shared` opened at this address, once the device has done all its work: the CPU waits for it.
// While a stream is being captured, it is closed later.
seam_status seam_close_shared(seam_allocator allocator, void *address);

// From now on `callback` is called before and after each change of a tag between awake and asleep. Where it answers false before
// one, it is not made (`SEAM_STATUS_NOT_SLEEPABLE`). Each that agreed is told how the change came out, also where it failed. `id`
// gets a number to remove it by; it may be NULL.
seam_status seam_on_sleep(seam_allocator allocator,
                          seam_sleep_callback callback,
                          void *user,
                          uint64_t *id);

// Removes a callback of `seam_on_sleep`. A change that is under way still calls it. `SEAM_STATUS_INVALID_ARGUMENT` if there is none
// of that number.
seam_status seam_remove_sleep_callback(seam_allocator allocator,
                                       uint64_t id);

// Gives page-locked memory back to the host that was kept for backups, and that no tag which sleeps needs. `released` gets the
// bytes; it may be NULL.
seam_status seam_release_backups(seam_allocator allocator,
                                 uint64_t *released);

// A new tag, used once: a private pool as by `seam_pool_create`, with chunks of physical memory of its own, so that it can
// sleep. Only with the strategy `stitch` (`SEAM_STATUS_NOT_SLEEPABLE`).
seam_status seam_pool_create_tag(seam_allocator allocator,
                                 seam_pool *pool);

// Uses the tag of that name once more, or makes it. `SEAM_STATUS_POOL_IN_USE`: there is a private pool of that name which was
// used already and is no tag.
seam_status seam_pool_open_tag(seam_allocator allocator,
                               seam_pool pool);

// Waits for the device, keeps what the live blocks of a tag hold as `backup` says (`SEAM_BACKUP_HOST`, `SEAM_BACKUP_PINNED`,
// `SEAM_BACKUP_DISCARD`, `SEAM_BACKUP_FILE` with the file's name in `path`, which is NULL otherwise), and gives all of the tag's physical memory back.
// `given` gets the bytes given back; it may be NULL. Addresses stay. Until `seam_pool_wake` has returned, no work of any
// stream, device or process may use the tag's memory; blocks can be freed, and requests for the tag are
// `SEAM_STATUS_POOL_ASLEEP`. Where it fails, everything is as before.
seam_status seam_pool_sleep(seam_allocator allocator,
                            seam_pool pool,
                            uint32_t backup,
                            const char *path,
                            uint64_t *given);

// Gives a tag that sleeps its memory again, at the same addresses, and what its live blocks held. `taken` gets the bytes, 0 if
// it does not sleep; it may be NULL. Where it fails, the tag sleeps on with all that was kept, and it can be tried again.
seam_status seam_pool_wake(seam_allocator allocator,
                           seam_pool pool,
                           uint64_t *taken);

// Uses the private pool of that name once more, or makes it. Its segments come from `alloc` and go back by `free`;
// with NULL for both, from the device and to it. They are cached and split as the strategy `caching` does, whatever
// the allocator's. `flags` is 0 or `SEAM_POOL_UNSPLIT`.
//
// When the pool's last use was released, what lies free goes back by `seam_pool_empty`, `seam_empty_cache`, `seam_trim`,
// before a request would fail and in `seam_destroy`, after a wait for the device; what is live once it was freed.
// `end`, which may be NULL, is called exactly once: with the last of the memory, or by this call where it fails
// (`SEAM_STATUS_POOL_IN_USE`: the pool has memory already, or segments of its own) or has no functions. Where an
// allocator is destroyed while blocks of the pool are live, it is never called.
seam_status seam_pool_open_with(seam_allocator allocator,
                                seam_pool pool,
                                seam_segment_alloc alloc,
                                seam_segment_free free,
                                seam_source_end end,
                                void *user,
                                uint32_t flags);

// From now on a private pool's segments are one block each, as `SEAM_POOL_UNSPLIT` says; it gets segments of the device's if
// it has none of its own. `SEAM_STATUS_POOL_IN_USE` where it has other memory already.
seam_status seam_pool_set_unsplit(seam_allocator allocator,
                                  seam_pool pool);

// Gives back what a private pool holds free that nobody uses any more, after a wait for the device. `given` gets the bytes
// given back; it may be NULL. Nothing where the pool is used or gone, or a stream is being captured.
seam_status seam_pool_empty(seam_allocator allocator,
                            seam_pool pool,
                            uint64_t *given);

// As `seam_pool_malloc`, of what the pool holds free in one range: `*address` is NULL where there is no such range, which is
// no error. No new memory is taken, and nothing waited for.
seam_status seam_pool_malloc_held(seam_allocator allocator,
                                  seam_pool pool,
                                  size_t size,
                                  seam_stream stream,
                                  void **address);

// Says how the program uses a live allocation from now on (`SEAM_ADVICE_COLD`, `SEAM_ADVICE_NORMAL`, `SEAM_ADVICE_HOT`). It
// matters with the option `spill:host=SIZE`, by which live memory that does not fit the device lies in host memory.
seam_status seam_advise(seam_allocator allocator,
                        void *address,
                        uint32_t advice);

// Lets what was spilled come back to the device, as far as there is room; free memory is given back for it. `returned` gets the
// bytes that came back; it may be NULL. The CPU waits for the device. Until it has returned, no thread may give the device work
// that uses memory of the allocator. During a stream capture nothing comes back.
seam_status seam_unspill(seam_allocator allocator,
                         uint64_t *returned);

// The status of the last call of this thread that failed, `SEAM_STATUS_OK` if none did since `seam_clear_last_error`. A call that
// succeeds leaves it as it is.
seam_status seam_last_error(void);

// Returns the message of the last call of this thread that failed, in words; empty if none did. Never NULL. The text
// is the library's, and valid until the next call of this thread that fails.
const char *seam_last_error_text(void);

// The `CUresult` of the driver call behind the last error of this thread; 0 if it was none of a driver call.
uint32_t seam_last_driver_status(void);

// Forgets the last error of this thread.
void seam_clear_last_error(void);

// A status by its name, "SEAM_STATUS_OUT_OF_MEMORY". Never NULL; "SEAM_STATUS_UNKNOWN" for a number that is none.
const char *seam_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
