#!/usr/bin/env bash
# Makes the raw files of this folder, but for chunks-rule*.jsonl, and the pictures of docs/: run.sh SEAMALLOC, a release
# build of the command. Some minutes. With RULE, the path of a build that takes LARGEST_CHUNK (bytes) and MOST_CHUNKS of
# src/strategy/stitch/grow.rs from the environment, those too.
set -euo pipefail
seamalloc=$(realpath "$1")
rule=${RULE:+$(realpath "$RULE")}
cd "$(dirname "$0")"
mapfile -t default_set < <("$seamalloc" stress --strategy caching --json | sed 's/.*"trace":"\([^"]*\)".*/\1/')

"$seamalloc" study chunks --json --svg ../../chunk-sizes.svg > chunks.jsonl
"$seamalloc" study lag --json --svg ../../run-ahead.svg > lag.jsonl
"$seamalloc" study chunks --json --sizes 6,10,14,18,22,26,28,30,36,40,48 > chunks-more-sizes.jsonl
"$seamalloc" study chunks --json --sizes 8,12,16,20,24,32 "${default_set[@]}" > chunks-default-set.jsonl
"$seamalloc" study chunks --json --lag 1500 llama8b-fsdp2 > chunks-lag-1500.jsonl
for run in wait:{0,1000,1500,12000} completed:{100,1500,3000}; do
    sharing=${run%:*} lag=${run#*:}
    "$seamalloc" replay llama8b-fsdp2 --strategy stitch --passes 40 --lag "$lag" --conf "sharing:$sharing" --json |
        sed "s/^{/{\"lag\":$lag,\"sharing\":\"$sharing\",/"
done | python3 -c '
import json, sys
KEYS = """sharing lag trace strategy device pass peak_live peak_reserved utilization driver_time_us worst_stall_us
    views_built views_reused views_dropped mappings stream_waits wait_age_ops_min wait_age_ops_mean wait_age_ops_max
    idle_waits cpu_syncs oom""".split()
for line in sys.stdin:
    figures = json.loads(line)
    print(json.dumps({key: figures[key] for key in KEYS}))
' > passes-40.jsonl

# by_rule MIB CHUNKS [TRACE...]: the default rule with these numbers; the one size that the study wants beside it is left out.
by_rule() {
    LARGEST_CHUNK=$(($1 << 20)) MOST_CHUNKS=$2 "$rule" study chunks --json --sizes 1024 "${@:3}" |
        sed -n "s/{\"chunk_size_mb\":null,/{\"largest_chunk_mb\":$1,\"most_chunks\":$2,/p"
}
if [ -n "$rule" ]; then
    for mib in 8 12 16 20 24 28 32; do
        for most in 80 100 130 160 200 260; do
            by_rule "$mib" "$most"
        done
    done > chunks-rule.jsonl
    by_rule 28 100 "${default_set[@]}" > chunks-rule-default-set.jsonl
fi
