#!/usr/bin/env bash
# Makes the raw files of this folder: run.sh SEAMALLOC, a release build of the command. A minute or two.
set -euo pipefail
seamalloc=$(realpath "$1")
cd "$(dirname "$0")"
jobs=(gpt2xl-N resnet-multi moe-R opt1.3b-R opt13b-LR llama1b-ppo llama8b-fsdp2)
options=(--strategy gmlake --json)

"$seamalloc" replay "${jobs[@]}" "${options[@]}" --passes 3 > passes-3.jsonl
for mib in 2 20 64 128 256 512 1024; do
    bytes=$((mib << 20))
    "$seamalloc" replay "${jobs[@]}" "${options[@]}" --passes 3 --conf "fragLimit:$bytes" | sed "s/^{/{\"fragLimit\":$bytes,/"
done > frag-limit.jsonl
"$seamalloc" stress "${options[@]}" --passes 3 > stress.jsonl
"$seamalloc" fit "${jobs[@]}" "${options[@]}" > fit.jsonl
for lag in 0 1500; do
    "$seamalloc" replay llama8b-fsdp2 "${options[@]}" --lag "$lag" | sed "s/^{/{\"lag\":$lag,/"
done > lag.jsonl
