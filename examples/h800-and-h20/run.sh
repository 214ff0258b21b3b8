#!/bin/sh
# Two pools: what the search makes of them without and with staleness, and what the H800 would do alone.
set -eu
rlplan plan workload.yaml --gpus 32xh800 -o h800.json
rlplan plan workload.yaml -o both.json
rlplan plan workload.yaml --staleness 1 -o stale.json
rlplan simulate stale.json --iterations 10
