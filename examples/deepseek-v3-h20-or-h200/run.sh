#!/bin/sh
# DeepSeek-V3 on H20 or on H200: little compute and much memory, or both. Prices are examples: give yours.
set -eu
rlplan plan deepseek-v3 --gpus 256xh20 --response-mean 3000 -o h20.json
rlplan plan deepseek-v3 --gpus 128xh200 --response-mean 3000 -o h200.json
rlplan budget deepseek-v3 --types h20,h200 --gpus 128,192,256,384,512 --response-mean 3000 --steps 200 --price h20=1.20
