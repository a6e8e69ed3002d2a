#!/usr/bin/env bash
# The commit that gave the project its name ran this once, in a clean checkout of the commit before it. It renames crates, command,
# packages, libraries, prefixes, variables and trace files; raw results under docs/results keep what they printed.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
old=mem''quilt; OLD=MEM''QUILT
mapfile -t texts < <(git grep -lIiE "$old|\bmqt?\b|\bmqt?_|\.mqt" -- . ':!docs/results' ':!docs/decisions' ':!Cargo.lock')
for name in "" "ffi/python/"; do
    [ -d "$name$old" ] && git mv "$name$old" "${name}seamalloc"
done
texts=("${texts[@]/ffi\/python\/$old/ffi\/python\/seamalloc}")
# The pair of functions that PyTorch loads by name keeps the long prefix: `seam_malloc` is the C library's.
# The handle of shared memory begins with eight bytes.
sed -i -E "
    s/b\"$old\"/b\"seam-ipc\"/; s/\"$old\" ([12]) 0 0 0/\"seam-ipc\" \1 0 0 0/
    s/$old/seamalloc/g; s/$OLD/SEAMALLOC/g
    s/\bmq_/seam_/g; s/\bMQ_/SEAM_/g
    s/x89mqt\\\\r/x89sea\\\\r/g; s/89 6d 71 74/89 73 65 61/g
    s/\.mqt\b/.seam/g; s/\bmqt\b/seam/g
" "${texts[@]}"
git mv "ffi/$old.h" ffi/seamalloc.h
for trace in traces/*.mqt; do
    git mv "$trace" "${trace%.mqt}.seam"
    # Another magic number; the checksum is of the body alone.
    printf '\x89sea' | dd of="${trace%.mqt}.seam" conv=notrunc status=none
done
cargo fmt --all
