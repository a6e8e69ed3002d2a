#!/usr/bin/env bash
# Makes the raw files of this folder: run.sh SEAMALLOC, a release build of the command. A minute or two.
set -euo pipefail
seamalloc=$(realpath "$1")
cd "$(dirname "$0")"
jobs=(gpt2xl-N resnet-multi moe-R opt1.3b-R opt13b-LR llama1b-ppo llama8b-fsdp2)

"$seamalloc" stress recorded --strategy stitch --passes 20 --json > passes-20.jsonl
"$seamalloc" stress --json > stress.jsonl
"$seamalloc" fit "${jobs[@]}" --json > fit.jsonl
for lag in 0 100 1000 1500 3000 12000; do
    for policy in never completed wait; do
        "$seamalloc" replay llama8b-fsdp2 --strategy stitch --passes 3 --lag "$lag" --conf "sharing:$policy" --json |
            sed "s/^{/{\"lag\":$lag,\"policy\":\"$policy\",/"
    done
done > lag.jsonl
