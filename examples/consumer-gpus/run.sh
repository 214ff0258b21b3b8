#!/bin/sh
# Full training and LoRA of a 4B model, then the files that start the second.
set -eu
rlplan plan workload.yaml -o full.json
rlplan plan workload.yaml --lora 32 -o lora.json
rlplan export lora.json --to verl -o launch
