"""Words for what frameworks do."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.stages import WorkerName
from planner.domain.strategy import EngineIdle


def idle_words(idles: frozenset[EngineIdle]) -> str:
    """What engines do while others run."""
    return " or ".join(_IDLE_WORDS[idle] for idle in EngineIdle if idle in idles)


_IDLE_WORDS = {
    EngineIdle.RESIDENT: "stay in GPU memory while others run",
    EngineIdle.SLEEP: "sleep while others run",
}


def joined(names: Sequence[str]) -> str:
    """`'a'`, `'a and b'`, `'a, b and c'`."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def listed(workers: frozenset[WorkerName]) -> str:
    return joined([w.value for w in WorkerName if w in workers])
