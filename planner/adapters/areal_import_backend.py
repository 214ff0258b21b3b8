"""AReaL's backend strings: `engine:dims`, with experts folded apart, and the one-line `allocation_mode` before 1.0.

Grammar: areal/api/alloc_mode.py. Dimensions of training: d p t c e; of engines: d t p.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from planner.adapters.import_trainer import Degrees

ENGINES = ("sglang", "vllm")
TRAINERS = ("fsdp", "megatron", "archon")
_DIMS = re.compile(r"(?:[dptce][1-9]\d{0,5})+")
_DIM = re.compile(r"([dptce])(\d+)")
_FOLDED = re.compile(r"\(?attn:((?:[dptc][1-9]\d{0,5})+)\|ffn:((?:[dpte][1-9]\d{0,5})+)\)?")
_ONE = re.compile(r"(?:(sglang|vllm|fsdp|megatron|archon)(?:\[(\w+)\])?[:.])?(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one backend string says; `problem` is empty when it is one."""

    engine: str
    dp: int = 1
    degrees: Degrees = field(default_factory=Degrees)
    name: str = ""
    problem: str = ""

    @property
    def num_gpus(self) -> int:
        return self.dp * self.degrees.tp * self.degrees.pp * self.degrees.cp


def parse_backend(text: str, *, is_engine: bool) -> Allocation:
    """One backend string such as `sglang:d4t2`, `fsdp:d8c2` or `megatron:(attn:d4p2t2|ffn:d2p2e4)`."""
    compact = "".join(text.split())
    match = _ONE.fullmatch(compact)
    engine = (match[1] if match is not None else "") or ""
    kinds = ENGINES if is_engine else TRAINERS
    if match is None or engine not in kinds:
        return Allocation(engine="", problem=f"{text[:60]!r} names no back end of {', '.join(kinds)}")
    return _dims(match[3], engine, match[2] or "", text)


def _dims(dims: str, engine: str, name: str, text: str) -> Allocation:
    folded = _FOLDED.fullmatch(dims)
    if folded is not None:
        return _folded(folded[1], folded[2], engine, name)
    if not _DIMS.fullmatch(dims):
        return Allocation(engine=engine, problem=f"{text[:60]!r} has no dimensions such as d4t2")
    sizes = _sizes(dims)
    allowed = "dtp" if engine in ENGINES else "dtc" if engine == "fsdp" else "dptce"
    extra = [key for key, value in sizes.items() if key not in allowed and (value > 1 or engine in ENGINES)]
    if extra:
        return Allocation(engine=engine, problem=f"{engine} has no dimension {', '.join(extra)}")
    degrees = Degrees(tp=sizes.get("t", 1), pp=sizes.get("p", 1), cp=sizes.get("c", 1), ep=sizes.get("e", 1), etp=1)
    return Allocation(engine=engine, dp=sizes.get("d", 1), degrees=degrees, name=name)


def _folded(attention: str, experts: str, engine: str, name: str) -> Allocation:
    """Attention and experts in layouts of their own, over equally many GPUs and pipeline ranks."""
    one, other = _sizes(attention), _sizes(experts)
    world = one.get("d", 1) * one.get("p", 1) * one.get("t", 1) * one.get("c", 1)
    expert_world = other.get("d", 1) * other.get("p", 1) * other.get("t", 1) * other.get("e", 1)
    if engine != "megatron":
        return Allocation(engine=engine, problem=f"{engine} cannot fold experts: Megatron can")
    if one.get("p", 1) != other.get("p", 1):
        return Allocation(engine=engine, problem="attn and ffn have different pipeline degrees")
    if world != expert_world:
        return Allocation(engine=engine, problem=f"attn takes {world} GPUs, ffn {expert_world}")
    degrees = Degrees(
        tp=one.get("t", 1), pp=one.get("p", 1), cp=one.get("c", 1), ep=other.get("e", 1), etp=other.get("t", 1)
    )
    return Allocation(engine=engine, dp=one.get("d", 1), degrees=degrees, name=name)


def _sizes(dims: str) -> dict[str, int]:
    return {key: int(size) for key, size in _DIM.findall(dims)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OldMode:
    """`allocation_mode`: an engine and a trainer; `is_shared` where `|` puts them on the same GPUs."""

    engine: Allocation | None
    trainers: tuple[Allocation, ...]
    is_shared: bool
    problem: str = ""


def parse_old_mode(text: str) -> OldMode:
    """The one-line form: `sglang:d4t2+fsdp:d8`, before that `sglang.d4p1t1+d4p1t1`, with `|` for shared GPUs."""
    compact = "".join(text.split()).removesuffix("+eval")
    # The first releases called tensor parallelism m.
    compact = re.sub(r"(?<=[\d.:+|])m(?=\d)", "t", compact)
    engine: Allocation | None = None
    trainers: list[Allocation] = []
    shared = False
    for group in compact.split("+"):
        parts = [group] if "attn:" in group else group.split("|")
        shared = shared or (len(parts) > 1 and parts[0].startswith(ENGINES))
        for part in parts:
            match = _ONE.fullmatch(part)
            backend = (match[1] if match is not None else None) or ""
            if match is None:
                return OldMode(engine=None, trainers=(), is_shared=False, problem=f"{text[:60]!r} cannot be read")
            if not backend:
                # Before 0.4 the trainer had no name: FSDP unless a dimension needs Megatron.
                backend = "megatron" if "p" in match[3] and _sizes(match[3]).get("p", 1) > 1 else "fsdp"
            found = _dims(match[3], backend, match[2] or "", text)
            if found.problem:
                return OldMode(engine=None, trainers=(), is_shared=False, problem=found.problem)
            if backend in ENGINES:
                engine = engine or found
            else:
                trainers.append(found)
    return OldMode(engine=engine, trainers=tuple(trainers), is_shared=shared)
