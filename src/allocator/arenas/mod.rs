//! Arenas: heaps of single streams, each with a lock of its own.
//!
//! Owns: which stream has an arena, and the steps that involve its lock. `heap/arena.rs` moves the memory.
//!
//! # Note: arenas
//!
//! **Rationale.** Threads with a stream each share nothing while memory is plentiful, and yet stand in line at the one lock
//! of the allocator: four threads did a fifth of what one does.
//!
//! **Approach.** Once threads stand in each other's way, the memory that a stream has alone is lent to an arena. Requests of
//! the stream, and frees of its blocks, then take the arena's lock alone. A free finds the arena by a table with one entry for
//! each granule of home, which is read without a lock.
//! ```text
//! allocate(size, stream)    arena of the stream -- fits --> done      free(address)    arena of the granule --> done
//!                                  | none, or it does not fit                                  | none
//!                                  v                                                           v
//!                           the allocator's lock: the arena gives its memory back,      the allocator's lock
//!                           and the request is served as ever
//! ```
//! All else takes the allocator's lock, and then all memory back first: what looks at more than one block sees one heap. So
//! does a request that would make memory short, or that would be refused.
//!
//! Locks are taken in one order: the allocator's, then those of arenas by number. An arena comes and goes under both. So who
//! has the allocator's lock knows which arenas there are, and who has an arena's lock knows whether it still is one.
//!
//! Statistics are exact. What arenas count is added up; for peaks see `heap/peak_room.rs`.
//!
//! **Limitations.**
//! - Several threads with one stream stand in line as before.
//! - A stream whose memory is taken back often gains nothing. Its arena comes back later each time.
//! - A stream has no arena while events are observed, requests are routed to private pools, memory is shared with other
//!   processes, or in guard mode.

mod arena;
mod demand;
mod formation;
mod primitive;
mod registry;
mod serving;
mod table;

pub(super) use demand::Demand;
pub(super) use registry::Arenas;
