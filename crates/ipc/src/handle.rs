//! The handle of shared memory, as types and as bytes that any process can receive.
//!
//! ```text
//! chunks   "seam-ipc" 1 0 0 0 | pid: 4 | secret: 16 | of each chunk: key 8, size 8
//! plain    "seam-ipc" 2 0 0 0 | CUipcMemHandle: 64
//! ```
//! Numbers are little-endian.

use super::error::{IpcError, NotDone};
use seamalloc_driver::IpcMemory;
use seamalloc_driver::fallible::{Grown, TryCollect, with_room};
use std::fmt;

/// The sizes of chunks are multiples of this number of bytes: the granularity of the driver's virtual-memory calls.
const GRANULE: u64 = 2 << 20;
const MAGIC: &[u8; 8] = b"seam-ipc";
const CHUNKS: [u8; 4] = [1, 0, 0, 0];
const PLAIN: [u8; 4] = [2, 0, 0, 0];

/// A live allocation that other processes can open: `Sharing::export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    /// The bytes that name the memory of the allocation, to be sent unchanged: some dozens of bytes, and 16 more for
    /// each chunk. The same memory has the same bytes every time while one of its allocations stays shared, so that a
    /// receiver can recognize the memory.
    pub handle: Vec<u8>,
    /// The offset of the allocation in that memory, in bytes.
    pub offset: u64,
}

/// The memory that an allocation lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Chunks at adjacent addresses.
    Chunks {
        /// The process that holds the chunks.
        endpoint: Endpoint,
        /// The chunks, in the order of their addresses.
        chunks: Vec<SharedChunk>,
    },
    /// Memory of `cuMemAlloc`.
    Plain(IpcMemory),
}

/// A chunk of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedChunk {
    /// The number that the chunk's process gave the chunk.
    pub key: u64,
    /// The size in bytes.
    pub size: u64,
}

/// A process that sends descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) pid: u32,
    /// A random number. Its first half is in the socket's name, which everyone on the machine can read
    /// (`/proc/net/unix`); a client must send the second half before it gets a descriptor.
    pub(crate) secret: [u8; 16],
}

impl Endpoint {
    /// Returns the abstract name of the endpoint's socket.
    pub(super) fn name(&self) -> String {
        let name: String = self.secret[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("seamalloc-{}-{name}", self.pid)
    }

    /// Returns the second half of the secret, which proves that a client has the handle.
    pub(super) fn password(&self) -> &[u8] {
        &self.secret[8..]
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Place {
    /// Bytes of a handle of plain memory.
    pub const PLAIN_LEN: usize = 12 + 64;

    /// Returns the length in bytes of a handle of `chunks` chunks.
    #[must_use]
    pub const fn len_of_chunks(chunks: usize) -> usize {
        12 + 4 + 16 + 16 * chunks
    }

    /// Returns the bytes of a handle ([`IpcHandle::handle`]).
    ///
    /// # Errors
    /// The host has too little memory for the bytes.
    pub fn to_bytes(&self) -> Grown<Vec<u8>> {
        let length = match self {
            Self::Chunks { chunks, .. } => Self::len_of_chunks(chunks.len()),
            Self::Plain(_) => Self::PLAIN_LEN,
        };
        let mut bytes = with_room(length)?;
        bytes.extend(MAGIC);
        match self {
            Self::Chunks { endpoint, chunks } => {
                bytes.extend(CHUNKS);
                bytes.extend(endpoint.pid.to_le_bytes());
                bytes.extend(endpoint.secret);
                for chunk in chunks {
                    bytes.extend(chunk.key.to_le_bytes());
                    bytes.extend(chunk.size.to_le_bytes());
                }
            }
            Self::Plain(memory) => {
                bytes.extend(PLAIN);
                bytes.extend(memory.0);
            }
        }
        Ok(bytes)
    }

    /// Reads the bytes of a handle.
    ///
    /// # Errors
    /// [`IpcError::BadHandle`] for bytes that are no handle; [`NotDone::HostMemory`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotDone> {
        let bad = |why| IpcError::BadHandle { size: bytes.len(), why };
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| bad("they do not begin as one does"))?;
        let (kind, rest) = rest.split_first_chunk().ok_or_else(|| bad("they end too early"))?;
        match *kind {
            CHUNKS => {
                let (endpoint, pairs) = endpoint_and_chunks(rest).map_err(bad)?;
                Ok(Self::Chunks { endpoint, chunks: pairs.iter().map(chunk).try_to_vec()? })
            }
            PLAIN => {
                let memory = rest.try_into().map_err(|_| bad("an IPC handle has 64 bytes"))?;
                Ok(Self::Plain(IpcMemory(memory)))
            }
            _ => Err(bad("they are of a newer version").into()),
        }
    }
}

/// Returns the endpoint and the bytes of each chunk, if the bytes can describe chunks.
fn endpoint_and_chunks(bytes: &[u8]) -> Result<(Endpoint, &[[u8; 16]]), &'static str> {
    const SHORT: &str = "they end too early";
    let (pid, rest) = bytes.split_first_chunk().ok_or(SHORT)?;
    let (secret, rest) = rest.split_first_chunk().ok_or(SHORT)?;
    let (pairs, []) = rest.as_chunks::<16>() else { return Err("a chunk is cut short") };
    let mut total = 0u64;
    for SharedChunk { size, .. } in pairs.iter().map(chunk) {
        if size == 0 || !size.is_multiple_of(GRANULE) {
            return Err("a chunk's size is no multiple of 2 MiB");
        }
        total = total.checked_add(size).ok_or("the chunks are larger than any device")?;
    }
    if pairs.is_empty() {
        return Err("there is no chunk");
    }
    Ok((Endpoint { pid: u32::from_le_bytes(*pid), secret: *secret }, pairs))
}

fn chunk(pair: &[u8; 16]) -> SharedChunk {
    let both = u128::from_le_bytes(*pair);
    SharedChunk { key: both as u64, size: (both >> 64) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> [Place; 2] {
        let endpoint = Endpoint { pid: 7, secret: std::array::from_fn(|index| index as u8) };
        let chunks = vec![SharedChunk { key: 1, size: 2 << 20 }, SharedChunk { key: u64::MAX, size: 6 << 20 }];
        [Place::Chunks { endpoint, chunks }, Place::Plain(IpcMemory([9; 64]))]
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        for place in places() {
            let length = match &place {
                Place::Chunks { chunks, .. } => Place::len_of_chunks(chunks.len()),
                Place::Plain(_) => Place::PLAIN_LEN,
            };
            let bytes = place.to_bytes().unwrap();
            assert_eq!(bytes.len(), length);
            assert_eq!(Place::from_bytes(&bytes), Ok(place));
        }
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        for place in places() {
            let bytes = place.to_bytes().unwrap();
            for end in 0..bytes.len() {
                // Without their last chunk, the bytes are a valid handle of less memory.
                if Place::from_bytes(&bytes[..end]).is_ok() {
                    assert_eq!(end, bytes.len() - 16);
                }
            }
            let mut longer = bytes.clone();
            longer.push(0);
            Place::from_bytes(&longer).unwrap_err();
            let newer = [&bytes[..8], &[3, 0, 0, 0], &bytes[12..]].concat();
            assert!(
                matches!(Place::from_bytes(&newer), Err(NotDone::Ipc(error)) if error.to_string().contains("a newer version"))
            );
        }
        let [chunks, _] = places();
        for size in [0_u64, 1, (2 << 20) + 512, u64::MAX - (2 << 20) + 1] {
            let mut bytes = chunks.to_bytes().unwrap();
            let at = bytes.len() - 8;
            bytes[at..].copy_from_slice(&size.to_le_bytes());
            Place::from_bytes(&bytes).unwrap_err();
        }
        let error = Place::from_bytes(b"cudaIpcMemHandle").unwrap_err();
        assert_eq!(error, IpcError::BadHandle { size: 16, why: "they do not begin as one does" }.into());
    }
}
