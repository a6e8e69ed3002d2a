#!/usr/bin/env bash
# Makes the raw files of this folder: run.sh MEMQUILT, a release build of the command. A minute or two.
set -euo pipefail
memquilt=$(realpath "$1")
cd "$(dirname "$0")"
jobs=(gpt2xl-N resnet-multi moe-R opt1.3b-R opt13b-LR llama1b-ppo llama8b-fsdp2)

"$memquilt" stress recorded --strategy stitch --passes 20 --json > passes-20.jsonl
"$memquilt" stress --json > stress.jsonl
"$memquilt" fit "${jobs[@]}" --json > fit.jsonl
for lag in 0 100 1000 1500 3000 12000; do
    for policy in never completed wait; do
        "$memquilt" replay llama8b-fsdp2 --strategy stitch --passes 3 --lag "$lag" --conf "sharing:$policy" --json |
            sed "s/^{/{\"lag\":$lag,\"policy\":\"$policy\",/"
    done
done > lag.jsonl
