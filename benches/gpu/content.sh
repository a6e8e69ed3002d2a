#!/usr/bin/env bash
# Contents and kernel speed on a real GPU: `cargo build --release --example gpu_content`, and B names the binary, which may
# be carried to a machine without Rust. Writes to $OUT:
# content.jsonl, split.jsonl, sabotage.jsonl, speed.jsonl, sanitizer.jsonl, log.jsonl (what was said on stderr, and exit codes).
# About 150 s of content, 45 s of split, 10 s of sabotage, 15 s of speed, up to 150 s of sanitizer. PARTS picks some of them.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")"
OUT=${OUT:?names the folder for the results}
B=${B:-./gpu_content}
DEVICE=${DEVICE:-cuda:0}
PARTS=${PARTS:-speed content split sabotage sanitizer}
S=${S:-10}   # seconds of a content run
chmod +x "$B" 2>/dev/null || true

say() { echo "$*"; python3 -c 'import json,sys; print(json.dumps({"log": sys.argv[1]}))' "$*" >>"$OUT/log.jsonl"; }
bad=0
go() { # file, expected exit code, arguments...
    local file=$1 expected=$2; shift 2
    local start=$SECONDS err
    err=$(timeout 120 "$B" "$DEVICE" "$@" 2>&1 >>"$OUT/$file"); local rc=$?
    say "exit $rc (expected $expected), $((SECONDS - start)) s: $* ${err:+| $err}"
    [ $rc -eq "$expected" ] || bad=$((bad + 1))
}

for part in $PARTS; do case $part in
speed) go speed.jsonl 0 --speed ;;
content)
    go content.jsonl 0 --seconds $S --seed 1 --conf strategy:stitch,memory_limit:24GiB
    go content.jsonl 0 --seconds $S --seed 2 --conf strategy:stitch,memory_limit:16GiB
    go content.jsonl 0 --seconds $S --seed 3 --conf strategy:stitch,memory_limit:18GiB,chunk_size_mb:2,max_view_mappings:8000
    go content.jsonl 0 --seconds $S --seed 4 --conf strategy:stitch,memory_limit:18GiB,chunk_size_mb:8,max_views:40
    go content.jsonl 0 --seconds $S --seed 5 --conf strategy:stitch,memory_limit:24GiB,sharing:completed
    go content.jsonl 0 --seconds $S --seed 6 --conf strategy:stitch,memory_limit:24GiB,sharing:never
    go content.jsonl 0 --seconds $S --seed 7 --conf strategy:stitch,memory_limit:100GiB --live 64GiB
    go content.jsonl 0 --seconds $S --seed 8 --conf strategy:stitch,memory_limit:32GiB --threads 4 --streams 2
    go content.jsonl 0 --seconds $S --seed 9 --conf strategy:stitch,memory_limit:24GiB --threads 1 --streams 7
    go content.jsonl 0 --seconds $S --seed 10 --conf strategy:stitch --live 4GiB
    go content.jsonl 0 --seconds $S --seed 11 --conf strategy:stitch,memory_limit:20GiB,roundup_power2_divisions:4
    go content.jsonl 0 --seconds $S --seed 12 --conf strategy:caching,memory_limit:30GiB
    go content.jsonl 0 --seconds $S --seed 13 --conf strategy:expandable,memory_limit:30GiB
    go content.jsonl 0 --seconds $S --seed 14 --conf strategy:gmlake,memory_limit:30GiB ;;
split) # Chunks are split under live addresses; no other thread may launch kernels meanwhile.
    go split.jsonl 0 --seconds $S --seed 1 --threads 1 --live 1GiB --conf split:last_resort,memory_limit:1100MiB,chunk_size_mb:32
    go split.jsonl 0 --seconds $S --seed 2 --threads 1 --live 1GiB --conf split:last_resort,memory_limit:1100MiB,sharing:never
    go split.jsonl 0 --seconds $S --seed 3 --threads 1 --live 8GiB --conf split:last_resort,memory_limit:8800MiB,chunk_size_mb:128
    go split.jsonl 0 --seconds $S --seed 4 --threads 1 --live 1GiB --faults --conf split:last_resort,memory_limit:1100MiB,chunk_size_mb:32
    go split.jsonl 0 --seconds $S --seed 5 --threads 1 --live 8GiB --conf split:last_resort,memory_limit:8800MiB
    go split.jsonl 0 --seconds $S --seed 6 --threads 1 --live 8GiB --faults --conf split:last_resort,sharing:wait,memory_limit:8800MiB ;;
sabotage)
    for mistake in untold unwaited freed-outputs; do
        go sabotage.jsonl 1 --seconds 20 --seed 1 --conf strategy:stitch,memory_limit:24GiB --sabotage $mistake
    done
    go sabotage.jsonl 1 --seconds 20 --seed 2 --conf strategy:caching,memory_limit:30GiB --sabotage untold ;;
sanitizer)
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    if [ -z "$tool" ]; then say "no compute-sanitizer on this machine"; continue; fi
    say "$tool: $("$tool" --version 2>&1 | tail -2 | tr '\n' ' ')"
    for conf in strategy:stitch,memory_limit:4GiB,chunk_size_mb:4 split:last_resort,memory_limit:2200MiB,chunk_size_mb:32; do
        start=$SECONDS
        timeout 75 "$tool" --tool memcheck --report-api-errors no --error-exitcode 9 "$B" "$DEVICE" --threads 1 --operations 3000 \
            --live 2GiB --conf $conf >"$OUT/.sanitizer" 2>&1
        rc=$?
        grep '^{' "$OUT/.sanitizer" >>"$OUT/sanitizer.jsonl"
        grep -v '^{' "$OUT/.sanitizer" | head -40 | while IFS= read -r line; do say "sanitizer: $line"; done
        rm -f "$OUT/.sanitizer"
        say "exit $rc (expected 0), $((SECONDS - start)) s: compute-sanitizer --tool memcheck, $conf"
        [ $rc -eq 0 ] || bad=$((bad + 1))
    done ;;
esac; done
say "not as expected: $bad"
exit $((bad > 0))
