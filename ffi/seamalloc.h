// seamalloc: a GPU memory allocator that stitches physical CUDA memory into contiguous addresses.
//
// Generated from ffi/src: change it there. docs/c-api.md is a page about it.
//
// What all functions have in common:
// - They return SEAM_STATUS_OK or an error; seam_last_error_text says what it was, in words. None throws or exits, and none aborts
//   unless the host has no memory (docs/reliability.md).
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

// The version of the binary interface that this header describes; `seam_abi_version` returns the version of the loaded
// library. The number is in the library's soname too. It grows with every change that would break a compiled program.
// An addition (a function, a field at the end of a struct that begins with its size, a status) does not change it.
#define SEAM_ABI_VERSION 1

// The value of a memory limit that stands for no limit.
#define SEAM_NO_LIMIT UINT64_MAX

// For `flags` of `seam_pool_begin_*`: a stream capture is under way while the route exists, so that the allocator
// makes no call that a capture forbids, in any thread. Begin the route before the capture begins, and end it after the
// capture has ended.
#define SEAM_POOL_CAPTURING 1

// For `backup` of `seam_pool_sleep`: the contents of live blocks are kept in host memory.
#define SEAM_BACKUP_HOST 0

// The contents of live blocks are lost: the blocks keep their addresses, and hold anything after waking.
#define SEAM_BACKUP_DISCARD 1

// The contents of live blocks are kept in a file, which must not exist.
#define SEAM_BACKUP_FILE 2

// The contents of live blocks are kept in page-locked host memory. Copies to and from this memory run at the speed of
// the link to the GPU. The memory is kept for the next sleep.
#define SEAM_BACKUP_PINNED 3

// For `stage` of `seam_sleep_notice`: a tag is about to sleep.
#define SEAM_SLEEP_BEFORE 0

// The tag sleeps: it fell asleep, or waking it failed.
#define SEAM_SLEEP_ASLEEP 1

// The tag is about to wake.
#define SEAM_SLEEP_BEFORE_WAKE 2

// The tag is awake: it woke, or sleeping failed.
#define SEAM_SLEEP_AWAKE 3

// For `flags` of `seam_pool_open_with`: each segment is one block, and the part of a segment that a request leaves
// unused serves no other request. The flag is PyTorch's `no_split`.
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
    // An argument that must not be NULL is NULL, a text is not UTF-8, or a struct gives a size that it cannot have.
    SEAM_STATUS_INVALID_ARGUMENT = 1,
    // No allocator has this handle: it was destroyed, or never created.
    SEAM_STATUS_INVALID_HANDLE = 2,
    // Too little memory. Free some and try again; the text is a report.
    SEAM_STATUS_OUT_OF_MEMORY = 3,
    // No device has as much memory as was asked for.
    SEAM_STATUS_REQUEST_TOO_LARGE = 4,
    // No live allocation of this allocator starts at the address: it was freed already, or belongs to another
    // allocator.
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
    // The device's name is invalid, there is no such device, or it cannot be opened.
    SEAM_STATUS_DEVICE = 11,
    // The device lacks virtual memory management, or pools of stream-ordered memory, and the strategy needs them;
    // `strategy:caching` does not need them.
    SEAM_STATUS_NO_VIRTUAL_MEMORY = 12,
    // A driver call failed for another reason than too little memory. `seam_last_driver_status` has its `CUresult`.
    SEAM_STATUS_DRIVER = 13,
    // A file could not be read or written, or the recorded history does not make a trace.
    SEAM_STATUS_FILE = 14,
    // The buffer is too small; the length that is needed was stored.
    SEAM_STATUS_BUFFER_TOO_SMALL = 15,
    // The process is a fork of the process that used the library, and can use none of its parent's memory.
    SEAM_STATUS_FORKED = 16,
    // A callback that runs under the allocator's lock (a filter or a source of a private pool, an observer) called the
    // library.
    SEAM_STATUS_REENTRANT = 17,
    // The most allocators that a process can have (1,024) exist already.
    SEAM_STATUS_TOO_MANY_ALLOCATORS = 18,
    // A rule that must always hold inside the library is broken. Please report it.
    SEAM_STATUS_INTERNAL = 19,
    // A block of a private pool cannot be handed out again where it was.
    SEAM_STATUS_NOT_RESTORABLE = 20,
    // The private pool has memory already, or segments of its own. The kind of its segments is chosen once, before it
    // has any.
    SEAM_STATUS_POOL_IN_USE = 21,
    // The source of a private pool failed for another reason than too little memory, or returned an impossible
    // address.
    SEAM_STATUS_SOURCE = 22,
    // Memory cannot be shared with other processes, or shared memory cannot be opened: the handle is bad, the process
    // is gone, or it has freed the memory. Or memory cannot be shared with other devices, because the driver owns the
    // strategy's memory (`malloc-async`).
    SEAM_STATUS_IPC = 23,
    // The host, not the device, has too little memory: for the library's tables, or for the text of an error.
    SEAM_STATUS_HOST_MEMORY = 24,
    // The private pool sleeps: it must wake before its memory is requested or shared.
    SEAM_STATUS_POOL_ASLEEP = 25,
    // The private pool cannot sleep, or not now; the text says why.
    SEAM_STATUS_NOT_SLEEPABLE = 26,
    // An allocation cannot grow in place, or not now, or a growing allocation does not support the request; the text
    // says why.
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
    // Memory left a segment for another one; the next events `SEAM_ACTION_SEGMENT_JOINED` say for which. A stitched
    // block, which is a segment of its own as long as it is live, took the memory or gave it back, or free memory
    // passed to a pool that is shown as another segment. For the driver nothing changed. PyTorch's snapshots call this
    // event `segment_unmap`.
    SEAM_ACTION_SEGMENT_LEFT = 8,
    // Memory that had left other segments is part of this segment; PyTorch's snapshots call this event `segment_map`.
    SEAM_ACTION_SEGMENT_JOINED = 9,
    // Memory of live blocks was spilled: a range at home has host memory from now on. PyTorch's snapshots have no such
    // event, and none for the next three kinds.
    SEAM_ACTION_SPILLED = 10,
    // A range that was spilled has memory of the device again.
    SEAM_ACTION_RETURNED = 11,
    // A private pool fell asleep, and this range of the pool has no memory from now on.
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

// An allocator: a number, not a pointer. No number is given twice, so the handle of a destroyed allocator is refused
// (`SEAM_STATUS_INVALID_HANDLE`). 0 stands for no allocator.
typedef uint64_t seam_allocator;

// A CUDA stream, `cudaStream_t` or `CUstream`. NULL and `cudaStreamLegacy` are the default stream.
// `cudaStreamPerThread` is refused: the handle means a different stream in each thread, and the allocator orders the
// reuse of memory by stream. Any other value must be a live stream of the allocator's device. The library cannot check
// this. The stream must stay alive until `seam_forget_stream`, or until the allocator is destroyed. On a simulated
// device every value is a stream.
typedef void *seam_stream;

// The description of a request for which there is too little memory, which a callback gets. Sizes are in bytes.
typedef struct {
    // The size of this struct in the library: fields beyond this size do not exist.
    size_t size;
    // The bytes that the program asked for.
    uint64_t requested;
    // The stream of the request.
    seam_stream stream;
    // The bytes that the allocator holds of the device.
    uint64_t reserved;
    // The part of `reserved` in blocks that the program has not freed.
    uint64_t allocated;
    // The most bytes that the allocator may hold, or `SEAM_NO_LIMIT`.
    uint64_t limit;
} seam_memory_pressure;

// Frees memory that the program can do without, and returns whether it freed some. The thread that makes the request
// calls this function without a lock of the library, so the function may call every function of the library. Several
// threads may call this function at once. The function must return (no exception, no longjmp).
typedef bool (*seam_pressure_callback)(const seam_memory_pressure *pressure, void *user);

// One figure over time.
typedef struct {
    // The value now.
    uint64_t current;
    // The highest value since `seam_reset_peak_stats`.
    uint64_t peak;
    // The sum of all increases since `seam_reset_accumulated_stats`.
    uint64_t allocated;
    // The sum of all decreases since `seam_reset_accumulated_stats`.
    uint64_t freed;
} seam_stat;

// One figure for all memory, for requests of up to 1 MiB, and for larger ones.
typedef struct {
    // Small and large requests together.
    seam_stat all;
    // Small requests.
    seam_stat small_pool;
    // Large requests.
    seam_stat large_pool;
} seam_stat_by_pool;

// The statistics of an allocator: its operations so far, and the memory that it holds. Fields whose names end in
// `_bytes` are in bytes, those in `_ns` in nanoseconds; all others are counts. Statistics that PyTorch has too
// (`torch.cuda.memory_stats`) have PyTorch's names and meanings.
typedef struct {
    // The size of this struct: set it to `sizeof(seam_stats)` before the call. After the call it is the size that
    // was filled in.
    size_t size;
    // Blocks handed out and not freed by the program.
    seam_stat_by_pool allocation;
    // Segments taken whole from the device (strategy `caching`).
    seam_stat_by_pool segment;
    // Blocks handed out, or freed and waiting for other streams.
    seam_stat_by_pool active;
    // Free blocks of segments that contain other blocks too (strategy `caching`).
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
    // The part of `mappings` that is in views.
    uint64_t view_mappings;
    // Views that exist now.
    uint64_t views;
    // Bytes of address space that the views take.
    uint64_t view_address_space_bytes;
    // Views built by stitching.
    uint64_t views_built;
    // Requests served by a view that existed already.
    uint64_t views_reused;
    // Views unmapped again.
    uint64_t views_dropped;
    // How often one stream waited, on the GPU, for another stream's work on freed memory.
    uint64_t stream_waits;
    // Bytes of free memory that one stream got from another after the waits in `stream_waits`.
    uint64_t stream_wait_bytes;
    // Bytes of freed memory that streams named by `seam_record_stream` still used, and that requests got after the
    // waits in `stream_waits`.
    uint64_t recorded_wait_bytes;
    // Bytes by which memory grew because a stream would otherwise have waited for recent work of another stream.
    uint64_t overlap_growth_bytes;
    // Bytes of host memory that the allocator's tables take, approximately.
    uint64_t host_bytes;
    // Operations that made a driver call (stalls).
    uint64_t stalls;
    // The total time of the stalls in the driver.
    uint64_t stall_total_ns;
    // The longest time of one stall in the driver, since `seam_reset_peak_stats`.
    uint64_t stall_worst_ns;
    // Chunks that were split (option `split:last_resort`).
    uint64_t splits;
    // The chunks that were made from the split chunks.
    uint64_t split_parts;
    // Bytes that were copied for the splits.
    uint64_t split_copied_bytes;
    // Requests for which the CPU waited until work on the GPU was done with freed memory (see the option
    // `wait_ms`).
    uint64_t pending_waits;
    // The events for which the requests in `pending_waits` waited.
    uint64_t pending_wait_events;
    // How often the requests in `pending_waits` waited, in the end, for all work of the device.
    uint64_t pending_wait_device;
    // How many of the waits in `pending_waits` ended at the bound `wait_ms`.
    uint64_t pending_wait_expired;
    // The total time of the waits in `pending_waits`.
    uint64_t pending_wait_total_ns;
    // The longest of the waits in `pending_waits`, since `seam_reset_peak_stats`.
    uint64_t pending_wait_worst_ns;
    // How often the allocator asked the device how much memory is free, to give memory back if that is too little
    // (option `headroom`).
    uint64_t headroom_looks;
    // How often the allocator found too little free memory when it asked (`headroom_looks`).
    uint64_t headroom_short;
    // How often memory was given back for the headroom.
    uint64_t headroom_yields;
    // The bytes that were given back for the headroom.
    uint64_t headroom_yielded_bytes;
    // How often a tag fell asleep.
    uint64_t sleeps;
    // How often a tag woke.
    uint64_t wakes;
    // Bytes that the allocator takes from the device when all sleeping tags wake.
    uint64_t asleep_bytes;
    // Page-locked host memory for backups of tags.
    uint64_t page_locked_bytes;
    // Bytes of host memory in which live memory lies (option `spill:host=SIZE`, and for a moment during a split on
    // a full device). `reserved_bytes` does not include them.
    seam_stat spilled_bytes;
    // Requests that were served only because memory was spilled for them.
    uint64_t spill_requests;
    // Chunks that were spilled.
    uint64_t spills;
    // Spilled chunks that came back to the device.
    uint64_t spill_returns;
    // Bytes of the spilled chunks that came back.
    uint64_t spill_returned_bytes;
    // The total time of spills and returns in the driver, a part of `stall_total_ns`.
    uint64_t spill_total_ns;
    // Bytes of host memory that are kept for the next spill, in addition to `spilled_bytes`. `seam_empty_cache`
    // gives them back.
    uint64_t spill_kept_bytes;
    // Bytes that were spilled to host memory kept from an earlier spill.
    uint64_t spill_reused_bytes;
} seam_stats;

// A private pool: two numbers, as PyTorch's `MempoolId_t`. Two zeros stand for no pool.
typedef struct {
    // The number of a pool of CUDA graphs, by PyTorch's convention.
    uint64_t first;
    // The number of a pool that a user created, by PyTorch's convention; `seam_pool_create` sets it too.
    uint64_t second;
} seam_pool;

// One thing that happened in an allocator.
typedef struct {
    // The size of this struct in the library: fields beyond this size do not exist.
    size_t size;
    // The kind of the event.
    seam_action action;
    // The address of the event.
    uint64_t address;
    // The number of bytes.
    uint64_t bytes;
    // The stream of the event.
    seam_stream stream;
    // The private pool of the event; both numbers are 0 for no pool.
    seam_pool pool;
} seam_event;

// Receives each event. The function is called under the allocator's lock, by the thread whose call causes the event:
// it must be quick, call nothing of this library (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
typedef void (*seam_observer)(const seam_event *event, void *user);

// Receives the message of a failed `seamalloc_malloc` or `seamalloc_free`. The text is valid during the call only. The
// thread whose call failed calls this function, without a lock of the allocators. The function must return (no
// exception, no longjmp).
typedef void (*seam_message_handler)(seam_status status, const char *text, void *user);

// Returns whether requests of the calling thread on `stream` go to the pool. The function is called for every request
// while the route exists, by any thread, under the allocator's lock: it must be quick, call nothing of this library
// (`SEAM_STATUS_REENTRANT`), and return (no exception, no longjmp).
typedef bool (*seam_pool_filter)(seam_stream stream, void *user);

// A live block of a private pool. Sizes are bytes.
typedef struct {
    // The address of the first byte.
    uint64_t address;
    // The size with rounding.
    uint64_t size;
    // The size as requested.
    uint64_t requested;
} seam_pool_block;

// The statistics of a private pool.
typedef struct {
    // The size of this struct: set it to `sizeof(seam_pool_stats)` before the call. After the call it is the size that
    // was filled in.
    size_t size;
    // The number of uses (calls that created or opened the pool) that were not released; 0 while the pool's memory
    // waits for the device.
    uint64_t uses;
    // 1 while requests are routed to the pool.
    uint64_t routed;
    // 1 if a block of the pool was handed out in a stream capture, so that a graph may use its memory.
    uint64_t captured;
    // Blocks handed out and not freed by the program.
    uint64_t allocations;
    // Bytes of these blocks, rounding included.
    uint64_t allocated_bytes;
    // Bytes of blocks that are handed out, or freed and waiting for other streams.
    uint64_t active_bytes;
    // Bytes held for the pool: active blocks, and free blocks that serve only the pool.
    uint64_t reserved_bytes;
    // Bytes that the pool holds again when it wakes; 0 while it is awake.
    uint64_t asleep_bytes;
} seam_pool_stats;

// A contiguous range of memory that an allocator holds. A stitched block is a segment of its own, and its bytes are
// part of no other segment.
typedef struct {
    // The size of this struct in the library: fields beyond this size do not exist.
    size_t size;
    // The address of the first byte.
    uint64_t address;
    // The size in bytes.
    uint64_t total_size;
    // The stream whose requests the segment serves; the default stream if the memory serves all streams.
    seam_stream stream;
    // The private pool that the segment serves; both numbers are 0 if it serves all requests.
    seam_pool pool;
    // Whether the segment serves requests of up to 1 MiB.
    bool is_small;
    // Whether the segment is mapped memory, not one `cudaMalloc`.
    bool is_expandable;
} seam_segment;

// A block of a segment. Sizes are bytes.
typedef struct {
    // The address of the first byte.
    uint64_t address;
    // The size with rounding.
    uint64_t size;
    // The size as requested; for a free block, the size of its last use, or 0.
    uint64_t requested;
    // The state of the block.
    seam_block_state state;
    // Whether the block is part of a private pool that sleeps: the block has no memory at present.
    bool is_asleep;
    // Bytes of the block that are spilled to host memory.
    uint64_t spilled;
} seam_block;

// Receives a segment and its blocks, which tile the segment in the order of addresses. The segment and the blocks are
// valid during the call only. The function must return (no exception, no longjmp).
typedef void (*seam_segment_visitor)(const seam_segment *segment, const seam_block *blocks, size_t count, void *user);

// The message about a tag that a callback gets.
typedef struct {
    // The size of this struct.
    size_t size;
    // The stage, one of `SEAM_SLEEP_*`.
    uint32_t stage;
    // The tag that changes.
    seam_pool tag;
    // The bytes of physical memory that the tag has while it is awake.
    uint64_t bytes;
} seam_sleep_notice;

// Receives a notice about a tag. Before a change, the return value says whether the callback agrees to the change;
// after a change, it is ignored. The function is called without a lock of the library, in the thread that makes the
// change. It must return (no exception, no longjmp).
typedef bool (*seam_sleep_callback)(const seam_sleep_notice *notice, void *user);

// Gives a private pool a segment of `bytes`: 2 MiB, the size in the option `large_segment_size_mb` (20 MiB by
// default), or another multiple of 2 MiB. `*address` gets the address of the segment's first byte, a multiple of 512.
// The segment must not overlap memory that the allocator already has. Returns 0 after success. If there is too little
// memory, the function returns `SEAM_STATUS_OUT_OF_MEMORY`, or 0 with NULL; the allocator then gives back the memory
// that it can and asks again. Any other number is a failure.
//
// The thread that makes the request calls this function, under the allocator's lock. During a stream capture the
// thread is in CUDA's relaxed capture mode. The function may call CUDA, but nothing of this library
// (`SEAM_STATUS_REENTRANT`), and must not wait for a thread that may call this library. It must return (no exception,
// no longjmp).
typedef int32_t (*seam_segment_alloc)(size_t bytes, void **address, void *user);

// Takes back a whole segment that `seam_segment_alloc` gave and that nothing uses any more. Returns 0 after success.
// After any other number the allocator keeps the segment, and offers it again when memory is next given back. The
// function is called as `seam_segment_alloc` is.
typedef int32_t (*seam_segment_free)(void *address, size_t bytes, void *user);

// Says that the source's other functions are not called any more. The function is called as `seam_segment_alloc` is.
typedef void (*seam_source_end)(void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns `SEAM_ABI_VERSION` of the library that is loaded.
uint32_t seam_abi_version(void);

// Returns the version of the library that is loaded, such as "0.1.0".
const char *seam_version(void);

// Creates an allocator, which holds no memory yet.
//
// `device` is "cuda:0", "host:4GiB" for host memory (Linux; without a size, a quarter of the available memory), or a
// simulated device that has no memory behind its addresses: "sim:h200,capacity=80GiB". "pinned:0" is page-locked host
// memory for `seam_host_malloc`, on the NUMA node nearest to device 0 or on another node ("pinned:0,node=1").
// `options` is a list in the syntax of PYTORCH_CUDA_ALLOC_CONF, "strategy:stitch,memory_limit:80GiB"; NULL and "" are
// the defaults. After a failure `*allocator` is 0.
seam_status seam_create(const char *device, const char *options, seam_allocator *allocator);

// Writes options, given as `seam_create` takes them, in a uniform form: each option that differs from its default,
// once, or "" if none differs. Returns `SEAM_STATUS_OPTIONS` if the options cannot be read. The call creates no
// allocator, so a process may read options before it forks. The buffer is as in `seam_stats_json`.
seam_status seam_read_options(const char *options, char *buffer, size_t capacity, size_t *length);

// Destroys an allocator. Its handle is refused from now on. Free memory goes back to the device, after a wait for the
// streams that still use some of it. Live blocks stay valid; the device gets their memory back only when the process
// ends. If other threads are in a call with the allocator, or a callback of the allocator calls this function, the
// allocator is destroyed when the last of these calls ends.
seam_status seam_destroy(seam_allocator allocator);

// Allocates `size` bytes for work on `stream`, at an address that is a multiple of 512. For 0 bytes `*address` is
// NULL, which is no error. After a failure `*address` is NULL too.
seam_status seam_malloc(seam_allocator allocator, size_t size, seam_stream stream, void **address);

// Allocates `size` bytes that the CPU uses too, at an address that is a multiple of 512. The allocator must be of
// "pinned:0", "host:4GiB", or a simulated device. Work on a stream may use the memory once `seam_record_stream` has
// named the stream. Memory that `seam_free` freed is reused only when each stream that was named has passed all work
// that it was given before the free, since no stream orders what the CPU does. For 0 bytes `*address` is NULL, which
// is no error. After a failure `*address` is NULL too. Returns `SEAM_STATUS_INVALID_ARGUMENT` for memory of a GPU, and
// with options that look at contents (`guard`, `spill`, `split:ungated`).
seam_status seam_host_malloc(seam_allocator allocator, size_t size, void **address);

// Frees an allocation, in the order of the stream that it was allocated for: later requests of this stream may get the
// memory at once. NULL is ignored.
seam_status seam_free(seam_allocator allocator, void *address);

// Frees as `seam_free` does, for a program that names the stream of the last use. If the memory was allocated for
// another stream, it is reused only after both streams have passed all work that they were given so far.
seam_status seam_free_on(seam_allocator allocator, void *address, seam_stream stream);

// Frees as `seam_free` does, for a program that has a current stream, as PyTorch has: work on the current stream may
// use the memory although no `seam_record_stream` named the stream. The stream that the memory was allocated for may
// get the memory at once. Other streams and the device get it once `stream` too has passed all work that it was given
// so far.
seam_status seam_free_under(seam_allocator allocator, void *address, seam_stream stream);

// Says that work on `stream` uses an allocation: after the free, its memory waits for this stream too. NULL is
// ignored.
seam_status seam_record_stream(seam_allocator allocator, void *address, seam_stream stream);

// Says that the program is about to destroy `stream`. The call waits for the stream's work, and the allocator never
// names the stream to the device again. Free memory of the stream serves other streams. Blocks that were allocated for
// the stream stay valid and belong to no stream: if other streams continue to use them, say so with
// `seam_record_stream`. The same handle later means a new stream. The call is refused while a stream is being
// captured.
seam_status seam_forget_stream(seam_allocator allocator, seam_stream stream);

// Tells the allocator of a stream that may use the allocator's memory although no request, free or
// `seam_record_stream` names the stream. While chunks are split under live addresses (the option `split`), the stream
// stands still. Call `seam_forget_stream` before the stream is destroyed.
seam_status seam_announce_stream(seam_allocator allocator, seam_stream stream);

// Says that the owner of `stream` may destroy it without telling the allocator. From now on the allocator names the
// stream to the device only in calls that name the stream, which must be live then: a request for the stream,
// `seam_free_under` with the stream as the current one, and the free of an allocation for which `seam_record_stream`
// named the stream. Memory that is freed in another call, or while the stream is being captured, serves other streams
// only after a wait for the device. `seam_forget_stream` ends this.
seam_status seam_set_borrowed(seam_allocator allocator, seam_stream stream);

// Lets the device with this ordinal read and write all memory that the allocator holds and will hold.
seam_status seam_enable_peer_access(seam_allocator allocator, uint32_t ordinal);

// Returns how many bytes of the allocation that starts at `address` may be used: the requested bytes, rounded up
// except in guard mode.
seam_status seam_size_of(seam_allocator allocator, void *address, size_t *size);

// Gives back to the device all free memory that can go back, after a wait for the streams that still use some of it.
// `given` gets the number of bytes given back; it may be NULL.
seam_status seam_empty_cache(seam_allocator allocator, uint64_t *given);

// Gives free memory back to the device until `bytes` were given back, and hardly more. The call waits for streams only
// if that is needed. `given` gets the number of bytes given back, which is less than `bytes` only if less is free; it
// may be NULL.
seam_status seam_trim(seam_allocator allocator, uint64_t bytes, uint64_t *given);

// Gives free memory back to the device until the bytes of the option `headroom` (1 GiB by default) are free again, or
// until no more can go back without a wait. `given` gets the number of bytes given back; it may be NULL. Requests that
// find no free block do this too, from time to time. A program without such requests calls this function before other
// programs need memory. With `headroom:0B`, and during a stream capture, the call does nothing.
seam_status seam_keep_headroom(seam_allocator allocator, uint64_t *given);

// Limits the physical bytes that the allocator may hold at any moment; `SEAM_NO_LIMIT` lifts the limit. Free memory
// beyond the limit is given back at once.
seam_status seam_set_memory_limit(seam_allocator allocator, uint64_t bytes);

// Limits the memory that the allocator may hold to a fraction (0 to 1) of the device's memory, counted as PyTorch
// counts it; 1 lifts the limit.
seam_status seam_set_memory_fraction(seam_allocator allocator, double fraction);

// Returns the largest fraction of the device's memory that the allocator may hold, as `seam_set_memory_fraction` or
// the options have set it; 1 is no limit.
seam_status seam_get_memory_fraction(seam_allocator allocator, double *fraction);

// Walks every table of the allocator and checks every rule that always holds. The call is slow and meant for tests.
// Returns `SEAM_STATUS_INTERNAL` if a rule is broken.
seam_status seam_check(seam_allocator allocator);

// From now on `callback` is called when a request finds too little memory, before cached memory is given back for the
// request. If the callback returns true, the request is tried again. Callbacks are called in the order in which they
// were added. `id` gets a number by which the callback can be removed; it may be NULL.
seam_status seam_on_memory_pressure(seam_allocator allocator,
                                    seam_pressure_callback callback,
                                    void *user,
                                    uint64_t *id);

// Removes a callback. Another thread may still be in the callback. Returns `SEAM_STATUS_INVALID_ARGUMENT` if no
// callback has this number.
seam_status seam_remove_memory_callback(seam_allocator allocator, uint64_t id);

// Fills in the statistics of an allocator: its operations so far, and the memory that it holds now.
seam_status seam_get_stats(seam_allocator allocator, seam_stats *stats);

// Sets every peak to the present value.
seam_status seam_reset_peak_stats(seam_allocator allocator);

// Sets every accumulated figure to 0.
seam_status seam_reset_accumulated_stats(seam_allocator allocator);

// Writes the statistics as JSON: the fields of `seam_stats` by their names, the device, the options in force, the
// driver calls by name with their number and time, a histogram of the stalls (below 1 us, 2 us, 4 us, ...), and the
// memory and the findings of guard mode.
//
// At most `capacity` bytes are written to `buffer`, including the NUL at the end, or none if the text is longer
// (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of the text, without the NUL; `length` may be NULL. With
// a capacity of 0, `buffer` may be NULL too. The length may differ from call to call.
seam_status seam_stats_json(seam_allocator allocator, char *buffer, size_t capacity, size_t *length);

// Returns the largest request, in bytes, that at least one stream could get from the free memory that is held, by
// stitching where that is allowed. The call walks over all free ranges.
seam_status seam_largest_free(seam_allocator allocator, uint64_t *bytes);

// Returns the largest request, in bytes, that at least one stream could get now: from the free memory that is held,
// from the memory that the device and the limits leave, or from both together if the strategy joins them. The call
// walks over all free ranges, and asks the driver.
seam_status seam_largest_request(seam_allocator allocator, uint64_t *bytes);

// Returns the free and the total memory of the allocator's device in bytes, whichever process holds it. Either pointer
// may be NULL.
seam_status seam_memory_info(seam_allocator allocator, uint64_t *free, uint64_t *total);

// Writes how the memory is divided up now, as JSON: for whom memory is free, in how many ranges, and how much of it
// one request could get, with and without stitching. The call walks over all free ranges. The buffer is as in
// `seam_stats_json`.
seam_status seam_fragmentation_json(seam_allocator allocator, char *buffer, size_t capacity, size_t *length);

// Logs the figures of an allocator so far, at the level `info`: on standard error, if the environment variable
// SEAMALLOC_LOG asks for this level.
seam_status seam_log_summary(seam_allocator allocator);

// Reserves `capacity` bytes of addresses for an allocation that grows in place, for work on `stream`. The allocation
// has no memory yet: `seam_grow` gives it some, `seam_shrink` takes some back, and `seam_free`, or another function
// that frees, ends the allocation. `seam_record_stream` works as for any allocation, and holds for memory that the
// allocation gets later too. Only the strategy `stitch` outside of guard mode can do this (`SEAM_STATUS_NOT_GROWABLE`
// otherwise). After a failure `*address` is NULL.
seam_status seam_reserve(seam_allocator allocator, size_t capacity, seam_stream stream, void **address);

// Reserves as `seam_reserve` does, in a private pool, such as a tag that sleeps and wakes.
seam_status seam_pool_reserve(seam_allocator allocator,
                              seam_pool pool,
                              size_t capacity,
                              seam_stream stream,
                              void **address);

// Grows an allocation of `seam_reserve`, so that later work on its stream can use at least its first `size` bytes. The
// address and the contents stay. A `size` below the present size changes nothing. Once the stream was forgotten, the
// allocation cannot grow. If the allocation already has that much memory, the device is not called. After
// `SEAM_STATUS_OUT_OF_MEMORY` and `SEAM_STATUS_BEYOND_CAPACITY` the allocation is as it was.
seam_status seam_grow(seam_allocator allocator, void *address, size_t size);

// Gives back the memory of an allocation of `seam_reserve` beyond its first `size` bytes, as `seam_free` does, in
// whole chunks. The first `size` bytes keep their address and contents. A `size` above the present size changes
// nothing.
seam_status seam_shrink(seam_allocator allocator, void *address, size_t size);

// Grows or shrinks an allocation of `seam_reserve` to `size` bytes: what TensorRT asks of `IGpuAllocator::reallocate`
// for memory that it allocated as `kRESIZABLE`.
seam_status seam_resize(seam_allocator allocator, void *address, size_t size);

// Returns three sizes of an allocation of `seam_reserve` in bytes: the size that was last requested (`len`), the part
// with memory (`mapped`), and the reserved addresses (`capacity`). Each pointer may be NULL.
seam_status seam_extent(seam_allocator allocator, void *address, size_t *len, size_t *mapped, size_t *capacity);

// Describes an address in a sentence: the allocation, live or freed, in which or at whose edge the address lies, with
// its size, streams and number. The text is "" if no such allocation is known, or guard mode is off. The function
// works after an illegal address was used, when every call of CUDA fails. The buffer is as in `seam_stats_json`.
seam_status seam_explain(seam_allocator allocator, const void *address, char *buffer, size_t capacity, size_t *length);

// Writes the mistakes of the program that guard mode has found, the first 1000, oldest first, as a JSON array of
// objects: `kind` (`double_free`, `wrong_free`, `overrun`, `underrun`, `write_after_free`, `missing_record_stream`),
// `text`, and the `address`, `size` in bytes, `number` and `stream` of the allocation. The buffer is as in
// `seam_stats_json`.
seam_status seam_findings_json(seam_allocator allocator, char *buffer, size_t capacity, size_t *length);

// Waits for the device, and looks for bytes that were written around live allocations and into freed memory.
// `findings` gets the number of mistakes found so far; it may be NULL. Without guard mode the function does nothing.
seam_status seam_check_guards(seam_allocator allocator, uint64_t *findings);

// Says that the latest work given to `stream` uses the allocations in which these `count` addresses lie. Guard mode
// then reports a free before the end of this work, if neither `seam_record_stream` named the stream nor the
// allocation's own stream waits for the work. Addresses outside of live allocations are ignored. Without guard mode
// the function does nothing.
seam_status seam_note_uses(seam_allocator allocator, const void *const *addresses, size_t count, seam_stream stream);

// Says that the program recorded an event on `stream`. `event` is any number that the program has chosen for the
// event. A second record of the same number replaces the first.
seam_status seam_note_event(seam_allocator allocator, uint64_t event, seam_stream stream);

// Says that the program lets later work of `stream` wait for an event that `seam_note_event` has noted.
seam_status seam_note_wait(seam_allocator allocator, seam_stream stream, uint64_t event);

// For `set_record_stream_fn`: work on `stream` uses an allocation of `seamalloc_malloc`, of whichever device.
void seamalloc_record_stream(void *address, seam_stream stream);

// For `set_reset_fn`, which `torch.cuda.empty_cache` calls: gives back all free memory of every device, as
// `seam_empty_cache`.
void seamalloc_empty_cache(void);

// For `set_memory_fraction_fn`: as `seam_set_memory_fraction`.
void seamalloc_set_memory_fraction(double fraction, int device);

// For `set_begin_allocate_to_pool`: all requests for the device go to the private pool, in every thread, as if a
// stream were captured, until `seamalloc_end_pool`. PyTorch passes the pool as a pair, which arrives as two numbers,
// and then a `std::function`, which is ignored.
void seamalloc_begin_pool(int device, uint64_t first, uint64_t second, const void *filter);

// For `set_end_allocate_to_pool_fn`: requests no longer go to the private pool of `seamalloc_begin_pool`.
void seamalloc_end_pool(int device, uint64_t first, uint64_t second);

// For `set_release_pool`: ends one use of the private pool, as `seam_pool_release`.
void seamalloc_release_pool(int device, uint64_t first, uint64_t second);

// Reports the allocators of this process, including those that are created later, to other processes of the same user
// from now on: a thread of the library answers at a Unix socket, where `seamalloc top` asks. `path` is the socket's
// name, which must not exist. If `path` is NULL, the name is NAMESPACE-PID.sock (NAMESPACE: the inode of the process's
// PID namespace) in $XDG_RUNTIME_DIR/seamalloc or /tmp/seamalloc-UID, where `seamalloc top` finds it. The socket is
// removed when the process ends by exit. The environment variable SEAMALLOC_SERVE (1, or a socket's name) has the same
// effect when the first allocator is created. The function does nothing if such a thread runs already. Returns
// `SEAM_STATUS_FILE` if the socket cannot be made.
seam_status seam_serve(const char *path);

// Ends the thread that `seam_serve` started, and removes its socket. Does nothing if no such thread runs.
seam_status seam_serve_stop(void);

// Writes the metrics of all allocators of the process, as the text that Prometheus reads (docs/metrics.md). The
// function works without `seam_serve`. The buffer is as in `seam_stats_json`.
seam_status seam_metrics(char *buffer, size_t capacity, size_t *length);

// Writes the last operations of the allocator, which its flight recorder has kept (the option `flight_recorder`), and
// the memory that the allocator holds. The file is a trace if its name ends in .seam, .csv or .csv.gz, else a pickle
// that PyTorch's viewer opens and `seamalloc replay` reads. The file says how many operations were overwritten. With
// the option `flight_dump`, the same is written when a request is refused. The file appears only when it is complete.
seam_status seam_flight_write(seam_allocator allocator, const char *path);

// From now on `observer` receives every event, in addition to the recorder; NULL ends this. Once the function has
// returned, the previous observer is not called any more.
seam_status seam_observe(seam_allocator allocator, seam_observer observer, void *user);

// Allocates `size` bytes of a CUDA device for work on `stream`: the allocating half of PyTorch's pluggable signature.
//
// Each device has an allocator of its own, created on first use with the options in the environment variable
// SEAMALLOC_CONF (SEAMALLOC_GUARD=1 is short for `guard:on` there), and kept until the process ends; `seam_plugged`
// returns its handle. With SEAMALLOC_DEVICE=sim:h200 (or another simulated device, or host:4GiB) all devices are of
// this kind.
//
// Returns NULL for 0 bytes, and after a failure. The last error of the thread says why the call failed, and so does a
// message (`seam_set_message_handler`). If the allocator cannot be created at all, for example because the options
// cannot be read, every call fails, but only one message is sent. In a forked child every call fails without a
// message.
void *seamalloc_malloc(size_t size, int device, seam_stream stream);

// Frees memory that `seamalloc_malloc` allocated for the same device: the freeing half of PyTorch's pluggable
// signature. `size` is ignored. If the memory was allocated for a stream other than `stream`, it is reused only after
// both streams have passed all work that they were given so far. NULL is ignored.
//
// A call that fails (for memory that is freed twice, or is of another device or allocator) changes nothing, sets the
// last error of the thread, and sends a message. In a forked child, which holds copies of its parent's pointers, the
// call does nothing.
void seamalloc_free(void *address, size_t size, int device, seam_stream stream);

// Returns the allocator behind `seamalloc_malloc` for a device, created now if it does not exist yet: for statistics,
// limits, pools. This allocator cannot be destroyed.
seam_status seam_plugged(int device, seam_allocator *allocator);

// Sets options for the allocators behind `seamalloc_malloc` that apply where SEAMALLOC_CONF does not say otherwise.
// Options of an earlier call are forgotten. Pass "sharing:never" for a program that calls `seamalloc_free` and uses an
// allocation on other streams without naming them, as PyTorch's users do. The call is refused once an allocator was
// requested.
seam_status seam_plugged_defaults(const char *options);

// Returns the device whose allocator, among those of `seamalloc_malloc`, has the live allocation that starts at
// `address`; -1 if none has. The function opens no device.
seam_status seam_plugged_owner(const void *address, int *device);

// Returns the fraction of a device's memory that an allocator of `seamalloc_malloc` may hold once it is created, by
// the options; 1 is no limit. The function opens no device.
seam_status seam_plugged_memory_fraction(double *fraction);

// Returns which devices have an allocator behind `seamalloc_malloc`: bit `n` is device `n`. Unlike `seam_plugged`, the
// function creates none.
seam_status seam_plugged_devices(uint64_t *devices);

// From now on messages go to `handler` instead of a line on standard error; NULL restores the line. Another thread may
// still be in the previous handler.
seam_status seam_set_message_handler(seam_message_handler handler, void *user);

// Creates a private pool with one use, which `seam_pool_release` ends. The pool's memory serves only requests made for
// the pool, and the addresses that the pool handed out stay mapped until its last use has ended.
seam_status seam_pool_create(seam_allocator allocator, seam_pool *pool);

// Adds one use to the private pool of this name, or creates the pool: for programs that name pools themselves, as
// PyTorch does.
seam_status seam_pool_open(seam_allocator allocator, seam_pool pool);

// Adds one use to a private pool.
seam_status seam_pool_retain(seam_allocator allocator, seam_pool pool);

// Ends one use of a private pool. With the last use the pool's memory becomes free for all requests; memory that a
// graph may use becomes free once the device has completed all work that it was given so far. Live allocations stay
// valid. No graph that was captured with the pool may be launched afterwards.
seam_status seam_pool_release(seam_allocator allocator, seam_pool pool);

// Allocates as `seam_malloc` does, from a private pool, even while requests are routed to another pool. `seam_free`
// frees the memory.
seam_status seam_pool_malloc(seam_allocator allocator, seam_pool pool, size_t size, seam_stream stream, void **address);

// Routes requests on these streams to a private pool from now on, until `seam_pool_end`. Of several routes that cover
// a request, the one begun last takes it. `flags` is 0 or `SEAM_POOL_CAPTURING`.
seam_status seam_pool_begin_streams(seam_allocator allocator,
                                    seam_pool pool,
                                    const seam_stream *streams,
                                    size_t count,
                                    uint32_t flags);

// Routes all requests of the calling thread to a private pool, whatever their stream, as `seam_pool_begin_streams`
// does for streams.
seam_status seam_pool_begin_thread(seam_allocator allocator, seam_pool pool, uint32_t flags);

// Routes to a private pool, as `seam_pool_begin_streams` does, all requests of all threads that no other route covers.
// Other routes go first, whether they were begun before or after this one. PyTorch's backward passes run in threads of
// their own, which this route covers.
seam_status seam_pool_begin_other_threads(seam_allocator allocator, seam_pool pool);

// Routes to a private pool, as `seam_pool_begin_streams` does, the requests for which `filter` returns true.
seam_status seam_pool_begin_filter(seam_allocator allocator,
                                   seam_pool pool,
                                   seam_pool_filter filter,
                                   void *user,
                                   uint32_t flags);

// Ends one route to a private pool (a call of `seam_pool_begin_*`): the newest one of `seam_pool_begin_thread` in the
// calling thread, or else the newest one of `seam_pool_begin_other_threads`. If there is neither, ends the pool's only
// route, and fails if the pool has several.
seam_status seam_pool_end(seam_allocator allocator, seam_pool pool);

// Writes the live blocks of a private pool, in the order of addresses: a checkpoint of the pool. At most `capacity`
// blocks are written to `blocks`, or none if the pool has more (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*count` gets the
// number of live blocks; `count` may be NULL. With a capacity of 0, `blocks` may be NULL too. The call walks all
// blocks.
seam_status seam_pool_blocks(seam_allocator allocator,
                             seam_pool pool,
                             seam_pool_block *blocks,
                             size_t capacity,
                             size_t *count);

// Frees every live block of a private pool, then hands out the blocks of a checkpoint (`seam_pool_blocks`) again, at
// the same addresses and over the same memory. This is for memory that a launch of a graph has filled, although the
// program freed it while the graph was captured. Returns `SEAM_STATUS_NOT_RESTORABLE` if a block cannot be had, and
// always with a strategy other than `stitch`. Large blocks are restored first; the blocks that were restored before
// the failure stay live. The call may wait for the streams on which the pool's memory was freed.
seam_status seam_pool_restore(seam_allocator allocator, seam_pool pool, const seam_pool_block *blocks, size_t count);

// Fills in the statistics of a private pool. The call walks all blocks.
seam_status seam_pool_get_stats(seam_allocator allocator, seam_pool pool, seam_pool_stats *stats);

// Writes the memory that the allocator holds, and the recorded history if there is one, as a memory snapshot that
// PyTorch's viewer reads (pytorch.org/memory_viz): a pickle. The file appears only when it is complete.
seam_status seam_snapshot(seam_allocator allocator, const char *path);

// Records events from now on, and keeps the last `max_entries`. An event takes 56 bytes of memory. An allocation or a
// free makes one or two events. The records of an earlier call are forgotten.
seam_status seam_record_start(seam_allocator allocator, size_t max_entries);

// Makes every allocator that is created from now on record from its beginning, as by `seam_record_start`; 0 ends this.
// The function is for a program that does not know yet which devices it will use, and must not touch a device before.
seam_status seam_record_new(size_t max_entries);

// Stops recording, and forgets what was recorded.
seam_status seam_record_stop(seam_allocator allocator);

// Writes the recorded events as a trace that `seamalloc replay` reads; the name of the file tells the format: .seam,
// .csv or .csv.gz. Recording goes on. Returns `SEAM_STATUS_INVALID_ARGUMENT` if nothing is recorded.
seam_status seam_record_write(seam_allocator allocator, const char *path);

// Writes how strategies would have served the jobs that a file holds (a PyTorch snapshot with its history, or a
// trace): a JSON list with an entry for each job and strategy. An entry has the memory that the strategy would have
// held (`peak_reserved`, null if the device is too small), the memory that PyTorch held (`recorded_reserved`, null if
// unknown; `reserved_before` is its part from before the recording), and the bytes of weights and optimizer state that
// stay from step to step (`persistent`). `largest_step` says how many times as large all other memory could be, 8 at
// most. `largest_step` is null if not even a hundredth fits, if the job frees nothing (`grows` is false), or if the
// device is unknown (`sought` is false). The same figures for PyTorch's own allocators on the same device are
// `native_reserved`, `native_step`, `expandable_reserved` and `expandable_step`. A snapshot without a history has an
// entry for each device with memory, with `layout` true and the output of `seamalloc whatif --json` without `owners`.
//
// The device is a simulated one, `sim:h200,capacity=80GiB`. "" is an H200 with the memory of the device that the job
// was recorded on. `device_from` says how this memory is known: "noted", or "refusal" (from the memory that PyTorch
// held and the device had free when memory ran out), or "unknown". The strategy is the one in `options`; if `options`
// name none, there is an entry for each strategy. The call replays the job several times, which takes seconds for each
// million of operations. The buffer is as in `seam_stats_json`.
seam_status seam_whatif_json(const char *path,
                             const char *device,
                             const char *options,
                             char *buffer,
                             size_t capacity,
                             size_t *length);

// Passes each segment that the allocator holds at this moment to the visitor, in the order of addresses. The visitor
// is called without a lock of the library.
seam_status seam_visit_segments(seam_allocator allocator, seam_segment_visitor visitor, void *user);

// Names a live allocation so that another process can open it with `seam_open_shared`. The handle is a sequence of
// some dozens of bytes, and 16 more for each chunk of the memory; send it unchanged. At most `capacity` bytes are
// written to `handle`, or none if the handle is longer (`SEAM_STATUS_BUFFER_TOO_SMALL`). `*length` gets the length of
// the handle. `*offset` gets the offset in bytes of the allocation in the opened memory. With a capacity of 0,
// `handle` may be NULL.
//
// The allocation must stay live until everyone who got the handle has closed it. The first call starts a thread that
// sends the memory to processes of the same user (and of root) that have the handle. Each chunk that shared
// allocations touch costs one open file descriptor, until the last of these allocations is freed. A call that fails
// leaves no new descriptor open.
seam_status seam_share(seam_allocator allocator,
                       void *address,
                       void *handle,
                       size_t capacity,
                       size_t *length,
                       uint64_t *offset);

// Keeps the physical memory of a live allocation in place as long as the allocator holds this memory: with the option
// `split:last_resort`, it is not exchanged for other memory under the same addresses. Call this function for memory
// that is registered by more than its addresses, as with NCCL or for RDMA. Memory that is shared with other processes
// is kept without this call.
seam_status seam_fix_memory(seam_allocator allocator, void *address);

// Opens memory that a process shares, by the handle of `seam_share`. `*address` gets the address at which the memory
// begins in this process. The device may read and write the memory, on any stream; the program must order this work
// with that of the other process. Opening a handle twice gives two addresses, or the same address twice (memory of
// `cudaMalloc`); in both cases the memory must be closed twice. Returns `SEAM_STATUS_IPC` for a bad handle, for memory
// that the process has freed, and for a process that is gone or has not sent everything within 10 seconds of the call.
seam_status seam_open_shared(seam_allocator allocator, const void *handle, size_t length, void **address);

// Closes the memory that `seam_open_shared` opened at this address, once the device has done all its work: the CPU
// waits for the device. While a stream is being captured, the memory is closed later.
seam_status seam_close_shared(seam_allocator allocator, void *address);

// From now on `callback` is called before and after each change of a tag between awake and asleep. If a callback
// returns false before a change, the change is not made (`SEAM_STATUS_NOT_SLEEPABLE`). Each callback that agreed
// receives the result of the change, even if the change failed. `id` gets a number by which the callback can be
// removed; it may be NULL.
seam_status seam_on_sleep(seam_allocator allocator, seam_sleep_callback callback, void *user, uint64_t *id);

// Removes a callback of `seam_on_sleep`. A change that is under way still calls it. Returns
// `SEAM_STATUS_INVALID_ARGUMENT` if no callback has this number.
seam_status seam_remove_sleep_callback(seam_allocator allocator, uint64_t id);

// Gives back to the host the page-locked memory that was kept for backups and that no sleeping tag needs. `released`
// gets the number of bytes; it may be NULL.
seam_status seam_release_backups(seam_allocator allocator, uint64_t *released);

// Creates a tag with one use: a private pool as by `seam_pool_create`, with chunks of physical memory of its own, so
// that it can sleep. Only the strategy `stitch` has tags (`SEAM_STATUS_NOT_SLEEPABLE` otherwise).
seam_status seam_pool_create_tag(seam_allocator allocator, seam_pool *pool);

// Adds one use to the tag of this name, or creates the tag. Returns `SEAM_STATUS_POOL_IN_USE` if a private pool of
// this name was used already and is no tag.
seam_status seam_pool_open_tag(seam_allocator allocator, seam_pool pool);

// Waits for the device, keeps the contents of the tag's live blocks as `backup` says (`SEAM_BACKUP_HOST`,
// `SEAM_BACKUP_PINNED`, `SEAM_BACKUP_DISCARD`, `SEAM_BACKUP_FILE` with the file's name in `path`, which is NULL
// otherwise), and gives all of the tag's physical memory back. `given` gets the number of bytes given back; it may be
// NULL. The blocks keep their addresses. Until `seam_pool_wake` has returned, no work of any stream, device or process
// may use the tag's memory. While the tag sleeps, blocks can be freed, and requests for the tag return
// `SEAM_STATUS_POOL_ASLEEP`. After a failure everything is as before.
seam_status seam_pool_sleep(seam_allocator allocator,
                            seam_pool pool,
                            uint32_t backup,
                            const char *path,
                            uint64_t *given);

// Gives memory to a sleeping tag again, at the same addresses and with the contents of its live blocks. `taken` gets
// the number of bytes, 0 if the tag does not sleep; it may be NULL. After a failure the tag still sleeps and keeps its
// backup, so the call can be repeated.
seam_status seam_pool_wake(seam_allocator allocator, seam_pool pool, uint64_t *taken);

// Adds one use to the private pool of this name, or creates the pool. The pool's segments come from `alloc` and go
// back by `free`. If both are NULL, segments come from the device and go back to it. Segments are cached and split as
// by the strategy `caching`, whatever the allocator's strategy is. `flags` is 0 or `SEAM_POOL_UNSPLIT`.
//
// After the last use of the pool was released, its free memory goes back at the next `seam_pool_empty`,
// `seam_empty_cache`, `seam_trim` or `seam_destroy`, or before a request would fail. Live memory goes back in the same
// way once it was freed. `end`, which may be NULL, is called exactly once. `seam_pool_open_with` itself calls `end` if
// it fails, or if `alloc` and `free` are NULL. Otherwise `end` is called when the last of the memory has gone back. If
// an allocator is destroyed while blocks of the pool are live, `end` is never called. The call fails with
// `SEAM_STATUS_POOL_IN_USE` if the pool has memory already, or segments of its own.
seam_status seam_pool_open_with(seam_allocator allocator,
                                seam_pool pool,
                                seam_segment_alloc alloc,
                                seam_segment_free free,
                                seam_source_end end,
                                void *user,
                                uint32_t flags);

// Makes each segment of a private pool one block from now on, as `SEAM_POOL_UNSPLIT` says. If the pool has no segments
// of its own yet, it gets them from the device from now on. Returns `SEAM_STATUS_POOL_IN_USE` if the pool has other
// memory already.
seam_status seam_pool_set_unsplit(seam_allocator allocator, seam_pool pool);

// Gives back the free memory of a private pool that nobody uses any more, after a wait for the device. `given` gets
// the number of bytes given back; it may be NULL. The call does nothing if the pool is in use or gone, or a stream is
// being captured.
seam_status seam_pool_empty(seam_allocator allocator, seam_pool pool, uint64_t *given);

// Allocates as `seam_pool_malloc` does, but only from a free range that the pool already holds. `*address` is NULL if
// there is no such range, which is no error. The call takes no new memory, and does not wait.
seam_status seam_pool_malloc_held(seam_allocator allocator,
                                  seam_pool pool,
                                  size_t size,
                                  seam_stream stream,
                                  void **address);

// Says how the program uses a live allocation from now on (`SEAM_ADVICE_COLD`, `SEAM_ADVICE_NORMAL`,
// `SEAM_ADVICE_HOT`). The advice matters only with the option `spill:host=SIZE`, with which live memory that does not
// fit the device lies in host memory.
seam_status seam_advise(seam_allocator allocator, void *address, uint32_t advice);

// Lets spilled memory come back to the device, as far as there is room; free memory is given back for this. `returned`
// gets the number of bytes that came back; it may be NULL. The CPU waits for the device. Until the call has returned,
// no thread may give the device work that uses memory of the allocator. During a stream capture no memory comes back.
seam_status seam_unspill(seam_allocator allocator, uint64_t *returned);

// Returns the status of the last call of this thread that failed, `SEAM_STATUS_OK` if none did since
// `seam_clear_last_error`. A call that succeeds does not change this status.
seam_status seam_last_error(void);

// Returns the message of the last call of this thread that failed, in words; empty if none did. Never NULL. The text
// is the library's, and valid until the next call of this thread that fails.
const char *seam_last_error_text(void);

// Returns the `CUresult` of the driver call behind the last error of this thread; 0 if the error has no driver call.
uint32_t seam_last_driver_status(void);

// Forgets the last error of this thread.
void seam_clear_last_error(void);

// Returns the name of a status, such as "SEAM_STATUS_OUT_OF_MEMORY". The name is never NULL; it is
// "SEAM_STATUS_UNKNOWN" for a number that is no status.
const char *seam_status_name(int32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
