"""slime's scripts: sourced model files, arrays, computed flags, placements, start-up rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.adapters.findings import Severity
from planner.adapters.imported import Imported
from planner.domain.execution import ExecutionMode
from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle, ExpertExchange, Offload, Recompute
from planner.errors import InvalidInputError
from tests.adapters.imports import engines, errors, first_gpu, messages, read, setting, trainer

MODEL = """NLAYERS=94
DENSE=0
freq=()
for ((i = 0; i < NLAYERS; i++)); do
  if (( i < DENSE )); then freq+=(0); else freq+=(1); fi
done
printf -v MOE_FREQ "[%s]" "$(IFS=', '; echo "${freq[*]}")"
MODEL_ARGS=(
   --num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64 --vocab-size 151936
   --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm --swiglu
   --rotary-base "${ROTARY_BASE:-1000000}"
   # experts
   --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 1536 --moe-layer-freq "$MOE_FREQ" --moe-grouped-gemm
)
"""
SCRIPT = """#!/bin/bash
pkill -9 sglang
sleep 3
pkill -9 python
set -ex
if [ -z "${BASE_FOLDER}" ]; then
  echo "BASE_FOLDER is not set"
  exit 1
fi
if [ -z "${MASTER_ADDR}" ]; then
  exit 1
fi
NVLINKS=$(nvidia-smi topo -m 2>/dev/null | grep -o 'NV[0-9][0-9]*' | wc -l)
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/big.sh"

CKPT_ARGS=(
   --hf-checkpoint ${BASE_FOLDER}/Qwen3-235B-A22B-FP8
   --ref-load ${BASE_FOLDER}/torch_dist
)
ROLLOUT_ARGS=(
   --num-rollout 3000 --rollout-batch-size 64 --n-samples-per-prompt 8 --rollout-max-prompt-len 1024
   --rollout-max-response-len 8192 --global-batch-size 256
)
PERF_ARGS=(
   --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 4 --context-parallel-size 2
   --expert-model-parallel-size 16 --expert-tensor-parallel-size 1 --decoder-last-pipeline-num-layers 22
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   # --micro-batch-size 1
   --use-dynamic-batch-size --max-tokens-per-gpu 16384
)
GRPO_ARGS=(--advantage-estimator gspo --kl-loss-coef 0.00 --eps-clip 4e-4)
OPTIMIZER_ARGS=(--optimizer adam --lr 1e-6 --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.7 --sglang-ep-size 8
   --sglang-cuda-graph-bs 1 2 4 8 $(seq 16 8 256)
)
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{\\"env_vars\\": {}}" \\
   -- python3 {program} \\
   --actor-num-nodes 8 --actor-num-gpus-per-node 8 {placement} \\
   ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${OPTIMIZER_ARGS[@]} ${GRPO_ARGS[@]} ${PERF_ARGS[@]} \\
   ${SGLANG_ARGS[@]} {extra}
"""


def start(
    directory: Path, extra: str = "", *given: str, program: str = "train.py", placement: str = "--rollout-num-gpus 64"
) -> Imported:
    text = SCRIPT.replace("{program}", program).replace("{placement}", placement).replace("{extra}", extra)
    return read(directory, {"run.sh": text, "models/big.sh": MODEL}, *given)


def test_a_sourced_model_file_and_arrays(tmp_path: Path) -> None:
    found = start(tmp_path)
    assert not found.unresolved and not found.has_errors, messages(found)
    assert (found.framework, found.num_nodes, found.gpus_per_node) == ("slime", 16, 8)
    spec = found.spec
    assert (spec.algorithm, spec.num_prompts, spec.group_size, spec.num_optimizer_steps) == ("gspo", 64, 8, 2)
    assert (spec.prompt_max, spec.response_max, spec.kl_coefficient) == (1024, 8192, 0.0)
    # The end of the path alone is no name of the catalog: the shape in the flags and the precision tell.
    assert spec.model == "Qwen3-235B-A22B" and spec.rollout_precision == "fp8"
    actor = trainer(found)
    assert (actor.tp, actor.pp, actor.cp, actor.ep, actor.etp, actor.dp) == (4, 4, 2, 16, 1, 2)
    assert actor.micro_batch_tokens == 16384 * 2 and actor.recompute is Recompute.FULL
    assert actor.offload is Offload.CPU_OPTIMIZER
    assert first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 64
    engine = engines(found)
    assert (engine.num_engines, engine.tp, engine.ep, engine.idle) == (8, 8, 8, EngineIdle.RESIDENT)
    # SGLang's fraction is weights and cache alone.
    assert 0.7 < engine.engine_fraction < 0.75
    assert all(item.worker is not WorkerName.REFERENCE for item in found.workers)


def test_nothing_of_the_script_is_run(tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    start(tmp_path, "$(touch pwned) `id > pwned2`")
    assert {item.name for item in tmp_path.iterdir()} - {item.name for item in before} == {"run.sh", "models"}


def test_colocation(tmp_path: Path) -> None:
    found = start(tmp_path, "--use-kl-loss", placement="--colocate")
    assert not found.has_errors, errors(found)
    assert first_gpu(found, WorkerName.ROLLOUT_ENGINE) == 0 and found.num_gpus == 64
    assert engines(found).idle is EngineIdle.SLEEP
    assert trainer(found).offload is Offload.CPU_OPTIMIZER_STATE_SWAP
    assert trainer(found, WorkerName.REFERENCE).offload is Offload.STATE_SWAP
    assert "the coefficient is 0, and the reference is loaded" in messages(found, Severity.WARNING)
    assert setting(found, "GPUs") == "64, shared by trainers and engines (--colocate)"


def test_one_rollout_ahead(tmp_path: Path) -> None:
    found = start(tmp_path, program="train_async.py")
    assert (found.execution.mode, found.execution.staleness) == (ExecutionMode.BATCHES, 1)
    assert "no off-policy correction" in messages(found)


def test_continuous_rollouts(tmp_path: Path) -> None:
    extra = "--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    found = start(tmp_path, extra, program="train_async.py")
    assert found.execution.mode is ExecutionMode.STREAMING and "no limit on the lag" in messages(found)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("--max-token-per-gpu 8192", "nothing in slime main-2026-08 reads --max-token-per-gpu, and slime says nothing"),
        ("--kl-coef 0.1 --kl-loss-coef 0.1", "only one of --kl-coef and --kl-loss-coef"),
        ("--advantage-estimator reinforce_plus_plus", "needs normalised advantages -> --normalize-advantages"),
        ("--expert-model-parallel-size 64", "ep 64 x etp 1 x pp 4 = 256 does not divide 64 GPUs"),
        ("--expert-model-parallel-size 3", "3 does not divide 128 experts"),
        ("--decoder-last-pipeline-num-layers 20", "74 of 94 layers do not divide over the other 3 pipeline ranks"),
        ("--global-batch-size 255", "255 samples do not divide over 2 data-parallel ranks"),
        ("--num-steps-per-rollout 3", "256 is not 512 samples / 3 steps = 170"),
        ("--over-sampling-batch-size 32", "32 is less than --rollout-batch-size, 64"),
        ("--rollout-num-gpus-per-engine 7", "engines of 7 GPUs do not fill 64 GPUs"),
        ("--num-layers 90", "90 differs from the checkpoint's 94"),
        ("--update-weight-mode delta", "delta needs disk"),
    ],
)
def test_broken_rules(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in messages(start(tmp_path, extra))


def test_asynchrony_excludes_colocation(tmp_path: Path) -> None:
    found = start(tmp_path, program="train_async.py", placement="--colocate")
    assert "train_async.py refuses it" in errors(found)


def test_values_of_the_run_are_asked_for(tmp_path: Path) -> None:
    placement = "--rollout-num-gpus ${ROLLOUT_GPUS}"
    text = SCRIPT.replace("set -ex", "ROLLOUT_GPUS=$(nvidia-smi -L | wc -l)")
    files = {"run.sh": text.replace("{program}", "train.py").replace("{placement}", placement).replace("{extra}", "")}
    files["models/big.sh"] = MODEL
    assert read(tmp_path, files).unresolved == ("ROLLOUT_GPUS",)
    again = read(tmp_path, files, "ROLLOUT_GPUS=32")
    assert not again.unresolved and engines(again).num_engines == 4


def test_the_model_by_its_shape(tmp_path: Path) -> None:
    script = (
        "python3 train.py --num-layers 64 --hidden-size 5120 --num-attention-heads 64 --vocab-size 151936 "
        "--hf-checkpoint /data/our-own-sft-INT4 --rollout-batch-size 8 --rollout-max-response-len 100 --colocate "
        "--num-rollout 1 --global-batch-size 8"
    )
    found = read(tmp_path, {"run.sh": script})
    assert found.spec.model == "qwen3-32b" and "the only model of the catalog with its shape" in messages(found)
    assert read(tmp_path, {"run.sh": script.replace("layers 64", "layers 65")}).unresolved == ("hf-checkpoint",)


def test_other_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="supervised fine-tuning, no RL training"):
        start(tmp_path, "--loss-type sft_loss")


WIDE = (
    "--rollout-num-gpus-per-engine 64 --sglang-ep-size 64 --sglang-enable-dp-attention --sglang-dp-size 8 "
    "--sglang-moe-a2a-backend deepep --sglang-server-concurrency 1024"
)
"""The engines of slime's example for DeepSeek-R1 (docs/en/examples/deepseek-r1.md)."""


def test_attention_groups_and_how_their_number_is_written(tmp_path: Path) -> None:
    found = start(tmp_path, WIDE, placement="--colocate")
    engine = engines(found)
    assert (engine.num_gpus, engine.tp, engine.attention_dp, engine.ep, engine.pp) == (64, 8, 8, 64, 1)
    assert engine.exchange is ExpertExchange.ALL_TO_ALL
    assert engine.max_num_seqs == 128
    knobs = {knob.field: knob for knob in found.knobs if knob.worker is WorkerName.ROLLOUT_ENGINE}
    assert knobs["tp"].written(replace(engine, tp=4)) == ("--rollout-num-gpus-per-engine=32",)
    assert knobs["max_num_seqs"].written(replace(engine, max_num_seqs=64)) == ("--sglang-max-running-requests=512",)
    # Without the switch SGLang's dp-size is no attention parallelism.
    plain = engines(start(tmp_path, WIDE.replace("--sglang-enable-dp-attention", ""), placement="--colocate"))
    assert (plain.tp, plain.attention_dp, plain.exchange) == (64, 1, ExpertExchange.GATHER)
    wrong = start(tmp_path, WIDE.replace("--sglang-dp-size 8", "--sglang-dp-size 3"), placement="--colocate")
    assert "3 does not divide the 64 ranks of an engine" in messages(wrong, Severity.ERROR)
