#!/bin/sh
# Llama 3.1 70B on one node of 8 H100: full training does not fit, LoRA does.
set -eu
rlplan plan llama-3.1-70b --gpus 8xh100 --response 4096 --response-mean 1500 || [ $? -eq 3 ]
rlplan plan llama-3.1-70b --gpus 8xh100 --response 4096 --response-mean 1500 --lora 32 --framework verl -o plan.json
rlplan simulate plan.json --iterations 5
rlplan export plan.json --to verl -o launch
