"""Exports of every test plan through NeMo-RL's own loader and pydantic models.

    NEMO_RL_ROOT=... python -m tests.adapters.nemo_rl_check            check everything; skipped without a checkout
    NEMO_RL_ROOT=... python -m tests.adapters.nemo_rl_check --freeze   write nemo_rl_keys.json from the checkout

NeMo-RL is not on a package registry: NEMO_RL_ROOT names a checkout. Neither torch nor ray is needed: packages that only
a run needs are replaced by inert modules. NeMo-RL ignores keys that it does not know, so that these are looked up in
the frozen list.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import yaml

from planner.adapters.nemo_rl import CONFIG, exported_files
from planner.domain.plan import Plan
from tests.adapters.inert import bare_package, install
from tests.adapters.nemo_rl_cases import cases, hostile_case

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
KEYS = Path(__file__).with_name("nemo_rl_keys.json")
SHIPPED = ("grpo_math_1B.yaml", "ppo_math_1B.yaml")
CLASSES = (
    ("policy", "nemo_rl/models/policy/__init__.py", "PolicyConfig"),
    ("policy.dtensor_cfg", "nemo_rl/models/policy/__init__.py", "DTensorConfig"),
    ("policy.dtensor_cfg.moe_parallelizer", "nemo_rl/models/policy/__init__.py", "MoEParallelizerOptions"),
    ("policy.megatron_cfg", "nemo_rl/models/policy/__init__.py", "MegatronConfig"),
    ("policy.generation.vllm_cfg", "nemo_rl/models/generation/vllm/config.py", "VllmSpecificArgs"),
    ("policy.generation", "nemo_rl/models/generation/vllm/config.py", "VllmConfig"),
    ("value", "nemo_rl/models/value/config.py", "ValueConfig"),
    ("value.dtensor_cfg", "nemo_rl/models/policy/__init__.py", "DTensorConfig"),
    ("value.dtensor_cfg.moe_parallelizer", "nemo_rl/models/policy/__init__.py", "MoEParallelizerOptions"),
    ("value.megatron_cfg", "nemo_rl/models/policy/__init__.py", "MegatronConfig"),
    ("loss_fn", "nemo_rl/algorithms/loss/loss_functions.py", "ClippedPGLossConfig"),
    ("grpo", "nemo_rl/algorithms/grpo.py", "GRPOConfig"),
    ("ppo", "nemo_rl/algorithms/ppo.py", "PPOConfig"),
    ("data.train", "nemo_rl/data/__init__.py", "ResponseDatasetConfig"),
)
"""Fields that the shipped files do not all spell out."""
OPEN = {
    "policy.generation.vllm_kwargs.max_num_seqs": "vllm/engine/arg_utils.py EngineArgs",
    "policy.generation.vllm_kwargs.max_num_batched_tokens": "vllm/engine/arg_utils.py EngineArgs",
    "policy.generation.vllm_kwargs.enable_chunked_prefill": "vllm/engine/arg_utils.py EngineArgs",
    "data.train._override_": "nemo_rl/utils/config.py merge_with_override",
}
"""Keys of dictionaries that are handed on unread, with the place that reads them."""
INERT = (
    "torch", "ray", "numpy", "transformers", "torchdata", "datasets", "tensordict", "vllm", "sglang", "megatron",
    "nemo_automodel", "nemo_gym", "tensorrt_llm", "transfer_queue", "wandb", "mlflow", "swanlab", "tensorboard",
    "matplotlib", "rich", "zmq", "requests", "tqdm", "huggingface_hub", "accelerate", "math_verify", "plotly",
    "pynvml", "setproctitle", "blobfile", "decord", "torchvision", "nvidia_resiliency_ext", "aiohttp", "PIL", "uvicorn",
    "fastapi", "psutil", "httpx", "scipy", "soundfile", "prometheus_client",
)  # fmt: skip


def leaves(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of everything that is no mapping, and of empty mappings."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def fields_of(path: Path, name: str) -> set[str]:
    """Annotated fields of a class, read without importing it."""
    tree = ast.parse(path.read_text())
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        item.target.id for item in found.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def freeze(root: Path) -> None:
    known = {"defaults", *OPEN}
    for name in SHIPPED:
        shipped = yaml.safe_load((root / "examples" / "configs" / name).read_text())
        known |= {key for key, _ in leaves(shipped)}
    for prefix, path, name in CLASSES:
        known |= {f"{prefix}.{field}" for field in fields_of(root / path, name)}
    kept = {key for key in known if not key.startswith(("logger", "on_policy_distillation", "data_plane", "env."))}
    document = {
        "source": f"NeMo-RL commit {COMMIT}: {', '.join(SHIPPED)} and the configuration classes of nemo_rl; Apache-2.0",
        "commit": COMMIT,
        "open": OPEN,
        "keys": sorted(kept),
    }
    KEYS.write_text(json.dumps(document, indent=1) + "\n")


def unknown_keys(text: str) -> list[str]:
    """Keys of an exported YAML text that NeMo-RL would silently ignore."""
    known = set(json.loads(KEYS.read_text())["keys"])
    return [key for key, _ in leaves(yaml.safe_load(text)) if key not in known]


class Framework:
    """NeMo-RL's loader and models, imported from a checkout without the packages that only a run needs."""

    def __init__(self, root: Path) -> None:
        if sys.version_info < (3, 12):
            import typing_extensions

            # pydantic wants this flavour on older Pythons.
            typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
        install(*INERT)
        # Modules whose names start with a capital letter would otherwise be inert classes.
        importlib.import_module("PIL.Image")
        transformers = importlib.import_module("transformers")
        transformers.__version__ = "5.5.0"  # type: ignore[attr-defined]
        transformers.AutoTokenizer = MagicMock()  # type: ignore[attr-defined]
        sys.path.insert(0, str(root))
        bare_package("nemo_rl", root / "nemo_rl")
        self.config = importlib.import_module("nemo_rl.utils.config")
        self.config.register_omegaconf_resolvers()
        self.masters = {
            "grpo": importlib.import_module("nemo_rl.algorithms.grpo").MasterConfig,
            "ppo": importlib.import_module("nemo_rl.algorithms.ppo").MasterConfig,
        }
        self.vllm = importlib.import_module("nemo_rl.models.generation.vllm.config").VllmConfig

    def load(self, path: Path) -> dict[str, object]:
        """The resolved configuration, after NeMo-RL's own models have accepted it."""
        from omegaconf import OmegaConf
        from pydantic import TypeAdapter

        resolved = OmegaConf.to_container(self.config.load_config(path), resolve=True)
        assert isinstance(resolved, dict)
        section = next(name for name in self.masters if name in resolved)
        self.masters[section](**resolved)
        generation = dict(resolved["policy"]["generation"])
        generation["vllm_cfg"] = {"skip_tokenizer_init": True, **generation["vllm_cfg"]}
        TypeAdapter(self.vllm).validate_python({"model_name": "x", **generation})
        return {str(key): value for key, value in resolved.items()}


def config_text(plan: Plan) -> str:
    return next(file.text for file in exported_files(plan) if file.name == CONFIG)


def problems_of(framework: Framework, text: str, scratch: Path) -> list[str]:
    """What is wrong with an exported configuration: unknown keys, refusals, values that got lost."""
    from pydantic import ValidationError

    problems = [f"unknown key {key}" for key in unknown_keys(text)]
    path = scratch / CONFIG
    path.write_text(text)
    try:
        resolved = dict(leaves(framework.load(path)))
    except ValidationError as error:
        return [*problems, str(error)]
    for key, value in leaves(yaml.safe_load(text)):
        if (isinstance(value, str) and "${" in value) or key in ("defaults", "data.train._override_"):
            continue
        if resolved.get(key, "missing") != value:
            problems.append(f"{key} became {resolved.get(key, 'missing')!r} instead of {value!r}")
    return problems


MUTATIONS = (
    ("num_prompts_per_step:", "num_prompts_by_step:"),
    ("expert_tensor_parallel_size:", "expert_tensor_paralel_size:"),
    ("gpu_memory_utilization:", "gpu_memory_utilisation:"),
    ("num_prompts_per_step: 256", "num_prompts_per_step: many"),
    ("ratio_clip_max: 0.2", "ratio_clip_max: [0.2]"),
)
"""Each spoils the configuration of the plan 'megatron-cp'."""


def check(root: Path) -> int:
    os.environ.update(NEMO_RL=str(root), TRAIN_DATA="/data/train.jsonl")
    warnings.simplefilter("ignore")
    framework = Framework(root)
    plans = {**cases(), "hostile": hostile_case()}
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        for name, plan in plans.items():
            problems = problems_of(framework, config_text(plan), scratch)
            path = framework.load(scratch / CONFIG)["policy"]["model_name"]  # type: ignore[index]
            problems += [] if path == plan.workload.actor.hf_repo else [f"model path became {path!r}"]
            failures += bool(problems)
            print(f"{'ok  ' if not problems else 'FAIL'} {name}")
            for problem in problems:
                print(f"     {problem}")
        text = config_text(plans["megatron-cp"])
        for old, new in MUTATIONS:
            assert old in text, old
            found = problems_of(framework, text.replace(old, new, 1), scratch)
            failures += not found
            print(f"{'ok  ' if found else 'FAIL'} {new} is {'refused' if found else 'accepted'}")
    return failures


def main() -> int:
    given = os.environ.get("NEMO_RL_ROOT", "")
    root = Path(given)
    if not given or not (root / "nemo_rl").is_dir() or importlib.util.find_spec("hydra") is None:
        print("skipped: NeMo-RL is not on a package registry; install hydra-core==1.3.2 and pydantic, and set")
        print(f"NEMO_RL_ROOT to a checkout of github.com/NVIDIA-NeMo/RL (made for commit {COMMIT[:9]})")
        return 0
    if "--freeze" in sys.argv:
        freeze(root)
        return 0
    return 1 if check(root) else 0


if __name__ == "__main__":
    sys.exit(main())
