#!/bin/sh
# GRPO on Qwen3-32B over 4 nodes of 8 H100, for verl; then the same GPUs with staleness.
set -eu
rlplan plan qwen3-32b --gpus 32xh100 --response-mean 3000 --framework verl -o verl.json
rlplan export verl.json --to verl -o launch
rlplan check launch/run.sh --gpus h100 --response-mean 3000
rlplan plan qwen3-32b --gpus 32xh100 --response-mean 3000 --staleness 1 -o stale.json
rlplan report stale.json -o stale.html
rlplan analyze qwen3-32b --gpus 32xh100 --response-mean 3000
